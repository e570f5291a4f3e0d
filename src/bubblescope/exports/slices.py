"""What trace viewers are told beside the tasks themselves, the same in Perfetto and Chrome."""

from __future__ import annotations

from typing import Final

import polars as pl

from bubblescope.exports.layout import dependencies, with_rows
from bubblescope.vocabulary import Kind

__all__ = ["ARGUMENTS", "flows", "step_spans"]

ARGUMENTS: Final = (
    "kind",
    "step",
    "stage",
    "chunk",
    "microbatch",
    "pair_stage",
    "pair_chunk",
    "pair_microbatch",
    "peer",
    "busy_ns",
    "host_start_ns",
    "host_end_ns",
    "name",
)
"""Columns of the tasks that a slice carries as arguments: all that its place does not show."""

_DIRECTIONS: Final = (
    (Kind.SEND_FORWARD.value, Kind.RECV_FORWARD.value),
    (Kind.SEND_BACKWARD.value, Kind.RECV_BACKWARD.value),
)


def flows(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return the arrows between slices: what feeds what, and which send meets which receive.

    Args:
        tasks: Frame with a row number `index` besides the columns of a timeline's tasks.

    Returns:
        Frame with `flow` (a number from 1), `source` and `target` (row numbers), and `at_ns`, a
        moment within the target at which the arrow can arrive: the target's start, or the source's
        where the target was already waiting for it.
    """
    starts = tasks.select("index", "start_ns")
    return (
        pl.concat([dependencies(tasks), _transfers(tasks)])
        .join(starts, left_on="source", right_on="index", maintain_order="left")
        .join(starts, left_on="target", right_on="index", suffix="_target", maintain_order="left")
        .select("source", "target", at_ns=pl.max_horizontal("start_ns", "start_ns_target"))
        .with_row_index("flow", offset=1)
    )


def _transfers(tasks: pl.DataFrame) -> pl.DataFrame:
    """Pair sends with receives, where each is the only one that can be meant.

    A receive may start first, because it waits; one that ends before its send starts is not its.
    """
    key = ["step", "microbatch", "rank", "peer"]
    known = tasks.filter(pl.col("microbatch").is_not_null(), pl.col("peer").is_not_null()).select(
        "index", "kind", *key, "start_ns", "end_ns"
    )
    pairs = []
    for sent, received in _DIRECTIONS:
        sends, receives = (
            known.filter(pl.col("kind") == kind).filter(pl.len().over(key) == 1)
            for kind in (sent, received)
        )
        pairs.append(
            sends.join(
                receives,
                left_on=key,
                right_on=["step", "microbatch", "peer", "rank"],
                nulls_equal=True,
                suffix="_target",
            )
            .filter(pl.col("end_ns_target") > pl.col("start_ns"))
            .select(source="index", target="index_target")
        )
    return pl.concat(pairs).sort("source")


def step_spans(tasks: pl.DataFrame, *, per_rank: bool) -> pl.DataFrame:
    """Return the extent of each step, over all ranks or of each rank.

    Returns:
        Frame with rank (0 where it is over all), step, start_ns, end_ns and row. Steps overlap
        where the next one begins on some rank before this one ends on the last; like tasks, they
        then take several rows.
    """
    spans = (
        tasks.filter(pl.col("step").is_not_null())
        .group_by("step", rank=pl.col("rank") if per_rank else pl.lit(0, pl.Int32))
        .agg(start_ns=pl.col("start_ns").min(), end_ns=pl.col("end_ns").max())
        .sort("step")
        .with_columns(lane=pl.lit("steps"))
    )
    return with_rows(spans).select("rank", "step", "start_ns", "end_ns", "row")
