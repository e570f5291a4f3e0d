"""Pixels are true in area: what runs in a pixel is told from its colour, at every zoom.

The run is as regular as can be, so that whatever structure is seen beside that of its blocks is false.
Colours are read back by the definition of sRGB, and shares of time are counted from the tasks; neither
knows of the page's painter.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from viewing import screen, shares, spent_until, state

pytestmark = pytest.mark.browser

WINDOW = 30
"""Pixels of the device."""


@pytest.fixture(scope="module")
def regular() -> Timeline:
    """1F1B of 64 stages and 512 micro-batches, a backward twice as long as a forward."""
    costs = Costs(
        forward_ns=1_000_000,
        backward_input_ns=1_000_000,
        backward_weight_ns=1_000_000,
        backward_ns=2_000_000,
    )
    tasks = simulate(generate("1f1b", 64, 512), costs).tasks
    return Timeline(tasks, pl.DataFrame({"rank": range(64), "host": ["one"] * 64}))


@pytest.mark.parametrize("ratio", [1, 1.5, 2])
def test_forwards_share_is_told_from_the_pixels_of_every_window(opened, regular, ratio):
    page = opened(regular, 1280, 720, device_scale_factor=ratio)
    page.evaluate(
        "window.bubblescope.app.change({ causes: false, phases: false }), "
        "window.bubblescope.app.arranging.arrange("
        "{ extras: new Set(), grouping: 'none', size: 'medium' })"
    )
    places = state(page, "places")
    order = [rank["rank"] for rank in page.evaluate("window.bubblescope.app.head.ranks")]
    random = np.random.default_rng(round(10 * ratio))
    whole, origin = regular.duration_ns, regular.start_ns
    seen_in_all, windows = set(), 0
    for length in whole * 2.0 ** -np.concatenate([[0.05], random.uniform(0.2, 7, 7)]):
        begin = random.uniform(0.001 * whole, whole - length)
        page.evaluate(f"window.bubblescope.show({begin}, {begin + length})")
        image, view = screen(page), state(page, "view()")
        left = round(state(page, "gutter") * ratio)
        columns = image.shape[1] - left
        per_pixel = (view["end"] - view["start"]) / columns
        # The page's pixels are counted from time 0.
        first = round(view["start"] / per_pixel)
        count = columns // WINDOW
        edges = origin + (first + WINDOW * np.arange(count + 1)) * per_pixel
        shown = [p for p in places if (p["top"] + p["height"]) * ratio < image.shape[0]]
        assert len(shown) >= 10
        for place in shown:
            row = image[round((place["top"] + 2) * ratio), left:, :3]  # labels stand below it
            pixels = shares(row[: count * WINDOW]).reshape(count, WINDOW, 3).mean(1)
            own = regular.tasks.filter(pl.col("rank") == order[place["row"]["rank"]])
            for at, kind in enumerate(("forward", "backward")):
                spent = np.diff(spent_until(own.filter(pl.col("kind") == kind), edges))
                true = spent / (WINDOW * per_pixel)
                assert np.abs(pixels[:, at] - true).max() < 0.01, (kind, length / whole, place)
            seen_in_all.update(np.round(pixels[:, 0], 1).tolist())
            windows += count
    assert windows > 2000
    assert {0.0, 0.3, 1.0} <= seen_in_all


def test_a_panned_picture_is_the_picture(opened, regular):
    """Moved a few pixels at a time, it is to the last bit what another page paints at once."""
    page = opened(regular, 1000, 600)
    begin, length = 0.3 * regular.duration_ns, 0.04 * regular.duration_ns
    page.evaluate(f"window.bubblescope.show({begin}, {begin + length})")
    for step in (7, -3, 40, 113, -60):
        page.evaluate(f"window.bubblescope.app.view.pan({step}), window.bubblescope.app.draw()")
    page.evaluate("window.bubblescope.app.draw(Infinity)")
    moved = screen(page).copy()
    page.evaluate(
        "document.querySelector('canvas.lanes').width = 10, "  # it has to be painted anew
        "window.bubblescope.app.change({ phases: false }), window.bubblescope.app.draw(Infinity), "
        "window.bubblescope.app.change({ phases: true }), window.bubblescope.app.draw(Infinity)"
    )
    assert np.array_equal(moved, screen(page))
