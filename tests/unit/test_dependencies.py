"""What feeds what: pairs of passes, whatever their numbers are."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.model.dependencies import messages, passes
from bubblescope.schedules import generate
from injected import Job


def run(replicas: int = 2, steps: int = 2) -> Timeline:
    return Job(generate("interleaved-1f1b", 2, 4), replicas=replicas, steps=steps).play()


def fed(timeline: Timeline) -> set[tuple[tuple, tuple, bool]]:
    """Return what feeds what, by step, rank, stage and micro-batch."""
    found, tasks = passes(timeline), timeline.tasks
    names = ("step", "rank", "stage", "microbatch")
    ends = [tasks.select(names)[found[side]].rows() for side in ("source", "target")]
    return {*zip(*ends, found["backward"].to_list(), strict=True)}


def expected(timeline: Timeline, stages: int = 4) -> set[tuple[tuple, tuple, bool]]:
    """Work it out task by task."""
    place, pairs = {}, set()
    columns = ("step", "rank", "kind", "stage", "microbatch")
    rows = timeline.tasks.select(columns).rows()
    for step, rank, kind, stage, microbatch in rows:
        place[step, rank // 2, kind, stage, microbatch] = rank
    for step, rank, kind, stage, microbatch in rows:
        other = stage + (1 if kind == "forward" else -1)
        if 0 <= other < stages:
            to = place[step, rank // 2, kind, other, microbatch]
            ends = (step, rank, stage, microbatch), (step, to, other, microbatch)
            pairs.add((*ends, kind == "backward"))
    return pairs


@pytest.mark.parametrize("dp", [True, False])
def test_each_pass_feeds_that_of_the_next_stage_in_its_own_pipeline(dp):
    """Told by coordinates, or by the order of their ranks."""
    timeline = run()
    if not dp:
        ranks = timeline.ranks.with_columns(dp=pl.lit(None, pl.Int32))
        timeline = Timeline(timeline.tasks, ranks)
    assert fed(timeline) == expected(timeline)


@pytest.mark.parametrize("number", [0, -1, -(2**31), 2**31 - 3])
def test_numbers_may_be_as_large_as_they_are(number):
    """Of two steps and of micro-batches that are as far apart as can be, none is taken for another.

    From step -1 to the last there is, 64 bits would come round to the same key.
    """
    timeline = run(steps=2)
    far = pl.when(pl.col("step") == 0).then(number).otherwise(2**31 - 1)
    micro = pl.when(pl.col("microbatch") == 3).then(2**20 - 1).otherwise("microbatch")
    tasks = timeline.tasks.with_columns(step=far.cast(pl.Int32), microbatch=micro.cast(pl.Int32))
    timeline = Timeline(tasks, timeline.ranks)
    assert fed(timeline) == expected(timeline)


def test_tasks_of_no_step_feed_each_other():
    timeline = run(steps=1)
    timeline = Timeline(timeline.tasks.with_columns(step=pl.lit(None, pl.Int32)), timeline.ranks)
    assert fed(timeline) == expected(timeline)


def test_what_is_there_twice_feeds_nothing():
    timeline = run()
    twice = timeline.tasks.filter(
        pl.col("step") == 1, pl.col("stage") == 1, microbatch=2, kind="forward", rank=1
    )
    assert twice.height == 1
    again = Timeline(pl.concat([timeline.tasks, twice]), timeline.ranks)
    key = (1, 1, 1, 2)
    less = {pair for pair in expected(timeline) if pair[2] or key not in pair[:2]}
    assert fed(again) == less < expected(timeline)


@pytest.mark.parametrize("seed", range(6))
def test_the_kth_send_is_beside_the_kth_receive_where_there_are_as_many(seed):
    """Of one step, direction, micro-batch and pair of ranks; steps may be unknown."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(200):
        step = None if random.random() < 0.2 else int(random.integers(2))
        way, microbatch = ("forward", "backward")[random.integers(2)], int(random.integers(2))
        rank, peer = (int(one) for one in random.permutation(3)[:2])
        kind = f"{('send', 'recv')[random.integers(2)]}_{way}"
        start = int(random.integers(10**6))
        rows.append(
            (rank, step, kind, microbatch, peer, start, start + int(random.integers(99)), kind)
        )
    names = ["rank", "step", "kind", "microbatch", "peer", "start_ns", "end_ns", "name"]
    tasks = pl.DataFrame(rows, names, orient="row").with_columns(lane=pl.lit("comm"))
    timeline = Timeline(tasks)

    ends: defaultdict[tuple, tuple[list, list]] = defaultdict(lambda: ([], []))
    for at, one in enumerate(timeline.tasks.iter_rows(named=True)):
        sends = one["kind"].startswith("send")
        pair = (one["rank"], one["peer"]) if sends else (one["peer"], one["rank"])
        key = (one["step"], one["kind"].endswith("backward"), one["microbatch"], *pair)
        ends[key][not sends].append((one["start_ns" if sends else "end_ns"], at))
    expected = {
        (send, receive, key[1], turn, len(sent))
        for key, (sent, received) in ends.items()
        if len(sent) == len(received)
        for turn, ((_, send), (_, receive)) in enumerate(
            zip(sorted(sent), sorted(received), strict=True)
        )
    }
    found = messages(timeline).select("send", "receive", "backward", "turn", "count")
    assert len(expected) > 10
    assert set(found.rows()) == expected
    assert found.height == len(expected)


def test_a_run_of_which_nobody_recorded_transfers_has_no_messages():
    assert messages(run()).rows() == []
