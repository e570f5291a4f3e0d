"""The picture stays true where tasks overlap, and legible where names are long."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.errors import BubblescopeError
from bubblescope.exports import svg
from bubblescope.timeline import Run
from synthetic import one_f_one_b

SVG = "{http://www.w3.org/2000/svg}"


def lane(*tasks: tuple[str, int, int]) -> Timeline:
    frame = pl.DataFrame(tasks, schema=["kind", "start_ns", "end_ns"], orient="row")
    return Timeline(
        frame.with_columns(rank=0, step=0, lane=pl.lit("compute"), name=pl.lit("x")),
    )


def blocks(timeline: Timeline) -> dict[str, tuple[float, float]]:
    """Return top and height of each block, below the top of its lane, by its title."""
    root = ET.fromstring(svg.render(timeline))
    rects = list(root.iter(f"{SVG}rect"))
    [top] = [float(r.get("y")) for r in rects if r.get("height") == "18" and not len(r)][:1]
    return {r[0].text: (float(r.get("y")) - top, float(r.get("height"))) for r in rects if len(r)}


def covered(timeline: Timeline, width: int) -> list[set[int]]:
    """Return the pixel columns in which something is drawn, of each rank, in a sampled picture."""
    lanes: dict[int, set[int]] = {}
    text = svg.render(timeline, width=width)
    for high, path in re.findall(r'<path stroke="#\w+" stroke-width="([\d.]+)" d="(M[^"]*)"', text):
        for left, middle, wide in re.findall(r"M(\d+) ([\d.]+)h(\d+)", path):
            row = int((float(middle) - float(high) / 2) // 22)
            lanes.setdefault(row, set()).update(range(int(left), int(left) + int(wide)))
    return [lanes[row] for row in sorted(lanes)]


def test_tasks_that_overlap_share_the_height_and_the_others_have_it_all():
    timeline = lane(("forward", 0, 50), ("backward", 40, 90), ("backward_weight", 90, 100))
    assert blocks(timeline) == {
        "F · 50 ns": (0, 9),
        "B · 50 ns": (9, 9),
        "W · 10 ns": (0, 18),
    }


def test_a_crowded_lane_is_idle_only_where_nothing_runs():
    """A long task under many short ones that end before it must not vanish."""
    short = [("backward_weight", at * 100, at * 100 + 10) for at in range(1, 4000)]
    timeline = lane(("forward", 0, 400_000), *short)
    [drawn] = covered(timeline, width=1000)
    assert drawn == set(range(150, 1000 - 70))


def test_a_crowded_lane_draws_nothing_where_it_idles():
    busy = [("forward", at * 10, at * 10 + 10) for at in range(2000)]
    timeline = lane(*busy, ("forward", 39_999, 40_000))
    [drawn] = covered(timeline, width=1000)
    assert drawn == set(range(150, 150 + 780 // 2))


def test_a_crowded_picture_is_no_larger_than_its_pixels():
    """However many tasks: at most one run of a few characters for each pixel of each rank."""
    few = one_f_one_b(ranks=2, microbatches=2000, steps=1, comm=False)
    many = one_f_one_b(ranks=2, microbatches=8000, steps=1, comm=False)
    bound = 2 * (600 - 150 - 70) * len("M1000 100.25h1") + 10_000
    assert max(len(svg.render(timeline, width=600)) for timeline in (few, many)) < bound


def test_hosts_with_long_names_are_told_apart():
    timeline = one_f_one_b()
    named = Timeline(
        timeline.tasks,
        timeline.ranks.with_columns(host=pl.format("a-long-cluster-name-node-{}", pl.col("rank"))),
    )
    text = svg.render(named)
    for rank in range(4):
        assert f">a-long-cluster-name-node-{rank}</text>" in text


def test_titles_of_ranks_with_many_stages_stay_on_the_page():
    timeline = one_f_one_b()
    stages = pl.Series([list(range(rank, 64, 4)) for rank in range(4)])
    root = ET.fromstring(
        svg.render(Timeline(timeline.tasks, timeline.ranks.with_columns(stages=stages)))
    )
    titles = [text for text in root.iter(f"{SVG}text") if (text.text or "").startswith("rank ")]
    assert len(titles) == 4
    for title in titles:
        assert float(title.get("x")) > 6.4 * len(title.text)


def test_a_heading_that_is_wider_than_the_page_takes_several_lines():
    timeline = one_f_one_b()
    named = Timeline(timeline.tasks, timeline.ranks, Run(schedule="interleaved with warm-up"))
    root = ET.fromstring(svg.render(named, width=500))
    lines = [text.text for text in root.iter(f"{SVG}text") if text.get("font-size") == "13"]
    assert len(lines) > 1
    assert all(len(line) * 6.4 < 500 - 150 for line in lines)
    assert "bubble rate 27.27 % of the makespan" in " · ".join(lines)


@pytest.mark.parametrize("width", [-1, 0, 220, 319])
def test_a_width_without_room_for_the_lanes_is_refused(width):
    with pytest.raises(BubblescopeError, match="at least 320 pixels wide"):
        svg.render(one_f_one_b(), width=width)


def test_the_legend_names_every_kind_that_is_drawn_and_no_other():
    text = svg.render(lane(("forward", 0, 5), ("recompute", 5, 9)))
    assert re.findall(r'<text x="\d+" y="\d+">([a-z ]+)</text>', text) == [
        "forward",
        "recompute",
        "bubble",
    ]
