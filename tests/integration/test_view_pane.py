"""The pane below the lanes: docked, of any height, and never over what is selected."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from injected import job
from synthetic import one_f_one_b
from viewing import browser, opened, state, task_at, until, where

__all__ = ["browser", "opened"]

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 844, "has_touch": True, "is_mobile": True}
BODY = "document.querySelector('.pane .body')"


def pane(page) -> dict[str, float]:
    return page.locator(".pane").bounding_box()


def is_seen(page, task: int) -> bool:
    """Whether a task is between what is above the lanes and what is below them."""
    x, y = where(page, task)
    lanes = page.locator("main").bounding_box()
    top = pane(page)["y"] if page.locator(".pane").is_visible() else np.inf
    return lanes["y"] <= y <= min(lanes["y"] + lanes["height"], top) and 0 < x < lanes["width"]


def drag(page, to: float) -> None:
    box = page.locator(".pane .grip").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, (y + to) / 2)
    page.mouse.move(x, to)
    page.mouse.up()


def test_what_is_selected_stays_in_sight_however_tall_the_pane_is(opened):
    # Of lanes that do not shrink with the room there is, the last is the first to go out of sight.
    page = opened(job(np.random.default_rng(3)).play(), address="#size=large", as_it_opens=True)
    page.evaluate("window.bubblescope.app.scroll.scrollTop = 9999")
    last = max(rank["rank"] for rank in page.evaluate("window.bubblescope.app.head.ranks"))
    step = page.evaluate("(({ head }) => head.steps[head.opening].step)(window.bubblescope.app)")
    task = task_at(page, rank=last, kind="backward", step=step)
    page.mouse.click(*where(page, task))
    until(page, "window.bubblescope.selected() >= 0")
    assert page.locator(".pane").is_visible()
    assert is_seen(page, task)
    for top in (300, 560, 200):
        drag(page, top)
        assert abs(pane(page)["y"] - max(top, 0.4 * 720)) < 8
        assert is_seen(page, task)
    before = pane(page)["height"]
    page.locator(".pane .grip").press("ArrowDown")
    assert pane(page)["height"] == before - 24
    page.get_by_role("button", name="close the pane").click()
    assert not page.locator(".pane").is_visible()


def test_on_a_phone_a_finger_pans_a_step_and_a_tap_opens_a_sheet(opened):
    page = opened(job(np.random.default_rng(3)).play(), as_it_opens=True, **PHONE)
    client = page.context.new_cdp_session(page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        at = [{"x": x, "y": y, "id": 1} for x, y in points]
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})

    def swipe(x: float, y: float, to_x: float, to_y: float) -> None:
        touch("touchStart", (x, y))
        for share in (0.3, 0.6, 1):
            touch("touchMove", (x + share * (to_x - x), y + share * (to_y - y)))
        touch("touchEnd")

    before, task = state(page, "view()"), task_at(page, rank=1, kind="backward")
    length = before["end"] - before["start"]
    swipe(340, 560, 40, 560)
    after = state(page, "view()")
    assert after["start"] - before["start"] == pytest.approx(length * 300 / 390, rel=0.02)
    swipe(40, 560, 340, 560)

    page.evaluate(f"window.bubblescope.app.selection.go({{ what: 'task', index: {task} }})")
    page.evaluate("window.bubblescope.app.selection.select(null)")
    page.touchscreen.tap(*where(page, task))
    until(page, f"window.bubblescope.selected() === {task}")
    sheet = pane(page)
    assert sheet["width"] == 390
    assert sheet["y"] + sheet["height"] == 844
    assert is_seen(page, task)
    grip = page.locator(".pane .grip").bounding_box()
    swipe(195, grip["y"] + grip["height"] / 2, 195, grip["y"] - 90)
    assert pane(page)["height"] > sheet["height"] + 60
    assert is_seen(page, task)


def test_the_summary_of_many_ranks_is_no_wider_than_the_window_and_not_blank(opened):
    tasks = simulate(generate("1f1b", 96, 4), Costs(1000, 1000, 1000, 2000)).tasks
    timeline = Timeline(tasks, pl.DataFrame({"rank": range(96), "host": ["one"] * 96}))
    page = opened(timeline, 800, 600)
    page.keyboard.press("e")
    assert page.evaluate(f"{BODY}.scrollWidth <= {BODY}.clientWidth")
    parts = page.evaluate(
        "[...document.querySelectorAll('.summary article')]"
        ".map((one) => [one.offsetWidth, one.innerText.length])"
    )
    assert len(parts) > 3
    assert all(0 < width <= 800 and letters > 10 for width, letters in parts)


def test_the_focus_stays_in_the_help_and_a_click_outside_closes_it(opened):
    page = opened(one_f_one_b())
    page.keyboard.press("?")
    for _ in range(4):
        page.keyboard.press("Tab")
        assert page.evaluate(
            "document.activeElement === document.body || !!document.activeElement.closest('.help')"
        )
    page.mouse.click(5, 5)
    assert not page.locator(".help").is_visible()
