"""The page's data has one schema: what Python writes is what the viewer's types say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from runpy import run_path

import msgspec
import pytest

import bubblescope
from bubblescope.analysis.view import View
from bubblescope.render.html import page as html
from bubblescope.render.html import schema
from bubblescope.render.html.data import PageData
from device_exports import kineto
from device_maker import Mode, make
from synthetic import empty, one_f_one_b

VIEWER = Path(__file__).parents[2] / "viewer"


def test_the_types_of_the_viewer_are_made_of_it():
    made = run_path(str(VIEWER / "schema.py"))
    assert made["TARGET"].read_text(encoding="utf-8") == made["typescript"](), (
        "viewer/src/schema.ts is behind: run python viewer/schema.py"
    )


def test_a_type_that_the_viewer_has_no_word_for_is_refused():
    typed = run_path(str(VIEWER / "schema.py"))["_type"]
    assert typed(list[int | None], {}) == "(number | null)[]"
    with pytest.raises(TypeError, match="no type for"):
        typed(bytes, {})


def test_tables_have_the_columns_of_the_schema(tmp_path):
    folder = kineto(make(Mode(ranks=2), 3), tmp_path)
    for timeline in (one_f_one_b(), empty(), bubblescope.load(folder, activities=True).timeline):
        for name, frame in PageData.of(View.of(timeline), kernels=True).tables():
            optional = schema.OPTIONAL.get(name, ())
            assert tuple(one for one in frame.columns if one not in optional) == schema.TABLES[name]


def test_what_a_page_holds_is_read_back_as_its_schema():
    page = html.render(View.of(one_f_one_b()))
    text = re.search(r'<script id="head"[^>]*>(.*?)</script>', page, re.DOTALL)[1]
    head = msgspec.json.decode(text, type=schema.Head)
    assert msgspec.to_builtins(head) == json.loads(text)
