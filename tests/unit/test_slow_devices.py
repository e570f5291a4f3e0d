"""Slowness of devices stays with them, that of layers moves; where nobody tells, it is a range."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.idle.ledger import ledger
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.analysis.slow_devices import Reading, depth_of, even, overlap
from bubblescope.analysis.whatif import WhatIf
from bubblescope.schedules import generate
from devices_or_layers import QUESTIONS, busiest, case, step
from injected import Fault, Job


def asked(timeline: Timeline) -> WhatIf:
    found = recognise(timeline)
    explained = ledger(timeline, found)
    assert explained is not None
    return WhatIf(found, explained)


SLOW = Fault(Cause.SLOW_RANK, slow={(0, 0): 2.35})
HEAVY = Fault(Cause.IMBALANCE, heavy={1: 1.5})
HEAVY_OF_16 = Fault(Cause.IMBALANCE, heavy=dict.fromkeys(range(4, 8), 1.5))


def test_a_device_that_replicas_tell_stays_slow_whatever_it_holds():
    said = asked(Job(generate("1f1b", 4, 8)).play(SLOW)).schedule("interleaved-zb", 4)
    truth = Job(generate("interleaved-zb", 4, 8, chunks=4)).play(SLOW)
    assert said.best_ns is None
    assert busiest(truth) * (1 - 1e-6) <= said.predicted_ns
    assert abs(said.predicted_ns / step(truth) - 1) <= said.error + 1e-6


def test_layers_that_are_heavy_in_all_replicas_move():
    said = asked(Job(generate("1f1b", 4, 8)).play(HEAVY)).schedule("interleaved-1f1b", 4)
    truth = Job(generate("interleaved-1f1b", 4, 8, chunks=4)).play(HEAVY_OF_16)
    assert said.best_ns is None
    assert said.predicted_ns == pytest.approx(step(truth), rel=1e-6)


def test_a_single_replica_gives_both_answers_and_says_why():
    slow = Fault(Cause.SLOW_RANK, slow={(0, 1): 1.5})
    plan, other = generate("1f1b", 4, 8), generate("interleaved-1f1b", 4, 8, chunks=4)
    said = asked(Job(plan, replicas=1).play(slow)).schedule("interleaved-1f1b", 4)
    ends = [step(Job(other, replicas=1).play(one)) for one in (HEAVY_OF_16, slow)]
    assert [said.best_ns, said.predicted_ns] == pytest.approx(ends, rel=1e-6)
    assert said.best_if == "slow stages have more to compute; no device is slow"
    healthy = asked(Job(plan, replicas=1).play(slow)).healthy(1)
    ends = [step(Job(plan, replicas=1).play(*faults)) for faults in ((), (slow,))]
    assert [healthy.best_ns, healthy.predicted_ns] == pytest.approx(ends, rel=1e-6)
    assert healthy.best_if == "rank 1 is a slow device"


def test_what_does_not_move_anything_is_one_number_for_a_single_replica():
    slow = Fault(Cause.SLOW_RANK, slow={(0, 1): 1.5})
    found = asked(Job(generate("1f1b", 4, 8), replicas=1).play(slow))
    truth = Job(generate("1f1b", 4, 16), replicas=1).play(slow)
    assert found.microbatches(16).best_ns is None
    assert found.microbatches(16).predicted_ns == pytest.approx(step(truth), rel=1e-6)


def test_ranks_that_wait_for_each_other_in_every_layer_do_not_tell():
    run = Job(generate("1f1b", 4, 8), replicas=2).play(HEAVY)
    tensor = run.ranks.with_columns(tp="dp", dp=pl.lit(0, pl.Int32))
    said = asked(Timeline(run.tasks, tensor, run.run)).schedule("interleaved-1f1b", 4)
    assert said.best_ns is not None
    unknown = tensor.with_columns(dp=pl.lit(None, pl.Int32))
    said = asked(Timeline(run.tasks, unknown, run.run)).schedule("interleaved-1f1b", 4)
    assert said.best_ns is not None
    assert asked(run).schedule("interleaved-1f1b", 4).best_ns is None


def test_layers_that_move_take_as_long_as_their_new_device_makes_them():
    plan = generate("1f1b", 4, 8)
    slow = Fault(Cause.SLOW_RANK, slow={(1, 0): 2.0})
    moved = Fault(Cause.IMBALANCE, heavy={0: 0.75, 3: 1.25})
    said = asked(Job(plan).play(slow)).moved(2, 0, 3, [8, 8, 8, 8])
    assert said.predicted_ns == pytest.approx(step(Job(plan).play(slow, moved)), rel=1e-6)
    back = Fault(Cause.IMBALANCE, heavy={0: 1.25, 3: 0.75})
    said = asked(Job(plan).play(slow)).moved(2, 3, 0, [8, 8, 8, 8])
    assert said.predicted_ns == pytest.approx(step(Job(plan).play(slow, back)), rel=1e-6)


def test_changes_at_once_take_what_they_take_together():
    plan = generate("1f1b", 4, 8)
    slow = {(0, 1): 2.0, (1, 2): 1.3}
    layers, still = [8, 8, 8, 8], Fault(Cause.SLOW_RANK, slow={(1, 2): 1.3})
    moved = Fault(Cause.IMBALANCE, heavy={0: 1.125, 1: 0.75, 3: 1.125})
    found = asked(Job(plan).play(Fault(Cause.SLOW_RANK, slow=slow)))
    moves = (("moved", 1, 1, 0, layers), ("moved", 1, 1, 3, layers))
    for name, count in (("1f1b", 8), ("1f1b", 24), ("gpipe", 16)):
        changes = [*moves, ("healthy", 1)]
        changes += [("microbatches", count)] * (count != 8) + [("schedule", name)] * (
            name != "1f1b"
        )
        truth = Job(generate(name, 4, count)).play(still, moved)
        assert found.together(*changes).predicted_ns == pytest.approx(step(truth), rel=1e-6)
    once = found.together(("partitioned", (9, 6, 8, 9), layers), ("healthy", 1))
    assert once.predicted_ns == found.together(*moves, ("healthy", 1)).predicted_ns
    faster = found.together(("healthy", 1), ("scaled", "rank", 6, 1 / 1.3))
    assert faster.predicted_ns == pytest.approx(step(Job(plan).play()), rel=1e-6)
    chunked = found.together(("schedule", "interleaved-1f1b", 4), ("healthy", 1), ("healthy", 6))
    truth = Job(generate("interleaved-1f1b", 4, 8, chunks=4)).play()
    assert chunked.predicted_ns == pytest.approx(step(truth), rel=1e-6)
    alone = found.together(("without", "slow rank"), ("without", "exposed transfer"))
    assert alone.predicted_ns == pytest.approx(step(Job(plan).play()), rel=1e-6)


def test_a_head_may_be_no_layer():
    plan, other = generate("1f1b", 4, 8), generate("interleaved-1f1b", 4, 8)
    said = asked(Job(plan).play(Fault(Cause.IMBALANCE, heavy={3: 1.5})))
    said = said.schedule("interleaved-1f1b", 2)
    spread, apart = ({6: 1.5, 7: 1.5}, {7: 2.0})
    ends = [step(Job(other).play(Fault(Cause.IMBALANCE, heavy=one))) for one in (spread, apart)]
    assert [said.best_ns, said.predicted_ns] == pytest.approx(ends, rel=1e-6)
    assert "the layers of the first and last stage take longer" in said.best_if


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_is_said_covers_what_then_happens(question):
    missed = []
    for seed in range(9000, 9012):
        made = case(seed, question)
        said = made.ask(asked(made.run))
        best = said.predicted_ns if said.best_ns is None else said.best_ns
        # Durations are cut to whole nanoseconds when a run is made.
        off = said.error + 1e-6
        if not best * (1 - off) <= made.step_ns <= said.predicted_ns * (1 + off):
            missed.append(made.what)
        # What the slowest device really had to do is no longer than what was said.
        assert said.predicted_ns * (1 + off) >= made.busiest_ns, made.what
    assert len(missed) <= 1, missed


def test_no_schedule_is_over_before_its_slowest_device():
    for seed in range(9100, 9106):
        random = np.random.default_rng(seed)
        p = int(random.integers(2, 5))
        slow = {(int(random.integers(2)), int(random.integers(p))): random.uniform(1.1, 3)}
        fault = Fault(Cause.SLOW_RANK, slow=slow)
        found = asked(Job(generate("1f1b", p, 4 * p), steps=2).play(fault))
        for name, chunks in (("zb-v", None), ("interleaved-zb", 4), ("gpipe", None), ("hanayo", 2)):
            said = found.schedule(name, chunks)
            truth = Job(generate(name, p, 4 * p, chunks=chunks), steps=2).play(fault)
            assert said.predicted_ns >= busiest(truth) * (1 - 1e-6)


def test_depth_is_cut_where_layers_are():
    assert depth_of([2, 1, 1]).tolist() == [0, 0.5, 0.75, 1]
    assert overlap(even(2), even(4)).tolist() == [[0.5, 0], [0.5, 0], [0, 0.5], [0, 0.5]]
    assert overlap(depth_of([0, 4]), even(2)).tolist() == [[1, 0.5], [0, 0.5]]
    assert overlap(depth_of([4, 0]), even(2)).tolist() == [[0.5, 0], [0.5, 1]]
    head = Reading(np.ones(2), np.array([0, 0.5]))
    assert head.moved(even(2), even(4)).tolist() == [[0.5, 0], [0.5, 0], [0, 0.25], [0, 0.75]]


def test_advice_tries_the_slowest_ranks_and_not_those_of_the_lowest_numbers():
    slow = {(0, device): 1.05 for device in range(6)} | {(1, device): 1.05 for device in range(5)}
    run = Job(generate("1f1b", 6, 12), replicas=5).play(
        Fault(Cause.SLOW_RANK, slow={**slow, (1, 5): 1.4})
    )
    assert "rank 11 healthy" in [one.change for one in asked(run).advice()]
