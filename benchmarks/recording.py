"""What recording costs a step, what a kill leaves of it, and how long watching 1,024 ranks takes."""

from __future__ import annotations

import argparse
import io
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from test_record_kill import TASKS as KILLED_TASKS
from test_record_kill import THREADS, kill_once
from test_watch import header, tasks

from bubblescope.analysis.live import RunningJob
from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of
from bubblescope.record.session import Session
from bubblescope.record.settings import Settings
from bubblescope.recording.file import Sink
from bubblescope.recording.follow import Tail
from bubblescope.render.text.watch import picture

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from bubblescope.recording.rows import Rows

FORWARD = Kind.FORWARD  # members of an enumeration are slow to look up
BLOCK, TASKS_A_STEP, STEP_S = 4, 64, 0.1
WRITTEN_S = 0.3
"""After which what was recorded has been written."""
RANKS, STEPS, SECOND = 1024, 30, 1_000_000_000


def place(stage: Work, microbatch: int) -> bytes:
    """Say where a call belongs, as the integrations do."""
    return identity_of(FORWARD, stage=stage.stage_index, microbatch=microbatch)


def interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
    """Return the median and its 95 % interval, by the bootstrap."""
    drawn = np.random.default_rng(1).choice(values, (10_000, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(np.median(values)), float(low), float(high)


class Work:
    """Tasks of matrix products, so many that a step takes about `STEP_S`."""

    stage_index = 0

    def __init__(self) -> None:
        self._matrix = np.random.default_rng(0).random((192, 192))
        self._repeats = 1
        took = []
        for i in range(1000):
            began = time.perf_counter()
            self.forward(i)
            took.append(time.perf_counter() - began)
        self._repeats = max(1, round(STEP_S / TASKS_A_STEP / min(took)))

    def forward(self, _: int) -> None:
        """Do it."""
        for _i in range(self._repeats):
            self._matrix.dot(self._matrix)


CLOCKS = {
    "wall time": time.perf_counter_ns,
    "CPU time of the process, its writer with it": time.process_time_ns,
    "CPU time of the job's own thread": time.thread_time_ns,
}


def steps_of(work: Work, forward: Callable[..., Any], session: Session | None) -> list[float]:
    """Return the mean times of a block's steps, not all of which are written in; the first settles."""
    found = []
    for _ in range(BLOCK + 1):
        began = [clock() for clock in CLOCKS.values()]
        if session is not None:
            session.begin_step()
        for i in range(TASKS_A_STEP):
            forward(work, i)
        found.append([clock() - at for clock, at in zip(CLOCKS.values(), began, strict=True)])
    if session is not None:
        session.begin_step()
        time.sleep(WRITTEN_S)  # what is still to be written is not the next block's
    return [mean(values) for values in zip(*found[1:], strict=True)]


def cost_of_a_step(blocks: int) -> None:
    """Time blocks of steps with and without recording in turns, in an order drawn for each pair."""
    work = Work()
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Settings(out=folder, timer="cpu"))
        timed = session.timed(Work.forward, place)
        chance = random.Random(1)
        took: dict[bool, list[list[float]]] = {False: [], True: []}
        for _ in range(blocks):
            for recorded in chance.sample([False, True], 2):
                took[recorded].append(
                    steps_of(work, timed, session)
                    if recorded
                    else steps_of(work, Work.forward, None)
                )
        session.close()
    without, with_ = (np.array(took[recorded]) for recorded in (False, True))
    print(
        f"step of {np.median(without[:, 0]) / 1e6:.0f} ms with {TASKS_A_STEP} tasks, "
        f"{blocks} pairs of {BLOCK} steps:"
    )
    for clock, change in zip(CLOCKS, (100 * (with_ / without - 1)).T, strict=True):
        middle, low, high = interval(change)
        print(f"  {clock}: median change {middle:+.3f} % (95 %: {low:+.3f} to {high:+.3f} %)")


def kills(count: int) -> None:
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        left = [
            kill_once(Path(folder, str(number)), chance.uniform(0, 0.5)) for number in range(count)
        ]
    endings = {name: sum(one.notice == name for one in left) for name in ("unclosed", "torn-tail")}
    flushed, steps = (sum(values) for values in zip(*[one[:2] for one in left], strict=True))
    print(
        f"{count} kills, {THREADS} threads, {THREADS * KILLED_TASKS} tasks a step: {flushed:,} steps "
        f"flushed, 0 lost, {steps - flushed} more found whole; endings {endings}"
    )


def watching() -> None:
    def one(number: int) -> Rows:
        starts = range(number * SECOND, (number + 1) * SECOND, SECOND // 64)
        return tasks(*((number, at, at + SECOND // 80) for at in starts))

    with tempfile.TemporaryDirectory() as folder:
        files = [
            Sink(Path(folder, f"rank{rank:05d}.bubbles"), header(rank)) for rank in range(RANKS)
        ]
        tail, progress = Tail(Path(folder)), RunningJob()
        console = Console(file=io.StringIO(), width=120)
        took = []
        for number in range(STEPS):
            for file in files:
                file.write(one(number))
            began = time.perf_counter()
            progress.update(tail.news(), tail)
            console.print(picture(Path(folder), progress.figures()))
            took.append(time.perf_counter() - began)
        began = time.perf_counter()
        late, other = Tail(Path(folder)), RunningJob()
        other.update(late.news(), late)
        first = time.perf_counter() - began
        for file in files:
            file.close(complete=True)
    print(
        f"watch, {RANKS} ranks with 64 new tasks each: {median(took):.3f} s a picture "
        f"(most {max(took):.3f} s); begun after {STEPS} steps {first:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--blocks", type=int, default=60)
    arguments = parser.parse_args()
    cost_of_a_step(arguments.blocks)
    watching()
    kills(arguments.kills)


if __name__ == "__main__":
    main()
