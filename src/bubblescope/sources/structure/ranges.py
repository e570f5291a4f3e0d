"""Ranges for the passes of a pipeline that a process ran without naming them, and for its transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.kinds import Kind
from bubblescope.names.parsed import ParsedName
from bubblescope.sources.capture import RANGES
from bubblescope.sources.structure.graphs import passes
from bubblescope.sources.traced import RECEIVE, SEND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOW_KIND: Final = "autograd: what its engine ran is a backward, what it recorded for that a forward"
"""How passes were told."""

_PIPELINED: Final = 0.5
"""Share of passes beside a transfer from which on the transfers are a pipeline's."""
_BACKWARD: Final = [Kind.BACKWARD.value, Kind.BACKWARD_INPUT.value]


class Structure(NamedTuple):
    """What a process ran, as ranges.

    Attributes:
        ranges: Frame with the columns of `RANGES`.
        meaning: What their names mean.
    """

    ranges: pl.DataFrame
    meaning: Mapping[str, Sequence[ParsedName]]


def pipeline_ranges(operators: pl.DataFrame, apart: pl.DataFrame) -> Structure | None:
    """Return a range for each pass of a pipeline and for each transfer whose way is known.

    Args:
        operators: Frame with the columns of `bubblescope.sources.traced.OPERATORS`.
        apart: Frame with start_ns and end_ns of ranges that are no passes, such as optimizers.

    Returns:
        None if nothing shows that the process is part of a pipeline: most passes are not beside a
        transfer to or from another rank.
    """
    moved = operators.filter(pl.col("role") >= SEND).sort("start_ns")
    if not moved.height:
        return None
    found = passes(operators, apart)
    if not found.height or not _pipelined(found, moved):
        return None
    named = found.with_columns(
        name=pl.format("{} of graph {}", "kind", "graph"), received=_received(found, moved)
    )
    meaning = {
        name: [ParsedName(Kind(kind), graph=graph, received=received, certainty=certainty)]
        for name, kind, graph, received, certainty in named.group_by("name", "kind", "graph")
        .agg(pl.col("received").sum(), pl.col("certainty").min())
        .iter_rows()
    }
    frames = [named] if _several_chunks(found) else [named, _named_transfers(moved, found)]
    ranges = pl.concat(
        frame.with_columns(process=pl.lit(0, pl.Int64)).select(*RANGES) for frame in frames
    )
    return Structure(ranges, meaning)


def _pipelined(found: pl.DataFrame, moved: pl.DataFrame) -> bool:
    """Say whether most passes begin after a transfer or end before one, no other pass in between."""
    at = moved["start_ns"]
    beside = found.select(
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
    ways = found.filter(pl.col("kind") != Kind.BACKWARD_WEIGHT.value).select(
        "start_ns",
        way=pl.when(kind=Kind.FORWARD.value)
        .then(pl.lit("forward-"))
        .otherwise(pl.lit("backward-")),
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
