"""Replays of a plan in all runs of its operations at once, with what each costs looked up on the way.

A long job has thousands of runs (steps of replicas), and advice plays dozens of plans many times. So no
table of what every operation takes in every run is made, unless it is small: at each depth of the plan
(`bubblescope.schedules.levels`) the costs of its few operations are gathered, while they are in a
processor's cache.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from bubblescope.model.errors import ScheduleError
from bubblescope.schedules.replay import Graph, edges_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bubblescope.model.arrays import Ints
    from bubblescope.schedules.levels import Delays, Levels, Taken
    from bubblescope.schedules.plan import Plan

    Floats = NDArray[np.float64]

_MANY: Final = 1 << 30
"""So many replays that all at one depth together cost less than one by one, however few these are."""


_SMALL: Final = 1 << 14
"""Operations times runs up to which a table of what all take costs less than to ask at each depth."""


class Costs(NamedTuple):
    """What a plan's n operations take in each of r runs: a weighted sum of known costs.

    Attributes:
        table: The known costs, k x r.
        rows: Which of them each operation is made of, terms x n.
        weights: And how much of each, terms x n; None for one term that is all of it.
        slow: How many times as long each of p devices takes, p x r; None where all are healthy.
        late_ns: How long after it could each operation starts.
    """

    table: Floats
    rows: Ints
    weights: Floats | None
    slow: Floats | None
    late_ns: int


class Played(NamedTuple):
    """When a plan ran.

    Attributes:
        first_ns: First start in each run, r long.
        last_ns: Last end, r long.
        left_ns: When each device was done, p x r.
        busy_ns: How long each was busy with operations, p x r.
    """

    first_ns: Ints
    last_ns: Ints
    left_ns: Ints
    busy_ns: Ints


class PlanReplays:
    """A plan that can be replayed in many runs at once.

    Raises:
        ScheduleError: Operations wait for each other in a circle; the message names it.
    """

    def __init__(self, plan: Plan) -> None:
        edges, _ = edges_of(plan)
        self._plan = plan
        self._link = plan.device[edges.source], plan.device[edges.target]
        levels = Graph(len(plan), edges).by_depth(_MANY)
        if levels is None:
            raise ScheduleError("a plan without operations cannot be replayed")
        self._levels = levels

    def links(self) -> tuple[Ints, Ints]:
        """Return from which device to which each result is sent, or kept where these are the same."""
        return self._link

    def of(self, costs: Costs, delay_ns: Ints) -> Playing:
        """Return what replays the plan.

        Args:
            costs: What its operations take.
            delay_ns: How long results are on their way from device to device, p x p.
        """
        source, target = self._link
        delay = np.where(source != target, np.maximum(delay_ns[source, target], 0), 0)
        return Playing(self._plan, self._levels, costs, self._levels.delays(delay))


class Playing:
    """Replays of a plan of which it is known what its operations take.

    Args:
        plan: The plan.
        levels: Its operations by their depth.
        costs: What they take.
        delays: How long what they wait for is on its way.
    """

    def __init__(self, plan: Plan, levels: Levels, costs: Costs, delays: Delays) -> None:
        self._plan, self._levels, self._costs, self._delays = plan, levels, costs, delays
        self._device, self._runs = plan.device[levels.order], costs.table.shape[1]
        self._lengths = self._table() if len(plan) * self._runs <= _SMALL else None

    def play(self, free_ns: Ints | None = None) -> Played:
        """Return when the plan ran.

        Args:
            free_ns: When each device is free, p x r; from the start if left out.
        """
        busy = np.zeros((self._plan.devices, self._runs), np.int64)
        ends = self._ends(free_ns, busy)
        place = self._levels.place[self._plan.first[:-1]]
        if self._lengths is None:
            begun = np.empty((len(place), self._runs), np.int64)
            lookup = self._lookup(1)
            for device, at in enumerate(place.tolist()):
                lookup.write(at, at + 1, begun[device : device + 1])
        else:
            begun = self._lengths[place]
        left = ends[self._levels.place[self._plan.first[1:] - 1]]
        first = (ends[place] - begun).min(axis=0)
        return Played(first, left.max(axis=0), left, busy)

    def times(self, free_ns: Ints | None = None) -> tuple[Ints, Ints]:
        """Return when every operation starts and ends in each run, r x n; the argument as of `play`."""
        ends = self._ends(free_ns)
        taken = self._table() if self._lengths is None else self._lengths
        place = self._levels.place
        end, length = (np.ascontiguousarray(one[place].T) for one in (ends, taken))
        return end - length, end

    def _ends(self, free_ns: Ints | None, busy_ns: Ints | None = None) -> Ints:
        """Return when operations end, n x r by depth, and add up what devices compute."""
        ready = None if free_ns is None else (self._plan.first[:-1], free_ns)
        if self._lengths is None:
            taken = self._looked_up(busy_ns)
        else:
            taken = self._known(self._lengths, busy_ns)
        return self._levels.sweep(taken, self._runs, self._delays, ready)

    def _known(self, lengths: Ints, busy_ns: Ints | None) -> Taken:
        """Return what tells how long operations take, and adds it up, where a table has it."""
        if busy_ns is not None:
            np.add.at(busy_ns, self._device, lengths)
        lasting = lengths + self._costs.late_ns
        return lambda low, high, _: lasting[low:high]

    def _looked_up(self, busy_ns: Ints | None) -> Taken:
        """Return the same from what their times are made of."""
        lookup, late = self._lookup(self._levels.widest), self._costs.late_ns

        def taken(low: int, high: int, room: Ints) -> Ints:
            lookup.write(low, high, room)
            if busy_ns is not None:
                # No two operations of a device are at one depth: each waits for the one before it.
                busy_ns[self._device[low:high]] += room
            if late:
                room += late
            return room

        return taken

    def _table(self) -> Ints:
        """Return what all operations take in all runs, n x r by depth."""
        lengths = np.empty((len(self._device), self._runs), np.int64)
        self._lookup(len(lengths)).write(0, len(lengths), lengths)
        return lengths

    def _lookup(self, most: int) -> _Lookup:
        """Return what operations take, of which at most so many are asked for at once."""
        return _Lookup(self._costs, self._levels.order, self._device, most)


class _Lookup:
    """What operations take, by their places in the order of a plan.

    Args:
        costs: What they are made of.
        order: The operations.
        device: Where each of them runs.
        most: How many are asked for at once.
    """

    def __init__(self, costs: Costs, order: Ints, device: Ints, most: int) -> None:
        self._table, self._slow = costs.table, costs.slow
        self._rows, self._device = costs.rows[:, order], device
        self._weights = None if costs.weights is None else costs.weights[:, order]
        self._total, self._factor = np.empty((2, most, costs.table.shape[1]))

    def write(self, low: int, high: int, out: Ints) -> None:
        """Write what the operations from one place to another take, rounded to nanoseconds."""
        total = self._total[: high - low]
        self._table.take(self._rows[0, low:high], 0, total, "clip")
        if self._weights is not None:
            total *= self._weights[0, low:high, None]
            for row, weight in zip(self._rows[1:], self._weights[1:], strict=True):
                some = np.flatnonzero(weight[low:high])
                at = low + some
                total[some] += self._table[row[at]] * weight[at, None]
        if self._slow is not None:
            factor = self._factor[: high - low]
            self._slow.take(self._device[low:high], 0, factor, "clip")
            total *= factor
        np.rint(total, out=out, casting="unsafe")


@lru_cache(maxsize=64)
def replays_of(plan: Plan) -> PlanReplays:
    """Return a plan's replays, the same ones for the same plan."""
    return PlanReplays(plan)
