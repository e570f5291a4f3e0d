"""Time of a whole `bubblescope report` against a bare read of the columns it needs.

    python benchmarks/nsight_report.py [--kernels 1000000 10000000] [--beside OTHER_CHECKOUT/src]

With `--beside`, also against the report of another version, in turn with this one, so that a busy
machine is the same for both; `--no-bare` leaves the bare reads out.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sqlite3
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
from processes import Figures, measure, of_version, print_ratio, print_table

RANKS, MICROBATCHES, STEPS = 8, 32, 4
LAUNCH, SEND, SYNC = 1, 12, 13
REPORT = "bubblescope report"
BESIDE = "the same of the version beside"
UTC = 1_750_000_000_000_000_000
VM = 1 << 48

KERNEL_COLUMNS = """
start end deviceId contextId greenContextId streamId correlationId globalPid demangledName shortName
mangledName launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ
staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId
sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone qmdPreexitDone
qmdLastCtaDone graphId clusterX clusterY clusterZ clusterSchedulingPolicy maxPotentialClusterSize
maxActiveClusters""".split()
RUNTIME_COLUMNS = """
start end eventClass globalTid correlationId nameId returnValue callchainId""".split()
NEEDED = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, deviceId, correlationId, globalPid, shortName",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, globalTid, correlationId",
}

BARE_ADBC = """
import sys
import adbc_driver_manager as manager, adbc_driver_sqlite, polars
uri = f"file:{sys.argv[1]}?mode=ro&immutable=1"
for query in sys.argv[2:]:
    with manager.AdbcDatabase(driver=adbc_driver_sqlite._driver_path(), uri=uri) as database, \\
            manager.AdbcConnection(database) as connection, \\
            manager.AdbcStatement(connection) as statement:
        statement.set_options(**{"adbc.sqlite.query.batch_rows": "65536"})
        statement.set_sql_query(query)
        polars.DataFrame(statement.execute_query()[0])
"""
BARE_CONNECTORX = """
import sys
import connectorx
for query in sys.argv[2:]:
    connectorx.read_sql(f"sqlite://{sys.argv[1]}", query, return_type="arrow")
"""


def make(path: Path, kernels: int, *, late: bool = False) -> None:
    """Write an export of about that many kernels: 8 ranks, 1F1B-like host order, zero-bubble names.

    Every forward and backward ends with a kernel of NCCL, and every step begins with a call that waits
    for the device.

    Args:
        path: Where to write it.
        kernels: How many.
        late: Whether the device waits for each launch; if not, the host is a millisecond ahead of it.
    """
    names = [f"{kind}{i}.0.0" for i in range(MICROBATCHES) for kind in "FBW"] + ["Optimizer"]
    per_task = max(1, kernels // (RANKS * STEPS * len(names)))
    connection = sqlite3.connect(path)
    connection.executescript(
        "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"
        "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);"
        "CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);"
        "CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, systemClockNs INTEGER);"
        "CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT);"
        "CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,"
        " globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, text TEXT);"
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({' INTEGER, '.join(KERNEL_COLUMNS)} INTEGER);"
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME ({' INTEGER, '.join(RUNTIME_COLUMNS)} INTEGER);"
    )
    strings = [
        (LAUNCH, "cudaLaunchKernel_v7000"),
        *((i, f"gemm_{i}") for i in range(2, 12)),
        (SEND, "ncclDevKernel_SendRecv"),
        (SYNC, "cudaStreamSynchronize_v3020"),
    ]
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", strings)
    connection.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2026.2')")
    connection.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, NULL)", (UTC,))
    connection.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('Hostname', 'node0')")
    task_ns = per_task * 1000
    inside = np.arange(per_task)
    for task in range(STEPS * len(names)):  # rows of all processes are interleaved by time
        step, name = divmod(task, len(names))
        for rank in range(RANKS):
            process = VM | ((2000 + 17 * rank) << 24)
            thread = process | (2000 + 17 * rank)
            pace_ns = task_ns if late else task_ns // 2
            host = 10_000 + task * pace_ns
            device = host + 1_000_000 + task * (task_ns - pace_ns)
            if name == 0:
                marker = (
                    host - 5,
                    host + (len(names) - 1) * pace_ns,
                    59,
                    thread,
                    f"iter_{rank}_{step}",
                )
                connection.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,NULL,NULL,?)", marker)
            row = (host, host + pace_ns - 2, 59, thread, names[name])
            connection.execute("INSERT INTO NVTX_EVENTS VALUES (?,?,?,?,NULL,NULL,?)", row)
            correlation = 100 + task * per_task + inside
            calls = np.zeros((per_task + (name == 0), len(RUNTIME_COLUMNS)), np.int64)
            launched = calls[:per_task]
            launched[:, 0] = host + 1 + inside * (pace_ns - 8) // per_task
            launched[:, 1] = launched[:, 0] + (400 if late else 4)
            launched[:, 4], launched[:, 5] = correlation, LAUNCH
            if name == 0:
                last = 100 + STEPS * len(names) * per_task
                calls[-1, [0, 1, 4, 5]] = host - 4, host, last + step, SYNC
            calls[:, 3] = thread
            work = np.ones((per_task, len(KERNEL_COLUMNS)), np.int64)
            work[:, 0] = launched[:, 1] + 20 if late else device + inside * 1000
            work[:, 1] = work[:, 0] + (300 if late else 930)
            work[:, 2], work[:, 6], work[:, 7] = rank, correlation, process
            work[:, 8:11] = (2 + inside % 10)[:, None]
            if names[name][0] in "FB":
                work[-1, 8:11] = SEND
            for table, rows in (("RUNTIME", calls), ("KERNEL", work)):
                marks = ",".join("?" * rows.shape[1])
                connection.executemany(
                    f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES ({marks})", rows.tolist()
                )
    connection.commit()
    connection.close()


def commands(path: Path, options: argparse.Namespace) -> dict[str, list[str]]:
    """Return what to compare: the bare reads that are installed here, and the reports."""
    queries = [f"SELECT {columns} FROM {table}" for table, columns in NEEDED.items()]
    python, target = sys.executable, str(path)
    found: dict[str, list[str]] = {}
    if options.bare:
        found["bare ADBC"] = [python, "-c", BARE_ADBC, target, *queries]
        if importlib.util.find_spec("connectorx") and importlib.util.find_spec("pyarrow"):
            found["bare connectorx"] = [python, "-c", BARE_CONNECTORX, target, *queries]
    found[REPORT] = [python, "-m", "bubblescope", "report", "-q", target]
    if options.beside:
        found[BESIDE] = of_version(found[REPORT], options.beside)
    return found


def compare(path: Path, options: argparse.Namespace) -> dict[str, float]:
    """Run everything on one export, print the figures, and return the least time of each."""
    compared = commands(path, options)
    figures: dict[str, list[Figures]] = {name: [] for name in compared}
    for _ in range(options.runs):  # interleaved, so that a busy moment hits all alike
        for name, command in compared.items():
            figures[name].append(measure(command))
    medians = {name: median(run.wall_s for run in found) for name, found in figures.items()}
    print_table(figures)
    for name in compared:
        if name.startswith("bare"):
            print(f"report / {name}: {medians[REPORT] / medians[name]:.2f} (medians)")
    if BESIDE in figures:
        print_ratio("report", figures[REPORT], figures[BESIDE])
    return {name: min(run.wall_s for run in found) for name, found in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, help="folder to keep the exports in, and to use those of"
    )
    parser.add_argument("--beside", type=Path, help="`src` of a checkout of another version")
    parser.add_argument("--late", action="store_true", help="the device waits for every launch")
    parser.add_argument("--bare", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    took: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kernels in options.kernels:
            path = (options.out or Path(folder)) / f"{kernels}{'-late' * options.late}.sqlite"
            if not path.exists():
                make(path, kernels, late=options.late)
            size = path.stat().st_size / 1e6
            print(f"\n{kernels:,} kernels, {size:.0f} MB, {options.runs} runs each")
            took[kernels] = compare(path, options)
            if options.out is None:
                path.unlink()
    for small, large in itertools.pairwise(sorted(took)):
        for name, least in took[large].items():
            growth = least / took[small][name]
            print(f"{name}: {large / small:.1f} times the kernels took {growth:.1f} times as long")


if __name__ == "__main__":
    main()
