"""From when to when the tasks of each step, rank or the like last, all of them together."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.model.kinds import Lane
from bubblescope.model.ordering import stretches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bubblescope.model.arrays import Ints

_FEW: Final = 1 << 12
"""Tasks that are grouped as they are."""

BEGAN: Final = pl.coalesce(
    pl.col("start_ns").filter(pl.col("lane") != Lane.COMM.value).min(), pl.col("start_ns").min()
)
"""When a rank began a step, of its tasks in it: a receive may be posted long before there is anything
to receive, so that what communicates is no beginning, unless there is no other."""

_EXTENT: Final = (pl.col("start_ns").min(), pl.col("end_ns").max())


def extents(tasks: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the first start and the last end of tasks that are alike in some columns.

    Args:
        tasks: Frame with start_ns, end_ns and these columns, in any order.
        by: Columns of integers; rows without a value in one of them are alike.

    Returns:
        Frame with the columns, start_ns and end_ns; in no order.
    """
    if tasks.height <= _FEW:
        return tasks.group_by(by).agg(*_EXTENT)
    start, end = (tasks[name].to_numpy() for name in ("start_ns", "end_ns"))
    found = extremes(tasks.select(by), least={"start_ns": start}, most={"end_ns": end})
    return found.drop("count")


def extremes(
    keys: pl.DataFrame,
    *,
    least: Mapping[str, Ints] = MappingProxyType({}),
    most: Mapping[str, Ints] = MappingProxyType({}),
    sums: Mapping[str, Ints] = MappingProxyType({}),
) -> pl.DataFrame:
    """Return how many rows are alike in their keys, and the least, greatest or sum of what they have.

    Of rows that are mostly in order, each stretch of rows that are alike is one row before they are
    grouped, which takes a fraction of the time.

    Args:
        keys: Frame of n rows with columns of integers, of truth values or of an enumeration; rows
            without a value in one of them are alike.
        least: n integers by name, of which the least is wanted.
        most: Likewise, of which the greatest is wanted.
        sums: Likewise, of which the sum is wanted.

    Returns:
        Frame with the keys, count (Int64) and the names; in no order.
    """
    begins = stretches(keys, *keys.columns)
    found = keys[begins].with_columns(
        pl.Series("count", np.diff(begins, append=keys.height), dtype=pl.Int64),
        *(_reduced(np.minimum, name, values, begins) for name, values in least.items()),
        *(_reduced(np.maximum, name, values, begins) for name, values in most.items()),
        *(_reduced(np.add, name, values, begins) for name, values in sums.items()),
    )
    return found.group_by(keys.columns).agg(
        pl.col("count").sum(),
        *(pl.col(name).min() for name in least),
        *(pl.col(name).max() for name in most),
        *(pl.col(name).sum() for name in sums),
    )


def _reduced(how: np.ufunc, name: str, values: Ints, begins: Ints) -> pl.Series:
    return pl.Series(name, how.reduceat(values, begins) if len(begins) else values)
