"""How long do commands take to start, and what does a training job load with the recorder?

    python benchmarks/start.py [--runs 15] [--beside OTHER_PYTHON]

Times are whole processes, the least of the runs, taken in turn so that a busy machine is the same for
all; beside them, starting Python and importing NumPy and Polars. With `--beside`, the same of a Python
in which another version is installed, and the ratios.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

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
}
_LOADED = """
import json, resource, sys
import {module}
print(json.dumps([len(sys.modules), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--beside", metavar="PYTHON")
    options = parser.parse_args()
    pythons = [sys.executable, *filter(None, [options.beside])]
    least = {(python, case): float("inf") for python in pythons for case in _CASES}
    for _ in range(options.runs):
        for (python, case), shortest in least.items():
            begin = time.perf_counter()
            subprocess.run([python, *_CASES[case]], capture_output=True, check=True)
            least[python, case] = min(shortest, time.perf_counter() - begin)
    print(f"{'least of ' + str(options.runs):24}" + "    seconds" * len(pythons) + "  ratio")
    for case in _CASES:
        times = [least[python, case] for python in pythons]
        ratio = f"{times[0] / times[1]:7.2f}" if len(times) > 1 else ""
        print(f"{case:24}" + "".join(f"{one:11.3f}" for one in times) + ratio)
    print(f"\n{'import':24}" + "    modules     MB" * len(pythons))
    for module in ("numpy", "bubblescope.record"):
        said = [_loaded(python, module) for python in pythons]
        print(f"{module:24}" + "".join(f"{count:11}{size:7.1f}" for count, size in said))


def _loaded(python: str, module: str) -> tuple[int, float]:
    """Return how many modules importing one loads, and the process's memory in MB."""
    program = _LOADED.format(module=module)
    done = subprocess.run([python, "-c", program], capture_output=True, check=True, text=True)
    count, size = json.loads(done.stdout)
    return count, size


if __name__ == "__main__":
    main()
