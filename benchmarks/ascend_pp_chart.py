"""Time of the pipeline chart for MindStudio Insight, beside Ascend's own pp_chart."""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import sys
import tempfile
from pathlib import Path

import numpy as np
from processes import Figures, measure, print_table

BASE = 1_755_066_160_000_000_000
FIRST_MARK = 4_000_000_001
KERNELS_PER_RANGE = 8
STEP_RANGES = 64
INTEGERS = {
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
    "dstRank transportType size dataType linkType opId isMaster",
}
STRINGS = ["{'name': 'forward_step'}", "{'name': 'backward_step'}", "MsTx", "Notify_Wait", "group"]


def make(folder: Path, ranks: int, ranges: int) -> int:
    """Write the profiles of a pipeline of that many ranks; return their size in bytes."""
    for rank in range(ranks):
        top = folder / f"worker_{3136400 + rank}_2025081308224000{rank}_ascend_pt"
        output = top / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True)
        (top / f"profiler_info_{rank}.json").write_text('{"config": {}}')
        connection = sqlite3.connect(output / f"ascend_pytorch_profiler_{rank}.db")
        connection.execute("PRAGMA journal_mode = OFF")
        for table, columns in INTEGERS.items():
            keyed = {("CANN_API", "connectionId"), ("COMMUNICATION_OP", "opId")}
            types = [
                f"{name} INTEGER{' PRIMARY KEY' if (table, name) in keyed else ''}"
                for name in columns.split()
            ]
            connection.execute(f"CREATE TABLE {table} ({', '.join(types)})")
        connection.execute("CREATE TABLE STRING_IDS (id INTEGER PRIMARY KEY, value TEXT)")
        connection.execute("CREATE TABLE META_DATA (name TEXT, value TEXT)")
        connection.execute("CREATE TABLE HOST_INFO (hostUid TEXT, hostName TEXT)")
        connection.execute("INSERT INTO HOST_INFO VALUES ('1', 'node0')")
        sizes = {
            "pipeline_model_parallel_size": ranks,
            "tensor_model_parallel_size": 1,
            "data_parallel_size": 1,
            "world_size": ranks,
        }
        connection.execute(
            "INSERT INTO META_DATA VALUES ('distributed_args', ?)", (json.dumps(sizes),)
        )
        fill(connection, rank, ranks, ranges)
        connection.commit()
        connection.close()
    return sum(path.stat().st_size for path in folder.rglob("*.db"))


def insert(connection: sqlite3.Connection, table: str, **columns: np.ndarray | int) -> None:
    """Insert rows by columns; a number stands for a column of it."""
    size = max(np.size(column) for column in columns.values())
    rows = np.zeros((size, len(columns)), np.int64)
    for index, column in enumerate(columns.values()):
        rows[:, index] = column
    marks = ", ".join("?" * len(columns))
    connection.executemany(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows.tolist()
    )


def fill(connection: sqlite3.Connection, rank: int, ranks: int, ranges: int) -> None:
    """Fill the tables of one rank: marks, kernels, and a send or receive to each neighbour."""
    index = np.arange(ranges)
    start = BASE + index * 100_000
    marks = FIRST_MARK + index
    host = start // 2 + BASE // 2
    insert(
        connection,
        "MSTX_EVENTS",
        startNs=host,
        endNs=host + 40_000,
        eventType=2,
        message=index % 2,
        connectionId=marks,
    )
    insert(
        connection,
        "TASK",
        startNs=start,
        endNs=start + 90_000,
        deviceId=rank,
        connectionId=marks,
        taskType=2,
    )
    kernel = np.arange(ranges * KERNELS_PER_RANGE)
    begun = BASE + kernel * (100_000 // KERNELS_PER_RANGE)
    insert(
        connection,
        "TASK",
        startNs=begun,
        endNs=begun + 9_000,
        deviceId=rank,
        connectionId=1000 + kernel,
        taskType=2,
    )
    steps = np.arange(-(-ranges // STEP_RANGES))
    span = STEP_RANGES * 50_000
    insert(
        connection,
        "STEP_TIME",
        id=steps,
        startNs=BASE + steps * span,
        endNs=BASE + (steps + 1) * span - 1,
    )
    insert(connection, "RANK_DEVICE_MAP", rankId=rank, deviceId=rank)
    names = list(STRINGS)
    number = 0
    for other in (rank - 1, rank + 1):
        if not 0 <= other < ranks:
            continue
        size = ranges // 2
        at = BASE + np.arange(size) * 200_000 + 95_000
        # Forwards go up, backwards go down: of two neighbours, every other transfer is a send.
        sends = (np.arange(size) % 2 == 0) == (other > rank)
        ways = np.where(sends, "send", "receive")
        first = len(names)
        names += [f"hcom_{way}__046_{number + i}_1" for i, way in enumerate(ways)]
        operations = number + 1 + np.arange(size)
        insert(
            connection,
            "COMMUNICATION_OP",
            opName=first + np.arange(size),
            startNs=at,
            endNs=at + 3_000,
            connectionId=10**7 + operations,
            groupName=4,
            opId=operations,
        )
        insert(
            connection,
            "CANN_API",
            startNs=at - 10_000,
            endNs=at - 5_000,
            connectionId=10**7 + operations,
        )
        insert(
            connection,
            "COMMUNICATION_TASK_INFO",
            name=first + np.arange(size),
            taskType=3,
            groupName=4,
            srcRank=rank,
            dstRank=other,
            opId=operations,
        )
        number += size
    connection.executemany("INSERT INTO STRING_IDS VALUES (?, ?)", enumerate(names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--ranges", type=int, default=200_000, help="ranges per rank")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peer", type=Path, help="msprof-analyze of Ascend, the command")
    options = parser.parse_args()
    figures: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        made, copy = Path(scratch) / "made", Path(scratch) / "copy"
        size = make(made, options.ranks, options.ranges)
        chart = [sys.executable, "-m", "bubblescope", "ascend", "pp-chart", "-q", "-d"]
        for index in range(options.runs):
            for name in ("bubblescope report", "pp-chart into a copy", "pp-chart --in-place"):
                shutil.rmtree(copy, ignore_errors=True)
                command = {
                    "bubblescope report": [*chart[:3], "report", "-q", str(made)],
                    "pp-chart into a copy": [*chart, str(made), "-o", str(copy)],
                    "pp-chart --in-place": [*chart, str(made), "--in-place"],
                }[name]
                figures.setdefault(name, []).append(measure(command))
            if options.peer and index == 0:
                peer = [str(options.peer), "cluster", "-m", "pp_chart", "-d", str(made)]
                figures["msprof-analyze pp_chart"] = [measure(peer)]
    print(f"{options.ranks} x {options.ranges:,} ranges, {size / 1e6:.0f} MB")
    print_table(figures)


if __name__ == "__main__":
    main()
