"""The picture stays true where tasks overlap, and legible where names are long."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import polars as pl
import pytest
from click.testing import CliRunner, Result

import bubblescope
from bubblescope import Timeline
from bubblescope.analysis.picture_data import pictured
from bubblescope.cli import cli
from bubblescope.facade import Trace, write
from bubblescope.model import units
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import Run
from bubblescope.render.palette import COLOURS
from bubblescope.render.picture import svg
from bubblescope.render.picture.order import pipeline_order
from places import SHARED
from synthetic import empty, hostile, one_f_one_b

SVG = "{http://www.w3.org/2000/svg}"


def lane(*tasks: tuple[str, int, int]) -> Timeline:
    frame = pl.DataFrame(tasks, schema=["kind", "start_ns", "end_ns"], orient="row")
    return Timeline(
        frame.with_columns(rank=0, step=0, lane=pl.lit("compute"), name=pl.lit("x")),
    )


def blocks(timeline: Timeline) -> dict[str, tuple[float, float]]:
    """Return top and height of each block, below the top of its lane, by its title."""
    root = ET.fromstring(svg.render(pictured(timeline)))
    rects = list(root.iter(f"{SVG}rect"))
    [top] = [float(r.get("y")) for r in rects if r.get("height") == "18" and not len(r)][:1]
    return {r[0].text: (float(r.get("y")) - top, float(r.get("height"))) for r in rects if len(r)}


def covered(timeline: Timeline, width: int) -> list[set[int]]:
    """Return the pixel columns in which something is drawn, of each rank, in a sampled picture."""
    lanes: dict[int, set[int]] = {}
    text = svg.render(pictured(timeline), width=width)
    for high, path in re.findall(r'<path stroke="#\w+" stroke-width="([\d.]+)" d="(M[^"]*)"', text):
        for left, middle, wide in re.findall(r"M(\d+) ([\d.]+)h(\d+)", path):
            row = int((float(middle) - float(high) / 2) // 22)
            lanes.setdefault(row, set()).update(range(int(left), int(left) + int(wide)))
    return [lanes[row] for row in sorted(lanes)]


def test_tasks_that_overlap_share_the_height_and_the_others_have_it_all():
    timeline = lane(
        ("forward", 0, 50_000), ("backward", 40_000, 90_000), ("backward_weight", 90_000, 100_000)
    )
    assert blocks(timeline) == {
        "F · 50.00 µs": (0, 9),
        "B · 50.00 µs": (9, 9),
        "W · 10.00 µs": (0, 18),
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
    assert max(len(svg.render(pictured(timeline), width=600)) for timeline in (few, many)) < bound


def test_hosts_with_long_names_are_told_apart():
    timeline = one_f_one_b()
    named = Timeline(
        timeline.tasks,
        timeline.ranks.with_columns(host=pl.format("a-long-cluster-name-node-{}", pl.col("rank"))),
    )
    text = svg.render(pictured(named))
    for rank in range(4):
        assert f">a-long-cluster-name-node-{rank}</text>" in text


def test_titles_of_ranks_with_many_stages_stay_on_the_page():
    timeline = one_f_one_b()
    stages = pl.Series([list(range(rank, 64, 4)) for rank in range(4)])
    root = ET.fromstring(
        svg.render(pictured(Timeline(timeline.tasks, timeline.ranks.with_columns(stages=stages))))
    )
    titles = [text for text in root.iter(f"{SVG}text") if (text.text or "").startswith("rank ")]
    assert len(titles) == 4
    for title in titles:
        assert float(title.get("x")) > 6.4 * len(title.text)


def test_a_heading_that_is_wider_than_the_page_takes_several_lines():
    timeline = one_f_one_b()
    named = Timeline(timeline.tasks, timeline.ranks, Run(schedule="interleaved with warm-up"))
    root = ET.fromstring(svg.render(pictured(named), width=500))
    lines = [text.text for text in root.iter(f"{SVG}text") if text.get("font-size") == "13"]
    assert len(lines) > 1
    assert all(len(line) * 6.4 < 500 - 150 for line in lines)
    assert "bubble rate 27.27 % of the makespan" in " · ".join(lines)


@pytest.mark.parametrize("width", [-1, 0, 220, 319])
def test_a_width_without_room_for_the_lanes_is_refused(width):
    with pytest.raises(BubblescopeError, match="at least 320 pixels wide"):
        svg.render(pictured(one_f_one_b()), width=width)


def test_the_legend_names_every_kind_that_is_drawn_and_no_other():
    text = svg.render(pictured(lane(("forward", 0, 5), ("recompute", 5, 9))))
    assert re.findall(r'<text x="\d+" y="\d+">([a-z ]+)</text>', text) == [
        "forward",
        "recompute",
        "bubble",
    ]


@pytest.mark.parametrize(
    ("width", "written", "pixels"),
    [
        ("3.3in", "3.3in", 316.8),
        ("column", "3.3in", 316.8),
        ("page", "7in", 672),
        ("84mm", "84mm", 84 / 25.4 * 96),
        ("8.4 cm", "8.4cm", 8.4 / 2.54 * 96),
        ("240pt", "240pt", 320),
        ("900px", "900", 900),
        ("900", "900", 900),
        (900, "900", 900),
    ],
)
def test_a_picture_is_as_wide_as_it_was_asked_to_be(width, written, pixels):
    for look in svg.LOOKS:
        root = ET.fromstring(svg.render(pictured(one_f_one_b()), width=width, look=look))
        assert root.get("width") == written
        left, top, wide, high = map(float, root.get("viewBox").split())
        assert (left, top) == (0, 0)
        assert wide == pytest.approx(pixels, abs=0.01)
        unit = written.lstrip("0123456789.")
        scale = float(written.removesuffix(unit)) / wide
        assert float(root.get("height").removesuffix(unit)) == pytest.approx(high * scale, rel=1e-3)


@pytest.mark.parametrize("look", sorted(svg.LOOKS))
@pytest.mark.parametrize("width", ["column", "page"])
def test_type_in_print_is_five_to_seven_points_and_stays_on_the_page(look, width):
    # Of three steps, most blocks of a column are too narrow for a number of five points.
    run = one_f_one_b(steps=1 if width == "column" else 3)
    root = ET.fromstring(svg.render(pictured(run), width=width, look=look))
    wide, high = map(float, root.get("viewBox").split()[2:])
    common = float(root.get("font-size"))
    texts = list(root.iter(f"{SVG}text"))
    assert len(texts) > 10
    for text in texts:
        size = float(text.get("font-size", common))
        assert 5 * 96 / 72 - 0.1 <= size <= 7 * 96 / 72 + 0.1
        left = float(text.get("x"))
        room = len(text.text) * size * 0.5
        if text.get("text-anchor") == "end":
            left -= room
        assert left >= 0
        assert left + room <= wide + 10  # centred numbers and ticks reach less far
        assert float(text.get("y")) <= high


@pytest.mark.parametrize("width", ["0.5in", "1cm", "20pt"])
def test_print_without_room_says_in_its_own_unit_what_it_needs(width):
    unit = width.lstrip("0123456789.")
    with pytest.raises(BubblescopeError, match=rf"at least [\d.]+{unit} wide"):
        svg.render(pictured(one_f_one_b()), width=width, look="paper")
    for look in svg.LOOKS:
        svg.render(pictured(one_f_one_b()), width="3.3in", look=look)


@pytest.mark.parametrize("width", ["", "wide", "-3in", "3.3inch", "1e3px", "3in 4in", "٣in"])
def test_what_is_no_width_is_refused(width):
    with pytest.raises(BubblescopeError, match=r"is not a width; give one such as 84mm, 3\.3in"):
        svg.render(pictured(one_f_one_b()), width=width)


def test_a_picture_wider_than_any_wall_and_an_unknown_look_are_refused():
    with pytest.raises(BubblescopeError, match=r"at most 520\.8333in wide"):
        svg.render(pictured(one_f_one_b()), width="9999in")
    with pytest.raises(
        BubblescopeError, match="'nice' is not a look of a picture; choose full or pap"
    ):
        svg.render(pictured(one_f_one_b()), look="nice")


def texts(timeline: Timeline, **how: object) -> list[str]:
    root = ET.fromstring(svg.render(pictured(timeline), look="paper", **how))
    return [text.text for text in root.iter(f"{SVG}text")]


def test_the_look_of_papers_has_devices_and_numbers_and_nothing_else():
    timeline = one_f_one_b(ranks=3, microbatches=4, steps=1)
    said = texts(timeline, width="page")
    assert said[:3] == ["Device 1", "Device 2", "Device 3"]
    # Four forwards and four backwards on each device; micro-batches count from 1.
    assert sorted(said[3:27]) == sorted("1234" * 6)
    assert said[27:] == ["Time", units.duration(timeline.duration_ns), *LEGEND]


LEGEND = ["Forward", "Backward", "Optimizer", "Idle"]


def test_devices_follow_the_pipeline_across_hosts_and_copies():
    """Two opposite copies of a pipeline: ranks 0 and 1 hold the same stages, as other chunks."""
    frame = pl.DataFrame(
        [
            (rank, chunk, stage, 10 * rank + 100 * chunk)
            for rank, stages in ((7, (0, 1)), (3, (1, 0)))
            for chunk, stage in enumerate(stages)
        ],
        schema=["rank", "chunk", "stage", "start_ns"],
        orient="row",
    ).with_columns(
        end_ns=pl.col("start_ns") + 10,
        kind=pl.lit("forward"),
        microbatch=0,
        lane=pl.lit("compute"),
        name=pl.lit("x"),
    )
    ranks = pl.DataFrame({"rank": [3, 7], "host": ["a", "b"], "stages": [[0, 1], [0, 1]]})
    assert pipeline_order(Timeline(frame, ranks))["rank"].to_list() == [7, 3]


def chunked(kind: str, chunks: int) -> Timeline:
    frame = pl.DataFrame(
        {
            "chunk": range(chunks),
            "start_ns": [100 * chunk for chunk in range(chunks)],
            "end_ns": [100 * chunk + 90 for chunk in range(chunks)],
        }
    )
    return Timeline(
        frame.with_columns(
            rank=0, kind=pl.lit(kind), microbatch=4, lane=pl.lit("compute"), name=pl.lit("x")
        )
    )


def test_chunks_have_shades_of_one_colour():
    text = svg.render(pictured(chunked("forward", 3)), look="paper")
    fills = re.findall(r'fill="(#\w+)"><title>', text)
    assert fills[0] == COLOURS[Kind.FORWARD]
    assert len(set(fills)) == 3
    red = [int(fill[1:3], 16) for fill in fills]
    assert red == sorted(red)
    assert ">A lighter shade is a later chunk of the device's model</text>" in text
    assert re.findall(r">(\d\w*)</text>", text) == ["4", "4", "4"]


@pytest.mark.parametrize(("kind", "chunks"), [("forward", 4), ("backward_weight", 2)])
def test_chunks_have_letters_where_shades_would_not_do(kind, chunks):
    text = svg.render(pictured(chunked(kind, chunks)), look="paper")
    assert len(set(re.findall(r'fill="(#\w+)"><title>', text))) == 1
    assert re.findall(r">(\d\w*)</text>", text) == [f"4{letter}" for letter in "abcd"[:chunks]]
    assert "chunks of the device's model" in text


def test_backwards_that_are_split_and_those_that_are_not_have_lines_of_their_own_in_the_legend():
    said = texts(lane(("backward", 0, 5), ("backward_input", 5, 9), ("forward_backward", 9, 12)))
    assert said[-4:] == [
        "Backward",
        "Backward for inputs",
        "Overlapped forward and backward",
        "Idle",
    ]


def test_an_overlapped_task_has_the_numbers_of_both():
    frame = pl.DataFrame({"rank": [0], "start_ns": [0], "end_ns": [9]}).with_columns(
        kind=pl.lit("forward_backward"),
        lane=pl.lit("compute"),
        name=pl.lit("x"),
        microbatch=0,
        pair_microbatch=4,
        pair_stage=0,
    )
    assert "1/5" in texts(Timeline(frame))


def test_many_devices_fit_on_one_page_and_some_have_titles():
    timeline = one_f_one_b(ranks=128, microbatches=2, steps=1, comm=False)
    root = ET.fromstring(svg.render(pictured(timeline), width="page", look="paper"))
    assert float(root.get("height").removesuffix("in")) < 8
    titles = [text for text in root.iter(f"{SVG}text") if (text.text or "").startswith("Device")]
    heights = [float(title.get("y")) for title in titles]
    assert titles[0].text == "Device 1"
    assert min(b - a for a, b in itertools.pairwise(heights)) > float(root.get("font-size"))


def test_crowded_lanes_in_print_have_300_samples_an_inch_in_their_true_shares():
    timeline = one_f_one_b(ranks=4, microbatches=900, steps=1, comm=False)
    text = svg.render(pictured(timeline), width="page", look="paper")
    assert "the centre of each 300th of an inch" in text
    [(left, scale)] = re.findall(r'translate\(([\d.]+) 0\) scale\(([\d.]+) 1\)"', text)
    assert float(scale) == pytest.approx(96 / 300)
    columns = (672 - float(left) - 4) * 300 / 96
    spent = dict(
        timeline.tasks.group_by("kind")
        .agg((pl.col("end_ns") - pl.col("start_ns")).sum())
        .with_columns(pl.col("kind").cast(pl.String))
        .iter_rows()
    )
    for kind in ("forward", "backward"):
        colour = COLOURS[Kind(kind)]
        runs = re.findall(rf'<path stroke="{colour}" stroke-width="[\d.]+" d="([^"]*)"', text)
        drawn = sum(int(run) for run in re.findall(r"h(\d+)", "".join(runs)))
        share = spent[kind] / timeline.duration_ns
        assert drawn / columns == pytest.approx(share, abs=0.01 * 4)


def test_a_timeline_without_tasks_has_lanes_all_the_same():
    for look in svg.LOOKS:
        ET.fromstring(svg.render(pictured(empty()), width="column", look=look))
    ET.fromstring(svg.render(pictured(hostile()), look="paper"))


def test_export_has_options_of_pictures_for_pictures_only(tmp_path):
    timeline = one_f_one_b(steps=1)
    path = write(timeline, tmp_path / "x.svg", to="svg", width="column", look="paper")
    assert path.read_text() == svg.render(pictured(timeline), width="column", look="paper")
    drawn = Trace(timeline).picture(width="84mm", title="A run")
    assert write(timeline, path, width="84mm", title="A run").read_text() == drawn.svg
    with pytest.raises(BubblescopeError, match="csv has no option width; it is an option of svg, "):
        write(timeline, tmp_path / "x.csv", to="csv", width="column")
    with pytest.raises(BubblescopeError, match="svg has no option hue; no format has it"):
        write(timeline, tmp_path / "x.svg", to="svg", hue=3)


def test_the_command_takes_a_width_and_a_look(tmp_path):
    timeline = one_f_one_b(steps=1)
    trace, picture = tmp_path / "run.parquet", tmp_path / "run.svg"
    timeline.save(trace)

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(cli, ["export", str(trace), *map(str, arguments)])

    done = run("--to", "svg", "--width", "column", "--look", "paper", "-o", picture)
    assert done.exit_code == 0, done.output
    assert ET.fromstring(picture.read_text()).get("width") == "3.3in"
    done = run("--to", "csv", "--width", "3in", "-o", tmp_path / "x.csv")
    assert done.exit_code == 2
    assert "--width is for --to svg, pdf and png, not for csv" in done.output
    done = run("--to", "svg", "--dpi", "300", "-o", picture)
    assert "--dpi is for --to png, not for svg" in done.output
    done = run("--to", "svg", "--width", "3 feet", "-o", tmp_path / "y.svg")
    assert isinstance(done.exception, BubblescopeError)
    assert not (tmp_path / "y.svg").exists()


def without_pipeline() -> Timeline:
    """Two devices that train whole models: tasks without stages, and what the devices did in them."""
    made = one_f_one_b(2, 4, 1, hosts=1, comm=False)
    unknown = {"stage": None, "microbatch": None, "chunk": None}
    tasks = made.tasks.with_columns(
        pl.lit(None, made.tasks.schema[name]).alias(name) for name in unknown
    )
    begin, length = made.start_ns, made.duration_ns
    spent = [
        {"rank": rank, "use": use, "start_ns": begin, "end_ns": begin + length, "spent_ns": ns}
        for rank, idle in ((0, length // 4), (1, length // 2))
        for use, ns in (("compute", length - idle), ("host_python", idle))
    ]
    run = Run(inferred={"kind": "autograd's engine"})
    budget = pl.DataFrame(spent).with_columns(step=pl.lit(0))
    return Timeline(tasks, made.ranks.with_columns(stages=None), run, budget=budget)


def test_a_run_without_a_pipeline_says_what_its_devices_did(tmp_path):
    """There is no bubble rate of it, and nothing at the right edge is one."""
    run = without_pipeline()
    drawn = svg.render(pictured(run))
    assert "bubble" not in drawn
    assert "devices idle 37.5 %" in drawn
    assert "compute 62.5 %" in drawn
    for word in (">idle<", ">25.00 %<", ">50.00 %<", ">step 0 · 37.50 %<", ">no task<"):
        assert word in drawn
    for fmt in ("png", "pdf"):
        assert write(run, tmp_path / f"run.{fmt}", to=fmt).stat().st_size


def test_rates_that_are_not_known_are_not_drawn_as_dashes():
    made = one_f_one_b(4, 8, 1)
    apart = Timeline(made.tasks, made.ranks, Run(common_clock=False))
    drawn = svg.render(pictured(apart))
    assert "–" not in drawn
    assert "of each rank's span" in drawn.replace("&#x27;", "'")
    assert ">of its span<" in drawn


@pytest.mark.skipif(not SHARED.exists(), reason="needs the real traces")
def test_real_traces_without_a_pipeline_have_no_bubbles_in_their_pictures():
    run = bubblescope.load(SHARED / "kineto" / "no_ranges" / "hta_alexnet.json.gz").timeline
    drawn = svg.render(pictured(run))
    assert "bubble" not in drawn
    assert "devices idle 99.5 %" in drawn
