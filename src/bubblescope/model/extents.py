"""From when to when the tasks of each step, rank or the like last, all of them together."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

_FEW: Final = 1 << 12
"""Tasks that are grouped as they are."""

_EXTENT: Final = (pl.col("start_ns").min(), pl.col("end_ns").max())


def extents(tasks: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the first start and the last end of tasks that are alike in some columns.

    Of tasks that are mostly in order, each stretch of rows that are alike is one row before they are
    grouped, which takes a fraction of the time.

    Args:
        tasks: Frame with start_ns, end_ns and these columns, in any order.
        by: Columns of integers; rows without a value in one of them are alike.

    Returns:
        Frame with the columns, start_ns and end_ns; in no order.
    """
    if tasks.height > _FEW:
        turn = np.zeros(tasks.height, bool)
        turn[0] = True
        for name in by:
            column = tasks[name]
            if column.has_nulls():
                column = column.fill_null(column.lower_bound().item())
            values = column.to_numpy()
            turn[1:] |= values[1:] != values[:-1]
        begins = np.flatnonzero(turn)
        start, end = (tasks[name].to_numpy() for name in ("start_ns", "end_ns"))
        tasks = tasks.select(by)[begins].with_columns(
            start_ns=np.minimum.reduceat(start, begins), end_ns=np.maximum.reduceat(end, begins)
        )
    return tasks.group_by(by).agg(*_EXTENT)
