"""What the page looks like, beside pictures that were looked at.

`BUBBLESCOPE_PICTURES=write pytest tests/test_view_pictures.py` makes them again; look at them then.
Fonts differ between machines, so text is left out of the comparison where it can be, and the rest may
differ in few pixels only.
"""

from __future__ import annotations

import io
import os

import numpy as np
import polars as pl
import pytest
from PIL import Image

from bubblescope import Timeline
from bubblescope.model.provenance import Run
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from places import PICTURES
from viewing import screen, shares, state

pytestmark = pytest.mark.browser

WIDTH, HEIGHT = 1000, 600


def made(devices: int, replicas: int, microbatches: int, steps: int) -> Timeline:
    """1F1B with noise, eight ranks a machine."""
    plan = generate("1f1b", devices, microbatches)
    noise = np.random.default_rng(5)
    shape = (plan.stages, microbatches)
    parts, base = [], 0
    for step in range(steps):
        costs = [
            Costs(
                forward_ns=noise.normal(10e6, 6e5, shape).astype(np.int64),
                backward_input_ns=10_000_000,
                backward_weight_ns=10_000_000,
                backward_ns=noise.normal(20e6, 12e5, shape).astype(np.int64),
                comm_ns=300_000,
                optimizer_ns=4_000_000,
            )
            for _ in range(replicas)
        ]
        for replica, one in enumerate(costs):
            parts.append(
                simulate(plan, one).tasks.with_columns(
                    pl.col("start_ns", "end_ns") + base,
                    rank=pl.col("rank") + replica * devices,
                    step=pl.lit(step, pl.Int32),
                )
            )
        base = max(part["end_ns"].max() for part in parts) + 3_000_000
    count = devices * replicas
    ranks = pl.DataFrame(
        {
            "rank": range(count),
            "host": [f"node{rank // 8:03}" for rank in range(count)],
            "stages": [[rank % devices] for rank in range(count)],
            "dp": [rank // devices for rank in range(count)],
        },
        schema_overrides={"dp": pl.Int32},
    )
    return Timeline(pl.concat(parts), ranks, Run())


@pytest.fixture(scope="module")
def runs() -> dict[int, Timeline]:
    return {8: made(8, 1, 12, 3), 64: made(32, 2, 64, 2), 1024: made(64, 16, 24, 1)}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("ranks", "keys", "name"),
    [
        (8, "", "8"),
        (8, "f", "8-whole"),
        (8, "v", "8-figure"),
        (8, "e", "8-summary"),
        (64, "", "64"),
        (64, "bbb", "64-delay"),
        (1024, "", "1024"),
        (1024, "---", "1024-overview"),
    ],
)
def test_the_page_looks_as_it_did(opened, runs, ranks, keys, name, theme):
    page = opened(runs[ranks], WIDTH, HEIGHT, color_scheme=theme, as_it_opens=True)
    for key in keys:
        page.keyboard.press(key)
    compare(page, name, theme, text=keys == "e", most=0.06 if ranks == 8 else 0.02)


@pytest.mark.parametrize(
    ("width", "height"), [(2560, 1300), (1280, 720), (1024, 768), (800, 600), (390, 844)]
)
def test_pages_of_every_width_look_as_they_did(opened, runs, width, height):
    page = opened(runs[8], width, height, color_scheme="light", as_it_opens=True)
    compare(page, f"8-{width}", "light", text=False, most=0.06)


def compare(page, name: str, theme: str, *, text: bool, most: float) -> None:
    """Hold a page against its picture, or make that anew."""
    page.wait_for_timeout(300)
    shot = page.screenshot()
    target = PICTURES / f"{name}-{theme}.png"
    if os.environ.get("BUBBLESCOPE_PICTURES") == "write":
        PICTURES.mkdir(exist_ok=True)
        image = Image.open(io.BytesIO(shot)).convert("RGB").quantize(192, dither=Image.Dither.NONE)
        image.save(target, optimize=True)
        return
    reference = np.asarray(Image.open(target).convert("RGB"), np.int16)
    now = np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"), np.int16)
    assert now.shape == reference.shape
    if text:  # mostly: that it is all there is for other tests
        return
    box = page.locator("canvas.lanes").bounding_box()
    left, top = round(box["x"] + state(page, "gutter")), round(box["y"])
    part = np.s_[top : top + round(box["height"]), left:]
    different = (np.abs(now[part] - reference[part]).max(2) > 40).mean()
    assert different < most


@pytest.mark.parametrize(("ranks", "least"), [(8, 2), (64, 3), (1024, 4)])
@pytest.mark.parametrize("share", [1.0, 0.31, 0.02])
def test_colours_take_up_their_true_share_of_time(opened, runs, ranks, least, share):
    """Over all lanes in sight, to half a percentage point, from the whole run down to single tasks."""
    timeline = runs[ranks]
    page = opened(timeline, 1400, 800)
    page.evaluate(
        "window.bubblescope.app.change({ causes: false, phases: false }), "
        "window.bubblescope.app.arranging.arrange("
        "{ extras: new Set(), grouping: 'none', size: 'small' })"
    )
    begin = int(0.3 * timeline.duration_ns)
    end = begin + int(share * 0.7 * timeline.duration_ns)
    page.evaluate(f"window.bubblescope.show({begin}, {end})")
    page.wait_for_timeout(100)
    image, gutter = screen(page), state(page, "gutter")
    places = [p for p in state(page, "places") if p["top"] + p["height"] < image.shape[0]]
    shown = [p["row"]["rank"] for p in places]
    assert len(shown) >= least
    # The lowest line of a lane: labels stand above it.
    painted = shares(image[[p["top"] + p["height"] - 1 for p in places], gutter:, :3]).mean((0, 1))
    view = state(page, "view()")
    order = [rank["rank"] for rank in page.evaluate("window.bubblescope.app.head.ranks")]
    inside = timeline.tasks.filter(pl.col("rank").is_in([order[index] for index in shown]))
    origin = timeline.start_ns
    spent = (
        pl.min_horizontal(pl.col("end_ns") - origin, pl.lit(view["end"]))
        - pl.max_horizontal(pl.col("start_ns") - origin, pl.lit(view["start"]))
    ).clip(lower_bound=0)
    for at, kind in enumerate(("forward", "backward")):
        true = inside.filter(pl.col("kind") == kind).select(spent.sum()).item()
        true /= len(shown) * (view["end"] - view["start"])
        assert painted[at] == pytest.approx(true, abs=0.003), kind
