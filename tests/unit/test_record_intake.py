"""Where hooks put tasks: open while tasks are recorded that the host's clock times, and only then."""

from __future__ import annotations

import pytest

from bubblescope import sources
from bubblescope.model.kinds import Kind
from bubblescope.record import Recorder
from bubblescope.record import recorder as module
from bubblescope.record.buffer import WIDTH, identity_of
from bubblescope.record.intake import Intake
from bubblescope.record.session import Session
from bubblescope.record.settings import Settings
from bubblescope.record.timers.timer import CpuTimer
from bubblescope.record.vendor_marks import Marks

FORWARD = identity_of(Kind.FORWARD, stage=0, microbatch=3)


class Noted(Marks):
    """Marks of nobody."""

    def __init__(self):
        self.names = []

    def push(self, name):
        self.names.append(name)

    def pop(self):
        pass


@pytest.fixture
def session(tmp_path):
    session = Session(Settings(out=str(tmp_path), timer="cpu", start=1, stop=3))
    yield session
    session.close()


def tasks(folder):
    rows = sources.load(folder).tasks.sort("start_ns")
    return [tuple(row) for row in rows.select("step", "kind", "microbatch").iter_rows()]


def test_it_is_open_while_tasks_are_recorded(tmp_path):
    intake = Intake()
    recorder = Recorder(tmp_path, rank=0, start=1, stop=2, timer=CpuTimer(), intake=intake)
    assert intake.items is None
    with recorder:
        with recorder.step():
            assert intake.items is None
        with recorder.step():
            first = intake.items
            assert first is not None
            recorder.recording = False
            assert intake.items is None
            recorder.recording = True
            assert intake.items is first
        assert intake.items is None
    assert intake.items is None


@pytest.mark.parametrize("end", ["close", "retire", "forget"])
def test_whatever_ends_the_recording_closes_it(tmp_path, end):
    intake = Intake()
    recorder = Recorder(tmp_path, rank=0, timer=CpuTimer(), intake=intake)
    with recorder, recorder.step():
        assert intake.items is not None
        getattr(recorder, end)()
        assert intake.items is None


def test_with_marks_it_stays_closed_and_tasks_are_recorded_all_the_same(tmp_path):
    intake, marks = Intake(), Noted()
    with Recorder(tmp_path, rank=0, timer=CpuTimer(), marks=marks, intake=intake) as recorder:
        with recorder.step():
            assert recorder.recording
            assert intake.items is None
            recorder.end_task(FORWARD, recorder.begin_task(FORWARD))
    assert len(marks.names) == 1
    assert tasks(tmp_path) == [(0, "forward", 3)]


def test_full_it_is_relieved_by_the_hook(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_FULL", 2 * WIDTH)
    session = Session(Settings(out=str(tmp_path), timer="cpu"))
    call = session.timed(lambda: len(session.intake.items), FORWARD)
    session.begin_step()
    lengths = [call() for _ in range(6)]
    assert max(lengths) < 2 * WIDTH
    session.close()
    assert tasks(tmp_path) == [(0, "forward", 3)] * 6


def test_a_writer_that_fails_when_it_is_full_is_one_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_FULL", WIDTH)
    session = Session(Settings(out=str(tmp_path), timer="cpu"))
    call = session.timed(lambda: 7, FORWARD)
    session.begin_step()
    monkeypatch.setattr(session.recorder, "_flush_full", lambda: 1 / 0)
    with pytest.warns(RuntimeWarning, match="stopped recording"):
        assert call() == 7
    assert call() == 7
    session.close()


def test_hooks_heed_the_window_arguments_and_failures(session, tmp_path):
    def forward(microbatch, *, fails=False):
        if fails:
            raise ValueError("the job's own")
        return microbatch

    def place(microbatch, *, fails=False):
        del fails
        return None if microbatch == 9 else identity_of(Kind.FORWARD, microbatch=microbatch)

    call = session.timed(forward, place)
    assert call(1) == 1  # no step yet
    for step in range(4):
        session.begin_step()
        assert call(step) == step
        assert call(9) == 9
        with pytest.raises(ValueError, match="the job's own"):
            call(microbatch=step + 10, fails=True)
    session.close()
    assert call(5) == 5
    assert tasks(tmp_path) == [
        (step, "forward", number) for step in (1, 2) for number in (step, step + 10)
    ]


def test_a_place_that_cannot_be_told_stops_the_recording_not_the_job(session):
    call = session.timed(lambda number: number, lambda number: 1 // number)
    for _ in range(2):
        session.begin_step()
    with pytest.warns(RuntimeWarning, match="stopped recording"):
        assert call(0) == 0
    assert call(0) == 0


@pytest.mark.parametrize("closes", [False, True])
def test_a_task_that_ends_when_nothing_is_recorded_is_none(session, tmp_path, closes):
    def pause():
        session.recorder.recording = False
        if closes:
            session.close()

    call = session.timed(lambda: None, FORWARD)
    for _ in range(2):
        session.begin_step()
    call()
    session.timed(pause, FORWARD)()
    if not closes:
        session.recorder.recording = True
        session.close()
    assert tasks(tmp_path) == [(1, "forward", 3)]
