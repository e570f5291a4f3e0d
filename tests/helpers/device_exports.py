"""Writes what `device_maker` simulated as PyTorch's profiler and Nsight Systems would have."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from device_maker import COPIES, SYNCS, Operation, Range, Rank
from device_truth import GRAPH
from fresh_database import fresh_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UTC = 1_750_000_000_000_000_000

# PyTorch's profiler.


def kineto(ranks: list[Rank], folder: Path) -> Path:
    """Write the files that PyTorch's profiler leaves, one per rank."""
    name, units = ("AMD Instinct MI300X", 304) if ranks[0].mode.hip else ("NVIDIA H100", 132)
    for rank in ranks:
        head = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": it.number, "name": name, "numSms": units} for it in ranks],
            "distributedInfo": {"backend": "nccl", "rank": rank.number, "world_size": len(ranks)},
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": UTC,
            "host_name": "node0",
        }
        events = ",\n".join(_events(rank))
        text = f'{json.dumps(head)[:-1]}, "traceEvents": [\n{events}\n], "traceName": "t.json"}}'
        (folder / f"rank{rank.number}.json").write_text(text)
    return folder


def _events(rank: Rank) -> Iterator[str]:
    """Yield Kineto's events."""
    process, device = 7000 + rank.number, rank.number
    for index, it in enumerate(rank.ranges):
        args = {"Python id": index} if it.cat == "python_function" else {"External id": index}
        yield _event(it, process, it.thread, {**args, "Ev Idx": index})
        if it.name.startswith("ProfilerStep#"):  # its copy for the device means nothing
            copy = Range(0, "gpu_user_annotation", it.name, it.start + 9000, it.start + 25_000)
            yield _event(copy, device, 7, {"External id": index})
    for call in rank.calls:
        launched = {"External id": call.correlation, "correlation": call.correlation}
        yield _event(call, process, call.thread, {"cbid": 211, **launched})
        where = {"device": device, "context": 1, **launched}
        if call.stream is not None:
            args = {
                "cuda_sync_kind": "Stream Wait Event",
                "stream": call.stream,
                "wait_on_stream": 99,
            }
            sync = Range(0, "cuda_sync", "Stream Wait Event", call.start + 100, call.end - 100)
            yield _event(sync, device, call.stream, args | where)
        elif call.name in SYNCS:
            name, _ = SYNCS[call.name]
            sync = Range(0, "cuda_sync", name, call.start + 100, call.end)
            yield _event(sync, device, -1, {"cuda_sync_kind": name, "stream": 4294967295} | where)
    for it in rank.operations:
        args = {"External id": it.call.correlation, "device": device, "context": 1}
        args |= {"stream": it.stream, "correlation": it.call.correlation}
        yield _event(it, device, it.stream, args)


def _event(it: Range | Operation, process: int, thread: int, args: dict[str, Any]) -> str:
    """Return a complete event; microseconds with three decimals are exact nanoseconds."""
    head = {"ph": "X", "cat": it.cat, "name": it.name, "pid": process, "tid": thread}
    ts, dur = (f"{ns // 1000}.{ns % 1000:03d}" for ns in (it.start, it.end - it.start))
    return f'{json.dumps(head)[:-1]}, "ts": {ts}, "dur": {dur}, "args": {json.dumps(args)}}}'


# Nsight Systems.

WORK = "start end deviceId contextId streamId correlationId globalPid"
TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{WORK} demangledName shortName gridX gridY gridZ",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{WORK} graphId graphExecId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{WORK} bytes copyKind srcKind dstKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{WORK} value bytes memKind",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{WORK} syncType eventId eventSyncId",
    "NVTX_EVENTS": "start end eventType text globalTid textId domainId",
    "StringIds": "id value",
    "META_DATA_EXPORT": "name value",
    "TARGET_INFO_GPU": "vmId id name smCount pwGpuId",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid uuid numMultiprocessors",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs",
    "TARGET_INFO_SYSTEM_ENV": "name value",
}
TEXTS = {"text", "value", "name", "uuid"}


def nsight(ranks: list[Rank], path: Path) -> Path:
    """Write the SQLite export of one Nsight Systems session that saw all ranks."""
    rows: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
    rows["META_DATA_EXPORT"] = [("EXPORT_PRODUCT_VERSION", "2026.2.1.210")]
    rows["TARGET_INFO_SYSTEM_ENV"] = [("Hostname", "node0")]
    rows["TARGET_INFO_SESSION_START_TIME"] = [(UTC,)]
    strings: dict[str, int] = {}
    for rank in ranks:
        for table, row in _rows(rank, strings):
            rows[table].append(row)
    rows["StringIds"] = [(key, text) for text, key in strings.items()]
    with fresh_database(path) as database:
        for table, columns in TABLES.items():
            names = columns.split()
            kinds = [f'"{it}" {"TEXT" if it in TEXTS else "INTEGER"}' for it in names]
            database.execute(f"CREATE TABLE {table} ({', '.join(kinds)})")
            marks = ", ".join("?" * len(names))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows[table])
    return path


def _rows(rank: Rank, strings: dict[str, int]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the rows of a rank's process, with the names of their tables."""

    def string(text: str) -> int:
        return strings.setdefault(text, len(strings))

    pid, device = 7000 + 50 * rank.number, rank.number
    process = 1 << 48 | pid << 24
    yield "TARGET_INFO_GPU", (1 << 48, device, "NVIDIA H100 80GB HBM3", 132, device)
    yield "TARGET_INFO_CUDA_DEVICE", (device, device, pid, "", 132)
    for index, it in enumerate(rank.ranges):
        if it.cat != "python_function":
            text = f"{it.name}, op_id = {index}" if it.cat == "cpu_op" else it.name
            thread = process | pid + it.thread
            yield "NVTX_EVENTS", (it.start, it.end, 59, text, thread, None, 0)
    for call in rank.calls:
        name, thread = string(f"{call.name}_v7000"), process | pid + call.thread
        times = (call.start, call.end)
        yield "CUPTI_ACTIVITY_KIND_RUNTIME", (*times, 0, thread, call.correlation, name, 0)
        if call.stream is not None or call.name in SYNCS:
            kind = 2 if call.stream is not None else SYNCS[call.name][1]
            stream = 4294967295 if call.stream is None else call.stream
            where = (device, 1, stream, call.correlation, process)
            yield "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", (*times, *where, kind, 5, 0)
    for it in rank.operations:
        row = (it.start, it.end, device, 1, it.stream, it.call.correlation, process)
        if it.cat == "kernel":
            short = it.name.split("(", 1)[0] if it.name[0] == "n" else it.name
            short = short.replace("(anonymous namespace)::", "").split("<")[0].split("(")[0]
            short = short.rpartition("::")[2].rpartition(" ")[2]
            yield "CUPTI_ACTIVITY_KIND_KERNEL", (*row, string(it.name), string(short), 8, 1, 1)
        elif it.cat == GRAPH:
            yield "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", (*row, 4, 5)
        elif it.cat == "gpu_memcpy":
            yield "CUPTI_ACTIVITY_KIND_MEMCPY", (*row, 4096, *COPIES[it.name])
        else:
            yield "CUPTI_ACTIVITY_KIND_MEMSET", (*row, 0, 4096, 2)
