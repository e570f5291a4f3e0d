"""Shares of causes that do not depend on the order in which they are looked at."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from bubblescope.analysis.idle import shares as module
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.idle.counterfactuals import Counterfactuals
from bubblescope.analysis.idle.shares import shapley, shares
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.schedules import generate
from injected import Fault, Job, fault, job

ONE, OTHER, THIRD = Cause.IMBALANCE, Cause.SLOW_RANK, Cause.TRANSFER


def test_it_is_the_mean_over_all_orders():
    random = np.random.default_rng(1)
    known = {}

    def length(some):
        return known.setdefault(some, int(random.integers(1000)))

    found, _ = shapley((ONE, OTHER, THIRD), length)
    for share in found:
        steps = []
        for order in permutations((ONE, OTHER, THIRD)):
            before = frozenset(order[: order.index(share.cause)])
            steps.append(known[before | {share.cause}] - known[before])
        assert share.cost_ns == round(np.mean(steps))


def test_causes_that_do_not_meet_cost_what_each_costs_alone():
    costs = {ONE: 5, OTHER: 11}
    found, pairs = shapley((ONE, OTHER), lambda some: sum(costs[cause] for cause in some))
    assert {share.cause: (share.cost_ns, share.alone_ns, share.last_ns) for share in found} == {
        ONE: (5, 5, 5),
        OTHER: (11, 11, 11),
    }
    assert [pair.cost_ns for pair in pairs] == [0]


def test_one_that_hides_the_other_has_a_negative_interaction():
    found, pairs = shapley((ONE, OTHER), lambda some: 10 if some else 0)
    assert [(share.cost_ns, share.alone_ns, share.last_ns) for share in found] == [(5, 10, 0)] * 2
    assert pairs[0].cost_ns == -10


@pytest.mark.parametrize("cause", [Cause.SLOW_RANK, Cause.TRANSFER, Cause.LAUNCH])
def test_a_single_cause_costs_what_the_run_without_it_saves(cause):
    random = np.random.default_rng(11)
    made = job(random)
    run, without = made.play(fault(cause, random, made)), made.play()
    found = shares(Counterfactuals.of(run, recognise(run)))
    assert [share.cause for share in found.shares] == [cause]
    assert found.step_ns == pytest.approx(mean_step(run), abs=2)
    assert found.bare_ns == pytest.approx(mean_step(without), abs=2)


def mean_step(timeline):
    lengths = [
        int(part["end_ns"].max()) - int(part["start_ns"].min())
        for part in timeline.tasks.filter(lane="compute").partition_by("step")
    ]
    return sum(lengths) / len(lengths)


def test_of_long_runs_steps_are_taken_evenly(monkeypatch):
    run = Job(generate("1f1b", 3, 6), replicas=1, steps=9).play(
        Fault(Cause.TRANSFER, link_ns={(0, 1): 5_000_000})
    )
    whole = shares(Counterfactuals.of(run, recognise(run)))
    monkeypatch.setattr(module, "_MOST", 3 * 2 * 36)
    part = shares(Counterfactuals.of(run, recognise(run)))
    assert (whole.steps, whole.of) == (9, 9)
    assert (part.steps, part.of) == (3, 9)
    assert part.shares == whole.shares


def test_what_is_saved_is_of_all_steps_and_costs_are_of_those_replayed(monkeypatch):
    """One step of nine is late: whether it is replayed with all sets of causes changes no saving."""
    run = Job(generate("1f1b", 3, 6), replicas=1, steps=9).play(
        Fault(Cause.LAUNCH, late_ns={(3, 0, 5): 90_000_000}),
        Fault(Cause.TRANSFER, link_ns={(0, 1): 5_000_000}),
    )
    whole = shares(Counterfactuals.of(run, recognise(run)))
    monkeypatch.setattr(module, "_MOST", 3 * 4 * 36)
    part = shares(Counterfactuals.of(run, recognise(run)))
    assert part.steps < part.of
    assert part.step_ns == whole.step_ns == round(mean_step(run)) > part.replayed_ns
    saved = {share.cause: share.last_ns for share in whole.shares}
    assert {share.cause: share.last_ns for share in part.shares} == saved
    assert saved[Cause.LAUNCH] > 0
    assert part.bare_ns + sum(share.cost_ns for share in part.shares) == part.replayed_ns
