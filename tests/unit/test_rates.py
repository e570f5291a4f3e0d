"""Bubble rates: each definition on timelines whose answer is plain to see."""

from __future__ import annotations

from fractions import Fraction

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bubblescope import Timeline
from bubblescope.analysis.rates import bubble_rates, makespan_rates


def timeline(*rows: tuple[int, int, str, int, int]) -> Timeline:
    """Make a timeline of (rank, step, kind, start, end) rows."""
    frame = pl.DataFrame(rows, schema=["rank", "step", "kind", "start_ns", "end_ns"], orient="row")
    return Timeline(frame.with_columns(lane=pl.lit("compute"), name=pl.lit("x")))


def test_each_definition_divides_by_what_it_says():
    # rank 0: ##..##    rank 1: .####.
    rates = bubble_rates(
        timeline(
            (0, 0, "forward", 0, 2),
            (0, 0, "backward", 4, 6),
            (1, 0, "forward", 1, 3),
            (1, 0, "backward", 3, 5),
        )
    )
    assert rates.overall.makespan == pytest.approx(1 - 8 / 12)
    assert rates.overall.span == pytest.approx(1 - 8 / 10)
    assert rates.overall.over_ideal == pytest.approx(4 / 8)
    assert rates.overall.excess is None
    assert rates.per_rank[0].span == pytest.approx(2 / 6)
    assert rates.per_rank[1].span == 0
    assert rates.per_rank[1].makespan == pytest.approx(2 / 6)
    assert rates.overall.idle_ns == 4


def test_steps_are_measured_apart_and_summed():
    rates = bubble_rates(
        timeline(
            (0, 0, "forward", 0, 10),
            (0, 0, "backward", 10, 20),
            (0, 1, "forward", 100, 110),
            (0, 1, "backward", 130, 140),
        )
    )
    assert rates.per_step[0].makespan == 0
    assert rates.per_step[1].makespan == pytest.approx(0.5)
    assert rates.overall.makespan == pytest.approx(20 / 60)


def test_overlapping_tasks_count_once():
    rates = bubble_rates(
        timeline((0, 0, "forward", 0, 6), (0, 0, "backward", 2, 4), (0, 0, "backward", 8, 10))
    )
    assert rates.overall.busy_ns == 8
    assert rates.overall.span == pytest.approx(2 / 10)


def test_the_optimizer_and_communication_are_no_part_of_the_pipeline_phase():
    tasks = timeline((0, 0, "forward", 0, 4), (0, 0, "backward", 6, 8), (0, 0, "optimizer", 8, 20))
    assert bubble_rates(tasks).overall.makespan == pytest.approx(2 / 8)


def test_tasks_of_no_step_are_measured_only_if_no_task_has_one():
    mixed = timeline((0, 0, "forward", 0, 4)).tasks.vstack(
        timeline((0, 0, "forward", 100, 104)).tasks.with_columns(step=pl.lit(None, pl.Int32))
    )
    assert bubble_rates(Timeline(mixed)).overall.makespan_ns == 4
    stepless = mixed.with_columns(step=pl.lit(None, pl.Int32))
    assert bubble_rates(Timeline(stepless)).overall.makespan_ns == 104


def test_nothing_to_measure_is_unknown_not_zero():
    rates = bubble_rates(timeline((0, 0, "optimizer", 0, 4))).overall
    assert (rates.span, rates.makespan, rates.over_ideal, rates.kernel_share) == (None,) * 4


def test_kernel_share_is_of_the_tasks_that_tell():
    tasks = timeline((0, 0, "forward", 0, 10), (0, 0, "backward", 10, 30)).tasks
    known = tasks.with_columns(busy_ns=pl.Series([4, None], dtype=pl.Int64))
    assert bubble_rates(Timeline(known)).overall.kernel_share == pytest.approx(0.4)
    assert bubble_rates(Timeline(tasks)).overall.kernel_share is None


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 1),
            st.sampled_from(["forward", "backward"]),
            st.integers(0, 30),
            st.integers(0, 10),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_rates_agree_with_counting_nanoseconds_one_by_one(rows):
    tasks = [(rank, step, kind, start, start + length) for rank, step, kind, start, length in rows]
    busy = spans = makespans = shared = 0
    ranks = {row[0] for row in tasks}
    for step in {row[1] for row in tasks}:
        of_step = [row for row in tasks if row[1] == step]
        makespan = max(row[4] for row in of_step) - min(row[3] for row in of_step)
        for rank in {row[0] for row in of_step}:
            mine = [row for row in of_step if row[0] == rank]
            here = len({ns for row in mine for ns in range(row[3], row[4])})
            busy += here
            spans += max(row[4] for row in mine) - min(row[3] for row in mine)
            if {row[0] for row in of_step} == ranks:
                makespans += makespan
                shared += here
    overall = bubble_rates(timeline(*tasks)).overall
    assert (overall.busy_ns, overall.makespan_ns or 0) == (busy, makespans)
    if spans:
        assert overall.span == pytest.approx(float(1 - Fraction(busy, spans)), abs=1e-12)
    if shared:
        assert overall.over_ideal == pytest.approx((makespans - shared) / shared)


def test_what_a_slower_run_would_idle_is_of_the_same_windows_as_what_the_run_did():
    """Steps begin when they did. If all takes twice as long, they overlap, and no rate changes."""

    def replicas(times: int) -> Timeline:
        tasks = [
            (2 * replica + stage, step, kind, stage, 1000 * step + times * start, times * length)
            for step in range(4)
            for replica, length in ((0, 100), (1, 150))
            for kind, stage, start in (
                ("forward", 0, 0),
                ("forward", 1, length),
                ("backward", 1, 3 * length),
                ("backward", 0, 5 * length),
            )
        ]
        columns = ["rank", "step", "kind", "stage", "start_ns", "length"]
        frame = pl.DataFrame(tasks, columns, orient="row")
        ranks = pl.DataFrame({"rank": range(4), "host": "h", "dp": [0, 0, 1, 1]})
        frame = frame.with_columns(
            end_ns=pl.col("start_ns") + pl.col("length"),
            lane=pl.lit("compute"),
            name=pl.lit("x"),
            microbatch=0,
        )
        return Timeline(frame.drop("length"), ranks)

    run, slower = replicas(1), replicas(2)
    of_ranks = {rank: rates.makespan for rank, rates in bubble_rates(run).per_rank.items()}
    assert makespan_rates(run, run) == of_ranks
    assert makespan_rates(slower, run) == of_ranks
    assert bubble_rates(slower).per_rank[0].makespan < of_ranks[0]  # of its own replica alone


def test_what_a_run_without_a_common_clock_would_idle_is_unknown():
    run = timeline((0, 0, "forward", 0, 6), (0, 0, "backward", 8, 10))
    apart = Timeline(run.tasks, run.ranks, replace(run.run, common_clock=False))
    assert makespan_rates(apart, apart) == {0: None}
    assert makespan_rates(run, run) == {0: pytest.approx(0.2)}


def test_what_would_idle_is_of_the_steps_that_all_ranks_have():
    run = timeline(
        *((0, 0, "forward", 0, 4), (0, 0, "backward", 6, 10)),
        *((1, 0, "forward", 2, 4), (1, 0, "backward", 4, 6)),
        *((0, 1, "forward", 100, 104), (0, 1, "backward", 110, 114)),
    )
    of_ranks = {rank: rates.makespan for rank, rates in bubble_rates(run).per_rank.items()}
    assert makespan_rates(run, run) == of_ranks == {0: pytest.approx(0.2), 1: pytest.approx(0.6)}
