"""A recorder whose disk stands still until it is told to go on, and that keeps few tasks in memory."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from bubblescope.record import recorder, writer
from bubblescope.record.buffer import WIDTH
from bubblescope.recording.file import Sink

EACH, MOST, TASKS = 8, 40, 1000
"""Tasks of a buffer, those that may wait, and those of a step."""


@pytest.fixture
def disk(monkeypatch):
    """Make the disk one that stands still until this is set, and the buffers small."""
    monkeypatch.setattr(recorder, "_FULL", EACH * WIDTH)
    monkeypatch.setattr(writer, "_MOST", MOST)
    monkeypatch.setattr(writer, "PERIOD_S", 0.01)
    works = threading.Event()

    def stands(theirs):
        def write(self, *what, **said):
            assert works.wait(60)
            theirs(self, *what, **said)

        return write

    # How many tasks were dropped is written too: before the tasks, if the writer was slow.
    for name in ("write", "tell"):
        monkeypatch.setattr(Sink, name, stands(getattr(Sink, name)))
    return works


def step(job, tasks=TASKS):
    with job.step():
        for i in range(tasks):
            with job.task("forward", microbatch=i):
                pass


def written(job, folder):
    """Wait until the recorder has nothing left to write."""
    mark = uuid.uuid4().hex
    with job.task("other", name=mark):
        pass
    until = time.monotonic() + 60
    while not any(mark.encode() in path.read_bytes() for path in folder.rglob("rank*.bubbles")):
        assert time.monotonic() < until
        time.sleep(0.005)
