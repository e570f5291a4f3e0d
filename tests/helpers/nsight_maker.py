"""Makes Nsight Systems exports whose true tasks are known, small or of any size.

`Export` is a builder with the schema of the real exporter; `pipeline` plays a schedule with it and
returns the truth beside the exports.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from bubblescope.model.kinds import Kind
from bubblescope.schedules import generate
from fresh_database import fresh_database

if TYPE_CHECKING:
    from pathlib import Path

VM = 1 << 48
METRICS = VM | 1 << 32
UTC = 1_750_000_000_000_000_000

_CALLS = dict.fromkeys(
    [
        "start",
        "end",
        "eventClass",
        "globalTid",
        "correlationId",
        "nameId",
        "returnValue",
        "callchainId",
    ],
    "INTEGER",
)
"""Columns of calls, of CUDA's runtime and of the operating system."""

TABLES: dict[str, dict[str, str]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": dict.fromkeys(
        [
            "start",
            "end",
            "deviceId",
            "contextId",
            "streamId",
            "correlationId",
            "globalPid",
            "demangledName",
            "shortName",
            "mangledName",
            "gridX",
            "gridY",
            "gridZ",
            "blockX",
            "blockY",
            "blockZ",
            "graphNodeId",
        ],
        "INTEGER",
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": _CALLS,
    "CUPTI_ACTIVITY_KIND_MEMCPY": dict.fromkeys(
        [
            "start",
            "end",
            "deviceId",
            "contextId",
            "streamId",
            "correlationId",
            "globalPid",
            "bytes",
            "copyKind",
        ],
        "INTEGER",
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": dict.fromkeys(
        [
            "start",
            "end",
            "deviceId",
            "contextId",
            "streamId",
            "correlationId",
            "globalPid",
            "value",
            "bytes",
            "memKind",
        ],
        "INTEGER",
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": dict.fromkeys(
        [
            "start",
            "end",
            "deviceId",
            "contextId",
            "greenContextId",
            "streamId",
            "correlationId",
            "globalPid",
            "graphId",
            "graphExecId",
        ],
        "INTEGER",
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": dict.fromkeys(
        ["timestamp", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "eventId"],
        "INTEGER",
    ),
    "NVTX_EVENTS": dict.fromkeys(
        [
            "start",
            "end",
            "eventType",
            "rangeId",
            "category",
            "color",
            "globalTid",
            "endGlobalTid",
            "textId",
            "domainId",
        ],
        "INTEGER",
    )
    | {"text": "TEXT", "jsonText": "TEXT", "binaryData": "BLOB"},
    "OSRT_API": {**_CALLS, "nestingLevel": "INTEGER"},
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": dict.fromkeys(
        ["domainId", "schemaId", "idx", "flags", "type", "offset"], "INTEGER"
    )
    | {"name": "TEXT"},
    "CUDA_GPU_MEMORY_USAGE_EVENTS": dict.fromkeys(
        [
            "start",
            "globalPid",
            "deviceId",
            "contextId",
            "address",
            "pc",
            "bytes",
            "memKind",
            "memoryOperationType",
        ],
        "INTEGER",
    )
    | {"name": "TEXT"},
    "GPU_METRICS": dict.fromkeys(["timestamp", "typeId", "metricId", "value"], "INTEGER"),
    "TARGET_INFO_GPU_METRICS": {
        "typeId": "INTEGER",
        "sourceId": "INTEGER",
        "typeName": "TEXT",
        "metricId": "INTEGER",
        "metricName": "TEXT",
    },
    "TARGET_INFO_GPU": {"id": "INTEGER", "pwGpuId": "INTEGER"},
    "TARGET_INFO_CUDA_DEVICE": dict.fromkeys(["gpuId", "cudaId", "pid"], "INTEGER"),
    "ENUM_NSYS_EVENT_TYPE": {"id": "INTEGER", "name": "TEXT", "label": "TEXT"},
    "ThreadNames": dict.fromkeys(["nameId", "priority", "globalTid"], "INTEGER"),
    "StringIds": {"id": "INTEGER", "value": "TEXT"},
    "META_DATA_CAPTURE": {"name": "TEXT", "value": "TEXT"},
    "META_DATA_EXPORT": {"name": "TEXT", "value": "TEXT"},
    "TARGET_INFO_SESSION_START_TIME": {"utcEpochNs": "INTEGER", "systemClockNs": "INTEGER"},
    "TARGET_INFO_SYSTEM_ENV": {"name": "TEXT", "value": "TEXT"},
}


class Export:
    """One export, in the terms of its schema.

    Args:
        host: Machine name.
        utc_ns: UTC of time zero; None leaves the session table out.
        monotonic_ns: Monotonic clock at time zero; None is what versions before 2026 have.
        normalized: Times are UTC already, as with `--ts-normalize`.
        version: Product version.
        first_string: Id of the first string.
    """

    def __init__(
        self,
        host: str = "node0",
        utc_ns: int | None = UTC,
        monotonic_ns: int | None = None,
        *,
        normalized: bool = False,
        version: str = "2026.2.1.210",
        first_string: int = 0,
    ) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.dropped: dict[str, set[str]] = {}
        self.renamed: dict[str, str] = {}
        self._strings: dict[str, int] = {}
        self._first_string = first_string
        self._add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value=version)
        self._add(
            "META_DATA_EXPORT", name="EXPORT_PARAM_TIME_NORMALIZE", value=str(normalized).lower()
        )
        self._add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value=host)
        if utc_ns is not None:
            self._add(
                "TARGET_INFO_SESSION_START_TIME", utcEpochNs=utc_ns, systemClockNs=monotonic_ns
            )

    def says_types(self, types: dict[int, str]) -> None:
        """Say what the numbers of event types mean."""
        for number, name in types.items():
            self._add("ENUM_NSYS_EVENT_TYPE", id=number, name=name, label=name)

    def traced(self, *events: str) -> None:
        """Say which sorts of events `nsys profile --trace` asked for: "Cuda", "OSRuntime", ..."""
        for event in events:
            self._add("META_DATA_CAPTURE", name="CAPTURE_EVENT_TYPE", value=event)

    def payload_schema(
        self, number: int, entries: dict[str, tuple[int, int | None]], *, domain: int = 1
    ) -> None:
        """Say how payloads of a schema are laid out: name of an entry -> its type and offset."""
        for index, (name, (kind, offset)) in enumerate(entries.items()):
            self._add(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                domainId=domain,
                schemaId=number,
                idx=index,
                type=kind,
                name=name,
                offset=offset,
            )

    def process(self, pid: int, device: int = 0) -> Process:
        """Return a process of the export that drives one device."""
        return Process(self, pid, device)

    def string(self, text: str) -> int:
        """Return the id of a string."""
        return self._strings.setdefault(text, self._first_string + len(self._strings))

    def gpu(self, number: int, metrics: dict[int, str]) -> None:
        """Add a GPU that metrics (id -> name) are sampled on."""
        self._add("TARGET_INFO_GPU", id=number + 10, pwGpuId=number)
        for metric, name in metrics.items():
            self._add(
                "TARGET_INFO_GPU_METRICS",
                typeId=METRICS + number,
                sourceId=METRICS,
                typeName="GPU Metrics",
                metricId=metric,
                metricName=name,
            )

    def sample(self, at: int, gpu: int, metric: int, value: int) -> None:
        """Add a sample of a GPU metric."""
        self._add("GPU_METRICS", timestamp=at, typeId=METRICS + gpu, metricId=metric, value=value)

    def _add(self, table: str, **row: Any) -> None:
        self.rows.setdefault(table, []).append(row)

    def frames(self, *, empty_tables: bool = False) -> dict[str, pl.DataFrame]:
        """Return the tables; those without rows only if asked, as versions before 2024 write them."""
        rows = self.rows | {
            "StringIds": [{"id": key, "value": text} for text, key in self._strings.items()]
        }
        return {
            self.renamed.get(table, table): pl.DataFrame(
                rows.get(table, []),
                schema={
                    name: {"INTEGER": pl.Int64, "TEXT": pl.String, "BLOB": pl.Binary}[kind]
                    for name, kind in columns.items()
                    if name not in self.dropped.get(table, ())
                },
            )
            for table, columns in TABLES.items()
            if rows.get(table) or empty_tables
        }

    def write(self, path: Path, *, empty_tables: bool = False) -> Path:
        """Write a `.sqlite` export."""
        with fresh_database(path) as connection:
            for table, frame in self.frames(empty_tables=empty_tables).items():
                columns = ", ".join(
                    # The ids of strings are SQLite's own row ids, and begin at 0.
                    f'"{name}" INTEGER NOT NULL PRIMARY KEY'
                    if name == "id"
                    else f'"{name}" {"INTEGER" if kind == pl.Int64 else "TEXT"}'
                    for name, kind in frame.schema.items()
                )
                connection.execute(f'CREATE TABLE "{table}" ({columns})')
                marks = ", ".join("?" * frame.width)
                connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', frame.iter_rows())
        return path

    def write_parquet_dir(self, path: Path) -> Path:
        """Write a `parquetdir` export, with the unsigned ids that some versions write."""
        path.mkdir()
        for table, frame in self.frames().items():
            ids = [
                name
                for name in frame.columns
                if name.endswith(("Id", "Tid", "Pid")) or name == "id"
            ]
            frame.with_columns(pl.col(ids).cast(pl.UInt64)).write_parquet(path / f"{table}.parquet")
        return path


@dataclass
class Process:
    """One process of an export. Threads are numbered from 0, the main thread."""

    export: Export
    pid: int
    device: int
    next_correlation: int = 100

    @property
    def global_pid(self) -> int:
        return VM | (self.pid << 24)

    def thread(self, number: int) -> int:
        """Return a thread's global id."""
        return self.global_pid | ((self.pid + number) & 0xFFFFFF)

    def range(
        self,
        name: str,
        start: int,
        end: int | None,
        *,
        thread: int = 0,
        registered: bool = False,
        kind: str = "pushpop",
        end_thread: int | None = None,
        payload: bytes | None = None,
        json: str | None = None,
    ) -> None:
        """Add an NVTX range; `end` None leaves it open."""
        self.export._add(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType={"pushpop": 59, "startend": 60, "mark": 34}[kind],
            globalTid=self.thread(thread),
            endGlobalTid=None if end_thread is None else self.thread(end_thread),
            textId=self.export.string(name) if registered else None,
            text=None if registered else name,
            domainId=1 if registered else 0,
            binaryData=payload,
            jsonText=json,
        )

    def calls_thread(self, number: int, name: str) -> None:
        """Give a thread a name, as the operating system knows it."""
        self.export._add(
            "ThreadNames", nameId=self.export.string(name), globalTid=self.thread(number)
        )

    def allocate(self, at: int, size: int, *, release: bool = False, kind: int = 2) -> None:
        """Add an allocation of device memory, or its release."""
        self.export._add(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            start=at,
            globalPid=self.global_pid,
            deviceId=self.device,
            contextId=1,
            address=4096,
            pc=0,
            bytes=size,
            memKind=kind,
            memoryOperationType=int(release),
        )

    def uses(self, gpu: int) -> None:
        """Say which GPU the process's device is."""
        self.export._add(
            "TARGET_INFO_CUDA_DEVICE", gpuId=gpu + 10, cudaId=self.device, pid=self.pid
        )

    def launch(self, at: int, *, thread: int = 0) -> int:
        """Add a launching call; return its correlation id."""
        return self.call("cudaLaunchKernel_v7000", at, at + 5, thread=thread)

    def call(self, name: str, start: int, end: int, *, thread: int = 0) -> int:
        """Add a call of CUDA's runtime; return its correlation id."""
        self.next_correlation += 1
        self.export._add(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=end,
            globalTid=self.thread(thread),
            correlationId=self.next_correlation,
            nameId=self.export.string(name),
            returnValue=0,
        )
        return self.next_correlation

    def system_call(self, name: str, start: int, end: int, *, thread: int = 0) -> None:
        """Add a call of the operating system."""
        self.export._add(
            "OSRT_API",
            start=start,
            end=end,
            eventClass=27,
            globalTid=self.thread(thread),
            nameId=self.export.string(name),
            returnValue=0,
            callchainId=0,
        )

    def work(
        self,
        table: str,
        start: int,
        end: int,
        *,
        at: int | None = None,
        thread: int = 0,
        name: str = "gemm",
        correlation: int | None = None,
        device: int | None = None,
        stream: int = 7,
        **more: Any,
    ) -> None:
        """Add device work launched at `at`, or of an earlier launch, or (neither) of none at all."""
        if correlation is None:
            correlation = self.launch(at, thread=thread) if at is not None else 10**6 + start
        if table == "KERNEL":
            more |= {
                "shortName": self.export.string(name),
                "demangledName": self.export.string(name),
            }
        self.export._add(
            f"CUPTI_ACTIVITY_KIND_{table}",
            start=start,
            end=end,
            deviceId=self.device if device is None else device,
            correlationId=correlation,
            globalPid=self.global_pid,
            streamId=stream,
            contextId=1,
            **more,
        )

    def kernel(self, start: int, end: int, **how: Any) -> None:
        """Add a kernel; see `work`."""
        self.work("KERNEL", start, end, **how)


@dataclass
class Style:
    """How a made pipeline is traced."""

    schedule: str = "1f1b"
    names: str = "zero-bubble"
    stages: int = 4
    microbatches: int = 8
    steps: int = 3
    hosts: int = 1
    comm: bool = False
    autograd_thread: bool = False
    registered: bool = False
    nested: bool = False
    decorated: bool = False
    """Inside each F and B range, as in Sail's runtime, one that says only that."""
    renumbered_devices: bool = False
    kernels: int = 3
    times: dict[Kind, int] = field(
        default_factory=lambda: {
            Kind.FORWARD: 3000,
            Kind.BACKWARD: 6000,
            Kind.BACKWARD_INPUT: 3000,
            Kind.BACKWARD_WEIGHT: 3000,
        }
    )


def solve(style: Style) -> dict[int, list[tuple[Kind, int, int, int]]]:
    """Return stage -> (kind, micro-batch, start, end) of a step, everything as early as it can be."""
    plan = generate(style.schedule, style.stages, style.microbatches)
    orders = {stage: plan.order(stage) for stage in range(style.stages)}
    ended: dict[tuple[str, int, int], int] = {}
    done: dict[int, list[tuple[Kind, int, int, int]]] = {stage: [] for stage in orders}
    while any(len(done[stage]) < len(orders[stage]) for stage in orders):
        before = len(ended)
        for stage, order in orders.items():
            while len(done[stage]) < len(order):
                kind, _, microbatch, *_ = order[len(done[stage])]
                way = {"forward": -1, "backward": 1, "backward_input": 1}.get(kind.value, 0)
                source = stage + way
                needs = (kind.value, source, microbatch)
                if way and 0 <= source < style.stages and needs not in ended:
                    break
                free = done[stage][-1][3] if done[stage] else 0
                start = max(free, ended.get(needs, 0) if way else 0)
                end = start + style.times[kind]
                ended[kind.value, stage, microbatch] = end
                done[stage].append((kind, microbatch, start, end))
        assert len(ended) > before, "the schedule deadlocks"
    return done


NAMES = {
    "zero-bubble": {"F": "F{i}.0.0", "B": "B{i}.0.0", "W": "W{i}.0.0", "opt": "Optimizer"},
    "bare": {"F": "F", "B": "B", "W": "W", "opt": "Optimizer"},
    "megatron": {
        "F": "megatron.core.pipeline_parallel.schedules.forward_step",
        "B": "megatron.core.pipeline_parallel.schedules.backward_step",
        "opt": "optimizer",
    },
    "own": {
        "F": "bubblescope:forward step={s} microbatch={i}",
        "B": "bubblescope:backward step={s} microbatch={i}",
        "W": "bubblescope:backward_weight step={s} microbatch={i}",
        "opt": "bubblescope:optimizer step={s}",
    },
    "custom": {"F": "fwd/mb{i}", "B": "bwd/mb{i}", "W": "wgrad/mb{i}", "opt": "opt/"},
}


def pipeline(style: Style) -> tuple[list[Export], pl.DataFrame, float]:
    """Return exports, one per host, the true compute tasks, and the true makespan bubble rate."""
    plan = solve(style)
    makespan = max(tasks[-1][3] for tasks in plan.values())
    busy = sum(end - start for tasks in plan.values() for _, _, start, end in tasks)
    per_host = style.stages // style.hosts
    exports, truth = [], []
    for host in range(style.hosts):
        offset = host * 1_234_567  # this host's session began later
        export = Export(f"node{host}", UTC + offset)
        exports.append(export)
        for local in range(per_host):
            rank = host * per_host + local
            device = 0 if style.renumbered_devices else local
            process = export.process(2000 + 17 * local, device)
            truth += _play(style, plan[rank], process, rank, makespan, offset)
    return (
        exports,
        pl.DataFrame(truth).sort("rank", "start_ns"),
        1 - busy / (style.stages * makespan),
    )


def _play(
    style: Style,
    plan: list[tuple[Kind, int, int, int]],
    process: Process,
    rank: int,
    makespan: int,
    offset: int,
) -> list[dict[str, Any]]:
    """Trace one rank's steps. The host runs 10 µs ahead of the device and 20 times as fast."""
    names = NAMES[style.names]
    truth = []
    step_length = makespan + 50_000
    for step in range(style.steps):
        base = 10_000_000 + step * step_length
        cpu = base - 10_000 - offset
        began = cpu
        optimizer = (Kind.OPTIMIZER, 0, makespan + 1000, makespan + 3000)
        for kind, i, start, end in [*plan, optimizer]:
            letter = {"forward": "F", "backward_weight": "W", "optimizer": "opt"}.get(
                kind.value, "B"
            )
            name = names[letter].format(i=i, s=step)
            first, last = base + start - offset, base + end - offset
            if kind is Kind.OPTIMIZER and style.names == "zero-bubble":
                process.range(f"iter_{rank}_{step}", began - 5, cpu)
                cpu += 10
            length = 120
            process.range(name, cpu, cpu + length, registered=style.registered)
            if style.nested:
                process.range(
                    "aten::linear, op_id = 7", cpu + 1, cpu + 60, registered=style.registered
                )
            if style.decorated and letter in "FB":
                process.range(letter, cpu + 1, cpu + length - 1, registered=style.registered)
            helper = 1 if style.autograd_thread and letter == "B" else 0
            busy = _kernels(style, process, first, last, cpu, helper)
            if style.comm and letter in "FB":
                # Inside the task's range: it may wait for long, and must not count as its work.
                process.kernel(
                    first - 900, last + 700, at=cpu + 90, name="ncclDevKernel_AllReduce_Sum_f32"
                )
            truth.append(
                {
                    "rank": rank,
                    "step": step,
                    "kind": kind.value,
                    "microbatch": None if kind is Kind.OPTIMIZER else i,
                    "start_ns": UTC + offset + first,
                    "end_ns": UTC + offset + last,
                    "busy_ns": busy,
                }
            )
            cpu += length + 10
    return truth


def _kernels(style: Style, process: Process, first: int, last: int, cpu: int, thread: int) -> int:
    """Fill an interval with kernels, a gap after each but the last; return their total time."""
    count, busy = style.kernels, 0
    for index in range(count):
        start = first + (last - first) * index // count
        end = first + (last - first) * (index + 1) // count - (0 if index == count - 1 else 100)
        process.kernel(start, end, at=cpu + 2 + index * 80 // count, thread=thread)
        busy += end - start
    return busy
