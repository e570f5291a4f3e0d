"""Recordings with a limit: what is on disk, what is read back, and what a kill leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubblescope import RecorderError, TimelineError, sources
from bubblescope.record import Recorder
from bubblescope.recording import file as sink
from bubblescope.recording.columns import Header, Membership
from bubblescope.recording.file import Sink, older
from full import examples
from recorded_rows import recorded

LEAST = 80_000


def header(rank=0, **facts):
    told = {"format": 1, "version": "1", "stages": [rank], "host": "here", "process": 7}
    told |= {"device": 0, "boot": "boot", "utc_ns": 0, "timer": "cpu"}
    return Header(**told | {"rank": rank} | facts)


def rows(first, count, name=None):
    """Return tasks that are told apart by their micro-batch, one after another."""
    numbers = np.arange(first, first + count)
    times = {"start_ns": numbers * 10, "end_ns": numbers * 10 + 1}
    return recorded(count, step=0, microbatch=numbers, name=name, **times)


def on_disk(folder):
    """Return the bytes of all files in a folder; a file with two names is there once."""
    files = {(found.st_ino, found.st_size) for found in map(os.stat, folder.iterdir())}
    return sum(size for _, size in files)


def numbers(folder):
    return sources.load(folder).tasks.sort("start_ns")["microbatch"].to_list()


def notices(folder):
    return {notice.code: notice for notice in sources.load(folder).run.warnings}


@settings(max_examples=examples(25), deadline=None)
@given(
    blocks=st.lists(st.integers(1, 5000), min_size=1, max_size=12),
    limit=st.sampled_from([LEAST, 100_000, 250_000, 1_000_000]),
    name=st.sampled_from([None, "a name", "\U0001f600" * 10_000]),
)
def test_never_more_than_the_limit_is_on_disk_and_what_is_missing_is_said(
    tmp_path_factory, blocks, limit, name
):
    folder = tmp_path_factory.mktemp("limited")
    written = Sink(folder / "rank00000.bubbles", header(), limit)
    real, most = os.write, 0

    def watched(file, data):
        nonlocal most
        done = real(file, data)
        most = max(most, on_disk(folder))
        return done

    first = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink.os, "write", watched)
        for count in blocks:
            written.write(rows(first, count, name))
            first += count
        written.close(complete=True)
    assert 0 < most <= limit
    found = numbers(folder)
    assert found == list(range(first - len(found), first))
    told = notices(folder)
    if len(found) == first:
        assert told == {}
    else:
        assert set(told) == {"dropped"}
        assert (told["dropped"].lost, told["dropped"].total) == (first - len(found), first)
        assert on_disk(folder) >= limit * 3 // 8


def test_a_limit_that_holds_no_task_is_refused_and_the_least_one_works(tmp_path):
    with pytest.raises(RecorderError, match=r"max_mb must be at least 0\.08, not 0\.01"):
        Recorder(tmp_path, rank=0, max_mb=0.01)
    groups = [Membership(((0, 1, 2),), name=f"group {number}") for number in range(300)]
    with pytest.raises(RecorderError, match=r"max_mb must be at least 0\.\d+, not 0\.08"):
        Recorder(tmp_path, rank=0, max_mb=0.08, groups=groups).__enter__()
    assert not list(tmp_path.rglob("*.bubbles"))  # no empty one, of which nobody knows what it is
    with Recorder(tmp_path, rank=0, max_mb=0.08) as recorder:
        for _ in range(3):
            with recorder.step():
                for i in range(2000):
                    with recorder.task("forward", microbatch=i):
                        pass
    assert on_disk(recorder.path.parent) <= 80_000 + 1000  # and what says which start it was
    assert notices(tmp_path)["dropped"].total == 6000


def limited(folder, tasks, rank=0):
    """Write tasks to a recording with a limit; return how many were kept at its end."""
    written = Sink(folder / f"rank{rank:05d}.bubbles", header(rank), LEAST)
    for first in range(0, tasks, 50):
        written.write(rows(first, 50))
    return written


def test_two_ranks_with_limits_are_read_as_a_folder(tmp_path):
    limited(tmp_path, 3000, 0).close(complete=True)
    limited(tmp_path, 5000, 1).close(complete=True)
    timeline = sources.load(tmp_path)
    assert timeline.ranks["rank"].to_list() == [0, 1]
    for rank, total in ((0, 3000), (1, 5000)):
        kept = timeline.tasks.filter(rank=rank).sort("start_ns")["microbatch"].to_list()
        assert kept == list(range(total - len(kept), total))
        [notice] = [one for one in timeline.run.warnings if f"rank0000{rank}" in one.message]
        assert (notice.code, notice.lost, notice.total) == ("dropped", total - len(kept), total)


@pytest.mark.parametrize("half", ["older", "newer"])
def test_one_half_alone_says_what_is_missing(tmp_path, half):
    limited(tmp_path, 3000).close(complete=True)
    path = tmp_path / "rank00000.bubbles"
    (path if half == "older" else older(path)).unlink()
    found, told = numbers(tmp_path), notices(tmp_path)
    assert found == list(range(found[0], found[-1] + 1))
    assert told["dropped"].lost == found[0]
    assert ("unclosed" in told) == (half == "older")  # the end of it is in the newer one


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("moment", range(8))
@pytest.mark.parametrize("links", [True, False])
def test_killed_at_any_moment_of_putting_aside_the_recording_is_right(
    tmp_path, monkeypatch, moment, links
):
    written = limited(tmp_path, 4000)
    written._put_aside()
    written.write(rows(4000, 100))
    left = moment

    def mortal(function):
        def call(*args, **kwargs):
            nonlocal left
            if not left:
                raise Killed
            left -= 1
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(sink.os, "link", mortal(os.link if links else refused))
        for name in ("open", "write", "close"):
            patch.setattr(sink.os, name, mortal(getattr(os, name)))
        patch.setattr(sink, "_lock", mortal(sink._lock))
        for name in ("replace", "unlink"):
            patch.setattr(type(tmp_path), name, mortal(getattr(type(tmp_path), name)))
        try:
            written._put_aside()
        except Killed:
            pass
        else:
            assert not left  # the last moment is after it
    found, told = numbers(tmp_path), notices(tmp_path)
    assert found == list(range(4100 - len(found), 4100))
    assert len(found) >= 100
    assert set(told) == {"unclosed", "dropped"}
    assert told["dropped"].lost == found[0]
    written.release()


def refused(*_):
    raise PermissionError(1, "no links here")


def test_an_older_half_of_another_job_is_not_mixed_in(tmp_path):
    limited(tmp_path, 3000).close(complete=True)
    path = tmp_path / "rank00000.bubbles"
    other = Sink(tmp_path / "other" / path.name, header(process=8))
    other.write(rows(0, 10))
    other.close(complete=True)
    (tmp_path / "other" / path.name).replace(path)
    with pytest.raises(TimelineError, match="rank 0 is claimed by two traces"):
        sources.load(tmp_path)


def test_a_half_that_holds_nothing_yet_is_no_error(tmp_path):
    limited(tmp_path, 3000).close(complete=True)
    path = tmp_path / "rank00000.bubbles"
    path.write_bytes(b"")
    assert numbers(tmp_path)
    assert "unclosed" in notices(tmp_path)


RIVAL = """
import sys
from pathlib import Path
from bubblescope.recording.file import recording_to
while True:
    print("busy" if recording_to(Path(sys.argv[1], "rank00000.bubbles")) else "free", flush=True)
"""


def test_the_path_stays_locked_while_files_are_put_aside(tmp_path):
    tried = threading.Event()
    written = limited(tmp_path, 50)
    with subprocess.Popen(
        [sys.executable, "-c", RIVAL, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as rival:
        said = []

        def listen():
            for line in rival.stdout:
                said.append(line.strip())
                if len(said) >= 500:
                    tried.set()

        listener = threading.Thread(target=listen)
        listener.start()
        done = 50
        while not tried.is_set() and rival.poll() is None:
            written.write(rows(done, 50))
            done += 50
        rival.kill()
        listener.join()  # it must have read all before the pipe is closed
        assert set(said) == {"busy"}
    written.close(complete=True)
    assert done > 20 * 50
    found = numbers(tmp_path)
    assert found == list(range(done - len(found), done))
