"""A page is written in the language of the command that writes it."""

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
    language.use(spoken)
    text = html.page(*html._packed(data))
    head = re.search(r'<script[^>]*id="head"[^>]*>(.*?)</script>', text, re.DOTALL)
    return re.search('<html lang="([^"]*)"', text)[1], msgspec.json.decode(head[1])


def test_its_sentences_are_translated_and_its_names_are_not(data):
    tag, english = written(data, "en")
    assert tag == "en"
    assert not CHINESE.search(msgspec.json.encode(english).decode())
    tag, head = written(data, "zh")
    assert tag == "zh-CN"
    for one, other in zip(head["verdict"]["remedies"], english["verdict"]["remedies"], strict=True):
        assert all(CHINESE.search(one[name]) for name in ("headline", "evidence", "advice"))
        assert (one["saved"], one["cause"]) == (other["saved"], other["cause"])
    assert CHINESE.search(head["verdict"]["said"])
    for names in ("kinds", "causes"):
        assert [one["name"] for one in head[names]] == [one["name"] for one in english[names]]
    assert head["names"] == english["names"]
    assert [one["rates"] for one in head["ranks"]] == [one["rates"] for one in english["ranks"]]
