"""Two runs in one page, in a real browser."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.analysis.view import View
from bubblescope.model import units
from bubblescope.render.html import page as html
from bubblescope.render.html.data import PageData
from bubblescope.render.html.serve import windows
from bubblescope.render.html.serve.windows import Sight, Windows
from bubblescope.render.text.compare import Comparison
from serving import serving
from two_runs import MS, injected, made, noisy
from viewing import app, barriers, context_of, screen, state, task_at, until, where

pytestmark = pytest.mark.browser

EDGES = (0.1 * MS, 0.5 * MS, 1 * MS)
"""Of the scale of changes: `injected` makes them as long as a millisecond, any of them as often."""

LIGHT = ["#114781", "#2f79b5", "#7fb2d6", "#b9bdc1", "#f0b06a", "#d2691e", "#86280b"]
DARK = ["#b3daff", "#62a8e5", "#38709f", "#5c6168", "#935c22", "#dd8a35", "#ffd0a0"]
KEY = ("rank", "step", "kind", "stage", "microbatch")


@pytest.fixture(scope="module")
def runs() -> tuple[Timeline, Timeline, dict[tuple, int]]:
    """A run, another of which every task is longer or shorter, and by how much each is."""
    before = made(steps=3)
    after, truth = injected(before, 4)
    later = (
        pl.col("start_ns", "end_ns") + pl.col("step") * 30 * MS
    )  # so that no shift lays all steps
    return before, Timeline(after.tasks.with_columns(later), after.ranks, after.run), truth


def tasks_of(page) -> list[dict]:
    """The tasks of both runs, with their row on the page."""
    return page.evaluate(
        """() => {
            const { head, data } = window.bubblescope.app;
            const { start, end, kind, step, stage, microbatch } = data.tasks;
            return head.rows.flatMap(({ rank, lane, from, to }) =>
                Array.from({ length: to - from }, (_, at) => from + at).map((index) => ({
                    index, lane, rank: head.ranks[rank].rank, kind: head.kinds[kind[index]].name,
                    step: step[index], stage: stage[index] < 0 ? null : stage[index],
                    microbatch: microbatch[index] < 0 ? null : microbatch[index],
                    start: start[index], end: end[index],
                })));
        }"""
    )


def colour(change: int, shades: list[str]) -> tuple[int, ...]:
    """What a task of such a change is to look like."""
    far = sum(abs(change) >= edge for edge in EDGES)
    return tuple(bytes.fromhex(shades[3 + (far if change > 0 else -far)][1:]))


def go(page, step: int) -> None:
    page.evaluate(f"window.bubblescope.app.journey.showStep(bubblescope.app.head.steps[{step}])")
    page.evaluate("window.bubblescope.app.draw()")


class TestColours:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_every_task_in_sight_has_that_of_its_change(self, opened, runs, scheme):
        before, after, truth = runs
        page = opened(before, 1600, 900, against=after, as_it_opens=True, color_scheme=scheme)
        go(page, 1)
        image = screen(page)[:, :, :3]
        box = page.locator("canvas.lanes").bounding_box()
        seen = {"compute": 0, "against": 0}
        for task in tasks_of(page):
            if (
                task["step"] != 1
                or task["lane"] not in seen
                or task["end"] - task["start"] < 3 * MS
            ):
                continue
            change = truth[tuple(task[name] for name in KEY)]
            x, y = where(page, task["index"])
            x, y = round(x - box["x"]), round(y - box["y"]) - 2  # above what is written on it
            # Labels are in the middle of a block; five pixels from its top there is none.
            near = image[y - 1 : y + 2, x - 2 : x + 3].reshape(-1, 3)
            wanted = colour(change, LIGHT if scheme == "light" else DARK)
            assert (near == wanted).all(axis=1).any(), (task, change)
            seen[task["lane"]] += 1
        assert min(seen.values()) >= 4 * 2 * 8

    def test_the_legend_has_the_scale(self, opened, runs):
        before, after, _ = runs
        page = opened(before, against=after, as_it_opens=True)
        legend = page.locator("aside.legend").inner_text()
        for text in (
            "less than 100 µs",
            "+500 µs to +1 ms",
            "\N{MINUS SIGN}1 ms and more",
            "no counterpart in the other run",
        ):
            assert text in legend


class TestLaidOnEachOther:
    def test_the_step_in_sight_begins_at_once_in_both(self, opened, runs):
        before, after, _ = runs
        page = opened(before, against=after, as_it_opens=True)
        for step in (0, 2, 1):
            go(page, step)
            tasks = [task for task in tasks_of(page) if task["step"] == step]
            begins = [
                min(task["start"] for task in tasks if task["lane"] == lane)
                for lane in ("compute", "against")
            ]
            assert begins[0] == begins[1]
            assert (
                f"step {step} begins at the same moment in both"
                in page.locator("aside.legend").inner_text()
            )

    def test_what_is_drawn_on_the_way_is_what_a_page_opened_there_draws(self, opened, runs):
        before, after, _ = runs
        page = opened(before, against=after, as_it_opens=True)
        for step in (0, 2, 1, 2):
            go(page, step)
        page.wait_for_timeout(600)
        address = page.evaluate("location.hash")
        walked = screen(page)
        fresh = opened(before, against=after, as_it_opens=True, address=address)
        fresh.wait_for_timeout(600)
        assert np.array_equal(screen(fresh), walked)

    def test_the_other_run_stands_directly_below_each_rank(self, opened):
        page = opened(made(), against=made(12 * MS), as_it_opens=True)
        places = state(page, "places")
        assert [place["row"]["lane"] for place in places] == ["compute", "against"] * 4
        tops = [(place["top"], place["height"]) for place in places]
        for (top, height), (below, _) in zip(tops[::2], tops[1::2], strict=True):
            assert 0 <= below - top - height <= 1


class TestDetails:
    def test_a_click_on_a_task_shows_what_it_gained_or_lost_and_the_same_of_the_other_run(
        self, opened, runs
    ):
        before, after, truth = runs
        page = opened(before, against=after, as_it_opens=True)
        go(page, 1)
        mine = next(
            task
            for task in tasks_of(page)
            if (task["lane"], task["step"], task["rank"]) == ("compute", 1, 2)
        )
        page.mouse.click(*where(page, mine["index"]))
        change = truth[tuple(mine[name] for name in KEY)]
        pane = page.get_by_role("tabpanel").inner_text()
        sign = "+" if change > 0 else "\N{MINUS SIGN}"
        assert f"{sign}{abs(change) / 1e3:.1f} µs" in pane
        assert "chance is not ruled out" in pane
        page.get_by_role("tabpanel").get_by_title("show the same task of B").click()
        its = next(task for task in tasks_of(page) if task["index"] == state(page, "selected()"))
        assert its["lane"] == "against"
        assert [its[name] for name in KEY] == [mine[name] for name in KEY]
        page.get_by_role("tabpanel").get_by_title("show the same task of A").click()
        assert state(page, "selected()") == mine["index"]

    def test_a_search_finds_what_was_lost_in_both_runs(self, opened, runs):
        before, after, truth = runs
        page = opened(before, against=after, as_it_opens=True)
        wanted = sum(change > 0.7 * MS for key, change in truth.items() if key[2] in PASSES)
        page.evaluate("window.bubblescope.app.finding.find('lost>700us lane:compute')")
        assert page.locator(".found").inner_text().startswith(f"{wanted} found")
        page.evaluate("window.bubblescope.app.finding.find('lost>700us')")
        assert page.locator(".found").inner_text().startswith(f"{2 * wanted} found")


PASSES = ("forward", "backward", "optimizer")


class TestVerdict:
    @pytest.mark.parametrize(
        ("other", "doubtful"),
        [(lambda: noisy(2), True), (lambda: noisy(2, forward=20 * MS), False)],
    )
    def test_what_compare_says_is_in_sight_and_no_surer(self, opened, other, doubtful):
        before, after = noisy(1), other()
        comparison = Comparison.of(before, after)
        step = comparison.find("overall", "step")
        assert (step.certain is False) is doubtful
        page = opened(before, 1280, 720, against=after, as_it_opens=True)
        header = page.locator("header")
        headline = re.sub(r"(?<!\S)-(?=\d)", "\N{MINUS SIGN}", comparison.headline())
        assert headline in header.inner_text()
        assert header.bounding_box()["y"] + header.bounding_box()["height"] < 720 / 3
        assert page.locator("header strong.doubtful").count() == doubtful
        for part in page.locator("header .remedy").all():
            said = part.inner_text()
            name = said.split(": ")[-1]
            known = [
                one for one in comparison.changes if name.startswith(one.name.replace("_", " "))
            ]
            sure = any(one.certain for one in known)
            assert ("may be noise" in said) is not sure, said

    def test_all_that_was_compared_is_in_a_tab(self, opened):
        before, after = noisy(1), noisy(2)
        comparison = Comparison.of(before, after)
        page = opened(before, against=after, as_it_opens=True)
        page.get_by_role("button", name="all differences").click()
        until(page, "document.querySelectorAll('.differences tr').length > 0")
        rows = page.locator(".differences tr:has(td)")
        assert rows.count() == len(comparison.changes)
        doubtful = sum(one.certain is False for one in comparison.changes)
        assert page.locator(".differences tr.doubtful").count() == doubtful

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_nothing_serious_is_found_by_axe(self, opened, runs, scheme):
        before, after, _ = runs
        page = opened(before, against=after, as_it_opens=True, bypass_csp=True, color_scheme=scheme)
        page.get_by_role("button", name="all differences").click()
        assert barriers(page) == []

    def test_a_page_of_one_run_has_neither(self, opened, runs):
        page = opened(runs[0])
        assert page.get_by_role("tab", name="Difference").count() == 0
        assert app(page, "state.mode") == "kind"


def test_the_ideal_is_shown_when_it_is_asked_for_and_only_then(opened, runs):
    page = opened(runs[0], against=runs[1], as_it_opens=True)
    button = page.get_by_role("button", name="ideal", exact=True)
    for shown in (False, True, False):
        assert button.get_attribute("aria-pressed") == str(shown).lower()
        lanes = {place["row"]["lane"] for place in state(page, "places")}
        assert lanes == {"compute", "against"} | ({"ideal"} if shown else set())
        button.click()


class TestServed:
    """The same page of runs that are loaded as they come into sight."""

    @pytest.fixture
    def pair(self, runs):
        before, after, _ = runs
        return View.of(before, against=Comparison.of(before, after, labels=("A", "B")))

    def test_it_looks_like_the_page_that_holds_both(self, pair, browser, tmp_path):
        looks = []
        with serving(PageData.of(pair)) as server:
            for url in (html.write(pair, tmp_path / "view.html").as_uri(), server.url):
                context = context_of(browser, viewport={"width": 1000, "height": 600})
                page = context.new_page()
                page.goto(url)
                until(page, "!!window.bubblescope")
                shots = []
                for key in ("f", "1", "0", "w", "n"):  # steps 1 and 0 lay B elsewhere
                    page.keyboard.press(key)
                    page.wait_for_timeout(400)
                    shots.append(
                        page.evaluate("document.querySelector('canvas.lanes').toDataURL()")
                    )
                looks.append(shots)
                context.close()
        assert [one == other for one, other in zip(*looks, strict=True)] == [True] * 5
        assert len(set(looks[0])) > 3

    def test_a_task_leads_to_itself_in_the_other_run(self, pair, runs, browser):
        _, _, truth = runs
        with serving(PageData.of(pair)) as server:
            context = context_of(browser, viewport={"width": 1000, "height": 700})
            page = context.new_page()
            page.goto(server.url)
            until(page, "!!window.bubblescope")
            page.keyboard.press("1")
            page.wait_for_timeout(400)
            index = task_at(page, rank=1, step=1, kind="backward", microbatch=2)
            page.mouse.click(*where(page, index))
            until(page, "!!document.querySelector('.pane dl button')")
            said = page.locator(".pane .details").inner_text()
            task = one_of(page, index)
            change = truth[tuple(task[name] for name in KEY)]
            assert units.duration(abs(change)).split()[0] in said
            page.click(".pane button[title='show the same task of B']")
            until(page, "document.querySelector('.pane dd').textContent === 'B'")
            other = one_of(page, state(page, "selected()"))
            assert {name: other[name] for name in KEY} == {name: task[name] for name in KEY}
            assert other["lane"] == "against"
            context.close()

    def test_merged_tasks_are_of_one_colour(self, pair, monkeypatch):
        monkeypatch.setattr(windows, "_WHOLE", 10)
        data = PageData.of(pair)
        sight = Sight(0, 1e8, 12, frozenset(range(4)), frozenset({"compute", "against"}))
        parts = Windows(data)
        row = next(row for row in data.places().rows if row.lane == "against")
        drawn = parts._task_times
        chosen = windows.chosen(drawn, [windows._span(drawn, row, sight)], sight, whole=False)
        scale = data.told.against.scale
        assert chosen.merged.max() > 1
        for first, count in zip(chosen.ids.tolist(), chosen.merged.tolist(), strict=True):
            if count > 1:
                same = drawn.codes[row.first : row.to] == drawn.codes[first]
                changes = data.tasks["change_ns"][row.first : row.to].filter(pl.Series(same))
                far = {sum(abs(change) >= edge for edge in scale) for change in changes}
                assert len(far) == 1


def one_of(page, index: int) -> dict:
    return next(task for task in tasks_of(page) if task["index"] == index)
