"""What benchmarks share: running whole processes and printing what they took."""

from __future__ import annotations

import os
import subprocess
import time
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Figures", "measure", "of_version", "print_ratio", "print_table"]


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


def of_version(command: list[str], source: Path) -> list[str]:
    """Return a command that runs with the package of another checkout's `src` instead of this one."""
    return ["env", f"PYTHONPATH={source.resolve()}", *command]


def print_ratio(name: str, found: list[Figures], beside: list[Figures]) -> None:
    """Print what runs took beside those of another version: least times, and least peaks."""
    fields = {"wall": "wall_s", "CPU": "cpu_s", "peak": "peak_mib"}
    ratios = (
        min(getattr(run, field) for run in found) / min(getattr(run, field) for run in beside)
        for field in fields.values()
    )
    said = ", ".join(f"{what} {ratio:.2f}" for what, ratio in zip(fields, ratios, strict=True))
    print(f"{name} / beside, least of each: {said}")
