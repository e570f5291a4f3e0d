"""Steps that failed and were tried again."""

from __future__ import annotations

import polars as pl

from bubblescope.recording.columns import SPOILED


def without_failed(tasks: pl.DataFrame) -> tuple[pl.DataFrame, list[int]]:
    """Take what was done for steps that failed out of these steps, which were tried again.

    Args:
        tasks: Frame with rank, step, microbatch, name and host_start_ns.

    Returns:
        The tasks, and the numbers of the steps, one for each time.
    """
    if not (tasks["name"] == SPOILED).any():
        return tasks, []
    failed = tasks.filter(name=SPOILED).drop_nulls("step")
    # A round of a step begins with the micro-batch that the row says; rounds before it are done.
    for row in failed.iter_rows(named=True):
        of = (pl.col("step") == row["step"]) & (pl.col("host_start_ns") <= row["host_start_ns"])
        of &= (pl.col("microbatch") >= row["microbatch"]) & (pl.col("rank") == row["rank"])
        tasks = tasks.with_columns(step=pl.when(~of.fill_null(value=False)).then("step"))
    return tasks, failed["step"].to_list()
