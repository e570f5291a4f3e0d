"""Time of `bubblescope stragglers`, beside StragglerAnalysis on the same traces.

The peer takes three programs for what is one run here: `wia.py` for the slowdowns, then
`compute_ms.py` and `compute_mw.py`. It needs pandas older than 2.3, as newer ones refuse its writes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from processes import Figures, measure, print_table

PHASES = """
import sys, time
began = time.perf_counter()
said = []
def phase(name):
    global began
    now = time.perf_counter()
    said.append(f"{name} {1e3 * (now - began):.0f}")
    began = now
import numpy, polars
phase("import NumPy and Polars")
import bubblescope.cli
phase("import the command line")
timeline = bubblescope.load(sys.argv[1])
phase("read")
from bubblescope.analysis.stragglers import stragglers
found = stragglers(timeline)
phase("analyse")
timeline = bubblescope.load(sys.argv[1])
phase("read again")
found = stragglers(timeline)
phase("analyse again")
print("ms inside one process:", ", ".join(said))
"""

PEER_PHASES = """
import runpy, sys, tempfile, time
from pathlib import Path
checkout, trace = map(Path, sys.argv[1:])
name = trace.stem.removeprefix("trace-")
sys.path[:0] = [str(checkout), str(checkout / "analyzer")]
import pandas
import analyzer.simulator, analyzer.analysis_util, analyzer.explain_slowdown
said = []
with tempfile.TemporaryDirectory() as out:
    result = ["--trial", name, "--analysis-result", f"{out}/{name}.json"]
    given = ["--metadata", str(trace.with_name(f"meta-{name}.yaml")), "--trace", str(trace)]
    for program, words in (("wia", given), ("compute_ms", result), ("compute_mw", result)):
        sys.argv = [program, *words, "--dump-dir", out, "--root", out]
        began = time.perf_counter()
        runpy.run_path(str(checkout / "analyzer" / f"{program}.py"), run_name="__main__")
        said.append(f"{program} {1e3 * (time.perf_counter() - began):.0f}")
print("ms of the peer inside one process, its libraries imported:", ", ".join(said))
"""


def peer(python: Path, checkout: Path, trace: Path, out: Path) -> list[Figures]:
    """Run the three programs of the peer on a trace and its metadata beside it."""
    name = trace.stem.removeprefix("trace-")
    programs = {
        "wia": ["--metadata", trace.with_name(f"meta-{name}.yaml"), "--trace", trace],
        "compute_ms": ["--trial", name, "--analysis-result", out / f"{name}.json"],
        "compute_mw": ["--trial", name, "--analysis-result", out / f"{name}.json"],
    }
    return [
        measure(
            [str(part) for part in (python, checkout / "analyzer" / f"{program}.py", *words)]
            + ["--dump-dir", str(out), "--root", str(out)],
            env={"PYTHONPATH": str(checkout)},
        )
        for program, words in programs.items()
    ]


def _said(command: list[str]) -> str:
    """Return the last line that a program prints."""
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, metavar="trace-NAME.parquet")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", type=Path, help="Python that has the peer's requirements")
    parser.add_argument("--checkout", type=Path, help="folder of StragglerAnalysis")
    options = parser.parse_args()
    if (options.peer is None) != (options.checkout is None):
        parser.error("give both --peer and --checkout, or neither")
    imports = [sys.executable, "-c", "import numpy, polars, rich.table, click"]
    for trace in options.traces:
        figures: dict[str, list[Figures]] = {}
        for _ in range(options.runs):
            ours = [sys.executable, "-m", "bubblescope", "stragglers", "-q", str(trace)]
            figures.setdefault("bubblescope stragglers", []).append(measure(ours))
            figures.setdefault("imports of libraries alone", []).append(measure(imports))
            if options.peer:
                with tempfile.TemporaryDirectory() as folder:
                    runs = peer(options.peer, options.checkout, trace.resolve(), Path(folder))
                figures.setdefault("peer: wia", []).append(runs[0])
                figures.setdefault("peer: wia, M_S, M_W", []).append(
                    Figures(
                        sum(run.wall_s for run in runs),
                        sum(run.cpu_s for run in runs),
                        max(run.peak_mib for run in runs),
                    )
                )
        print(f"\n{trace.name}")
        print_table(figures)
        inside = [sys.executable, "-c", PHASES, str(trace)]
        print(_said(inside))
        if options.peer:
            script = [str(options.peer), "-c", PEER_PHASES]
            print(_said([*script, str(options.checkout.resolve()), str(trace.resolve())]))
    if not options.peer:
        print("\nonly bubblescope was run: give --peer and --checkout to run the peer beside it")


if __name__ == "__main__":
    main()
