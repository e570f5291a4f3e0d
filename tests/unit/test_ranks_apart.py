"""Ranks that were recorded at different times."""

from __future__ import annotations

import polars as pl
import pytest

from bubblescope.model.timeline import Timeline
from bubblescope.sources.ranks_apart import with_ranks_apart
from synthetic import one_f_one_b

RUN = one_f_one_b(ranks=3, microbatches=4, steps=2, hosts=1)
LENGTH_NS = RUN.end_ns - RUN.start_ns


def moved(by_ns, *ranks):
    """Return the run with some ranks recorded later."""
    later = pl.when(pl.col("rank").is_in(ranks)).then(by_ns).otherwise(0)
    times = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")
    tasks = RUN.tasks.with_columns(pl.col(times) + later)
    return Timeline(tasks, RUN.ranks, RUN.run)


def notice_of(timeline):
    [notice] = [one for one in timeline.run.warnings if one.code == "ranks-apart"]
    return notice


@pytest.mark.parametrize("by_ns", [0, LENGTH_NS // 2, 3 * LENGTH_NS // 2])
def test_ranks_that_overlap_or_follow_each_other_closely_are_compared(by_ns):
    run = moved(by_ns, 2)
    assert with_ranks_apart(run) is run


@pytest.mark.parametrize(
    ("by_ns", "said"), [(3 * LENGTH_NS, "rank 2 began"), (86_400 * 10**9 * 12, "12 days")]
)
def test_ranks_of_another_time_are_not_compared(by_ns, said):
    found = with_ranks_apart(moved(by_ns, 2))
    assert not found.run.common_clock
    notice = notice_of(found)
    assert (notice.lost, notice.total) == (1, 3)
    assert said in notice.message


def test_all_that_are_later_are_named():
    found = with_ranks_apart(moved(3 * LENGTH_NS, 1, 2))
    assert notice_of(found).message.startswith("ranks 1, 2 began")
