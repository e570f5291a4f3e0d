"""What workers are asked to do in tests of engines: functions that any process can import."""

from __future__ import annotations

import gc
import os
import signal
import time
from itertools import count
from pathlib import Path

from bubblescope.model.errors import SourceError


def whoever(_):
    time.sleep(0.2)  # so that all workers have something to do
    return os.getpid()


def objects(_):
    """Return after how many new objects Python looks for garbage."""
    return gc.get_threshold()[0]


def find_much(folder):
    """Find more than fits into a pipe, and say which process does."""
    (folder / f"{os.getpid()}").touch()
    time.sleep(2)
    return bytes(1 << 20)


def square(number):
    return number * number


def about(_):
    """Return where this runs: process, threads of Polars, and whether an engine here starts workers."""
    import polars as pl

    from bubblescope.engine import engine

    return os.getpid(), pl.thread_pool_size(), engine().workers


def die_once(job):
    """Be killed the first time: job is a number and the folder to note it in."""
    number, folder = job
    if not _noted(folder, number) and number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def die(number):
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


class Poison:
    """What kills the process that pickles it."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)


def return_poison(_):
    return Poison()


def refuse(job):
    """Raise what would be raised again."""
    number, folder = job
    _noted(folder, number)
    if number == 2:
        raise SourceError("two.json", "is damaged")
    return number


def fail_twice(job):
    """Raise what may pass, and does."""
    number, folder = job
    if number == 2 and _noted(folder, number) < 2:
        raise OSError(5, "Input/output error")
    return number


def count_up(folder):
    """Return how often this was done in a folder before."""
    return _noted(folder, "counted")


def large(size):
    return bytes(size)


def hoard(size):
    """Take memory, and hold it long enough for that to be seen."""
    held = bytearray(size)
    held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])
    time.sleep(0.2)
    return len(held)


def slowly(number):
    time.sleep(0.05)
    return number


def _noted(folder, job):
    """Note that a job is done here, and return how often it was before: right also for two at once."""
    return next(before for before in count() if _is_new(Path(folder) / f"{job}-{before}"))


def _is_new(path):
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
