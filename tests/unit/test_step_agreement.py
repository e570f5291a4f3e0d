"""Ranks of a pipeline that number their steps each for itself."""

from __future__ import annotations

import polars as pl
import pytest

from bubblescope.model.timeline import Timeline
from bubblescope.sources.step_agreement import agreed
from synthetic import one_f_one_b

STEPS = 6


def run(hosts=1, **how):
    return one_f_one_b(ranks=3, microbatches=4, steps=STEPS, hosts=hosts, **how)


def numbered(timeline, rank, numbers):
    """Give the steps of a rank other numbers; None for a step that it did not record."""
    own = pl.col("rank") == rank
    tasks = timeline.tasks.with_columns(
        step=pl.when(own)
        .then(pl.col("step").replace_strict(range(STEPS), numbers, return_dtype=pl.Int32))
        .otherwise("step")
    ).filter(~own | pl.col("step").is_not_null())
    return Timeline(tasks, timeline.ranks, timeline.run)


@pytest.mark.parametrize("comm", [True, False])
def test_a_run_whose_ranks_agree_is_left_alone(comm):
    healthy = run(comm=comm)
    assert agreed(healthy) is healthy


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize(
    "numbers",
    [
        [0, 1, 3, 4, 5, 6],  # one step was tried twice
        [0, 1, 4, 5, 6, 7],
        [1, 2, 3, 4, 5, 6],  # it began to count a step earlier
        [100, 101, 102, 103, 104, 105],
        [5, 4, 3, 2, 1, 0],
    ],
)
def test_steps_get_the_number_that_most_ranks_have(rank, numbers):
    found = agreed(numbered(run(), rank, numbers))
    assert found.tasks.equals(run().tasks)
    [said] = [one for one in found.run.warnings if one.code == "steps-renumbered"]
    assert f"rank {rank} did not number" in said.message


def test_of_two_ranks_the_one_with_fewer_steps_is_right():
    """What failed and was counted is a step too many."""
    healthy = one_f_one_b(ranks=2, microbatches=4, steps=STEPS, hosts=1)
    off = numbered(healthy, 0, [0, 1, 3, 4, 5, 6])
    failed = healthy.tasks.filter(pl.col("rank") == 0, pl.col("step") == 1, kind="optimizer")
    late = failed["end_ns"] + 1000
    failed = failed.with_columns(
        kind=pl.lit("forward").cast(healthy.tasks["kind"].dtype),
        step=pl.lit(2, pl.Int32),
        stage=pl.lit(0, pl.Int32),
        microbatch=pl.lit(0, pl.Int32),
        start_ns=late,
        end_ns=late + 50_000,
        busy_ns=pl.lit(None, pl.Int64),
        host_start_ns=late,
        host_end_ns=late,
    )
    found = agreed(Timeline(pl.concat([off.tasks, failed]), healthy.ranks, healthy.run))
    kept = found.tasks.drop_nulls("step")
    assert kept.equals(healthy.tasks)
    assert found.tasks["step"].null_count() == 1
    assert "1 that match none are of no step" in found.run.warnings[-1].message


def test_steps_that_a_rank_missed_move_nothing():
    """Its recorder began late, or it was killed: the others' steps keep their numbers."""
    for lost in (0, 3, 5):
        numbers = [None if step == lost else step for step in range(STEPS)]
        partial = numbered(run(), 1, numbers)
        assert agreed(partial) is partial


def test_a_rank_that_missed_the_first_step_and_counts_from_there_is_put_right():
    numbers = [None, 0, 1, 2, 3, 4]
    found = agreed(numbered(run(), 1, numbers))
    assert found.tasks.equals(numbered(run(), 1, [None, 1, 2, 3, 4, 5]).tasks)


def test_ranks_whose_clocks_nothing_compares_are_left_alone():
    off = numbered(run(hosts=3), 1, [1, 2, 3, 4, 5, 6])
    assert agreed(off) is off


def test_passes_without_backwards_need_not_overlap():
    """One micro-batch through three stages: each works when the last one has."""
    tasks = one_f_one_b(ranks=3, microbatches=1, steps=STEPS, hosts=1).tasks
    forward = tasks.filter(kind="forward")
    timeline = Timeline(forward)
    assert agreed(timeline) is timeline


def test_ranks_that_ran_one_after_the_other_are_not_compared():
    """Their numbers may be right, and their clocks wrong: nobody knows."""
    healthy = run()
    later = pl.when(pl.col("rank") == 2).then(10**10).otherwise(0)
    times = ["start_ns", "end_ns", "host_start_ns"]
    tasks = healthy.tasks.with_columns(pl.col(times) + later)
    found = agreed(Timeline(tasks, healthy.ranks, healthy.run))
    assert found.tasks.equals(Timeline(tasks, healthy.ranks, healthy.run).tasks)
    assert not found.run.common_clock
    assert "rank 2 do not overlap" in found.run.warnings[-1].message


def test_evaluations_between_steps_are_left_alone():
    """Their forwards come one after the other; that a rank missed a step changes nothing of them."""
    healthy = one_f_one_b(ranks=3, microbatches=1, steps=STEPS, hosts=1)
    forwards = healthy.tasks.filter(pl.col("step") != 3, kind="forward")
    others = healthy.tasks.filter((pl.col("step") == 3) | (pl.col("kind") != "forward"))
    evaluated = healthy.tasks.filter(step=3, kind="forward")
    tasks = pl.concat([forwards, others.filter(pl.col("step") != 3), evaluated])
    tasks = tasks.filter((pl.col("rank") != 2) | (pl.col("step") != 4))
    timeline = Timeline(tasks, healthy.ranks, healthy.run)
    assert agreed(timeline) is timeline


def test_replicas_that_nothing_tells_apart_are_left_alone():
    one = run()
    other = one.tasks.with_columns(pl.col("rank") + 3, pl.col("start_ns", "end_ns") + 10**9)
    both = Timeline(pl.concat([one.tasks, other]).drop("host_start_ns", "host_end_ns"))
    assert agreed(both) is both
