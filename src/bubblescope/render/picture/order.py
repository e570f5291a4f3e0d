"""Ranks in the order of the pipeline, whatever host they are on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline


def pipeline_order(timeline: Timeline) -> pl.DataFrame:
    """Return the table of ranks by the stage of each one's first chunk, then by rank.

    Where two copies of a pipeline run in opposite directions, two ranks hold the same stages, but
    not as the same chunks. Unknown stages order by rank.
    """
    first = (
        timeline.tasks.filter((pl.col("chunk") == 0) & pl.col("stage").is_not_null())
        .group_by("rank")
        .agg(chunk_stage=pl.col("stage").min())
    )
    stage = pl.coalesce("chunk_stage", pl.col("stages").list.min(), "rank")
    ranks = timeline.ranks.join(first, on="rank", how="left")
    return ranks.sort(stage, "rank").drop("chunk_stage")
