"""Everything that is worked out about a run before it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bubblescope.analysis.bubbles import Bubbles, measure
from bubblescope.analysis.ideal import Ideal, ideal
from bubblescope.analysis.recognition import Recognition, recognise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.schedules import Plan
    from bubblescope.timeline import Timeline

__all__ = ["Study", "study"]


class Study(NamedTuple):
    """What is known of a run.

    Attributes:
        recognition: The schedule that it followed; None if no operation of it can be placed.
        ideal: A perfect run of that schedule; None if there is none.
        bubbles: Its bubble rates.
    """

    recognition: Recognition | None
    ideal: Ideal | None
    bubbles: Bubbles


def study(timeline: Timeline, also: Sequence[Plan] = ()) -> Study:
    """Recognise a run's schedule, replay it, and measure the run beside it.

    Args:
        timeline: The run.
        also: Schedules to try besides the known ones.
    """
    found = recognise(timeline, also)
    best = ideal(timeline, found) if found else None
    return Study(found, best, measure(timeline, best.steps if best else None))
