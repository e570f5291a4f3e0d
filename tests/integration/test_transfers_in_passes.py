"""Ranks of a loop of a job's own that send and receive within passes, as its recordings have it."""

from __future__ import annotations

import polars as pl
import pytest

from bubblescope import sources
from bubblescope.model.kinds import Kind
from bubblescope.record import Recorder
from bubblescope.record.buffer import identity_of

MS = 1_000_000
STEPS = 3
RECEIVES, SENDS = (1, 40), (90, 99)
"""When a pass of 100 ms does so, as a stage does."""


def record(folder, ranks, first=None, **told):
    """Record ranks of which each has a forward, and then a backward, of what each receives and sends.

    `ranks` has, for each rank and pass, when it receives and sends, as (start_ms, end_ms), by the rank
    at the other end: {"receive": {0: RECEIVES}, "send": {2: SENDS}}. The `first` step may have others.
    """
    for rank in range(len(ranks)):
        known = {"stages": [0], "dp": rank, "recorded_by": "loop"} | told.get(f"rank{rank}", {})
        with Recorder(folder, rank=rank, **known) as job:
            for step in range(STEPS):
                passes = (first if first and not step else ranks)[rank]
                with job.step():
                    for nth, (kind, transfers) in enumerate(
                        zip((Kind.FORWARD, Kind.BACKWARD), passes, strict=True)
                    ):
                        start = 1 + 1000 * step + 200 * nth
                        for name, times in transfers.items():
                            for peer, within in times.items():
                                place = identity_of(Kind.COLLECTIVE, peer=peer)
                                since, until = ((start + at) * MS for at in within)
                                job.add_task(place, since, until, name)
                        place = identity_of(kind, stage=0, chunk=0, microbatch=0)
                        job.add_task(place, start * MS, (start + 100) * MS, None)


def stage(before, after):
    """Return the passes of a rank that receives from the one before, and sends to the one after."""
    forward = {
        "receive": {} if before is None else {before: RECEIVES},
        "send": {} if after is None else {after: SENDS},
    }
    backward = {
        "receive": {} if after is None else {after: RECEIVES},
        "send": {} if before is None else {before: SENDS},
    }
    return forward, backward


def stands(timeline):
    return timeline.ranks.select(pl.col("stages").list.item(), "dp").rows()


CHAIN = [stage(None, 1), stage(0, 2), stage(1, None)]


def test_stages_that_receive_and_send_in_passes_are_a_pipeline(tmp_path):
    record(tmp_path, CHAIN)
    timeline = sources.load(tmp_path, clock="raw")
    assert stands(timeline) == [(0, 0), (1, 0), (2, 0)]
    assert not timeline.run.warnings
    middle = timeline.tasks.filter(rank=1, step=0).sort("start_ns")
    first_ns = middle["start_ns"].min()
    times = ((pl.col(name) - first_ns) // MS + 1 for name in ("start_ns", "end_ns"))
    found = middle.select("kind", "name", "stage", "microbatch", "peer", *times)
    assert found.rows() == [
        ("recv_forward", "recv_forward", 1, 0, 0, 1, 40),
        ("forward", "forward", 1, 0, None, 40, 90),
        ("send_forward", "send_forward", 1, 0, 2, 90, 99),
        ("recv_backward", "recv_backward", 1, 0, 2, 201, 240),
        ("backward", "backward", 1, 0, None, 240, 290),
        ("send_backward", "send_backward", 1, 0, 0, 290, 299),
    ]
    assert middle["host_start_ns"].equals(middle["start_ns"])
    ends = timeline.tasks.filter(kind="forward", step=0).sort("rank")
    lengths = (ends["end_ns"] - ends["start_ns"]) // MS
    assert lengths.to_list() == [90, 50, 60]


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        ([stage(None, 2), stage(None, 3), stage(0, None), stage(1, None)], [0, 0, 1, 1]),
        ([stage(1, None), stage(None, 0)], [1, 0]),
    ],
)
def test_pipelines_may_run_side_by_side_and_from_any_rank_on(tmp_path, ranks, found):
    record(tmp_path, ranks)
    assert [rank for rank, _ in stands(sources.load(tmp_path, clock="raw"))] == found


def test_what_a_mesh_says_of_ranks_stays(tmp_path):
    told = {f"rank{rank}": {"stages": [rank], "pp": rank, "dp": 7} for rank in range(3)}
    record(tmp_path, CHAIN, **told)
    timeline = sources.load(tmp_path, clock="raw")
    assert stands(timeline) == [(0, 7), (1, 7), (2, 7)]
    assert timeline.tasks.filter(kind="collective").is_empty()


def test_a_send_that_is_waited_for_after_the_pass_is_of_no_microbatch(tmp_path):
    ranks = [stage(None, 1), stage(0, None)]
    ranks[0][0]["send"][1] = (110, 120)
    record(tmp_path, ranks)
    tasks = sources.load(tmp_path, clock="raw").tasks
    sends = tasks.filter(kind="send_forward")
    assert sends.select("stage", "microbatch", "peer").rows() == [(0, None, 1)] * STEPS


def _with(ranks, rank, nth, **transfers):
    """Return passes of which one has other transfers."""
    passes = [list(one) for one in ranks]
    passes[rank][nth] = passes[rank][nth] | transfers
    return passes


FORKED = {"send": {1: SENDS, 2: SENDS}}, {"receive": {1: RECEIVES, 2: RECEIVES}}
FORK = [FORKED, stage(0, None), stage(0, None)]
RING = [({"receive": {1 - r: RECEIVES}, "send": {1 - r: SENDS}},) * 2 for r in range(2)]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        pytest.param(RING, False, id="a ring"),
        pytest.param(_with(CHAIN, 0, 0, send={1: (40, 60)}), True, id="it computes after it sent"),
        pytest.param(_with(CHAIN, 1, 0, send={2: (1, 20)}), True, id="it sends before it receives"),
        pytest.param(_with(CHAIN, 2, 1, send={0: SENDS}), True, id="gradients go another way"),
        pytest.param(_with(CHAIN, 0, 1, receive={}), True, id="nothing comes back"),
        pytest.param(_with(CHAIN, 2, 0, receive={1: RECEIVES, 0: RECEIVES}), True, id="from two"),
        pytest.param(FORK, True, id="to two"),
        pytest.param([*CHAIN, stage(None, None)], True, id="chains of other lengths"),
    ],
)
def test_whatever_else_is_sent_within_passes_is_a_collective(tmp_path, ranks, said):
    record(tmp_path, ranks)
    timeline = sources.load(tmp_path, clock="raw")
    assert stands(timeline) == [(0, rank) for rank in range(len(ranks))]
    count = STEPS * sum(len(one) for passes in ranks for of in passes for one in of.values())
    collectives = timeline.tasks.filter(kind="collective", name="collective")
    assert collectives.height == collectives["peer"].null_count() == count
    assert set(timeline.tasks["kind"]) == {"forward", "backward", "collective"}
    lengths = timeline.tasks.filter(kind="forward").select(pl.col("end_ns") - pl.col("start_ns"))
    assert set(lengths["end_ns"]) == {100 * MS}
    assert [one.code for one in timeline.run.warnings] == ["transfers-in-passes"] * said


def test_nothing_is_said_of_ranks_whose_neighbours_are_not_read(tmp_path):
    record(tmp_path, CHAIN)
    [first] = tmp_path.glob("*/rank00000.bubbles")
    timeline = sources.load(first, clock="raw")
    assert timeline.tasks.filter(kind="collective").height == 2 * STEPS
    assert not timeline.run.warnings


def test_one_pass_that_does_so_in_another_order_is_enough_to_doubt(tmp_path):
    record(tmp_path, CHAIN, first=_with(CHAIN, 1, 0, send={2: (1, 20)}))
    timeline = sources.load(tmp_path, clock="raw")
    assert stands(timeline) == [(0, 0), (0, 1), (0, 2)]
    assert [one.code for one in timeline.run.warnings] == ["transfers-in-passes"]


def test_transfers_that_go_another_way_than_a_mesh_says_are_collectives(tmp_path):
    told = {f"rank{rank}": {"stages": [2 - rank], "pp": 2 - rank} for rank in range(3)}
    record(tmp_path, CHAIN, **told)
    timeline = sources.load(tmp_path, clock="raw")
    assert stands(timeline) == [(2, 0), (1, 1), (0, 2)]
    assert timeline.tasks.filter(kind="collective").height == 8 * STEPS
    assert not timeline.run.warnings


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([{"untimed send"}, {"untimed receive", "untimed send"}, {"untimed receive"}], True),
        ([{"untimed receive", "untimed send"}] * 2, False),
    ],
)
def test_where_transfers_are_not_timed_it_is_said_that_stages_are_not_known(tmp_path, ranks, said):
    record(tmp_path, [({name: {0: (1, 1)} for name in names}, {}) for names in ranks])
    timeline = sources.load(tmp_path, clock="raw")
    assert set(timeline.tasks["kind"]) == {"forward", "backward"}
    assert [one.code for one in timeline.run.warnings] == ["transfers-in-passes"] * said
    assert stands(timeline) == [(0, rank) for rank in range(len(ranks))]
