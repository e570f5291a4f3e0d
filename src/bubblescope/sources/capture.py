"""What one trace recorded, in the terms that all vendors share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.model import device_time
from bubblescope.model.budget import LATENCY_NS
from bubblescope.model.kinds import Kind
from bubblescope.names.host_ranges import Doing, doing
from bubblescope.names.runtime_calls import Call, what_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from bubblescope.model.arrays import Ints
    from bubblescope.names.parsed import ParsedName

RANGES: Final = {
    "process": pl.Int64,
    "thread": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "name": pl.String,
}
"""Ranges on the host; `end_ns` is null if the range was still open when the capture ended."""

LAUNCHES: Final = {**device_time.LAUNCHES, "end_ns": pl.Int64}
"""Host calls that may have started device work; `end_ns` is null where it is not known."""

WORK: Final = {**device_time.WORK, "copy": pl.Int8, "stream": pl.Int32, "kernel": pl.Int32}
"""Kernels, copies, fills and graph launches on the device. `copy` is null but for copies: an index into
`Capture.copies`. `stream` is null where nothing needs it. `kernel` is a number that kernels of one name
share, and `A_GRAPH` for a graph; null for all else, and where the trace does not name them."""

A_GRAPH: Final = -1
"""Stands for a graph that was recorded as a whole: what ran in it is not in the trace."""

UNIFIED: Final = "unified"
"""Last word of the sorts of copies that move pages of unified memory: the driver makes them, not a
call."""

HOST: Final = {
    "process": pl.Int64,
    "thread": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "doing": pl.Int8,
    "name": pl.Int32,
}
"""What the host did: `doing` is one of the codes below, `name` an index into `Capture.host_names`."""

BLOCKED, ANNOTATED, SYSTEM, EXCHANGE, PYTHON, OPERATOR, DATA, OPTIMIZER, RUNTIME, GC = range(10)
"""What a host may be doing: waiting in a call of the device's runtime, or, the later the more telling,
something in an annotation, a call of the operating system, an exchange with other ranks, Python, an
operator, loading data, an optimizer, another call of the device's runtime, or collecting garbage. An
exchange may be under way while its thread does something else."""

WAITS: Final = {"process": pl.Int64, "stream": pl.Int64, "start_ns": pl.Int64}
"""When the host told a stream to wait for an event."""

RECORDED: Final = {"start_ns": pl.Int64, "end_ns": pl.Int64}
"""From when to when a profiler was on."""

_BETWEEN_TWO: Final = frozenset({"send", "recv", "sendrecv"})

OPERATORS: Final = {
    "process": pl.Int64,
    "thread": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "sequence": pl.Int64,
    "engine": pl.Boolean,
}
"""PyTorch's operators that have a sequence number: a backward has that of the forward it belongs to.
`engine` says that autograd's engine ran it."""


class Comm(msgspec.Struct, frozen=True):
    """One sort of communication kernel.

    Attributes:
        name: The kernel's name, or the operation's.
        kind: What it does, where the trace says; guessed from the name otherwise.
        peer: Global rank at the other end, if the trace says.
        operation: "allreduce" and the like, where the trace says; told by the name otherwise.
        group: Name of its process group, if the trace says.
        role: What it is for, in the vocabulary of `bubblescope.names.group_roles`; None if unknown.
    """

    name: str
    kind: Kind | None = None
    peer: int | None = None
    operation: str | None = None
    group: str | None = None
    role: str | None = None

    def known_kind(self) -> Kind:
        """Return the kind; of a bare send or receive no one can tell which way it goes."""
        if self.kind is not None:
            return self.kind
        if self.operation is not None:
            return Kind.OTHER if self.operation in _BETWEEN_TWO else Kind.COLLECTIVE
        return Kind.OTHER if "sendrecv" in self.name.lower() else Kind.COLLECTIVE


class Capture(msgspec.Struct, frozen=True):
    """What one trace recorded, on one clock. Processes are any numbers that tell them apart.

    Attributes:
        ranges, launches, work: Frames with the columns of `RANGES`, `LAUNCHES` and `WORK`.
        meaning: What ranges of some names mean, whatever the grammars say of those.
        comms: The sorts of communication kernels.
        copies: The sorts of copies: "HtoD pinned" and the like.
        host: Frame with the columns of `HOST`; empty if the trace does not say what the host did.
        host_names: Names of what it did.
        unseen: Those of calls whose work on devices the trace does not show: copies that it left out.
        recorded: Frame with the columns of `RECORDED`, ascending and disjoint, empty if the trace does
            not say so; None if its profiler is on from its beginning to its end.
        waits: Frame with the columns of `WAITS`; None if the trace would not show such waits.
        optimizer_kernels: Those of the numbers in `WORK` whose kernels only an optimizer runs.
        kernels: For each row of the work an index into `kernel_names`, null for copies that say no
            more than their sort; None unless they were asked for, as the two below.
        kernel_names: What the trace calls kernels, copies and fills.
        operators: Frame with the columns of `OPERATORS`.
    """

    ranges: pl.DataFrame
    launches: pl.DataFrame
    work: pl.DataFrame
    comms: tuple[Comm, ...] = ()
    meaning: Mapping[str, Sequence[ParsedName]] = msgspec.field(default_factory=dict)
    copies: tuple[str, ...] = ()
    host: pl.DataFrame = msgspec.field(default_factory=lambda: pl.DataFrame(schema=HOST))
    host_names: tuple[str, ...] = ()
    unseen: frozenset[str] = frozenset()
    recorded: pl.DataFrame | None = None
    waits: pl.DataFrame | None = None
    optimizer_kernels: tuple[int, ...] = ()
    kernels: pl.Series | None = None
    kernel_names: tuple[str, ...] = ()
    operators: pl.DataFrame = msgspec.field(default_factory=lambda: pl.DataFrame(schema=OPERATORS))


class ByProcess:
    """Events of each process. Where those of each stand together, as in most traces, none are copied.

    Args:
        events: Frame with process.
    """

    def __init__(self, events: pl.DataFrame) -> None:
        self._events = events
        runs = events["process"].rle().struct.unnest()
        found = runs.with_columns(first=pl.col("len").cum_sum() - pl.col("len")).drop_nulls()
        self.processes: list[int] = found["value"].unique().sort().to_list()
        self._rows: dict[int, tuple[int, int]] | None = None
        if len(self.processes) == found.height:
            self._rows = {
                process: (first, count)
                for process, first, count in found.select("value", "first", "len").iter_rows()
            }

    def of(self, process: int) -> pl.DataFrame:
        """Return the events of one process."""
        if self._rows is None:
            return self._events.filter(process=process)
        return self._events.slice(*self._rows.get(process, (0, 0)))


def numbered_kernels(called: pl.Series) -> tuple[pl.Series, tuple[str, ...]]:
    """Return `Capture.kernels` and `Capture.kernel_names`.

    Args:
        called: What each row of the work is called, null where nothing says so.
    """
    names = called.drop_nulls().unique().sort()
    numbers = called.replace_strict(names, range(len(names)), default=None, return_dtype=pl.Int32)
    return numbers, tuple(names)


SLOW_COPY_NS: Final = 50_000
"""How long a call that should only start a copy takes at least if it waited: others take 5 to 25 us."""


def telling_calls(
    strings: pl.DataFrame, name: str, start: str = "start_ns", end: str = "end_ns"
) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """Return what keeps those calls of a device's runtime that tell what the host did, if it was late.

    Args:
        strings: Frame with id and the name of each function.
        name: The column of calls that has the id of their function's name.
        start: The column that has when each began.
        end: That which has when it ended.

    Returns:
        A function that takes calls, and returns some, with doing: `BLOCKED` or `RUNTIME`.
    """
    sorts = {number: what_for(text) for number, text in strings.iter_rows()}
    values = {number: sort.value for number, sort in sorts.items()}
    waits = pl.col(name).is_in([number for number, sort in sorts.items() if sort is Call.WAITS])
    length = pl.col(end) - pl.col(start)
    sort = pl.col(name).replace_strict(values, default=Call.NOTHING.value, return_dtype=pl.Int8)

    def telling(calls: pl.DataFrame) -> pl.DataFrame:
        few = calls.filter((length >= LATENCY_NS) | waits)  # of millions, before more is asked
        codes, lengths = few.select(sort=sort, length=length)
        told = doing_in_calls(codes.to_numpy(), lengths.to_numpy())
        return few.with_columns(doing=pl.Series(told)).filter(pl.col("doing") != NOTHING_TOLD)

    return telling


NOTHING_TOLD: Final = -1


def doing_in_calls(sort: NDArray[np.int8], length_ns: Ints) -> NDArray[np.int8]:
    """Return what threads do in calls: `BLOCKED`, `RUNTIME`, or `NOTHING_TOLD` if that says nothing.

    Args:
        sort: What each is for: n values of `Call`.
        length_ns: n lengths.
    """
    blocked = (sort == Call.WAITS.value) | (
        (sort == Call.COPIES.value) & (length_ns >= SLOW_COPY_NS)
    )
    works = (sort == Call.WORKS.value) & (length_ns >= LATENCY_NS)
    return np.select([blocked, works], [BLOCKED, RUNTIME], NOTHING_TOLD).astype(np.int8)


_ABOUT: Final = {
    Doing.DATA: DATA,
    Doing.OPTIMIZER: OPTIMIZER,
    Doing.OPERATOR: OPERATOR,
    Doing.EXCHANGE: EXCHANGE,
    Doing.OTHER: ANNOTATED,
}


_NUMBERED: Final = pl.Schema({"doing": pl.Int8, "name": pl.Int32})


def about(name: str) -> int:
    """Return what the host does in an annotation of some name: one of the codes of `HOST`."""
    return _ABOUT[doing(name)]


def annotated(ranges: pl.DataFrame, numbers: Mapping[str, int]) -> pl.DataFrame:
    """Return what ranges say that the host was doing, with the columns of `HOST`.

    Args:
        ranges: Frame with the columns of `RANGES`; those left open say nothing.
        numbers: The number of each name in `Capture.host_names`.
    """
    if not ranges.height:
        return pl.DataFrame(schema=HOST)
    names = ranges["name"].unique().to_list()
    codes = [about(name) for name in names]
    return (
        ranges.drop_nulls("end_ns")
        .with_columns(
            doing=pl.col("name").replace_strict(names, codes, return_dtype=pl.Int8),
            name=pl.col("name").replace_strict(
                names, [numbers[name] for name in names], return_dtype=pl.Int32
            ),
        )
        .select(*HOST)
        .cast(_NUMBERED)  # Polars forgets the types of no rows at all
    )


def told_by_host(calls: pl.DataFrame, ranges: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return what threads of the host did, with the columns of `HOST`, and the names in it.

    Args:
        calls: Frame with process, thread, start_ns, end_ns, name and doing of calls that tell what the
            host did.
        ranges: Frame with the columns of `RANGES`.
    """
    every = pl.concat([calls["name"], ranges["name"]]).drop_nulls().unique().sort().to_list()
    if not every:
        return pl.DataFrame(schema=HOST), ()
    numbers = {name: number for number, name in enumerate(every)}
    number = pl.col("name").replace_strict(every, range(len(every)), return_dtype=pl.Int32)
    told = calls.drop_nulls().with_columns(name=number).select(*HOST).cast(_NUMBERED)
    return pl.concat([told, annotated(ranges, numbers)]), tuple(every)
