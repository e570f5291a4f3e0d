"""Pictures in Chinese, and where no font has its letters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bubblescope
from bubblescope.analysis.picture_data import pictured
from bubblescope.model import language
from bubblescope.model.errors import BubblescopeError
from bubblescope.render.picture import pdf, png, svg

ENGLISH = re.compile(r"[a-z]{3,}")
NAMES = {"rank"}
"""What the glossary leaves as it is."""


@pytest.fixture(scope="module")
def run():
    return pictured(bubblescope.simulate("zb-h1", devices=3, microbatches=4).timeline)


@pytest.mark.parametrize("look", svg.LOOKS)
def test_everything_in_it_is_chinese_but_names_and_numbers(run, look):
    english = svg.render(run, look=look)
    with language.spoken("zh"):
        chinese = svg.render(run, look=look)
    said = " ".join(re.findall(r">([^<>]+)</text>", chinese))
    assert set(ENGLISH.findall(said)) - NAMES - {"zb"} == set()
    assert len(re.findall("<text", chinese)) == len(re.findall("<text", english))


def test_chinese_letters_are_as_wide_as_they_are_high():
    assert svg.SCREEN.wide("时间") == 2 * svg.SCREEN.font
    assert svg.SCREEN.wide("ab") < 1.2 * svg.SCREEN.font


class Renderer:
    """Draws what its font has, and leaves the rest out, as resvg does."""

    def __init__(self, has):
        self._has = has

    def svg_to_bytes(self, svg_string, dpi):
        return "".join(re.findall(f"[{self._has}]", re.sub("<[^>]*>", "", svg_string))).encode()


@pytest.mark.parametrize(("has", "spoken"), [("a-zA-Z", "en"), (r"a-zA-Z\u4e00-\u9fff", "zh")])
def test_a_picture_of_pixels_is_in_english_where_no_font_has_the_letters(has, spoken):
    with language.spoken("zh"):
        assert png._writable(Renderer(has)) == spoken
    assert png._writable(Renderer(has)) == "en"


@pytest.mark.parametrize(("found", "spoken"), [(None, "en"), ("some.ttf", "zh")])
def test_a_pdf_is_in_english_where_no_font_has_the_letters(found, spoken, monkeypatch):
    monkeypatch.setattr(pdf, "_best_font", lambda text: (found, len(set(text)) if found else 0))
    with language.spoken("zh"):
        assert pdf._writable() == spoken
    assert pdf._writable() == "en"


@pytest.fixture
def few_letters(monkeypatch):
    """A machine whose only font has Greek letters and no Chinese ones."""
    found = sorted(Path("/usr/share/fonts").rglob("DejaVuSans.ttf"))
    if not found:
        pytest.skip("no DejaVu Sans on this machine")
    resvg = pytest.importorskip("resvg_py")
    real, font = resvg.svg_to_bytes, {"skip_system_fonts": True, "font_files": [str(found[0])]}
    monkeypatch.setattr(resvg, "svg_to_bytes", lambda **how: real(**how, **font))
    monkeypatch.setattr(pdf, "_FONTS", (str(found[0].parent),))


@pytest.mark.parametrize("kind", [png, pdf])
def test_letters_that_no_font_has_are_refused_and_not_drawn_as_boxes(run, kind, few_letters):
    kind.render(run, title="Ω & é\u0301 \u200b\u3000→ …", width=600)
    with pytest.raises(BubblescopeError, match=r"font of this machine has 水流线, which stand in"):
        kind.render(run, title="Ω 流水线 & é", width=600)
