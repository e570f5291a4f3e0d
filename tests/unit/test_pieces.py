"""A run in parts: what is told of it is what is told of the whole, to the nanosecond."""

from __future__ import annotations

import io
import pickle
import re
from functools import partial

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from bubblescope import Timeline
from bubblescope.analysis.device_budget import budget
from bubblescope.analysis.idle.causes import ADDED, Cause
from bubblescope.analysis.idle.evidence import Evidence
from bubblescope.analysis.idle.longest_gaps import MOST, longest
from bubblescope.analysis.idle.shares import shares
from bubblescope.analysis.losses import losses
from bubblescope.analysis.pieces.run_in_pieces import Split
from bubblescope.analysis.pieces.stragglers_of_pieces import stragglers_of
from bubblescope.analysis.pieces.study_of_pieces import study_of
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.analysis.study import study
from bubblescope.analysis.wall_clock import wall_clock
from bubblescope.engine.remote_results import Held
from bubblescope.model.errors import TimelineError
from bubblescope.model.provenance import Run
from bubblescope.render.text.report import Report
from bubblescope.render.text.stragglers import Stragglers
from bubblescope.render.text.why import Explanation
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from dealt_runs import disturbed, in_rounds, spent, split
from injected import Fault, Job
from random_runs import made
from unsynchronised import Pipeline

MS = 1_000_000


def elsewhere(work, jobs):
    """Do jobs last first, as other processes would: what they are given and return is sent."""
    for index in reversed(range(len(jobs))):
        yield index, pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(jobs[index])))))


def unsynchronised():
    """Ranks begin a step while others are in the one before, and did so before the first one."""
    return Pipeline("1f1b", (1.0, 1.4, 1.0, 0.9)).play(skip=1)


def seldom():
    """A step has none of the forwards of a stage; there is enough of it to be held against a plan."""
    made = simulate(generate("1f1b", 12, 3), Costs(10 * MS, 11 * MS, 9 * MS, comm_ns=MS), steps=4)
    gone = (pl.col("rank") == 11) & (pl.col("kind") == "forward") & (pl.col("step") == 2)
    return Timeline(made.tasks.filter(~gone), made.ranks, made.run)


def paired():
    """Forwards and backwards overlap in pairs, in two opposite pipelines."""
    return simulate(generate("dualpipe", 4, 8), Costs(10 * MS, 11 * MS, 9 * MS), steps=3)


def behind():
    """A rank is in the step before whenever a result comes: that says nothing of the way."""
    return Pipeline("zb-h1", (0.5, 3.0), microbatches=1, rest=0).play(skip=1, receives=False)


def begun():
    """Ranks begin a step while others are in the one before, and what their devices did is known."""
    made = Pipeline("zb-h2", (1.0, 1.4, 1.0, 0.9)).play()
    budget = spent(made.tasks, np.random.default_rng(1))
    return Timeline(made.tasks, made.ranks, made.run, budget=budget)


OTHERS = (unsynchronised, seldom, paired, behind, begun)


def same(one, other, by):
    columns = sorted(one.columns)
    assert one.select(columns).sort(by).equals(other.select(columns).sort(by), null_equal=True), (
        one.select(columns).sort(by),
        other.select(columns).sort(by),
    )


def run(seed):
    timeline = made(seed).timeline
    return disturbed(timeline, seed) if seed % 3 else timeline


@pytest.mark.parametrize("seed", range(8))
def test_what_is_printed_is_the_same(seed):
    """Also the JSON, but for what a run in parts does not keep: all gaps."""
    timeline = run(seed)
    found = study_of(split(timeline, seed))
    report = Report.of(timeline)
    assert str(Report.of_pieces(found)) == str(report)
    assert Report.of_pieces(found).to_dict() == report.to_dict()
    try:
        explained = Explanation.of(timeline)
    except TimelineError as error:
        with pytest.raises(TimelineError, match=re.escape(str(error))):
            Explanation.of_pieces(found)
        return
    parts = Explanation.of_pieces(found)
    assert str(parts) == str(explained)
    whole = printed(parts, everything=True)
    if found.gap_count <= MOST:
        assert whole == printed(explained, everything=True)
    else:  # it says how many are left out
        assert f"and {found.gap_count - MOST:,} more" in whole
    assert Explanation.of_pieces(found).to_dict() == explained.to_dict()
    assert repr(Explanation.of_pieces(found, "zh")) == repr(Explanation.of(timeline, language="zh"))


def printed(answer, *, everything):
    out = io.StringIO()
    Console(file=out, width=160).print(answer.shown(everything=everything))
    return out.getvalue()


def test_who_asks_holds_the_same_of_many_steps_as_of_few(tmp_path):
    """What is a row for each rank and step stays in files of those who look; names of it travel."""
    most = []
    for steps in (4, 32):
        job = Job(generate("1f1b", 4, 4), 2, steps, jitter=0.2, seed=1)
        pieces = split(job.play(Fault(Cause.SLOW_RANK, slow={(1, 0): 1.3})), None)
        pieces = Split(pieces.timeline, np.arange(steps).reshape(4, -1).tolist(), [[*range(8)]])
        travelled = []
        for ask, then in ((study_of, _idle), (stragglers_of, _slowdown)):
            held = Held.of(pieces, tmp_path)
            assert ask(held, partial(weighed, travelled), folder=tmp_path, then=then) > 0
        most.append(max(travelled))
    assert most[1] < most[0] + 8 * 32  # but for the numbers of the steps
    assert most[1] < 3_000


def weighed(travelled, work, jobs):
    for index, job in enumerate(jobs):
        made = pickle.dumps(work(pickle.loads(pickle.dumps(job))))
        travelled += [len(pickle.dumps(job)), len(made)]
        yield index, pickle.loads(made)


def _idle(found):
    return found.study.bubbles.overall.idle_ns


def _slowdown(found):
    return len(Stragglers.of_pieces(found).to_dict())


@pytest.mark.parametrize("seed", range(24))
def test_parts_tell_what_the_whole_tells(seed):
    check(run(seed), seed)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("made", OTHERS)
def test_so_they_do_of_other_runs(made, seed):
    """Also if each step, and each rank, is a part."""
    check(made(), seed)


def test_what_steps_are_chosen_to_tell_the_plan_by_does_not_hang_on_parts(monkeypatch):
    """Nor those that are replayed with all sets of causes."""
    monkeypatch.setattr("bubblescope.analysis.schedule.recognise._TELLING", 200)
    monkeypatch.setattr("bubblescope.analysis.idle.shares._MOST", 4_000)
    timeline = made(24).timeline
    assert recognise(timeline).chosen_on < len(timeline.steps)
    check(timeline, 1)
    check(unsynchronised(), 1)


@pytest.mark.parametrize("seed", range(12))
def test_stragglers_of_parts_are_those_of_the_whole(seed):
    """Of jobs whose steps are alike; of others, a run is not looked at in parts."""
    random = np.random.default_rng(seed)
    rounds = seed % 4 == 3
    job = Job(generate("1f1b", 3, 8), 1 + seed % 3, 6, jitter=0.3, seed=seed)
    slow = Fault(Cause.SLOW_RANK, slow={(1, 0): 1.3})
    timeline = job.play(slow) if seed % 2 else job.play()
    if rounds:
        tasks, per = in_rounds(timeline.tasks)
        timeline = Timeline(tasks, timeline.ranks, Run(microbatches=per, common_clock=True))
    seen = stragglers_of(split(timeline, seed), elsewhere)
    assert seen is not None
    found, known = Stragglers.of_pieces(seen), Stragglers.of(timeline)
    assert found.to_dict() == known.to_dict()
    assert printed(found, everything=True) == printed(known, everything=True)
    assert found.alike.said == known.alike.said
    assert found.alike.ranks.equals(known.alike.ranks)
    gone = int(random.integers(len(timeline)))
    cut = Timeline(
        timeline.tasks.with_row_index("row").filter(pl.col("row") != gone).drop("row"),
        timeline.ranks,
        timeline.run,
    )
    assert stragglers_of(split(cut, seed), elsewhere) is None


def check(timeline, seed):
    """Hold a run in parts against the whole."""
    found = study_of(split(timeline, seed), elsewhere)
    known = study(timeline)
    report = Report.of(timeline)
    same(found.kinds, report.kinds, "kind")
    assert found.study.bubbles.overall == known.bubbles.overall
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
    assert found.gaps.equals(longest(ledger.gaps_by_part(), timeline))
    wall = wall_clock(timeline, ledger)
    assert (wall is None) == (found.wall is None)
    if wall is not None:
        assert found.wall.to_dict() == wall.to_dict()
    lost = losses(timeline, ledger if known.pipelined else None)
    assert (lost is None) == (found.losses is None)
    if lost is not None:
        same(found.losses.table, lost.table, ["place", "use", "cause"])
        assert found.losses.devices == lost.devices
        spending = budget(timeline)
        assert found.budget.to_dict() == spending.to_dict()


def test_of_a_very_large_run_some_steps_are_replayed_and_all_are_measured():
    """What replays tell is what they tell of these steps alone; it is said which they are."""
    job = Job(generate("1f1b", 4, 4), 2, 20, jitter=0.2, seed=3)
    timeline = job.play(Fault(Cause.SLOW_RANK, slow={(1, 0): 1.3}))
    parts = [[2 * at, 2 * at + 1] for at in range(10)]
    pieces = Split(timeline, parts, [[*range(4)], [*range(4, 8)]])
    found = study_of(pieces, elsewhere, explained=False, replayed=len(timeline) // 4)
    few = [2, 3, 10, 11, 16, 17]
    bubbles, whole = found.study.bubbles, study(timeline).bubbles
    assert bubbles.replayed == (*few,)
    some = study(timeline.slice(steps=few), explained=False)
    same(found.study.ledger.table, some.ledger.table, ["step", "rank", "cause"])
    assert found.study.ledger.replay_error == some.ledger.replay_error
    assert (bubbles.overall.no_wait, bubbles.overall.excess) == (
        some.bubbles.overall.no_wait,
        some.bubbles.overall.excess,
    )
    measured = ("span", "makespan", "longest_span", "over_ideal", "busy_ns", "idle_ns")
    for one, other in zip(bubbles.per_rank_step(), whole.per_rank_step(), strict=True):
        assert [getattr(one, name) for name in measured] == [
            getattr(other, name) for name in measured
        ]
    for step, rates in bubbles.per_step.items():
        replayed = step in few
        assert (rates.no_wait == whole.per_step[step].no_wait) is replayed
        assert ("no_wait" in rates.unknown) is not replayed
    report = Report.of_pieces(found)
    assert "from 6 of 20 steps (steps 2, 3, 10, 11, 16, 17," in " ".join(str(report).split())
    assert "idle time in 6 of 20 steps" in str(report)
    assert report.to_dict()["bubble"]["replayed_steps"] == (*few,)
    assert found.wall.to_dict() == wall_clock(timeline, study(timeline).ledger).to_dict()
    every = study_of(pieces, elsewhere, explained=False, replayed=len(timeline) // 2)
    assert every.study.bubbles.replayed is None
