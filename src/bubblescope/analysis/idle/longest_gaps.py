"""The longest stretches of idle time, to be named one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.idle.causes import INHERENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bubblescope.model.timeline import Timeline

MOST: Final = 1_000
"""Stretches that are named of a run that is looked at in parts."""

_INHERENT: Final = [cause.value for cause in INHERENT]


def longest(
    ledger_gaps: Iterable[pl.DataFrame], timeline: Timeline, count: int = MOST
) -> pl.DataFrame:
    """Return the longest stretches of idle time that are not inherent to the schedule.

    Args:
        ledger_gaps: Those of a ledger, some at a time.
        timeline: The run.
        count: How many.

    Returns:
        Frame with length_ns, start_ns, step, rank and cause, and before and root: the tasks before
        which it is (null for none) and on which all waited in the end, as structs; longest first.
    """
    length = (pl.col("end_ns") - pl.col("start_ns")).alias("length_ns")
    parts = (
        part.filter(~pl.col("cause").is_in(_INHERENT)).with_columns(length) for part in ledger_gaps
    )
    found = _first(parts, count)
    tasks = timeline.tasks
    named = pl.struct(tasks.columns)
    before = found.select(pl.col("task").cast(pl.UInt32)).join(
        tasks.with_row_index("task").select("task", before=named),
        on="task",
        how="left",
        maintain_order="left",
    )["before"]
    return found.select(
        "length_ns",
        "start_ns",
        "step",
        "rank",
        "cause",
        before,
        tasks[found["root"]].to_struct("root"),
    )


def counted(ledger_gaps: Iterable[pl.DataFrame]) -> int:
    """Return how many stretches there are that are not inherent to the schedule.

    Args:
        ledger_gaps: Those of a ledger, some at a time.
    """
    return sum(int((~part["cause"].is_in(_INHERENT)).sum()) for part in ledger_gaps)


def joined(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the longest of several parts of a run."""
    return _first(parts, MOST)


def _first(parts: Iterable[pl.DataFrame], count: int) -> pl.DataFrame:
    kept: pl.DataFrame | None = None
    order = ["length_ns", "start_ns", "rank", "cause"]
    for part in parts:
        both = part if kept is None else pl.concat([kept, part])
        if both.height > count:  # few are sorted of what may be millions
            both = both.filter(pl.col("length_ns") >= both["length_ns"].top_k(count).min())
        kept = both.sort(order, descending=[True, False, False, False]).head(count)
    if kept is None:
        raise ValueError("a run has a part")
    return kept
