"""How long do commands take to start, and what does a training job load with the recorder?

    python benchmarks/start.py [--runs 15] [--beside OTHER]

Times are whole processes, the least of the runs, taken in turn so that a busy machine is the same for
all; beside them, starting Python and importing NumPy and Polars. OTHER is a Python in which another
version is installed, or a folder with another version's packages, such as the `src` of a worktree: with
it, the same of that, and the ratios. Modules are compiled before, as installers leave them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

_RUN = Path(__file__).parents[1] / "examples/demo/1f1b"
_CASES = {
    "python": ["-c", "pass"],
    "import numpy": ["-c", "import numpy"],
    "import numpy, polars": ["-c", "import numpy, polars"],
    "--version": ["-m", "bubblescope", "--version"],
    "--help": ["-m", "bubblescope", "--help"],
    "schedules": ["-m", "bubblescope", "schedules"],
    "report": ["-m", "bubblescope", "report", str(_RUN)],
    "why": ["-m", "bubblescope", "why", str(_RUN)],
    "whatif": ["-m", "bubblescope", "whatif", str(_RUN)],
    "stragglers": ["-m", "bubblescope", "stragglers", str(_RUN)],
    "view": ["-m", "bubblescope", "view", "--no-open", "-o", "{page}", str(_RUN)],
}
_LOADED = """
import json, resource, sys
import {module}
print(json.dumps([len(sys.modules), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


class _Version(NamedTuple):
    """A version of the package: the Python to run, and where else it looks for packages."""

    python: str
    path: str | None

    @classmethod
    def of(cls, place: str) -> _Version:
        return cls(sys.executable, place) if Path(place).is_dir() else cls(place, None)

    def run(self, *arguments: str) -> str:
        """Run Python and return what it prints."""
        # The benchmarks of a package that is being worked on often run without compiled modules.
        settings = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        if self.path is not None:
            settings["PYTHONPATH"] = self.path
        done = subprocess.run(
            [self.python, *arguments], capture_output=True, check=True, text=True, env=settings
        )
        return done.stdout


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--beside", metavar="OTHER")
    options = parser.parse_args()
    versions = [_Version(sys.executable, None)]
    if options.beside:
        versions.append(_Version.of(options.beside))
    cases = [(version, case) for case in _CASES for version in versions]
    wall, cpu = (dict.fromkeys(cases, float("inf")) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        page = str(Path(folder) / "page.html")
        for turn in range(options.runs + 1):
            for version, case in cases:
                begin, before = time.perf_counter(), _cpu_s()
                version.run(*(part.format(page=page) for part in _CASES[case]))
                if turn:  # the first one compiles modules
                    key = version, case
                    wall[key] = min(wall[key], time.perf_counter() - begin)
                    cpu[key] = min(cpu[key], _cpu_s() - before)
    head = f"{'least of ' + str(options.runs):22}" + "   wall s    CPU s" * len(versions)
    print(head + ("    wall    CPU: ratios" if len(versions) > 1 else ""))
    for case in _CASES:
        times = [(wall[version, case], cpu[version, case]) for version in versions]
        print(f"{case:22}" + "".join(f"{one:9.3f}{two:9.3f}" for one, two in times), end="")
        print(
            "".join(f"{one / two:7.2f}" for one, two in zip(*times, strict=True))
            if len(versions) > 1
            else ""
        )
    print(f"\n{'import':22}" + "  modules       MB" * len(versions))
    for module in ("numpy", "bubblescope.record"):
        said = [json.loads(one.run("-c", _LOADED.format(module=module))) for one in versions]
        print(f"{module:22}" + "".join(f"{count:9}{size:9.1f}" for count, size in said))


if __name__ == "__main__":
    main()
