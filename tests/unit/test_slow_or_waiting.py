"""A rank is called slow only if it cannot as well be one that waits for another inside of its tasks."""

from __future__ import annotations

import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.analysis.study import study
from bubblescope.render.text.report import Report
from bubblescope.render.text.why import Explanation

MS = 1_000_000


def replicas(timed: str, *, collectives: bool) -> Timeline:
    """Return six steps of two replicas; what rank 0 runs takes three times as long."""
    rows = []
    for step in range(6):
        for rank, times in enumerate((3, 1)):
            at = 100 * MS * step
            for kind in ("forward", "backward"):
                rows.append((rank, step, kind, "compute", at, at + 10 * times * MS))
                at += 10 * times * MS
            if collectives:
                rows.append((rank, step, "collective", "comm", at, 100 * MS * step + 61 * MS))
    names = ["rank", "step", "kind", "lane", "start_ns", "end_ns"]
    tasks = pl.DataFrame(rows, schema=names, orient="row").with_columns(
        stage=pl.when(pl.col("lane") == "compute").then(0),
        microbatch=pl.when(pl.col("lane") == "compute").then(0),
        name=pl.col("kind"),
    )
    ranks = pl.DataFrame(
        {"rank": [0, 1], "host": "h", "stages": [[0], [0]], "dp": [0, 1], "timed": timed},
        schema_overrides={"rank": pl.Int32, "stages": pl.List(pl.Int32), "dp": pl.Int32},
    )
    return Timeline(tasks, ranks)


@pytest.mark.parametrize(("timed", "collectives"), [("host", True), ("device", False)])
def test_a_rank_is_slow_if_its_tasks_hold_nothing_but_its_own_work(timed, collectives):
    run = replicas(timed, collectives=collectives)
    assert study(run).slow_rank.rank == 0
    said = " ".join(str(Explanation.of(run)).split())
    assert "Rank 0 is 200.00 % slower than a healthy rank" in said
    assert "Look at its device" in said


def test_it_may_be_the_one_that_waits_where_the_host_was_timed_and_no_collective_is_apart():
    run = replicas("host", collectives=False)
    assert study(run).slow_rank is None
    said = " ".join(str(Explanation.of(run)).split())
    assert "Tasks of rank 0 take 200.00 % longer" in said
    assert "not told from waiting for another rank" in said
    assert "Replace no device before" in said
    assert "Look at its device" not in said
    assert "slower than a healthy rank" not in str(Report.of(run))
