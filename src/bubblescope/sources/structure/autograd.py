"""Forwards and backwards of a process, by the autograd graphs that it built and consumed.

PyTorch numbers the operators that autograd records, one after the other on each thread, and its engine
visits the nodes they left in descending order of these numbers: a node is only ready once all that were
recorded after it and use its result have been visited, and of the ready ones the engine takes the one
recorded last (`torch/csrc/autograd/engine.cpp`, `CompareNodeTaskTime`). So

- a run of the engine's visits with falling numbers is one call of the engine, and where they rise again
  the next call begins;
- the highest number of a call is the last operator of the forward that the call goes back through, and
  what was recorded between it and the highest number of the graph before is that forward;
- a call that comes back to nodes that were visited already is what zero-bubble schedules put off: the
  gradients of the weights.

Transfers between ranks part forwards that no call of the engine tells apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.kinds import Kind
from bubblescope.sources.nesting import outermost
from bubblescope.sources.traced import (
    BACKWARD,
    CAST,
    COMMUNICATION,
    COMPUTE,
    NODE,
    NONE,
    PRODUCT,
    SEND,
)

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints, Mask

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

_REVISITED: Final = 1 / 3
"""Share of a call's nodes that were visited before, from which on the call computes weights' gradients.
Of a linear layer it visits two nodes, of which the call for the inputs visited one."""

_MOSTLY: Final = 2 / 3
"""The same of a call that goes higher than any before it. Autocast casts a weight once for several
forwards, all of whose backwards visit that cast: up to half of their nodes."""

_SMALLER: Final = 0.5
"""A call within another graph's numbers is a part of that graph if it visits less than this share of
what the graph's own call visited."""

_DISTINCT: Final = 0.25
"""Share of the engine's visits with a number of their own below which the numbers mean nothing: no node
is visited more than twice."""

_LEFT_OVER: Final = 2
"""Operators that a pass may leave behind it, before the wait for what the next works on."""

_ALIKE: Final = 0.2
"""How far the number of operators of a forward without a backward may be from that of one with."""

_SURE, _LIKELY, _GUESSED = 0.99, 0.9, 0.5
"""Certainty of a pass whose forward and backward were both seen; of one of which only that one was, as
at the edges of a trace; and of one that no number tells."""


class _Order(NamedTuple):
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


def passes(operators: pl.DataFrame, apart: pl.DataFrame) -> pl.DataFrame:
    """Return the forwards and backwards of one process.

    Args:
        operators: Frame with the columns of `OPERATORS`.
        apart: Frame with start_ns and end_ns of ranges whose operators are neither, such as optimizers.

    Returns:
        Frame with the columns of `PASSES`, by start; none if autograd's engine ran nothing. Without
        numbers passes have no graph, and are told by what ran between two transfers.
    """
    order = _ordered(operators, apart)
    if not order.engine.height or not order.own.height:
        return pl.DataFrame(schema=PASSES)
    numbers = order.engine.filter(pl.col("sequence") != NONE)["sequence"]
    if not order.numbered.height or numbers.n_unique() < _DISTINCT * len(numbers):
        return _by_turns(order)
    calls = _calls(order)
    if not calls.height:
        return pl.DataFrame(schema=PASSES)
    calls = _graphs(calls)
    backwards = _backwards(calls)
    forwards = _forwards(order, calls)
    main = int(order.own["thread"][0])
    backwards = _with_preparation(order, backwards, forwards)
    backwards = _with_sums(order, backwards, forwards, apart)
    found = pl.concat(
        [
            frame.with_columns(thread=pl.lit(main, pl.Int64)).select(*PASSES).cast(PASSES)  # type: ignore[arg-type]
            for frame in (forwards, backwards)
        ]
    )
    return _joined(found.sort("start_ns", "end_ns"), order)


def _by_turns(order: _Order) -> pl.DataFrame:
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


def _joined(found: pl.DataFrame, order: _Order) -> pl.DataFrame:
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


def _ordered(operators: pl.DataFrame, apart: pl.DataFrame) -> _Order:
    """Put the outermost operators of the main thread and of the engine in order."""
    # Where the trace lacks a call of the engine, it may still have the node that was called.
    backward = pl.col("role").is_in([BACKWARD, NODE])
    numbered = (pl.col("sequence") != NONE) & pl.col("role").is_between(CAST, COMPUTE)
    engine = outermost(operators.filter(backward)).sort("start_ns")
    telling = operators.filter(numbered)
    telling = telling if telling.height else operators.filter(pl.col("role") == PRODUCT)
    if not telling.height or not engine.height:
        nothing = np.zeros(0, np.int64)
        return _Order(operators.clear(), operators.clear(), nothing, engine, nothing)
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
    return _Order(
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


def _boundaries_ns(order: _Order) -> Ints:
    """Return when the main thread did what parts passes: it recorded an operator, or moved data."""
    parts = (order.moved, order.recorded)
    return np.sort(np.concatenate([part["start_ns"].to_numpy() for part in parts]))


def _calls(order: _Order) -> pl.DataFrame:
    """Return the calls of the engine, by start.

    Returns:
        Frame with call, block (how many boundaries came before), start_ns, end_ns, low and high (the
        lowest and highest number of its nodes), nodes and again (how many were visited before).
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
    return (
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


def _built(order: _Order, engine: pl.DataFrame) -> pl.Series:
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


def _with_preparation(
    order: _Order, backwards: pl.DataFrame, forwards: pl.DataFrame
) -> pl.DataFrame:
    """Let backwards begin with what the caller recorded for them, since the pass or transfer before.

    Zero-bubble schedules look for the nodes at which they split a backward in this way, one for each
    layer. One or two operators before the longest wait are still of the pass before, such as one that
    detaches its result.
    """
    ends = [frame["end_ns"].to_numpy() for frame in (backwards, forwards, order.moved)]
    done_ns = np.sort(np.concatenate(ends))
    start = backwards["start_ns"].to_numpy()
    since = np.append(NONE, done_ns)[np.searchsorted(done_ns, start, side="right")]
    recorded_ns, recorded_end = (order.recorded[edge].to_numpy() for edge in ("start_ns", "end_ns"))
    of = np.searchsorted(start, recorded_ns, side="right")
    ours = (of < len(start)) & (recorded_ns >= np.append(since, 2**62)[of])
    steps = pl.DataFrame(
        {
            "of": np.concatenate([of[ours], np.arange(len(start))]),
            "start_ns": np.concatenate([recorded_ns[ours], start]),
            "end_ns": np.concatenate([recorded_end[ours], start]),
        }
    ).sort("of", "start_ns")
    before = pl.col("end_ns").shift(1).over("of").fill_null(pl.Series(since).gather(steps["of"]))
    begun = (
        steps.with_columns(wait_ns=pl.col("start_ns") - before)
        .group_by("of")
        .agg(
            pl.col("start_ns").get(
                pl.when(pl.col("wait_ns").arg_max() <= _LEFT_OVER)
                .then(pl.col("wait_ns").arg_max())
                .otherwise(0)
            )
        )
        .sort("of")
    )
    return backwards.with_columns(begun["start_ns"])


def _with_sums(
    order: _Order, backwards: pl.DataFrame, forwards: pl.DataFrame, apart: pl.DataFrame
) -> pl.DataFrame:
    """Let gradients of weights end with what the caller does right after them: it adds them up itself.

    At the end of a step other work follows, so that none ends later than after as many operators as
    half of them have.
    """
    weight = (backwards["kind"] == Kind.BACKWARD_WEIGHT.value).to_numpy()
    if not weight.any():
        return backwards
    begins = (backwards, forwards, order.moved, apart, order.recorded)
    starts = [frame["start_ns"].to_numpy() for frame in begins]
    begun_ns = np.sort(np.concatenate([*starts, [2**62]]))
    end = backwards["end_ns"].to_numpy()
    own_start, own_end = (order.own[edge].to_numpy() for edge in ("start_ns", "end_ns"))
    after = np.searchsorted(own_start, end)
    until = np.searchsorted(own_start, begun_ns[np.searchsorted(begun_ns, end)])
    count = np.minimum(until - after, int(np.median((until - after)[weight])))
    last = own_end[(after + count - 1).clip(0)]
    return backwards.with_columns(end_ns=pl.Series(np.where(weight & (count > 0), last, end)))


def _forwards(order: _Order, calls: pl.DataFrame) -> pl.DataFrame:
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
    alike = _alike(order, np.cumsum(taken)[:-1] > 0, (size[last + 1] - size[first])[seen])
    return pl.concat([found, alike]).with_columns(kind=pl.lit(Kind.FORWARD.value))


def _alike(order: _Order, taken: Mask, sizes: Ints) -> pl.DataFrame:
    """Return forwards that no backward tells: runs of about as many operators as others have.

    Args:
        order: What ran.
        taken: Which of the numbered operators are in a forward.
        sizes: How many operators autograd recorded in each of those.
    """
    free = order.advances & ~taken
    start, end = (order.numbered[edge].to_numpy()[free] for edge in ("start_ns", "end_ns"))
    moved = order.moved["start_ns"].to_numpy()
    parts = np.stack(
        [
            np.searchsorted(np.sort(edges), start)
            for edges in (
                moved,
                order.engine["start_ns"].to_numpy(),
                order.numbered["start_ns"].to_numpy()[taken],
            )
        ]
    )
    begins = np.append(np.ones(min(1, len(start)), bool), np.diff(parts, axis=1).any(axis=0))
    runs = pl.DataFrame(
        {
            "run": np.cumsum(begins),
            "start_ns": start,
            "end_ns": end,
            "graph": order.sequence[free],
        },
        schema={"run": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "graph": pl.Int64},
    )
    found = runs.group_by("run", maintain_order=True).agg(
        pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("graph").max(), size=pl.len()
    )
    known = np.unique(sizes)
    own = found["size"].to_numpy()
    # Only a forward multiplies matrices; what prepares a backward does not.
    low, high = (
        np.searchsorted(order.products_ns, found[edge].to_numpy())
        for edge in ("start_ns", "end_ns")
    )
    near = [bool(len(known)) and bool((np.abs(known - one) <= _ALIKE * known).any()) for one in own]
    return found.filter(pl.Series(near, dtype=pl.Boolean) & pl.Series(low < high)).select(
        "start_ns", "end_ns", "graph", certainty=pl.lit(_LIKELY, pl.Float64)
    )
