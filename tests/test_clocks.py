"""Aligning ranks by what must come before what, against pipelines whose skew is known."""

from __future__ import annotations

from pathlib import Path

import msgspec
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bubblescope
from bubblescope.analysis.bubbles import measure
from bubblescope.clocks import align
from bubblescope.timeline import RANK_SCHEMA, Run, Timeline
from nsight_maker import Style, solve

DATA = Path(__file__).parents[2] / "shared" / "data"


def made(skews, *, transfer=50, replicas=1, common=True, schedule="1f1b", steps=2):
    """A pipeline whose every transfer takes `transfer` ns, each rank with a skew of its own."""
    stages = len(skews) // replicas
    style = Style(schedule=schedule, stages=stages, microbatches=2 * stages)
    # Transfers lengthen the critical path: as if each task took that long more, unseen.
    style.times = {kind: time + transfer for kind, time in style.times.items()}
    rows = []
    for step in range(steps):
        for stage, tasks in solve(style).items():
            for replica in range(replicas):
                rank = stage * replicas + replica
                skew = skews[rank] if common else skews[(rank + step) % len(skews)]
                for kind, microbatch, start, end in tasks:
                    at = 10**6 * step + skew
                    row = (rank, step, kind.value, stage, microbatch)
                    rows.append(
                        (*row, start + at, end - transfer + at, f"{kind.name[0]}{microbatch}")
                    )
    columns = ["rank", "step", "kind", "stage", "microbatch", "start_ns", "end_ns", "name"]
    tasks = pl.DataFrame(rows, schema=columns, orient="row").with_columns(lane=pl.lit("compute"))
    ranks = pl.DataFrame(
        [{"rank": rank, "host": f"node{rank}"} for rank in range(len(skews))], schema=RANK_SCHEMA
    )
    return Timeline(tasks, ranks, Run(common_clock=common))


def codes(timeline):
    return {notice.code: notice for notice in timeline.run.warnings}


@given(
    st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=6),
    st.integers(0, 400),
    st.sampled_from(["gpipe", "1f1b", "zb-h1"]),
)
def test_the_true_offset_is_always_within_the_stated_error(skews, transfer, schedule):
    aligned = align(made(skews, transfer=transfer, schedule=schedule))

    for rank, offset, error in aligned.ranks.select(
        "rank", "clock_offset_ns", "clock_error_ns"
    ).iter_rows():
        assert abs(offset - (skews[0] - skews[rank])) <= error + 1


def test_without_skew_the_bubble_rate_stays_and_with_it_comes_back():
    truth = measure(made([0] * 4)).overall.makespan

    aligned = align(made([0, 3_000, -40_000, 500_000]))

    assert measure(aligned).overall.makespan == pytest.approx(truth, abs=1e-4)
    assert aligned.run.common_clock


def test_ranks_without_a_common_clock_are_aligned_step_by_step():
    apart = made([0, 700, -90], common=False)
    assert measure(apart).overall.makespan is None

    aligned = align(apart)

    assert aligned.run.common_clock
    truth = measure(made([0] * 3)).overall.makespan
    assert measure(aligned).overall.makespan == pytest.approx(truth, abs=1e-4)
    assert "clocks-aligned" in codes(aligned)
    assert aligned.run.inferred["clock"]


def test_replicas_are_aligned_each_for_itself():
    skews = [0, 10**6, 5, -7, 2000, 10**6 - 40]

    ranks = align(made(skews, replicas=2)).ranks

    for replica in (0, 1):
        for stage in range(3):
            rank = 2 * stage + replica
            offset = skews[replica] - skews[rank]
            assert abs(ranks["clock_offset_ns"][rank] - offset) <= ranks["clock_error_ns"][rank] + 1


def test_a_contradiction_is_refused_and_named():
    timeline = made([0, 10_000])
    tasks = timeline.tasks.with_columns(
        start_ns=pl.when((pl.col("rank") == 1) & (pl.col("name") == "F3") & (pl.col("step") == 1))
        .then(pl.col("start_ns") - 10**5)
        .otherwise("start_ns")
    )
    broken = Timeline(tasks, timeline.ranks, timeline.run)

    refused = align(broken)

    assert refused.tasks.equals(broken.tasks)
    notice = codes(refused)["clocks-contradict"]
    assert "F3 on rank 0 before F3 on rank 1" in notice.message
    assert "contradict by" in notice.message


def test_with_traffic_one_way_only_nothing_is_claimed():
    timeline = made([0, 10_000])
    forwards = Timeline(
        timeline.tasks.filter(pl.col("kind") == "forward"), timeline.ranks, timeline.run
    )

    aligned = align(forwards)

    assert aligned.ranks["clock_offset_ns"].to_list()[1] is None
    assert aligned.tasks.equals(forwards.tasks)


def test_a_timeline_without_stages_is_left_as_it_is():
    timeline = made([0, 10_000])
    bare = Timeline(timeline.tasks.drop("stage"), timeline.ranks, timeline.run)

    assert align(bare) == bare


def test_overlapped_pairs_bound_no_more_than_they_can():
    timeline = made([0, 10_000])
    both = (pl.col("kind") == "forward") & (pl.col("microbatch") == 2)
    tasks = timeline.tasks.with_columns(
        kind=pl.when(both)
        .then(pl.lit("forward_backward"))
        .otherwise(pl.col("kind").cast(pl.String)),
        pair_stage=pl.when(both).then("stage"),
        pair_microbatch=pl.when(both).then(9 + pl.col("rank")),
    )

    [_, rank] = align(Timeline(tasks, timeline.ranks, timeline.run)).ranks.to_dicts()

    assert abs(rank["clock_offset_ns"] + 10_000) <= rank["clock_error_ns"] + 1


def test_what_was_unsettled_is_no_warning_any_more():
    timeline = made([0, 700, -90], common=False)
    notice = bubblescope.timeline.Notice("no-common-clock", "ranks share no clock")

    aligned = align(timeline.with_notices(notice))

    assert "no-common-clock" not in codes(aligned)


@pytest.mark.skipif(not DATA.exists(), reason="the real dumps are not here")
def test_real_dumps_of_eight_ranks_are_aligned():
    timeline = bubblescope.load(DATA / "primus" / "pp8", clock="solve")

    assert timeline.run.common_clock
    error = timeline.ranks["clock_error_ns"].drop_nulls().max()
    assert 0 < error < 10_000_000
    rates = measure(timeline)
    assert all(0.3 < one.makespan < 0.7 for one in rates.per_step.values())


@pytest.mark.skipif(not DATA.exists(), reason="the made profiles are not here")
def test_a_skew_between_two_hosts_is_found():
    folder = DATA / "ascend" / "two_hosts_3ms_skew"

    ranks = bubblescope.load(folder, clock="solve").ranks

    raw = bubblescope.load(DATA / "ascend" / "1f1b").tasks
    skewed = bubblescope.load(folder).tasks
    shift = (skewed["start_ns"] - raw["start_ns"]).to_list()
    truth = {rank: shift[list(raw["rank"]).index(rank)] for rank in range(4)}
    for rank in range(4):
        offset = truth[0] - truth[rank]
        found = ranks.filter(rank=rank).to_dicts()[0]
        assert abs(found["clock_offset_ns"] - offset) <= found["clock_error_ns"] + 1


def test_the_origin_of_a_timeline_survives():
    timeline = made([0, 5])
    run = msgspec.structs.replace(timeline.run, schedule="1f1b")

    assert align(Timeline(timeline.tasks, timeline.ranks, run)).run.schedule == "1f1b"
