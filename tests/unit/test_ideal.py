"""The ideal of a run: the same tasks in the schedule's order, and nobody waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope import Timeline
from bubblescope.analysis.rates import UNTRACED
from bubblescope.analysis.schedule.ideal import ideal
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.analysis.study import study
from bubblescope.model.provenance import Run
from bubblescope.schedules import SCHEDULES, generate
from bubblescope.schedules.simulate import Costs, simulate
from bubblescope.schedules.zb_auto import Times

if TYPE_CHECKING:
    from bubblescope.schedules.plan import Plan

NAMES = [name for name in SCHEDULES if not SCHEDULES[name].searched]


def scattered(plan: Plan, seed: int, **more) -> Costs:
    random = np.random.default_rng(seed)
    shape = (plan.stages, plan.microbatches)
    return Costs(*(random.integers(10, 30, shape) for _ in range(3)), **more)


def silent(timeline: Timeline) -> Timeline:
    return Timeline(timeline.tasks, timeline.ranks, Run())


def stretched(timeline: Timeline, seed: int) -> Timeline:
    """Let every task of each rank come later, by more and more: waiting of unknown cause."""
    random = np.random.default_rng(seed)
    tasks = timeline.tasks.sort("start_ns")
    delay = pl.Series(random.integers(0, 9, len(tasks))).cum_sum()
    return Timeline(
        tasks.with_columns(start_ns=pl.col("start_ns") + delay, end_ns=pl.col("end_ns") + delay),
        timeline.ranks,
        timeline.run,
    )


@given(st.sampled_from(NAMES), st.integers(0, 99))
def test_a_run_without_waiting_is_its_own_ideal(name, seed):
    plan = generate(name, 4, 8)
    timeline = silent(simulate(plan, scattered(plan, seed, sync_ns=0), steps=2))
    known = study(timeline)
    assert known.bubbles.overall.excess == 0
    assert known.bubbles.overall.no_wait == known.bubbles.overall.makespan
    columns = ["rank", "step", "kind", "stage", "microbatch", "start_ns", "end_ns"]
    moved = known.ideal.timeline.tasks.select(columns)
    assert moved.sort(columns).equals(timeline.tasks.select(columns).sort(columns))


@given(st.sampled_from(NAMES), st.integers(0, 99))
def test_waiting_is_excess_and_nothing_else(name, seed):
    """Truth is the simulation: what was measured took longer by what was put in between."""
    plan = generate(name, 4, 8)
    perfect = simulate(plan, scattered(plan, seed))
    measured = silent(stretched(perfect, seed))
    found = study(measured)
    if found.recognition.schedule != name:
        return  # where two schedules are the same, their ideals are
    assert found.ideal.steps["ideal_ns"].to_list() == [perfect.duration_ns]
    expected = 1 - perfect.duration_ns / measured.duration_ns
    assert found.bubbles.overall.excess == pytest.approx(expected)
    assert found.bubbles.per_rank[2].excess == pytest.approx(expected)
    assert found.bubbles.per_step[0].excess == pytest.approx(expected)


def test_transfers_are_waiting():
    plan = generate("1f1b", 4, 8)
    measured = silent(simulate(plan, Costs(10, 10, 10, comm_ns=3)))
    perfect = simulate(plan, Costs(10, 10, 10))
    assert study(measured).ideal.steps["ideal_ns"].to_list() == [perfect.duration_ns]


def side_by_side(one: Timeline, other: Timeline) -> Timeline:
    """Return two pipelines of as many ranks as replicas of one."""
    ranks = one.ranks.height
    shift = pl.col("rank") + ranks
    return Timeline(
        pl.concat([one.tasks, other.tasks.with_columns(rank=shift)]),
        pl.concat([one.ranks.with_columns(dp=0), other.ranks.with_columns(rank=shift, dp=1)]),
    )


def test_a_rank_without_a_trace_is_imputed_from_its_replicas_and_counted():
    made = simulate(generate("1f1b", 12, 4), Costs(list(range(10, 22)), 10, 10))
    both = side_by_side(made, made)
    known = study(both.slice(ranks=[rank for rank in both.ranks["rank"] if rank != 17]))
    assert known.recognition.missing_devices == ()
    assert known.ideal.imputed == 8
    assert known.ideal.steps["ideal_ns"].to_list() == [made.duration_ns]
    assert known.bubbles.overall.excess == 0


@pytest.mark.parametrize("ranks", [[0], [0, 2, 3], [1, 2]])
def test_what_stages_without_a_trace_would_take_is_not_made_up(ranks):
    """Nothing tells what the others take, so neither how long a step takes without waiting."""
    timeline = silent(simulate(generate("1f1b", 4, 8), Costs(10, 10, 10), steps=2))
    known = study(timeline.slice(ranks=ranks))
    assert known.recognition.partial
    assert known.ideal is None
    every = [
        known.bubbles.overall,
        *known.bubbles.per_rank.values(),
        *known.bubbles.per_rank_step(),
    ]
    for rates in every:
        assert (rates.no_wait, rates.excess) == (None, None)
        assert rates.unknown["no_wait"] == rates.unknown["excess"] == UNTRACED
        assert rates.makespan is not None


def test_a_lost_task_is_as_long_as_its_like():
    plan = generate("zb-h1", 4, 8)
    timeline = silent(simulate(plan, Costs([10, 20, 30, 40], 10, 10), steps=5))
    lost = (pl.col("step") == 2) & (pl.col("stage") == 2) & (pl.col("microbatch") == 3)
    cut = Timeline(timeline.tasks.filter(~lost), timeline.ranks)
    assert study(cut).ideal.imputed == 3
    whole = study(timeline).ideal.steps
    assert study(cut).ideal.steps.equals(whole)


def test_steps_cut_short_have_no_ideal():
    plan = generate("1f1b", 4, 8)
    timeline = silent(simulate(plan, Costs(10, 10, 10), steps=3))
    length = timeline.duration_ns // 3
    cut = timeline.slice(start_ns=timeline.start_ns + length // 2)
    known = study(cut)
    assert known.ideal.steps["step"].to_list() == [1, 2]
    assert known.bubbles.per_step[0].excess is None
    assert known.bubbles.per_step[1].excess == 0
    assert known.bubbles.overall.excess == 0


def test_recomputation_goes_with_the_backward_that_follows_it():
    plan = generate("1f1b", 3, 6)
    timeline = silent(simulate(plan, Costs(10, 10, 10)))
    backward = timeline.tasks.filter(pl.col("kind") == "backward")
    split = pl.col("start_ns") + 8
    again = backward.with_columns(kind=pl.lit("recompute", backward.schema["kind"]), end_ns=split)
    later = backward.with_columns(start_ns=split)
    rest = timeline.tasks.filter(pl.col("kind") != "backward")
    cut = Timeline(
        pl.concat([rest, again, later]).with_columns(busy_ns=pl.lit(None, pl.Int64)), timeline.ranks
    )
    assert study(cut).ideal.steps["ideal_ns"].to_list() == [timeline.duration_ns]


def test_ranks_without_a_common_clock_have_an_ideal_length_but_no_excess():
    plan = generate("1f1b", 4, 8)
    made = simulate(plan, Costs(10, 10, 10))
    timeline = Timeline(made.tasks, made.ranks, Run(common_clock=False))
    found = recognise(timeline)
    best = ideal(timeline, found)
    assert best.timeline is None
    assert best.steps["ideal_ns"].to_list() == [made.duration_ns]
    rates = study(timeline).bubbles.overall
    assert rates.excess is None
    assert rates.no_wait == pytest.approx(3 / 11)


def test_the_slowest_replica_sets_the_ideal_of_a_step():
    plan = generate("1f1b", 2, 4)
    slow = simulate(plan, Costs.shared(plan, Times(20, 20, 20)))
    fast = simulate(plan, Costs.shared(plan, Times(10, 10, 10)))
    known = study(side_by_side(slow, fast))
    assert known.recognition.replicas == 2
    assert known.ideal.steps["ideal_ns"].to_list() == [slow.duration_ns]


def test_an_unknown_schedule_has_no_ideal():
    plan = generate("1f1b", 2, 4)
    timeline = silent(simulate(plan, Costs(10, 10, 10)))
    back = timeline.tasks["microbatch"].max() - pl.col("microbatch")
    turned = timeline.tasks.with_columns(
        microbatch=pl.when(pl.col("kind") == "backward").then(back).otherwise("microbatch")
    )
    known = study(Timeline(turned, timeline.ranks))
    if known.recognition.schedule is None:
        assert known.ideal is None
        assert known.bubbles.overall.no_wait is None
