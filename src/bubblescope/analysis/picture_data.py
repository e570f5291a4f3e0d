"""What a picture of a run is made of: the part that is drawn, and the rates written beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import polars as pl

from bubblescope.analysis.device_budget import budget
from bubblescope.analysis.pipeline_phase import pipeline_phase
from bubblescope.analysis.rates import BubbleRates, bubble_rates

if TYPE_CHECKING:
    from bubblescope.analysis.device_budget import Budget
    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.model.timeline import Timeline


class Reference(msgspec.Struct, frozen=True):
    """What a run is set beside.

    Attributes:
        title: What it is, in a few words.
        detail: The same in a sentence.
        timeline: Its tasks; each step begins when the measured one did.
    """

    title: str
    detail: str
    timeline: Timeline


class Pictured(msgspec.Struct, frozen=True):
    """What a picture shows.

    Attributes:
        timeline: What is drawn.
        rates: Its bubble rates.
        title: What it is, if it is not alone.
        above: What it is set beside: drawn above it, on the same axis of time.
        budget: What its devices spent their time on, where it is no pipeline and its traces tell: it
            has no bubbles then, but idle devices.
        gaps: Stretches of idle time with their causes, as `Ledger.gaps` has them; None if they were not
            asked for or are not known.
    """

    timeline: Timeline
    rates: BubbleRates
    title: str = ""
    above: Pictured | None = None
    budget: Budget | None = None
    gaps: pl.DataFrame | None = None


def pictured(
    timeline: Timeline,
    max_steps: int | None = None,
    beside: Reference | None = None,
    ledger: Ledger | None = None,
    title: str = "",
) -> Pictured:
    """Return what a picture of a run shows.

    Args:
        timeline: The run.
        max_steps: Only the first so many steps; all if None.
        beside: What it is set beside, if anything.
        ledger: Why its ranks were idle, if that is to be seen.
        title: What it is called, where it is one of several.
    """
    if max_steps is not None and len(timeline.steps) > max_steps:
        timeline = timeline.slice(steps=timeline.steps[:max_steps])
    spent = None if _pipelined(timeline) else budget(timeline)
    gaps = None if ledger is None or spent is not None else _gaps(ledger, timeline.steps)
    shown = Pictured(timeline, bubble_rates(timeline), title, budget=spent, gaps=gaps)
    if beside is None:
        return shown
    planned = beside.timeline.slice(steps=set(timeline.steps) & set(beside.timeline.steps))
    above = Pictured(planned, bubble_rates(planned), beside.title)
    return msgspec.structs.replace(shown, title="as it ran", above=above)


def _gaps(ledger: Ledger, steps: list[int]) -> pl.DataFrame:
    """Return why ranks were idle in some steps, without all the others' being there at once."""
    drawn = pl.col("step").is_in(steps) | pl.col("step").is_null()
    return pl.concat([part.filter(drawn) for part in ledger.gaps_by_part()])


def _pipelined(timeline: Timeline) -> bool:
    """Say whether a run may be a pipeline, as `bubblescope.analysis.study.Study` does, without replays.

    Stages that differ from rank to rank make one. Without stages, forwards and backwards do, unless
    they were told by no more than the structure of the trace.
    """
    phase = pipeline_phase(timeline.tasks)
    staged = phase.drop_nulls(["stage", "microbatch"])
    if staged.height:
        held = staged.group_by("rank").agg(pl.col("stage").unique().sort())
        return held["stage"].n_unique() > 1
    return phase.height > 0 and "kind" not in timeline.run.inferred
