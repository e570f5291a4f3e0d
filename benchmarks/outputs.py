"""Every output of every command, over many traces: to show that a change leaves them as they were.

    python benchmarks/outputs.py write BEFORE TRACE...     (with the version before)
    python benchmarks/outputs.py write AFTER TRACE...      (with the version after)
    python benchmarks/outputs.py compare BEFORE AFTER

Each TRACE is read as a whole; of a folder, each file in it also by itself. What a command prints, its
exit code, and the files that it writes become files under a folder of the trace's name.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

_QUESTIONS = {
    "info": ["info"],
    "info.json": ["info", "--json"],
    "names": ["names", "--all"],
    "report": ["report"],
    "report-all": ["report", "--all"],
    "report.json": ["report", "--json"],
    "why": ["why"],
    "why-zh": ["why", "--lang", "zh"],
    "why.json": ["why", "--json", "--all"],
    "whatif": ["whatif"],
    "whatif.json": ["whatif", "--json"],
    "whatif-half.json": ["whatif", "--json", "--stage", "0=0.5", "--schedule", "zb-h1"],
    "stragglers": ["stragglers"],
    "stragglers.json": ["stragglers", "--json"],
    "compare": ["compare", "{trace}"],
    "compare.json": ["compare", "{trace}", "--json", "--fail-if", "bubble > +2%"],
}
_FILES = {
    "view.html": ["view", "--no-open"],
    "view-whatif.html": ["view", "--no-open", "--rank", "0=2"],
    **{
        f"export.{to}": ["export", "--to", to]
        for to in ("perfetto", "chrome", "html", "svg", "png", "parquet", "csv", "json")
    },
    "export-paper.svg": ["export", "--to", "svg", "--look", "paper", "--width", "column"],
}
_ALONE = {
    "help": ["--help"],
    "version": ["--version"],
    "formats": ["formats"],
    "schedules": ["schedules"],
    "schedules.json": ["schedules", "--json"],
    **{
        f"simulate-{name}": f"simulate --schedule {name} --stages 4 --microbatches 12 --comm 1ms "
        f"--steps 2".split()
        for name in ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe", "chimera")
    },
    "simulate.json": "simulate --schedule zb-h1 --stages 4 --microbatches 8 --json".split(),
    "simulate-compare": "simulate --compare 1f1b,zb-h1,zb-v --stages 4 --microbatches 8".split(),
    "simulate-compare.json": (
        "simulate --compare 1f1b,zb-h1 --stages 4 --microbatches 8 --json".split()
    ),
    **{
        f"help-{name}": [name, "--help"]
        for name in (
            "ascend compare demo export formats info names paddle record report schedules serve "
            "simulate stragglers view watch whatif why"
        ).split()
    },
}


def _run(arguments: list[str]) -> str:
    from click.testing import CliRunner  # noqa: PLC0415

    from bubblescope.cli import cli, main  # noqa: PLC0415  the version that is installed

    del main
    found = CliRunner().invoke(cli, arguments, terminal_width=100)
    failed = ""
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        failed = f"{type(found.exception).__name__}: {found.exception}\n"
    return f"{found.stdout}\n--- exit {found.exit_code}\n{failed}{found.stderr}"


def _of_trace(trace: Path, folder: Path) -> None:
    """Write what every command says of one trace."""
    os.environ["COLUMNS"] = "120"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (command, *options) in _QUESTIONS.items():
        filled = [option.format(trace=trace) for option in options]
        (folder / name).write_text(_run([command, str(trace), *filled]), "utf-8", "replace")
    for name, (command, *options) in _FILES.items():
        target = folder / name
        said = _run([command, str(trace), "-q", *options, "-o", str(target)])
        said = said.replace(str(folder), "FOLDER")
        (folder / f"{name}.said").write_text(re.sub(r"\([\d.]+ MB\)", "", said), "utf-8", "replace")


def _of_vendors(trace: Path, folder: Path) -> None:
    """Write what takes the place of the vendors' own tools."""
    folder.mkdir(parents=True, exist_ok=True)
    logs = folder / "logs"
    if list(trace.glob("workerlog.*")):
        shutil.copytree(trace, logs)
        (folder / "paddle").write_text(_run(["paddle", "--log_dir", str(logs)]), "utf-8")
    if list(trace.rglob("*_ascend_pt")):
        for detailed in ([], ["--detailed"]):
            copy = folder / f"chart{len(detailed)}"
            said = _run(["ascend", "pp-chart", "-d", str(trace), "-o", str(copy), *detailed])
            (folder / f"chart{len(detailed)}.said").write_text(said.replace(str(folder), "FOLDER"))


def _units(traces: list[str]) -> list[Path]:
    """Return what is read: each trace, and of a folder each file in it."""
    found = []
    for trace in map(Path, traces):
        found.append(trace)
        if trace.is_dir():
            files = sorted(path for path in trace.iterdir() if path.is_file())
            found += [path for path in files if path.suffix not in (".md", ".csv", ".py")]
    return found


def write(folder: Path, traces: list[str]) -> None:
    """Write everything under a folder."""
    folder.mkdir(parents=True)
    folder = folder.resolve()
    os.environ["COLUMNS"] = "120"
    for name, arguments in _ALONE.items():
        before = Path.cwd()
        (folder / "alone").mkdir(exist_ok=True)
        os.chdir(folder / "alone")
        (folder / "alone" / name).write_text(_run(arguments), "utf-8")
        os.chdir(before)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        jobs = []
        for unit in _units(traces):
            name = str(unit).strip("/.").replace("/", "_")
            jobs.append((unit, pool.submit(_of_trace, unit, folder / name)))
            if unit.is_dir():
                jobs.append((unit, pool.submit(_of_vendors, unit, folder / name / "vendors")))
        for unit, job in jobs:
            job.result()
            print(unit, flush=True)


def compare(before: Path, after: Path) -> int:
    """Print what differs; return how many files do."""
    names = {
        str(path.relative_to(root))
        for root in (before, after)
        for path in root.rglob("*")
        if path.is_file()
    }
    different = 0
    for name in sorted(names):
        one, other = before / name, after / name
        if not (one.exists() and other.exists()):
            print("only in", one if one.exists() else other)
            different += 1
            continue
        data = one.read_bytes(), other.read_bytes()
        if data[0] == data[1]:
            continue
        different += 1
        print("differs", name, *(hashlib.sha256(text).hexdigest()[:8] for text in data))
        lines = [text.decode("utf-8", "replace").splitlines() for text in data]
        for line in list(difflib.unified_diff(*lines, lineterm="", n=0))[2:12]:
            print("   ", line[:200])
    print(f"{len(names)} files, {different} of them different")
    return different


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), sys.argv[3:])
    else:
        sys.exit(compare(Path(sys.argv[2]), Path(sys.argv[3])) > 0)
