"""Everything that can be done on the page, done in a real browser."""

from __future__ import annotations

import json
import re

import numpy as np
import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.study import study
from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import Run
from bubblescope.render.palette import CAUSE_COLOURS, COLOURS
from bubblescope.render.text.report import Report
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from synthetic import one_f_one_b
from viewing import (
    GROUNDS,
    app,
    channels,
    choose,
    ground_of,
    rgb,
    screen,
    settled,
    state,
    task_at,
    until,
    where,
)

pytestmark = pytest.mark.browser


def press(page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def replicas() -> Timeline:
    """Two pipelines of four ranks, each machine with two ranks."""
    parts = [one_f_one_b(steps=2, hosts=2) for _ in range(2)]
    tasks = pl.concat(
        [part.tasks.with_columns(rank=pl.col("rank") + 4 * dp) for dp, part in enumerate(parts)]
    )
    ranks = pl.concat(
        [
            part.ranks.with_columns(
                rank=pl.col("rank") + 4 * dp,
                host=pl.format("{}{}", pl.lit("ab"[dp]), "host"),
                dp=pl.lit(dp, pl.Int32),
            )
            for dp, part in enumerate(parts)
        ]
    )
    return Timeline(tasks, ranks, Run())


def length(page) -> float:
    view = state(page, "view()")
    return view["end"] - view["start"]


def arranged(page, what: str):
    return app(page, f"state.arranged.{what}")


def shown_ranks(page) -> list[int]:
    return page.evaluate(
        "window.bubblescope.app.plan.bands.map(({ rank }) => "
        "window.bubblescope.app.head.ranks[rank].rank)"
    )


class TestMoving:
    @pytest.mark.parametrize("held", [None, "Control", "Meta"])
    def test_the_wheel_and_the_pinch_zoom_at_the_pointer(self, opened, held):
        """Without a key for those who want it."""
        page = opened(one_f_one_b(), address="" if held else "#wheelZooms=true")
        x, y = where(page, task_at(page, rank=1, step=1, kind="backward", microbatch=4))
        time = f"app.view.time({x} - app.left - app.canvas.getBoundingClientRect().left)"
        under = page.evaluate(
            f"(() => {{ const {{ app }} = window.bubblescope; return {time}; }})()"
        )
        before = length(page)
        page.mouse.move(x, y)
        if held:
            page.keyboard.down(held)
        page.mouse.wheel(0, -240)
        until(page, f"window.bubblescope.view().end - window.bubblescope.view().start < {before}")
        after = page.evaluate(
            f"(() => {{ const {{ app }} = window.bubblescope; return {time}; }})()"
        )
        assert after == pytest.approx(under, abs=before / 1000)

    def test_two_fingers_zoom(self, opened):
        page = opened(one_f_one_b(), has_touch=True)
        before = length(page)
        client = page.context.new_cdp_session(page)

        def touch(kind: str, *points: tuple[int, int]) -> None:
            client.send(
                "Input.dispatchTouchEvent",
                {
                    "type": kind,
                    "touchPoints": [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)],
                },
            )

        touch("touchStart", (700, 300))
        touch("touchStart", (700, 300), (800, 300))
        touch("touchMove", (650, 300), (850, 300))
        touch("touchMove", (600, 300), (900, 300))
        touch("touchEnd")
        assert length(page) == pytest.approx(before / 3, rel=0.1)

    def test_digits_show_steps(self, opened):
        page = opened(one_f_one_b())
        starts = []
        for digit in "012":
            press(page, digit)
            starts.append(state(page, "view()")["start"])
        assert starts == sorted(starts)
        press(page, "7")  # there is none
        assert state(page, "view()")["start"] == starts[-1]

    def test_undo_and_redo_go_where_one_has_been(self, opened):
        page = opened(one_f_one_b())
        places = [state(page, "view()")]
        for key in ("1", "w", "d"):
            press(page, key)
            settled(page)
            places.append(state(page, "view()"))
        for place in places[-2::-1]:
            press(page, "z")
            assert state(page, "view()") == place
        press(page, "z")  # no further
        assert state(page, "view()") == places[0]
        for place in places[1:]:
            press(page, "Shift+Z")
            assert state(page, "view()") == place
        page.get_by_role("button", name="back to where you were").click()
        assert state(page, "view()") == places[-2]
        page.get_by_role("button", name="forth again").click()
        assert state(page, "view()") == places[-1]

    def test_the_minimap_moves_and_zooms(self, opened):
        page = opened(one_f_one_b())
        box = page.locator("canvas.minimap").bounding_box()
        gutter = state(page, "gutter")

        def at(time: float) -> float:
            plot = box["width"] - gutter
            return box["x"] + gutter + plot * time / app(page, "view.limit")

        y = box["y"] + box["height"] / 2
        press(page, "1")
        before = state(page, "view()")
        page.mouse.move(at((before["start"] + before["end"]) / 2), y)
        page.mouse.down()
        page.mouse.move(at((before["start"] + before["end"]) / 2) + 100, y, steps=3)
        page.mouse.up()
        moved = state(page, "view()")
        assert moved["start"] > before["start"]
        assert moved["end"] - moved["start"] == pytest.approx(before["end"] - before["start"])
        page.mouse.move(at(moved["end"]), y)
        page.mouse.down()
        page.mouse.move(at(moved["end"]) - 60, y, steps=3)
        page.mouse.up()
        assert state(page, "view()")["end"] < moved["end"]
        assert state(page, "view()")["start"] == pytest.approx(moved["start"])
        page.mouse.click(at(0) + 5, y)
        assert state(page, "view()")["start"] < before["start"]

    def test_the_address_keeps_what_is_shown(self, opened):
        timeline = replicas()
        page = opened(timeline)
        choose(page, "group by", "stage")
        page.get_by_label("colour by").select_option("microbatch")
        choose(page, "arrows", "none")
        press(page, "1", "w", "c", "t", "+")
        page.evaluate("window.bubblescope.app.arranging.fold('stage 2')")
        page.evaluate("window.bubblescope.app.arranging.showRanks([0], false)")
        page.evaluate("window.bubblescope.app.finding.find('kind:F')")
        page.mouse.click(*where(page, task_at(page, rank=1, step=1, kind="backward")))
        settled(page)
        address = page.evaluate("location.hash")
        kept = (
            "JSON.stringify([app.state.mode, app.state.causes, app.state.arrows, app.state.theme, "
            "app.state.query, app.state.selected, [...app.state.arranged.folded], "
            "[...app.state.arranged.hidden], app.state.arranged.grouping, app.state.arranged.size, "
            "Math.round(app.view.start), Math.round(app.view.end)])"
        )
        read = f"(() => {{ const {{ app }} = window.bubblescope; return {kept}; }})()"
        before = page.evaluate(read)
        again = opened(timeline, address=address)
        assert again.evaluate(read) == before
        assert json.loads(before)[0] == "microbatch"
        assert again.locator(".pane").is_visible()
        assert again.locator(".found").inner_text().startswith("128 found")

    @pytest.mark.parametrize(
        "address",
        [
            "#t=a~b",
            "#t=5~1&hide=0~1~2~3",
            "#colour=x&group=y&select=task~999999&fold=%",
            "#&&&=",
            "#range=1",
        ],
    )
    def test_an_address_that_makes_no_sense_is_no_obstacle(self, opened, address):
        page = opened(one_f_one_b(), address=address)
        assert shown_ranks(page) == [0, 1, 2, 3]
        assert not page.locator(".pane").is_visible()


class TestSelecting:
    def test_arrow_keys_go_from_task_to_task(self, opened):
        page = opened(one_f_one_b())
        press(page, "ArrowRight")
        first = state(page, "selected()")
        assert first >= 0
        press(page, "ArrowRight")
        assert state(page, "selected()") == first + 1
        press(page, "ArrowLeft")
        assert state(page, "selected()") == first
        press(page, "ArrowLeft")  # there is none before
        assert state(page, "selected()") == first
        press(page, "ArrowDown")
        below = state(page, "selected()")
        assert below != first
        press(page, "ArrowUp")
        assert state(page, "selected()") == first

    def test_details_lead_to_what_feeds_a_task(self, opened):
        page = opened(one_f_one_b())
        task = task_at(page, rank=1, step=1, kind="forward", microbatch=2)
        press(page, "1")
        page.mouse.click(*where(page, task))
        assert state(page, "selected()") == task
        panel = page.locator(".pane")
        text = panel.inner_text()
        for name in ("usual here", "launched by host", "fed by", "feeds", "end", "lane"):
            assert name in text
        panel.get_by_role("button", name="F2 on rank 0").click()
        assert state(page, "selected()") == task_at(
            page, rank=0, step=1, kind="forward", microbatch=2
        )

    def test_a_double_click_zooms_to_a_task(self, opened):
        timeline = one_f_one_b()
        page = opened(timeline)
        press(page, "1")
        page.mouse.dblclick(*where(page, task_at(page, rank=2, step=1, kind="backward")))
        assert length(page) == pytest.approx(3 * 2_000_001, rel=0.01)

    def test_the_pointer_draws_a_line_through_all_lanes(self, opened):
        page = opened(one_f_one_b())
        page.mouse.move(800, 300)
        page.wait_for_timeout(100)
        over = screen(page, "canvas.over")
        box = page.locator("canvas.over").bounding_box()
        column = over[:, round(800 - box["x"]), 3]
        assert (column > 0).mean() > 0.9
        page.mouse.move(800, 5)
        page.wait_for_timeout(100)
        assert screen(page, "canvas.over")[:, :, 3].max() == 0

    def test_a_task_says_under_the_pointer_what_it_is(self, opened):
        page = opened(one_f_one_b())
        press(page, "1")
        page.mouse.move(*where(page, task_at(page, rank=1, step=1, kind="backward", microbatch=3)))
        tip = page.locator(".tip")
        assert tip.is_visible()
        assert tip.inner_text() == "B3  2.000 ms"

    def test_arrows_of_all_tasks_in_sight_unless_they_are_too_many(self, opened):
        page = opened(one_f_one_b())
        press(page, "1")
        plain = screen(page)
        page.evaluate("window.bubblescope.app.change({ arrows: 'all' })")
        page.wait_for_timeout(100)
        assert (screen(page) != plain).any(2).sum() > 1000
        page.evaluate("window.bubblescope.app.arranging.nextArrows()")
        dense = opened(one_f_one_b(microbatches=1200, steps=1, comm=False))
        dense.evaluate("window.bubblescope.app.change({ arrows: 'all' })")
        dense.wait_for_timeout(100)
        assert "too many: zoom in" in dense.locator(".found").inner_text()

    def test_a_stretch_has_the_totals_of_its_tasks_and_gaps(self, opened):
        """Dragged on two lanes, and on the ruler for all."""
        timeline = one_f_one_b()
        page = opened(timeline)
        press(page, "1")
        box = page.locator("canvas.lanes").bounding_box()
        bands = app(page, "plan.bands")
        top, bottom = (box["y"] + bands[i]["top"] + 3 for i in (1, 2))
        page.mouse.move(500, top)
        page.mouse.down()
        page.mouse.move(900, bottom, steps=5)
        page.mouse.up()
        chosen = app(page, "state.range")
        assert chosen["ranks"] == [1, 2]
        assert "Selected stretch" in page.locator(".pane").inner_text()
        self.agree(page, timeline, chosen)
        ruler = page.locator("canvas.ruler").bounding_box()
        page.mouse.move(450, ruler["y"] + 35)
        page.mouse.down()
        page.mouse.move(1000, ruler["y"] + 35, steps=5)
        page.mouse.up()
        chosen = app(page, "state.range")
        assert chosen["ranks"] is None
        self.agree(page, timeline, chosen)
        press(page, "Escape")
        assert app(page, "state.range") is None

    @staticmethod
    def agree(page, timeline: Timeline, chosen: dict) -> None:
        said = page.evaluate(
            "window.bubblescope.app.selection.totals(window.bubblescope.app.state.range)"
        )
        start, end = (timeline.start_ns + round(chosen[key]) for key in ("start", "end"))
        ranks = range(4) if chosen["ranks"] is None else chosen["ranks"]

        def inside(frame: pl.DataFrame) -> pl.DataFrame:
            return frame.filter(pl.col("rank").is_in(list(ranks))).with_columns(
                ns=(
                    pl.min_horizontal("end_ns", pl.lit(end))
                    - pl.max_horizontal("start_ns", pl.lit(start))
                ).clip(lower_bound=0)
            )

        tasks = inside(timeline.tasks)
        busy = tasks.filter(pl.col("lane") == "compute")["ns"].sum()
        assert said["busy"] == pytest.approx(busy, abs=1e-3)
        assert said["idle"] == pytest.approx(len(ranks) * (end - start) - busy, abs=1e-3)
        kinds = app(page, "head.kinds")
        by_kind = tasks.group_by(pl.col("lane") == "compute", pl.col("kind").cast(pl.String))
        for computes, kind, ns in by_kind.agg(pl.col("ns").sum()).rows():
            index = next(i for i, one in enumerate(kinds) if one["name"] == kind)
            found = said["kinds" if computes else "kinds_beside"]
            assert found[index] == pytest.approx(ns, abs=1e-3)
        gaps = inside(study(timeline).ledger.gaps)
        causes = [cause["name"] for cause in app(page, "head.causes")]
        for cause, ns in gaps.group_by("cause").agg(pl.col("ns").sum()).rows():
            assert said["causes"][causes.index(cause)] == pytest.approx(ns, abs=1e-3)


class TestSearching:
    def test_what_is_found_stays_bright_and_can_be_gone_through(self, opened):
        page = opened(one_f_one_b())
        press(page, "1")
        task = task_at(page, rank=1, step=1, kind="forward", microbatch=2)
        other = task_at(page, rank=1, step=1, kind="forward", microbatch=1)
        press(page, "/")
        page.keyboard.type("rank:1 kind:B mb:2,5-6")
        until(page, "document.querySelector('.found').textContent.startsWith('9 found')")
        assert app(page, "finding.found.length") == 9
        page.wait_for_timeout(100)
        image, box = screen(page), page.locator("canvas.lanes").bounding_box()

        def colour(index: int) -> tuple[int, ...]:
            x, y = where(page, index)
            return tuple(image[round(y - box["y"] - 3), round(x - box["x"] + 6), :3])

        found = task_at(page, rank=1, step=1, kind="backward", microbatch=5)
        assert colour(found) == rgb("backward")
        assert colour(task) != rgb("forward")
        assert colour(task) == colour(other)
        page.keyboard.press("Enter")
        assert page.locator(".found").inner_text() == "1 of 9"
        first = state(page, "selected()")
        page.locator("input[type=search]").blur()
        press(page, ".")
        assert page.locator(".found").inner_text() == "2 of 9"
        assert state(page, "selected()") > first
        press(page, ",", ",")
        assert page.locator(".found").inner_text() == "9 of 9"
        press(page, "Escape", "Escape")
        assert app(page, "state.query") == ""

    def test_a_query_that_means_nothing_says_so(self, opened):
        page = opened(one_f_one_b())
        press(page, "/")
        page.keyboard.type("mb:x")
        until(page, "document.querySelector('.found').textContent.includes('numbers')")
        assert "wrong" in page.locator(".found").get_attribute("class")
        for width in (2560, 1280, 800, 390):  # and it can be read, whatever room is beside it
            page.set_viewport_size({"width": width, "height": 720})
            said = page.locator(".found")
            until(
                page,
                "(({scrollWidth, clientWidth}) => scrollWidth <= clientWidth)"
                "(document.querySelector('.found'))",
            )
            box = said.bounding_box()
            assert box["width"] > 100
            assert box["x"] + box["width"] <= width
        page.locator("input[type=search]").fill("kind:F mb:999")
        until(page, "document.querySelector('.found').textContent === 'nothing found'")

    def test_going_to_what_was_found_shows_its_rank_whatever_hides_it(self, opened):
        page = opened(replicas())
        page.evaluate("window.bubblescope.app.arranging.fold('anode1')")
        page.evaluate("window.bubblescope.app.arranging.arrange({ replica: 1 })")
        press(page, "/")
        page.keyboard.type("rank:2 kind:F mb:3 step:1")
        until(page, "document.querySelector('.found').textContent.startsWith('1 found')")
        press(page, "Enter")
        assert 2 in shown_ranks(page)
        assert app(page, "state.arranged.replica") is None


class TestGroups:
    @pytest.mark.parametrize(
        ("grouping", "titles"),
        [
            ("host", ["anode0", "bnode0", "anode1", "bnode1"]),
            ("stage", ["stage 0", "stage 1", "stage 2", "stage 3"]),
            ("replica", ["replica 0", "replica 1"]),
            ("none", []),
        ],
    )
    def test_ranks_stand_under_machines_stages_or_replicas(self, opened, grouping, titles):
        page = opened(replicas())
        choose(page, "group by", grouping)
        headings = page.evaluate(
            "window.bubblescope.app.plan.headings.map(({ group }) => group.title)"
        )
        assert headings == titles
        assert sorted(shown_ranks(page)) == list(range(8))

    def test_a_folded_group_shows_how_many_of_its_ranks_run_what(self, opened):
        """The shares of its colours are the true shares of its ranks' time."""
        timeline = one_f_one_b(comm=False, microbatches=40, hosts=1)
        page = opened(timeline)
        choose(page, "group by", "host")
        box = page.locator("canvas.lanes").bounding_box()
        heading = app(page, "plan.headings[0]")
        page.mouse.click(box["x"] + 20, box["y"] + heading["top"] + 10)
        assert arranged(page, "folded.size") == 1
        assert shown_ranks(page) == []
        page.evaluate(f"window.bubblescope.show(0, {timeline.duration_ns})")
        page.wait_for_timeout(200)
        page.evaluate(f"window.bubblescope.show(0, {timeline.duration_ns})")
        heading = app(page, "plan.headings[0]")
        image = screen(page)[
            heading["top"] : heading["top"] + heading["height"], state(page, "gutter") :, :3
        ]
        total = timeline.duration_ns * 4
        for kind in ("forward", "backward"):
            tasks = timeline.tasks.filter(pl.col("kind") == kind)
            true = (tasks["end_ns"] - tasks["start_ns"]).sum() / total
            shown = (image == rgb(kind)).all(2).mean()
            assert shown == pytest.approx(true, abs=0.02), kind
        page.mouse.click(box["x"] + 20, box["y"] + heading["top"] + 10)
        assert shown_ranks(page) == [0, 1, 2, 3]

    def test_all_folded_groups_are_counted_however_many_there_are(self, opened):
        page = opened(one_f_one_b(ranks=64, microbatches=64, steps=1, comm=False), 1280, 2200)
        choose(page, "group by", "stage")
        page.locator("nav summary", has_text="view").click()
        page.get_by_role("button", name="fold all", exact=True).click()
        until(page, "window.bubblescope.app.frame === 0")
        image = screen(page)[:, state(page, "gutter") :, :3]
        for heading in app(page, "plan.headings"):
            row = image[heading["top"] + heading["height"] // 2]
            assert (row == rgb(Kind.FORWARD)).all(1).any()

    def test_all_groups_can_be_folded_hidden_and_moved_by_the_menu(self, opened):
        page = opened(replicas())
        choose(page, "group by", "replica")
        page.locator("nav summary", has_text="view").click()
        page.get_by_role("button", name="unfold all").click()
        page.get_by_role("button", name="fold all", exact=True).click()
        assert arranged(page, "folded.size") == 2
        page.get_by_role("button", name="unfold all").click()
        page.get_by_role("button", name="move replica 1 up").or_(
            page.get_by_title("move replica 1 up")
        ).first.click()
        assert shown_ranks(page)[:4] == [4, 5, 6, 7]
        page.get_by_label("replica 1").uncheck()
        assert shown_ranks(page) == [0, 1, 2, 3]
        page.get_by_role("button", name="show 4 hidden").click()
        assert len(shown_ranks(page)) == 8
        page.get_by_label("replicas").select_option("0")
        assert shown_ranks(page) == [0, 1, 2, 3]

    def test_a_rank_is_hidden_and_shown_again(self, opened):
        page = opened(one_f_one_b())
        page.mouse.click(*where(page, task_at(page, rank=1, step=1, kind="backward")))
        press(page, "Delete")
        assert shown_ranks(page) == [0, 2, 3]
        assert not page.locator(".pane").is_visible()
        for rank in (0, 2):
            page.evaluate(f"window.bubblescope.app.arranging.showRanks([{rank}], false)")
        page.evaluate("window.bubblescope.app.arranging.showRanks([3], false)")
        assert shown_ranks(page) == [3]  # the last rank stays
        page.locator("nav summary", has_text="view").click()
        page.get_by_role("button", name="show 3 hidden").click()
        assert shown_ranks(page) == [0, 1, 2, 3]

    def test_titles_are_dragged_to_another_place(self, opened):
        page = opened(replicas())
        choose(page, "group by", "none")
        box = page.locator("canvas.lanes").bounding_box()
        bands = app(page, "plan.bands")
        before = shown_ranks(page)

        def middle(index: int) -> float:
            return box["y"] + bands[index]["top"] + bands[index]["height"] / 2

        page.mouse.move(box["x"] + 40, middle(0))
        page.mouse.down()
        page.mouse.move(box["x"] + 40, middle(2), steps=5)
        page.mouse.up()
        assert shown_ranks(page)[:3] == [before[1], before[2], before[0]]

    def test_lanes_are_as_tall_as_one_likes_down_to_a_pixel(self, opened):
        page = opened(one_f_one_b())
        heights = []
        for _ in range(5):
            heights.append(app(page, "plan.places[0].height"))
            press(page, "-")
        assert heights == sorted(heights, reverse=True)
        assert heights[-1] == 1
        assert all(place["row"]["lane"] == "compute" for place in state(page, "places"))
        press(page, "+")
        assert app(page, "plan.places[0].height") > 1


class TestLooking:
    @pytest.mark.parametrize(
        "mode", ["kind", "microbatch", "length", "ideal", "cause", "chunk", "whatif"]
    )
    def test_blocks_are_coloured_by_what_is_asked(self, opened, mode):
        plan = generate("interleaved-1f1b", 4, 8)
        timeline = simulate(plan, Costs(1_000_000, 1_000_000, 1_000_000), steps=2)
        page = opened(timeline, whatif=lambda run: run.scaled("stage", 1, 0.5))
        page.get_by_label("colour by").select_option(mode)
        task = task_at(page, rank=2, step=1, kind="forward", microbatch=3)
        page.evaluate(f"window.bubblescope.app.selection.zoomTo({{ what: 'task', index: {task} }})")
        page.wait_for_timeout(100)
        x, y = where(page, task)
        box = page.locator("canvas.lanes").bounding_box()
        pixel = tuple(screen(page)[round(y - box["y"]), round(x - box["x"]) + 60, :3])
        scheme = app(page, f"scheme.fills[window.bubblescope.app.scheme.codes[{task}]]")
        assert pixel == tuple(bytes.fromhex(scheme[1:]))
        assert page.locator(".legend span").count() >= 2

    def test_in_the_colours_of_causes_gaps_are_whole(self, opened):
        page = opened(one_f_one_b(comm=False))
        press(page, "1")
        page.get_by_label("colour by").select_option("cause")
        page.wait_for_timeout(100)
        image = screen(page)
        place = state(page, "places")[0]
        lane = image[place["top"] : place["top"] + place["height"], state(page, "gutter") :, :3]
        # Patterns let the ground show through, but nowhere is there nothing else.
        bare = [(lane == ground).all(2).all(0).mean() for ground in GROUNDS]
        assert max(bare) < 0.05
        assert tuple(channels(CAUSE_COLOURS[Cause.COOL_DOWN])) in {
            tuple(pixel) for pixel in lane[-1]
        }

    def test_warm_up_and_cool_down_are_shaded(self, opened):
        page = opened(one_f_one_b(comm=False))
        press(page, "1", "c")
        page.wait_for_timeout(100)
        last = [p for p in state(page, "places") if p["row"]["lane"] == "compute"][-1]

        def line() -> np.ndarray:
            return screen(page)[last["top"] + 4, state(page, "gutter") :, :3]

        first = state(page, "places")[0]
        top = screen(page)[first["top"] + 4, state(page, "gutter") :, :3]
        assert (top == GROUNDS[1]).all(1).any()  # waits for its first backward
        assert (top == GROUNDS[2]).all(1).any()  # and between its last backwards
        assert not (line() == GROUNDS[2]).all(1).any()  # ends as soon as its last forward is back
        press(page, "k")
        page.wait_for_timeout(100)
        top = screen(page)[first["top"] + 4, state(page, "gutter") :, :3]
        assert not (top == GROUNDS[1]).all(1).any()

    def test_launches_are_marked(self, opened):
        page = opened(one_f_one_b(comm=False))
        task = task_at(page, rank=1, step=1, kind="forward", microbatch=2)
        page.evaluate(f"window.bubblescope.app.selection.zoomTo({{ what: 'task', index: {task} }})")
        page.wait_for_timeout(100)
        before = screen(page)
        press(page, "h")
        page.wait_for_timeout(100)
        changed = np.argwhere((screen(page) != before).any(2))
        place = next(p for p in state(page, "places") if p["row"]["rank"] == 1)
        assert len(changed)
        assert (np.abs(changed[:, 0] - place["top"]) <= 4).any()

    def test_edges_are_as_soft_as_clocks_are_uncertain(self, opened):
        def edge(error_ns: int | None) -> np.ndarray:
            made = one_f_one_b(comm=False)
            ranks = made.ranks.with_columns(clock_error_ns=pl.lit(error_ns, pl.Int64))
            page = opened(Timeline(made.tasks, ranks, made.run))
            task = task_at(page, rank=0, step=1, kind="forward", microbatch=0)
            press(page, "c")
            page.evaluate(
                f"window.bubblescope.app.selection.zoomTo({{ what: 'task', index: {task} }})"
            )
            page.wait_for_timeout(100)
            _, y = where(page, task)
            box = page.locator("canvas.lanes").bounding_box()
            return screen(page)[round(y - box["y"]) - 3, state(page, "gutter") :, :3]

        sharp, soft = edge(None), edge(100_000)
        shades = [len(np.unique(row, axis=0)) for row in (sharp, soft)]
        assert shades[0] < 20
        assert shades[1] > 40

    def test_counters_are_curves(self, opened):
        made = one_f_one_b(comm=False)
        samples = pl.DataFrame(
            {
                "rank": [0, 0, 0],
                "name": ["memory"] * 3,
                "unit": ["bytes"] * 3,
                "time_ns": [made.start_ns + share * made.duration_ns // 4 for share in (0, 1, 3)],
                "value": [2.0**30, 2.0**31, 0.0],
            },
            schema_overrides={"rank": pl.Int32},
        )
        page = opened(Timeline(made.tasks, made.ranks, made.run, samples))
        curves = app(page, "plan.curves")
        assert len(curves) == 1
        page.evaluate(f"window.bubblescope.show(0, {made.duration_ns})")
        curve, gutter = curves[0], state(page, "gutter")
        image = screen(page)[curve["top"] : curve["top"] + curve["height"], gutter:, :3]
        filled = (image == (140, 150, 198)).all(2).mean(0)
        width = image.shape[1]
        assert filled[width // 2] > 0.9
        assert filled[width // 8 + width // 16] == pytest.approx(0.5, abs=0.1)
        assert filled[width * 7 // 8] < 0.1
        page.locator("nav summary", has_text="view").click()
        page.get_by_label("counters").uncheck()
        assert app(page, "plan.curves") == []

    def test_a_pair_that_overlaps_is_shown_as_both(self, opened):
        plan = generate("dualpipev", 4, 8)
        timeline = simulate(plan, Costs(1_000_000, 1_000_000, 1_000_000))
        page = opened(timeline)
        task = task_at(page, kind="forward_backward")
        page.evaluate(f"window.bubblescope.app.selection.zoomTo({{ what: 'task', index: {task} }})")
        page.wait_for_timeout(100)
        x, _ = where(page, task)
        box = page.locator("canvas.lanes").bounding_box()
        place = page.evaluate(
            "(task) => window.bubblescope.places.find(({ row }) => row.from <= task && task < row.to)",
            task,
        )
        column = screen(page)[:, round(x - box["x"]) + 80, :3]
        quarter = place["height"] / 4
        assert tuple(column[round(place["top"] + quarter)]) == rgb(Kind.FORWARD)
        assert tuple(column[round(place["top"] + 3 * quarter)]) == rgb(Kind.BACKWARD)
        page.mouse.click(x, box["y"] + place["top"] + 4)
        assert "overlapped with" in page.locator(".pane").inner_text()

    def test_the_ideal_and_the_what_if_lie_below_what_was_measured(self, opened):
        page = opened(one_f_one_b(comm=False), whatif=lambda run: run.schedule("zb-h1"))
        lanes = [place["row"]["lane"] for place in state(page, "places")[:3]]
        assert lanes == ["compute", "ideal", "whatif"]
        assert "zb-h1" in page.locator(".legend").inner_text()
        press(page, "i")
        assert {place["row"]["lane"] for place in state(page, "places")} == {"compute"}
        page.get_by_role("button", name="ideal").click()
        assert len({place["row"]["lane"] for place in state(page, "places")}) == 3

    def test_the_look_of_papers(self, opened):
        page = opened(one_f_one_b(), color_scheme="dark")
        press(page, "1", "v")
        page.wait_for_timeout(150)
        assert not page.locator("header").is_visible()
        assert {place["row"]["lane"] for place in state(page, "places")} == {"compute"}
        image = screen(page)
        assert tuple(image[-1, -1, :3]) == (255, 255, 255)  # papers are white
        assert (image[:, :, :3] == 0).all(2).sum() > 500  # outlines
        press(page, "Escape")
        assert page.locator("header").is_visible()

    def test_light_and_dark_by_the_system_and_by_hand(self, opened):
        page = opened(one_f_one_b(), color_scheme="dark")

        def ground() -> str:
            return page.evaluate("getComputedStyle(document.body).backgroundColor")

        assert ground() == "rgb(22, 24, 27)"
        assert tuple(screen(page)[-1, 4, :3]) == (22, 24, 27)
        press(page, "t")
        assert ground() == "rgb(255, 255, 255)"
        press(page, "t")
        assert ground() == "rgb(22, 24, 27)"
        page.emulate_media(color_scheme="light")
        assert ground() == "rgb(22, 24, 27)"
        press(page, "t")
        assert ground() == "rgb(255, 255, 255)"


class TestSummary:
    def test_rates_ranks_lengths_and_warnings(self, opened):
        page = opened(one_f_one_b())
        press(page, "e")
        text = page.locator(".summary").inner_text()
        for title in (
            "Bubble rates",
            "Ranks",
            "Lengths of forward",
            "Lengths of backward",
            "Warnings",
        ):
            assert title in text
        assert "1.000 ms" in text
        assert "this is a test" in text
        assert page.locator("main").is_visible()  # the pane stands below the lanes
        width = page.evaluate("document.querySelector('.pane .body').scrollWidth")
        assert width <= 1280
        page.locator(".summary .go").nth(2).click()
        press(page, "e")
        assert not page.locator(".summary").is_visible()

    def test_the_heat_map_says_how_idle_and_leads_there(self, opened):
        timeline = one_f_one_b()
        page = opened(timeline)
        press(page, "e")
        heat = page.locator(".heat")
        box = heat.bounding_box()
        x, y = box["width"] * 1.5 / 3, box["height"] * 2.5 / 4
        heat.hover(position={"x": x, "y": y})
        said = page.locator(".summary p[aria-live]").inner_text()
        bubbles = Report.of(timeline).bubbles
        at = bubbles.table.with_row_index().filter(rank=2, step=1)["index"].item()
        rates = bubbles.per_rank_step()[at]
        assert said == f"rank 2, step 1: {100 * rates.makespan:.2f} % idle"
        heat.click(position={"x": x, "y": y})
        view = state(page, "view()")
        step = app(page, "head.steps[1]")
        assert view["start"] <= step["start"] < step["end"] <= view["end"]
        assert length(page) < 1.1 * (step["end"] - step["start"])


class TestPictures:
    @pytest.mark.parametrize("kind", ["PNG", "SVG"])
    def test_what_is_in_sight_is_saved(self, opened, tmp_path, kind):
        page = opened(one_f_one_b(), accept_downloads=True)
        press(page, "1")
        page.locator("nav summary", has_text="picture").click()
        with page.expect_download() as caught:
            page.get_by_role("button", name=f"save as {kind}").click()
        target = tmp_path / caught.value.suggested_filename
        caught.value.save_as(target)
        data = target.read_bytes()
        if kind == "PNG":
            assert data.startswith(b"\x89PNG")
            return
        text = data.decode()
        assert "<script" not in text
        for shade in ("forward", "backward"):
            assert "#{:02x}{:02x}{:02x}".format(*rgb(shade)) in text
        # One shape for each block of the step in sight.
        blocks = re.findall(rf'<rect[^>]*fill="{COLOURS[Kind.FORWARD]}"', text)
        assert len(blocks) >= 2 * 4 * 8  # measured and ideal
        assert ">rank 3" in text

    def test_pictures_are_copied_where_there_is_a_clipboard(self, opened):
        page = opened(one_f_one_b())
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        press(page, "1")
        page.locator("nav summary", has_text="picture").click()
        page.get_by_role("button", name="copy as SVG").click()
        until(page, "document.querySelector('.found').textContent !== ''")
        if "copied" in page.locator(".found").inner_text():
            text = page.evaluate("navigator.clipboard.readText()")
            assert text.startswith("<svg")


class TestWithoutAMouse:
    def test_every_control_can_be_reached_and_says_what_it_is(self, opened):
        page = opened(one_f_one_b())
        names = []
        for _ in range(24):
            press(page, "Tab")
            names.append(
                page.evaluate(
                    "(() => { const e = document.activeElement; return e.getAttribute('aria-label') "
                    "|| e.innerText || e.tagName; })()"
                )
            )
        text = " ".join(names)
        for name in (
            "search for tasks",
            "colour by",
            "view",
            "picture",
            "summary",
            "show keys",
        ):
            assert name in text
        toggle = page.get_by_role("button", name="causes")
        assert toggle.get_attribute("aria-pressed") == "true"
        toggle.press("Enter")
        assert toggle.get_attribute("aria-pressed") == "false"
        assert page.locator("canvas.lanes").get_attribute("aria-label").startswith("Timeline of 4")

    def test_keys_in_a_field_are_text(self, opened):
        page = opened(one_f_one_b())
        before = state(page, "view()")
        press(page, "/")
        page.keyboard.type("wasd")
        assert state(page, "view()") == before
        assert page.locator("input[type=search]").input_value() == "wasd"

    def test_the_ground_deselects(self, opened):
        page = opened(one_f_one_b(), address="#size=tiny")
        press(page, "ArrowRight")
        assert state(page, "selected()") >= 0
        page.mouse.click(*ground_of(page))
        assert state(page, "selected()") == -1
