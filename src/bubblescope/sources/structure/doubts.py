"""Passes that autograd's graphs tell, but in which something is not as in the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.model.kinds import Kind

if TYPE_CHECKING:
    from bubblescope.sources.structure.calls import Order

_DOUBTED: Final = 0.4
"""Certainty of such a pass: it is more likely not what it seems, or not that long."""

_LEFT_OUT: Final = 0.2
"""Share of a forward's operators from which on those beside it, in no pass, may be part of it."""


def with_doubts(
    order: Order, forwards: pl.DataFrame, backwards: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Lower the certainty of passes that may be parts of passes, or several in one.

    - Where a profiler began or ended within a pass, or lost what tells its edge, what seems to be the
      pass is a part, with operators beside it that are in none.
    - Where it lost what parts two passes, they seem one, with transfers inside that others lack.
    - Where a rank splits its backwards, a graph of which the profiler saw no forward may have been
      consumed before it began, so that what seems to be its backward are gradients of weights.

    Args:
        order: What ran.
        forwards: Frame with start_ns, end_ns, kind, graph and certainty.
        backwards: The same.

    Returns:
        The same.
    """
    splits = (backwards["kind"] == Kind.BACKWARD_WEIGHT.value).any()
    unseen = ~backwards["graph"].is_in(forwards["graph"].implode())
    unsplit = backwards["kind"] != Kind.BACKWARD_WEIGHT.value
    return (
        _doubted(forwards, _cut_short(order, forwards) | _unusual(order, forwards)),
        _doubted(backwards, _unusual(order, backwards) | (unseen & unsplit & pl.Series([splits]))),
    )


def _doubted(passes: pl.DataFrame, which: pl.Series) -> pl.DataFrame:
    sure = pl.when(which).then(pl.min_horizontal("certainty", _DOUBTED)).otherwise("certainty")
    return passes.with_columns(certainty=sure)


def _cut_short(order: Order, forwards: pl.DataFrame) -> pl.Series:
    """Say beside which forwards autograd recorded operators that are in none, with nothing between."""
    start, end = (forwards[edge].to_numpy() for edge in ("start_ns", "end_ns"))
    recorded_ns = order.recorded["start_ns"].to_numpy()
    # Where something else begins: a transfer, a call of the engine, or another forward.
    others = (order.moved["start_ns"], order.engine["start_ns"], forwards["start_ns"])
    parts = np.sort(np.concatenate([one.to_numpy() for one in others]))
    ends = (order.moved["end_ns"], order.engine["end_ns"], forwards["end_ns"])
    parted = np.sort(np.concatenate([one.to_numpy() for one in ends]))
    edges = np.append(-(2**62), parted)
    since = edges[np.searchsorted(parted, start, side="right")]
    until = np.append(parts, 2**62)[np.searchsorted(parts, end)]
    inside, before, behind = (
        np.searchsorted(recorded_ns, high) - np.searchsorted(recorded_ns, low)
        for low, high in ((start, end), (since, start), (end, until))
    )
    return pl.Series((before > _LEFT_OUT * inside) | (behind > _LEFT_OUT * inside))


def _unusual(order: Order, passes: pl.DataFrame) -> pl.Series:
    """Say which passes have more transfers inside than is usual for their kind."""
    moved_ns = order.moved["start_ns"]
    count = moved_ns.search_sorted(passes["end_ns"]) - moved_ns.search_sorted(passes["start_ns"])
    usual = pl.col("count").mode().max().over("kind")
    return (
        passes.with_columns(count=count.cast(pl.Int64))
        .select(unusual=pl.col("count") > usual)
        .to_series()
    )
