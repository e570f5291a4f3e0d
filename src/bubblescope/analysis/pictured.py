"""What a picture of a run is made of: the part that is drawn, and the rates written beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bubblescope.analysis.rates import BubbleRates, bubble_rates

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline


class Reference(NamedTuple):
    """What a run is set beside.

    Attributes:
        title: What it is, in a few words.
        detail: The same in a sentence.
        timeline: Its tasks; each step begins when the measured one did.
    """

    title: str
    detail: str
    timeline: Timeline


class Pictured(NamedTuple):
    """What a picture shows.

    Attributes:
        timeline: What is drawn.
        rates: Its bubble rates.
        title: What it is, if it is not alone.
        above: What it is set beside: drawn above it, on the same axis of time.
    """

    timeline: Timeline
    rates: BubbleRates
    title: str = ""
    above: Pictured | None = None


def pictured(
    timeline: Timeline, max_steps: int | None = None, beside: Reference | None = None
) -> Pictured:
    """Return what a picture of a run shows.

    Args:
        timeline: The run.
        max_steps: Only the first so many steps; all if None.
        beside: What it is set beside, if anything.
    """
    if max_steps is not None and len(timeline.steps) > max_steps:
        timeline = timeline.slice(steps=timeline.steps[:max_steps])
    shown = Pictured(timeline, bubble_rates(timeline))
    if beside is None:
        return shown
    planned = beside.timeline.slice(steps=set(timeline.steps) & set(beside.timeline.steps))
    above = Pictured(planned, bubble_rates(planned), beside.title)
    return shown._replace(title="as it ran", above=above)
