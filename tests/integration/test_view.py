"""The interactive page, in a real browser."""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import json
import re

import numpy as np
import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.view import View
from bubblescope.model import units
from bubblescope.model.provenance import Run
from bubblescope.render.html import page as html
from bubblescope.render.layout import ordered_ranks
from bubblescope.render.text.why import Explanation
from bubblescope.schedules import generate
from injected import Fault, Job
from page_tables import columns
from places import ROOT
from synthetic import empty, hostile, one_f_one_b
from viewing import WRITTEN, screen, state, until


@pytest.mark.browser
def test_the_page_says_what_the_analysis_found(opened):
    timeline = one_f_one_b()
    page = opened(timeline)
    assert page.title() == "made"
    header = page.locator("header").inner_text()
    assert f"{300 / 11:.1f} %" in header
    assert "4 ranks on 2 hosts" in header
    page.keyboard.press("[")
    legend = page.locator("aside.legend .entry span").all_inner_texts()
    kinds = ["forward", "backward", "optimizer", "send forward"]
    assert legend[:4] == kinds
    assert set(legend[4:]) >= {"idle", "warm-up", "cool-down", "pale lanes: ideal"}
    assert "1f1b, 4 devices, 8 micro-batches" in header
    assert "this is a test" in page.locator(".warnings").inner_text()
    page.evaluate("window.bubblescope.app.pane.open('notes')")
    assert "by construction" in page.locator(".notes").inner_text()
    page.locator(".others summary").click()
    definitions = page.locator(".others").inner_text()
    assert "of each rank's own span" in definitions
    assert units.percent(3 / 11) in definitions  # of the longest rank


@pytest.mark.browser
@pytest.mark.parametrize("each", [1, 2], ids=["all steps", "odd steps"])
def test_of_steps_narrower_than_their_numbers_every_so_many_are_numbered(opened, each):
    """And of those that are in sight as a whole or in part, all."""
    timeline = one_f_one_b(2, 4, 120, comm=False)
    page = opened(timeline.slice(steps=range(each - 1, 120, each)))

    def numbered():
        texts = page.evaluate(WRITTEN)
        return [int(text) for text in texts if re.fullmatch(r"\d+", text)], texts

    page.evaluate("window.bubblescope.app.view.fit()")
    numbers, _ = numbered()
    [apart] = set(np.diff(numbers))
    assert numbers[0] == each - 1
    assert apart // each in {2, 5, 10}
    steps = state(page, "app.head.steps")
    for step in (steps[50], steps[3]):
        page.evaluate(f"window.bubblescope.show({step['start'] - 1e6}, {step['end'] + 1e6})")
        numbers, texts = numbered()
        assert {*numbers} <= {
            step["step"] - each,
            step["step"] + each,
        }  # little of which is in sight
        assert [text for text in texts if text.startswith(f"step {step['step']} · ")]


@pytest.mark.browser
def test_a_lane_for_every_rank_in_pipeline_order_under_its_host(opened):
    places = state(opened(one_f_one_b()), "places")
    lanes = [(place["row"]["rank"], place["row"]["lane"]) for place in places]
    # Overlapping sends take two rows.
    assert lanes[:4] == [(0, "compute"), (0, "ideal"), (0, "comm"), (0, "comm")]
    tops = [place["top"] for place in places]
    assert tops == sorted(tops)
    computes = [place for place in places if place["row"]["lane"] == "compute"]
    assert [place["row"]["rank"] for place in computes] == [0, 1, 2, 3]
    gaps = [b["top"] - a["top"] for a, b in itertools.pairwise(computes)]
    assert gaps[1] > gaps[0]  # the second host's heading


@pytest.mark.browser
def test_clicking_a_task_shows_all_that_is_known_of_it(opened):
    timeline = one_f_one_b()
    page = opened(timeline)
    task = timeline.tasks.filter(rank=1, step=1, kind="backward", microbatch=4).row(0, named=True)
    start, end = (task[key] - timeline.start_ns for key in ("start_ns", "end_ns"))
    view = state(page, "view()")
    place = next(p for p in state(page, "places") if p["row"]["rank"] == 1)
    box = page.locator("canvas.lanes").bounding_box()
    gutter = state(page, "gutter")
    middle = ((start + end) / 2 - view["start"]) / (view["end"] - view["start"])
    x = gutter + middle * (box["width"] - gutter)
    page.mouse.click(box["x"] + x, box["y"] + place["top"] + 5)
    shown = page.locator(".pane").inner_text()
    for text in (
        "backward",
        "2.000 ms (2,000,001 ns)",
        f"{task['start_ns']} ns",
        "rank",
        "1 on node0",
    ):
        assert text in shown
    assert "90.00 %" in shown  # kernels running
    assert "50.00 µs" in shown  # launched before
    page.keyboard.press("Escape")
    assert not page.locator(".pane").is_visible()
    assert state(page, "selected()") == -1


@pytest.mark.browser
def test_zoom_and_pan_by_keys_wheel_and_drag(opened):
    page = opened(one_f_one_b())
    whole = state(page, "view()")
    length = whole["end"] - whole["start"]
    page.keyboard.press("w")
    zoomed = state(page, "view()")
    assert zoomed["end"] - zoomed["start"] == pytest.approx(length / 1.3)
    page.keyboard.press("d")
    assert state(page, "view()")["start"] > zoomed["start"]
    page.keyboard.press("a")
    assert state(page, "view()")["start"] == pytest.approx(zoomed["start"])
    page.keyboard.press("s")
    page.keyboard.press("f")
    assert state(page, "view()") == whole
    page.mouse.move(800, 300)
    page.mouse.wheel(0, -300)  # the plain wheel scrolls
    page.wait_for_timeout(100)
    assert state(page, "view()") == whole
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    until(page, f"window.bubblescope.view().start > {whole['start']} + 1")
    wheeled = state(page, "view()")
    page.keyboard.down("Space")
    page.mouse.down()
    page.mouse.move(700, 300, steps=4)
    page.mouse.up()
    page.keyboard.up("Space")
    dragged = state(page, "view()")
    assert dragged["start"] > wheeled["start"]
    assert dragged["end"] - dragged["start"] == pytest.approx(wheeled["end"] - wheeled["start"])
    assert state(page, "selected()") == -1  # a drag is not a click


@pytest.mark.browser
def test_steps_are_marked_and_can_be_gone_through(opened):
    timeline = one_f_one_b()
    page = opened(timeline)
    spans = timeline.tasks.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    steps = [
        (start - timeline.start_ns, end - timeline.start_ns)
        for _, start, end in spans.sort("step").rows()
    ]

    def shows(step):
        view = state(page, "view()")
        margin = (steps[step][1] - steps[step][0]) * 0.02
        return (
            abs(view["start"] - steps[step][0]) < margin
            and abs(view["end"] - steps[step][1]) < margin
        )

    page.keyboard.press("n")
    assert shows(0)
    page.keyboard.press("n")
    assert shows(1)
    page.keyboard.press("p")
    assert shows(0)
    page.keyboard.press("f")
    box = page.locator("canvas.ruler").bounding_box()
    page.mouse.click(box["x"] + box["width"] - 60, box["y"] + 10)
    assert shows(2)


@pytest.mark.browser
def test_help_lists_the_keys(opened):
    page = opened(one_f_one_b())
    assert not page.locator(".help").is_visible()
    page.keyboard.press("?")
    assert "zoom" in page.locator(".help").inner_text()


@pytest.mark.browser
def test_the_ideal_can_be_hidden_and_shown_again(opened):
    page = opened(one_f_one_b())

    def lanes() -> list[str]:
        return [place["row"]["lane"] for place in state(page, "places")]

    assert lanes().count("ideal") == 4
    height = page.evaluate("document.querySelector('.page').style.height")
    page.keyboard.press("i")
    assert "ideal" not in lanes()
    assert page.evaluate("document.querySelector('.page').style.height") != height
    page.keyboard.press("i")
    assert lanes().count("ideal") == 4


def click_on_gap(page, timeline: Timeline, cause: str, rank: int | None = None) -> dict:
    """Click on the longest gap of a cause, and return it."""
    gaps = [
        {
            "rank": lane["rank"],
            "index": lane["first"] + index,
            **{key: lane[key][index] for key in ("start", "end", "task", "root")},
        }
        for lane in state(page, "gaps()")
        for index in range(len(lane["start"]))
        if lane["cause"][index] == cause and rank in (None, lane["rank"])
    ]
    gap = max(gaps, key=lambda one: one["end"] - one["start"])
    page.evaluate(
        "([from, to]) => window.bubblescope.show(from, to)",
        [gap["start"] - (gap["end"] - gap["start"]), 2 * gap["end"] - gap["start"]],
    )
    position = ordered_ranks(timeline)["rank"].to_list().index(gap["rank"])
    place = next(p for p in state(page, "places") if p["row"]["rank"] == position)
    page.evaluate(f"window.bubblescope.app.scroll.scrollTop = {place['top'] - 100}")
    page.wait_for_timeout(50)
    place["top"] -= page.evaluate("window.bubblescope.app.scroll.scrollTop")
    box = page.locator("canvas.lanes").bounding_box()
    gutter = state(page, "gutter")
    x = gutter + (box["width"] - gutter) / 2
    page.mouse.click(box["x"] + x, box["y"] + place["top"] + place["height"] - 3)
    return gap


def slowed() -> Timeline:
    made = Job(generate("1f1b", 4, 8), replicas=2, steps=2)
    return made.play(Fault(Cause.SLOW_RANK, slow={(1, 2): 1.5}))


@pytest.mark.browser
def test_a_gap_says_why_and_leads_to_what_was_waited_for(opened):
    timeline = slowed()
    page = opened(timeline)
    gap = click_on_gap(page, timeline, "slow rank", rank=5)
    assert state(page, "gap()") == gap["index"]
    panel = page.locator(".pane")
    shown = panel.inner_text()
    assert "slow rank" in shown
    assert "a rank is slower than others at the same stage" in shown
    assert units.duration(gap["end"] - gap["start"]) in shown
    page.keyboard.press("Enter")
    assert state(page, "selected()") == gap["root"]
    began = timeline.start_ns + int(gap["start"])
    root = Explanation.of(timeline).ledger.gaps.filter(rank=5, start_ns=began)["root"].item()
    assert f"{timeline.tasks['rank'][root]} on host1" in panel.inner_text()
    page.wait_for_timeout(500)  # or it would be the second of two clicks
    click_on_gap(page, timeline, "slow rank", rank=5)
    panel.get_by_role("button", name="(Enter)").click()
    assert state(page, "selected()") == gap["root"]


@pytest.mark.browser
def test_causes_have_a_legend_and_can_be_hidden(opened):
    timeline = slowed()
    page = opened(timeline)
    totals = Explanation.of(timeline).ledger.totals()
    page.evaluate("window.bubblescope.app.pane.open('summary')")
    shown = page.locator(".causes").inner_text()
    for cause, share in totals.select("cause", "share").iter_rows():
        assert f"{cause} {units.percent(share)}" in " ".join(shown.split())
    page.keyboard.press("[")
    legend = " ".join(page.locator("aside.legend").inner_text().split())
    for cause in totals.filter(pl.col("idle_ns") > 0)["cause"]:
        assert cause in legend
    lanes = page.locator("canvas.lanes")
    before = lanes.screenshot()
    page.keyboard.press("c")
    assert lanes.screenshot() != before
    page.keyboard.press("c")
    assert lanes.screenshot() == before


@pytest.mark.browser
def test_arrows_of_the_selected_task_can_be_hidden(opened):
    timeline = slowed()
    page = opened(timeline)
    click_on_gap(page, timeline, "slow rank")
    page.keyboard.press("Enter")
    selected = state(page, "selected()")
    arrows = state(page, "arrows()")
    assert arrows
    assert all(selected in arrow for arrow in arrows)
    for _ in range(4):  # its micro-batch's way, the critical path, all in sight
        page.keyboard.press("l")
    assert state(page, "arrows()") == []


@pytest.mark.browser
def test_without_a_common_clock_there_are_no_causes(opened):
    timeline = slowed()
    page = opened(Timeline(timeline.tasks, timeline.ranks, Run(common_clock=False)))
    assert page.locator("aside.legend").inner_text().count("Idle, by cause") == 0
    page.keyboard.press("c")
    assert state(page, "gaps()") == []


def test_gaps_in_the_page_are_those_of_the_ledger():
    timeline = slowed()
    page = html.render(View.of(timeline))
    head = json.loads(re.search(r'id="head"[^>]*>(.*?)</script>', page, re.DOTALL)[1])
    gaps = unpacked(page, head, "gaps")
    ledger = Explanation.of(timeline).ledger
    found = dict.fromkeys(ledger.table["cause"].unique(), 0)
    for extent in head["gaps"]:
        span = slice(extent["from"], extent["to"])
        for cause, length in zip(gaps["cause"][span], gaps["length"][span], strict=True):
            found[head["causes"][cause]["name"]] += int(length)
    assert found == dict(ledger.totals().select("cause", "idle_ns").iter_rows())


@pytest.mark.browser
def test_departures_from_the_schedule_are_listed(opened):
    timeline = one_f_one_b(ranks=4, microbatches=12, steps=1)
    first, second = pl.col("microbatch") == 3, pl.col("microbatch") == 4
    here = (pl.col("rank") == 3) & (pl.col("kind") == "backward")
    swapped = pl.when(here & first).then(4).when(here & second).then(3).otherwise("microbatch")
    page = opened(Timeline(timeline.tasks.with_columns(microbatch=swapped), timeline.ranks))
    page.locator(".departures summary").click()
    assert "stage 3 (rank 3): B" in page.locator(".departures").inner_text()


@pytest.mark.browser
def test_a_thousand_ranks_scroll_and_draw(opened):
    timeline = one_f_one_b(ranks=1024, microbatches=4, steps=1, hosts=128, comm=False)
    page = opened(timeline, address="#group=none")
    total = page.evaluate("document.querySelector('main').scrollHeight")
    assert total > 1024 * 14
    assert page.evaluate("document.querySelector('canvas.lanes').height") < 1000
    before = page.screenshot()
    page.evaluate("document.querySelector('main').scrollTop = 8000")
    page.wait_for_timeout(100)
    assert page.screenshot() != before


@pytest.mark.browser
def test_hostile_names_stay_text(opened):
    page = opened(hostile())
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert "onerror" in page.locator("header").inner_text()
    task = page.evaluate("window.bubblescope.places[0]")
    box = page.locator("canvas.lanes").bounding_box()
    page.mouse.click(box["x"] + state(page, "gutter") + 20, box["y"] + task["top"] + 5)
    assert "</script>" in page.locator(".pane").inner_text()


@pytest.mark.browser
def test_a_timeline_without_tasks_opens(opened):
    page = opened(empty())
    assert "0 tasks" in page.locator("header").inner_text()


@pytest.mark.browser
def test_the_dark_scheme_and_dense_screens(opened):
    page = opened(one_f_one_b(), color_scheme="dark", device_scale_factor=2)
    assert page.evaluate("document.querySelector('canvas.lanes').width") == 2 * 1280
    image = screen(page)
    assert tuple(image[-2, 4, :3]) == (22, 24, 27)  # the page is dark


def test_the_page_is_self_contained_and_may_load_nothing():
    page = html.render(View.of(one_f_one_b()))
    assert not re.search(r"(?:src|href)\s*=", page.split("<body>")[0])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy


def unpacked(page: str, head: dict, table: str) -> dict[str, np.ndarray]:
    """Return the columns of a table of the page."""
    blob = re.search(rf'id="{table}"[^>]*>(.*?)</script>', page, re.DOTALL)[1]
    return columns(base64.b64decode(blob), head["columns"][table])


def test_every_time_survives_the_way_into_the_page():
    timeline = one_f_one_b()
    page = html.render(View.of(timeline))
    head = json.loads(re.search(r'id="head"[^>]*>(.*?)</script>', page, re.DOTALL)[1])
    columns = unpacked(page, head, "tasks")
    found = []
    for row in head["rows"]:
        span = slice(row["from"], row["to"])
        starts = int(head["origin"]) + np.cumsum(columns["gap"][span].astype(np.int64))
        ends = starts + columns["length"][span].astype(np.int64)
        rank = head["ranks"][row["rank"]]["rank"]
        found += [(rank, row["lane"], int(s), int(e)) for s, e in zip(starts, ends, strict=True)]
    found = [task for task in found if task[1] != "ideal"]
    expected = timeline.tasks.select("rank", pl.col("lane").cast(pl.String), "start_ns", "end_ns")
    assert sorted(found) == sorted(expected.rows())


def test_the_committed_bundle_is_of_the_committed_sources():
    sources = sorted((ROOT / "viewer" / "src").glob("*"))
    digest = functools.reduce(
        lambda hashed, path: hashed.update(path.read_bytes()) or hashed, sources, hashlib.sha256()
    ).hexdigest()
    bundle = (ROOT / "src/bubblescope/render/html/bundle/bundle.js").read_text()
    assert f"sources {digest} " in bundle.split("\n", 1)[0], "run `npm run build` in viewer/"
