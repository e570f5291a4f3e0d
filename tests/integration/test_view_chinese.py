"""The page in Chinese: whatever it says itself is said in Chinese, in every part of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from bubblescope.analysis.idle.causes import Cause
from bubblescope.model.kinds import Kind, Lane
from injected import fault, job
from viewing import WRITTEN, browser, opened, until

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["browser", "opened"]

SEEN = """() => {
    const shown = (one) => one.checkVisibility() && !one.closest("script, style, code");
    for (const one of document.querySelectorAll(".kept")) { // a text is read as a whole
        const around = one.parentElement;
        one.replaceWith(one.textContent);
        around.normalize();
    }
    const texts = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode())
        if (shown(walker.currentNode.parentElement)) texts.push(walker.currentNode.data);
    for (const one of document.querySelectorAll("body *"))
        for (const name of ["title", "aria-label", "aria-description", "aria-valuetext", "placeholder"])
            if (one.getAttribute(name) && shown(one)) texts.push(one.getAttribute(name));
    return texts;
}"""
"""What is read, or read aloud, beside the canvases."""
PLAIN = re.compile(
    r"F3  B2@stage 1 .*|`or`|(bubblescope)? (view\b|whatif .*)"
    r"|\b(rank|[nmµ]?s|bytes|[PTK]i?B|ctrl|shift|enter|esc|delete|page(up|down)|PNG|SVG|EN|English|pp|dp)\b"
    r"|\b(F|B|W|R|Opt|SF|RF|SB|RB|Coll|Data|GC|Other)[\d.]*\b",
    re.IGNORECASE,
)
"""Words of the search, commands, units, keys, letters of blocks: the same in all languages."""
NAMES = {*(one.value for names in (Kind, Cause, Lane) for one in names), "ideal", "whatif"}
KEYS = ["e", "y", "r", "ArrowRight", "?"]


def strings(data: Any) -> Iterator[str]:
    """Yield every text in what a page was given."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for one in data.values() if isinstance(data, dict) else data:
            yield from strings(one)


def english(texts: list[str], given: list[str]) -> set[str]:
    """What of some texts is in English, without what the page was given and shows as it is."""
    left = set()
    for text in texts:
        text = text.replace("\N{MINUS SIGN}", "-")  # noqa: PLW2901
        for known in given:
            text = text.replace(known.replace("\N{MINUS SIGN}", "-"), "")  # noqa: PLW2901
        left.add(PLAIN.sub("", text))
    return {text for text in left if re.search(r"[A-Za-z]{2}", text)}


@pytest.mark.parametrize("against", [False, True], ids=["one run", "two runs"])
def test_nothing_that_the_page_says_itself_is_in_english(opened, against):
    random = np.random.default_rng(3)
    made = job(random)
    timeline = made.play(fault(Cause.IMBALANCE, random, made))
    other = made.play(fault(Cause.TRANSFER, random, made)) if against else None
    page = opened(timeline, 1366, 900, address="#language=zh", against=other, as_it_opens=True)
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    head = page.evaluate("window.bubblescope.app.head")
    said = {one for one in strings(head) if len(one) > 3 and re.search("[^a-z]", one)} - NAMES
    given = sorted({*said, *head["names"], head["title"]}, key=len, reverse=True)
    texts = page.evaluate(SEEN) + page.evaluate(WRITTEN)
    for menu in page.query_selector_all("details.menu > summary"):
        menu.evaluate("(one) => (one.parentElement.open = true)")
        texts += page.evaluate(SEEN)
    for key in KEYS:
        page.keyboard.press(key)
        texts += page.evaluate(SEEN)
    assert "快捷键" in texts
    assert english(texts, given) == set()


def test_english_is_found():
    assert english(["空闲 idle, rank 3: node7", "F3 12 ms"], ["node7"]) == {"空闲 idle,  3: "}


def test_the_switch_opens_the_same_view_in_the_other_language(opened):
    page = opened(job(np.random.default_rng(3)).play(), address="#size=tiny", as_it_opens=True)
    page.click("button[lang=zh-CN]")
    until(page, "document.documentElement.lang === 'zh-CN' && !!window.bubblescope")
    assert page.get_attribute("input[type=search]", "placeholder").startswith("搜索")
    assert page.evaluate("window.bubblescope.app.state.arranged.size") == "tiny"
    page.click("button[lang=en]")
    until(page, "document.documentElement.lang === 'en' && !!window.bubblescope")
    assert page.get_attribute("input[type=search]", "placeholder") == "search (/)"
