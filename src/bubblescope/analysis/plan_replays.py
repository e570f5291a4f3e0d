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
    from bubblescope.schedules.levels import Taken
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
        self._device = plan.device[self._levels.order]

    def links(self) -> tuple[Ints, Ints]:
        """Return from which device to which each result is sent, or kept where these are the same."""
        return self._link

    def play(self, costs: Costs, delay_ns: Ints, free_ns: Ints | None = None) -> Played:
        """Return when the plan ran.

        Args:
            costs: What its operations take.
            delay_ns: How long results are on their way from device to device, p x p.
            free_ns: When each device is free, p x r; from the start if left out.
        """
        busy = np.zeros((self._plan.devices, costs.table.shape[1]), np.int64)
        ends = self._ends(costs, delay_ns, free_ns, busy)
        place = self._levels.place[self._plan.first[:-1]]
        begun = np.empty((len(place), ends.shape[1]), np.int64)
        lookup = self._lookup(costs, 1)
        for device, at in enumerate(place.tolist()):
            lookup.write(at, at + 1, begun[device : device + 1])
        left = ends[self._levels.place[self._plan.first[1:] - 1]]
        first = (ends[place] - begun).min(axis=0)
        return Played(first, left.max(axis=0), left, busy)

    def times(self, costs: Costs, delay_ns: Ints, free_ns: Ints | None = None) -> tuple[Ints, Ints]:
        """Return when every operation starts and ends in each run, r x n; arguments as of `play`."""
        ends = self._ends(costs, delay_ns, free_ns, None)
        taken = np.empty_like(ends)
        self._lookup(costs, len(ends)).write(0, len(ends), taken)
        place = self._levels.place
        end, length = (np.ascontiguousarray(one[place].T) for one in (ends, taken))
        return end - length, end

    def _ends(
        self, costs: Costs, delay_ns: Ints, free_ns: Ints | None, busy_ns: Ints | None
    ) -> Ints:
        """Return when operations end, n x r by depth, and add up what devices compute."""
        source, target = self._link
        delay = np.where(source != target, np.maximum(delay_ns[source, target], 0), 0)
        ready = None if free_ns is None else (self._plan.first[:-1], free_ns)
        replays = costs.table.shape[1]
        taken = self._tabled if len(self._device) * replays <= _SMALL else self._looked_up
        return self._levels.sweep(taken(costs, busy_ns), replays, delay, ready)

    def _looked_up(self, costs: Costs, busy_ns: Ints | None) -> Taken:
        """Return what tells how long operations take, and adds it up, from the costs themselves."""
        lookup = self._lookup(costs, self._levels.widest)

        def taken(low: int, high: int, out: Ints) -> None:
            lookup.write(low, high, out)
            if busy_ns is not None:
                # No two operations of a device are at one depth: each waits for the one before it.
                busy_ns[self._device[low:high]] += out
            if costs.late_ns:
                out += costs.late_ns

        return taken

    def _tabled(self, costs: Costs, busy_ns: Ints | None) -> Taken:
        """Return the same from a table of all operations in all runs."""
        lengths = np.empty((len(self._device), costs.table.shape[1]), np.int64)
        self._lookup(costs, len(lengths)).write(0, len(lengths), lengths)
        if busy_ns is not None:
            np.add.at(busy_ns, self._device, lengths)
        lengths += costs.late_ns

        def taken(low: int, high: int, out: Ints) -> None:
            out[:] = lengths[low:high]

        return taken

    def _lookup(self, costs: Costs, most: int) -> _Lookup:
        """Return what operations take, of which at most so many are asked for at once."""
        return _Lookup(costs, self._levels.order, self._device, most)


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
