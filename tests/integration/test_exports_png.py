"""The PNG is the SVG, pixel for pixel, and its colours are true shares of the time."""

from __future__ import annotations

import io
import struct
import sys
import zlib

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from PIL import Image

from bubblescope.analysis.picture_data import pictured
from bubblescope.cli import cli
from bubblescope.facade import write
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.kinds import Kind
from bubblescope.render.palette import BUBBLE, COLOURS
from bubblescope.render.picture import png, svg
from synthetic import one_f_one_b

Pixels = NDArray[np.uint8]


def chunks(data: bytes) -> dict[bytes, bytes]:
    """Return the chunks of a PNG file by type, those of the same type joined."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    found: dict[bytes, bytes] = {}
    at = 8
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        [sum_] = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        assert sum_ == zlib.crc32(kind + body)
        found[kind] = found.get(kind, b"") + body
        at += 12 + length
    return found


def decoded(data: bytes) -> Pixels:
    """Return height x width x 3 of a PNG file."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))


def is_colour(pixels: Pixels, colour: str) -> NDArray[np.bool_]:
    return (pixels == rgb(colour)).all(axis=-1)


def lanes(pixels: Pixels, count: int) -> list[Pixels]:
    """Return the row of pixels through the middle of each lane, without titles and rates."""
    used = (
        is_colour(pixels, BUBBLE)
        | is_colour(pixels, COLOURS[Kind.FORWARD])
        | is_colour(pixels, COLOURS[Kind.BACKWARD])
        | is_colour(pixels, COLOURS[Kind.OPTIMIZER])
    )
    full = used.sum(axis=1) > pixels.shape[1] / 2
    edges = np.flatnonzero(np.diff(full.astype(int), prepend=0, append=0))
    middles = [(top + bottom) // 2 for top, bottom in edges.reshape(-1, 2)]
    assert len(middles) == count
    columns = np.flatnonzero(used[middles].all(axis=0))
    return [pixels[y, columns[0] : columns[-1] + 1] for y in middles]


@pytest.mark.parametrize(
    ("width", "dpi"), [("page", 300), ("84mm", 400), ("1000px", 96), (777, 250), ("page", 123)]
)
def test_pixels_of_crowded_lanes_have_the_colours_of_the_time(width, dpi):
    timeline = one_f_one_b(ranks=3, microbatches=900, steps=1, comm=False)
    drawn = lanes(decoded(png.render(pictured(timeline), width=width, dpi=dpi)), 3)
    for rank, lane in enumerate(drawn):
        mine = timeline.tasks.filter(rank=rank)
        known = is_colour(lane, BUBBLE)
        for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER):
            spent = mine.filter(kind=kind.value).select(pl.col("end_ns") - pl.col("start_ns"))
            share = spent.sum().item() / timeline.duration_ns
            found = is_colour(lane, COLOURS[kind])
            known |= found
            assert found.mean() == pytest.approx(share, abs=0.02)
        assert known.all()  # samples lie on pixels, so that no two colours are mixed


@pytest.mark.parametrize("look", sorted(svg.LOOKS))
def test_pixels_of_single_blocks_have_the_colours_of_the_time(look):
    timeline = one_f_one_b(ranks=4, microbatches=4, steps=1, comm=False)
    pixels = decoded(png.render(pictured(timeline), width="page", look=look, dpi=300))
    high = pixels.shape[0]
    spent = dict(
        timeline.tasks.group_by("kind")
        .agg((pl.col("end_ns") - pl.col("start_ns")).sum())
        .with_columns(pl.col("kind").cast(pl.String))
        .iter_rows()
    )
    ratio = spent["backward"] / spent["forward"]
    found = [
        is_colour(pixels[: high * 3 // 4], COLOURS[kind]).sum()
        for kind in (Kind.BACKWARD, Kind.FORWARD)
    ]
    # Numbers and outlines take about as much of each block, so more of the smaller.
    assert found[0] / found[1] == pytest.approx(ratio, rel=0.12)


def test_it_has_as_many_pixels_as_asked_for_and_says_how_many_are_an_inch():
    for width, dpi, across in (("3.3in", 300, 990), ("84mm", 300, 992), (None, 96, 1600)):
        found = chunks(png.render(pictured(one_f_one_b()), width=width, dpi=dpi))
        assert struct.unpack(">I", found[b"IHDR"][:4]) == (across,)
        metre = round(dpi / 0.0254)
        assert struct.unpack(">IIB", found[b"pHYs"]) == (metre, metre, 1)


def test_text_is_drawn():
    pixels = decoded(png.render(pictured(one_f_one_b(steps=1)), width="page", look="paper"))
    titles = pixels[: pixels.shape[0] // 2, :150]
    dark = (titles < 100).all(axis=-1)
    assert 0.03 < dark.mean() < 0.5


@pytest.mark.parametrize("dpi", [0, -300, 5, 1e9, float("nan"), float("inf")])
def test_a_density_that_no_picture_has_is_refused(dpi):
    with pytest.raises(BubblescopeError, match="10 to 2400 dots per inch, not"):
        png.render(pictured(one_f_one_b()), dpi=dpi)


def test_a_picture_too_large_to_hold_is_refused_before_it_is_drawn():
    with pytest.raises(BubblescopeError, match=r"pixels; lower --dpi or --width, or select --ra"):
        png.render(pictured(one_f_one_b(ranks=64, microbatches=2, steps=1)), width="50in", dpi=2400)


def test_without_the_extra_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(BubblescopeError, match=r"pip install 'bubblescope\[png\]'"):
        write(one_f_one_b(), tmp_path / "x.png", to="png")
    assert not list(tmp_path.iterdir())


def test_without_a_font_it_says_so_and_draws_nothing(monkeypatch, tmp_path):
    import resvg_py

    real = resvg_py.svg_to_bytes
    monkeypatch.setattr(resvg_py, "svg_to_bytes", lambda **how: real(**how, skip_system_fonts=True))
    with pytest.raises(BubblescopeError, match="no font for the text"):
        write(one_f_one_b(), tmp_path / "x.png", to="png")
    assert not list(tmp_path.iterdir())


def test_the_command_and_the_method_write_the_same_picture(tmp_path):
    timeline = one_f_one_b(steps=1)
    timeline.save(tmp_path / "run.parquet")
    path = tmp_path / "run.png"
    done = CliRunner().invoke(
        cli,
        [
            "export",
            str(tmp_path / "run.parquet"),
            *("--to", "png", "--width", "column", "--look", "paper", "--dpi", "150"),
            *("-o", str(path)),
        ],
    )
    assert done.exit_code == 0, done.output
    other = write(timeline, tmp_path / "other.png", to="png", width="column", look="paper", dpi=150)
    assert path.read_bytes() == other.read_bytes()
