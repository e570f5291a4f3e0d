"""Makes Ascend profiler databases whose true tasks are known."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fresh_database import fresh_database

if TYPE_CHECKING:
    from pathlib import Path

BASE = 1_755_066_160_000_000_000
FIRST_MARK = 4_000_000_001
TABLES = {
    "MSTX_EVENTS": "startNs endNs eventType rangeId category message globalTid endGlobalTid domainId "
    "connectionId",
    "TASK": "startNs endNs deviceId connectionId globalTaskId globalPid taskType contextId streamId "
    "taskId modelId",
    "STEP_TIME": "id startNs endNs",
    "RANK_DEVICE_MAP": "rankId deviceId",
    "CANN_API": "startNs endNs type globalTid connectionId name",
    "COMMUNICATION_OP": "opName startNs endNs connectionId groupName opId relay retry dataType algType "
    "count opType",
    "COMMUNICATION_TASK_INFO": "name globalTaskId taskType planeId groupName notifyId rdmaType srcRank "
    "dstRank transportType size dataType linkType opId",
    "COMPUTE_TASK_INFO": "name globalTaskId taskType opType",
    "MEMCPY_INFO": "globalTaskId size memcpyOperation",
    "PYTORCH_API": "startNs endNs globalTid connectionId name type",
    "CONNECTION_IDS": "id connectionId",
}
OPERATOR, QUEUE, FUNCTION = 50001, 50002, 50003
"""Types of rows of PYTORCH_API."""
FIRST_CONNECTION = 1_000_000
PID = 4711


_TEXTS = {("PYTORCH_API", "startNs"), ("PYTORCH_API", "endNs")}


@dataclass
class Profile:
    """One rank's database; times are nanoseconds after `BASE`."""

    rank: int | None = 0
    host: str = "node0"
    device: int = 0
    stamp: str = "20250813082240000"
    metadata: dict[str, str] = field(default_factory=dict)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    strings: dict[str, int] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    marks: int = 0

    def add(self, table: str, **row: Any) -> None:
        """Add a row."""
        self.rows.setdefault(table, []).append(row)

    def string(self, text: str) -> int:
        """Return the id of a text."""
        return self.strings.setdefault(text, len(self.strings))

    def range(
        self,
        message: str | dict[str, Any],
        start: int,
        end: int,
        *,
        host: tuple[int, int] | None = None,
        device: bool = True,
        kind: int = 2,
    ) -> None:
        """Add a mark: its host row and, unless told otherwise, its interval on the device."""
        connection = FIRST_MARK + self.marks
        self.marks += 1
        low, high = host or (start // 10, start // 10 + 5)
        self.add(
            "MSTX_EVENTS",
            startNs=BASE + low,
            endNs=BASE + high,
            eventType=kind,
            message=self.string(str(message)),
            connectionId=connection,
        )
        if device:
            self.add("TASK", startNs=BASE + start, endNs=BASE + end, connectionId=connection)

    def step(self, number: int, start: int, end: int) -> None:
        """Add one of the profiler's steps, in host time."""
        self.add("STEP_TIME", id=number, startNs=BASE + start, endNs=BASE + end)

    def operation(
        self,
        name: str,
        start: int,
        end: int,
        ends: tuple[int, int] | None,
        group: str = "pp",
        *,
        issued: int | None = None,
    ) -> None:
        """Add a communication operator; `ends` are its own rank and the other's.

        `issued` is when the host called for it, if the profile holds its calls.
        """
        number = len(self.rows.get("COMMUNICATION_OP", [])) + 1
        self.add(
            "COMMUNICATION_OP",
            opName=self.string(name),
            startNs=BASE + start,
            endNs=BASE + end,
            groupName=self.string(group),
            connectionId=number,
            opId=number,
        )
        if issued is not None:
            at = BASE + issued
            self.add("CANN_API", startNs=at, endNs=at + 5, connectionId=number)
        for kind in ("Notify_Wait", "Memcpy", "Notify_Record"):
            if ends is not None:
                self.add(
                    "COMMUNICATION_TASK_INFO",
                    taskType=self.string(kind),
                    groupName=self.string(group),
                    srcRank=ends[0],
                    dstRank=ends[0] if kind == "Memcpy" else ends[1],
                    opId=number,
                )

    def task(
        self,
        kind: str,
        start: int,
        end: int,
        *,
        issued: tuple[int, int] | None = None,
        stream: int = 2,
        thread: int = 1,
        named: str | None = None,
        connection: int | None = None,
        call: str = "launch",
    ) -> int:
        """Add what the device ran; return its number.

        `issued` is when the call for it began and ended, and `named` what the profiler calls a kernel.
        """
        number = len(self.rows.get("TASK", [])) + 1
        if connection is None:
            connection = FIRST_CONNECTION + number
        self.add(
            "TASK",
            startNs=BASE + start,
            endNs=BASE + end,
            deviceId=self.device,
            connectionId=connection,
            globalTaskId=number,
            taskType=self.string(kind),
            streamId=stream,
        )
        if named is not None:
            self.add("COMPUTE_TASK_INFO", name=self.string(named), globalTaskId=number)
        if issued is not None:
            self.call(call, *issued, thread=thread, connection=connection)
        return number

    def call(
        self, name: str, start: int, end: int, *, thread: int = 1, connection: int | None = None
    ) -> None:
        """Add a call of the NPU's runtime."""
        self.add(
            "CANN_API",
            startNs=BASE + start,
            endNs=BASE + end,
            globalTid=PID << 32 | thread,
            connectionId=connection or 7 * FIRST_CONNECTION + len(self.rows.get("CANN_API", [])),
            name=self.string(name),
        )

    def function(
        self,
        kind: int,
        name: str,
        start: int,
        end: int,
        *,
        thread: int = 1,
        item: int | None = None,
    ) -> None:
        """Add an operator, an end of the queue of operators, or a function of Python."""
        number = len(self.rows.get("PYTORCH_API", []))
        self.add(
            "PYTORCH_API",
            startNs=str(BASE + start),
            endNs=str(BASE + end),
            globalTid=PID << 32 | thread,
            connectionId=number,
            name=self.string(name),
            type=kind,
        )
        if item is not None:
            self.add("CONNECTION_IDS", id=number, connectionId=item)

    def write(self, folder: Path, kind: str = "pt") -> Path:
        """Write the folder that the profiler leaves; return the database."""
        named = "" if self.rank is None else f"_{self.rank}"
        top = folder / f"worker_{1000 + (self.rank or 0)}_{self.stamp}_ascend_{kind}"
        output = top / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True)
        (top / f"profiler_info{named}.json").write_text("{}")
        (output / "analysis.db").write_bytes(b"")
        word = "pytorch" if kind == "pt" else "mindspore"
        path = output / f"ascend_{word}_profiler{named}.db"
        with fresh_database(path) as connection:
            for table, columns in TABLES.items():
                if table in self.dropped:
                    continue
                names = columns.split()
                types = [
                    f"{name} {'TEXT' if (table, name) in _TEXTS else 'INTEGER'}"
                    f"{' PRIMARY KEY' * (name == 'opId' and table.endswith('OP'))}"
                    for name in names
                ]
                connection.execute(f"CREATE TABLE {table} ({', '.join(types)})")
                connection.executemany(
                    f"INSERT INTO {table} VALUES ({', '.join('?' * len(names))})",
                    [[row.get(name) for name in names] for row in self.rows.get(table, [])],
                )
            connection.execute("CREATE TABLE STRING_IDS (id INTEGER PRIMARY KEY, value TEXT)")
            strings = [(number, text) for text, number in self.strings.items()]
            connection.executemany("INSERT INTO STRING_IDS VALUES (?, ?)", strings)
            connection.execute("CREATE TABLE META_DATA (name TEXT, value TEXT)")
            metadata = {"SCHEMA_VERSION": "1.0.2", **self.metadata}
            connection.executemany("INSERT INTO META_DATA VALUES (?, ?)", metadata.items())
            connection.execute("CREATE TABLE HOST_INFO (hostUid TEXT, hostName TEXT)")
            connection.execute("INSERT INTO HOST_INFO VALUES (?, ?)", (f"u{self.host}", self.host))
            connection.execute(
                "INSERT INTO RANK_DEVICE_MAP VALUES (?, ?)", (self.rank or 0, self.device)
            )
        return path


def sizes(pipeline: int, tensor: int = 1, data: int = 1, context: int = 1) -> dict[str, str]:
    """Return metadata of a job's parallel sizes."""
    said = {
        "pipeline_model_parallel_size": pipeline,
        "tensor_model_parallel_size": tensor,
        "data_parallel_size": data,
        "context_parallel_size": context,
        "world_size": pipeline * tensor * data * context,
    }
    return {"distributed_args": json.dumps(said)}


def declared(kind: str, microbatches: int, *, encoded: int = 1) -> dict[str, str]:
    """Return metadata of a job's schedule, encoded as JSON once or more often."""
    said: Any = {"pp_type": kind, "microbatch_num": microbatches}
    for _ in range(encoded):
        said = json.dumps(said)
    return {"pp_info": said}
