"""What encloses what on the threads of a process."""

from __future__ import annotations

import polars as pl

from bubblescope.model.intervals import reached_ns


def outermost(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans that no other of their thread encloses or overlaps, by thread and start.

    Args:
        spans: Frame with thread, start_ns, end_ns and any other columns.
    """
    spans = spans.sort("thread", "start_ns", "end_ns", descending=[False, False, True])
    reached = reached_ns(spans["end_ns"].to_numpy(), spans["thread"].to_numpy())
    return spans.filter(pl.col("start_ns") >= pl.Series(reached, dtype=pl.Int64))


def enclosing(points: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return for each point of a thread the span of that thread that it lies in.

    Args:
        points: Frame with thread and start_ns, the moment, and any other columns.
        spans: Frame with thread, start_ns and end_ns (exclusive) of spans that do not overlap on their
            thread.

    Returns:
        The points by start, with the columns since_ns and until_ns of their spans; null in none.
    """
    found = points.sort("start_ns").join_asof(
        spans.select("thread", "start_ns", since_ns="start_ns", until_ns="end_ns").sort("start_ns"),
        on="start_ns",
        by="thread",
        check_sortedness=False,  # it cannot be checked by group; both sides are sorted above
    )
    inside = pl.col("start_ns") < pl.col("until_ns")
    return found.with_columns(pl.when(inside).then(pl.col("since_ns", "until_ns")))
