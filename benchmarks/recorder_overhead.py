"""What recording a task costs, beside an empty context manager, in one run."""

from __future__ import annotations

import tempfile
import time
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from typing import TYPE_CHECKING

from bubblescope.record import CpuTimer, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TASKS, ROUNDS = 20_000, 15


@contextmanager
def nothing(_kind: str, *, microbatch: int) -> Iterator[None]:
    del microbatch
    yield


def cost(task: Callable[..., AbstractContextManager[None]]) -> float:
    """Return the nanoseconds that one task takes."""
    began = time.perf_counter_ns()
    for i in range(TASKS):
        with task("forward", microbatch=i):
            pass
    return (time.perf_counter_ns() - began) / TASKS


def main() -> None:
    costs: dict[str, list[float]] = {
        "empty context manager": [],
        "recording": [],
        "outside the window": [],
    }
    flushes = []
    with tempfile.TemporaryDirectory() as folder:
        with Recorder(folder, rank=0, stop=ROUNDS, timer=CpuTimer()) as recorder:
            for _ in range(ROUNDS):  # interleaved
                costs["empty context manager"].append(cost(nothing))
                with recorder.step():
                    costs["recording"].append(cost(recorder.task))
                    ended = time.perf_counter_ns()
                flushes.append((time.perf_counter_ns() - ended) / 1e6)
            with recorder.step():
                for _ in range(ROUNDS):
                    costs["outside the window"].append(cost(recorder.task))
    base = median(costs["empty context manager"])
    for name, values in costs.items():
        print(f"{name:24}{median(values):8.0f} ns a task   {median(values) / base:5.2f} x empty")
    print(f"{'step end':24}{median(flushes):8.2f} ms for {TASKS:,} tasks")


if __name__ == "__main__":
    main()
