"""Forwards and backwards that a trace does not name, told by the operators.

`Schedule1F1B` of torch.distributed.pipelining marks nothing. But whatever runs a pipeline receives,
computes and sends, and PyTorch's autograd engine runs every backward: so between two transfers, a run
of the engine's operators is a backward and a run of other operators is a forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from bubblescope.model.intervals import reached_ns
from bubblescope.sources.capture import RANGES
from bubblescope.sources.traced import BACKWARD, COMMUNICATION, COMPUTE, NONE, RECEIVE, SEND

if TYPE_CHECKING:
    from bubblescope.sources.kineto.collector import Events


def infer_ranges(events: Events, apart: pl.DataFrame) -> pl.DataFrame:
    """Return a range for each forward, backward and transfer, with the columns of `RANGES`.

    Args:
        events: A trace without names for them.
        apart: Frame with start_ns and end_ns of ranges that are neither, such as optimizers.

    Returns:
        Nothing if the trace shows no transfers between ranks, or if forwards and backwards do not
        come out as many.
    """
    nothing = events.capture.ranges.clear()
    operators = _outermost(events.operators, apart)
    transfers = operators.filter(pl.col("role") >= SEND)
    if not transfers.height:
        return nothing
    moving = pl.col("role") >= COMMUNICATION
    other = (pl.col("role") != pl.col("role").shift(1)) | moving
    forward = pl.col("role") == COMPUTE
    engine = pl.col("role") == BACKWARD
    following = pl.col("sequence").shift(-1).over(engine)
    runs = (
        operators.with_columns(
            run=other.fill_null(value=True).cum_sum(),
            # Operators that autograd does not record split batches, detach outputs, scale gradients.
            counts=engine | (pl.col("sequence") < following),
        )
        .filter(~moving)
        .group_by("run", "role", maintain_order=True)
        .agg(
            pl.col("thread").first(),
            pl.col("start_ns").filter("counts").min(),
            pl.col("end_ns").max(),
        )
        .drop_nulls("start_ns")
    )
    if runs.filter(forward).height != runs.filter(~forward).height:
        return nothing
    named = [
        runs.with_columns(name=pl.when(forward).then(pl.lit("F")).otherwise(pl.lit("B"))),
        _named_transfers(transfers, runs),
    ]
    return pl.concat(
        frame.with_columns(process=pl.lit(0, pl.Int64)).select(*RANGES) for frame in named
    )


def _named_transfers(transfers: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Name transfers as Megatron does: what is sent was computed last, what is received comes next."""
    passes = runs.select("start_ns", way="role")
    sent = transfers.filter(pl.col("role") == SEND).sort("start_ns")
    received = transfers.filter(pl.col("role") == RECEIVE).sort("start_ns")
    way = pl.when(pl.col("way") == COMPUTE).then(pl.lit("forward-")).otherwise(pl.lit("backward-"))
    return pl.concat(
        [
            sent.join_asof(passes, on="start_ns", strategy="backward")
            .drop_nulls("way")
            .with_columns(name=way + "send"),
            received.join_asof(passes, on="start_ns", strategy="forward")
            .drop_nulls("way")
            .with_columns(name=way + "recv"),
        ]
    )


def _outermost(operators: pl.DataFrame, apart: pl.DataFrame) -> pl.DataFrame:
    """Return, in order, the operators that no other encloses, of the engine and the main thread.

    What lies in the ranges `apart` is left out.
    """
    engine = pl.col("role") == BACKWARD
    main = operators.filter(pl.col("role") >= SEND)["thread"].mode()
    outer = (
        operators.filter(engine | pl.col("thread").is_in(main.implode()))
        .filter(engine | (pl.col("sequence") != NONE))
        .with_columns(pl.col("role").clip(lower_bound=COMPUTE))
        .sort("start_ns", "end_ns", descending=[False, True])
    )
    return (
        outer.filter(pl.col("start_ns") >= pl.Series(reached_ns(outer["end_ns"].to_numpy())))
        .join_asof(
            apart.sort("start_ns").select("start_ns", until_ns=pl.col("end_ns").cum_max()),
            on="start_ns",
        )
        .filter((pl.col("start_ns") >= pl.col("until_ns")).fill_null(value=True))
    )
