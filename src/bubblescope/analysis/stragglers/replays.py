"""Replays of a job in which some operations keep their times and all others take the ideal one.

A counterfactual says which operations keep their times. All of them are replayed at once: an
operation of every counterfactual, step and replica is one addition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bubblescope.analysis.stragglers.step_graph import step_graph
from bubblescope.names.job_trace_operations import COMMUNICATION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.analysis.stragglers.operations import Array, Operations

_TOO_EARLY_NS: Final = -10_000_000
"""Communication that ends this long before its last member starts is of broken clocks: it is 0."""

_WIDE: Final = 1 << 16
"""Replays in one sweep: so that the ends of an operation stay in a processor's cache."""


class Replays:
    """A job that can be replayed.

    Attributes:
        real_ns: What each operation takes, n x s x r: computation its length; communication from
            the start of the last of those who meet, to its end.
        ideal_ns: What each would take if none of its type was slow, n long: the mean over places,
            steps and replicas for computation, the median for communication.

    Raises:
        TimelineError: Messages do not match computations.
        ScheduleError: Operations wait for each other in a circle.
    """

    def __init__(self, operations: Operations, usual: Usual | None = None) -> None:
        self._graph = step_graph(operations)
        self.real_ns = _transfers(operations, self._graph.rendezvous)
        self.ideal_ns = (usual or Usual.of(operations, self.real_ns)).of_type_ns[operations.type]
        self._extra = self.real_ns - self.ideal_ns[:, None, None]
        self._meets = {
            len(operations) + number: one.replicas
            for number, one in enumerate(self._graph.rendezvous)
        }
        self._sinks = np.bincount(self._graph.graph.edges.source, minlength=self._graph.graph.count)

    def keeping(self, kept: Array) -> Array:
        """Return how long steps take if only some operations keep their times.

        Args:
            kept: Which do, counterfactuals x n x r, or counterfactuals x n x 1 for all replicas.

        Returns:
            Counterfactuals x s, in nanoseconds.
        """
        cases, _, replicas = kept.shape
        steps, columns = self.real_ns.shape[1:]
        some = [np.flatnonzero(each.any(axis=1)) for each in kept.transpose(1, 0, 2)]
        whole = replicas == 1
        found = np.empty((cases, steps), np.int64)
        size = max(1, _WIDE // (cases * columns))
        for low in range(0, steps, size):
            part = slice(low, low + size)

            def late(operation: int, end: Array, part: slice = part) -> None:
                extra = self._extra[operation, part]
                for case in some[operation].tolist():
                    end[case] += extra if whole else extra * kept[case, operation]

            shape = (cases, len(range(steps)[part]), columns)
            found[:, part] = self._sweep(shape, late)
        return found

    def alone(self, kept: Array) -> Array:
        """Return how long steps take if only some operations of one replica keep their times.

        The other replicas, all ideal, are all alike, so one stands for them.

        Args:
            kept: Which operations do, counterfactuals x n.

        Returns:
            Counterfactuals x r x s: for each replica, what its operations alone cost.
        """
        steps, replicas = self.real_ns.shape[1:]
        others = min(replicas - 1, 1)
        found = np.empty((len(kept), replicas, steps), np.int64)
        some = [np.flatnonzero(each) for each in kept.T]
        size = max(1, _WIDE // (len(kept) * replicas * (1 + others)))
        for low in range(0, steps, size):
            part = slice(low, low + size)

            def late(operation: int, end: Array, part: slice = part) -> None:
                extra = self._extra[operation, part].T
                for case in some[operation].tolist():
                    end[case, ..., 0] += extra

            shape = (len(kept), replicas, len(range(steps)[part]), 1 + others)
            found[..., part] = self._sweep(shape, late)
        return found

    def _sweep(self, shape: tuple[int, ...], late: Any) -> Array:
        """Replay everything ideal, but for what `late` adds to the ends of an operation in place.

        Returns:
            When the last operation ends, over the replicas in the last axis.
        """
        ideal = self.ideal_ns.tolist()
        count = len(ideal)
        last = np.zeros(shape, np.int64)

        def finish(operation: int, begin: Any) -> Any:
            if operation >= count:
                if not self._meets[operation]:
                    return begin
                # No axis of its own for what all replicas share: it broadcasts.
                return begin.max(axis=-1, keepdims=True) if np.ndim(begin) else begin
            end = np.add(begin, ideal[operation], out=np.empty(shape, np.int64))
            late(operation, end)
            if not self._sinks[operation]:
                np.maximum(last, end, out=last)
            return end

        self._graph.graph.sweep(finish)
        longest: Array = last.max(axis=-1)
        return longest


def _transfers(operations: Operations, rendezvous: list[Any]) -> Array:
    """Return what operations take once all who take part are there, n x s x r."""
    taken = operations.length_ns
    if not rendezvous:
        return taken
    taken = taken.copy()
    for members, replicas in rendezvous:
        ends = operations.end_ns[members]
        together = operations.start_ns[members].max(axis=0)
        if replicas:
            together = together.max(axis=-1, keepdims=True)
        transfer = ends - together
        transfer[transfer <= _TOO_EARLY_NS] = 0
        taken[members] = transfer
    return taken


class Usual(NamedTuple):
    """What operations of each type take as a rule.

    Attributes:
        sum_ns, number: Their sum, and how many there are, of computation of each type, k long.
        median_ns: Of communication, k long; 0 for computation.
        communicates: Which types communicate, k long.
    """

    sum_ns: Array
    number: Array
    median_ns: Array
    communicates: Array

    @classmethod
    def of(cls, operations: Operations, real_ns: Array) -> Self:
        """Look at the operations of some steps.

        Args:
            operations: The operations.
            real_ns: What each takes, n x s x r.
        """
        kinds = len(operations.types)
        sums, counts, medians = np.zeros((3, kinds), np.int64)
        communicates = np.isin(operations.types, list(COMMUNICATION))
        for index in range(kinds):
            times = real_ns[operations.type == index]
            sums[index], counts[index] = times.sum(), times.size
            if communicates[index]:
                medians[index] = np.rint(np.median(times))
        return cls(sums, counts, medians, communicates)

    @classmethod
    def joined(cls, parts: Sequence[Usual]) -> Self:
        """Return that of several parts of a run together, of which none has communication."""
        sums, counts = (sum(one) for one in zip(*(part[:2] for part in parts), strict=True))
        return cls(np.asarray(sums), np.asarray(counts), *parts[0][2:])

    @property
    def of_type_ns(self) -> Array:
        """The mean of each type of computation and the median of each of communication."""
        mean = np.rint(self.sum_ns / self.number).astype(np.int64)
        return np.where(self.communicates, self.median_ns, mean)
