"""What must come before what on different ranks: all that is known about how their clocks differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from bubblescope.model.dependencies import messages, passes
from bubblescope.model.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bubblescope.model.timeline import Timeline


def constraints(timeline: Timeline, clock_of: Mapping[int, int] | None = None) -> pl.DataFrame:
    """Return each pair of moments on two ranks of which one must not come after the other.

    A forward of a micro-batch cannot start on a stage before it has ended on the stage before, nor a
    backward before it has ended on the stage after. A receive cannot end before its send has
    started, which says more where both were recorded.

    Args:
        timeline: The run.
        clock_of: Rank -> number of its clock, if only pairs of different clocks are wanted, which are
            mostly few.

    Returns:
        Frame with step, a and b (ranks), before_ns (on a) and after_ns (on b), neither of which is
        null, and cause and effect, rows of the tasks.
    """
    rank = timeline.tasks["rank"]
    clock = rank
    if clock_of is not None:
        clock = rank.replace_strict(clock_of, default=None, return_dtype=pl.Int32)
    return pl.concat([_passes(timeline, clock), _messages(timeline, clock)])


def _passes(timeline: Timeline, clock: pl.Series) -> pl.DataFrame:
    """Return the ends of passes that those of the next stage wait for, and their starts.

    Of an overlapped pair no one knows when either half ran: its forward is taken to end no sooner
    than the whole starts, and to start no later than the whole ends.
    """
    tasks = timeline.tasks
    pairs = passes(timeline).select("source", "target")
    apart = clock.gather(pairs["source"]) != clock.gather(pairs["target"])
    if not apart.all(ignore_nulls=False):
        pairs = pairs.filter(apart)
    source, target = pairs
    before, after = tasks["end_ns"], tasks["start_ns"]
    both = tasks["kind"] == Kind.FORWARD_BACKWARD.value
    if both.any():
        before, after = after.zip_with(both, before), before.zip_with(both, after)
    return pl.DataFrame(
        {
            "step": tasks["step"].gather(source),
            "a": tasks["rank"].gather(source),
            "b": tasks["rank"].gather(target),
            "before_ns": before.gather(source),
            "after_ns": after.gather(target),
            "cause": source,
            "effect": target,
        }
    )


def _messages(timeline: Timeline, clock: pl.Series) -> pl.DataFrame:
    """Return the starts of sends and the ends of their receives."""
    pairs = messages(timeline)
    pairs = pairs.filter(clock.gather(pairs["send"]) != clock.gather(pairs["receive"]))
    tasks = timeline.tasks.select("rank", "step", "start_ns", "end_ns")
    send, receive = tasks[pairs["send"]], tasks[pairs["receive"]]
    return pl.DataFrame(
        {
            "step": send["step"],
            "a": send["rank"],
            "b": receive["rank"],
            "before_ns": send["start_ns"],
            "after_ns": receive["end_ns"],
            "cause": pairs["send"],
            "effect": pairs["receive"],
        }
    )
