"""Makes rocpd files, as rocprofv3 writes them, whose true tasks are known.

A `Process` has the methods of `nsight_maker.Process`, so that `pipeline` plays the same programs.
Tables and the order of their rows are those of rocprofiler-sdk's writer: one UUID ends the names of all
tables of a process, and views without it stand before them.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import polars as pl

from fresh_database import fresh_database
from nsight_maker import UTC, Style, _play, solve

if TYPE_CHECKING:
    from pathlib import Path

NODE = 77
FIRST_GPU = 4
"""Agents are numbered with the CPUs first."""

_ID = "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT"
_SELF = {"id": _ID, "guid": 'TEXT DEFAULT "{guid}" NOT NULL'}
_MORE = {"extdata": "JSONB DEFAULT '{{}}' NOT NULL"}
_OWNER = {"nid": "INTEGER NOT NULL", "pid": "INTEGER NOT NULL"}
_SHAPE = [f"{of}_size_{axis}" for of in ("workgroup", "grid") for axis in "xyz"]


def integers(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "INTEGER")


def texts(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "TEXT")


def _schema(version: str) -> dict[str, dict[str, str]]:
    """Return table -> column -> declaration of a version: 3.x, 4.0 (times apart) or 4.1."""
    old = version.startswith("3")
    place = integers("nid", "pid", "tid") if old else integers("track_id")
    edges = ("start_id", "end_id") if version.startswith("4.0") else ("start", "end")
    times = dict.fromkeys(edges, "BIGINT NOT NULL")
    queue = integers("agent_id", "queue_id", "stream_id") if old else {}
    tables = {
        "string": {"string": "TEXT NOT NULL UNIQUE ON CONFLICT ABORT"},
        "info_node": {"hash": "BIGINT NOT NULL UNIQUE"}
        | texts("machine_id", "system_name", "hostname", "release", "version"),
        "info_process": integers("nid", "ppid", "pid", "init", "fini", "start", "end")
        | texts("command")
        | {"environment": "JSONB DEFAULT '{{}}' NOT NULL"},
        "info_thread": _OWNER | integers("ppid", "tid") | texts("name"),
        "info_agent": _OWNER
        | {"type": "TEXT CHECK (\"type\" IN ('CPU', 'GPU'))"}
        | integers("absolute_index", "logical_index", "type_index")
        | texts("name", "model_name", "product_name"),
        "info_queue": _OWNER | texts("name"),
        "info_stream": _OWNER | texts("name"),
        "info_code_object": _OWNER | integers("agent_id") | texts("uri"),
        "info_kernel_symbol": _OWNER
        | integers("code_object_id")
        | texts("kernel_name", "display_name"),
        "track": integers("nid", "pid", "tid", "name_id")
        | ({} if old else integers("ppid", "agent_id", "queue_id", "stream_id")),
        "event": integers("category_id", "stack_id", "parent_stack_id", "correlation_id")
        | (texts("call_stack", "line_info") if old else {}),
        "arg": integers("event_id", "position") | texts("type", "name", "value"),
        "region": place | times | integers("name_id", "event_id"),
        "sample": integers("track_id", "timestamp", "event_id"),
        "kernel_dispatch": place
        | queue
        | integers("kernel_id", "dispatch_id")
        | times
        | integers(*_SHAPE, "region_name_id", "event_id"),
        "memory_copy": place
        | times
        | integers("name_id", "dst_agent_id", "src_agent_id", "size", "stream_id", "event_id"),
        "memory_allocate": place
        | queue
        | texts("type", "level")
        | times
        | integers("address", "size", "event_id"),
    }
    if not old:
        tables["info_category"] = {"name": "TEXT NOT NULL"}
    if "start_id" in edges:
        tables["timestamp"] = integers("value")
    return {"metadata": {"id": _ID} | texts("tag", "value")} | {
        table: _SELF | columns | _MORE for table, columns in tables.items()
    }


@dataclass
class Process:
    """One process of a machine that drives one device, and its rocpd file. Threads count from 0."""

    pid: int
    device: int = 0
    host: str = "node0"
    machine: str | None = None
    version: str = "3.0.0"
    marks: str = "MARKER_CORE_RANGE_API"
    """Category of ranges; "named" has the texts in place of the functions' names."""
    gpus: int = 8
    product: str | None = None
    """What the GPUs call themselves."""
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _strings: dict[str, int] = field(default_factory=dict)
    _categories: dict[str, int] = field(default_factory=dict)
    _kernels: dict[str, int] = field(default_factory=dict)
    _tracks: dict[tuple[int | None, ...], int] = field(default_factory=dict)
    _times: list[int] = field(default_factory=list)
    _stacks: count[int] = field(default_factory=lambda: count(1))

    @property
    def guid(self) -> str:
        machine = sum(ord(letter) for letter in self.machine or self.host)
        return f"{self.pid:08x}-9abc-7def-8000-{machine:012x}"

    @property
    def uuid(self) -> str:
        return "_" + self.guid.replace("-", "_")

    def string(self, text: str) -> int:
        """Return the id of a string."""
        return self._strings.setdefault(text, 1 + len(self._strings))

    def add(self, table: str, **row: Any) -> None:
        """Add a row as it stands."""
        self.rows.setdefault(table, []).append(row)

    def _event(self, category: str, stack: int, message: str | None = None) -> int:
        said = "{}" if message is None else json.dumps({"message": message})
        own = self._categories if self.version.startswith("4") else self._strings
        self.add(
            "event",
            category_id=own.setdefault(category, 1 + len(own)),
            stack_id=stack,
            parent_stack_id=stack,
            correlation_id=0,
            extdata="".join(letter for letter in said if letter not in ";\n\r\t\b\f\v"),
        )
        return len(self.rows["event"])

    def _where(self, thread: int, agent: int | None = None) -> dict[str, int]:
        """Return the columns that say whose an event is."""
        tid = self.pid + thread
        if self.version.startswith("4"):
            key = (tid, agent)
            return {"track_id": self._tracks.setdefault(key, 1 + len(self._tracks))}
        on_queue = {} if agent is None else {"agent_id": agent, "queue_id": 1, "stream_id": 0}
        return {"nid": NODE, "pid": self.pid, "tid": tid} | on_queue

    def _when(self, start: int, end: int) -> dict[str, int]:
        if not self.version.startswith("4.0"):
            return {"start": start, "end": end}
        self._times += [start, end]
        return {"start_id": len(self._times) - 1, "end_id": len(self._times)}

    def range(
        self,
        name: str,
        start: int,
        end: int | None,
        *,
        thread: int = 0,
        registered: bool = False,
        kind: str = "pushpop",
    ) -> None:
        """Add a ROCTX range; `end` None leaves it open, one without a length is a sample."""
        del registered  # names of Nsight's
        stack = next(self._stacks)
        if self.marks == "named":
            event, said = self._event("rocm_marker_api", stack), name
        else:
            event = self._event(self.marks, stack, name)
            new = self.marks == "MARKER_CORE_RANGE_API"
            said = {"pushpop": "roctxThreadRangeA" if new else "roctxRangePushA"}.get(
                kind, "roctxProcessRangeA" if new else "roctxRangeStartA"
            )
        row = {"id": stack, "event_id": event}
        if end == start:
            where = self._where(thread) if self.version.startswith("4") else {"track_id": 1}
            self.add("sample", **row, **where, timestamp=start)
            return
        when = self._when(start, 0 if end is None else end)
        self.add("region", **row, **self._where(thread), **when, name_id=self.string(said))

    def launch(
        self,
        at: int,
        *,
        thread: int = 0,
        name: str = "hipLaunchKernel",
        category: str = "HIP_RUNTIME_API_EXT",
        stack: int | None = None,
        lasts: int = 5,
    ) -> int:
        """Add an API call; return the id that what it launches has, too."""
        region = next(self._stacks)
        stack = region if stack is None else stack
        self.add(
            "region",
            id=region,
            **self._where(thread),
            **self._when(at, at + lasts),
            name_id=self.string(name),
            event_id=self._event(category, stack),
        )
        return stack

    def kernel(
        self,
        start: int,
        end: int,
        *,
        at: int | None = None,
        thread: int = 0,
        name: str = "gemm",
        launch: int | None = None,
        device: int | None = None,
    ) -> None:
        """Add a kernel launched at `at`, or by an earlier call, or (neither) by one not recorded."""
        if launch is None:
            launch = next(self._stacks) if at is None else self.launch(at, thread=thread)
        agent = FIRST_GPU + (self.device if device is None else device)
        number = len(self.rows.get("kernel_dispatch", [])) + 1
        self.add(
            "kernel_dispatch",
            id=number,
            **self._where(thread, agent),
            **self._when(start, end),
            kernel_id=self._kernels.setdefault(name, 1 + len(self._kernels)),
            dispatch_id=number,
            **dict.fromkeys(_SHAPE, 64),
            region_name_id=self.string(""),
            event_id=self._event("KERNEL_DISPATCH", launch),
        )

    def copy(
        self, start: int, end: int, *, at: int, to: int | None = None, source: int | None = None
    ) -> None:
        """Add a copy between devices; None is the host."""
        stack = self.launch(at, name="hipMemcpyAsync")
        self.add(
            "memory_copy",
            **self._where(0),
            **self._when(start, end),
            name_id=self.string("MEMORY_COPY_DEVICE_TO_DEVICE"),
            dst_agent_id=0 if to is None else FIRST_GPU + to,
            src_agent_id=0 if source is None else FIRST_GPU + source,
            size=8,
            event_id=self._event("MEMORY_COPY", stack),
        )

    def allocate(self, at: int, address: int, size: int, *, agent: int | None = None) -> None:
        """Add an allocation of the process's device, or of another agent."""
        self._memory(
            at, "ALLOC", address, size, FIRST_GPU + self.device if agent is None else agent
        )

    def free(self, at: int, address: int) -> None:
        """Add a release, which names neither the device nor the size."""
        self._memory(at, "FREE", address, 0, None)

    def _memory(self, at: int, way: str, address: int, size: int, agent: int | None) -> None:
        where = self._where(0, agent) if agent is not None else self._where(0)
        self.add(
            "memory_allocate",
            **where,
            **self._when(at, at + 5),
            type=way,
            level="REAL",
            address=address,
            size=size,
            event_id=self._event("MEMORY_ALLOCATION", next(self._stacks)),
        )

    def _info(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of the tables that describe the process."""
        owner = {"nid": NODE, "pid": self.pid}
        machine = self.machine or f"machine-of-{self.host}"
        agents = [{"type": "CPU", "type_index": index} for index in range(FIRST_GPU)]
        gpu = {"type": "GPU", "product_name": self.product}
        agents += [gpu | {"type_index": index} for index in range(self.gpus)]
        said = {"schema_version": self.version, "uuid": self.uuid, "guid": self.guid}
        return {
            "metadata": [{"tag": tag, "value": value} for tag, value in said.items()],
            "string": [{"id": key, "string": text} for text, key in self._strings.items()],
            "info_category": [{"id": key, "name": name} for name, key in self._categories.items()],
            "info_node": [
                {
                    "id": NODE,
                    "hash": NODE,
                    "machine_id": machine,
                    "system_name": "Linux",
                    "hostname": self.host,
                }
            ],
            "info_process": [owner | {"id": self.pid, "command": "python train.py"}],
            "info_agent": [
                owner | agent | {"id": index, "absolute_index": index, "name": "gfx942"}
                for index, agent in enumerate(agents)
            ],
            "info_kernel_symbol": [
                owner
                | {"id": key, "code_object_id": 1, "kernel_name": f"{name}.kd"}
                | {"display_name": f"{name}(KernelArguments<4096ul>)"}
                for name, key in self._kernels.items()
            ],
            "track": [
                owner | {"id": key, "tid": tid, "agent_id": agent}
                for (tid, agent), key in self._tracks.items()
            ],
            "timestamp": [
                {"id": index, "value": value} for index, value in enumerate(self._times, 1)
            ],
        }

    def write(self, path: Path) -> Path:
        """Write the file."""
        rows = self.rows | self._info()
        with fresh_database(path) as connection:
            for table, columns in _schema(self.version).items():
                declared = ", ".join(
                    f'"{name}" {kind.format(guid=self.guid)}' for name, kind in columns.items()
                )
                connection.execute(f"CREATE TABLE `rocpd_{table}{self.uuid}` ({declared})")
            for table, columns in _schema(self.version).items():
                connection.execute(
                    f"CREATE VIEW `rocpd_{table}` AS SELECT * FROM `rocpd_{table}{self.uuid}`"
                )
                for row in rows.get(table, []):
                    kept = {name: value for name, value in row.items() if name in columns}
                    names = ", ".join(f'"{name}"' for name in kept)
                    marks = ", ".join("?" * len(kept))
                    connection.execute(
                        f"INSERT INTO `rocpd_{table}{self.uuid}` ({names}) VALUES ({marks})",
                        [*kept.values()],
                    )
        return path


def merge(paths: list[Path], path: Path) -> Path:
    """Put several files into one, as `rocpd merge` does: all tables, and views over those of a kind."""
    tables: dict[str, list[str]] = {}
    with closing(sqlite3.connect(path)) as connection:
        for one in paths:
            connection.execute("ATTACH DATABASE ? AS one", [str(one)])
            found = connection.execute("SELECT type, name, sql FROM one.sqlite_master").fetchall()
            views = [name for kind, name, _ in found if kind == "view"]
            for kind, name, sql in found:
                if kind == "table" and name.startswith("rocpd_"):
                    connection.execute(sql)
                    connection.execute(f"INSERT INTO main.`{name}` SELECT * FROM one.`{name}`")
                    view = max((view for view in views if name.startswith(view)), key=len)
                    tables.setdefault(view, []).append(name)
            connection.commit()
            connection.execute("DETACH DATABASE one")
        for view, held in tables.items():
            union = " UNION ALL ".join(f"SELECT * FROM `{name}`" for name in held)
            connection.execute(f"CREATE VIEW `{view}` AS {union}")
        connection.commit()
    return path


def pipeline(style: Style, version: str = "3.0.0") -> tuple[list[Process], pl.DataFrame, float]:
    """Return a process for each stage, the true compute tasks, and the true makespan bubble rate.

    Machines were booted 1 234 567 ns after each other, and count from then; the truth is on the first
    one's clock.
    """
    plan = solve(style)
    makespan = max(tasks[-1][3] for tasks in plan.values())
    busy = sum(end - start for tasks in plan.values() for _, _, start, end in tasks)
    per_host = style.stages // style.hosts
    processes, truth = [], []
    for rank in range(style.stages):
        host, local = divmod(rank, per_host)
        process = Process(2000 + 17 * local, local, f"node{host}", version=version)
        processes.append(process)
        truth += _play(style, plan[rank], process, rank, makespan, host * 1_234_567)
    tasks = pl.DataFrame(truth).with_columns(pl.col("start_ns", "end_ns") - UTC)
    return processes, tasks.sort("rank", "start_ns"), 1 - busy / (style.stages * makespan)
