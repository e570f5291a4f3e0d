"""What-if of runs whose ranks do not wait for each other between steps, beside the runs that answer."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.analysis.chained_steps import Chain
from bubblescope.analysis.idle.measured_run import measured_run
from bubblescope.analysis.prediction import EACH_ON, IN_STEP
from bubblescope.analysis.predictions import Predictions
from bubblescope.model.errors import ScheduleError
from full import examples
from unsynchronised import Pipeline

SCHEDULES = ("gpipe", "1f1b", "zb-h1", "zb-h2")
SPAN = ("start_ns", "end_ns")
EVEN = (1.0, 1.0, 1.0, 1.0)


def said(timeline, *asked):
    name, *arguments = asked
    found = Predictions.of(timeline, [lambda run: getattr(run, name)(*arguments)])
    return found.predictions[0]


def covers(one, truth):
    """Say whether a step is within what was said of it."""
    best = one.predicted_ns if one.best_ns is None else one.best_ns
    slack = 1e-6 * truth
    return best * (1 - one.error) - slack <= truth <= one.predicted_ns * (1 + one.error) + slack


def chain_of(timeline):
    run = measured_run(timeline)
    return run, Chain.of(run, timeline)


def _other(random, run):
    """Return a random question about a run, and the run that answers."""
    kind = random.choice(["schedule", "microbatches", "stage", "rank"])
    if kind == "schedule":
        name = str(random.choice([one for one in SCHEDULES if one != run.schedule]))
        return ("schedule", name), run._replace(schedule=name)
    if kind == "microbatches":
        count = int(random.choice([6, 12]))
        return ("microbatches", count), run._replace(microbatches=count)
    at, factor = int(random.integers(len(run.work))), float(random.choice([0.5, 1.5]))
    work = tuple(one * factor if place == at else one for place, one in enumerate(run.work))
    return ("scaled", str(kind), at, factor), run._replace(work=work)


@pytest.mark.parametrize("seed", range(examples(40)))
def test_what_is_said_covers_the_step_that_follows(seed):
    random = np.random.default_rng([20, seed])
    work = tuple(random.choice([0.6, 0.8, 1, 1, 1.3, 1.6], random.integers(3, 5)).tolist())
    run = Pipeline(
        str(random.choice(SCHEDULES)),
        work,
        steps=int(random.integers(3, 6)),
        rest=float(random.choice([0.0, 2.0, 20.0])),
        barrier=bool(random.integers(4) == 0),
    )
    skip = int(random.integers(2))
    asked, other = _other(random, run)
    one = said(run.play(skip=skip), *asked)
    assert one.error <= 0.1
    assert covers(one, other.step_ns(skip=skip)), (run, skip, asked)


@pytest.mark.parametrize(
    ("now", "work"),
    [("zb-h1", (1.0, 1.6, 1.0)), ("zb-h2", (0.6, 1.0, 1.3, 0.8)), ("zb-h2", (1.0, 0.6, 0.8, 1.5))],
)
def test_steps_that_overlap_are_played_one_after_the_other(now, work):
    run = Pipeline(now, work)
    alone = run._replace(steps=1).step_ns()
    assert run.step_ns(skip=1) > 1.004 * alone  # so it makes a difference
    recorded = run.play(skip=1)
    for then in SCHEDULES:
        one = said(recorded, "schedule", then)
        assert one.best_ns is None
        truth = run._replace(schedule=then).step_ns(skip=1)
        assert one.predicted_ns == pytest.approx(truth, rel=1e-6)
    heavier = run._replace(work=(*work[:1], 1.5 * work[1], *work[2:]))
    one = said(recorded, "scaled", "stage", 1, 1.5)
    assert one.predicted_ns == pytest.approx(heavier.step_ns(skip=1), rel=1e-6)


def test_a_first_step_with_nothing_before_it_is_covered():
    even, uneven = Pipeline("zb-h2", EVEN), Pipeline("1f1b", (1.0, 0.6, 0.8, 1.5))
    for run, asked, other in (
        (uneven, ("schedule", "zb-h2"), uneven._replace(schedule="zb-h2")),
        (even, ("scaled", "stage", 0, 0.5), even._replace(work=(0.5, *EVEN[1:]))),
    ):
        one = said(run.play(), *asked)
        assert one.error > 0
        assert covers(one, other.step_ns())
    # That it differs from the others is no chance.
    four = Pipeline("zb-h2", uneven.work, steps=4)
    one = said(four.play(), "schedule", "1f1b")
    assert one.best_ns is None
    assert covers(one, four._replace(schedule="1f1b").step_ns())


@pytest.mark.parametrize("ranks", [(0, 1, 2), (1, 2, 3)])
def test_nobody_says_what_a_rank_that_was_not_recorded_would_take(ranks):
    recorded = Pipeline("zb-h2", EVEN).play(skip=1).slice(ranks=ranks)
    with pytest.raises(ScheduleError, match="left no trace, so how long stages take there"):
        said(recorded, "schedule", "1f1b")


def test_unchanged_it_takes_what_was_measured():
    run, chain = chain_of(Pipeline("zb-h2", (0.6, 1.0, 1.3, 0.8)).play())
    assert chain.sure
    again = chain.replay(run, run.duration_ns)
    assert (again.start_ns == run.as_measured.start_ns).all()
    assert (again.end_ns == run.as_measured.end_ns).all()


@pytest.mark.parametrize("rest", [0.0, 2.0, 40.0])
def test_what_ranks_do_between_steps_is_told(rest):
    _, chain = chain_of(Pipeline("zb-h2", (0.6, 1.0, 1.3, 0.8), rest=rest).play())
    assert (chain.rest_ns[:, 1:] == round(rest * 1e6)).all()


def test_ranks_that_wait_for_each_other_are_told_from_those_that_do_not():
    for work in (EVEN, (1.0, 1.6, 1.0)):
        for now in ("gpipe", "1f1b", "zb-h2"):
            free = Pipeline(now, work)
            held = free._replace(barrier=True)
            assert chain_of(free.play())[1].sure
            assert chain_of(held.play())[1] is None
            one = said(held.play(), "schedule", "zb-h1")
            assert covers(one, held._replace(schedule="zb-h1").step_ns())


def test_where_nothing_tells_it_is_a_range():
    conditions = set()
    for run, receives, asked, change in (
        # Its ranks all end at the same time.
        (Pipeline("zb-h1", EVEN), True, ("scaled", "stage", 0, 0.5), {"work": (0.5, *EVEN[1:])}),
        # The last rank to end is the first to begin, and others' receives are not recorded.
        (Pipeline("1f1b", (1.0, 0.6, 0.8, 1.5)), False, ("microbatches", 12), {"microbatches": 12}),
        (
            Pipeline("1f1b", (1.0, 0.6, 0.8, 1.5)),
            False,
            ("schedule", "zb-h2"),
            {"schedule": "zb-h2"},
        ),
    ):
        for barrier in (False, True):
            made = run._replace(barrier=barrier)
            recorded = made.play(receives=receives)
            assert not chain_of(recorded)[1].sure
            one = said(recorded, *asked)
            assert covers(one, made._replace(**change).step_ns())
            conditions |= set(one.best_if.split(" and "))
    assert conditions & {EACH_ON, IN_STEP}


def test_a_measured_run_is_never_as_sure_as_a_played_one():
    played = Pipeline("1f1b", (1.0, 1.3, 1.0)).play()
    assert said(played, "microbatches", 12).error == 0
    late = (pl.col("step") == 2) & (pl.col("microbatch") == 7)  # the last, by some milliseconds
    for by, least in ((1, 0.005), (20, 0.01)):
        times = [pl.col(name) + pl.when(late).then(by * 10**6).otherwise(0) for name in SPAN]
        tasks = played.tasks.with_columns(*times)
        run = Timeline(tasks, played.ranks, played.run)
        for asked in (("microbatches", 12), ("scaled", "stage", 1, 1.5)):
            assert said(run, *asked).error >= least
