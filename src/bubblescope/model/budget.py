"""The device's budget: every nanosecond of a device has one class, and what one is made of.

A device's time, from its first operation to its last, is compute where any kernel runs that computes;
else exposed communication where any runs that communicates; else exposed copying where data is copied;
else it is idle, and the operation that ends the gap says why. What communication and copies hide under
computation is counted apart. Filling memory counts as compute, as in AMD's TraceLens; kernels that do
nothing but wait for another device count as communication.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.intervals import NEVER, overlaps, reached_ns
from bubblescope.model.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from bubblescope.model.arrays import Ints


class Use(str, Enum):
    """What a nanosecond of a device is spent on."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    """Exposed communication, while nothing computes."""
    COPY = "copy"
    """Exposed copying, while nothing computes or communicates."""
    HOST_AFTER_SYNC = "host_after_sync"
    """The host launched late, for it was blocked in a call when the device fell idle."""
    HOST_DATA = "host_data"
    """The host launched late, loading data."""
    HOST_OPTIMIZER = "host_optimizer"
    """The host launched late, within the optimizer."""
    HOST_GC = "host_gc"
    """The host launched late, collecting Python's garbage."""
    HOST_OPERATOR = "host_operator"
    """The host launched late, within an operator."""
    HOST_PYTHON = "host_python"
    """The host launched late, in Python outside of all operators."""
    HOST_CALL = "host_call"
    """The host launched late, in a call of the device's runtime that allocates, frees or sets up."""
    HOST_SYSTEM = "host_system"
    """The host launched late, in a call of the operating system: reading, or waiting for a thread."""
    HOST_UNKNOWN = "host_unknown"
    """The host launched late, or touched unified memory late; what it did is not in the trace."""
    RANK_WAIT = "rank_wait"
    """The host launched late, for it waited for other ranks itself, by gloo or MPI."""
    LAUNCH_CALL = "launch_call"
    """The call that launches the next operation was on its way."""
    LATENCY = "latency"
    """The next operation was launched, just then or long before, and started within `LATENCY_NS`."""
    EVENT_WAIT = "event_wait"
    """The next operation was launched, and its stream had been told to wait for an event."""
    PAGES = "pages"
    """Between moves of pages of unified memory to a device, which no call launches."""
    UNTRACED = "untraced"
    """The next operation was launched, but waited for what the trace does not show."""
    SILENT = "silent"
    """Nothing of the process is in the trace meanwhile: its host was silent, or was not recorded."""
    UNLINKED = "unlinked"
    """It is not known what launched the next operation."""
    COMMUNICATION_HIDDEN = "communication_hidden"
    """Communication while something computes, which is not part of the sum."""
    COPY_HIDDEN = "copy_hidden"
    """Copying while something computes or communicates, which is not part of the sum."""


HIDDEN: Final = (Use.COMMUNICATION_HIDDEN, Use.COPY_HIDDEN)
"""What is counted beside the sum."""
BUSY: Final = (Use.COMPUTE, Use.COMMUNICATION, Use.COPY)
IDLE: Final = tuple(use for use in Use if use not in BUSY + HIDDEN)
"""The classes of idle time, in the order in which they are shown."""
HOST: Final = tuple(use for use in IDLE if use.value.startswith("host_"))
"""Idle time for which the host launched late."""

LATENCY_NS: Final = 10_000
"""How soon after its launch an operation starts if it waits for nothing: launching takes 5 to 10 us."""

BUDGET_SCHEMA: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "device": pl.Int32(),
    "step": pl.Int32(),
    "inside": pl.Enum([kind.value for kind in Kind]),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "use": pl.Enum([use.value for use in Use]),
    "detail": pl.String(),
    "role": pl.String(),
    "spent_ns": pl.Int64(),
    "then": pl.Enum([use.value for use in Use]),
}
"""Columns of `Timeline.budget`: `spent_ns` of [start_ns, end_ns) went to one use.

A row is about a task (`inside` says its kind) or about a stretch outside of all; long gaps, and in a
pipeline all that is outside of its passes, have rows of their own, as long as their time. `detail` is
the host's operator or call, the operation or the kind of copy; `role` is that of the communicating
group. `then` is null but for the part of `HOST_AFTER_SYNC` that exceeds how long the call blocked: it
is the class of what the host did once the call had returned, which `detail` names.
"""


def is_spent_on(uses: Collection[Use]) -> pl.Expr:
    """Return the condition by which a row of the budget would be gone without some uses.

    Without a blocking call, a host launches sooner by the length of the call at most. What it did then
    would still keep it.
    """
    return pl.coalesce("then", "use").is_in([use.value for use in uses])


class Activities(msgspec.Struct, frozen=True):
    """What one device ran, by start.

    Attributes:
        start_ns, end_ns: n times; none ends before it starts.
        use: n codes, of `COMPUTE`, `COMMUNICATION`, `COPY`, `GRAPH`.
    """

    start_ns: Ints
    end_ns: Ints
    use: NDArray[np.int8]


COMPUTE, COMMUNICATION, COPY, GRAPH = range(4)
"""Codes of what activities are, the first that runs naming the time; a graph that was recorded as a
whole counts as computing, and is told apart from what is known to compute."""

AT_ONCE: Final = " and "
"""Joins, in the `detail` of copies, the kinds that run at the same time."""

WHOLE_GRAPH: Final = "CUDA graph"
"""The `detail` of compute of which no more is known than that a graph was running."""


class Pieces(NamedTuple):
    """Disjoint stretches of time, ascending.

    Attributes:
        start_ns, end_ns: Their edges.
        owner: For each the activity that fills it, of several together the first; for gaps, the first
            that ends it.
    """

    start_ns: Ints
    end_ns: Ints
    owner: Ints


class Spans(NamedTuple):
    """Disjoint stretches of time, ascending, no two of which touch.

    Attributes:
        start_ns, end_ns: Their edges.
    """

    start_ns: Ints
    end_ns: Ints


class Partition(msgspec.Struct, frozen=True):
    """A device's time from its first to its last activity, cut by what it is spent on.

    Attributes:
        compute, communication, copy, idle: Together all of it, and no moment twice.
        communication_hidden, copy_hidden: What runs beneath something that counts before it.
        graphs: The part of `compute` in which nothing but graphs ran.
    """

    compute: Spans
    communication: Pieces
    copy: Pieces
    idle: Pieces
    communication_hidden: Pieces
    copy_hidden: Pieces
    graphs: Pieces

    @property
    def told(self) -> Spans | Pieces:
        """The part of `compute` in which what computes is known."""
        if not len(self.graphs.start_ns):
            return self.compute
        nobody = np.zeros(len(self.compute.start_ns), np.int64)
        return _outside(Pieces(*self.compute, nobody), self.graphs)


def partition(ran: Activities) -> Partition:
    """Cut a device's time by what it is spent on.

    Where several activities that communicate overlap, the one that began first owns the time, and so it
    is with copies.
    """
    busy, first = _merged(ran.start_ns, ran.end_ns)
    compute = busy
    graph = ran.use == GRAPH
    others = (ran.use != COMPUTE) & ~graph | (ran.start_ns >= ran.end_ns)
    if others.any():
        compute, _ = _merged(ran.start_ns, ran.end_ns, np.flatnonzero(others))
    graphs = _covered(ran, GRAPH)
    if len(graphs.start_ns):
        kernels, _ = _merged(ran.start_ns, ran.end_ns, np.flatnonzero(others | graph))
        graphs = _outside(graphs, kernels)
    communication, copy = (_covered(ran, code) for code in (COMMUNICATION, COPY))
    copy_free = _outside(copy, compute)
    return Partition(
        compute,
        _outside(communication, compute),
        _outside(copy_free, communication),
        Pieces(busy.end_ns[:-1], busy.start_ns[1:], first[1:]),
        _common(communication, compute),
        _joined(_common(copy, compute), _common(copy_free, communication)),
        graphs,
    )


def _merged(start_ns: Ints, end_ns: Ints, but: Ints | None = None) -> tuple[Spans, Ints]:
    """Return what intervals cover together, and the interval that begins each span.

    Args:
        start_ns: Where they begin, ascending.
        end_ns: Where they end.
        but: Rows to leave out.
    """
    if but is not None:
        end_ns = end_ns.copy()
        end_ns[but] = NEVER  # so that they reach nothing
    reached = np.maximum.accumulate(end_ns)
    apart = np.ones(len(start_ns), bool)
    np.greater(start_ns[1:], reached[:-1], out=apart[1:])
    if but is not None:
        apart[but] = False
    first = np.flatnonzero(apart)
    end = np.append(reached[first[1:] - 1], reached[-1:])[: len(first)]
    return Spans(start_ns[first], end), first


def _covered(ran: Activities, code: int) -> Pieces:
    """Return what the activities of one use cover, each what those before it do not."""
    rows = np.flatnonzero(ran.use == code)
    start, end = ran.start_ns[rows], ran.end_ns[rows]
    start = np.maximum(start, reached_ns(end))
    kept = start < end
    return Pieces(start[kept], end[kept], rows[kept])


_FIRST: Final = -(1 << 62)
_LAST: Final = 1 << 62


def _outside(one: Pieces, other: Pieces | Spans) -> Pieces:
    """Return the time that is in the first and not in the second."""
    if not len(one.start_ns):
        return one
    free = Spans(np.append(_FIRST, other.end_ns), np.append(other.start_ns, _LAST))
    return _common(one, free)


def _common(one: Pieces, other: Pieces | Spans) -> Pieces:
    """Return the time that is in both; it belongs to the owners of the first."""
    if not len(one.start_ns):
        return one
    low = np.searchsorted(other.end_ns, one.start_ns, side="right")
    high = np.searchsorted(other.start_ns, one.end_ns, side="left")
    left, right = overlaps(low, high)
    start = np.maximum(one.start_ns[left], other.start_ns[right])
    end = np.minimum(one.end_ns[left], other.end_ns[right])
    kept = start < end
    return Pieces(start[kept], end[kept], one.owner[left[kept]])


def _joined(one: Pieces, other: Pieces) -> Pieces:
    """Return disjoint pieces of two sorts as one ascending list."""
    start = np.concatenate([one.start_ns, other.start_ns])
    order = np.argsort(start, kind="stable")
    end = np.concatenate([one.end_ns, other.end_ns])
    owner = np.concatenate([one.owner, other.owner])
    return Pieces(start[order], end[order], owner[order])


def spent_before(start_ns: Ints, end_ns: Ints, moments: Ints) -> Ints:
    """Return how much of disjoint pieces of time lies before each of some moments.

    Args:
        start_ns: Where the pieces begin, ascending.
        end_ns: Where they end, ascending; some may be empty.
        moments: Times, in any order; few, for each is searched for among the pieces.
    """
    if not len(start_ns):
        return np.zeros(len(moments), np.int64)
    before = np.zeros(len(start_ns) + 1, np.int64)
    np.cumsum(end_ns - start_ns, out=before[1:])
    begun = np.searchsorted(start_ns, moments, side="right")
    over = np.where(begun > 0, np.maximum(end_ns[begun - 1] - moments, 0), 0)
    spent: Ints = before[begun] - over
    return spent


def cut_at(start_ns: Ints, end_ns: Ints, edges: Ints) -> tuple[Pieces, Ints]:
    """Cut disjoint pieces of time where stretches of time begin and end.

    Args:
        start_ns: Where the pieces begin, ascending, none before the first stretch.
        end_ns: Where they end, none after the last stretch; none is empty.
        edges: m + 1 times, ascending: those of the m stretches.

    Returns:
        The parts, with their pieces as owners, and for each the stretch that it lies in.
    """
    inner = edges[1:-1]
    piece = np.searchsorted(start_ns, inner) - 1  # the only one that may reach beyond the edge
    crossed = (
        (piece >= 0) & (end_ns[piece] > inner) if len(start_ns) else np.zeros(len(inner), bool)
    )
    piece, inner = piece[crossed], inner[crossed]
    start = np.insert(start_ns, piece + 1, inner)
    end = np.insert(end_ns, piece, inner)
    whole = np.insert(np.arange(len(start_ns)), piece, piece)
    begun = np.searchsorted(start, edges[:-1])
    stretch = np.repeat(np.arange(len(edges) - 1), np.diff(begun, append=len(start)))
    return Pieces(start, end, whole), stretch


def running_in(pieces: Pieces, start_ns: Ints, end_ns: Ints, sort: Ints) -> tuple[Pieces, Ints]:
    """Cut pieces of time where other sorts of activities run.

    Args:
        pieces: The pieces, in each of which one of the activities runs.
        start_ns: When the activities began, ascending.
        end_ns: When they ended.
        sort: What sort each is, a number below 63.

    Returns:
        The parts, with their pieces as owners, and for each the sum of 2 ** sort over those that run.
    """
    edges = np.unique(np.concatenate([start_ns, end_ns]))
    change = np.zeros(len(edges), np.int64)
    for one in np.unique(sort).tolist():
        of = sort == one
        spans, _ = _merged(start_ns[of], end_ns[of])
        change[np.searchsorted(edges, spans.start_ns)] += 1 << one
        change[np.searchsorted(edges, spans.end_ns)] -= 1 << one
    kept = change != 0
    edges, running = edges[kept], np.cumsum(change)[kept]
    parts, cell = cut_at(pieces.start_ns, pieces.end_ns, edges)
    return parts, running[cell]


OPERATION_SCHEMA: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "device": pl.Int32(),
    "step": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "exposed_ns": pl.Int64(),
    "hidden_ns": pl.Int64(),
    "stream": pl.Int32(),
    "name": pl.String(),
    "operation": pl.String(),
    "library": pl.String(),
    "group": pl.String(),
    "role": pl.String(),
    "peer": pl.Int32(),
}
"""Columns of `Timeline.operations`: kernels that communicate.

`exposed_ns` and `hidden_ns` are without and beneath computation, of the time that no operation before
it covers.
"""

ACTIVITY_SCHEMA: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "device": pl.Int32(),
    "step": pl.Int32(),
    "stream": pl.Int32(),
    "use": pl.Enum([use.value for use in BUSY]),
    "name": pl.String(),
    "full": pl.String(),
    "module": pl.String(),
    "kind": pl.Enum([kind.value for kind in Kind]),
    "stage": pl.Int32(),
    "microbatch": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "launch_ns": pl.Int64(),
}
"""Columns of `Timeline.activities`: every kernel, copy and fill, kept only if asked for.

`name` is the short name of a kernel's function, "Memcpy HtoD pinned" and the like of a copy; `full` is
what the trace has. `step` is its task's, or else that in whose time it begins on the device. `kind`,
`stage` and `microbatch` are those of the task in whose range it was launched, null outside of all;
`module` is that of the model which the launching thread was in. `launch_ns` is when the host launched
it.
"""

STEP_SCHEMA: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "open": pl.Boolean(),
}
"""Columns of `Timeline.steps_table`: the steps that people pay for, each from its start to the next's.

`open` says that the end is only that of what was recorded, as of a rank's last step.
"""
