"""The examples' pages: what a newcomer asks is answered in sight, and nobody is kept out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import bubblescope
from viewing import barriers, browser, context_of, in_sight, until

__all__ = ["browser"]

pytestmark = pytest.mark.browser

EXAMPLES = Path(__file__).parents[2] / "examples"
SAVED = "\N{MINUS SIGN}[\\d.]+ (s|ms|µs)"
ANSWERS = {
    "torch-pipelining/1F1B": ("of it on rank 2", "Keep other code off the critical path."),
    "torch-pipelining/ZBVZeroBubble": ("of it on rank 2", "Keep other code off the critical path."),
    "demo/zb-h1": ("F0 of rank 0 in step 1", "Even out the micro-batches."),
    "traces/nsight": ("Stage 3 takes", "Even out the stages."),
}
"""Of the examples that open at once: where their page says time is lost, and what would help."""


@pytest.mark.parametrize("example", ANSWERS)
def test_five_questions_are_answered_in_sight_and_axe_finds_nothing(browser, tmp_path, example):
    """How much is idle, why, which rank or stage, what would help, and how much; light and dark."""
    run = bubblescope.load(EXAMPLES / example)
    run.view(tmp_path / "view.html")
    idle = re.search(r"makespan +([\d.]+)", str(run.report())).group(1)
    where, helps = ANSWERS[example]
    for scheme in ("light", "dark"):
        context = context_of(
            browser,
            viewport={"width": 1280, "height": 720},
            color_scheme=scheme,
            bypass_csp=True,
        )
        page = context.new_page()
        page.goto((tmp_path / "view.html").as_uri())
        until(page, "!!window.bubblescope")
        said = in_sight(page)
        assert barriers(page) == []
        context.close()
    assert abs(float(said.split()[0]) - float(idle)) <= 0.05
    assert helps in said
    assert where in said
    assert re.search(SAVED, said)
