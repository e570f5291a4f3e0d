"""Bubbles of ranks that begin a step while others are in the one before, each moment once.

The phases of two such steps overlap, and each step has bubbles of its own: what is between a rank's
last task of the one and its first of the other is idle time of both, and what it runs of the one is
idle time of the other. That is right of each step, whose causes add up to its bubble, but a rank has
less time than that. Here a moment is of the step that began first, as in
`bubblescope.analysis.wall_clock`, and of none in which the rank ran a task of the pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from bubblescope.analysis.pipeline_phase import pipeline_phase, pipelines, step_facts
from bubblescope.model import intervals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bubblescope.model.timeline import Timeline

_EDGES: Final = ("start_ns", "end_ns")
_COLUMNS: Final = ("rank", "step", "kind", "lane", *_EDGES)
_KEY: Final = ("pipeline", "step")


def apart(
    gaps: Iterable[pl.DataFrame], timeline: Timeline, around: Timeline | None = None
) -> Iterator[pl.DataFrame]:
    """Yield bubbles without what is in one of an earlier step, or in a task of a later one.

    Args:
        gaps: As `Ledger.gaps`, some at a time.
        timeline: The run, or a part of it.
        around: What overlaps the time of that part and is of others.
    """
    # A part sees only some tasks of other steps: which began first is told by the whole run.
    spans = step_facts(timeline).spans.sort("start_ns", "step").with_row_index("turn")
    if not spans.select((pl.col("start_ns") < pl.col("end_ns").cum_max().shift(1)).any()).item():
        yield from gaps
        return
    tasks = [one.tasks.select(_COLUMNS) for one in (timeline, around) if one is not None]
    of = pipelines(timeline)
    phase = pipeline_phase(pl.concat(tasks)).join(of, on="rank")
    late = (
        phase.group_by(_KEY)
        .agg(pl.col("end_ns").max(), opens=pl.col("start_ns").min())
        .join(spans.select("step", "turn"), on="step", nulls_equal=True)
        .sort("pipeline", "turn")
        .with_columns(until=pl.col("end_ns").cum_max().shift(1).over("pipeline"))
        .filter(pl.col("opens") < pl.col("until"))
        .select(*_KEY, "until")
    )
    ahead = phase.join(late, on=_KEY, nulls_equal=True).filter(pl.col("start_ns") < pl.col("until"))
    held = _columns(ahead.sort("rank", "start_ns"))
    for part in gaps:
        placed = part.join(of, on="rank", maintain_order="left").join(
            late, on=_KEY, how="left", nulls_equal=True, maintain_order="left"
        )
        fresh = placed.with_columns(start_ns=pl.max_horizontal("start_ns", "until"))
        fresh = fresh.filter(pl.col("start_ns") < pl.col("end_ns"))
        yield _without(fresh.select(part.columns), held)


def _without(gaps: pl.DataFrame, held: tuple[Any, Any, Any]) -> pl.DataFrame:
    """Return gaps, in pieces where intervals of their ranks, by rank and start, are cut out of them."""
    at, of = intervals.met(held, _columns(gaps))
    if not len(at):
        return gaps
    _, start, end = held
    rows = pl.DataFrame({"at": at, "start_ns": start[of], "end_ns": end[of]})
    own = gaps.with_row_index("at").with_columns(pl.col("at").cast(pl.Int64))
    # What is between two of them, where the gap begins before the first and ends after the last.
    edges = pl.concat(
        [
            own.select("at", from_ns="start_ns", to_ns="start_ns"),
            rows.select("at", from_ns="start_ns", to_ns="end_ns"),
            own.select("at", from_ns="end_ns", to_ns="end_ns"),
        ]
    ).sort("at", "from_ns", "to_ns")
    pieces = edges.select(
        "at",
        start_ns=pl.col("to_ns").cum_max().over("at"),
        end_ns=pl.col("from_ns").shift(-1).over("at"),
    ).filter(pl.col("start_ns") < pl.col("end_ns"))
    return own.drop(_EDGES).join(pieces, on="at", maintain_order="left").select(gaps.columns)


def _columns(frame: pl.DataFrame) -> tuple[Any, Any, Any]:
    rank, start, end = (frame[name].to_numpy().astype(np.int64) for name in ("rank", *_EDGES))
    return rank, start, end
