"""The part of a run that analyses are about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model.kinds import COMPUTE_KINDS, Kind, Lane

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.model.timeline import Timeline

_FORWARDS: Final = [Kind.FORWARD.value, Kind.FORWARD_BACKWARD.value]
_BACKWARDS: Final = [kind.value for kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT)] + _FORWARDS[1:]


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


def partial_steps(tasks: pl.DataFrame) -> list[int]:
    """Return the steps in which only some of the ranks that ever ran pipeline tasks ran any.

    Args:
        tasks: As in `Timeline.tasks`.
    """
    phase = pipeline_phase(tasks)
    ranks = phase["rank"].n_unique()
    held = phase.drop_nulls("step").group_by("step").agg(pl.col("rank").n_unique())
    return held.filter(pl.col("rank") < ranks)["step"].sort().to_list()


def phases(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return when each rank was warming up, steady and cooling down in each step.

    Over a rank's pipeline tasks i of a step, with F the forwards and B the backwards (an overlapped
    pair is both):

    * warm-up is [start, steady): start = min start_i, steady = min start_b over b in B;
    * steady is [steady, cool);
    * cool-down is [cool, end): cool = max(steady, max end_f over f in F), end = max end_i.

    So they add up to the rank's span. Without a backward all of it is warm-up (steady = cool = end);
    without a forward, or where every forward has ended before the first backward begins, nothing is
    steady (cool = steady).

    Args:
        tasks: As in `Timeline.tasks`.

    Returns:
        Frame with rank, step, start_ns, steady_ns, cool_ns and end_ns, by rank and step.
    """
    start, end, kind = pl.col("start_ns"), pl.col("end_ns"), pl.col("kind")
    return (
        pipeline_phase(tasks)
        .group_by("rank", "step")
        .agg(
            start.min(),
            steady_ns=start.filter(kind.is_in(_BACKWARDS)).min().fill_null(end.max()),
            cool_ns=end.filter(kind.is_in(_FORWARDS)).max(),
            end_ns=end.max(),
        )
        .with_columns(cool_ns=pl.max_horizontal("steady_ns", "cool_ns"))
        .sort("rank", "step")
    )


def evenly(timeline: Timeline, count: int) -> Timeline:
    """Return so many of a run's steps, from the first to the last as evenly as can be."""
    steps = timeline.steps
    if count >= len(steps):
        return timeline
    last = len(steps) - 1
    places = [round(index * last / max(1, count - 1)) for index in range(count)]
    return timeline.slice(steps=[steps[place] for place in dict.fromkeys(places)])
