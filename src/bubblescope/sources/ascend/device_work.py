"""What an NPU ran, by one Ascend profiler database, in the terms that all vendors share.

TASK has a row for whatever the device's scheduler carried out on a stream. By msprof's own analysis
(`overlap_analysis_processor.cpp`) rows that COMPUTE_TASK_INFO names compute, and an operator of
COMMUNICATION_OP communicates for as long as it lasts, whatever its parts do. Beyond that, kernels count
that the profiler has no name for, and copies. All else is no work: events that are recorded or waited
for, marks, and the frames around the parts of an operator.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.model.device_time import NONE
from bubblescope.sources.ascend.host_activity import (
    Calls,
    read_activity,
    read_calls,
    read_framework,
)
from bubblescope.sources.capture import RANGES, WAITS, WORK, Capture, Comm, numbered_kernels
from bubblescope.sources.plausibility import possible, without_repeated_work
from bubblescope.sources.sqlite import SqliteTables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bubblescope.model.progress import Progress
    from bubblescope.names.parser import NameParser
    from bubblescope.sources.ascend.profile import Profile

PROCESS: Final = 0
"""One database is of one process."""
_LARGE: Final = (
    "TASK",
    "COMPUTE_TASK_INFO",
    "MEMCPY_INFO",
    "CANN_API",
    "PYTORCH_API",
    "CONNECTION_IDS",
    "MSTX_EVENTS",
)
_TEXT: Final = frozenset({"value"})
"""Names are numbers in these tables, those of STRING_IDS."""

_KERNELS: Final = (
    "KERNEL_AICORE",
    "KERNEL_AIVEC",
    "KERNEL_MIX_AIC",
    "KERNEL_MIX_AIV",
    "KERNEL_SIMT",
)
"""Types of tasks that are kernels, even if the profiler has no name for them."""
_UNITS: Final = (
    *("KERNEL_AICPU", "AI_CORE", "AI_VECTOR_CORE", "AI_CPU"),
    *("AIV_SQE", "AIC", "AIV", "MIX_AIC", "MIX_AIV"),
)
"""Units that compute. Such a row may be the frame around an operator's parts, so that it counts only if
the database names no operators at all."""
_SCHEDULERS: Final = ("AicpuKernel", "AivKernel")
"""What the names of kernels end in that carry out communication; the operator counts already."""
_COPYING: Final = ("MEMCPY_ASYNC", "PCIE_DMA_SQE", "SDMA_SQE")
_WAITING: Final = (
    *("EVENT_WAIT", "EVENT_WAIT_SQE", "CAPTURE_WAIT", "MEM_WAIT_VALUE"),
    *("NOTIFY_WAIT", "NOTIFY_WAIT_SQE", "Notify Wait", "Notify_Wait"),
)
_WAYS: Final = {0: "HtoH", 1: "HtoD", 2: "DtoH", 3: "DtoD", 5: "DtoD", 6: "HtoD", 7: "DtoH"}
"""Directions of copies, as ENUM_MEMCPY_OPERATION numbers them."""
_COPIES: Final = (*dict.fromkeys(_WAYS.values()), "other")
_COMPUTING, _COPY, _WAIT, _PART = range(4)
"""What a task is; a part is one of a communication operator."""
_TASK: Final[dict[str, type[pl.DataType]]] = {
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "device": pl.Int32,
    "correlation": pl.Int64,
    "id": pl.Int64,
    "stream": pl.Int32,
    "sort": pl.Int8,
}


class DeviceWork(NamedTuple):
    """What a database holds of its device.

    Attributes:
        capture: The work, and what the host did meanwhile.
        total: Number of kernels, copies and communication operators.
        impossible: How many of them were dropped because of their times.
        repeated: How many of them were dropped because they were there again.
    """

    capture: Capture
    total: int
    impossible: int
    repeated: int


def read_device_work(
    profile: Profile,
    roles: Mapping[str, str | None],
    peers: pl.DataFrame,
    names: NameParser,
    progress: Progress,
    *,
    kernels: bool = False,
) -> DeviceWork | None:
    """Read what a database says of its device's work.

    Args:
        profile: What was read of it before.
        roles: What the communication groups are for, by name.
        peers: Frame with group, target (rank within the group) and peer (rank within the job).
        names: What the names of ranges mean.
        progress: Is told of rows.
        kernels: Whether to say what each was called.

    Returns:
        None if the database holds no kernels, so that nothing tells when the device computed.

    Raises:
        SourceError: A table is damaged.
    """
    tables = SqliteTables(Path(profile.path), progress, _LARGE, ("STRING_IDS",), _TEXT)
    strings = tables.read("STRING_IDS", ["id", "value"]).unique("id", keep="first")
    tasks = _tasks(tables, strings, profile.operations["connection"])
    computing = tasks.filter(sort=_COMPUTING)
    if not computing.height:
        return None
    communicating, comms = _communication(profile, tasks, roles, peers)
    copies = _copies(tables, tasks)
    every = pl.concat([_work(computing), _work(copies), communicating])
    middle = int(every["start_ns"].median() or 0)  # type: ignore[arg-type]  # integers
    kept = every.select(possible(middle)).to_series()
    work = every.filter(kept)
    waits = tasks.filter(sort=_WAIT)
    linked = pl.concat([work["correlation"], waits["correlation"]]).unique()
    framework = read_framework(tables)
    calls = read_calls(tables, strings, framework, linked)
    host, host_names = read_activity(tables, strings, framework, calls, names)
    capture = Capture(
        ranges=pl.DataFrame(schema=RANGES),
        launches=calls.launches,
        work=work,
        comms=comms,
        copies=_COPIES,
        host=host,
        host_names=host_names,
        waits=_waits(waits, calls),
    )
    if kernels:
        operators = pl.Series([comm.name for comm in comms], dtype=pl.String)
        called = pl.concat(
            [
                _called(tables, strings, computing),
                pl.repeat(None, copies.height, dtype=pl.String, eager=True),
                operators.gather(communicating["comm"].cast(pl.UInt32)),
            ]
        ).filter(kept)
        numbers, titles = numbered_kernels(called)
        capture = msgspec.structs.replace(capture, kernels=numbers, kernel_names=titles)
    capture, again = without_repeated_work(capture)
    return DeviceWork(capture, every.height, every.height - work.height, again)


def _tasks(tables: SqliteTables, strings: pl.DataFrame, connections: pl.Series) -> pl.DataFrame:
    """Return the tasks that matter, with the columns of `_TASK`.

    Args:
        tables: The database.
        strings: Frame with id and value.
        connections: Those of communication operators; of each only the first part is kept.
    """

    def types(words: Sequence[str]) -> list[int]:
        return strings.filter(pl.col("value").is_in(words))["id"].to_list()

    schedulers = strings.filter(
        pl.any_horizontal(pl.col("value").str.ends_with(word) for word in _SCHEDULERS)
    )["id"].to_list()
    named = tables.read(
        "COMPUTE_TASK_INFO",
        ["globalTaskId", "name"],
        lambda piece: piece.filter(~pl.col("name").is_in(schedulers).fill_null(value=False)),
    )["globalTaskId"].drop_nulls()
    kernels = types(_KERNELS if len(named) else (*_KERNELS, *_UNITS))
    copying, waiting = types(_COPYING), types(_WAITING)
    operators = connections.drop_nulls().unique()

    def sorted_out(piece: pl.DataFrame) -> pl.DataFrame:
        kind, part = pl.col("taskType"), pl.col("connectionId").is_in(operators.implode())
        found = piece.with_columns(
            # One whose end is not there is one whose times cannot be: it is counted with these.
            endNs=pl.col("endNs").fill_null(pl.col("startNs") - 1),
            sort=pl.when(pl.col("globalTaskId").is_in(named.implode()))
            .then(_COMPUTING)
            .when(part)
            .then(_PART)
            .when(kind.is_in(kernels))
            .then(_COMPUTING)
            .when(kind.is_in(copying))
            .then(_COPY)
            .when(kind.is_in(waiting))
            .then(_WAIT),
        ).drop_nulls(["sort", "startNs", "endNs", "deviceId"])
        parts = found.filter(sort=_PART).sort("startNs").unique("connectionId", keep="first")
        return pl.concat([found.filter(pl.col("sort") != _PART), parts])

    columns = ["startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "streamId"]
    return (
        tables.read("TASK", [*columns, "taskType"], sorted_out)
        .rename(dict(zip(columns, _TASK, strict=False)))
        .select(pl.col(name).cast(dtype) for name, dtype in _TASK.items())
    )


def _called(tables: SqliteTables, strings: pl.DataFrame, computing: pl.DataFrame) -> pl.Series:
    """Return what the profiler calls kernels, null where it has no name for one."""
    told = tables.read(
        "COMPUTE_TASK_INFO",
        ["globalTaskId", "name"],
        lambda piece: piece.filter(pl.col("globalTaskId").is_in(computing["id"].implode())),
    ).unique("globalTaskId", keep="first")
    return computing.join(
        told, left_on="id", right_on="globalTaskId", how="left", maintain_order="left"
    ).join(strings, left_on="name", right_on="id", how="left", maintain_order="left")["value"]


def _work(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return tasks, which may have a column copy, with the columns of `WORK`."""
    more = {
        name: pl.lit(None, WORK[name])
        for name in ("comm", "copy", "kernel")
        if name not in tasks.columns
    }
    return tasks.with_columns(
        pl.col("correlation").fill_null(NONE), process=pl.lit(PROCESS, pl.Int64), **more
    ).select(*WORK)


def _copies(tables: SqliteTables, tasks: pl.DataFrame) -> pl.DataFrame:
    """Return the copies, with their direction where the database says it."""
    copies = tasks.filter(sort=_COPY)
    told = tables.read(
        "MEMCPY_INFO",
        ["globalTaskId", "memcpyOperation"],
        lambda piece: piece.filter(pl.col("globalTaskId").is_in(copies["id"].implode())),
    ).unique("globalTaskId", keep="first")
    ways = [_COPIES.index(way) for way in _WAYS.values()]
    way = pl.col("memcpyOperation").replace_strict(list(_WAYS), ways, default=len(_COPIES) - 1)
    return copies.join(
        told, left_on="id", right_on="globalTaskId", how="left", maintain_order="left"
    ).with_columns(copy=way.fill_null(len(_COPIES) - 1).cast(pl.Int8))


def _communication(
    profile: Profile,
    tasks: pl.DataFrame,
    roles: Mapping[str, str | None],
    peers: pl.DataFrame,
) -> tuple[pl.DataFrame, tuple[Comm, ...]]:
    """Return the communication operators, with the columns of `WORK`, and their sorts.

    An operator is named like hcom_allReduce__210_3_1; what is left of that without the numbers of its
    group and its own is its sort. Where no part of it says its device, it is the one that computes.
    """
    own = tasks.filter(pl.col("sort") == _COMPUTING)["device"].mode().sort()[0]
    ends = peers.select("group", "target", "peer").unique(["group", "target"], keep="first")
    operators = profile.operations.with_columns(
        sort=pl.col("name").str.replace(r"_*_\d+_\d+_\d+$", "")
    ).join(ends, on=["group", "target"], how="left", maintain_order="left")
    two = pl.col("way").is_not_null()
    operators = operators.with_columns(peer=pl.when(two).then("peer"))
    key = ["sort", "group", "peer"]
    sorts = operators.select(key).unique(maintain_order=True)
    parts = tasks.filter(sort=_PART).sort("start_ns").unique("correlation", keep="first")
    work = (
        operators.join(
            sorts.with_row_index("comm"),
            on=key,
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        .join(
            parts.select("device", "stream", connection="correlation"),
            on="connection",
            how="left",
            maintain_order="left",
        )
        .with_columns(
            pl.col("comm").cast(pl.Int32),
            pl.col("device").fill_null(own),
            correlation="connection",
        )
    )
    comms = tuple(
        Comm(name, peer=peer, group=group or None, role=roles.get(group))
        for name, group, peer in sorts.iter_rows()
    )
    return _work(work), comms


def _waits(waits: pl.DataFrame, calls: Calls) -> pl.DataFrame | None:
    """Return when streams were told to wait; None if the database holds no calls at all."""
    if not calls.launches.height:
        return None
    return (
        waits.join(calls.launches.select("correlation", call_ns="start_ns"), on="correlation")
        .select(
            process=pl.lit(PROCESS, pl.Int64),
            stream=pl.col("stream").cast(pl.Int64),
            start_ns="call_ns",
        )
        .drop_nulls()
        .select(*WAITS)
    )
