"""Everything that is worked out about a run before it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bubblescope.analysis.bubbles import Bubbles, measure
from bubblescope.analysis.ideal import Ideal, ideal
from bubblescope.analysis.ledger import Ledger, ledger
from bubblescope.analysis.phase import evenly
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
        ledger: Why its ranks were idle; None if they share no clock or it has no pipeline tasks.
        explained: Number of steps that the ledger is about.
    """

    recognition: Recognition | None
    ideal: Ideal | None
    bubbles: Bubbles
    ledger: Ledger | None
    explained: int


def study(timeline: Timeline, also: Sequence[Plan] = (), most: int | None = None) -> Study:
    """Recognise a run's schedule, replay it, measure the run beside it, and explain what was idle.

    Args:
        timeline: The run.
        also: Schedules to try besides the known ones.
        most: Tasks to explain at most, as whole steps that lie evenly over the run; all if left out.
    """
    found = recognise(timeline, also)
    best = ideal(timeline, found) if found else None
    bubbles = measure(timeline, best.steps if best else None)
    part = timeline
    if most is not None and len(timeline) > most:
        part = evenly(timeline, max(1, most * len(timeline.steps) // len(timeline)))
    if part is not timeline and found is not None and found.departures:
        found_there = recognise(part, also)
    else:
        found_there = found
    return Study(found, best, bubbles, ledger(part, found_there), len(part.steps))
