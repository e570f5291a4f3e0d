"""Times of a run as its corrected clocks show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from bubblescope.clocks.solution import Clocks
from bubblescope.clocks.tightest_pairs import TIMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.clocks.bounded_clocks import Group
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline_tables import Table

_UNSTEPPED: Final = -1


def moved_tasks(tasks: pl.DataFrame, clock_of: dict[int, int], solved: list[Group]) -> pl.DataFrame:
    """Return the tasks with corrected times."""
    moved = tasks.with_columns(corrected(tasks, TIMES, clock_of, solved))
    return moved.with_columns(_fitting("busy_ns"))


def _fitting(*lengths: str) -> list[pl.Expr]:
    """Return lengths of time that are no longer than what holds them: a fast clock made both longer."""
    whole = pl.col("end_ns") - pl.col("start_ns")
    return [pl.when(pl.col(one) > whole).then(whole).otherwise(one).alias(one) for one in lengths]


def moved_table(
    frame: pl.DataFrame, table: Table, clock_of: dict[int, int], solved: list[Group]
) -> pl.DataFrame:
    """Return a table with corrected times; lengths of time stay as they were measured, if they fit.

    Where every step has a zero of its own there is no saying which one a row counts from that is of no
    step: then there are none.
    """
    if not table.moments or not frame.height:
        return frame
    if any(group.step is not None for group in solved):
        return frame.clear()
    moved = frame.with_columns(corrected(frame, table.moments, clock_of, solved))
    if "end_ns" not in table.moments:
        return moved
    lengths = [name for name in frame.columns if name.endswith("_ns") and name not in table.moments]
    return moved.with_columns(_fitting(*lengths))


def corrected(
    frame: pl.DataFrame, names: Sequence[str], clock_of: dict[int, int], solved: list[Group]
) -> list[pl.Series]:
    """Return columns of times as the corrected clocks show them."""
    number = np.zeros(1 + max(clock_of), np.int64)
    number[list(clock_of)] = list(clock_of.values())
    clock = number[frame["rank"].to_numpy()]
    step = frame["step"] if "step" in frame.columns else None
    columns = []
    for name in names:
        times = frame[name]
        shown = pl.Series(name, shown_by(clock, times.fill_null(0).to_numpy(), step, solved))
        columns.append(shown.set(times.is_null(), None) if times.has_nulls() else shown)
    return columns


def shown_by(clock: Ints, times: Ints, step: pl.Series | None, solved: list[Group]) -> Ints:
    """Return times of clocks as the corrected clocks show them."""
    if all(group.step is None for group in solved):
        every: Ints = times + _all_of(solved, int(clock.max(initial=0)) + 1).correction(
            clock, times
        )
        return every
    shown = times.copy()
    steps = np.full(len(times), _UNSTEPPED) if step is None else step.fill_null(_UNSTEPPED)
    there = set(np.unique(steps))
    for group in solved:
        if group.step not in there:
            continue
        found: Any = group.found
        chosen = np.isin(clock, group.clocks) & (np.asarray(steps) == group.step)
        place = np.searchsorted(group.clocks, clock[chosen])
        shown[chosen] += found.correction(place, times[chosen])
    return shown


def _all_of(solved: list[Group], count: int) -> Clocks:
    """Return how to correct so many clocks or more; those of no group stay as they are."""
    count = max([count, *(int(group.clocks.max()) + 1 for group in solved)])
    nothing = np.zeros(count, np.int64)
    every = Clocks(
        nothing.copy(), nothing + 1, nothing.copy(), np.zeros((2, count)), nothing, nothing, 0.0,
        drifts=any(isinstance(group.found, Clocks) and group.found.drifts for group in solved),
    )  # fmt: skip
    for group in solved:
        found: Any = group.found
        every.origin_ns[group.clocks] = found.origin_ns
        every.length_ns[group.clocks] = found.length_ns
        every.rough_ns[group.clocks] = found.rough_ns
        every.line_ns[:, group.clocks] = found.line_ns
    return every
