"""Which attempt a rank records to: processes of one start agree, and nothing recorded gives way."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

import bubblescope
from bubblescope.model.errors import SourceError
from bubblescope.record import Recorder
from bubblescope.record.claims import claim, file_system_ns, make
from bubblescope.recording.attempts import attempts_in

JOB = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in JOB:
        monkeypatch.delenv(name, raising=False)


def file_of(rank):
    return f"rank{rank:05d}.bubbles"


def files_in(folder):
    """Return the ranks that recorded, by attempt."""
    return {
        attempt.number: [int(path.stem[4:]) for path in attempt.files()]
        for attempt in attempts_in(folder)
    }


def start_of_job(folder, ranks, since_ns):
    for rank in ranks:
        claim(folder, file_of(rank), since_ns)


def test_ranks_of_one_start_share_an_attempt(tmp_path):
    start_of_job(tmp_path, range(4), file_system_ns(tmp_path))
    assert files_in(tmp_path) == {1: [0, 1, 2, 3]}


def test_a_second_start_has_an_attempt_of_its_own_whichever_rank_comes_first(tmp_path):
    start_of_job(tmp_path, range(4), file_system_ns(tmp_path))
    time.sleep(0.02)  # more than a file system's stamps are coarse
    start_of_job(tmp_path, (3, 0, 2, 1), file_system_ns(tmp_path))
    assert files_in(tmp_path) == {1: [0, 1, 2, 3], 2: [0, 1, 2, 3]}


def test_a_rank_that_never_recorded_in_the_first_start_does_not_join_it_in_the_second(tmp_path):
    start_of_job(tmp_path, (0, 1, 2), file_system_ns(tmp_path))  # rank 3 died before its first step
    time.sleep(0.02)
    start_of_job(tmp_path, (3, 2, 1, 0), file_system_ns(tmp_path))
    assert files_in(tmp_path) == {1: [0, 1, 2], 2: [0, 1, 2, 3]}


def test_jobs_that_their_launchers_tell_apart_do_not_mix(tmp_path, monkeypatch):
    since_ns = file_system_ns(tmp_path)
    for rank in range(2):
        for port in ("29500", "29501"):
            monkeypatch.setenv("MASTER_PORT", port)
            claim(tmp_path, file_of(rank), since_ns)
    assert files_in(tmp_path) == {1: [0, 1], 2: [0, 1]}


def test_jobs_that_nothing_tells_apart_overwrite_nothing(tmp_path):
    since_ns = file_system_ns(tmp_path)
    for _ in range(3):
        claim(tmp_path, file_of(0), since_ns)
    assert files_in(tmp_path) == {1: [0], 2: [0], 3: [0]}


def test_an_attempt_that_is_named_is_the_one(tmp_path):
    attempt = make(tmp_path)
    assert claim(attempt.folder, file_of(7)).parent == attempt.folder
    with pytest.raises(FileExistsError):
        claim(attempt.folder, file_of(7))


@pytest.mark.parametrize("instead", [None, os.mkfifo, Path.mkdir])
def test_an_attempt_without_its_manifest_is_read_and_never_joined_or_numbered_again(
    tmp_path, instead
):
    for step in (0, 5):
        one_step(tmp_path, step)
    manifest = tmp_path / "attempt-0002" / "attempt.json"
    manifest.unlink()  # or it was left out of a copy
    if instead is not None:
        instead(manifest)  # of which nothing is waited for
    assert bubblescope.load(tmp_path).steps == [5]
    one_step(tmp_path, 6)
    assert files_in(tmp_path) == {1: [0], 2: [0], 3: [0]}


def test_a_folder_of_the_users_own_that_is_named_as_an_attempt_is_left_alone(tmp_path):
    mine = tmp_path / "attempt-0001" / "notes.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    one_step(tmp_path)
    assert files_in(tmp_path) == {2: [0]}
    assert [path.name for path in mine.parent.iterdir()] == ["notes.txt"]


def test_a_folder_where_no_attempt_can_be_begun_is_one_error(tmp_path, monkeypatch):
    def refused(*_):
        raise PermissionError(errno.EPERM, "no renaming here")

    monkeypatch.setattr(type(tmp_path), "rename", refused)
    with pytest.raises(PermissionError):
        claim(tmp_path, file_of(0))
    assert list(tmp_path.iterdir()) == []


ONE_OF_MANY = """
import sys, time
from pathlib import Path
from bubblescope.record.claims import claim
folder, rank, begin = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
time.sleep(max(0, begin - time.time()))
claim(folder, f"rank{rank:05d}.bubbles")
"""


def test_ranks_that_begin_at_the_same_moment_agree(tmp_path):
    """Processes of their own, as a launcher starts them, all of which claim at once."""
    for _ in range(2):
        begin = time.time() + 3
        jobs = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    ONE_OF_MANY,
                    str(tmp_path),
                    str(rank),
                    str(begin),
                ],
                env=os.environ | {"TORCHELASTIC_RUN_ID": "none"},
            )
            for rank in random.sample(range(6), 6)
        ]
        assert [job.wait() for job in jobs] == [0] * 6
    assert files_in(tmp_path) == {1: list(range(6)), 2: list(range(6))}


def one_step(folder, step=0, rank=0):
    with Recorder(folder, rank=rank, stages=[rank]) as recorder, recorder.step(step):
        for kind in ("forward", "backward"):
            with recorder.task(kind, microbatch=0):
                pass


def test_the_last_start_is_read_unless_another_is_asked_for(tmp_path):
    for step in (0, 5):
        one_step(tmp_path, step)
    last = bubblescope.load(tmp_path)
    assert last.steps == [5]
    assert [notice.code for notice in last.run.notes] == ["other-attempts"]
    assert [(one.attempt, one.read, one.ended) for one in last.run.attempts] == [
        (1, False, True),
        (2, True, True),
    ]
    assert bubblescope.load(tmp_path, attempt=1).steps == [0]
    assert bubblescope.load(tmp_path, attempt="all").steps == [0, 5]
    with pytest.raises(SourceError, match=r"has no attempt 3; it holds 1, 2"):
        bubblescope.load(tmp_path, attempt=3)
    with pytest.raises(SourceError, match="is not a recording with attempts"):
        bubblescope.load(tmp_path / "attempt-0001", attempt=1)


RECORDS_ON = """
import sys
from bubblescope.record import Recorder
with Recorder(sys.argv[1], rank=0, stages=[0]) as recorder:
    with recorder.step(), recorder.task("forward", microbatch=0):
        print("in a step", flush=True)
        sys.stdin.read()
"""


def test_a_job_that_records_while_another_does_is_told_as_no_restart(tmp_path):
    """Two that were given one folder, or two processes of one job that have the same rank."""
    with subprocess.Popen(
        [sys.executable, "-c", RECORDS_ON, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        other.stdout.readline()
        one_step(tmp_path)
        other.communicate()
    one_step(tmp_path)
    run = bubblescope.load(tmp_path, attempt=2)
    assert [one.beside for one in run.run.attempts] == [(), (1,), ()]
    warned = {notice.code: notice.message for notice in run.run.warnings}
    assert "attempt 2 began while another was still being recorded" in warned["attempts-at-once"]
    (note,) = run.run.notes
    assert "started" not in note.message
    assert "--attempt all" not in note.message
    assert re.search(r"\b2 .* 1 +read here", str(run.info()))


def test_jobs_that_ran_at_the_same_time_are_not_read_as_one(tmp_path):
    with Recorder(tmp_path, rank=0, stages=[0]) as one, Recorder(tmp_path, rank=0) as other:
        for step in range(3):
            for job in (one, other):
                with job.step(step), job.task("forward", microbatch=0):
                    pass
    for attempt in (1, 2):
        assert bubblescope.load(tmp_path, attempt=attempt).steps == [0, 1, 2]
    said = r"of attempt 2, in which rank 0 ran while attempt 1 was still being recorded"
    with pytest.raises(SourceError, match=said):
        bubblescope.load(tmp_path, attempt="all")
    with pytest.raises(SourceError, match=said):
        bubblescope.load(tmp_path / "attempt-0001", tmp_path / "attempt-0002")


def test_machines_that_are_their_own_masters_are_of_jobs_of_their_own(tmp_path, monkeypatch):
    """Several single-machine jobs of `torchrun` that share a folder call themselves the same."""
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    since_ns = file_system_ns(tmp_path)
    for rank, machine in ((0, "a"), (1, "b"), (1, "a"), (0, "b")):
        monkeypatch.setattr(socket, "gethostname", lambda machine=machine: machine)
        claim(tmp_path, file_of(rank), since_ns)
    assert files_in(tmp_path) == {1: [0, 1], 2: [0, 1]}


def test_steps_that_a_later_start_repeats_are_counted_on(tmp_path):
    for steps in (range(3), range(2, 5)):  # from the checkpoint before step 2
        with Recorder(tmp_path, rank=0, stages=[0]) as recorder:
            for step in steps:
                with recorder.step(step), recorder.task("forward", microbatch=0):
                    pass
    run = bubblescope.load(tmp_path, attempt="all")
    assert run.steps == [0, 1, 2, 3, 4, 5]
    assert len(run) == 6
    told = [notice.message for notice in run.run.warnings if notice.code == "steps-counted-on"]
    assert told == [
        "attempts have steps of the same numbers: those of attempt 2, 2 to 4, are shown as 3 to 5"
    ]


def test_what_was_between_two_starts_is_part_of_no_step(tmp_path):
    """The last step before a failure lasts until nobody knows when, not until the job runs again."""
    for steps in (range(3), range(3, 6)):
        with Recorder(tmp_path, rank=0, stages=[0]) as recorder:
            for step in steps:
                with recorder.step(step):
                    for kind in ("forward", "backward"):
                        with recorder.task(kind, microbatch=0):
                            pass
        time.sleep(0.2)
    run = bubblescope.load(tmp_path, attempt="all")
    assert run.run.resumed == (3,)
    assert run.steps == [0, 1, 2, 3, 4, 5]
    whole = json.loads(run.report().to_json())["wall_clock"]
    assert whole["step_ns"] < 100_000_000
    assert bubblescope.load(tmp_path).run.resumed == ()


def test_what_an_older_version_left_in_the_folder_itself_is_attempt_0(tmp_path):
    one_step(tmp_path, 3)
    for path in (tmp_path / "attempt-0001").iterdir():
        path.rename(tmp_path / path.name)
    (tmp_path / "attempt.json").unlink()
    assert bubblescope.load(tmp_path).steps == [3]
    one_step(tmp_path, 4)
    assert bubblescope.load(tmp_path).steps == [4]
    assert bubblescope.load(tmp_path, attempt=0).steps == [3]


def test_a_last_start_without_a_step_names_the_others(tmp_path):
    one_step(tmp_path)
    claim(tmp_path, file_of(0))  # and then the job died
    with pytest.raises(SourceError, match=r"is empty.*started 2 times.*--attempt N"):
        bubblescope.load(tmp_path)


def test_a_start_in_which_no_rank_could_write_hides_no_other(tmp_path):
    """As on a disk with no room for one more file: the attempt was begun before."""
    make(tmp_path)
    said = "holds nothing in attempt 1: no rank could write there, or none started"
    with pytest.raises(SourceError, match=rf"{said}$"):
        bubblescope.load(tmp_path)
    make(tmp_path)
    one_step(tmp_path)  # joins the second
    make(tmp_path)
    with pytest.raises(
        SourceError, match=r"nothing in attempt 3.*--attempt N reads another \(2\)$"
    ):
        bubblescope.load(tmp_path)
    assert len(bubblescope.load(tmp_path, attempt=2).tasks) == 2
    assert len(bubblescope.load(tmp_path, attempt="all").tasks) == 2


def test_a_deleted_folder_is_one_warning_and_a_new_file(tmp_path):
    folder = tmp_path / "recording"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Recorder(folder, rank=0, stages=[0]) as recorder:
            for step in range(4):
                if step in (1, 2):
                    for path in (folder / "attempt-0001").iterdir():
                        path.unlink()
                    (folder / "attempt-0001").rmdir()
                    folder.rmdir()
                with recorder.step(step), recorder.task("forward", microbatch=0):
                    pass
                recorder.on_step(lambda _: None)  # so that every step is written at once
                deadline = time.monotonic() + 10
                file = folder / "attempt-0001" / "rank00000.bubbles"
                while not (file.exists() and file.stat().st_size) and time.monotonic() < deadline:
                    time.sleep(0.01)
    told = [str(one.message) for one in caught]
    assert len(told) == 1
    assert "was deleted while bubblescope was recording" in told[0]
    assert bubblescope.load(folder).steps[-1] == 3


def test_a_folder_that_is_moved_keeps_what_it_holds(tmp_path):
    """It is not said to be lost: steps are in the one folder or in the other."""
    folder, elsewhere = tmp_path / "recording", tmp_path / "elsewhere"
    with pytest.warns(RuntimeWarning, match="was moved while bubblescope was recording") as told:
        with Recorder(folder, rank=0, stages=[0]) as recorder:
            for step in range(2):
                written = threading.Event()
                recorder.on_step(lambda _, done=written: done.set())
                with recorder.step(step), recorder.task("forward", microbatch=0):
                    pass
                assert written.wait(10)
                if step == 0:
                    folder.rename(elsewhere)
    assert len(told) == 1
    assert [bubblescope.load(one).steps for one in (elsewhere, folder)] == [[0], [1]]


def test_an_attempt_appears_whole(tmp_path):
    """Many begin attempts while others look: none is ever seen without its manifest."""
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        made = pool.starmap(_make_some, [(tmp_path, 20)] * 3)
    attempts = attempts_in(tmp_path)
    assert len(attempts) == sum(made)
    assert all(attempt.start() is not None for attempt in attempts)
    assert not list(tmp_path.glob(".*"))


def _make_some(folder, count):
    made = 0
    while made < count:
        with suppress(FileExistsError):  # another was faster
            make(folder)
            made += 1
    return made
