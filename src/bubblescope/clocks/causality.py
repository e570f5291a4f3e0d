"""What must come before what on different ranks: all that is known about how their clocks differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from bubblescope.model.dependencies import messages, passes
from bubblescope.model.kinds import Kind

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline


def constraints(timeline: Timeline) -> pl.DataFrame:
    """Return each pair of moments on two ranks of which one must not come after the other.

    A forward of a micro-batch cannot start on a stage before it has ended on the stage before, nor a
    backward before it has ended on the stage after. A receive cannot end before its send has
    started, which says more where both were recorded.

    Returns:
        Frame with step, a and b (ranks), before_ns (on a) and after_ns (on b), neither of which is
        null, and cause and effect, the names of the tasks.
    """
    return pl.concat([_passes(timeline), _messages(timeline)])


def _passes(timeline: Timeline) -> pl.DataFrame:
    """Return the ends of passes that those of the next stage wait for, and their starts.

    Of an overlapped pair no one knows when either half ran: its forward is taken to end no sooner
    than the whole starts, and to start no later than the whole ends.
    """
    both = pl.col("kind") == Kind.FORWARD_BACKWARD.value
    tasks = timeline.tasks.select(
        "rank",
        "step",
        "name",
        start_ns=pl.when(both).then("end_ns").otherwise("start_ns"),
        end_ns=pl.when(both).then("start_ns").otherwise("end_ns"),
    )
    pairs = passes(timeline)
    source, target = tasks[pairs["source"]], tasks[pairs["target"]]
    return pl.DataFrame(
        {
            "step": source["step"],
            "a": source["rank"],
            "b": target["rank"],
            "before_ns": source["end_ns"],
            "after_ns": target["start_ns"],
            "cause": source["name"],
            "effect": target["name"],
        }
    ).filter(pl.col("a") != pl.col("b"))


def _messages(timeline: Timeline) -> pl.DataFrame:
    """Return the starts of sends and the ends of their receives."""
    pairs = messages(timeline)
    send, receive = timeline.tasks[pairs["send"]], timeline.tasks[pairs["receive"]]
    return pl.DataFrame(
        {
            "step": send["step"],
            "a": send["rank"],
            "b": receive["rank"],
            "before_ns": send["start_ns"],
            "after_ns": receive["end_ns"],
            "cause": send["name"],
            "effect": receive["name"],
        }
    )
