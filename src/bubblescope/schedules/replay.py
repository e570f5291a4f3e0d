"""Replay: when every operation starts and ends, given what it waits for and how long it takes.

An operation starts as soon as its device is free and all that it needs has arrived. Over a graph
without cycles that is the longest path to it (Kelley and Walker, "Critical-Path Planning and
Scheduling", 1959), found in one pass in an order in which everything comes after what it needs.

The order is found once for a graph; replaying it with other durations is a single loop over plain
lists of numbers, a fraction of a microsecond for an operation. Large graphs in which many operations do
not wait for each other are replayed a depth at a time (`bubblescope.schedules.levels`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind
from bubblescope.schedules.levels import NEVER, Delays, Levels, slots
from bubblescope.schedules.plan import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.model.arrays import Ints
    from bubblescope.schedules.plan import Plan

MESSAGES: Final = (Kind.SEND_FORWARD, Kind.SEND_BACKWARD, None)
"""What a result travels as: activations, their gradient, or not at all, within a stage."""


class Edges(NamedTuple):
    """What operations wait for, one element per edge.

    Attributes:
        source: The operation that must have ended.
        target: The operation that waits for it.
    """

    source: Ints
    target: Ints


class DataEdges(NamedTuple):
    """What operations need from others, one element per edge.

    Attributes:
        source, target: As in `Edges`.
        message: Index into `MESSAGES`.
        stage, microbatch: Where the result comes from.
    """

    source: Ints
    target: Ints
    message: Ints
    stage: Ints
    microbatch: Ints


class Graph:
    """Operations and what they wait for, in an order in which they can run.

    Args:
        count: Number of operations n; they are numbered from 0.
        edges: What waits for what. Doubled edges are allowed.
        name: Says what an operation is, for the message about a deadlock.

    Raises:
        ScheduleError: Operations wait for each other in a circle; the message names it.
    """

    def __init__(self, count: int, edges: Edges, name: Callable[[int], str] = str) -> None:
        self.count = count
        self.edges = edges
        self._name = name
        self._levels = Levels.of(count, *edges)
        if self._levels is None:
            _ = self._order  # there is one, or else it is said now

    @cached_property
    def _order(self) -> Ints:
        return _topological(self.count, self.edges, self._name)

    @cached_property
    def _slots(self) -> tuple[Ints, Ints]:
        place = np.empty(self.count, np.int64)
        place[self._order] = np.arange(self.count)
        return slots(place, *self.edges)

    def by_depth(self, replays: int) -> Levels | None:
        """Return the operations by their depth; None where so many replays are faster one by one."""
        return self._levels or Levels.of(self.count, *self.edges, replays=replays)

    def delays(self, delay_ns: Ints | None) -> Delays:
        """Return delays of edges in the order in which operations run, once for many replays."""
        return (
            Delays.of(delay_ns, self._slots[1])
            if self._levels is None
            else self._levels.delays(delay_ns)
        )

    def run(
        self, duration_ns: Ints, delay_ns: Ints | None = None, ready_ns: Ints | None = None
    ) -> tuple[Ints, Ints]:
        """Return when every operation starts and ends, as early as it can.

        Args:
            duration_ns: How long each operation takes, n long.
            delay_ns: For each edge, how long after its source's end the target may start; none if
                left out.
            ready_ns: The earliest start of each operation, 0 if left out.

        Returns:
            Start and end of each operation, n long, in nanoseconds.
        """
        end = self.ends(duration_ns, self.delays(delay_ns), ready_ns)
        return end - duration_ns, end

    def ends(self, duration_ns: Ints, delays: Delays, ready_ns: Ints | None = None) -> Ints:
        """Return when every operation ends, as `run` does, n long.

        Args:
            duration_ns: As there.
            delays: As `delays` returns them.
            ready_ns: As there.
        """
        if self._levels is not None:
            return self._levels.ends(duration_ns, delays, ready_ns)
        order = self._order
        earliest = np.zeros(self.count, np.int64) if ready_ns is None else ready_ns[order]
        columns = []
        for source, late in zip(self._slots[0], delays.rows, strict=True):
            columns += [source.tolist(), [0] * self.count if late is None else late.tolist()]
        end = np.empty(self.count, np.int64)
        end[order] = _longest(earliest.tolist(), duration_ns[order].tolist(), columns)
        return end

    def run_many(self, durations_ns: Ints) -> tuple[Ints, Ints]:
        """Return when every operation starts and ends in many replays, without delays.

        Args:
            durations_ns: How long each operation takes, replays x n.

        Returns:
            Start and end of each operation, replays x n, in nanoseconds.
        """
        replays = len(durations_ns)
        levels = self.by_depth(replays)
        if levels is None:
            runs = [self.run(durations) for durations in durations_ns]
            starts, ends = (
                np.array([run[side] for run in runs], np.int64).reshape(durations_ns.shape)
                for side in (0, 1)
            )
            return starts, ends
        lengths = np.ascontiguousarray(durations_ns.T[levels.order])

        def taken(low: int, high: int, _: Ints) -> Ints:
            return lengths[low:high]

        end = np.empty(durations_ns.shape, np.int64)
        end[:, levels.order] = levels.sweep(taken, replays, levels.delays(None)).T
        return end - durations_ns, end

    def sweep(self, finish: Callable[[int, Any], Any]) -> None:
        """Replay many times at once, one operation of all replays at a time.

        Ends are kept only as long as an operation still waits for them.

        Args:
            finish: Given an operation and when the last of what it waits for ended, in an array of
                any shape, or 0 if it waits for nothing, returns when it ends, in such an array. The
                array that it is given must not be changed.
        """
        order = self._order.tolist()
        left = np.bincount(self.edges.source, minlength=self.count).tolist()
        ends: dict[int, Any] = {}
        for operation, places in zip(order, self._slots[0].T.tolist(), strict=True):
            sources = [order[place] for place in places if place >= 0]
            begin: Any = 0
            if sources:
                begin = ends[sources[0]]
                spare = None
                for source in sources[1:]:
                    begin = spare = np.maximum(begin, ends[source], out=spare)
            end = finish(operation, begin)
            if left[operation]:
                ends[operation] = end
            for source in sources:
                left[source] -= 1
                if not left[source]:
                    del ends[source]


def _longest(earliest: list[int], durations: list[int], columns: list[list[int]]) -> list[int]:
    """Return the end of each operation, in the order in which they run.

    Args:
        earliest: Earliest starts.
        durations: How long operations take.
        columns: Sources and delays of each slot of edges in turn; a source of -1 is none.
    """
    # The last element is what index -1 finds: the end of nothing.
    ends = [0] * len(durations) + [NEVER]
    if len(columns) == 4:
        for index, (start, length, a, da, b, db) in enumerate(
            zip(earliest, durations, *columns, strict=True)
        ):
            one = ends[a] + da
            two = ends[b] + db
            start = max(start, one)  # noqa: PLW2901  a name less in the hottest loop
            ends[index] = (max(start, two)) + length
    else:
        sources, delays = columns[::2], columns[1::2]
        for index, (start, length) in enumerate(zip(earliest, durations, strict=True)):
            for source, delay in zip(sources, delays, strict=True):
                arrival = ends[source[index]] + delay[index]
                start = max(start, arrival)  # noqa: PLW2901
            ends[index] = start + length
    ends.pop()
    return ends


def _topological(count: int, edges: Edges, name: Callable[[int], str]) -> Ints:
    """Return an order in which everything comes after what it waits for (Kahn, 1962)."""
    waiting = np.bincount(edges.target, minlength=count)
    by_source = np.argsort(edges.source, kind="stable")
    first = np.searchsorted(edges.source[by_source], np.arange(count + 1)).tolist()
    targets = edges.target[by_source].tolist()
    ready = np.flatnonzero(waiting == 0).tolist()
    left = waiting.tolist()
    order: list[int] = []
    while ready:
        operation = ready.pop()
        order.append(operation)
        for target in targets[first[operation] : first[operation + 1]]:
            left[target] -= 1
            if not left[target]:
                ready.append(target)
    if len(order) < count:
        raise ScheduleError(f"deadlock: {_circle(edges, np.array(left) > 0, name)}")
    return np.array(order, np.int64)


def _circle(
    edges: Edges, stuck: np.ndarray[tuple[int], np.dtype[np.bool_]], name: Callable[[int], str]
) -> str:
    """Name the operations of a circle among those that never run."""
    inside = stuck[edges.source] & stuck[edges.target]
    waits_for = dict(zip(edges.target[inside].tolist(), edges.source[inside].tolist(), strict=True))
    walk = [next(iter(waits_for))]
    while walk[-1] not in walk[:-1]:
        walk.append(waits_for[walk[-1]])
    circle = walk[walk.index(walk[-1]) :]
    return ", which waits for ".join(name(operation) for operation in circle)


def data_edges(plan: Plan) -> DataEdges:
    """Return which operations of a plan need the result of another.

    A forward needs that of the stage before, a backward that of the stage after, and the last
    stage's backward its own forward; a weight gradient its input gradient.
    """
    forward, backward = plan.table(FORWARD), plan.table(BACKWARD, BACKWARD_INPUT)
    weight = plan.table(BACKWARD_WEIGHT)
    up, down, local = range(len(MESSAGES))
    parts = []
    for source, target, first, message in (
        (forward[:-1], forward[1:], 0, up),
        (backward[1:], backward[:-1], 1, down),
        (forward[-1:], backward[-1:], plan.stages - 1, local),
        (backward, weight, 0, local),
    ):
        stage, microbatch = np.nonzero((source >= 0) & (target >= 0))
        ends = (source[stage, microbatch], target[stage, microbatch])
        parts.append((*ends, np.full(len(stage), message), stage + first, microbatch))
    return DataEdges(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def edges_of(plan: Plan) -> tuple[Edges, DataEdges]:
    """Return everything that a plan's operations wait for.

    Returns:
        First, for every operation but each device's first, the one before it on its device; then
        the data edges. Of those within a device only such that the order there contradicts are
        kept, so that they show up as the deadlock that they are. The second value has the data
        edges that were kept: the last of the first.
    """
    follows = np.ones(len(plan), bool)
    follows[plan.first[:-1]] = False
    after = np.flatnonzero(follows)
    data = data_edges(plan)
    crosses = plan.device[data.source] != plan.device[data.target]
    kept = crosses | (data.source >= data.target)
    data = DataEdges(*(column[kept] for column in data))
    source, target = (
        np.concatenate(pair) for pair in ((after - 1, data.source), (after, data.target))
    )
    return Edges(source, target), data
