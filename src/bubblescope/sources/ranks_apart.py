"""Ranks that were recorded at different times: windows of one job, clocks that differ, or two jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.model import units
from bubblescope.model.extents import extents
from bubblescope.model.provenance import Notice

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline

_LONG_NS: Final = 2 * 86_400 * 10**9
"""Time from which on it is said in days."""


def with_ranks_apart(timeline: Timeline) -> Timeline:
    """Return a run in which ranks are not compared if some were recorded long after the others ended.

    That is after more time than any of them was recorded for: less may lie between ranks that work in
    turns.

    Returns:
        The run itself where there are none; else one with a warning.
    """
    if not timeline.run.common_clock or timeline.ranks.height < 2:
        return timeline
    parts = [extents(frame, "rank") for frame in (timeline.tasks, timeline.budget) if frame.height]
    if not parts:
        return timeline
    of = extents(pl.concat(parts), "rank").sort("start_ns", "rank")
    ended = pl.col("end_ns").cum_max().shift(1)
    gap = of.select((pl.col("start_ns") - ended).fill_null(0)).to_series()
    longest = max(gap.to_list())
    if longest <= max((of["end_ns"] - of["start_ns"]).to_list()):
        return timeline
    later = of["rank"][gap.to_list().index(longest) :].sort().to_list()
    text = (
        f"{units.listed('rank', later)} began {_said(longest)} after all others had ended: the traces "
        "are of several runs or of different times of one, or the clocks differ by as much, so ranks "
        "are not compared"
    )
    run = timeline.run.warned(Notice("ranks-apart", text, len(later), timeline.ranks.height))
    return timeline.with_run(msgspec.structs.replace(run, common_clock=False))


def _said(time_ns: int) -> str:
    if time_ns < _LONG_NS:
        return units.duration(time_ns)
    return f"{time_ns / _LONG_NS * 2:.0f} days"
