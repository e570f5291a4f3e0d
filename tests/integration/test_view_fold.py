"""A thousand ranks in a real browser: odd ones stand apart, alike ones are sums that unfold."""

from __future__ import annotations

import re
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.view import View
from bubblescope.model.kinds import Kind
from bubblescope.render.html.data import PageData
from bubblescope.render.html.serve import windows
from bubblescope.render.html.serve.server import Server
from bubblescope.schedules import generate
from injected import Fault, Job
from synthetic import one_f_one_b
from viewing import WRITTEN, app, context_of, rgb, screen, settled, state, until

if TYPE_CHECKING:
    from bubblescope import Timeline

pytestmark = pytest.mark.browser

STAGES, REPLICAS = 16, 64
SLOW = 5 * STAGES + 7
REASON = "forward and backward +30 % against the 63 other ranks of stage 7"


@pytest.fixture(scope="module")
def thousand() -> Timeline:
    """1,024 ranks of which one, of stage 7 and replica 5, takes 1.3 times as long as the others."""
    job = Job(generate("1f1b", STAGES, 32), REPLICAS, 1)
    return job.play(Fault(Cause.SLOW_RANK, slow={(5, 7): 1.3}))


def ranks_of(page, what: str) -> list[int]:
    """The ranks, by their number, of which the bands or other parts of the page's plan are."""
    return page.evaluate(
        f"window.bubblescope.app.plan.{what}.map(({{ rank }}) => "
        "window.bubblescope.app.head.ranks[rank].rank)"
    )


def fold(page, group: str, title: str) -> dict:
    """Where the sum of a stage is."""
    [found] = [part for part in app(page, "plan.folds") if part["key"] == f"{group} {title}"]
    return found


def press(page, x: float, part: dict) -> None:
    """Click at a height of the lanes, so far from their left."""
    box = page.locator("canvas.lanes").bounding_box()
    top = app(page, "scroll.scrollTop")
    page.mouse.click(box["x"] + x, box["y"] + part["top"] - top + part["height"] / 2)


class TestAsThePageOpens:
    def test_the_slow_rank_and_its_reason_are_in_sight(self, opened, thousand):
        page = opened(thousand, 1280, 720, as_it_opens=True)
        assert ranks_of(page, "bands")[0] == SLOW
        band, note = app(page, "plan.bands")[0], app(page, "plan.notes")[0]
        bottom = app(page, "scroll.clientHeight")
        assert app(page, "scroll.scrollTop") == 0
        assert band["top"] + band["height"] < note["top"] + note["height"] < bottom
        assert note["text"].startswith(REASON)
        image = screen(page)[:, state(page, "gutter") :, :3].astype(int)
        lane = image[band["top"] + 3]
        for kind in (Kind.FORWARD, Kind.BACKWARD):
            assert (np.abs(lane - rgb(kind)).max(1) < 8).any()
        words = image[note["top"] : note["top"] + note["height"]]
        assert (words.max(2) < 100).mean() > 0.01, "no dark letters"
        said = page.locator("canvas.lanes").get_attribute("aria-description")
        assert said == f"1 odd, 15 wait, 1,008 alike; rank {SLOW}: {REASON}"

    def test_one_that_is_like_it_is_below(self, opened, thousand):
        page = opened(thousand, 1280, 720, as_it_opens=True)
        one, other = app(page, "plan.bands")
        assert other["like"]
        assert ranks_of(page, "bands")[1] % STAGES == SLOW % STAGES
        assert one["top"] + one["height"] < other["top"]

    @pytest.mark.parametrize("height", [720, 1200])
    def test_all_ranks_are_in_sight(self, opened, thousand, height):
        page = opened(thousand, 1280, height, as_it_opens=True)
        headings = [heading["group"]["title"] for heading in app(page, "plan.headings")]
        assert headings == ["1 odd", "15 wait", "1,008 alike"]
        folds = app(page, "plan.folds")
        assert sorted(len(part["ranks"]) for part in folds) == [1] * 15 + [63] * 16
        lowest = max(part["top"] + part["height"] for part in folds)
        assert lowest <= app(page, "scroll.clientHeight")

    def test_it_is_not_so_where_ranks_are_few(self, opened):
        page = opened(one_f_one_b(ranks=8, hosts=1, comm=False), as_it_opens=True)
        assert app(page, "plan.folds") == []
        assert len(app(page, "plan.bands")) == 8

    def test_each_stage_is_the_mean_of_its_ranks(self, opened, thousand):
        """Of the alike ranks of a stage, which do the same at the same time, it is the lane of one."""
        page = opened(thousand, 1280, 1200, as_it_opens=True)
        page.evaluate(
            "window.bubblescope.app.change({ phases: false, causes: false }); "
            "window.bubblescope.show(0, window.bubblescope.app.head.end / 4)"
        )
        until(page, "!window.bubblescope.app.frame")
        page.wait_for_timeout(300)
        image = screen(page)[:, state(page, "gutter") :, :3].astype(int)
        part, like = fold(page, "alike", "stage 7"), app(page, "plan.bands")[1]
        low = image[part["top"] + part["height"] // 2]
        lane = image[like["top"] + like["height"] - 2]
        plain = [
            [np.abs(row - rgb(kind)).max(1) < 8 for kind in (Kind.FORWARD, Kind.BACKWARD)]
            for row in (low, lane)
        ]
        assert np.mean(plain[1]) > 0.1
        assert np.mean(np.array(plain[0]) == np.array(plain[1])) > 0.97


class TestUnfolding:
    def test_a_click_on_a_sum_shows_its_ranks(self, opened, thousand):
        page = opened(thousand, 1280, 720, as_it_opens=True)
        for x in (60, 900):  # on its title, and on what it did
            press(page, x, fold(page, "alike", "stage 12"))
            shown = ranks_of(page, "bands")[2:]
            assert shown == [rank for rank in range(12, 1024, STAGES) if rank != 5 * STAGES + 12]
            press(page, 60, fold(page, "alike", "stage 12"))
            assert len(app(page, "plan.bands")) == 2

    def test_a_click_on_a_heading_shows_all_of_a_group(self, opened, thousand):
        page = opened(thousand, 1280, 720, as_it_opens=True)
        press(page, 60, app(page, "plan.headings")[2])
        assert len(app(page, "plan.bands")) == 2 + 1008
        press(page, 60, app(page, "plan.headings")[2])
        assert len(app(page, "plan.bands")) == 2

    def test_by_keys_and_the_toolbar(self, opened, thousand):
        page = opened(thousand, 1280, 720, as_it_opens=True)
        button = page.get_by_role("button", name="fold", exact=True)
        assert button.get_attribute("aria-pressed") == "true"
        page.keyboard.press("m")
        assert len(app(page, "plan.bands")) == 1024
        assert button.get_attribute("aria-pressed") == "false"
        button.focus()
        page.keyboard.press("Enter")
        assert len(app(page, "plan.bands")) == 2
        page.locator("summary", has_text="view").focus()
        page.keyboard.press("Enter")
        groups = page.get_by_role("group", name="groups")
        groups.get_by_role("button", name="▶").last.focus()
        page.keyboard.press("Enter")
        assert len(app(page, "plan.bands")) == 2 + 1008

    def test_what_is_gone_to_is_shown(self, opened, thousand):
        page = opened(thousand, 1280, 720, as_it_opens=True)
        page.evaluate("window.bubblescope.app.finding.find('rank:700 kind:F')")
        page.keyboard.press(".")
        assert 700 in ranks_of(page, "bands")
        assert len(app(page, "plan.bands")) == 2 + 63

    def test_the_address_keeps_it(self, opened, thousand):
        page = opened(thousand, 1280, 720, as_it_opens=True)
        press(page, 60, fold(page, "alike", "stage 12"))
        settled(page)
        bands = ranks_of(page, "bands")
        again = opened(
            thousand, 1280, 720, address=page.evaluate("location.hash"), as_it_opens=True
        )
        assert ranks_of(again, "bands") == bands
        page.keyboard.press("m")
        settled(page)
        again = opened(
            thousand, 1280, 720, address=page.evaluate("location.hash"), as_it_opens=True
        )
        assert len(app(again, "plan.bands")) == 1024


def test_where_one_is_pointed_at_its_ranks_are_said(opened, thousand):
    page = opened(thousand, 1280, 720, as_it_opens=True)
    box = page.locator("canvas.lanes").bounding_box()
    part = fold(page, "alike", "stage 12")
    page.mouse.move(box["x"] + 900, box["y"] + part["top"] + 1)
    assert page.locator(".tip").inner_text() == "stage 12: mean of 63 ranks; click to see each"


def test_a_stretch_across_sums_is_of_their_ranks(opened, thousand):
    page = opened(thousand, 1280, 720, as_it_opens=True)
    box = page.locator("canvas.lanes").bounding_box()
    one, other = fold(page, "alike", "stage 3"), fold(page, "alike", "stage 5")
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 500, box["y"] + one["top"] + 1)
    page.mouse.down()
    page.mouse.move(box["x"] + 700, box["y"] + other["top"] + 1, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    assert len(app(page, "state.range")["ranks"]) == 3 * 63


def test_what_is_not_here_yet_is_not_taken_for_what_ran(browser, monkeypatch):
    """Until what is in sight has come, blocks say for how many they stand, a line that more comes."""
    monkeypatch.setattr(windows, "_WHOLE", 0)  # nothing is small enough to be sent whole
    run = Job(generate("1f1b", 4, 3_000), 1, 1).play(Fault(Cause.SLOW_RANK, slow={(0, 2): 1.3}))
    server = Server(PageData.of(View.of(run)))
    Thread(target=server.run, daemon=True).start()
    context = context_of(browser, viewport={"width": 1280, "height": 720})
    held = []
    try:
        page = context.new_page()
        page.route(
            "**/window?*",
            lambda route: (
                route.continue_() if "idle=&" in f"{route.request.url}&" else held.append(route)
            ),
        )
        page.goto(server.url)
        until(page, "!!window.bubblescope")
        middle = app(page, "head.end") / 2
        page.evaluate(f"window.bubblescope.show({middle}, {middle} + 3e8)")
        busy = "document.querySelector('.stage').getAttribute('aria-busy') === 'true'"
        until(page, busy)
        merged = [text for text in page.evaluate(WRITTEN) if "×" in text]
        assert merged
        assert all(re.fullmatch(r"[FB][\d.]* ×\d+", text) for text in merged)
        while held:
            for route in held:
                route.continue_()
            held.clear()
            page.wait_for_timeout(300)
        until(page, f"!({busy})")
        texts = page.evaluate(WRITTEN)
        assert not [text for text in texts if "×" in text]
        assert [text for text in texts if re.match(r"[FB]\d+", text)]
    finally:
        context.close()
        server.stop()


def test_a_server_sends_all_that_is_in_a_sum(opened, thousand, browser):
    """What is folded looks as in a page that holds everything."""
    whole = opened(thousand, 1280, 720, as_it_opens=True)
    server = Server(PageData.of(View.of(thousand)))
    Thread(target=server.run, daemon=True).start()
    context = context_of(browser, viewport={"width": 1280, "height": 720})
    try:
        served = context.new_page()
        served.goto(server.url)
        until(served, "!!window.bubblescope && window.bubblescope.app.data.tasks.kind.length > 0")
        for page in (whole, served):
            page.wait_for_timeout(600)
        assert (screen(whole) == screen(served)).all()
    finally:
        context.close()
        server.stop()
