"""What a process sends to other ranks and receives from them, and what that says of its passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.model.device_time import lookup
from bubblescope.model.kinds import Kind
from bubblescope.sources.phase_evidence import NONE, OPERATORS, RECEIVE, SEND

if TYPE_CHECKING:
    from bubblescope.sources.capture import Capture
    from bubblescope.sources.phase_evidence import Traced

_NEVER: Final = 2**62
_FORWARD: Final = pl.col("kind") == Kind.FORWARD.value
_HANDS_ON: Final = pl.col("kind") != Kind.BACKWARD_WEIGHT.value
"""Gradients of weights stay where they are."""


def transfers(trace: Traced) -> pl.DataFrame:
    """Return what sends to or receives from another rank, with the columns of `OPERATORS`, by start.

    Those are operators or, where the trace has none of them, launches of kernels.
    """
    moved = trace.operators.filter(pl.col("role") >= SEND).sort("start_ns")
    return moved if moved.height else _launches(trace.capture).select(*OPERATORS)


def share_beside(found: pl.DataFrame, moved: pl.DataFrame) -> float:
    """Return the share of passes before or after which there is a transfer, and no other pass between.

    Args:
        found: Frame with the columns of `autograd.PASSES`, by start; at least one.
        moved: Transfers, by start.
    """
    at = moved["start_ns"]
    beside = found.filter(_HANDS_ON).select(
        before=pl.col("end_ns").shift(1, fill_value=-_NEVER),
        start="start_ns",
        end="end_ns",
        after=pl.col("start_ns").shift(-1, fill_value=_NEVER),
    )
    reached, begun, ended, following = (
        at.search_sorted(beside[name]) for name in ("before", "start", "end", "after")
    )
    return float(((begun > reached) | (following > ended)).mean() or 0.0)  # type: ignore[arg-type]


def received(found: pl.DataFrame, moved: pl.DataFrame) -> pl.Series:
    """Return how many receives were posted since the end of the pass before each."""
    posted = moved.filter(role=RECEIVE)["start_ns"]
    return pl.Series(np.diff(posted.search_sorted(found["end_ns"]).to_numpy(), prepend=0).clip(0))


def sent_to(found: pl.DataFrame, capture: Capture) -> pl.Series:
    """Return the rank that what each pass made was sent to; null where that is not known.

    That is the rank of all that was sent between the pass and the next. A schedule may send two
    results at once or one late: what most passes of a stage do counts, not what one does.
    """
    sent = (
        _launches(capture)
        .filter(pl.col("peer").is_not_null(), pl.col("role") == SEND)
        .select("start_ns", "peer")
    )
    passes = found.with_row_index("row").filter(_HANDS_ON).select("row", "start_ns")
    peers = (
        sent.join_asof(passes, on="start_ns")
        .drop_nulls("row")
        .group_by("row")
        .agg(pl.col("peer").unique())
        .filter(pl.col("peer").list.len() == 1)
        .with_columns(pl.col("peer").list.first())
    )
    rows = pl.DataFrame({"row": np.arange(found.height, dtype=np.uint32)})
    return rows.join(peers, on="row", how="left", maintain_order="left")["peer"]


def named_transfers(moved: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """Name transfers as Megatron does: what is sent was computed last, what is received comes next.

    That holds where a rank has one chunk; with several, receives are posted for passes to come.
    """
    way = pl.when(_FORWARD).then(pl.lit("forward-")).otherwise(pl.lit("backward-"))
    ways = found.filter(_HANDS_ON).select("start_ns", way=way)
    sent, posted = (moved.filter(role=role) for role in (SEND, RECEIVE))
    return pl.concat(
        [
            sent.join_asof(ways, on="start_ns", strategy="backward")
            .drop_nulls("way")
            .with_columns(name=pl.col("way") + "send"),
            posted.join_asof(ways, on="start_ns", strategy="forward")
            .drop_nulls("way")
            .with_columns(name=pl.col("way") + "recv"),
        ]
    )


def _launches(capture: Capture) -> pl.DataFrame:
    """Return launches of transfers, with the columns of `OPERATORS` and peer, by start."""
    sorts = pl.DataFrame(
        [
            (number, RECEIVE if comm.operation == "recv" else SEND, comm.peer)
            for number, comm in enumerate(capture.comms)
            if comm.known_kind() is Kind.OTHER
        ],
        schema={"comm": pl.Int32, "role": pl.Int64, "peer": pl.Int64},
        orient="row",
    )
    work = capture.work.select("correlation", "comm").join(sorts, on="comm")
    call = lookup(capture.launches["correlation"].to_numpy(), work["correlation"].to_numpy())
    work = work.filter(pl.Series(call != NONE))
    launched: pl.DataFrame = capture.launches[call[call != NONE]]
    return launched.with_columns(
        work["role"],
        work["peer"],
        end_ns=pl.col("start_ns") + 1,
        sequence=pl.lit(NONE, pl.Int64),
    ).sort("start_ns")
