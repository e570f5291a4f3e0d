"""Graphs of parts that do not wait for each other, such as the steps of a long run.

Each part is a graph of its own, which fits into a processor's cache, and several are replayed at the
same time. Steps of a run mostly wait for the same in the same order: such parts are one graph.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from bubblescope.model.arrays import at_once
from bubblescope.model.ordering import order_of_runs
from bubblescope.schedules.replay import Edges, Graph

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.model.arrays import Ints
    from bubblescope.schedules.levels import Delays


class Parts:
    """Operations of parts that do not wait for each other, and what they wait for.

    Args:
        edges: What waits for what, e edges; both are of the same part. The edges of a part stay in
            their order.
        bounds: The first operation of each of k parts, and their number n.
        like: Graphs that parts may be like.

    Attributes:
        edges: As above.
        operations: Those of each part.
        own: Of each part, the places of its edges in `edges`.
        graphs: Each part, with its operations numbered from 0; one object for parts that are alike.

    Raises:
        ScheduleError: Operations wait for each other in a circle.
    """

    def __init__(self, edges: Edges, bounds: Ints, like: Sequence[Graph] = ()) -> None:
        self.edges = edges
        self.operations = [slice(*both) for both in pairwise(bounds.tolist())]
        self.own: list[Ints] = [np.arange(len(edges.source), dtype=np.int32)]
        if len(self.operations) > 1:
            part = np.searchsorted(bounds, edges.source, "right") - 1
            ends = np.cumsum(np.bincount(part, minlength=len(self.operations)))
            self.own = np.split(order_of_runs(part).astype(np.int32), ends[:-1])
        self.graphs = self._made(at_once(self._local, range(len(self.operations))), like)
        if len(self.graphs) == 1:  # which may be another's: then its edges are kept once
            self.edges = self.graphs[0].edges

    @property
    def bounds(self) -> Ints:
        """The first operation of each part, and the number of all."""
        return np.array([0, *(rows.stop for rows in self.operations)])

    def _made(self, local: list[Edges], like: Sequence[Graph]) -> list[Graph]:
        """Return the graph of each part, the same for those that are like the ones before them.

        Args:
            local: The edges of each, as `_local` returns them.
            like: As above.
        """
        counts = [rows.stop - rows.start for rows in self.operations]
        first = list(range(len(local)))  # the first of the parts that each is like
        for index in first[1:]:
            before = first[index - 1]
            if counts[index] == counts[before] and _same(local[index], local[before]):
                first[index] = before

        def made(index: int) -> Graph:
            for graph in like:
                if graph.count == counts[index] and _same(graph.edges, local[index]):
                    return graph
            return Graph(counts[index], local[index])

        kinds = sorted(set(first))
        graphs = dict(zip(kinds, at_once(made, kinds), strict=True))
        return [graphs[index] for index in first]

    def _local(self, index: int) -> Edges:
        """Return the edges of a part, with its operations numbered from 0."""
        if len(self.operations) == 1:
            return self.edges
        first, own = self.operations[index].start, self.own[index]
        return Edges(*(end[own] - first for end in self.edges))

    def alone(self, index: int) -> Parts:
        """Return one part by itself, with its operations numbered from 0."""
        graph = self.graphs[index]
        part = Parts.__new__(Parts)
        part.edges, part.graphs = graph.edges, [graph]
        part.operations, part.own = [slice(0, graph.count)], [np.arange(len(graph.edges.source))]
        return part

    def delays(self, delay_ns: Ints) -> list[Delays]:
        """Return the delays of each part, for many replays.

        Args:
            delay_ns: For each edge, how long after its source's end the target may start.
        """
        if len(self.graphs) == 1:
            return [self.graphs[0].delays(delay_ns)]
        return at_once(
            lambda index: self.graphs[index].delays(delay_ns[self.own[index]]),
            range(len(self.graphs)),
        )

    def ends(
        self, duration_ns: Ints, delays: Sequence[Delays], ready_ns: Ints | None = None
    ) -> Ints:
        """Return when every operation ends, n long, as `Graph.run` does.

        Args:
            duration_ns: How long each operation takes, n long.
            delays: As `delays` returns them.
            ready_ns: The earliest start of each operation, 0 if left out.
        """
        if len(self.graphs) == 1:
            return self.graphs[0].ends(duration_ns, delays[0], ready_ns)
        ends = np.empty(len(duration_ns), np.int64)

        def one(index: int) -> None:
            rows = self.operations[index]
            ready = None if ready_ns is None else ready_ns[rows]
            ends[rows] = self.graphs[index].ends(duration_ns[rows], delays[index], ready)

        at_once(one, range(len(self.graphs)))
        return ends


def _same(one: Edges, other: Edges) -> bool:
    return all(map(np.array_equal, one, other))
