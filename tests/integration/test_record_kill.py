"""kill -9: whatever moment it comes at, what was flushed is read back, and the loss is said."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from bubblescope import sources

if TYPE_CHECKING:
    from pathlib import Path

THREADS, TASKS = 3, 40
"""Threads of the job, and tasks of each in a step."""

JOB = """
import sys, threading, time
from bubblescope.record import Recorder

threads, tasks, limit = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) or None

def work(recorder, thread, step):
    for i in range(tasks):
        with recorder.task("forward", microbatch=i, chunk=thread, peer=step):
            if i % 16 == thread:
                time.sleep(0.0005)

with Recorder(sys.argv[1], rank=0, max_mb=limit) as recorder:
    # Called once the step is written: all that it says is flushed.
    recorder.on_step(lambda times: print(times.step, flush=True))
    for step in range(1_000_000):
        with recorder.step():
            running = [
                threading.Thread(target=work, args=(recorder, thread, step))
                for thread in range(threads)
            ]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
"""


class Outcome(NamedTuple):
    """What a killed job left.

    Attributes:
        flushed: Steps that it had said to be on disk.
        steps: Steps that can be read back whole.
        kept: Tasks that can be read back.
        notice: Code of the notice on how the file ends.
    """

    flushed: int
    steps: int
    kept: int
    notice: str


def kill_once(folder: Path, after_s: float, max_mb: float = 0) -> Outcome:
    """Run a job that records, kill it that long after its first step, and check what it left."""
    command = [sys.executable, "-c", JOB, str(folder), str(THREADS), str(TASKS), str(max_mb)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        first = job.stdout.readline()
        assert first == "0\n"
        time.sleep(after_s)
        job.send_signal(signal.SIGKILL)
        said = (first + job.stdout.read()).splitlines(keepends=True)
    flushed = [int(line) for line in said if line.endswith("\n")]  # the last may be half a line
    assert flushed == list(range(len(flushed)))
    run = sources.load(folder)
    notices = {notice.code: notice for notice in run.run.warnings}
    [ending] = notices.keys() - {"dropped"}
    assert ending in {"unclosed", "torn-tail"}
    per_step = run.tasks.group_by("step").agg(
        pl.len(),
        pl.struct("chunk", "microbatch").n_unique().alias("distinct"),
        named=(pl.col("peer") == pl.col("step")).all(),
    )
    assert per_step["named"].all()
    assert per_step.filter(pl.col("len") != pl.col("distinct")).is_empty()
    whole = set(per_step.filter(len=THREADS * TASKS)["step"])
    dropped = notices["dropped"].lost if "dropped" in notices else 0
    # What the limit dropped are the oldest tasks, and no more than it says.
    oldest = -(-dropped // (THREADS * TASKS))
    assert set(flushed[oldest:]) <= whole
    assert dropped + len(run) >= len(flushed) * THREADS * TASKS
    assert max_mb or not dropped
    return Outcome(len(flushed), len(whole), len(run), ending)


def test_every_flushed_step_outlives_a_kill(tmp_path):
    chance = random.Random(4711)
    for number in range(15):
        kill_once(tmp_path / str(number), chance.uniform(0, 0.2))


def test_every_flushed_step_outlives_a_kill_with_a_limit(tmp_path):
    chance = random.Random(4712)
    left = [
        kill_once(tmp_path / str(number), chance.uniform(0.2, 0.5), max_mb=0.08)
        for number in range(5)
    ]
    assert any(one.flushed > one.steps for one in left)  # files were put aside


LAST_STEPS = """
import os, signal, sys, time
from bubblescope.record import Recorder
folder, rank, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with Recorder(folder, rank=rank, stages=[0]) as recorder:
    began, step = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        with recorder.step(), recorder.task("forward", microbatch=0):
            time.sleep(0.004)
        step += 1
    print(step, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(folder: Path, seconds: list[float]) -> list[int]:
    """Run ranks that kill themselves after so long each; return how many steps each had made."""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", LAST_STEPS, str(folder), str(rank), str(until)],
            stdout=subprocess.PIPE,
        )
        for rank, until in enumerate(seconds)
    ]
    return [int(job.communicate()[0]) for job in jobs]


def test_how_many_steps_a_kill_may_have_cost_is_said(tmp_path):
    """Tasks are written four times a second, so it is not the last step alone.

    On a busy machine, a kill may come just as they were written, or writing may be late: not to most of
    three ranks, which are killed at moments of their own.
    """
    missing, bounded = [], []
    for rank, made in enumerate(killed(tmp_path, [1.05, 1.13, 1.21])):
        run = sources.load(tmp_path / "attempt-0001" / f"rank{rank:05d}.bubbles")
        (notice,) = run.run.warnings
        most = int(re.search(r"up to (\d+) steps of the usual length", notice.message)[1])
        assert most <= 0.25 / 0.004 + 2
        missing.append(made - len(run.steps))
        bounded.append(missing[-1] <= most)
    assert sorted(missing)[1] > 1
    assert sum(bounded) > 1


def test_that_a_rank_ends_before_others_is_said(tmp_path):
    killed(tmp_path, [3.0, 0.5, 0.05])
    told = [notice.message for notice in sources.load(tmp_path).run.warnings]
    (behind,) = [message for message in told if "before that of rank 0" in message]
    assert behind.startswith("rank00001.bubbles ends ")
    (empty,) = [message for message in told if "holds no tasks" in message]
    assert empty.startswith("rank00002.bubbles holds no tasks, unlike that of rank 0: ")
