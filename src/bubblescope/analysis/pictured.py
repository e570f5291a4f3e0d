"""What a picture of a run is made of: the part that is drawn, and the rates written beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bubblescope.analysis.rates import BubbleRates, bubble_rates

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline


class Pictured(NamedTuple):
    """What a picture shows.

    Attributes:
        timeline: What is drawn.
        rates: Its bubble rates.
    """

    timeline: Timeline
    rates: BubbleRates


def pictured(timeline: Timeline, max_steps: int | None = None) -> Pictured:
    """Return what a picture of a run shows.

    Args:
        timeline: The run.
        max_steps: Only the first so many steps; all if None.
    """
    if max_steps is not None and len(timeline.steps) > max_steps:
        timeline = timeline.slice(steps=timeline.steps[:max_steps])
    return Pictured(timeline, bubble_rates(timeline))
