"""What the page calls things in Chinese: every name that a run can have, no text that nobody says."""

from __future__ import annotations

import re

import pytest

from bubblescope.analysis.idle.causes import Cause
from bubblescope.model.budget import BUSY, IDLE
from bubblescope.model.kinds import Kind, Lane
from bubblescope.render.html.schema import Rates
from places import ROOT

SOURCES = ROOT / "viewer" / "src"
ENTRY = re.compile(r'^  (?:"((?:[^"\\]|\\.)*)"|(\w+)):\s+"((?:[^"\\]|\\.)*)"', re.MULTILINE)
TEXTS, NAMES = (
    {quoted or bare: said for quoted, bare, said in ENTRY.findall(part)}
    for part in (SOURCES / "chinese.ts").read_text("utf-8").split("export const NAMES")
)
GLOSSARY = (ROOT / "docs" / "zh" / "glossary.md").read_text("utf-8")


@pytest.mark.parametrize(
    "names", [Kind, Cause, Lane, (*BUSY, *IDLE)], ids=lambda one: str(one)[:20]
)
def test_every_name_that_a_run_can_have_has_one_in_chinese(names):
    assert not {one.value for one in names} - set(NAMES)


def test_every_rate_has_a_name_in_chinese():
    assert not set(Rates.__struct_fields__) - set(NAMES)


def test_the_page_uses_the_words_of_the_glossary():
    rows = (row.split("|")[1:3] for row in GLOSSARY.splitlines() if row.startswith("| "))
    words = {english.strip(" `"): chinese.strip() for english, chinese in rows}
    both = words.keys() & NAMES.keys()
    assert len(both) > 35
    assert {name: NAMES[name] for name in both} == {name: words[name] for name in both}


def test_every_text_is_said_somewhere():
    said = "".join(
        path.read_text("utf-8") for path in SOURCES.glob("*.ts") if path.name != "chinese.ts"
    )
    assert len(TEXTS) > 400
    assert [text for text in TEXTS if f'"{text}"' not in said] == []
