"""Taking stock of traces: what a job says that it has, and has not."""

from __future__ import annotations

import pytest

from bubblescope.sources.inventory import absent, missing_ranks


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
