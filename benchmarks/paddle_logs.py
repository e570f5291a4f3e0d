"""Time of reading Paddle's worker logs, beside Paddle's own script on the same logs."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from processes import Figures, measure, print_table

BASE_MS = 1_697_793_307_000
MICROBATCHES = 32
STUB = {
    "paddle/__init__.py": (
        "class device:\n    class cuda:\n        device_count = staticmethod(lambda: 4)\n"
    ),
    "paddle/base/__init__.py": "",
    "paddle/base/log_helper.py": (
        "import logging\n"
        "def get_logger(name, level, fmt=None):\n    return logging.getLogger(name)\n"
    ),
}
"""What the script imports of PaddlePaddle (an 800 MB wheel): a device count and a logger."""


def make(folder: Path, ranks: int, jobs: int) -> int:
    """Write logs of about that many jobs each; return their size in bytes."""
    for rank in range(ranks):
        lines = [
            "[2023-10-20] [    INFO] - Schedule Profiler start at step 2 and end at step 99999\n"
        ]
        clock = float(BASE_MS + rank)
        while len(lines) <= jobs:
            for kind in ("forward", "backward"):
                for microbatch in range(MICROBATCHES):
                    end = clock + 20.25
                    lines.append(
                        f"I1020 09:15:07.265326 {22317 + rank} standalone_executor.cc:217] Profiler "
                        f"Info: Job ({microbatch}), type = {kind}, micro_batch_id = {microbatch}, "
                        f"job_start_time = {clock:.6f}, job_end_time = {end:.6f}\n"
                    )
                    clock = end
        (folder / f"workerlog.{rank}").write_text("".join(lines))
    return sum(path.stat().st_size for path in folder.iterdir())


def peers(script: Path, folder: Path) -> dict[str, Path]:
    """Return Paddle's script as it is, and with its quadratic pattern anchored."""
    for name, text in STUB.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    original, fixed = folder / "original.py", folder / "fixed.py"
    text = script.read_text()
    original.write_text(text)
    anchored, count = re.subn(r"\.\*\?(Schedule Profiler start)", r"\1", text)
    if not count:
        raise SystemExit(f"{script} has no such pattern: another version?")
    fixed.write_text(anchored.replace("re.match(pattern", "re.search(pattern"))
    return {"Paddle's script": original, "Paddle's, one token fixed": fixed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs per rank")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", type=Path, help="profiler_helper_static.py of PaddlePaddle 3.3.1")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        logs = Path(scratch) / "logs"
        logs.mkdir()
        size = make(logs, options.ranks, options.jobs)
        python, where = sys.executable, ["--log_dir", str(logs)]
        compared = {
            "bubblescope report": [python, "-m", "bubblescope", "report", "-q", str(logs)],
            "bubblescope paddle": [python, "-m", "bubblescope", "paddle", "-q", *where],
        }
        if options.peer:
            devices = ["--devices", ",".join(map(str, range(options.ranks)))]
            for name, script in peers(options.peer, Path(scratch) / "peer").items():
                compared[name] = [python, str(script), *devices, *where]
        env = {"PYTHONPATH": str(Path(scratch) / "peer")}
        figures: dict[str, list[Figures]] = {name: [] for name in compared}
        for index in range(options.runs):
            for name, command in compared.items():
                if index == 0 or "Paddle's" not in name:  # minutes each: once is enough
                    figures[name].append(measure(command, env if "Paddle's" in name else {}))
    print(f"{options.ranks} x {options.jobs:,} job lines, {size / 1e6:.0f} MB")
    print_table(figures)


if __name__ == "__main__":
    main()
