"""The page's own pictures, saved from a real browser: what their colours mean stands in them."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bubblescope.analysis.idle.causes import Cause
from bubblescope.schedules import generate
from injected import Fault, Job
from viewing import app, channels

pytestmark = pytest.mark.browser

LEGEND = 40
"""Pixels from the bottom, at most, in which a legend of one or two lines begins."""


@pytest.fixture(scope="module")
def run():
    fault = Fault(Cause.SLOW_RANK, slow={(0, 2): 1.5})
    return Job(generate("zb-h1", 4, 8), replicas=1, steps=3, jitter=0.05).play(fault)


def saved(page, form: str) -> bytes:
    with page.expect_download() as caught:
        page.evaluate(f"void window.bubblescope.app.pictures.picture('{form}', 'save')")
    return Path(caught.value.path()).read_bytes()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ratio", [1, 2])
def test_the_png_has_the_colours_of_kinds_and_causes_below_the_lanes(opened, run, theme, ratio):
    page = opened(run, 1280, 800, as_it_opens=True, color_scheme=theme, device_scale_factor=ratio)
    page.wait_for_timeout(300)
    pixels = np.asarray(Image.open(io.BytesIO(saved(page, "png"))).convert("RGB"))
    lanes = page.evaluate(
        "[document.querySelector('canvas.lanes').height, "
        "document.querySelector('canvas.ruler').height]"
    )
    below = pixels[sum(lanes) :]
    assert 0 < len(below) <= LEGEND * ratio
    told = {tuple(colour) for colour in below.reshape(-1, 3).tolist()}
    legend = app(page, "scheme.legend.map(([fill]) => fill)")
    shade = "dark" if theme == "dark" else "fill"
    causes = app(
        page,
        f"head.causes.filter(({{ name }}) => name === 'stage imbalance').map((one) => one.{shade})",
    )
    assert len(legend) >= 3
    for fill in [*legend, *causes]:
        assert tuple(channels(fill)) in told, fill


def test_the_svg_says_the_same_in_words_and_patterns(opened, run):
    page = opened(run, 1280, 800, as_it_opens=True)
    text = saved(page, "svg").decode()
    for word in ("Forward", "Backward weight", "Stage imbalance", "Warm-up", "step 1", "stage 3"):
        assert f">{word}<" in text
    used = set(re.findall(r'fill="url\(#([^)]+)\)"', text))
    assert used
    assert used <= set(re.findall(r'<pattern id="([^"]+)"', text))
