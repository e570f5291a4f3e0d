"""From when to when steps last: the same, however their tasks are ordered."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from bubblescope.model.extents import extents, extremes

BY = ("rank", "step")


def tasks(count: int, seed: int) -> pl.DataFrame:
    random = np.random.default_rng(seed)
    start = random.integers(-(10**15), 10**15, count)
    return pl.DataFrame(
        {
            "rank": random.integers(0, 3, count).astype(np.int32),
            "step": random.integers(-2, 3, count).astype(np.int32),
            "start_ns": start,
            "end_ns": start + random.integers(0, 10**9, count),
        }
    ).with_columns(step=pl.when(pl.col("step") > -2).then("step"))


def grouped(frame: pl.DataFrame) -> pl.DataFrame:
    edges = pl.col("start_ns").min(), pl.col("end_ns").max()
    return frame.group_by(BY).agg(*edges)


@pytest.mark.parametrize("seed", range(4))
def test_they_are_what_grouping_says_in_any_order_and_without_values(
    seed: int,
) -> None:
    frame = tasks(500, seed)
    for ordered in (frame, frame.sort(BY), frame.sort("step", "start_ns", nulls_last=True)):
        assert_frame_equal(extents(ordered, *BY), grouped(frame), check_row_order=False)


def test_of_no_tasks_there_are_none() -> None:
    assert extents(tasks(0, 0), *BY).height == 0


@pytest.mark.parametrize("count", [0, 1, 500])
def test_the_least_the_greatest_and_sums_are_what_grouping_says(count: int) -> None:
    frame = tasks(count, seed=5)
    start, end = (frame[name].to_numpy() for name in ("start_ns", "end_ns"))
    found = extremes(
        frame.select(BY),
        least={"first": start},
        most={"last": end, "late": start},
        sums={"all": end},
    )
    wanted = frame.group_by(BY).agg(
        count=pl.len().cast(pl.Int64),
        first=pl.col("start_ns").min(),
        last=pl.col("end_ns").max(),
        late=pl.col("start_ns").max(),
        all=pl.col("end_ns").sum(),
    )
    assert_frame_equal(found, wanted, check_row_order=False)
