"""What communication kernels carry out, in which group and what for, by what is around their launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.device_time import NONE, lookup, owner_at
from bubblescope.names.communication_kernels import communication_kernel
from bubblescope.names.communication_ranges import (
    APPENDED,
    OPERATION,
    REPLICATED,
    ROLE,
    operation_of_range,
    role_of_range,
)
from bubblescope.sources.capture import Capture, Comm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from bubblescope.model.arrays import Ints
    from bubblescope.model.groups import Group

_WORLD: Final = "world"
"""The role of a group of all ranks, which does not say what an operation is for."""


class Launched(NamedTuple):
    """When and by which thread n kernels were launched; `NONE` where it is not known."""

    thread: Ints
    at_ns: Ints


def enclosing(launched: Launched, spans: pl.DataFrame) -> Ints:
    """Return for each launch the row of the innermost span of its thread, or `NONE`.

    Args:
        launched: The launches.
        spans: Frame with thread, start_ns and end_ns (exclusive), by start.
    """
    found = np.full(len(launched.at_ns), NONE, np.int64)
    threads = spans["thread"].to_numpy()
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    for thread in np.intersect1d(launched.thread, threads):
        mine = np.flatnonzero(launched.thread == thread)
        own = np.flatnonzero(threads == thread)
        owner = owner_at(launched.at_ns[mine], start[own], end[own])
        found[mine] = np.append(own, NONE)[owner]
    return found


def launched_in_order(capture: Capture) -> tuple[Ints, Launched]:
    """Return the rows of the communication kernels by launch, those without a known one first."""
    rows = np.flatnonzero(capture.work["comm"].is_not_null().to_numpy())
    if not len(rows):
        return rows, Launched(rows, rows)
    # Not by row number, for which Polars would copy all of the work first.
    work = capture.work.select("process", "correlation", "comm").drop_nulls("comm")
    wanted = work["correlation"].unique()
    calls = capture.launches.filter(pl.col("correlation").is_in(wanted.implode()))
    thread = np.full(len(rows), NONE, np.int64)
    at_ns = thread.copy()
    # Correlation ids are each process's own.
    for process in work["process"].unique().to_list():
        launches = calls.filter(pl.col("process") == process)
        mine = np.flatnonzero((work["process"] == process).to_numpy())
        correlation = work["correlation"].to_numpy()[mine]
        call = lookup(launches["correlation"].to_numpy(), correlation)
        thread[mine] = np.append(launches["thread"].to_numpy(), NONE)[call]
        at_ns[mine] = np.append(launches["start_ns"].to_numpy(), NONE)[call]
    order = np.argsort(at_ns, kind="stable")
    return rows[order], Launched(thread[order], at_ns[order])


class Annotations:
    """The ranges of a trace that tell what is launched in them.

    Args:
        spans: Frame with thread, start_ns, end_ns and name, of any type, of all ranges.
        names: Frame with name, unique and of that type, and text.
    """

    def __init__(self, spans: pl.DataFrame, names: pl.DataFrame) -> None:
        self._replicated = bool((names["text"] == REPLICATED).any())
        self._operations = _Telling(spans, names.filter(pl.col("text").str.contains(OPERATION)))
        self._roles = _Telling(spans, names.filter(pl.col("text").str.contains(ROLE)))

    def around(self, launched: Launched) -> tuple[Ints, Ints]:
        """Return the innermost ranges around each launch that may tell an operation, and a role.

        They are numbers that `operation` and `role` understand, or `NONE`.
        """
        return self._operations.around(launched), self._roles.around(launched)

    def operation(self, number: int) -> str | None:
        """Return the operation that a range names, in the words of `CommunicationKernel`."""
        return operation_of_range(self._operations.texts[number]) if number >= 0 else None

    def role(self, number: int, operation: str | None) -> str | None:
        """Return what an operation is for that is launched in a range; see `role_of_range`."""
        if number < 0:
            return None
        name = self._roles.texts[number]
        return role_of_range(name, operation, replicated=self._replicated)


class _Telling:
    """The spans of some names."""

    def __init__(self, spans: pl.DataFrame, names: pl.DataFrame) -> None:
        # With numbers behind them, as in NVTX, hardly any two names are the same.
        plain = names.with_columns(pl.col("text").str.replace(APPENDED, ""))
        texts = plain.select("text").unique(maintain_order=True).with_row_index("telling")
        self.texts = texts["text"].to_list()
        self._spans = (
            spans.join(plain.join(texts, on="text"), on="name")
            .drop_nulls(["thread", "end_ns"])
            .sort("start_ns", "end_ns", descending=[False, True])
        )

    def around(self, launched: Launched) -> Ints:
        """Return which of the names the innermost span around each launch has, or `NONE`."""
        rows = enclosing(launched, self._spans)
        return np.append(self._spans["telling"].cast(pl.Int64).to_numpy(), NONE)[rows]


class Known(NamedTuple):
    """What is known of a communication kernel by its arguments or by the calls that it carries out."""

    operation: str | None = None
    peer: int | None = None
    group: Group | None = None


class _Sort(NamedTuple):
    """One sort of communication kernel, with the role that the host's ranges give it."""

    name: str
    known: Known
    purpose: str | None

    def comm(self, roles: Mapping[Group, Group]) -> Comm:
        """Return the sort with its role: its group's, if that says what an operation is for."""
        operation, peer, group = self.known
        group = roles[group] if group else None
        role = group.role if group else None
        if self.purpose and role in {None, _WORLD}:
            role = self.purpose
        return Comm(self.name, None, peer, operation, group.name if group else None, role)


def attributed(
    capture: Capture,
    rows: Ints,
    launched: Launched,
    calls: Ints,
    known: Callable[[int, int], Known],
    annotations: Annotations,
    world: int | None = None,
) -> tuple[Capture, dict[Group, Group]]:
    """Give communication kernels what is known of them, and what the ranges around them tell beyond it.

    Args:
        capture: A trace.
        rows: The rows of its communication kernels, by launch.
        launched: When they were launched.
        calls: For each a number for the calls that it carries out.
        known: Returns what is known of kernels of a sort, index into `Capture.comms`, with such a
            number; asked once for each pair, in the order in which they come first.
        annotations: The trace's ranges.
        world: Number of ranks of the job, if known.

    Returns:
        The trace, with finer sorts of kernels; each group that is known, with its role.
    """
    comm = capture.work["comm"].rechunk()
    keys = np.stack([comm.gather(rows).to_numpy(), calls, *annotations.around(launched)])
    distinct, first, number = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    sorts: dict[int, _Sort] = {}
    for index in np.argsort(first).tolist():
        sort, call, around, purpose = distinct[:, index].tolist()
        name, one = capture.comms[sort].name, known(sort, call)
        one = one._replace(operation=one.operation or annotations.operation(around))
        family = communication_kernel(name)
        does = one.operation or (family.operation if family else None)
        sorts[index] = _Sort(name, one, annotations.role(purpose, does))
    roles = _roles(sorts.values(), world)
    found: dict[Comm, int] = {}
    codes = [found.setdefault(sorts[index].comm(roles), len(found)) for index in range(len(sorts))]
    comm = comm.scatter(rows, np.array(codes, np.int32)[number.reshape(-1)])
    work = capture.work.with_columns(_chunked(comm, as_in=capture.work["comm"]))
    return msgspec.structs.replace(capture, work=work, comms=tuple(found)), roles


def _chunked(column: pl.Series, *, as_in: pl.Series) -> pl.Series:
    """Return a column in the chunks of another, without which Polars would copy the whole table."""
    lengths = np.array([len(chunk) for chunk in as_in.get_chunks()])
    begins = np.cumsum(lengths) - lengths
    return pl.concat(map(column.slice, begins.tolist(), lengths.tolist()), rechunk=False)


def _roles(sorts: Iterable[_Sort], world: int | None) -> dict[Group, Group]:
    """Return the groups of kernels with their roles: as described, or else as all their kernels agree.

    A kernel that says nothing agrees with others if the group is known to be of a part of the ranks. In
    a group of all ranks other things are often done as well.
    """
    purposes: dict[Group, set[str | None]] = {}
    for sort in sorts:
        if sort.known.group is not None:
            purposes.setdefault(sort.known.group, set()).add(sort.purpose)
    return {
        group: _with_role(
            group, told if world is None or group.size in {None, world} else told - {None}
        )
        for group, told in purposes.items()
    }


def _with_role(group: Group, purposes: set[str | None]) -> Group:
    role = only(purposes)
    if group.role is not None or role is None:
        return group
    return msgspec.structs.replace(group, role=role, how="annotation")


def only(values: set[Any]) -> Any:
    """Return the one value that there is, or None."""
    [one] = values if len(values) == 1 else [None]
    return one
