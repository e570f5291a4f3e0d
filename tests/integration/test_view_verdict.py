"""What a newcomer asks is answered by text in sight when a page opens."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest

import bubblescope
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.study import study
from bubblescope.analysis.verdict import Verdict
from bubblescope.analysis.view import View
from bubblescope.render.html import page as html
from device_exports import kineto
from device_maker import Mode, make
from injected import fault, job
from synthetic import empty
from viewing import barriers, browser, context_of, in_sight, opened, until

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline

__all__ = ["browser", "opened"]

WHERE = {
    Cause.SLOW_RANK: r"rank \d+",
    Cause.IMBALANCE: r"Stage \d+",
    Cause.LAUNCH: r"rank \d+",
    Cause.TRANSFER: r"from rank \d+ to rank \d+",
}
HEADLINES = {
    Cause.SLOW_RANK: "Look at the device of rank",
    Cause.IMBALANCE: "Even out the stages.",
    Cause.LAUNCH: "Launch work earlier.",
    Cause.TRANSFER: "Shorten or hide the transfers.",
}
"""Causes that are put into runs, how the page says where, and what would help."""


def faulty(cause: Cause) -> Timeline:
    random = np.random.default_rng([4, list(HEADLINES).index(cause)])
    made = job(random)
    return made.play(fault(cause, random, made))


@pytest.mark.parametrize("cause", HEADLINES)
def test_five_questions_are_answered_in_sight(opened, cause):
    """How much is idle, why, which rank or stage, what would help, and how much."""
    timeline = faulty(cause)
    verdict = Verdict.of(timeline, study(timeline))
    first = verdict.remedies[0]
    assert first.cause is cause
    said = in_sight(opened(timeline, 1280, 720, as_it_opens=True))
    assert f"{100 * verdict.share:.1f} %" in said
    assert HEADLINES[cause] in said
    assert re.search(WHERE[cause], said)
    assert re.search("\N{MINUS SIGN}[\\d.]+ ([mµ]?s)", said)


@pytest.mark.parametrize("size", [(2560, 1440), (1280, 720), (1024, 768), (800, 600), (390, 844)])
def test_the_verdict_fits_pages_of_every_width(opened, size):
    page = opened(faulty(Cause.SLOW_RANK), *size, as_it_opens=True)
    assert "Look at the device of rank" in in_sight(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    lanes = page.evaluate("window.bubblescope.app.view.width")
    if size[0] <= 800:
        assert lanes >= 0.7 * size[0]


def test_a_click_on_a_sentence_shows_its_evidence(opened):
    page = opened(faulty(Cause.LAUNCH))
    page.locator(".remedy").first.click()
    until(page, "window.bubblescope.app.state.selected !== null")
    assert page.locator(".pane .body").is_visible()
    assert page.evaluate("window.bubblescope.app.state.query") == 'cause:"host launch"'
    assert page.evaluate("window.bubblescope.app.finding.what") == "gap"


def test_a_click_on_a_sentence_that_nothing_in_the_lanes_shows_opens_the_summary(opened, tmp_path):
    page = opened(bubblescope.load(kineto(make(Mode(), 3), tmp_path)).timeline)
    assert all(
        one["task"] is None and one["cause"] is None
        for one in page.evaluate("window.bubblescope.app.head.verdict.remedies")
    )
    headline = page.locator(".remedy b").first.inner_text()
    page.locator(".remedy").first.click()
    said = page.locator(".summary article").first
    assert headline in said.inner_text()
    assert said.locator("button").count() == 0  # it would lead nowhere


def test_a_page_opens_with_the_step_of_median_length(opened):
    timeline = job(np.random.default_rng(8), jitter=0.3).play()
    spans = timeline.tasks.group_by("step").agg(pl.min("start_ns"), pl.max("end_ns")).sort("step")
    lengths = (spans["end_ns"] - spans["start_ns"]).to_list()
    median = sorted(lengths)[(len(lengths) - 1) // 2]
    assert lengths.count(median) == 1
    page = opened(timeline, as_it_opens=True)
    shown = page.evaluate("Object.values(window.bubblescope.view())")
    step = page.evaluate(f"window.bubblescope.app.head.steps[{lengths.index(median)}]")
    assert shown[0] <= step["start"] < step["end"] <= shown[1]
    assert shown[1] - shown[0] < 1.2 * (step["end"] - step["start"])
    page.keyboard.press("f")
    whole = page.evaluate("window.bubblescope.view().end")
    assert whole >= page.evaluate("window.bubblescope.app.head.end")


class TestWords:
    def test_a_remedy_for_each_thing_that_makes_steps_long_most_first(self):
        timeline = faulty(Cause.SLOW_RANK)
        verdict = Verdict.of(timeline, study(timeline))
        saved = [one.saved_ns or one.spent_ns or 0 for one in verdict.remedies]
        assert saved == sorted(saved, reverse=True)
        assert all(one.headline and one.advice for one in verdict.remedies)

    def test_what_gains_nothing_by_itself_says_so(self):
        for cause in HEADLINES:
            timeline = faulty(cause)
            for one in Verdict.of(timeline, study(timeline)).remedies:
                assert (one.saved_ns == 0) == one.evidence.startswith("Alone it gains nothing")

    def test_without_a_pipeline_the_verdict_is_the_devices(self, tmp_path):
        timeline = bubblescope.load(kineto(make(Mode(), 3), tmp_path)).timeline
        verdict = Verdict.of(timeline, study(timeline))
        assert verdict.share_of == "of the devices' time is idle."
        assert verdict.remedies

    def test_where_most_is_inherent_the_schedule_that_surely_saves_most_is_named_with_what_it_needs(
        self,
    ):
        """(p - 1)(F + B) of a step is inherent to 1F1B: what is saved is a part of that."""
        stages, forward_ns = 4, 10**7
        run = bubblescope.simulate("1f1b", devices=stages, microbatches=8, forward_ns=forward_ns)
        view = View.of(run.timeline)
        [one] = view.verdict.remedies
        asked = [answer.prediction for answer in view.answers if answer.asked[0][0] == "schedule"]
        best = min(asked, key=lambda told: told.predicted_ns)
        assert one.headline == f"Change the schedule to {best.change}."
        assert best.needs in one.evidence
        assert one.saved_ns == best.step_ns - best.predicted_ns
        assert 0 < one.saved_ns <= (stages - 1) * 3 * forward_ns

    def test_the_schedule_that_ran_is_no_other(self):
        known = study(bubblescope.simulate("interleaved-1f1b", devices=4, microbatches=8).timeline)
        verdict = Verdict.of(known.ideal.timeline, known)
        view = View.of(bubblescope.simulate("1f1b", devices=4, microbatches=8).timeline)

        def key(*change):
            [answer, *_] = (one for one in view.answers if one.asked[0][0] == "schedule")
            asked = [answer._replace(asked=(("schedule", *change),))]
            return verdict.with_schedule(known.recognition, asked).remedies[0].key

        assert key("interleaved-1f1b", 2) == "inherent"
        assert key("interleaved-1f1b", 4) == key("zb-v", None) == "schedule"

    def test_a_schedule_is_no_remedy_where_most_is_not_inherent_or_none_saves(self):
        view = View.of(faulty(Cause.SLOW_RANK))
        known = study(view.timeline)
        assert "schedule" not in {one.key for one in view.verdict.remedies}
        inherent = bubblescope.simulate("1f1b", devices=4, microbatches=8).timeline
        verdict = Verdict.of(inherent, study(inherent))
        assert verdict.with_schedule(study(inherent).recognition, view.answers[:0]) is verdict
        assert [one.key for one in verdict.remedies] == ["inherent"]
        slow, asked = Verdict.of(view.timeline, known), View.of(inherent).answers
        assert slow.with_schedule(known.recognition, asked) is slow
        assert slow.inherent < 0.5 < verdict.inherent

    def test_where_nothing_can_be_told_the_reason_is(self):
        verdict = Verdict.of(empty(), study(empty()))
        assert verdict.share is None
        assert verdict.said.endswith(".")
        assert verdict.remedies == ()


def test_nothing_serious_is_found_by_axe(browser, tmp_path):
    path = html.write(View.of(faulty(Cause.SLOW_RANK)), tmp_path / "view.html")
    for scheme in ("light", "dark"):
        context = context_of(browser, bypass_csp=True, color_scheme=scheme)
        page = context.new_page()
        page.goto(path.as_uri())
        until(page, "!!window.bubblescope")
        page.locator(".remedy").first.click()  # with the pane open
        until(page, "window.bubblescope.app.pane.shown === 'details'")
        for tab in ("details", "summary", "whatif", "table"):
            page.evaluate(f"window.bubblescope.app.pane.open({json.dumps(tab)})")
            assert barriers(page) == []
        context.close()


def test_the_verdict_is_there_before_the_tables_are(browser, tmp_path):
    """It stands in the page before them, and stays if they are damaged."""
    path = html.write(View.of(faulty(Cause.SLOW_RANK)), tmp_path / "view.html")
    text = path.read_text()
    cut = text.index('<script id="tasks"')
    (tmp_path / "cut.html").write_text(text[:cut])
    context = context_of(browser)
    page = context.new_page()
    page.goto((tmp_path / "cut.html").as_uri())
    page.locator(".failed").wait_for()
    assert "Look at the device of rank" in page.locator("header").inner_text()
    assert "damaged" in page.locator(".failed").inner_text()
    context.close()
