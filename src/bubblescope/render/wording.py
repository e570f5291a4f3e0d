"""What every output says of a run in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubblescope.model import units

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline


def facts(timeline: Timeline) -> list[str]:
    """Return what a heading says of a timeline: schedule, ranks, steps, tasks and length."""
    hosts = timeline.ranks["host"].n_unique()
    counted = [
        units.count(timeline.ranks.height, "rank")
        + (f" on {units.count(hosts, 'host')}" if hosts > 1 else ""),
        units.count(len(timeline.steps), "step"),
        units.count(len(timeline), "task"),
        units.duration(timeline.duration_ns or timeline.extent_ns),
    ]
    return [timeline.run.schedule, *counted] if timeline.run.schedule else counted
