"""A page speaks English, and the language of the command that writes it."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest

from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.view import View
from bubblescope.model import language
from bubblescope.render.html import page as html
from bubblescope.render.html.data import PageData
from injected import fault, job

CHINESE = re.compile("[\u4e00-\u9fff]")


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(4)
    made = job(random)
    return PageData.of(View.of(made.play(fault(Cause.IMBALANCE, random, made))))


def written(data, spoken):
    """Return the tag of a page's language, its head, and what its sentences are in Chinese."""
    language.use(spoken)
    text = html.page(*html._packed(data))

    def element(name):
        found = re.search(rf'<script[^>]*id="{name}"[^>]*>(.*?)</script>', text, re.DOTALL)
        return msgspec.json.decode(found[1])

    return re.search('<html lang="([^"]*)"', text)[1], element("head"), element("chinese")


def test_in_english_it_says_nothing_in_chinese(data):
    tag, head, chinese = written(data, "en")
    assert (tag, chinese) == ("en", {})
    assert not CHINESE.search(msgspec.json.encode(head).decode())


def test_in_chinese_it_has_its_sentences_in_both_languages_and_its_names_in_neither(data):
    _, english, _ = written(data, "en")
    tag, head, chinese = written(data, "zh")
    assert (tag, head) == ("zh-CN", english)
    for one in head["verdict"]["remedies"]:
        for name in ("headline", "evidence", "advice"):
            assert CHINESE.search(chinese[one[name]])
    assert CHINESE.search(chinese[head["verdict"]["said"]])
    assert not chinese.keys() & {one["name"] for one in (*head["kinds"], *head["causes"])}
    assert not chinese.keys() & set(head["names"])
