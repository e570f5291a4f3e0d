"""Ranks in the order of the pipeline, whatever host they are on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubblescope.analysis.overview import first_stages, in_pipeline_order

if TYPE_CHECKING:
    import polars as pl

    from bubblescope.model.timeline import Timeline


def pipeline_order(timeline: Timeline) -> pl.DataFrame:
    """Return the table of ranks by the stage of each one's first chunk, then by rank."""
    return in_pipeline_order(timeline.ranks, first_stages(timeline.tasks))
