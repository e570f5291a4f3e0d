"""What the traces of a job's other ranks say of passes that were inferred from one rank's."""

from __future__ import annotations

from typing import Final

import polars as pl

from bubblescope.model.kinds import Lane
from bubblescope.sources.step_agreement import matched

_SILENT: Final = 0.5
"""Factor of certainty of passes of ranks of which no message is seen."""
_UNMATCHED: Final = 0.4
"""Factor of certainty of passes whose steps are not those of other ranks as far as their times tell."""


def of_one_job(tasks: pl.DataFrame) -> pl.DataFrame:
    """Take the stage from inferred passes of ranks that seem to hold the whole model, if others do not.

    Of a rank of which little was traced few passes are beside a transfer.
    """
    if "graph" not in tasks.columns:
        return tasks
    inferred = pl.col("graph").is_not_null()
    passes = tasks.filter(inferred)
    if passes["stage"].null_count() in {0, passes.height}:
        return tasks
    return tasks.with_columns(stage=pl.when(~inferred).then("stage"))


def without_messages(tasks: pl.DataFrame) -> pl.DataFrame:
    """Lower the certainty of passes of ranks that work together, if no trace shows a message.

    Where backwards come in reverse, nothing else parts one from the next.
    """
    if "graph" not in tasks.columns:
        return tasks
    passes = tasks.filter(pl.col("graph").is_not_null(), pl.col("stage").is_null())
    messages = (tasks["lane"] == Lane.COMM.value).any()
    if messages or passes["rank"].n_unique() < _SEVERAL:
        return tasks
    return tasks.with_columns((pl.col("certainty") * _SILENT).cast(pl.Float32))


def with_common_steps(tasks: pl.DataFrame, how: str | None) -> pl.DataFrame:
    """Let ranks count steps from the same one, where each counted its own from the first it has.

    The times of any two stages in one step overlap (`step_agreement`); where the profilers of ranks
    did not begin at one instant, one may have begun a step later.

    Args:
        tasks: Frame with rank, step, start_ns, end_ns, certainty and, where passes were inferred,
            graph.
        how: How steps were found; None if the trace numbers them.
    """
    if "graph" not in tasks.columns or how is None or tasks["step"].n_unique() < _SEVERAL:
        return tasks
    windows = (
        tasks.filter(pl.col("graph").is_not_null())
        .drop_nulls("step")
        .group_by("rank", "step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("rank", "start_ns")
    )
    ranks = windows.partition_by("rank", as_dict=True, maintain_order=True)
    if len(ranks) < _SEVERAL:
        return tasks
    # Of those with most steps the first to begin, so that no number falls below its zero.
    reference = min(ranks.values(), key=lambda own: (-own.height, own["start_ns"][0]))
    shifts = {int(rank[0]): _shift(own, reference) for rank, own in ranks.items()}
    shift = pl.col("rank").replace_strict(
        list(shifts), list(shifts.values()), default=0, return_dtype=pl.Int32
    )
    sure = pl.when(shift.is_null()).then(_UNMATCHED).otherwise(1.0)
    step = pl.col("step") + shift.fill_null(0)
    return tasks.with_columns(
        step=step - pl.min_horizontal(step.min(), 0),
        certainty=(pl.col("certainty") * sure).cast(pl.Float32),
    )


_SEVERAL: Final = 2


def _shift(own: pl.DataFrame, reference: pl.DataFrame) -> int | None:
    """Return what to add to the numbers of a rank's steps; None if that is not sure."""
    rows = matched(own, reference)
    if rows is None or not (rows >= 0).any():
        return None
    known = rows >= 0
    apart = reference["step"].to_numpy()[rows[known]] - own["step"].to_numpy()[known]
    return int(apart[0]) if (apart == apart[0]).all() else None
