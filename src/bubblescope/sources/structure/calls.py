"""What a process ran for autograd: its operators in order, and the calls of autograd's engine.

PyTorch numbers the operators that autograd records, one after the other on each thread, and its engine
visits the nodes they left in descending order of these numbers: a node is only ready once all that were
recorded after it and use its result have been visited, and of the ready ones the engine takes the one
recorded last (`torch/csrc/autograd/engine.cpp`, `CompareNodeTaskTime`). So

- a run of the engine's visits with falling numbers is one call of the engine, and where they rise again
  the next call begins;
- the highest number of a call is the last operator of the forward that the call goes back through, and
  names the graph of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.sources.nesting import outermost
from bubblescope.sources.phase_evidence import (
    BACKWARD,
    CAST,
    COMMUNICATION,
    COMPUTE,
    NODE,
    NONE,
    PRODUCT,
)

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints, Mask

_REVISITED: Final = 1 / 3
"""Share of a call's nodes that were visited before, from which on the call computes weights' gradients.
Of a linear layer it visits two nodes, of which the call for the inputs visited one."""

_MOSTLY: Final = 2 / 3
"""The same of a call that goes higher than any before it. Autocast casts a weight once for several
forwards, all of whose backwards visit that cast: up to half of their nodes."""

_SMALLER: Final = 0.5
"""A call within another graph's numbers is a part of that graph if it visits less than this share of
what the graph's own call visited."""


class Order(NamedTuple):
    """The main thread's outermost operators and the engine's, by start.

    Attributes:
        own: Frame with the columns of `OPERATORS`: the main thread's.
        numbered: Those of them that have a number.
        sequence: Their numbers, never falling.
        engine: Frame with the columns of `OPERATORS`: the engine's, on whatever thread.
        products_ns: When the main thread multiplied matrices, ascending.
    """

    own: pl.DataFrame
    numbered: pl.DataFrame
    sequence: Ints
    engine: pl.DataFrame
    products_ns: Ints

    @property
    def advances(self) -> Mask:
        """Whether autograd recorded something in each of the numbered operators."""
        following = np.append(self.sequence[1:], np.iinfo(np.int64).max)
        return self.sequence < following

    @property
    def moved(self) -> pl.DataFrame:
        """The main thread's operators that move data to or from other ranks."""
        return self.own.filter(pl.col("role") >= COMMUNICATION)

    @property
    def recorded(self) -> pl.DataFrame:
        """The numbered operators in which autograd recorded something."""
        return self.numbered.filter(pl.Series(self.advances))

    def recorded_by(self, number: Ints) -> Ints:
        """Return which of the numbered operators recorded each node, -1 for one before all."""
        return np.searchsorted(self.sequence, number, side="right") - 1


def ordered(operators: pl.DataFrame, apart: pl.DataFrame) -> Order:
    """Put the outermost operators of the main thread and of the engine in order."""
    # Where the trace lacks a call of the engine, it may still have the node that was called.
    backward = pl.col("role").is_in([BACKWARD, NODE])
    numbered = (pl.col("sequence") != NONE) & pl.col("role").is_between(CAST, COMPUTE)
    engine = outermost(operators.filter(backward)).sort("start_ns")
    telling = operators.filter(numbered)
    telling = telling if telling.height else operators.filter(pl.col("role") == PRODUCT)
    if not telling.height or not engine.height:
        nothing = np.zeros(0, np.int64)
        return Order(operators.clear(), operators.clear(), nothing, engine, nothing)
    main = _main_thread(telling, engine)
    # What the engine ran on the main thread itself, on a CPU, encloses what it called.
    both = outermost(operators.filter(pl.col("thread") == main))
    own = both.filter(~backward).sort("start_ns")
    if apart.height:
        until = own.join_asof(
            apart.sort("start_ns").select("start_ns", until_ns=pl.col("end_ns").cum_max()),
            on="start_ns",
        )["until_ns"]
        own = own.filter((own["start_ns"] >= until).fill_null(value=True))
    counted = own.filter(pl.col("sequence") != NONE)
    products = operators.filter(pl.col("role") == PRODUCT, pl.col("thread") == main)
    return Order(
        own,
        counted,
        counted["sequence"].cum_max().to_numpy(),
        engine,
        products["start_ns"].sort().to_numpy(),
    )


def _main_thread(numbered: pl.DataFrame, engine: pl.DataFrame) -> int:
    """Return the thread that recorded most operators that are not the engine's own calls."""
    started = engine.select("thread", "start_ns", until_ns="end_ns")
    outside = (
        numbered.sort("start_ns")
        .join_asof(started, on="start_ns", by="thread", check_sortedness=False)
        .filter((pl.col("start_ns") >= pl.col("until_ns")).fill_null(value=True))
    )
    counts = (outside if outside.height else numbered).group_by("thread").len()
    return int(counts.sort("len", "thread", descending=[True, False])["thread"][0])


def _boundaries_ns(order: Order) -> Ints:
    """Return when the main thread did what parts passes: it recorded an operator, or moved data."""
    parts = (order.moved, order.recorded)
    return np.sort(np.concatenate([part["start_ns"].to_numpy() for part in parts]))


def calls_of_engine(order: Order) -> pl.DataFrame:
    """Return the calls of the engine, by start, each with the graph that it goes back through.

    Returns:
        Frame with call, block (how many boundaries came before), start_ns, end_ns, low and high (the
        lowest and highest number of its nodes), nodes, again (how many were visited before), graph,
        and first: whether no call before went through that graph.
    """
    engine = order.engine.with_columns(
        block=pl.Series(
            np.searchsorted(_boundaries_ns(order), order.engine["start_ns"].to_numpy())
        ),
        number=pl.when(pl.col("sequence") != NONE).then("sequence"),
    )
    last = pl.col("number").forward_fill().over("thread")
    rises = (pl.col("number") >= last.shift(1).over("thread")).fill_null(value=False)
    broken = pl.col("number").is_not_null() & (pl.col("block") != pl.col("block").shift(1))
    engine = engine.with_columns(
        call=(rises | broken.fill_null(value=True)).cum_sum(),
        built=_built(order, engine),
        again=pl.col("number").is_not_null() & ~pl.col("number").is_first_distinct(),
    )
    built = pl.col("built").forward_fill().over("call")
    elsewhere = (built != built.shift(1).over("call")).fill_null(value=False) & ~pl.col("again")
    begins = (pl.col("call") != pl.col("call").shift(1)).fill_null(value=True) | elsewhere
    engine = engine.with_columns(call=begins.cum_sum())
    calls = (
        engine.group_by("call", maintain_order=True)
        .agg(
            pl.col("block").first(),
            pl.col("start_ns").first(),
            pl.col("end_ns").max(),
            low=pl.col("number").min(),
            high=pl.col("number").max(),
            nodes=pl.col("number").count(),
            again=pl.col("again").sum(),
            top_again=pl.col("again").first(),
        )
        .filter(pl.col("nodes") > 0)
    )
    return _graphs(calls) if calls.height else calls


def _built(order: Order, engine: pl.DataFrame) -> pl.Series:
    """Return how much the engine had done when each of its nodes was recorded; null if not known.

    Nodes between which the engine ran were recorded by different forwards, even if one call of the
    engine seems to lead from one to the other, as where a device hands a gradient on to itself.
    """
    number = engine["sequence"].to_numpy()
    done = np.searchsorted(engine["start_ns"].to_numpy(), order.numbered["start_ns"].to_numpy())
    at = order.recorded_by(number)
    exact = (at >= 0) & (order.sequence[at.clip(0)] == number)
    # What lies between two operators was recorded by the first, unless the trace lacks one.
    after = (at + 1).clip(max=len(done) - 1)
    same = (at >= 0) & (done[at.clip(0)] == done[after])
    known = (number != NONE) & (exact | same)
    return pl.Series(done[at.clip(0)]).set(pl.Series(~known), None)


def _graphs(calls: pl.DataFrame) -> pl.DataFrame:
    """Give each call the graph that it goes back through, and say whether it was the first to."""
    share = pl.col("again") / pl.col("nodes")
    within = pl.col("high") <= pl.col("high").cum_max().shift(1)
    again = pl.col("top_again") | (share >= _MOSTLY) | (within & (share >= _REVISITED))
    again = again.fill_null(value=False)
    calls = calls.with_columns(first=~again)
    firsts = calls.filter("first").sort("high", descending=True)
    if not firsts.height:
        return calls.with_columns(graph=pl.col("high"))
    calls = calls.with_columns(first=pl.col("first") & ~pl.col("call").is_in(_parts(firsts)))
    graphs = calls.filter("first")["high"].sort().to_numpy()
    at = np.searchsorted(graphs, calls["low"].to_numpy()).clip(max=len(graphs) - 1)
    return calls.with_columns(graph=pl.when("first").then("high").otherwise(pl.Series(graphs[at])))


def _parts(firsts: pl.DataFrame) -> list[int]:
    """Return the calls within the numbers of an earlier and larger one: parts of that one's graph.

    Args:
        firsts: Calls that may be the first through their graphs, the highest first.
    """
    parts = []
    outer = (2**62, 0, 0)  # lowest number, nodes and start of the last that is a graph's first
    columns = ("call", "low", "high", "nodes", "start_ns")
    for call, low, high, nodes, start in firsts.select(columns).iter_rows():
        if outer[0] <= high and start > outer[2] and nodes < _SMALLER * outer[1]:
            parts.append(call)
        else:
            outer = (low, nodes, start)
    return parts
