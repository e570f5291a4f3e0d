"""The table of `docs/traces.md`: what bubblescope tells of each trace, checked against the files.

    python benchmarks/traces.py FOLDER [--index benchmarks/traces.toml] [--jobs 2]

Nothing is fetched (`benchmarks/gallery.py` does): FOLDER holds a folder for each repository, named as
the index names it, with the files where the repository has them. The index tells where each trace is
from; files of the folder that it does not name have rows of their own. Every trace is given to
`bubblescope report` and `bubblescope why` as a user would, and what they end with is in the table.

Two things are counted again from the file alone, with nothing of bubblescope, and compared:

- how long devices were busy: the union of the kernels, copies and fills of each device, of PyTorch's
  traces, exports of Nsight Systems and Ascend's databases, beside what the report leaves as not idle;
- how many operations a job trace, or a dump of Primus, holds, beside the number of tasks.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sqlite3
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

DEVICE_WORK = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "mtia_ccp_events"}
NSIGHT_WORK = ("KERNEL", "MEMCPY", "MEMSET")
ASCEND_WORK = """SELECT deviceId, startNs, endNs FROM TASK JOIN STRING_IDS ON taskType = id
    WHERE value LIKE 'KERNEL%' OR value LIKE 'MEMCPY%'
    OR globalTaskId IN (SELECT globalTaskId FROM COMPUTE_TASK_INFO)"""
TOLERANCE_NS = 2
"""How far one interval may be off: writers round starts and lengths to decimals."""
PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(["bubblescope.cli.report", "bubblescope.cli.why", "polars"])


class Trace(NamedTuple):
    """One trace of the table: what the index says of it.

    Attributes:
        name: What it is called.
        paths: Its files and folders, together one run.
        holds: What was run.
        checked: What else was compared, with what.
    """

    name: str
    paths: list[Path]
    holds: str = ""
    checked: str = ""


class Origin(NamedTuple):
    """A repository.

    Attributes:
        name: Its owner and name.
        commit: The commit that has the files.
        licence: Its licence.
        traces: What was tried of it.
    """

    name: str
    commit: str
    licence: str
    traces: list[Trace]


def origins(folder: Path, known: dict[str, Any]) -> list[Origin]:
    """Return what a folder holds of the traces that an index names."""
    found = []
    for origin in known.get("origin", []):
        home, traces = folder / origin["folder"], []
        for trace in origin["trace"]:
            paths = [path for one in trace["paths"] for path in sorted(home.glob(one))]
            if paths:
                told = (trace.get(key, "") for key in ("holds", "checked"))
                traces.append(Trace(trace["name"], paths, *told))
        if traces:
            found.append(Origin(origin["name"], origin["commit"], origin["licence"], traces))
    return found


def unnamed(folder: Path, found: list[Origin]) -> list[Origin]:
    """Return the files of a folder that are of no trace of these, a row for each."""
    paths = [path for origin in found for trace in origin.traces for path in trace.paths]
    named = {file for path in paths for file in [path, *path.rglob("*")]}
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path not in named)
    rest = [Trace(str(path.relative_to(folder)), [path]) for path in files]
    return [Origin("not in the index", "", "", rest)] if rest else []


def asked(command: str, trace: Trace) -> tuple[int, dict[str, Any] | None, str]:
    """Return a command's exit code, its JSON, and the sentence of its error.

    The command is a process of its own; one that has imported bubblescope already begets it.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        arguments = [command, "--json", *map(str, trace.paths)]
        process = PROCESSES.Process(target=_as_a_user, args=(arguments, out, err))
        process.start()
        process.join()
        printed, said = out.read_text("utf-8"), err.read_text("utf-8", "replace")
    lines = [line for line in said.splitlines() if line.startswith("error")]
    error = (lines or said.splitlines() or [""])[-1].removeprefix("error").strip()
    for path in trace.paths:
        error = error.replace(f"{path}: ", "").replace(f"{path}/", "")
    try:
        return process.exitcode or 0, json.loads(printed), error
    except json.JSONDecodeError:
        return process.exitcode or 0, None, error


def _as_a_user(arguments: list[str], out: Path, err: Path) -> None:
    """Run the command line with its output in files; ends with its exit code."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["bubblescope", *arguments]
    os.environ["COLUMNS"] = "9999"
    from bubblescope.cli import main as bubblescope  # noqa: PLC0415  in the new process alone

    bubblescope()


def row(trace: Trace) -> list[str]:
    """Return what a row of the table has: one line for each column."""
    code, report, error = asked("report", trace)
    if report is None:
        first = error.partition("; `bubblescope formats`")[0].replace("`", "'")
        return [trace.name, trace.holds, "–", f"refused: {first}", str(code), trace.checked or "–"]
    run, device = report["run"], report["device"]
    format_ = ", ".join(sorted({origin["format"] for origin in run["sources"]}))
    size = [
        format_,
        _counted(len(report["ranks"]), "rank"),
        _counted(len(report["steps"]), "step"),
        _counted(run["tasks"], "task"),
    ]
    told = []
    if device is not None:
        told.append(_device(device["capture"]))
    if report["schedule"] is not None and report["schedule"]["devices"] > 1:
        told += _schedule(report["schedule"], report["bubble"]["overall"])
    if run["timed"] == "host":
        told.append("times are the host's")
    why_code, why, why_error = asked("why", trace)
    if why is not None:
        told += [one["text"] for one in why["findings"] if is_of_idle_time(one)][:1]
    else:
        told.append(f"why: {why_error}")
    codes = str(code) if code == why_code else f"{code}, why {why_code}"
    checked = [one for one in (again(trace, report), trace.checked) if one]
    return [
        trace.name,
        trace.holds,
        ", ".join(size),
        " ".join(_sentence(one) for one in told),
        codes,
        " ".join(checked) or "–",
    ]


def is_of_idle_time(finding: dict[str, Any]) -> bool:
    """Return whether a finding is a verdict on idle time: a step's own length may come before it."""
    return finding["role"] == "verdict" and finding["key"] != "whole_step"


def _device(spent: dict[str, Any]) -> str:
    total = spent["total_ns"]
    parts = {
        "compute": spent["compute_ns"],
        "exposed communication": spent["communication_exposed_ns"],
        "exposed copies": spent["copy_exposed_ns"],
        "idle": spent["idle_ns"],
    }
    return "devices: " + ", ".join(
        f"{name} {part / total:.1%}" for name, part in parts.items() if total
    )


def _schedule(schedule: dict[str, Any], overall: dict[str, Any]) -> list[str]:
    if schedule["schedule"] is None:
        found = "schedule: none that is known"
    else:
        found = f"schedule: {schedule['schedule']}, confidence {schedule['confidence']:.0%}"
    rate = overall["makespan"]
    return [found] + ([] if rate is None else [f"bubble rate: {rate:.2%}"])


def _sentence(text: str) -> str:
    return text if text.endswith((".", ":", "?")) else f"{text}."


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def again(trace: Trace, report: dict[str, Any]) -> str:
    """Return what counting the files again gives beside the report; nothing where they cannot be."""
    formats = {origin["format"] for origin in report["run"]["sources"]}
    if formats <= {"primus", "jobtrace"}:
        counted = sum(COUNT[next(iter(formats))](path) for path in trace.paths)
        same = "the same" if counted == report["run"]["tasks"] else "NOT THE SAME"
        return f"operations in the files: {counted:,}, {same}."
    if report["device"] is None or len(formats) != 1 or next(iter(formats)) not in INTERVALS:
        return ""
    spent = report["device"]["capture"]
    ours, busy, number = spent["total_ns"] - spent["idle_ns"], 0, 0
    for path in trace.paths:
        found = defaultdict(list)
        for place, start, end in INTERVALS[next(iter(formats))](path):
            found[place].append((start, end))
        busy += sum(map(union, found.values()))
        number += sum(map(len, found.values()))
    off = abs(ours - busy)
    same = "the same" if off <= TOLERANCE_NS * number else "NOT THE SAME"
    return f"busy by {_counted(number, 'operation')} in the files: {busy / 1e6:,.3f} ms, {same}."


def union(intervals: list[tuple[int, int]]) -> int:
    """Return how much time intervals cover together.

    >>> union([(0, 4), (2, 6), (8, 9)])
    7
    """
    covered, reached = 0, -(2**63)
    for start, end in sorted(intervals):
        if end > reached:
            covered += end - max(start, reached)
            reached = end
    return covered


def kineto(path: Path) -> list[tuple[Any, int, int]]:
    """Return device, start and end of what devices did in a trace of PyTorch, or a folder of some."""
    if path.is_dir():
        return [one for file in sorted(path.rglob("*.json*")) for one in kineto(file)]
    packed = path.read_bytes()
    text = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
    events = json.loads(text.decode("utf-8", "replace"), parse_float=_thousandfold, strict=False)
    if isinstance(events, dict):
        events = events.get("traceEvents", [])  # execution traces may lie beside, which have none
    return [
        ((str(path), event.get("pid")), ns(event["ts"]), ns(event["ts"]) + ns(event["dur"]))
        for event in events
        if event.get("ph") == "X" and str(event.get("cat")).lower() in DEVICE_WORK
    ]


class _Thousandth(int):
    """A number of microseconds with decimals, as whole nanoseconds."""


def _thousandfold(text: str) -> float | _Thousandth:
    """Read a decimal as exact nanoseconds: a float of microseconds since 1970 would be rounded."""
    whole, _, decimals = text.partition(".")
    if not (decimals.isdigit() and whole.lstrip("-").isdigit()):
        return float(text)
    sign = -1 if whole.startswith("-") else 1
    return _Thousandth(int(whole) * 1000 + sign * int(decimals[:3].ljust(3, "0")))


def ns(time: float | _Thousandth) -> int:
    """Return a time of the trace, in microseconds, as nanoseconds."""
    return int(time) if isinstance(time, _Thousandth) else round(time * 1000)


def nsight(path: Path) -> list[tuple[Any, int, int]]:
    """Return device, start and end of what devices did in an export of Nsight Systems."""
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as file:
        tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
        found = []
        for what in NSIGHT_WORK:
            if f"CUPTI_ACTIVITY_KIND_{what}" in tables:
                table_ = f"CUPTI_ACTIVITY_KIND_{what}"
                has = {column for _, column, *_ in file.execute(f"PRAGMA table_info({table_})")}
                process = "globalPid" if "globalPid" in has else "0"
                rows = file.execute(f'SELECT {process}, "deviceId", "start", "end" FROM {table_}')
                found += [((pid, device), start, end) for pid, device, start, end in rows]
    return found


def ascend(path: Path) -> list[tuple[Any, int, int]]:
    """Return device, start and end of what devices did in the databases of torch_npu or msprof."""
    found = []
    for file in sorted(path.rglob("*profiler_*.db")) if path.is_dir() else [path]:
        with closing(sqlite3.connect(f"file:{file}?immutable=1", uri=True)) as base:
            tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master")}
            rows = base.execute(ASCEND_WORK)
            found += [((file, device), start, end) for device, start, end in rows]
            if "COMMUNICATION_OP" in tables:
                devices = base.execute("SELECT DISTINCT deviceId FROM TASK").fetchall()
                rows = base.execute("SELECT startNs, endNs FROM COMMUNICATION_OP")
                found += [((file, devices[0][0]), start, end) for start, end in rows]
    return found


def primus(path: Path) -> int:
    """Return how many forwards and backwards a folder of Primus's dumps holds."""
    files = sorted(path.glob("pp_rank_*.json")) if path.is_dir() else [path]
    total = 0
    for file in files:
        for one in json.loads(file.read_text("utf-8")).values():
            if isinstance(one, dict):
                total += sum(len(one.get(key, [])) for key in ("fwd_start", "bwd_start"))
    return total


def jobtrace(path: Path) -> int:
    """Return how many operations a job trace holds."""
    import polars as pl  # noqa: PLC0415  a dependency of bubblescope, for this format alone

    return pl.scan_parquet(path).select(pl.len()).collect().item()


INTERVALS = {"kineto": kineto, "nsight": nsight, "ascend": ascend}
COUNT = {"primus": primus, "jobtrace": jobtrace}


def table(origin: Origin, rows: Iterable[list[str]]) -> str:
    """Return the section of one repository, given a row for each of its traces."""
    known = ", ".join(filter(None, (origin.commit and f"`{origin.commit[:12]}`", origin.licence)))
    link = f"[{origin.name}](https://github.com/{origin.name})" if origin.commit else origin.name
    lines = [
        f"### {link}" + (f" at {known}" if known else ""),
        "",
        "| trace | what it holds | read as | what bubblescope tells | exit | checked |",
        "|---|---|---|---|---|---|",
    ]
    for found in rows:
        print(found[0], file=sys.stderr, flush=True)
        cells = (one.replace("|", "\\|").replace("\n", " ") for one in found)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--index", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    if not given.folder.is_dir():
        parser.error(f"{given.folder} is no folder")
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        known = tomllib.loads(given.index.read_text("utf-8")) if given.index else {}
        found = origins(given.folder, known)
        found += unnamed(given.folder, found)
        rows = [pool.map(row, origin.traces) for origin in found]  # all at once
        for origin, told in zip(found, rows, strict=True):
            print(table(origin, told), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
