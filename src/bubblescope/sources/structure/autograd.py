"""Forwards and backwards of a process, by the autograd graphs that it built and consumed.

A call of autograd's engine (`calls`) goes back through one forward:

- what was recorded between the highest number of its graph and that of the graph before is the forward;
- a call that comes back to nodes that were visited already is what zero-bubble schedules put off: the
  gradients of the weights.

Transfers between ranks part forwards that no call of the engine tells apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.model.kinds import Kind
from bubblescope.sources.phase_evidence import BACKWARD, COMMUNICATION, NODE, NONE, SEND
from bubblescope.sources.structure.calls import calls_of_engine, ordered
from bubblescope.sources.structure.doubts import with_doubts
from bubblescope.sources.structure.reach import alike_forwards, with_preparation, with_sums

if TYPE_CHECKING:
    from bubblescope.sources.structure.calls import Order

PASSES: Final = {
    "thread": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "kind": pl.String,
    "graph": pl.Int64,
    "certainty": pl.Float32,
}
"""Columns of passes. `graph` is the autograd graph that a forward built or a backward went through: the
number of its last operator. `certainty` is the probability that kind and graph are right."""

_DISTINCT: Final = 0.25
"""Share of the engine's visits with a number of their own below which the numbers mean nothing: no node
is visited more than twice."""

_SURE, _LIKELY, _GUESSED = 0.99, 0.7, 0.5
"""Certainty of a pass whose forward and backward were both seen; of one of which only that one was, as
at the edges of a trace; and of one that no number tells."""


def passes(operators: pl.DataFrame, apart: pl.DataFrame) -> pl.DataFrame:
    """Return the forwards and backwards of one process.

    Args:
        operators: Frame with the columns of `OPERATORS`.
        apart: Frame with start_ns and end_ns of ranges whose operators are neither, such as optimizers.

    Returns:
        Frame with the columns of `PASSES`, by start; none if autograd's engine ran nothing. Without
        numbers passes have no graph, and are told by what ran between two transfers.
    """
    order = ordered(operators, apart)
    if not order.engine.height or not order.own.height:
        return pl.DataFrame(schema=PASSES)
    numbers = order.engine.filter(pl.col("sequence") != NONE)["sequence"]
    if not order.numbered.height or numbers.n_unique() < _DISTINCT * len(numbers):
        return _by_turns(order)
    calls = calls_of_engine(order)
    if not calls.height:
        return pl.DataFrame(schema=PASSES)
    backwards = _backwards(calls)
    forwards = _forwards(order, calls)
    main = int(order.own["thread"][0])
    backwards = with_preparation(order, backwards, forwards)
    backwards = with_sums(order, backwards, forwards, apart)
    forwards, backwards = with_doubts(order, forwards, backwards)
    found = pl.concat(
        [
            frame.with_columns(thread=pl.lit(main, pl.Int64)).select(*PASSES).cast(PASSES)  # type: ignore[arg-type]
            for frame in (forwards, backwards)
        ]
    )
    return _joined(found.sort("start_ns", "end_ns"), order)


def _by_turns(order: Order) -> pl.DataFrame:
    """Return the passes of operators without numbers, as far as transfers part them.

    A run of the engine's is a backward, and one of the caller's that multiplies matrices a forward.
    """
    turn = (
        pl.when(pl.col("role") >= COMMUNICATION)
        .then(0)
        .otherwise(1 + pl.col("role").is_in([BACKWARD, NODE]).cast(pl.Int8))
    )
    turns = pl.concat([order.own, order.engine]).sort("start_ns").with_columns(turn=turn)
    runs = (
        turns.group_by(pl.col("turn").rle_id().alias("run"), "turn", maintain_order=True)
        .agg(pl.col("thread").first(), pl.col("start_ns").min(), pl.col("end_ns").max())
        .filter(pl.col("turn") > 0)
    )
    low, high = (
        np.searchsorted(order.products_ns, runs[edge].to_numpy()) for edge in ("start_ns", "end_ns")
    )
    backward = pl.col("turn") == 2
    return (
        runs.filter(backward | pl.Series(low < high))
        .with_columns(
            kind=pl.when(backward)
            .then(pl.lit(Kind.BACKWARD.value))
            .otherwise(pl.lit(Kind.FORWARD.value)),
            graph=pl.lit(None, pl.Int64),
            certainty=pl.lit(_GUESSED, pl.Float32),
        )
        .select(*PASSES)
    )


def _joined(found: pl.DataFrame, order: Order) -> pl.DataFrame:
    """Join the parts of weights' gradients between which there is nothing but what was recomputed."""
    moved = order.own.filter(pl.col("role") >= SEND)["start_ns"]
    parts = found.with_columns(moves=moved.search_sorted(found["start_ns"]))
    weight = pl.col("kind") == Kind.BACKWARD_WEIGHT.value
    same = pl.all_horizontal(
        (pl.col(name) == pl.col(name).shift(1)) for name in ("kind", "graph", "moves")
    )
    return (
        parts.group_by(run=(~(weight & same)).fill_null(value=True).cum_sum(), maintain_order=True)
        .agg(
            pl.col("end_ns").max(),
            *(pl.col(name).first() for name in ("thread", "start_ns", "kind", "graph")),
            pl.col("certainty").min(),
        )
        .select(*PASSES)
    )


def _backwards(calls: pl.DataFrame) -> pl.DataFrame:
    """Return a pass for each run of calls through one graph, between two boundaries."""
    runs = (
        calls.with_columns(
            # More of the nodes that were not visited yet, such as those of another thread's, belong to
            # the call before; nodes that were visited are the weights'.
            weight=~pl.col("first")
            & (
                (pl.col("again") > 0)
                | ~pl.col("first").shift(1, fill_value=False)
                | (pl.col("block") != pl.col("block").shift(1))
            ),
        )
        .with_columns(
            run=(
                pl.col("block").ne_missing(pl.col("block").shift(1))
                | pl.col("graph").ne_missing(pl.col("graph").shift(1))
                | pl.col("first")
                | (pl.col("weight") & pl.col("first").shift(1, fill_value=False))
            ).cum_sum()
        )
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("start_ns").first(),
            pl.col("end_ns").max(),
            pl.col("graph").first(),
            weight=pl.col("weight").first(),
        )
    )
    split = pl.col("weight").any().over("graph")
    kind = (
        pl.when("weight")
        .then(pl.lit(Kind.BACKWARD_WEIGHT.value))
        .when(split)
        .then(pl.lit(Kind.BACKWARD_INPUT.value))
        .otherwise(pl.lit(Kind.BACKWARD.value))
    )
    return runs.with_columns(kind=kind, certainty=pl.lit(_SURE))


def _forwards(order: Order, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the forward of each graph, as far as the trace holds it, and others that are like them."""
    graphs = (
        calls.group_by("graph")
        .agg(low=pl.col("low").min(), start_ns=pl.col("start_ns").min())
        .sort("graph")
    )
    sequence = order.sequence
    start, end = (order.numbered[edge].to_numpy() for edge in ("start_ns", "end_ns"))
    high = graphs["graph"].to_numpy()
    # The numbers of a graph begin where those of the one before end, whatever both may share.
    low = np.maximum(graphs["low"].to_numpy(), np.append(NONE, high)[:-1] + 1)
    last, first = order.recorded_by(high), order.recorded_by(low)
    # The operator that recorded the lowest number may be missing; then the next is the first there is.
    missing = (first < 0) | (sequence[first.clip(0)] < low)
    within = (first >= 0) & order.advances[first.clip(0)] & missing
    first = np.where(missing & ~within, first + 1, first)
    seen = (last >= 0) & (first <= last) & (start[last.clip(0)] < graphs["start_ns"].to_numpy())
    # One operator may have recorded all that lies up to the next: a number in between is its own.
    seen &= sequence[last.clip(0)] >= low
    found = pl.DataFrame(
        {
            "start_ns": start[first.clip(0, len(start) - 1)],
            "end_ns": end[last.clip(0)],
            "graph": high,
            "certainty": np.full(len(high), _SURE),
        }
    ).filter(pl.Series(seen))
    taken = np.zeros(len(start) + 1, np.int64)
    np.add.at(taken, first[seen], 1)
    np.add.at(taken, last[seen] + 1, -1)
    size = np.cumsum(np.append(0, order.advances))
    alike = alike_forwards(order, np.cumsum(taken)[:-1] > 0, (size[last + 1] - size[first])[seen])
    alike = alike.with_columns(certainty=pl.lit(_LIKELY, pl.Float64))
    return pl.concat([found, alike]).with_columns(kind=pl.lit(Kind.FORWARD.value))
