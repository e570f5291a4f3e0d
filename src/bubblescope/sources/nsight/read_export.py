"""One Nsight Systems export, in the terms that `bubblescope.sources.projection` shares among vendors.

The schema is described with the exporter (https://docs.nvidia.com/nsight-systems/UserGuide, "SQLite
Schema Reference"); what differs between the versions of 2021 to 2026 is handled here.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.budget import LATENCY_NS
from bubblescope.names.communication_kernels import is_communication_kernel
from bubblescope.names.phase_words import AUTOGRAD_THREAD, OPTIMIZER_KERNEL
from bubblescope.sources.capture import (
    A_GRAPH,
    LAUNCHES,
    OPERATORS,
    RANGES,
    SYSTEM,
    UNIFIED,
    WAITS,
    WORK,
    Capture,
    Comm,
    telling_calls,
    told_by_host,
)
from bubblescope.sources.emit_nvtx import without_numbers
from bubblescope.sources.export_columns import referred_to
from bubblescope.sources.nsight.communicators import FUNCTION, NO_CALLS, nccl_calls
from bubblescope.sources.nsight.counters import gpu_metrics, memory
from bubblescope.sources.nsight.devices import device_names
from bubblescope.sources.nsight.nccl_kernels import NO_NCCL, Nccl, told_by_calls
from bubblescope.sources.process_exports import UNKNOWN, Clues, Export, counted, of_pipeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.names.parser import NameParser
    from bubblescope.sources.nsight.tables import Tables

_RANGE_TYPES: Final = {"NvtxPushPopRange": 59, "NvtxStartEndRange": 60}
"""Names of range types in ENUM_NSYS_EVENT_TYPE, and the numbers that all versions so far gave them:
exports of 2021 and some that were cut down do not say them."""
_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_WORK: Final = {
    "kernels": _KERNELS,
    "graphs": "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "copies": "CUPTI_ACTIVITY_KIND_MEMCPY",
    "fills": "CUPTI_ACTIVITY_KIND_MEMSET",
}
"""Tables of device work. A whole CUDA graph is one row of GRAPH_TRACE, or, traced node by node,
many kernels that share the correlation id of the launch."""


class Clock(msgspec.Struct, frozen=True):
    """How an export's times relate to absolute time.

    Attributes:
        utc_ns: UTC of its time zero; None if it does not say.
        monotonic_ns: The host's monotonic clock at time zero; None if it does not say.
    """

    utc_ns: int | None
    monotonic_ns: int | None


class NsightExport(Export, frozen=True):
    """What one export of Nsight Systems says of itself.

    Attributes:
        clock: How its times relate to absolute time.
        unplaced_metrics: Whether it has GPU metrics and does not say of whose GPU they are.
        unowned: How much device work does not say its process, though several used the device.
        nccl: What it tells of NCCL's communicators.
    """

    clock: Clock
    unplaced_metrics: bool
    unowned: int
    nccl: Nccl


def _process(global_id: str) -> pl.Expr:
    """Drop the low 24 bits of a global id, the thread; the next 24 are the process id (`pid`)."""
    return pl.col(global_id) // (1 << 24)


def read_export(
    tables: Tables, path: str, names: NameParser, *, kernels: bool = False
) -> tuple[NsightExport, Capture, Clues]:
    """Read what an export says of itself, its events in its own time, and what tells phases.

    Args:
        tables: Its tables.
        path: Where it lies, as the user named it.
        names: What range names mean.
        kernels: Whether to keep the names of device work.

    Raises:
        SourceError: A table cannot be read.
    """
    meta = tables.read("META_DATA_EXPORT", ["name", "value"])
    if not meta.height:  # 2022 and before
        meta = tables.read("EXPORT_META_DATA", ["name", "value"])
    facts = dict(meta.iter_rows())
    environment = dict(tables.read("TARGET_INFO_SYSTEM_ENV", ["name", "value"]).iter_rows())
    strings = referred_to(tables.read("StringIds", ["id", "value"]))
    ranges = without_numbers(_ranges(tables, strings))
    told = _named_kernels(strings, ranges, names)
    waits = _waits(tables)
    zero = int(strings["id"].min() or 0)  # type: ignore[arg-type]  # a column of integers
    work, counts = _device_work(
        tables, told, zero, streams=kernels or waits is not None, titles=kernels
    )
    launches, calls = _launches(tables, strings)
    host_counts = [counted(launches, "calls"), counted(ranges, "ranges")]
    owner = _owner(host_counts)
    work, counts, unowned = _owned(work, counts, owner)
    if waits is not None:
        own = pl.lit(owner, pl.Int64)
        waits = waits.with_columns(pl.col("process").fill_null(own)).drop_nulls()
    system = _system_calls(tables, strings, launches["thread"])
    shown = {
        "cuda": launches.height or work.height,
        "nvtx": ranges.height,
        "osrt": system is not None,
        "emit_nvtx": ranges["sequence"].is_not_null().any(),
    }
    calls = calls if system is None else pl.concat([calls, system])
    host, host_names = told_by_host(calls, ranges)
    places = counts.filter(pl.col("process") != UNKNOWN).select("process", "device").unique()
    metrics, unplaced = gpu_metrics(tables, places)
    capture, nccl = _with_nccl(
        Capture(
            ranges=ranges.select(*RANGES),
            launches=launches.select(*LAUNCHES),
            work=work.select(*WORK),
            comms=tuple(map(Comm, told.comm["value"])),
            copies=_COPY_SORTS,
            host=host,
            host_names=host_names,
            waits=waits,
            optimizer_kernels=tuple(number - zero for number in told.optimizing["id"]),
        ),
        tables,
        strings,
    )
    export = NsightExport(
        path=path,
        host=environment.get("Hostname") or "unknown",
        version=facts.get("EXPORT_PRODUCT_VERSION"),
        clock=_clock(tables, facts),
        counts=pl.concat([counts, *host_counts]),
        names=ranges.group_by("process", "name").len("count"),
        counters=pl.concat([memory(tables), metrics]),
        device_names=device_names(tables, places),
        options=tuple(sorted(_stated(tables) | {name for name, there in shown.items() if there})),
        unplaced_metrics=unplaced,
        unowned=unowned,
        nccl=nccl,
    )
    if kernels:
        numbers, titles = _named(work["title"], strings)
        capture = msgspec.structs.replace(
            capture, kernels=numbers, kernel_names=titles, operators=_sequenced(ranges)
        )
    return export, capture, Clues(ranges, _engine_threads(tables, strings))


_CAPTURED: Final = {"Cuda": "cuda", "NvtxEvents": "nvtx", "OSRuntime": "osrt"}
"""What newer exports call the sorts of events that were asked for, and `nsys profile --trace`."""


def _stated(tables: Tables) -> set[str]:
    """Return the options of nsys that an export states to have been on."""
    facts = tables.texts("META_DATA_CAPTURE", ["name", "value"])
    asked = facts.filter(name="CAPTURE_EVENT_TYPE")["value"]
    completed = tables.read(
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
        ["timestamp"],
        lambda piece: piece.filter(pl.col("timestamp") > 0).head(1),
    )
    stated = {name for event, name in _CAPTURED.items() if event in asked}
    return stated | ({"cuda-event-trace"} if completed.height else set())


def _owner(host_counts: Sequence[pl.DataFrame]) -> int | None:
    """Return the one process that an export is of: that of CUDA's calls, else of ranges; else None.

    Exports of old versions, and those that were cut down by hand, have tables of device work without
    `globalPid`. Correlation ids, which processes share, would not tell whose it is.
    """
    for counts in host_counts:
        processes = counts["process"].drop_nulls()
        if processes.len():
            return int(processes[0]) if processes.len() == 1 else None
    return None


def _owned(
    work: pl.DataFrame, counts: pl.DataFrame, owner: int | None
) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Give device work of tables that say no process to the only one that there is.

    A row without one in a table that has them is damage, and stays of no process.

    Returns:
        The work and its counts by process, and how much of such tables is still of no process.
    """
    size = {what: int(counts.filter(what=what)["count"].sum()) for what in _WORK}
    lacking = [
        what
        for what, rows in size.items()
        if rows and (counts.filter(what=what)["process"] == UNKNOWN).all()
    ]
    if not lacking or owner is None:
        return work, counts, sum(size[what] for what in lacking)
    mine = np.repeat([what in lacking for what in size], list(size.values()))
    own = pl.lit(owner, pl.Int64)
    given = pl.when(pl.Series(mine)).then(own).otherwise("process").alias("process")
    counted_so = pl.when(pl.col("what").is_in(lacking)).then(own).otherwise("process")
    return work.with_columns(given), counts.with_columns(process=counted_so), 0


def _with_nccl(capture: Capture, tables: Tables, strings: pl.DataFrame) -> tuple[Capture, Nccl]:
    """Tell what communication kernels are by the calls and the ranges around them."""
    if not capture.work["comm"].is_not_null().any():
        return capture, NO_NCCL
    called = capture.ranges["name"].str.contains(FUNCTION).any()
    return told_by_calls(capture, nccl_calls(tables, strings) if called else NO_CALLS)


_UNNAMED: Final = {"graphs": "CUDA graph", "fills": "Memset"}
"""What to call work whose tables have no names."""


def _named(ids: pl.Series, strings: pl.DataFrame) -> tuple[pl.Series, tuple[str, ...]]:
    """Return the names of work by number, from the ids of strings and of `_UNNAMED` (negative)."""
    own = pl.DataFrame(
        {"id": range(-1, -1 - len(_UNNAMED), -1), "value": list(_UNNAMED.values())},
        schema=strings.schema,
    )
    known = pl.concat([strings, own]).filter(pl.col("id").is_in(ids.unique().implode()))
    numbers = ids.replace_strict(
        known["id"], range(known.height), default=None, return_dtype=pl.Int32
    )
    return numbers, tuple(known["value"])


def _sequenced(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that have a sequence number, with the columns of `OPERATORS`."""
    return (
        ranges.with_columns(engine=pl.col("name").str.starts_with("autograd::engine::"))
        .drop_nulls(["sequence", "end_ns"])
        .filter(pl.col("sequence") >= 0)
        .select(*OPERATORS)
    )


def _engine_threads(tables: Tables, strings: pl.DataFrame) -> pl.Series:
    """Return the threads that are PyTorch's autograd engine's, by their names."""
    named = strings.filter(pl.col("value").str.contains(AUTOGRAD_THREAD))
    threads = tables.read("ThreadNames", ["nameId", "globalTid"])
    found = threads.join(named, left_on="nameId", right_on="id", how="semi")
    return found["globalTid"].drop_nulls().unique()


def _launches(tables: Tables, strings: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the calls of CUDA's runtime, and those that tell what the host did, for `told_by_host`."""
    named = strings.filter(pl.col("value").str.contains("^c?u")).select("id", name="value")
    telling = telling_calls(named, "nameId")
    told: list[pl.DataFrame] = []

    def shrink(piece: pl.DataFrame) -> pl.DataFrame:
        calls = piece.drop_nulls(["start", "globalTid", "correlationId"]).select(
            process=_process("globalTid"),
            thread="globalTid",
            start_ns="start",
            end_ns="end",
            correlation="correlationId",
            nameId="nameId",
        )
        told.append(telling(calls))  # few, and only their names are needed later
        return calls.drop("nameId")

    launches = tables.read(
        _RUNTIME, ["start", "end", "globalTid", "correlationId", "nameId"], shrink
    )
    calls = pl.concat(told).sort("thread", "start_ns").join(named, left_on="nameId", right_on="id")
    return launches, calls.select(*RANGES, "doing")


def _system_calls(
    tables: Tables, strings: pl.DataFrame, launching: pl.Series
) -> pl.DataFrame | None:
    """Return long calls of the operating system of some threads, as `told_by_host` takes them.

    None if the export shows none: they are traced unless `nsys profile --trace` leaves out `osrt`.

    Args:
        tables: The export's.
        strings: Its texts.
        launching: The thread of each launch.
    """
    long = pl.col("end") - pl.col("start") >= LATENCY_NS
    calls = tables.read(
        "OSRT_API", ["start", "end", "globalTid", "nameId"], lambda piece: piece.filter(long)
    )
    if not calls.height:
        return None
    return (
        calls.filter(pl.col("globalTid").is_in(launching.unique().implode()))
        .join(strings.select("id", name="value"), left_on="nameId", right_on="id")
        .sort("globalTid", "start")
        .select(
            process=_process("globalTid"),
            thread="globalTid",
            start_ns="start",
            end_ns="end",
            name="name",
            doing=pl.lit(SYSTEM, pl.Int8),
        )
        .select(*RANGES, "doing")
    )


def _waits(tables: Tables) -> pl.DataFrame | None:
    """Return when streams were told to wait for events; None if the export has no such table."""
    found = tables.read(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", ["start", "streamId", "globalPid", "syncType"]
    )
    if not found.height:
        return None
    return (
        found.filter(pl.col("syncType") == _STREAM_WAITS)
        .drop_nulls(["start", "streamId"])
        .select(process=_process("globalPid"), stream="streamId", start_ns="start")
        .select(*WAITS)
    )


def _is_comm(names: pl.Series) -> pl.Series:
    return pl.Series([is_communication_kernel(name) for name in names], dtype=pl.Boolean)


def _ranges(tables: Tables, strings: pl.DataFrame) -> pl.DataFrame:
    """Return push/pop and start/end ranges with their names, whether inline or registered."""
    events = tables.read(
        "NVTX_EVENTS", ["start", "end", "eventType", "globalTid", "textId", "text"]
    )
    return (
        events.filter(pl.col("eventType").is_in(_range_types(tables)))
        .drop_nulls(["start", "globalTid"])
        .join(strings, left_on="textId", right_on="id", how="left")
        .select(
            process=_process("globalTid"),
            thread="globalTid",  # a start/end range belongs to the thread that started it
            start_ns="start",
            # Older versions write 0 for a range that is still open.
            end_ns=pl.when(pl.col("end") >= pl.col("start")).then("end"),
            name=pl.when(pl.col("text").fill_null("") != "").then("text").otherwise("value"),
        )
        .filter(pl.col("name").is_not_null())
    )


def _range_types(tables: Tables) -> list[int]:
    """Return the numbers that this export gives to ranges: what it says, else those of all versions."""
    named = tables.read("ENUM_NSYS_EVENT_TYPE", ["id", "name"]).drop_nulls("id")
    said = {name: number for number, name in named.iter_rows()}
    usual = {name: number for name, number in _RANGE_TYPES.items() if number not in said.values()}
    return [number for name, number in (usual | said).items() if name in _RANGE_TYPES]


class _Named(NamedTuple):
    """Names of kernels that matter by themselves.

    Attributes:
        comm: Frame with id and value of those of communication, short or demangled.
        optimizing: The same of those of optimizers.
        demangled: Whether short names do not tell enough.
    """

    comm: pl.DataFrame
    optimizing: pl.DataFrame
    demangled: bool


def _named_kernels(strings: pl.DataFrame, ranges: pl.DataFrame, names: NameParser) -> _Named:
    """Return the names that matter.

    A namespace that tells a library, or an argument that tells what a template does, is only in the
    demangled name. That is read if it matters: for a library, or where no range names a pass, so that
    kernels may have to tell optimizers and steps.
    """
    comm = strings.filter(_is_comm(strings["value"])).sort("id")
    optimizing = strings.filter(pl.col("value").str.contains(OPTIMIZER_KERNEL))
    hidden = (_bare(name) for name in comm["value"] if "::" in name)
    return _Named(
        comm,
        optimizing,
        demangled=not all(map(is_communication_kernel, hidden))
        or not any(
            of_pipeline(said.kind)
            for parsed in names.parse_all(ranges["name"]).values()
            for said in parsed
            if said.kind
        ),
    )


def _bare(name: str) -> str:
    """Return the bare name of a function, as `shortName` has it."""
    return re.split(r"[<(]", name, maxsplit=1)[0].rsplit("::", 1)[-1]


def _device_work(
    tables: Tables, named: _Named, zero: int, *, streams: bool, titles: bool
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return all device work, and how much of what there is.

    Args:
        tables: The export's.
        named: The names that matter.
        zero: The lowest id of a name: kernels can be grouped by their names' ids less it.
        streams: Whether streams are needed.
        titles: Whether a column `title` is to have the id of each name, of fills and graphs too.
    """
    names, comm = ["shortName"], named.comm
    if titles or named.demangled:
        names.append("demangledName")
    code = pl.coalesce(
        pl.lit(None, pl.Int32),
        *(
            pl.col(name).replace_strict(
                comm["id"], range(comm.height), default=None, return_dtype=pl.Int32
            )
            for name in (names if comm.height else ())
        ),
    )

    def shrink(piece: pl.DataFrame, unnamed: pl.Expr, kernel: pl.Expr) -> pl.DataFrame:
        kept = piece.drop_nulls(["start", "end", "deviceId"]).select(
            process=_process("globalPid").fill_null(UNKNOWN),
            device=pl.col("deviceId").cast(pl.Int32),
            start_ns="start",
            end_ns="end",
            correlation=pl.col("correlationId").fill_null(UNKNOWN),
            comm=code,
            copy=_copy_sort() if "copyKind" in piece.columns else pl.lit(None, pl.Int8),
            stream=pl.col("streamId").cast(pl.Int32, strict=False)
            if streams
            else pl.lit(None, pl.Int32),
            kernel=kernel,
            **({"title": pl.coalesce("demangledName", "shortName", unnamed)} if titles else {}),
        )
        return _alike(kept)

    code_of_name = (pl.coalesce(names[::-1]) - zero).cast(pl.Int32, strict=False)
    columns = ["start", "end", "deviceId", "correlationId", "globalPid", *names]
    columns += ["streamId"] * streams
    pieces, counts = [], []
    for what, table in _WORK.items():
        kinds = ["copyKind", "srcKind", "dstKind"] if what == "copies" else []
        unnamed = list(_UNNAMED).index(what) if what in _UNNAMED else None
        number = pl.lit(None, pl.Int64) if unnamed is None else pl.lit(-1 - unnamed, pl.Int64)
        kernel = code_of_name
        if table != _KERNELS:
            kernel = pl.lit(A_GRAPH if what == "graphs" else None, pl.Int32)
        piece = tables.read(
            table, [*columns, *kinds], partial(shrink, unnamed=number, kernel=kernel)
        )
        pieces.append(piece)
        counts.append(counted(piece, what))
    return pl.concat(pieces), pl.concat(counts)


def _alike(piece: pl.DataFrame) -> pl.DataFrame:
    """Return a piece of a table with every column in one chunk.

    A column that is null throughout Polars would else keep in one chunk while the others have one for
    each piece, and copy the whole table for it whenever some of it is chosen.
    """
    return pl.DataFrame(
        [
            column.rechunk()
            if column.null_count() < len(column)
            else pl.Series(column.name, [None], column.dtype).new_from_index(0, len(column))
            for column in piece
        ]
    )


_WAYS: Final = {
    1: "HtoD",
    2: "DtoH",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    **{11 + at: f"{way} {UNIFIED}" for at, way in enumerate(("HtoD", "DtoH", "DtoD"))},
}
_HELD: Final = {0: "pageable", 1: "pinned"}
_COPY_SORTS: Final = (
    *(f"{way} {held}".strip() for way in _WAYS.values() for held in ("", *_HELD.values())),
    "other",
)
"""The sorts of copies by direction and by how the host's memory is held, as ENUM_CUDA_MEMCPY_OPER and
ENUM_CUDA_MEM_KIND number them."""
_STREAM_WAITS: Final = 2
"""That a stream is to wait for an event, in ENUM_CUPTI_SYNC_TYPE."""


def _copy_sort() -> pl.Expr:
    """Return the index of each copy's sort in `_COPY_SORTS`."""
    ways = list(_WAYS)
    way = pl.col("copyKind").replace_strict(
        ways, [3 * index for index in range(len(ways))], default=None, return_dtype=pl.Int8
    )
    host = pl.when(pl.col("copyKind") == ways[0]).then("srcKind").otherwise("dstKind")
    between = pl.col("copyKind").is_in(ways[:2])
    held = pl.when(between & host.is_in(list(_HELD))).then(host + 1).otherwise(0).cast(pl.Int8)
    return (way + held).fill_null(len(_COPY_SORTS) - 1).cast(pl.Int8)


def _clock(tables: Tables, facts: dict[str, str]) -> Clock:
    session = tables.read("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs", "systemClockNs"])
    utc, monotonic = session.row(0) if session.height else (None, None)
    if facts.get("EXPORT_PARAM_TIME_NORMALIZE", "").lower() in {"true", "1", "yes"}:
        return Clock(utc_ns=0, monotonic_ns=None)  # its times are already UTC
    return Clock(utc_ns=utc, monotonic_ns=monotonic)
