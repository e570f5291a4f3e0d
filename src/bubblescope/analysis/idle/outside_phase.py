"""Idle time of ranks in their steps outside of the pipeline phase."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from bubblescope.analysis.idle.causes import Cause
from bubblescope.model import intervals
from bubblescope.model.extents import extents
from bubblescope.model.kinds import COMPUTE_KINDS, Lane
from bubblescope.model.timeline import TASK_SCHEMA

if TYPE_CHECKING:
    from bubblescope.analysis.idle.measured_run import MeasuredRun
    from bubblescope.model.timeline import Timeline


def outside_phase(timeline: Timeline, run: MeasuredRun, between: pl.DataFrame) -> pl.DataFrame:
    """Return how long each rank was idle in its steps outside of the pipeline phase and its rounds."""
    phase = pl.DataFrame(
        {
            "step": pl.Series(run.steps, dtype=TASK_SCHEMA["step"]),
            "pipeline": pl.Series(run.pipeline, dtype=pl.Int32),
            "opens": run.opens_ns,
            "closes": run.opens_ns + run.as_measured.length_ns,
        }
    )
    window = ["step", "pipeline"]
    rest = between.group_by(window).agg(rest=(pl.col("end_ns") - pl.col("start_ns")).sum())
    phase = (
        phase.join(rest, on=window, how="left", nulls_equal=True)
        .with_columns(pl.col("rest").fill_null(0))
        .with_columns(closes=pl.col("closes") + pl.col("rest"))
    )

    def placed(rows: pl.DataFrame) -> pl.DataFrame:
        """Add the pipeline and its phase to rows of ranks and steps; drop those of other steps."""
        of = pl.col("pipeline").fill_null(0)  # ranks without tasks of the pipeline
        rows = rows.join(run.pipelines, on="rank", how="left").with_columns(of)
        return rows.join(phase, on=window, nulls_equal=True)

    tasks = timeline.tasks.select("rank", "step", "kind", "lane", "start_ns", "end_ns")
    edges = pl.col("start_ns").min(), pl.col("end_ns").max()
    steps = (
        placed(extents(tasks, "rank", "step"))
        .group_by(window)
        .agg(*edges, pl.col("opens", "closes", "rest").first())
    )
    around = (pl.col("opens") - pl.col("start_ns")) + (pl.col("end_ns") - pl.col("closes"))
    around += pl.col("rest")
    idle = steps.select(*window, window=around).join(run.pipelines, on="pipeline")
    kinds = [kind.value for kind in COMPUTE_KINDS]
    work = tasks.filter(pl.col("lane") == Lane.COMPUTE.value, ~pl.col("kind").is_in(kinds))
    work = placed(work).sort("step", "rank", "start_ns")
    fresh_ns = intervals.fresh_start_ns(*intervals.columns(work, "step", "rank"))
    fresh = work.with_columns(start_ns=pl.Series(fresh_ns))
    before = (pl.min_horizontal("end_ns", "opens") - pl.col("start_ns")).clip(lower_bound=0)
    after = (pl.col("end_ns") - pl.max_horizontal("start_ns", "closes")).clip(lower_bound=0)
    meanwhile = fresh.select(*window, "rank", "start_ns", "end_ns").join(
        between.rename({"start_ns": "from_ns", "end_ns": "until_ns"}), on=window, nulls_equal=True
    )
    inside = pl.min_horizontal("end_ns", "until_ns") - pl.max_horizontal("start_ns", "from_ns")
    busy = (
        pl.concat(
            [
                fresh.select("step", "rank", busy=before + after),
                meanwhile.select("step", "rank", busy=inside.clip(lower_bound=0)),
            ]
        )
        .group_by("step", "rank")
        .agg(pl.col("busy").sum())
    )
    return (
        idle.join(busy, on=["step", "rank"], how="left", nulls_equal=True)
        .select(
            "step",
            "rank",
            cause=pl.lit(Cause.SYNC.value),
            idle_ns=pl.col("window") - pl.col("busy").fill_null(0),
        )
        .filter(pl.col("idle_ns") > 0)
        .sort("step", "rank")
    )
