"""However a job or its disk ends: what was written is read back, the loss is said, the job goes on."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import count
from typing import NamedTuple

import pytest

from bubblescope import SourceError, sources
from bubblescope.model.kinds import Kind
from bubblescope.record import CpuTimer, Recorder, session
from bubblescope.record.buffer import identity_of
from bubblescope.record.settings import Settings
from bubblescope.recording import file as sink
from full import ALL_CASES, FULL
from standing_disk import MOST, disk, step, written

__all__ = ["disk"]

MORE = 10 if ALL_CASES else 4 if FULL else 1
"""How many times as often things are tried that are left to chance."""
TASKS = 40
"""Tasks of each step of the job."""

JOB = """
import signal, sys
from bubblescope.record import Recorder

folder, steps, limit = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]) or None
if "handled" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
done = 0
try:
    with Recorder(folder, rank=0, max_mb=limit) as recorder:
        # Called once the step is written: all that it says is flushed.
        recorder.on_step(lambda times: print(times.step, flush=True))
        for step in range(steps):
            with recorder.step():
                for i in range(40):
                    with recorder.task("forward", microbatch=i, peer=step):
                        pass
                    done = step * 40 + i + 1
finally:
    print("tasks", done, flush=True)
"""


class Ended(NamedTuple):
    """How a job ended.

    Attributes:
        status: Its exit status; less than 0 for the signal that killed it.
        flushed: Steps that it had said to be on disk.
        tasks: Tasks that it had run when it left its loop; None if it did not come so far.
        warned: What it wrote to its standard error.
    """

    status: int
    flushed: list[int]
    tasks: int | None
    warned: str


def command(folder, steps=1_000_000, limit=0.0, *more):
    return [sys.executable, "-c", JOB, str(folder), str(steps), str(limit), *more]


def ended(job, said, warned):
    # What was being printed when a signal came stands in front of the rest, or has no end.
    last = re.search(r"tasks (\d+)\n", said)
    flushed = re.findall(r"^(\d+)\n", said, re.MULTILINE)
    return Ended(job.returncode, list(map(int, flushed)), int(last[1]) if last else None, warned)


def signalled(number, folder, after_s, *more):
    """Run the job, and send it a signal so long after its first step."""
    with subprocess.Popen(
        command(folder, 1_000_000, 0.0, *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        first = job.stdout.readline()
        time.sleep(after_s)
        job.send_signal(number)
        said, warned = job.communicate(timeout=60)
    return ended(job, first + said, warned)


def check(folder, job):
    """Check that all that was flushed is there, and nothing twice or in part but at the end.

    Returns:
        How many tasks are there, and the codes of what is said of them.
    """
    run = sources.load(folder)
    found = run.tasks.sort("start_ns").select("peer", "microbatch").rows()
    assert found == [divmod(number, TASKS) for number in range(len(found))]
    flushed = TASKS * len(job.flushed)
    assert len(found) >= (flushed if job.tasks is None else min(flushed, job.tasks))
    return len(found), {notice.code for notice in run.run.warnings}


def test_a_job_that_is_terminated_keeps_what_was_flushed(tmp_path):
    chance = random.Random(15)
    for number in range(4 * MORE):
        folder = tmp_path / str(number)
        job = signalled(signal.SIGTERM, folder, chance.uniform(0, 0.3))
        assert job.status == -signal.SIGTERM  # the recorder is in nobody's way
        assert job.warned == ""
        _, codes = check(folder, job)
        assert len(codes & {"unclosed", "torn-tail"}) == 1


def test_a_job_that_leaves_when_it_is_terminated_loses_nothing(tmp_path):
    job = signalled(signal.SIGTERM, tmp_path, 0.1, "handled")
    assert (job.status, job.warned) == (143, "")
    read, codes = check(tmp_path, job)
    # The signal may come between a task's end and its being counted.
    assert (read - job.tasks in (0, 1), codes) == (True, set())


def test_a_job_that_is_interrupted_loses_nothing(tmp_path):
    """Wherever it was: the recorder's own code may be where Python raises."""
    chance = random.Random(2)
    for number in range(6 * MORE):
        folder = tmp_path / str(number)
        job = signalled(signal.SIGINT, folder, chance.uniform(0, 0.1))
        assert job.status == -signal.SIGINT
        assert job.warned.count("Error") == 0
        assert job.warned.strip().endswith("KeyboardInterrupt")
        kept, codes = check(folder, job)
        assert codes == set()
        # The task that was interrupted may have been recorded, or not, before the job counted it.
        assert abs(kept - job.tasks) <= 1


COLLECTING = """
import gc, os, signal, sys, threading
from bubblescope.record import session
from bubblescope.record.settings import Settings

def leave(number, frame):
    raise SystemExit(7)

signal.signal(signal.SIGTERM, leave)
gc.disable()
job = session.begin(Settings(out=sys.argv[1], timer="cpu"))
job.begin_step()
kept = [[number] for number in range(2_000_000)]  # so that to look at all of them takes a while
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
for _ in range(100):  # the signal comes in the midst of one, almost surely
    gc.collect()
print("nobody left")
"""
"""A job whose handler of a signal raises, while garbage is collected."""


def test_a_signal_while_garbage_is_collected_is_the_jobs(tmp_path):
    """What a handler raises in a callback of the collector's is printed, and the job goes on."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECTING, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stdout + done.stderr
    assert "ignored" not in done.stderr
    kinds = sources.load(tmp_path).tasks["kind"].cast(str).to_list()
    assert kinds[0] == "gc"


HANDING_OVER = {
    "_flush_full",
    "_hand_over",
    "write",
    "remove_from",
    "begins",
    "heed_thread",
    "__init__",
    "__len__",
}


class InterruptedAt:
    """Raises KeyboardInterrupt at one of the points, by their number, at which Python could do so."""

    def __init__(self, number):
        self.left = number

    def __call__(self, frame, event, _arg):
        ours = frame.f_code.co_filename.endswith(("recorder.py", "writer.py", "buffer.py"))
        if not (ours and frame.f_code.co_name in HANDING_OVER):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        return self


def test_tasks_that_are_handed_over_are_written_once_wherever_that_is_interrupted(tmp_path):
    for number in count():
        interrupting = InterruptedAt(number)
        with Recorder(tmp_path / str(number), rank=0) as recorder, recorder.step():
            for microbatch in range(3):
                with recorder.task("forward", microbatch=microbatch):
                    pass
            before = sys.gettrace()
            with suppress(KeyboardInterrupt):
                sys.settrace(interrupting)
                try:
                    recorder._flush_full()
                finally:
                    sys.settrace(before)
        run = sources.load(tmp_path / str(number))
        assert run.tasks["microbatch"].to_list() == [0, 1, 2], number
        assert not run.run.warnings
        if interrupting.left >= 0:
            break
    assert number > 50


def test_what_a_handler_of_the_job_raises_while_the_recorder_runs_is_the_jobs(tmp_path):
    """As where a time is up, or its launcher asks for the end: it is not lost and ends no recording."""

    class TimeUpError(Exception):
        pass

    def handler(*_):
        raise TimeUpError

    def place():
        os.kill(os.getpid(), signal.SIGUSR1)
        return identity_of(Kind.FORWARD)

    job, before = session.begin(Settings(out=str(tmp_path))), signal.signal(signal.SIGUSR1, handler)
    try:
        job.begin_step()
        with pytest.raises(TimeUpError):
            job.timed(int, place)()
        job.begin_step()
        job.timed(int, identity_of(Kind.FORWARD))()
    finally:
        signal.signal(signal.SIGUSR1, before)
        job.close()
    run = sources.load(tmp_path)
    assert (run.tasks["step"].to_list(), run.run.warnings) == ([1], ())


CLOSES_ALL = """
import os, sys, time
from pathlib import Path
from bubblescope.record import Recorder

folder = Path(sys.argv[1])
with Recorder(folder / "out", rank=0) as recorder:
    def steps():
        for _ in range(3):
            with recorder.step(), recorder.task("forward", microbatch=0):
                pass
    steps()
    size = recorder.path.stat().st_size
    while recorder.path.stat().st_size == size:
        time.sleep(0.01)
    os.closerange(3, 256)
    own = [open(folder / str(number), "w") for number in range(16)]  # which get these numbers
    steps()
for number, file in enumerate(own):
    file.write(f"mine {number}")
    file.close()
"""


def test_a_job_that_closes_all_files_has_its_own_and_loses_nothing(tmp_path):
    """As it does that makes a daemon of itself: what it opens then has the recording's number."""
    job = subprocess.run(
        [sys.executable, "-c", CLOSES_ALL, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (job.returncode, job.stderr) == (0, "")
    assert [(tmp_path / str(number)).read_text() for number in range(16)] == [
        f"mine {number}" for number in range(16)
    ]
    run = sources.load(tmp_path / "out")
    assert (run.steps, run.run.warnings, run.run.attempts) == ([0, 1, 2, 3, 4, 5], (), ())


def limited(folder, size):
    """Run the job with files that cannot grow beyond a size; it has 200 steps, some 800 kB."""

    def set_limit():
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    job = subprocess.run(
        command(folder, 200), capture_output=True, text=True, check=False, preexec_fn=set_limit
    )
    return ended(job, job.stdout, job.stderr)


def test_a_full_disk_is_one_warning_and_what_was_flushed_is_there(tmp_path):
    chance = random.Random(28)
    for number in range(5 * MORE):
        folder = tmp_path / str(number)
        job = limited(folder, chance.randrange(5_000, 400_000))
        assert (job.status, job.tasks) == (0, 200 * TASKS)
        assert job.warned.count("bubblescope stopped recording (File too large)") == 1
        assert job.warned.count("Warning") == 1
        assert check(folder, job)[1] <= {"torn-tail", "unclosed"}
        assert len(job.flushed) < 200


IN_A_SMALL_DISK = 'mount -t tmpfs -o "$0" none "$1" && "${@:3}"; cp -r "$1/." "$2"'
"""Runs a command with a disk of its own, which ends with its name space, and copies what is there."""


def on_a_small_disk(options, tmp_path, limit):
    """Run the job on a disk with these options of tmpfs; skip where none can be mounted."""
    mounted, kept = tmp_path / "disk", tmp_path / "kept"
    mounted.mkdir()
    kept.mkdir()
    spaces = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*spaces, "true"], check=False).returncode:
        pytest.skip("no name spaces here")
    job = subprocess.run(
        [
            *spaces,
            "bash",
            "-c",
            IN_A_SMALL_DISK,
            options,
            mounted,
            kept,
            *command(mounted, 200, limit),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return kept, ended(job, job.stdout, job.stderr)


@pytest.mark.parametrize("limit", [0.0, 0.1])
@pytest.mark.parametrize("options", ["size=16k", "size=64k", "size=1m,nr_inodes=4"])
def test_a_small_disk_is_one_warning_and_what_was_flushed_is_there(tmp_path, options, limit):
    """By its last block, and by its last file: one more is needed to put the first one aside."""
    kept, job = on_a_small_disk(options, tmp_path, limit)
    assert job.tasks == 200 * TASKS
    enough = "nr_inodes" in options and not limit
    assert job.warned.count("stopped recording (No space left on device)") == (not enough)
    assert job.warned.count("Warning") == (not enough)
    _, codes = check(kept, job)
    assert codes <= ({"torn-tail", "unclosed"} if not enough else set())


@pytest.mark.parametrize("options", ["size=4k", "size=1m,nr_inodes=3"])
def test_a_disk_that_is_full_from_the_start_leaves_what_is_refused_in_a_sentence(tmp_path, options):
    kept, job = on_a_small_disk(options, tmp_path, 0.0)
    assert (job.tasks, job.flushed) == (200 * TASKS, [])
    assert job.warned.count("stopped recording (No space left on device)") == 1
    with pytest.raises(SourceError, match=r"is empty: the job|holds nothing in attempt 1"):
        sources.load(kept)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.ESTALE, errno.EDQUOT])
@pytest.mark.parametrize("max_mb", [None, 0.08])
def test_a_file_system_that_fails_meanwhile_is_one_warning(tmp_path, monkeypatch, number, max_mb):
    """As one that is mounted anew for reading only, or whose server is gone."""

    def refused(*_, **__):
        raise OSError(number, os.strerror(number))

    job = Recorder(tmp_path, rank=0, timer=CpuTimer(), max_mb=max_mb).__enter__()
    step(job, 3)
    written(job, tmp_path)
    with pytest.warns(RuntimeWarning) as warned, monkeypatch.context() as broken:
        for name in ("open", "write", "link"):
            broken.setattr(sink.os, name, refused)
        for name in ("replace", "unlink", "touch"):
            broken.setattr(type(tmp_path), name, refused)
        for _ in range(3):
            step(job, 3000)
        job.close()
    assert [str(one.message) for one in warned] == [
        f"{job.path}: bubblescope stopped recording ({os.strerror(number)}); training goes on"
    ]
    run = sources.load(tmp_path)
    assert run.tasks.filter(kind="forward")["microbatch"].to_list() == [0, 1, 2]
    assert {notice.code for notice in run.run.warnings} == {"unclosed"}


def test_nothing_follows_half_a_record_not_even_how_many_tasks_were_dropped(
    tmp_path, disk, monkeypatch
):
    disk.set()
    write, torn = os.write, threading.Event()

    def full(file, data):
        if torn.is_set():
            return write(file, data)  # somebody tidied up
        torn.set()
        write(file, data[:50])
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.warns(RuntimeWarning, match=r"stopped recording|dropped") as warned:
        with Recorder(tmp_path, rank=0, timer=CpuTimer()) as job:
            step(job, 3)
            written(job, tmp_path)
            size = job.path.stat().st_size
            disk.clear()
            step(job, 20 * MOST)
            monkeypatch.setattr(sink.os, "write", full)
            disk.set()
            assert torn.wait(60)
    assert len(warned) == 2
    assert job.path.stat().st_size == size + 50
    run = sources.load(tmp_path)
    assert run.tasks.filter(kind="forward")["microbatch"].to_list() == [0, 1, 2]
    [notice] = run.run.warnings
    assert (notice.code, notice.lost) == ("torn-tail", 50)


@pytest.mark.parametrize("jump_s", [-86_400, 3_600])
def test_a_clock_that_is_set_meanwhile_moves_no_task(tmp_path, monkeypatch, jump_s):
    """Tasks of two ranks in turn, of which one is opened before the clock is set, the other after."""
    utc = time.time_ns

    def task(job, number):
        with job.task("forward", microbatch=number):
            time.sleep(0.001)

    before = time.monotonic_ns()
    with Recorder(tmp_path, rank=0, timer=CpuTimer()) as first, first.step():
        task(first, 0)
        monkeypatch.setattr(time, "time_ns", lambda: utc() + jump_s * 10**9)
        monkeypatch.setattr(time, "time", lambda: utc() / 1e9 + jump_s)
        with Recorder(tmp_path, rank=1, timer=CpuTimer()) as second, second.step():
            for number in (1, 3):
                task(second, number)
                task(first, number + 1)
    took = time.monotonic_ns() - before
    run = sources.load(tmp_path)
    tasks = run.tasks.sort("start_ns")
    assert tasks["microbatch"].to_list() == [0, 1, 2, 3, 4]
    assert (tasks["start_ns"][1:] >= tasks["end_ns"][:-1]).all()
    assert run.duration_ns <= took
    assert run.run.warnings == ()
