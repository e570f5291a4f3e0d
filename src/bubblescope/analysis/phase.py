"""The part of a run that analyses are about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from bubblescope.vocabulary import COMPUTE_KINDS, Kind, Lane

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.timeline import Timeline

__all__ = ["evenly", "pipeline_phase"]


def pipeline_phase(
    tasks: pl.DataFrame, kinds: Collection[str | Kind] = COMPUTE_KINDS
) -> pl.DataFrame:
    """Return the tasks of some kinds on the compute lane.

    Tasks that belong to no step are left out if any belongs to one: they would otherwise stretch over
    the whole run.
    """
    wanted = [Kind(kind).value for kind in kinds]
    phase = tasks.filter(pl.col("kind").is_in(wanted), pl.col("lane") == Lane.COMPUTE.value)
    if phase["step"].is_not_null().any():
        phase = phase.filter(pl.col("step").is_not_null())
    return phase


def evenly(timeline: Timeline, count: int) -> Timeline:
    """Return so many of a run's steps, from the first to the last as evenly as can be."""
    steps = timeline.steps
    if count >= len(steps):
        return timeline
    last = len(steps) - 1
    places = [round(index * last / max(1, count - 1)) for index in range(count)]
    return timeline.slice(steps=[steps[place] for place in dict.fromkeys(places)])
