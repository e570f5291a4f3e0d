"""Rates and causes of steps that run their schedule several times: per round, then summed."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest

from bubblescope.analysis.between_rounds import between_rounds, closed, closed_stretches, laid_open
from bubblescope.analysis.compare import Comparison
from bubblescope.analysis.pipeline_phase import pipelines
from bubblescope.analysis.rates import bubble_rates
from bubblescope.analysis.study import study
from bubblescope.analysis.wall_clock import wall_clock
from bubblescope.analysis.whatif import WhatIf
from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import Run
from bubblescope.model.timeline import Timeline
from dealt_runs import in_rounds
from random_runs import made as random_run

MS = 1_000_000

ROUND = {
    0: [("forward", 0, 0), ("forward", 1, 10), ("backward", 0, 40), ("backward", 1, 50)],
    1: [("forward", 0, 10), ("forward", 1, 20), ("backward", 0, 30), ("backward", 1, 40)],
}
"""GPipe of two ranks and two micro-batches, each pass 10 ms: 60 ms, of which each rank works 40."""


def accumulating(rounds=3, pause=40, steps=3, declared=2, late=0):
    """Return a run whose rank 0 loads data for so long between rounds; rank 1 optimizes meanwhile.

    With `late`, rank 1 does something for so long in the last round before it begins.
    """
    rows = []
    for step, turn in itertools.product(range(steps), range(rounds)):
        origin = step * 1000 + turn * (60 + pause)
        for rank, passes in ROUND.items():
            for kind, microbatch, at in passes:
                shift = late if turn == rounds - 1 and late else 0
                begin = origin + at + shift * (rank == 1 or kind == "backward")
                rows.append((rank, step, kind, rank, 2 * turn + microbatch, begin, begin + 10))
        if turn < rounds - 1:
            end = origin + 60
            rows.append((0, step, "data", None, None, end, end + pause))
            rows.append((1, step, "optimizer", None, None, end + 5, end + 15))
        else:
            rows.append((0, step, "optimizer", None, None, origin + 62 + late, origin + 70 + late))
    columns = ["rank", "step", "kind", "stage", "microbatch", "start_ns", "end_ns"]
    tasks = pl.DataFrame(rows, columns, orient="row").with_columns(
        pl.col("start_ns", "end_ns") * MS,
        lane=pl.col("kind").replace_strict({"data": "host"}, default="compute"),
        name=pl.col("kind"),
    )
    ranks = pl.DataFrame({"rank": [0, 1], "stages": [[0], [1]], "host": "a", "timed": "host"})
    return Timeline(tasks, ranks, Run(common_clock=True, microbatches=declared))


def test_rates_are_those_of_the_rounds():
    """Of 60 ms, each of two ranks works 40: a third is idle, however long the job pauses between."""
    for rounds, pause in ((1, 0), (2, 40), (3, 7), (5, 100)):
        found = bubble_rates(accumulating(rounds, pause))
        overall = found.overall
        assert overall.makespan == pytest.approx(1 / 3)
        assert overall.makespan_ns == 2 * 3 * rounds * 60 * MS
        assert overall.idle_ns == 2 * 3 * rounds * 20 * MS
        assert overall.over_ideal == pytest.approx(0.5)
        # Rank 1 has a span of 40 in the first and the last round, from the first of it to the last.
        own = 3 * rounds * 60 * MS + 3 * (60 * rounds - 20) * MS
        assert overall.span == pytest.approx(1 - 3 * rounds * 80 * MS / own)
        assert {rates.makespan for rates in found.per_step.values()} == {overall.makespan}
        assert found.table["end_ns"].max() == (2000 + rounds * 60 + (rounds - 1) * pause) * MS


def test_time_between_rounds_is_bubble_where_nothing_says_what_a_round_is():
    assert bubble_rates(accumulating(2, 40, declared=None)).overall.makespan == pytest.approx(0.5)
    assert bubble_rates(accumulating(2, 40, declared=4)).overall.makespan == pytest.approx(0.5)


def test_rounds_that_overlap_are_one_stretch():
    """Rank 1 begins a round while rank 0 is in the one before: no time counts twice."""
    timeline = accumulating(2, 0)
    early = pl.when(pl.col("microbatch") >= 2).then(20 * MS).otherwise(0)
    tasks = timeline.tasks.with_columns(pl.col("start_ns", "end_ns") - early)
    tasks = tasks.filter(pl.col("kind").cast(pl.String).is_in(["forward", "backward"]))
    moved = Timeline(tasks, timeline.ranks, timeline.run)
    assert between_rounds(moved, pipelines(moved)).height == 0
    assert bubble_rates(moved).overall.makespan_ns == 2 * 3 * 100 * MS


def test_the_ledger_has_the_same_sums_and_real_times():
    timeline = accumulating(3, 40, late=15)
    known = study(timeline)
    ledger, table = known.ledger, known.bubbles.table
    per_rank = ledger.table.group_by("step", "rank").agg(pl.col("idle_ns").sum())
    both = table.join(per_rank, on=["step", "rank"])
    assert (both["idle_ns"] == both["makespan_ns"] - both["busy_ns"]).all()
    assert ledger.replay_error == 0
    gaps = ledger.gaps.sort("step", "rank", "start_ns")
    length = gaps["end_ns"] - gaps["start_ns"]
    assert length.sum() == known.bubbles.overall.idle_ns
    # No gap is where a task is, or between rounds; each is where the rank was idle.
    for (rank, step), own in gaps.group_by("rank", "step"):
        marks = np.zeros(1000, int)
        tasks = timeline.tasks.filter(rank=rank, step=step)
        tasks = tasks.filter(pl.col("kind").cast(pl.String).is_in(["forward", "backward"]))
        for frame in (tasks, own):
            for begin, end in frame.select("start_ns", "end_ns").iter_rows():
                marks[(begin // MS) % 1000 : (end // MS - 1) % 1000 + 1] += 1
        within = [(0, 60), (100, 160), (200, 275)]
        expected = np.zeros(1000, int)
        for begin, end in within:
            expected[begin:end] = 1
        assert (marks == expected).all()


def test_what_is_between_rounds_is_in_the_whole_step():
    timeline = accumulating(3, 40)
    known = study(timeline)
    totals = {row["what"]: row for row in wall_clock(timeline, known.ledger).totals().to_dicts()}
    assert totals["data loading"]["per_step_ns"] == totals["data loading"]["outside_ns"] == 40 * MS
    assert totals["forward and backward"]["outside_ns"] == 0
    # Outside of the rounds, rank 0 works in 8 ms at the end, rank 1 in 10 ms of each pause.
    outside = dict(known.ledger.outside.filter(step=0).select("rank", "idle_ns").iter_rows())
    window = 2 * 40 + 10
    assert outside == {0: (window - 8) * MS, 1: (window - 20) * MS}


def test_a_pause_in_a_round_is_idle_and_has_its_cause():
    """Of 15 ms that rank 1 comes late in the last round, both ranks lose 15."""
    before, after = (study(accumulating(3, 40, late=late)) for late in (0, 15))
    more = after.bubbles.overall.idle_ns - before.bubbles.overall.idle_ns
    assert more == 2 * 3 * 15 * MS
    causes = dict(after.ledger.totals().select("cause", "idle_ns").iter_rows())
    assert causes["host code"] == more


def test_what_if_and_compare_have_the_same_step():
    one, other = accumulating(3, 40), accumulating(3, 400 // 3)
    known = study(one)
    asked = WhatIf(known.recognition, known.ledger, one)
    assert asked.step_ns == 180 * MS
    assert known.recognition.rounds == 3
    assert known.bubbles.overall.excess == pytest.approx(0, abs=1e-9)
    assert known.bubbles.overall.no_wait == pytest.approx(1 / 3)
    found = Comparison.of(one, other)
    [step] = [row for row in found.to_dict()["changes"]["overall"] if row["name"] == "step"]
    assert (step["before"], step["difference"]) == (180 * MS, 0)


def test_taking_time_out_and_putting_it_back():
    timeline = accumulating(4, 33, late=9)
    apart = pipelines(timeline)
    between = between_rounds(timeline, apart)
    assert between.height == 3 * 3
    assert set(between["end_ns"] - between["start_ns"]) == {33 * MS}
    shorter = closed(timeline)
    assert shorter.tasks.height == timeline.tasks.height
    assert not between_rounds(shorter, apart).height
    passes = timeline.tasks["kind"].is_in([Kind.FORWARD.value, Kind.BACKWARD.value])
    spans = shorter.tasks.select("rank", "step", "start_ns", "end_ns").filter(passes)
    again = laid_open(spans, between, apart)
    key = ["rank", "step", "start_ns", "end_ns"]
    assert again.sort(key).equals(timeline.tasks.filter(passes).select(key).sort(key))
    data = shorter.tasks.filter(kind="data")
    assert (data["end_ns"] == data["start_ns"]).all()  # it ran while nobody was in a round


def test_what_is_of_no_step_moves_with_the_step_around_it():
    """As what failed of a round does, before the round is tried again."""
    timeline = accumulating(3, 40)
    none = pl.when(pl.col("kind").cast(pl.String) != "data").then("step")
    loose = Timeline(timeline.tasks.with_columns(step=none), timeline.ranks, timeline.run)
    data = closed(loose).tasks.filter(kind="data")
    begins = [step * 1000 + 60 * turn for step in range(3) for turn in (1, 2)]
    assert data["start_ns"].to_list() == data["end_ns"].to_list() == [at * MS for at in begins]


def test_stretches_of_time_move_with_tasks_of_the_same_time():
    looked = 0
    for seed in range(40):
        timeline = random_run(seed).timeline
        tasks, per = in_rounds(timeline.tasks.drop_nulls(["step", "microbatch"]))
        run = Timeline(tasks, timeline.ranks, Run(microbatches=per))
        if between_rounds(run, pipelines(run)).height:
            looked += 1
            stretches = run.tasks.select("rank", "start_ns", "end_ns")
            apart = closed_stretches(stretches, run)
            assert apart.equals(closed(run).tasks.select("rank", "start_ns", "end_ns"))
            assert not apart.equals(stretches)
    assert looked > 20
