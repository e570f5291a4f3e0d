"""What could have been, above what was, in a real browser."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bubblescope.model.kinds import Kind
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from synthetic import empty, one_f_one_b
from viewing import app, choose, rgb, screen, settled, state, until

if TYPE_CHECKING:
    from bubblescope import Timeline

pytestmark = pytest.mark.browser

DEVICES = 16
VEIL = 0.55
"""Opacity of what did not happen, over the page's white."""


@pytest.fixture(scope="module")
def zero_bubble() -> Timeline:
    """A run that goes as its schedule would have it: what was is what could have been."""
    return simulate(generate("zb-h1", DEVICES, 24), Costs(1_000_000, 1_000_000, 1_000_000))


def places(page, lane: str) -> list[dict]:
    return [place for place in state(page, "places") if place["row"]["lane"] == lane]


def lanes_of(page) -> list[str]:
    return [place["row"]["lane"] for place in state(page, "places")]


def captions(page) -> list[str]:
    return [caption["title"] for caption in app(page, "plan.captions")]


def is_above(page) -> bool:
    """Whether something stands above what was measured, as the menu has it."""
    menu = page.locator("details.menu", has_text="view").first
    menu.locator("summary").click()
    checked = menu.get_by_label("above (o)").is_checked()
    menu.locator("summary").click()
    return checked


class TestAboveFromTheStart:
    def test_each_lane_of_the_ideal_is_above_all_that_was_measured(self, opened, zero_bubble):
        page = opened(zero_bubble, above="ideal")
        ideal, measured = places(page, "ideal"), places(page, "compute")
        ranks = [place["row"]["rank"] for place in ideal]
        assert ranks == [place["row"]["rank"] for place in measured] == list(range(DEVICES))
        tops = [place["top"] for place in (*ideal, *measured)]
        assert all(one < other for one, other in pairwise(tops))
        over, below = app(page, "plan.captions")
        assert (over["title"], below["title"]) == ("ideal", "as it ran")
        assert over["top"] < ideal[0]["top"]
        assert ideal[-1]["top"] + ideal[-1]["height"] <= below["top"] < measured[0]["top"]
        assert is_above(page)

    @pytest.mark.parametrize("keys", ["", "-", "--", "+"])
    @pytest.mark.parametrize("zoom", [1, 6])
    def test_the_same_time_is_at_the_same_place_in_both(self, opened, zero_bubble, keys, zoom):
        """Column by column: of each rank, both lanes show the same, one of them paler."""
        page = opened(zero_bubble, 1400, 1700, above="ideal")
        page.evaluate("window.bubblescope.app.change({ causes: false, phases: false })")
        for key in keys:
            page.keyboard.press(key)
        end = app(page, "head.end")
        page.evaluate(f"window.bubblescope.show({end / 2}, {end / 2 + end / 2 / zoom})")
        image = screen(page)[:, state(page, "gutter") :, :3].astype(int)
        kinds = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
        shades = np.array([rgb(kind) for kind in kinds])
        veiled = np.round(255 + (shades - 255) * VEIL)
        told = 0
        for over, below in zip(places(page, "ideal"), places(page, "compute"), strict=True):
            middles = [place["top"] + place["height"] // 2 for place in (over, below)]
            if max(middles) >= len(image):
                continue  # out of sight
            pale, full = (image[middle] for middle in middles)
            possible = (pale[:, None] == veiled).all(2)
            happened = (full[:, None] == shades).all(2)
            both = possible.any(1) & happened.any(1)  # where neither an edge nor a label is
            assert (possible[both] == happened[both]).all()
            told += both.mean() / DEVICES
        assert told > 0.3

    def test_a_task_is_pointed_at_in_either(self, opened, zero_bubble):
        page = opened(zero_bubble, 1280, 1800, above="ideal")
        box = page.locator("canvas.lanes").bounding_box()
        for lane in ("ideal", "compute"):
            place = places(page, lane)[3]
            task = place["row"]["from"] + 2
            x = page.evaluate(
                """(task) => {
                    const { app, gutter } = window.bubblescope;
                    const { start, end } = app.data.tasks;
                    return gutter + app.view.x((start[task] + end[task]) / 2);
                }""",
                task,
            )
            page.mouse.click(box["x"] + x, box["y"] + place["top"] + place["height"] / 2)
            assert state(page, "selected()") == task
            facts = page.locator(".pane dd").all_inner_texts()
            assert lane in facts
        page.mouse.click(box["x"] + 600, box["y"] + app(page, "plan.captions")[1]["top"] + 5)
        assert state(page, "selected()") == -1

    def test_a_search_and_totals_are_about_what_was_measured(self, opened, zero_bubble):
        page = opened(zero_bubble, above="ideal")
        page.evaluate("window.bubblescope.app.finding.find('kind:F rank:3')")
        assert page.locator(".found").inner_text().startswith("24 found")
        page.keyboard.press(".")
        lane = "app.head.rows.find(({ from, to }) => from <= selected() && selected() < to).lane"
        assert (
            page.evaluate(
                f"(() => {{ const {{ app, selected }} = bubblescope; return {lane}; }})()"
            )
            == "compute"
        )
        end = app(page, "head.end")
        said = page.evaluate(
            f"window.bubblescope.app.selection.totals({{ start: 0, end: {end}, ranks: null }})"
        )
        tasks = zero_bubble.tasks.filter(lane="compute")
        assert said["busy"] == pytest.approx((tasks["end_ns"] - tasks["start_ns"]).sum())

    def test_a_title_that_is_dragged_moves_its_rank_in_both(self, opened, zero_bubble):
        page = opened(zero_bubble, above="ideal")
        box = page.locator("canvas.lanes").bounding_box()
        first, _, third = places(page, "ideal")[:3]
        page.mouse.move(box["x"] + 30, box["y"] + first["top"] + 5)
        page.mouse.down()
        page.mouse.move(box["x"] + 30, box["y"] + third["top"] + 5, steps=3)
        page.mouse.up()
        for lane in ("ideal", "compute"):
            assert [place["row"]["rank"] for place in places(page, lane)][:4] == [1, 2, 0, 3]

    def test_a_folded_group_is_a_sum_in_both(self, opened, zero_bubble):
        page = opened(zero_bubble, 1280, 1200, above="ideal")
        choose(page, "group by", "stage")
        page.evaluate("window.bubblescope.app.arranging.fold('stage 2')")
        headings = [
            (heading["stack"], heading["top"], heading["height"])
            for heading in app(page, "plan.headings")
            if heading["group"]["folded"]
        ]
        assert [stack for stack, _, _ in headings] == ["ideal", "compute"]
        page.wait_for_timeout(200)
        image = screen(page)[:, state(page, "gutter") :, :3]
        shade = np.array(rgb(Kind.FORWARD))
        for colour, (_, top, height) in zip(
            (255 + (shade - 255) * VEIL, shade), headings, strict=True
        ):
            row = image[top + height // 2]
            assert (row == np.round(colour)).all(1).mean() > 0.1
        box = page.locator("canvas.lanes").bounding_box()
        page.mouse.click(box["x"] + 30, box["y"] + headings[0][1] + 5)
        assert app(page, "state.arranged.folded.size") == 0

    def test_the_look_of_papers_has_both(self, opened, zero_bubble):
        page = opened(zero_bubble, above="ideal", color_scheme="dark")
        page.keyboard.press("v")
        assert lanes_of(page) == ["ideal"] * DEVICES + ["compute"] * DEVICES
        assert captions(page) == ["ideal", "as it ran"]
        text = page.evaluate("window.bubblescope.app.pictures.svg()")
        for title in ("ideal", "as it ran"):
            assert f">{title}</text>" in text
        assert text.count(">Device 3</text>") == 2


class TestSwitching:
    def test_by_key_and_button_from_one_to_the_next(self, opened):
        page = opened(one_f_one_b(comm=False), whatif=lambda run: run.schedule("zb-h1"))
        assert captions(page) == []
        assert not is_above(page)
        for first, rest, title in (
            ("ideal", ["compute", "whatif"], "ideal"),
            ("whatif", ["compute", "ideal"], "zb-h1"),
        ):
            page.keyboard.press("o")
            assert captions(page) == [title, "as it ran"]
            assert lanes_of(page) == [first] * 4 + rest * 4
        page.keyboard.press("o")
        assert captions(page) == []
        assert lanes_of(page) == ["compute", "ideal", "whatif"] * 4

    def test_what_is_off_is_switched_on_and_what_is_above_can_be_switched_off(self, opened):
        page = opened(one_f_one_b(comm=False))
        page.keyboard.press("i")
        assert set(lanes_of(page)) == {"compute"}
        page.keyboard.press("o")
        assert lanes_of(page) == ["ideal"] * 4 + ["compute"] * 4
        page.keyboard.press("i")
        assert captions(page) == []
        page.keyboard.press("i")
        assert lanes_of(page) == ["ideal"] * 4 + ["compute"] * 4

    @pytest.mark.parametrize("above", [None, "ideal"])
    def test_the_address_keeps_it(self, opened, above):
        timeline = one_f_one_b(comm=False)
        page = opened(timeline, above=above)
        page.keyboard.press("o")
        settled(page)
        lanes = lanes_of(page)
        again = opened(timeline, above=above, address=page.evaluate("location.hash"))
        assert lanes_of(again) == lanes
        assert (captions(again) == []) == (above is not None)

    def test_there_is_nothing_to_switch_where_nothing_could_have_been(self, opened):
        page = opened(empty())
        assert captions(page) == []
        page.keyboard.press("o")
        assert captions(page) == []

    def test_it_comes_into_sight(self, opened, zero_bubble):
        page = opened(zero_bubble, 1000, 500)
        page.evaluate("window.bubblescope.app.scroll.scrollTop = 300")
        until(page, "window.bubblescope.app.scroll.scrollTop === 300")
        page.keyboard.press("o")
        until(page, "window.bubblescope.app.scroll.scrollTop === 0")
