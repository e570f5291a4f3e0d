"""Ranges for the passes of a pipeline that a process ran without naming them, and for its transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.device_time import lookup
from bubblescope.model.kinds import Kind
from bubblescope.names.parsed import ParsedName
from bubblescope.sources.capture import RANGES
from bubblescope.sources.structure.autograd import passes
from bubblescope.sources.traced import NONE, OPERATORS, RECEIVE, SEND

if TYPE_CHECKING:
    from bubblescope.names.parser import NameParser
    from bubblescope.sources.capture import Capture
    from bubblescope.sources.traced import Traced

HOW_KIND: Final = (
    "autograd: what its engine ran is a backward, and what it went back through a forward"
)
"""How passes were told."""

_APART: Final = "(?i)^(?:## )?optimizer"
"""Ranges whose operators are neither a forward nor a backward."""
_PIPELINED: Final = 0.6
"""Share of forwards and backwards beside a transfer from which on the transfers are a pipeline's: every
one receives what it works on or sends what it made, but on a rank that hands it on to itself."""
_BACKWARD: Final = [Kind.BACKWARD.value, Kind.BACKWARD_INPUT.value]


def tell_pipeline(trace: Traced, names: NameParser, *, hidden: bool = False) -> Capture | None:
    """Put a range for each pass of a pipeline, and for each transfer whose way is known, in a trace.

    Args:
        trace: The trace of one process, whose ranges name no passes.
        names: What range names mean, of which those of optimizers are believed.
        hidden: Whether there are other ranks, of which the trace shows no communication: it may be
            a pipeline's nevertheless.

    Returns:
        Its capture with these ranges and what they mean; None if nothing shows that the process is part
        of a pipeline: most passes are not beside a transfer to or from another rank.
    """
    moved = _transfers(trace)
    if not moved.height and not hidden:
        return None
    known = names.parse_all(trace.capture.ranges["name"])
    optimizers = [name for name, said in known.items() if said[0].kind is Kind.OPTIMIZER]
    apart = trace.capture.ranges.filter(
        pl.col("name").is_in(optimizers) | pl.col("name").str.contains(_APART)
    )
    others = trace.operators.filter(pl.col("role") < SEND)
    found = passes(pl.concat([others, moved.select(others.columns)]), apart)
    if not found.height or not (hidden or _pipelined(found, moved)):
        return None
    named = found.with_columns(
        name=pl.coalesce(pl.format("{} of graph {}", "kind", "graph"), "kind"),
        received=_received(found, moved),
    )
    meaning = {
        name: [ParsedName(Kind(kind), graph=graph, received=received, certainty=certainty)]
        for name, kind, graph, received, certainty in named.group_by("name", "kind", "graph")
        .agg(pl.col("received").sum(), pl.col("certainty").min())
        .iter_rows()
    }
    frames = [named] if _several_chunks(found) else [named, _named_transfers(moved, found)]
    process = trace.capture.work["process"].first() if trace.capture.work.height else 0
    ranges = [
        frame.with_columns(process=pl.lit(process, pl.Int64)).select(*RANGES) for frame in frames
    ]
    return msgspec.structs.replace(
        trace.capture,
        ranges=pl.concat([trace.capture.ranges, *ranges]),
        meaning={**trace.capture.meaning, **meaning},
    )


def _transfers(trace: Traced) -> pl.DataFrame:
    """Return what sends to or receives from another rank, with the columns of `OPERATORS`, by start.

    Those are operators or, where the trace has none of them, launches of kernels.
    """
    moved = trace.operators.filter(pl.col("role") >= SEND).sort("start_ns")
    if moved.height:
        return moved
    capture = trace.capture
    ways = {
        number: RECEIVE if comm.operation == "recv" else SEND
        for number, comm in enumerate(capture.comms)
        if comm.known_kind() is Kind.OTHER
    }
    work = capture.work.filter(pl.col("comm").is_in(list(ways)))
    call = lookup(capture.launches["correlation"].to_numpy(), work["correlation"].to_numpy())
    work = work.filter(pl.Series(call != NONE))
    launched = capture.launches[call[call != NONE]].with_columns(
        end_ns=pl.col("start_ns") + 1,
        role=work["comm"].replace_strict(
            list(ways), list(ways.values()), default=SEND, return_dtype=pl.Int64
        ),
        sequence=pl.lit(NONE, pl.Int64),
    )
    return launched.select(*OPERATORS).sort("start_ns")


def _pipelined(found: pl.DataFrame, moved: pl.DataFrame) -> bool:
    """Say whether most passes begin after a transfer or end before one, no other pass in between."""
    at = moved["start_ns"]
    beside = found.filter(pl.col("kind") != Kind.BACKWARD_WEIGHT.value).select(
        before=pl.col("end_ns").shift(1, fill_value=-(2**62)),
        start="start_ns",
        end="end_ns",
        after=pl.col("start_ns").shift(-1, fill_value=2**62),
    )
    reached, begun, ended, following = (
        at.search_sorted(beside[name]) for name in ("before", "start", "end", "after")
    )
    return bool(((begun > reached) | (following > ended)).mean() >= _PIPELINED)  # type: ignore[operator]


def _received(found: pl.DataFrame, moved: pl.DataFrame) -> pl.Series:
    """Return how many receives were posted since the end of the pass before each."""
    posted = moved.filter(role=RECEIVE)["start_ns"]
    return pl.Series(np.diff(posted.search_sorted(found["end_ns"]).to_numpy(), prepend=0).clip(0))


def _several_chunks(found: pl.DataFrame) -> bool:
    """Say whether some graph was consumed before one that was built earlier."""
    built = found.filter(kind=Kind.FORWARD.value).unique("graph", keep="first")
    consumed = found.filter(pl.col("kind").is_in(_BACKWARD)).unique("graph", keep="first")
    both = built.join(consumed, on="graph", suffix="_back").sort("start_ns")
    return bool((both["start_ns_back"].diff() < 0).any())


def _named_transfers(moved: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """Name transfers as Megatron does: what is sent was computed last, what is received comes next.

    That holds where a rank has one chunk; with several, receives are posted for passes to come.
    """
    forward = pl.col("kind") == Kind.FORWARD.value
    ways = found.filter(pl.col("kind") != Kind.BACKWARD_WEIGHT.value).select(
        "start_ns", way=pl.when(forward).then(pl.lit("forward-")).otherwise(pl.lit("backward-"))
    )
    sent, received = (moved.filter(role=role) for role in (SEND, RECEIVE))
    return pl.concat(
        [
            sent.join_asof(ways, on="start_ns", strategy="backward")
            .drop_nulls("way")
            .with_columns(name=pl.col("way") + "send"),
            received.join_asof(ways, on="start_ns", strategy="forward")
            .drop_nulls("way")
            .with_columns(name=pl.col("way") + "recv"),
        ]
    )
