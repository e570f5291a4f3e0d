"""Counters: what was measured beside the tasks. A value holds until the next sample."""

from __future__ import annotations

from typing import Final

import polars as pl

COUNTER_SCHEMA: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "name": pl.String(),
    "unit": pl.String(),
    "time_ns": pl.Int64(),
    "value": pl.Float64(),
}
"""Columns of `Timeline.counters`, in order."""

COUNTER_KEY: Final = ("rank", "name", "unit")
"""What tells counters apart."""


def in_force(counters: pl.DataFrame, start_ns: int | None, end_ns: int | None) -> pl.DataFrame:
    """Return the samples of sorted counters that say what holds in [start_ns, end_ns).

    That is every sample in it, and of each counter the last one before it, moved to its start. None
    stands for no bound.
    """
    if start_ns is not None:
        following = pl.col("time_ns").shift(-1).over(COUNTER_KEY)
        ended = (pl.col("time_ns") < start_ns) & (following <= start_ns).fill_null(value=False)
        counters = counters.filter(~ended).with_columns(
            time_ns=pl.col("time_ns").clip(lower_bound=start_ns)
        )
    if end_ns is not None:
        counters = counters.filter(pl.col("time_ns") < end_ns)
    return counters


def changes(samples: pl.DataFrame) -> pl.DataFrame:
    """Return the samples at which a counter changes: its value holds until then anyway.

    Args:
        samples: Frame with name, unit, time_ns and value, and with rank or not.
    """
    place = [column for column in COUNTER_KEY if column in samples.columns]
    ordered = samples.sort(*place, "time_ns", maintain_order=True)
    return ordered.filter(pl.col("value").ne_missing(pl.col("value").shift(1).over(place)))
