"""From when to when the tasks of each step, rank or the like last, all of them together."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.model.kinds import Lane
from bubblescope.model.ordering import a_row_of_each, numbered_rows, stretches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bubblescope.model.arrays import Ints

BEGAN: Final = pl.coalesce(
    pl.col("start_ns").filter(pl.col("lane") != Lane.COMM.value).min(), pl.col("start_ns").min()
)
"""When a rank began a step, of its tasks in it: a receive may be posted long before there is anything
to receive, so that what communicates is no beginning, unless there is no other."""


def extents(tasks: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the first start and the last end of tasks that are alike in some columns.

    Args:
        tasks: Frame with start_ns, end_ns and these columns, in any order.
        by: Columns of integers; rows without a value in one of them are alike.

    Returns:
        Frame with the columns, start_ns and end_ns; in no order.
    """
    start, end = (tasks[name].to_numpy() for name in ("start_ns", "end_ns"))
    found = extremes(tasks[list(by)], least={"start_ns": start}, most={"end_ns": end})
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
    rows = keys[begins]
    columns: dict[str, tuple[np.ufunc, Ints]] = {
        "count": (np.add, np.diff(begins, append=keys.height))
    }
    for how, wanted in ((np.minimum, least), (np.maximum, most), (np.add, sums)):
        columns |= {name: (how, _of_stretches(how, of, begins)) for name, of in wanted.items()}
    number, count = numbered_rows(rows)
    if count < len(number):
        some = a_row_of_each(number, count)
        rows = rows[some]
        columns = {
            name: (how, _of_numbers(how, of, number, some)) for name, (how, of) in columns.items()
        }
    return rows.hstack([pl.Series(name, of) for name, (_, of) in columns.items()])


def _of_stretches(how: np.ufunc, values: Ints, begins: Ints) -> Ints:
    """Return the least, greatest or sum of each stretch of values, given where they begin."""
    return how.reduceat(values, begins) if len(begins) else values


def _of_numbers(how: np.ufunc, values: Ints, number: Ints, some: Ints) -> Ints:
    """Return the least, greatest or sum of the values of each number, given a place where it stands."""
    found = np.zeros(len(some), values.dtype) if how is np.add else values[some]
    how.at(found, number, values)
    return found
