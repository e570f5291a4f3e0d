"""Steps that run their schedule several times, to accumulate gradients."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.analysis.study import study
from bubblescope.analysis.whatif import WhatIf
from bubblescope.model.timeline import Timeline
from bubblescope.render.text.report import Report
from bubblescope.schedules import SCHEDULES, generate
from bubblescope.schedules.plan import Operation, Plan
from bubblescope.schedules.simulate import Costs, run, simulate

MS = 1_000_000
COSTS = Costs(10 * MS, 11 * MS, 9 * MS, comm_ns=MS // 10)
FITTING = [name for name in SCHEDULES if not name.startswith(("zb-1p", "zb-2p", "zb-auto"))]


def asked(timeline):
    known = study(timeline)
    return WhatIf(known.recognition, known.ledger)


def played(plan, declared, steps=2):
    """Return a run of a plan that says that its schedule has so many micro-batches."""
    made = simulate(plan, COSTS, steps=steps)
    said = msgspec.structs.replace(made.run, microbatches=declared, schedule=None)
    return Timeline(made.tasks, made.ranks, said)


def test_each_device_runs_the_order_again_with_the_next_micro_batches():
    plan = generate("1f1b", 3, 4)
    again = plan.repeated(3)
    assert (again.rounds, again.per_round, again.microbatches) == (3, 4, 12)
    for device in range(3):
        once = plan.order(device)
        expected = [
            operation._replace(microbatch=operation.microbatch + 4 * more)
            for more in range(3)
            for operation in once
        ]
        assert again.order(device) == expected
    assert plan.repeated(1) is plan


def test_both_halves_of_a_pair_are_numbered_on():
    plan = generate("dualpipev", 2, 6)
    pairs = [one for one in plan.repeated(2).order(0) if one.pair_stage is not None]
    once = [one for one in plan.order(0) if one.pair_stage is not None]
    assert pairs[: len(once)] == once
    assert pairs[len(once) :] == [
        Operation(one.kind, one.stage, one.microbatch + 6, one.pair_stage, one.pair_microbatch + 6)
        for one in once
    ]


@pytest.mark.parametrize("name", FITTING)
def test_rounds_are_recognised(name):
    chunks = 2 if SCHEDULES[name].any_chunks else None
    plan = generate(name, 4, 8, chunks=chunks)
    found = recognise(played(plan.repeated(3), 8))
    once = recognise(played(plan, 8))
    assert (found.schedule, found.variant) == (once.schedule, once.variant)
    assert {*found.equals} <= {*once.equals}  # no search is made for rounds
    assert (found.microbatches, found.rounds, found.departures) == (8, 3, ())
    assert found.confidence > 0.9


def test_a_run_that_does_not_say_how_many_is_one_round():
    plan = generate("gpipe", 3, 4)
    assert recognise(played(plan, None)).rounds == 1
    assert recognise(played(generate("gpipe", 3, 12), 5)).rounds == 1


def test_what_is_said_to_be_in_rounds_and_is_not_is_still_recognised():
    found = recognise(played(generate("1f1b", 3, 12), 4))
    assert (found.schedule, found.microbatches, found.rounds) == ("1f1b", 12, 1)


def test_the_perfect_run_is_one_of_rounds():
    """Without transfers nothing waits but for what the schedule says."""
    plan = generate("1f1b", 4, 4).repeated(3)
    free = msgspec.structs.replace(COSTS, comm_ns=0)
    made = simulate(plan, free, steps=2)
    said = msgspec.structs.replace(made.run, microbatches=4, schedule=None)
    overall = study(Timeline(made.tasks, made.ranks, said)).bubbles.overall
    assert overall.no_wait == pytest.approx(overall.makespan, abs=1e-9)
    assert overall.excess == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("now", "then"), [("gpipe", "1f1b"), ("1f1b", "zb-h1"), ("1f1b", "gpipe")])
def test_another_schedule_is_predicted_in_rounds(now, then):
    timeline = played(generate(now, 4, 8).repeated(3), 8, steps=1)
    expected = run(generate(then, 4, 8).repeated(3), COSTS)
    length = int(expected.end_ns.max() - expected.start_ns.min())
    said = asked(timeline).schedule(then)
    longest, best = said.predicted_ns, said.best_ns or said.predicted_ns
    slack = 1 + said.error + 1e-3
    assert best / slack <= length <= longest * slack


def test_other_micro_batches_are_those_of_a_round():
    timeline = played(generate("1f1b", 4, 8).repeated(3), 8, steps=1)
    said = asked(timeline).microbatches(16)
    expected = run(generate("1f1b", 4, 16).repeated(3), COSTS)
    assert said.change == "16 micro-batches in each of 3 rounds"
    assert said.predicted_ns == pytest.approx(int(expected.end_ns.max()), rel=0.01)


def test_the_report_tells_of_rounds():
    report = Report.of(played(generate("1f1b", 3, 4).repeated(3), 4))
    assert "4 micro-batches in each of 3 rounds" in " ".join(str(report).split())
    assert json.loads(report.to_json())["schedule"]["rounds"] == 3


def test_a_plan_of_rounds_has_what_each_operation_needs_before_it():
    for name in FITTING:
        chunks = 2 if SCHEDULES[name].any_chunks else None
        plan = generate(name, 4, 8, chunks=chunks)
        once, thrice = run(plan, COSTS), run(plan.repeated(3), COSTS)
        assert isinstance(plan.repeated(3), Plan)
        assert np.max(thrice.end_ns) <= 3 * np.max(once.end_ns)
        assert np.max(thrice.end_ns) > 2 * np.max(once.end_ns)
