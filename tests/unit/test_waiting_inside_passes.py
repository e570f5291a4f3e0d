"""Ranks that wait for each other inside of passes: the slow one is known by what it computes."""

from __future__ import annotations

import polars as pl
import pytest

import bubblescope
from bubblescope import Timeline
from bubblescope.analysis.rank_standing import Standing
from bubblescope.analysis.study import study
from bubblescope.analysis.verdict import Verdict
from bubblescope.model.errors import ScheduleError
from bubblescope.model.provenance import Origin, Run
from bubblescope.render.text.stragglers import Stragglers
from waiting_job import make_waiting_job

LATE_NS = 5_000_000
SLOW = {
    "one is slow": ({"slow": {2: 1.4}}, 2),
    "the first is slow": ({"slow": {0: 1.3}}, 0),
    "one is slow and late": ({"slow": {1: 1.3}, "late": {1: LATE_NS}}, 1),
    "all are alike": ({}, None),
    "one is late": ({"late": {1: LATE_NS}}, None),
    "all but one are late": ({"late": dict.fromkeys((1, 2, 3), LATE_NS)}, None),
}


def said(answer) -> str:
    return " ".join(str(answer).split())


@pytest.mark.parametrize(("kind", "stages"), [("fsdp", 1), ("tp", 1), ("tp", 2)])
@pytest.mark.parametrize(("made", "slow"), SLOW.values(), ids=SLOW)
def test_the_slow_rank_is_named_or_none(tmp_path, made, slow, kind, stages):
    make_waiting_job(tmp_path, kind, stages=stages, **made)
    run = bubblescope.load(tmp_path)
    found = run.stragglers()
    assert (found.slow_rank and found.slow_rank.rank) == slow
    assert found.alike.of(Standing.ODD) == ([] if slow is None else [slow])
    persistent = found.rank[found.slowness.persistent].tolist()
    assert set(persistent) <= {slow}
    for answer in map(said, (run.report(), run.why(), run.whatif())):
        others = {0, 1, 2, 3} - {slow}
        assert not any(f"ank {rank} is" in answer for rank in others)
        assert not any(f"ank {rank} computes" in answer for rank in others)
        # Without stages, what-if speaks of ranks that come late, for their hosts or devices.
        assert not any(
            f"rank {rank} healthy" in answer for rank in others - {*made.get("late", ())}
        )


def test_without_stages_what_if_names_the_rank_whose_host_is_late(tmp_path):
    make_waiting_job(tmp_path, "tp", late={1: LATE_NS})
    run = bubblescope.load(tmp_path)
    assert "rank 1 healthy" in said(run.whatif())
    assert "Rank 1 comes" in said(run.why())


@pytest.mark.parametrize("kind", ["fsdp", "tp"])
def test_why_names_a_slow_rank_whose_stage_waits_for_it_inside_of_passes(tmp_path, kind):
    make_waiting_job(tmp_path, kind, stages=2, slow={2: 1.4})
    run = bubblescope.load(tmp_path)
    slow = run.why().ledger.slow_ranks[0]
    assert slow.rank == 2
    assert slow.slow_share == pytest.approx(0.4, abs=0.01)
    answer = said(run.why())
    assert "Rank 2 is 39.90 % slower" in answer or "Rank 2 computes 39.90 % longer" in answer
    assert "Look at its device" in answer
    assert Verdict.of(run.timeline, study(run.timeline)).remedies[0].key == "slow_rank"


def test_what_a_healthy_rank_would_save_is_not_known_where_others_wait_for_it(tmp_path):
    make_waiting_job(tmp_path, "tp", stages=2, slow={2: 1.4})
    run = bubblescope.load(tmp_path)
    with pytest.raises(ScheduleError, match="other ranks wait for rank 2 inside of their passes"):
        run.whatif(lambda run: run.healthy(2))
    assert not any(one.change.startswith("rank") for one in run.whatif().predictions)


@pytest.mark.parametrize(
    ("kind", "words"), [("fsdp", "4 data-parallel ranks"), ("tp", "4 tensor-parallel ranks")]
)
def test_stragglers_calls_ranks_of_a_stage_by_what_their_group_is_for(tmp_path, kind, words):
    make_waiting_job(tmp_path, kind, slow={2: 1.4})
    found = bubblescope.load(tmp_path).stragglers()
    answer = said(found)
    assert words in answer
    assert "replica" not in answer
    # Compute takes 1.4 of the three others' time, and they are a quarter of the mean.
    assert found.slowdown.overall[0] == pytest.approx(1.4 / 1.1, rel=0.01)
    assert "left out of operations: its cost is part of the launch slowdown" in answer
    assert found.to_dict()["own_work"] is True


def tensor_parallel(timed: str | None) -> Timeline:
    """Return six steps of two tensor-parallel ranks; passes of rank 0 are longer."""
    rows = [
        (rank, step, kind, 100 * step + 30 * at, 100 * step + 30 * at + (20 if rank else 28))
        for rank in (0, 1)
        for step in range(6)
        for at, kind in enumerate(("forward", "backward"))
    ]
    tasks = pl.DataFrame(rows, ["rank", "step", "kind", "start_ns", "end_ns"], orient="row")
    tasks = tasks.with_columns(
        pl.col("start_ns", "end_ns") * 1_000_000,
        lane=pl.lit("compute"),
        stage=0,
        microbatch=0,
        name=pl.col("kind"),
    )
    ranks = pl.DataFrame(
        {"rank": [0, 1], "host": "h", "stages": [[0], [0]], "dp": 0, "tp": [0, 1], "timed": timed},
        schema_overrides={"timed": pl.String},
    )
    return Timeline(tasks, ranks)


@pytest.mark.parametrize("timed", ["device", "host", None])
def test_it_cannot_be_told_which_tensor_parallel_rank_is_slow_by_how_long_passes_are(timed):
    found = Stragglers.of(tensor_parallel(timed))
    assert found.slow_rank is None
    answer = said(found)
    assert "2 tensor-parallel ranks" in answer
    assert "which of them is slow cannot be told" in answer
    assert "inside of operations it is part of how long they take" in answer
    assert "costs most" not in answer
    assert found.to_dict()["own_work"] is False


def host_recording(origin: str = "native") -> Timeline:
    """Return two ranks that share parameters: rank 1 works twice as long, and rank 0 waits for it."""
    rows = []
    for step in range(6):
        for kind, work in (("forward", 10_000_000), ("backward", 20_000_000)):
            opens = step * 100_000_000 + (kind == "backward") * 30_000_000
            for rank, waits in ((0, work), (1, 0)):
                row = {"rank": rank, "step": step, "stage": 0, "microbatch": 0}
                rows.append({**row, "kind": kind, "start_ns": opens, "end_ns": opens + 2 * work})
                begins = opens + 2 * work - waits
                rows.append({"rank": rank, "step": step, "kind": "collective", "start_ns": begins,
                             "end_ns": opens + 2 * work})  # fmt: skip
    lanes = (
        pl.when(pl.col("kind") == "collective").then(pl.lit("comm")).otherwise(pl.lit("compute"))
    )
    tasks = pl.DataFrame(rows).with_columns(lane=lanes, name="kind")
    ranks = pl.DataFrame({"rank": [0, 1], "host": "node0", "timed": "host", "dp": [0, 1]})
    return Timeline(tasks, ranks, Run(origins=(Origin(origin, None, "here"),)))


def test_hosts_that_are_timed_are_compared_by_the_time_in_no_collective():
    found = Stragglers.of(host_recording())
    assert found.slow_rank.rank == 1
    assert found.slow_rank.slow_share == pytest.approx(1.0)
    assert "communication is not modelled, and left out of operations" in said(found)


def test_in_what_others_trace_of_a_host_another_thread_may_be_in_the_collective():
    assert Stragglers.of(host_recording("kineto")).slow_rank is None
