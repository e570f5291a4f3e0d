"""Replicas that do not wait for each other at the end of a step drift apart; one rank is slow."""

from __future__ import annotations

import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.analysis.idle.causes import INHERENT, Cause
from bubblescope.analysis.pipeline_phase import pipelines
from bubblescope.analysis.rates import bubble_rates
from bubblescope.facade import Trace
from bubblescope.schedules import generate
from injected import Fault, Job

PLACES, REPLICAS, STEPS = 16, 4, 3
SLOW = 21
_BETWEEN_NS = 1_000_000


def drifting() -> Timeline:
    """Return 64 ranks in 4 replicas, each of which begins a step when it has done the one before."""
    fault = Fault(Cause.SLOW_RANK, slow={divmod(SLOW, PLACES): 1.3})
    times = pl.col("start_ns", "end_ns", "host_start_ns", "host_end_ns")
    rows, opens = [], [0] * REPLICAS
    for step in range(STEPS):
        job = Job(generate("1f1b", PLACES, 16), replicas=REPLICAS, steps=1, jitter=0.02, seed=step)
        one = job.play(fault)
        for copy in range(REPLICAS):
            mine = one.tasks.filter(pl.col("rank") // PLACES == copy)
            mine = mine.with_columns(times + opens[copy], step=pl.lit(step, pl.Int32))
            opens[copy] = int(mine["end_ns"].max()) + _BETWEEN_NS
            rows.append(mine)
    return Timeline(pl.concat(rows), one.ranks, one.run)


@pytest.fixture(scope="module")
def run() -> Trace:
    return Trace(drifting())


def test_each_replica_has_a_window_of_its_own(run):
    found = pipelines(run.timeline)
    assert found["pipeline"].to_list() == [rank // PLACES for rank in range(PLACES * REPLICAS)]

    bubbles = bubble_rates(run.timeline)

    spans = bubbles.table.group_by("step", rank=pl.col("rank") // PLACES).agg(
        length=pl.col("end_ns").max() - pl.col("start_ns").min(), said=pl.col("makespan_ns").max()
    )
    assert spans["length"].to_list() == spans["said"].to_list()
    assert [notice.code for notice in bubbles.notices] == ["steps-apart"]


def test_a_device_that_was_busy_with_the_step_before_was_not_idle(run):
    ledger = run.why().ledger
    busy = run.timeline.tasks.filter(lane="compute").select(
        "rank", begin="start_ns", until="end_ns"
    )
    idle = ledger.gaps.select("rank", "start_ns", "end_ns")
    met = idle.join(busy, on="rank").filter(
        pl.col("begin") < pl.col("end_ns"), pl.col("until") > pl.col("start_ns")
    )
    assert met.height == 0
    assert ledger.table["idle_ns"].sum() == bubble_rates(run.timeline).overall.idle_ns


def test_the_slow_rank_is_first_everywhere(run):
    why, report = run.why(), run.report()
    totals = why.ledger.totals()["cause"].to_list()
    assert next(cause for cause in totals if cause not in INHERENT) == Cause.SLOW_RANK
    assert totals == report.study.ledger.totals()["cause"].to_list()
    for said in (str(why), str(report), str(run.stragglers()), str(run.compare(run))):
        assert f"rank {SLOW}" in " ".join(said.splitlines()[:8]).lower()
    for line in str(why).splitlines():
        if line.startswith(("verdict", "evidence")):
            assert "–" not in line


@pytest.mark.parametrize(("times", "named"), [(1.03, False), (1.3, True)])
def test_the_report_begins_with_a_slow_rank_only_if_it_stands_out(times, named):
    fault = Fault(Cause.SLOW_RANK, slow={(0, 2): times})
    one = Trace(Job(generate("1f1b", 4, 8), replicas=4, steps=3).play(fault))
    slow = one.report().study.slow_rank
    assert (None if slow is None else slow.rank) == (2 if named else None)
    assert any(line.startswith("slow ") for line in str(one.report()).splitlines()[:4]) == named


def test_replicas_that_wait_for_each_other_share_their_steps():
    one = Job(generate("1f1b", 4, 8), replicas=2, steps=3).play(
        Fault(Cause.SLOW_RANK, slow={(1, 2): 1.3})
    )
    assert pipelines(one)["pipeline"].unique().to_list() == [0]
