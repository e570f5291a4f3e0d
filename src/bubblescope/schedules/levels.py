"""Replays of many operations at once: of those that are as far from the start, counted in operations.

Steps and replicas of a long run do not wait for each other, so hundreds or thousands of operations are
at the same depth: the number of operations on the longest path to them. None of these waits for
another one, and all that they wait for is less deep. So a replay is a few operations on arrays for each
depth (Kahn, "Topological sorting of large networks", 1962, all at once that have nothing to wait for).

Many replays of a graph that is not wide are as well done a depth at a time, all replays together.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from typing_extensions import Self

    from bubblescope.model.arrays import Ints

NEVER: Final = -(1 << 62)
"""Before all time."""

_NOTHING: Final = -1

_LARGE: Final = 4096
"""Operations below which a graph is not worth it."""

_WIDE: Final = 16
"""Operations at one depth, in the mean, from which on all together cost less than one by one."""

_PATIENCE: Final = 256
"""Depths after which a graph is given up if it has not been wide so far."""


_NARROW: Final = 4096
"""Operations at one depth, in the mean, below which a replay goes through all depths `_alone`."""

_alone: Final = threading.Lock()
"""NumPy lets other threads run during each of its small operations. If these replay too, they wait for
each other all the time, and two of them take longer than one after the other."""


class Taken(Protocol):
    """Tells how long operations take in many replays."""

    def __call__(self, low: int, high: int, room: Ints, /) -> Ints:
        """Return how long those at the places from `low` to `high` take, each in r replays.

        Where that is not known yet, there is room for it.
        """


class Delays(msgspec.Struct, frozen=True):
    """How long after what it waits for each operation may start, in an order in which they can run.

    Attributes:
        rows: As many as `slots` returns, n long each; None for one in which all are 0.
    """

    rows: tuple[Ints | None, ...]

    @classmethod
    def of(cls, delay_ns: Ints | None, edges: Ints) -> Self:
        """Put delays in that order.

        Args:
            delay_ns: Of each edge; all are 0 if None.
            edges: Which edges the operations wait for, as `slots` returns them.
        """
        if delay_ns is None:
            return cls((None,) * len(edges))
        padded = np.append(delay_ns, 0)  # the last element is what index -1 finds
        late = (padded[row] for row in edges)
        return cls(tuple(row if row.any() else None for row in late))


class Levels:
    """Operations by their depth, with what they wait for.

    Args:
        order: Numbers of the operations, n long, by depth.
        bounds: Places in `order` at which depths begin, and n.
        source: What must have ended, for each of e edges.
        target: What waits for it.

    Attributes:
        order: As above.
        place: Of each operation in it, n long.
    """

    def __init__(self, order: Ints, bounds: list[int], source: Ints, target: Ints) -> None:
        self.order = order
        self.place = np.empty(len(order), np.int64)
        self.place[order] = np.arange(len(order))
        self._bounds = bounds
        self._sources, self._edge_at = slots(self.place, source, target)
        narrow = len(order) < _NARROW * (len(bounds) - 1)
        self._turn: AbstractContextManager[Any] = _alone if narrow else nullcontext()

    @classmethod
    def of(cls, count: int, source: Ints, target: Ints, *, replays: int = 1) -> Self | None:
        """Sort operations by their depth.

        Args:
            count: Number of operations n.
            source: What must have ended, for each edge.
            target: What waits for it.
            replays: How many will be made at once.

        Returns:
            None where few operations are at the same depth, those of all replays together, or where
            some wait for each other in a circle.
        """
        if count * replays < _LARGE:
            return None
        waiting = np.bincount(target, minlength=count)
        targets = target[np.argsort(source, kind="stable")]
        first = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=count))])
        ready, done = np.flatnonzero(waiting == 0), 0
        order, turn = [], np.empty(count, np.int64)
        while len(ready):
            order.append(ready)
            done += len(ready)
            if len(order) >= _PATIENCE and done * replays < _WIDE * len(order):
                return None
            begins, sizes = first[ready], first[ready + 1] - first[ready]
            offset = np.repeat(begins - (np.cumsum(sizes) - sizes), sizes)
            reached = targets[offset + np.arange(len(offset))]
            np.subtract.at(waiting, reached, 1)
            found = reached[waiting[reached] == 0]
            turn[found] = np.arange(len(found))  # one that waited for several is found as often
            ready = found[turn[found] == np.arange(len(found))]
        if done < count or done * replays < _WIDE * len(order):
            return None
        bounds = np.cumsum([0, *map(len, order)]).tolist()
        return cls(np.concatenate(order), bounds, source, target)

    @property
    def widest(self) -> int:
        """The most operations at one depth."""
        return max(high - low for low, high in pairwise(self._bounds))

    def delays(self, delay_ns: Ints | None) -> Delays:
        """Return delays of edges as `ends` takes them."""
        return Delays.of(delay_ns, self._edge_at)

    def ends(self, duration_ns: Ints, delays: Delays, ready_ns: Ints | None) -> Ints:
        """Return when every operation ends, n long; as of `bubblescope.schedules.replay.Graph.run`."""
        order = self.order
        duration = duration_ns[order].astype(np.int64, copy=False)
        earliest = None if ready_ns is None else ready_ns[order]
        # The last element is what index -1 finds: the end of nothing.
        ends = np.empty(len(order) + 1, np.int64)
        ends[-1] = NEVER
        begins, others = np.empty((2, self.widest), np.int64)
        with self._turn:
            for low, high in pairwise(self._bounds):
                begin, other = begins[: high - low], others[: high - low]
                if not low:  # what waits for nothing
                    begin[:] = 0
                # Of what is deeper, the first slot is never empty: there is an end in it.
                for slot, sources in enumerate(self._sources if low else ()):
                    arrival, late = other if slot else begin, delays.rows[slot]
                    # Index -1 wraps around to the end of nothing.
                    ends.take(sources[low:high], out=arrival, mode="wrap")
                    if late is not None:
                        arrival += late[low:high]
                    if slot:
                        np.maximum(begin, other, out=begin)
                np.maximum(begin, 0 if earliest is None else earliest[low:high], out=begin)
                np.add(begin, duration[low:high], out=ends[low:high])
        found = duration  # which nobody needs any more
        found[order] = ends[:-1]
        return found

    def sweep(
        self,
        taken: Taken,
        replays: int,
        delays: Delays,
        ready_ns: tuple[Ints, Ints] | None = None,
    ) -> Ints:
        """Return when operations end in many replays at once.

        Args:
            taken: Tells how long they take; asked once for each.
            replays: How many there are, r.
            delays: As `delays` returns them, 0 or more.
            ready_ns: Some operations, and their earliest starts: k, and k x r.

        Returns:
            The ends, n x r, in the order of `order`.
        """
        count = len(self.order)
        ends = np.empty((count + 1, replays), np.int64)
        ends[count] = NEVER
        begins, others = np.empty((2, self.widest, replays), np.int64)
        held = self._held(ready_ns)
        for low, high in pairwise(self._bounds):
            begin, other = begins[: high - low], others[: high - low]
            if not low:  # what waits for nothing
                begin[:] = 0
            for slot, sources in enumerate(self._sources if low else ()):  # as in `ends`
                arrival, late = other if slot else begin, delays.rows[slot]
                ends.take(sources[low:high], 0, arrival, "wrap")
                if late is not None:
                    arrival += late[low:high, None]
                if slot:
                    np.maximum(begin, other, out=begin)
            if low in held:
                at, ready = held[low]
                begin[at] = np.maximum(begin[at], ready)
            np.add(begin, taken(low, high, other), out=ends[low:high])
        return ends[:count]

    def _held(self, ready_ns: tuple[Ints, Ints] | None) -> dict[int, tuple[Ints, Ints]]:
        """Return, by the first place of a depth, which of its operations start when at the earliest."""
        if ready_ns is None:
            return {}
        operations, ready = ready_ns
        places, bounds = self.place[operations], np.array(self._bounds)
        low = bounds[np.searchsorted(bounds, places, "right") - 1]
        return {
            first: (places[low == first] - first, ready[low == first])
            for first in np.unique(low).tolist()
        }


def slots(place: Ints, source: Ints, target: Ints) -> tuple[Ints, Ints]:
    """Return what each operation waits for, by its place in an order in which they can run.

    Args:
        place: Of each operation in that order; n long.
        source: What must have ended, for each edge.
        target: What waits for it.

    Returns:
        Places of the sources, and which edges these are: as many rows as an operation has edges at
        most, n long each, -1 where it has fewer.
    """
    at, left = place[target], np.arange(len(target))
    rows: list[Ints] = []
    while len(left):  # of several edges to a place, one after the other is written there last
        row = np.full(len(place), _NOTHING)
        row[at[left]] = left
        rows.append(row)
        left = left[row[at[left]] != left]
    edges = np.stack(rows) if rows else np.empty((0, len(place)), np.int64)
    sources: Ints = np.append(place[source], _NOTHING)[edges]  # the last is what index -1 finds
    return sources, edges
