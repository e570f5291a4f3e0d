"""The same page opened and steered in Firefox: what it says and draws is what Chromium does."""

from __future__ import annotations

import numpy as np
import pytest

from bubblescope.analysis.view import View
from bubblescope.render.html import page as html
from firefox import firefox
from injected import job
from viewing import PIXELS, browser, context_of, decoded, screen, until

__all__ = ["browser"]

SIZE = (1280, 720)
SAID = "document.querySelector('header').innerText.replace(/\\s+/g, ' ')"
FOUND = """(async ({{ finding }}) => {{
    await finding.find({query});
    return [...finding.found];
}})(window.bubblescope.app)"""
STATE = (
    """(({ view, app: { state } }) => [view(), state.selected, state.range])(window.bubblescope)"""
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    timeline = job(np.random.default_rng(3), jitter=0.2).play()
    return html.write(View.of(timeline), tmp_path_factory.mktemp("page") / "view.html")


@pytest.fixture(scope="module")
def fox(tmp_path_factory, path):
    with firefox(tmp_path_factory.mktemp("firefox")) as tab:
        yield tab


@pytest.fixture
def both(fox, browser, path):
    """The page anew in both."""
    fox.open(path.as_uri() + "#theme=light", *SIZE)
    context = context_of(browser, viewport={"width": SIZE[0], "height": SIZE[1]})
    page = context.new_page()
    page.goto(path.as_uri() + "#theme=light")
    until(page, "!!window.bubblescope")
    yield fox, page
    context.close()
    assert fox.errors == []


def test_it_says_and_finds_the_same(both):
    fox, page = both
    assert fox.evaluate(SAID) == page.evaluate(SAID)
    assert fox.evaluate(STATE) == page.evaluate(STATE)
    for query in ("F3", "dur>15ms", "B2@stage 1", "-kind:F rank:2"):
        asked = FOUND.format(query=repr(query))
        assert fox.evaluate(asked) == page.evaluate(asked) != []


def test_it_draws_the_same_lanes(both):
    """Letters are each browser's own: what is no letter, nor beside one, is the same."""
    fox, page = both
    page.wait_for_timeout(300)
    fox.until("new Promise((drawn) => setTimeout(() => drawn(true), 300))")
    one, other = (
        decoded(*fox.evaluate(f"({PIXELS})('canvas.lanes')")).astype(int),
        screen(page).astype(int),
    )
    assert one.shape == other.shape
    left = page.evaluate("window.bubblescope.gutter") + 2
    differ = (abs(one - other).max(axis=2) > 2)[:, left:]
    assert differ.mean() < 0.04
    # The foot of lanes has no letters at all.
    for place in page.evaluate("window.bubblescope.places"):
        bottom = round(place["top"] + place["height"]) - 3
        if bottom < len(differ) and place["height"] > 24:
            assert differ[bottom].mean() < 0.002


def test_keys_wheel_and_drag_do_the_same(both):
    fox, page = both
    box = page.locator("canvas.lanes").bounding_box()
    x, y = box["x"] + 600, box["y"] + 30
    fox.press("w", "w", "d")
    for key in ("w", "w", "d"):
        page.keyboard.press(key)
    assert fox.evaluate(STATE) == page.evaluate(STATE)

    page.mouse.move(x, y)
    page.mouse.down()
    for to in (x + 75, x + 150):
        page.mouse.move(to, y)
    page.mouse.up()
    fox.drag(x, y, x + 150)
    until(page, "window.bubblescope.app.state.range !== null")
    assert fox.evaluate(STATE) == page.evaluate(STATE)

    fox.click(x, y)
    page.mouse.click(x, y)
    assert fox.evaluate(STATE) == page.evaluate(STATE)
    assert page.evaluate("window.bubblescope.app.state.selected") is not None
