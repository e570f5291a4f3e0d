"""What must come before what on different ranks: passes, and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from bubblescope.model.dependencies import messages, passes
from bubblescope.model.kinds import Kind

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline

NO_CLOCK = -1
"""The clock of tasks that tell nothing of how clocks differ."""


def constraints(timeline: Timeline, clock: Ints | None = None) -> pl.DataFrame:
    """Return each pair of moments on two ranks of which one must not come after the other.

    A forward of a micro-batch cannot start on a stage before it has ended on the stage before, nor a
    backward before it has ended on the stage after. A receive cannot end before its send has
    started, which says more where both were recorded.

    Args:
        timeline: The run.
        clock: The number of each task's clock, or `NO_CLOCK`; that of its rank if it is not given.
            Only pairs of different clocks are returned.

    Returns:
        Frame with cause and effect, rows of the tasks, and before_ns (of the cause) and after_ns (of
        the effect), neither of which is null: those of forwards and of backwards, each in the
        order of the causes, then messages.
    """
    if clock is None:
        clock = timeline.tasks["rank"].to_numpy()
    return pl.concat([_passes(timeline, clock), _messages(timeline, clock)])


def _apart(clock: Ints, cause: pl.Series, effect: pl.Series) -> pl.Series:
    """Say which pairs are of two clocks."""
    one, other = (clock[rows.to_numpy()] for rows in (cause, effect))
    return pl.Series((one != other) & (one != NO_CLOCK) & (other != NO_CLOCK), dtype=pl.Boolean)


def _passes(timeline: Timeline, clock: Ints) -> pl.DataFrame:
    """Return the ends of passes that those of the next stage wait for, and their starts.

    Of an overlapped pair no one knows when either half ran: its forward is taken to end no sooner
    than the whole starts, and to start no later than the whole ends.
    """
    tasks = timeline.tasks
    pairs = passes(timeline)
    backward = pairs["backward"].to_numpy()
    # One rank's passes to the same rank are next to each other then.
    order = np.concatenate([np.flatnonzero(~backward), np.flatnonzero(backward)])
    pairs = pairs.select(cause="source", effect="target")[order]
    apart = _apart(clock, *pairs)
    if not apart.all():
        pairs = pairs.filter(apart)
    before, after = tasks["end_ns"], tasks["start_ns"]
    both = tasks["kind"] == Kind.FORWARD_BACKWARD.value
    if both.any():
        before, after = after.zip_with(both, before), before.zip_with(both, after)
    return _timed(pairs, before, after)


def _messages(timeline: Timeline, clock: Ints) -> pl.DataFrame:
    """Return the starts of sends and the ends of their receives."""
    pairs = messages(timeline).select(cause="send", effect="receive")
    tasks = timeline.tasks
    return _timed(pairs.filter(_apart(clock, *pairs)), tasks["start_ns"], tasks["end_ns"])


def _timed(pairs: pl.DataFrame, before: pl.Series, after: pl.Series) -> pl.DataFrame:
    return pairs.with_columns(
        before_ns=before.gather(pairs["cause"]), after_ns=after.gather(pairs["effect"])
    )
