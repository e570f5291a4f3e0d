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
        null, and cause and effect, rows of the tasks.
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
        start_ns=pl.when(both).then("end_ns").otherwise("start_ns"),
        end_ns=pl.when(both).then("start_ns").otherwise("end_ns"),
    )
    pairs = passes(timeline)
    rank = tasks["rank"]
    pairs = pairs.filter(rank.gather(pairs["source"]) != rank.gather(pairs["target"]))
    source, target = pairs["source"], pairs["target"]
    return pl.DataFrame(
        {
            "step": tasks["step"].gather(source),
            "a": rank.gather(source),
            "b": rank.gather(target),
            "before_ns": tasks["end_ns"].gather(source),
            "after_ns": tasks["start_ns"].gather(target),
            "cause": source,
            "effect": target,
        }
    )


def _messages(timeline: Timeline) -> pl.DataFrame:
    """Return the starts of sends and the ends of their receives."""
    pairs = messages(timeline)
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
