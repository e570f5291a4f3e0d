"""A run in parts: what is told of it is what is told of the whole, to the nanosecond."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.analysis.idle import ledger as ledger_module
from bubblescope.analysis.idle.causes import ADDED
from bubblescope.analysis.idle.gaps import longest
from bubblescope.analysis.idle.shares import shares
from bubblescope.analysis.losses import losses
from bubblescope.analysis.pieces.given import Split
from bubblescope.analysis.pieces.study import study_of
from bubblescope.analysis.report import Report
from bubblescope.analysis.study import study
from bubblescope.analysis.wall_clock import wall_clock
from bubblescope.analysis.why.evidence import Evidence
from random_runs import made


def split(timeline, seed):
    """Deal the steps and the ranks of a run out at random."""
    random = np.random.default_rng(seed)
    ranks = timeline.ranks["rank"].to_list()
    return Split(
        timeline,
        dealt(random, timeline.tasks["step"].drop_nulls().unique().to_list()),
        dealt(random, ranks),
    )


def dealt(random, numbers):
    if not numbers:
        return [[]]
    count = int(random.integers(1, len(numbers) + 1))
    into = random.integers(0, count, len(numbers))
    parts = [
        [one for one, part in zip(numbers, into, strict=True) if part == at] for at in range(count)
    ]
    return [part for part in parts if part]


def backwards(work, jobs):
    """Do jobs last first."""
    for index in reversed(range(len(jobs))):
        yield index, work(jobs[index])


def same(one, other, by):
    columns = sorted(one.columns)
    assert one.select(columns).sort(by).equals(other.select(columns).sort(by), null_equal=True), (
        one.select(columns).sort(by),
        other.select(columns).sort(by),
    )


@pytest.mark.parametrize("seed", range(60))
def test_parts_tell_what_the_whole_tells(seed):
    what, timeline, _ = made(seed)
    found = study_of(split(timeline, seed), backwards)
    known = study(timeline)
    report = Report.of(timeline)
    same(found.kinds, report.kinds, "kind")
    assert found.study.bubbles.overall == known.bubbles.overall, what
    same(found.study.bubbles.table, known.bubbles.table, ["step", "rank"])
    assert found.study.bubbles.notices == known.bubbles.notices
    if known.recognition is None:
        assert found.study.recognition is None
    else:
        assert found.study.recognition.to_dict() == known.recognition.to_dict()
    assert (found.study.ideal is None) == (known.ideal is None)
    if known.ideal is not None:
        same(found.study.ideal.steps, known.ideal.steps, "step")
        assert found.study.ideal.imputed == known.ideal.imputed
    ledger = known.ledger
    if ledger is None:
        assert found.study.ledger is None
        return
    mine = found.study.ledger
    same(mine.table, ledger.table, ["step", "rank", "cause"])
    same(mine.outside, ledger.outside, ["step", "rank"])
    for name in ("replay_error", "worst_error", "steps", "left_out", "present", "slow_ranks"):
        assert getattr(mine, name) == getattr(ledger, name), name
    assert found.study.pipelined == known.pipelined
    assert found.shares == shares(ledger.counterfactuals)
    shown = Evidence.of_steps(timeline, ledger.counterfactuals, ADDED)
    assert found.evidence.pauses_ns == shown.pauses_ns
    assert found.evidence.recorded == shown.recorded
    for cause, rows in shown.of.items():
        same(
            found.evidence.of[cause],
            rows,
            [name for name in rows.columns if name in ("from", "to", "stage", "rank")]
            or rows.columns[0],
        )
    assert found.gaps.equals(longest(ledger.replays, timeline))
    wall = wall_clock(timeline, ledger)
    assert (wall is None) == (found.wall is None)
    if wall is not None:
        assert found.wall.to_dict() == wall.to_dict()
    assert found.losses is None
