"""How well the stages of inferred passes agree with when these ran."""

from __future__ import annotations

from typing import Final

import polars as pl

from bubblescope.model.kinds import Kind

_MOST: Final = 0.9
"""Share of the ways from stage to stage that must be possible for the stages to be believed."""

_BACK: Final = [Kind.BACKWARD.value, Kind.BACKWARD_INPUT.value]
_WAY: Final = ["step", "microbatch"]


def with_possible_stages(tasks: pl.DataFrame) -> pl.DataFrame:
    """Lower the certainty of inferred passes by the share of stages that cannot have followed so.

    A micro-batch is in one stage at a time: its forward begins after that of the stage before has
    ended, its backward after that of the stage behind. Below nine in ten, no pass has a stage.

    Args:
        tasks: Frame with kind, stage, step, microbatch, start_ns, end_ns, certainty and, where passes
            were inferred, graph.
    """
    if "graph" not in tasks.columns or tasks["graph"].null_count() == tasks.height:
        return tasks
    told = tasks.filter(pl.col("graph").is_not_null()).drop_nulls(["stage", "microbatch"])
    forward = told.filter(kind=Kind.FORWARD.value).sort("stage")
    backward = told.filter(pl.col("kind").is_in(_BACK)).sort("stage", descending=True)
    ways = [
        one.select(possible=pl.col("start_ns") >= pl.col("end_ns").shift(1).over(_WAY))
        for one in (forward, backward)
    ]
    possible = pl.concat(ways)["possible"].drop_nulls()
    share = float(possible.mean()) if len(possible) else 1.0  # type: ignore[arg-type]
    inferred = pl.col("graph").is_not_null()
    if share < _MOST:
        return tasks.with_columns(stage=pl.when(~inferred).then("stage"))
    return tasks.with_columns(certainty=(pl.col("certainty") * share).cast(pl.Float32))
