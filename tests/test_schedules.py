"""Schedules: complete, free of deadlock, and with the bubble that their papers state."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope.schedules import SCHEDULES, Operation
from bubblescope.vocabulary import Kind
from nsight_maker import Style, solve

SIZES = (st.integers(1, 8), st.integers(1, 20))
TIMES = ((3, 4, 2), (1, 1, 1))
"""How long F, B and W take: unlike each other, and alike as the papers draw them."""


def simulate(schedule: str, stages: int, microbatches: int, times=TIMES[0]) -> int:
    """Return how long each stage idles in a step."""
    f, b, w = times
    taking = {
        Kind.FORWARD: f,
        Kind.BACKWARD: b + w,
        Kind.BACKWARD_INPUT: b,
        Kind.BACKWARD_WEIGHT: w,
    }
    style = Style(schedule=schedule, stages=stages, microbatches=microbatches, times=taking)
    plan = solve(style)  # raises if it deadlocks
    makespan = max(end for tasks in plan.values() for *_, end in tasks)
    return makespan - microbatches * (f + b + w)


@given(st.sampled_from(sorted(SCHEDULES)), *SIZES)
def test_every_operation_runs_once_and_weights_follow_their_backward(
    schedule, stages, microbatches
):
    for stage in range(stages):
        order = SCHEDULES[schedule](stages, stage, microbatches)
        assert len(set(order)) == len(order)
        backward = Kind.BACKWARD_INPUT if schedule == "zb-h1" else Kind.BACKWARD
        kinds = {Kind.FORWARD, backward} | (
            {Kind.BACKWARD_WEIGHT} if schedule == "zb-h1" else set()
        )
        assert set(order) == {Operation(kind, i) for kind in kinds for i in range(microbatches)}
        for i in range(microbatches):
            assert order.index((Kind.FORWARD, i)) < order.index((backward, i))
            if schedule == "zb-h1":
                assert order.index((backward, i)) < order.index((Kind.BACKWARD_WEIGHT, i))


@given(st.sampled_from(sorted(SCHEDULES)), *SIZES)
def test_no_schedule_deadlocks_or_idles_longer_than_1f1b(schedule, stages, microbatches):
    """With fewer micro-batches than stages, too."""
    assert simulate(schedule, stages, microbatches) <= simulate("1f1b", stages, microbatches)


@given(st.sampled_from(["gpipe", "1f1b"]), *SIZES, st.sampled_from(TIMES))
def test_gpipe_and_1f1b_idle_for_p_minus_1_micro_batches(schedule, stages, microbatches, times):
    bubble = simulate(schedule, stages, microbatches, times)
    assert bubble == (stages - 1) * sum(times)
    ideal = microbatches * sum(times)
    assert Fraction(bubble, ideal) == Fraction(stages - 1, microbatches)  # arXiv 2104.04473, 2.2
    assert Fraction(bubble, bubble + ideal) == Fraction(stages - 1, microbatches + stages - 1)


@given(st.integers(1, 8), st.integers(0, 12), st.sampled_from(TIMES))
def test_zb_h1_idles_for_less_by_two_weight_gradients_a_stage(stages, more, times):
    microbatches = stages + more  # the paper's bubble is for m >= p
    f, b, w = times
    bubble = simulate("zb-h1", stages, microbatches, times)
    assert bubble == (stages - 1) * (f + b - w)  # arXiv 2401.10241, table 2


@given(st.sampled_from(["1f1b", "zb-h1"]), *SIZES)
def test_no_stage_holds_more_activations_than_1f1bs_first(schedule, stages, microbatches):
    for stage in range(stages):
        held = most = 0
        last = Kind.BACKWARD_WEIGHT if schedule == "zb-h1" else Kind.BACKWARD
        for kind, _ in SCHEDULES[schedule](stages, stage, microbatches):
            held += (kind is Kind.FORWARD) - (kind is last)
            most = max(most, held)
        assert most <= (stages if schedule == "zb-h1" else stages - stage)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
def test_one_stage_has_no_bubble(schedule):
    assert simulate(schedule, 1, 5) == 0
