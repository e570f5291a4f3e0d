"""What benchmarks share: running whole processes and printing what they took."""

from __future__ import annotations

import os
import subprocess
import time
from statistics import median
from typing import NamedTuple

__all__ = ["Figures", "measure", "print_table"]


class Figures(NamedTuple):
    """Cost of one process."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def measure(command: list[str], env: dict[str, str] | None = None) -> Figures:
    """Run a command to its end; the peak is that of the largest of its processes."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(env or {})},
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed with {process.returncode}")
    return Figures(
        time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    )


def print_table(figures: dict[str, list[Figures]]) -> None:
    """Print a line for each command: number of runs, median times, largest peak."""
    print(f"{'':28}{'runs':>5}{'wall min':>10}{'median':>10}{'CPU':>10}{'peak':>12}")
    for name, found in figures.items():
        walls = [run.wall_s for run in found]
        print(
            f"{name:28}{len(found):5}{min(walls):9.2f}s{median(walls):9.2f}s"
            f"{median(run.cpu_s for run in found):9.2f}s"
            f"{max(run.peak_mib for run in found):8.0f} MiB"
        )
