"""Taking stock of traces: what a job says that it has, and has not."""

from __future__ import annotations

import polars as pl
import pytest

from bubblescope.sources.inventory import absent, missing_ranks, ranks_without_passes


@pytest.mark.parametrize(
    ("found", "world", "first", "count"),
    [
        ([0, 1], 2, [], 0),
        ([1, 3], 6, [0, 2, 4], 4),
        ([0, 7, 99], 3, [1, 2], 2),  # 7 and 99 are beyond what the job says
        ([], 1, [0], 1),
        ([2], 2_000_000_000, [0, 1, 3], 1_999_999_999),  # a file that somebody named so
    ],
)
def test_the_first_missing_ranks_are_found_however_many_a_job_claims(found, world, first, count):
    assert absent(found, world, 3) == (first, count)


def test_missing_ranks_are_counted_and_some_are_named():
    [notice] = missing_ranks([0], 100)
    assert (notice.lost, notice.total) == (99, 100)
    assert "(1, 2, 3, 4, 5, 6, 7, 8, ...)" in notice.message
    assert missing_ranks([0, 1], None) == []


@pytest.mark.parametrize(
    ("kinds", "lacking"),
    [
        ([(0, "forward"), (1, "backward")], []),
        ([(0, "forward"), (1, "collective")], [1]),
        ([(0, "forward")], [1]),
        ([(0, "optimizer"), (1, "other")], []),  # no rank of a run without passes lacks any
    ],
)
def test_ranks_without_passes_are_named_where_others_have_some(kinds, lacking):
    tasks = pl.DataFrame(kinds, schema=["rank", "kind"], orient="row")
    found = ranks_without_passes(tasks, [0, 1])
    assert [notice.lost for notice in found] == [len(lacking)] * bool(lacking)
    assert all("rank 1: no forward or backward is known" in notice.message for notice in found)
