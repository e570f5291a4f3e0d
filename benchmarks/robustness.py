"""What kills, forks, full disks and deleted folders leave of a recording, and what a flood costs."""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

import polars as pl
from test_record_kill import JOB, TASKS, THREADS, kill_once

from bubblescope import SourceError, sources
from bubblescope.model.kinds import Kind
from bubblescope.record import CpuTimer, Recorder
from bubblescope.record.buffer import identity_of

if TYPE_CHECKING:
    from collections.abc import Sequence

A_STEP = THREADS * TASKS
"""Tasks of a step of the job that is killed, and whose disk or folder fails."""
FLOOD = 4_400_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--times", type=int, default=200, help="Kills, and forks; a quarter as many of the others."
    )
    arguments = parser.parse_args()
    chance = random.Random(1)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        kills(Path(folder, "kills"), arguments.times, chance)
        forks(Path(folder, "forks"), arguments.times)
        full_disks(Path(folder, "full"), arguments.times // 4, chance)
        deletions(Path(folder, "deleted"), arguments.times // 4, chance)
        flood(Path(folder, "flood"))


def kills(folder: Path, times: int, chance: random.Random) -> None:
    """Kill jobs at random moments; `kill_once` checks that all that was flushed is there."""
    left = [kill_once(folder / str(number), chance.uniform(0, 0.5)) for number in range(times)]
    endings = dict(Counter(one.notice for one in left))
    flushed = sum(one.flushed for one in left)
    print(
        f"{times} kills: {flushed:,} steps of {A_STEP} tasks had been flushed, all are there, and "
        f"{sum(one.steps for one in left) - flushed} more; endings {endings}"
    )


def forks(folder: Path, times: int) -> None:
    """Fork a process that records from two threads; the children end in four ways."""
    ways = Counter[int]()
    recorded = [0, 0]
    stop = threading.Event()
    with Recorder(folder, rank=0, timer=CpuTimer()) as recorder, recorder.step():

        def work(thread: int) -> None:
            while not stop.is_set():
                with recorder.task("forward", microbatch=recorded[thread], chunk=thread):
                    recorded[thread] += 1
                time.sleep(0.0002)

        other = threading.Thread(target=work, args=(1,))
        other.start()
        for number in range(times):
            for _ in range(20):
                with recorder.task("forward", microbatch=recorded[0], chunk=0):
                    recorded[0] += 1
            child = os.fork()
            if child == 0:
                _end_child(recorder, number % 4)
            _, status = os.waitpid(child, 0)
            assert status == 0, f"the child of way {number % 4} ended with {status}"
            ways[number % 4] += 1
        stop.set()
        other.join()
    timeline = sources.load(folder)
    assert not timeline.run.warnings, timeline.run.warnings
    _is_whole(timeline.tasks, recorded)
    print(f"{times} forks while two threads record: {sum(recorded):,} tasks, all there once")


def _end_child(recorder: Recorder, way: int) -> None:
    """End a forked process: after tasks, by closing, as an interpreter does, or at once."""
    try:
        if way == 0:
            with recorder.task("forward", microbatch=1 << 30):
                pass
        elif way == 1:
            recorder.close()
        elif way == 2:
            recorder.__exit__(SystemExit, None, None)
    except BaseException:  # noqa: BLE001  the parent is told
        os._exit(1)
    os._exit(0)


def _is_whole(tasks: pl.DataFrame, recorded: Sequence[int]) -> None:
    for thread, count in enumerate(recorded):
        found = tasks.filter(pl.col("chunk") == thread)["microbatch"].sort().to_list()
        assert found == list(range(count)), f"thread {thread}: {len(found)} of {count} tasks"


def full_disks(folder: Path, times: int, chance: random.Random) -> None:
    """Let a job's disk be full at a random size: files may not grow beyond it (RLIMIT_FSIZE)."""
    flushed = kept = 0
    for number in range(times):
        size = chance.randrange(20_000, 400_000)
        to = folder / str(number)
        limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
        said, warned = _ended(f"{limit}\n{_bounded(40)}", to)
        assert warned.count("bubblescope stopped recording") == 1, warned
        assert "File too large" in warned
        assert said[-1] == "done", said  # the job went on to its end
        timeline = sources.load(to)
        whole = _whole_steps(timeline.tasks)
        assert {int(line) for line in said[:-1]} <= whole, f"{said} flushed, {whole} there"
        flushed += len(said) - 1
        kept += len(whole)
    print(
        f"{times} full disks: one warning each, the jobs went on; {flushed:,} steps had been flushed, "
        f"all are there, and {kept - flushed} more"
    )


def deletions(folder: Path, times: int, chance: random.Random) -> None:
    """Delete a job's folder at random moments: what comes afterwards is in a new file."""
    afterwards = 0
    for number in range(times):
        to = folder / str(number)
        command = _job(_bounded(60), to)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as job:
            assert job.stdout is not None
            assert job.stderr is not None
            last = [int(job.stdout.readline()) for _ in range(chance.randrange(1, 20))][-1]
            shutil.rmtree(to, ignore_errors=True)
            said = job.stdout.read().split()
            warned = job.stderr.read()
        assert job.returncode == 0, warned
        assert warned.count("was deleted while bubblescope was recording") == 1, warned
        assert said[-1] == "done"
        # What had been said when it was deleted may lag behind what was in the file by then.
        whole = _whole_steps(sources.load(to).tasks)
        first = min(whole)
        expected = {int(line) for line in said[:-1]} - set(range(first + 1))
        assert expected <= whole
        assert first > last
        afterwards += len(expected)
    print(
        f"{times} deleted folders: one warning each, the jobs went on; of {afterwards:,} steps flushed "
        "to the new files all are there"
    )


def _bounded(steps: int) -> str:
    """Return the job with so many steps, which says when it is done."""
    job = JOB.replace("range(1_000_000)", f"range({steps})")
    assert job != JOB
    return f'{job}\nprint("done", flush=True)\n'


def _job(program: str, folder: Path) -> list[str]:
    return [sys.executable, "-c", program, str(folder), str(THREADS), str(TASKS), "0"]


def _ended(program: str, folder: Path) -> tuple[list[str], str]:
    """Run a job to its end; return what it said, and what was warned of."""
    done = subprocess.run(_job(program, folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def _whole_steps(tasks: pl.DataFrame) -> set[int]:
    return set(tasks.group_by("step").len().filter(len=A_STEP)["step"].to_list())


def flood(folder: Path) -> None:
    """Record as fast as this machine can, from one thread."""
    child = os.fork()  # whose memory is its own
    if child == 0:
        _flood(folder)
        os._exit(0)
    _, status, used = os.wait4(child, 0)
    assert status == 0
    try:
        timeline = sources.load(folder)
    except SourceError as error:
        sys.exit(str(error))
    lost = sum(notice.lost or 0 for notice in timeline.run.warnings if notice.code == "overrun")
    assert lost + len(timeline) == FLOOD
    print(f"most memory of the process: {used.ru_maxrss / 1024:.0f} MB; {lost:,} tasks dropped")


def _flood(folder: Path) -> None:
    place = identity_of(Kind.FORWARD, stage=0, microbatch=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Recorder(folder, rank=0, timer=CpuTimer()) as recorder, recorder.step():
        began = time.perf_counter()
        for _ in range(FLOOD):
            recorder.end_task(place, recorder.begin_task(place))
        took = time.perf_counter() - began
    print(
        f"{FLOOD:,} tasks in {took:.1f} s, {took / FLOOD * 1e9:.0f} ns each; "
        f"{before / 1024:.0f} MB before",
        flush=True,
    )


if __name__ == "__main__":
    main()
