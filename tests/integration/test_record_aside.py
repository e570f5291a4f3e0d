"""What a job does beside its passes, recorded in programs that stand in for those of others."""

from __future__ import annotations

import logging
import sys
import time
from types import ModuleType, SimpleNamespace

import polars as pl
import pytest

from bubblescope import sources
from bubblescope.model.kinds import Kind
from bubblescope.model.registry import resolve
from bubblescope.record.buffer import identity_of
from bubblescope.record.hooks import INTEGRATIONS
from bubblescope.record.integrations import torch_aside
from bubblescope.record.session import Session
from bubblescope.record.settings import Settings
from ticking import Ticks

SLOW_NS, QUICK_NS = 2_000_000, 20_000


class Clock:
    """A clock that goes on only when somebody works."""

    def __init__(self):
        self.now_ns = time.monotonic_ns()

    def __call__(self):
        return self.now_ns

    def work(self, length_ns):
        self.now_ns += length_ns


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in ("session", "recorder", "early"):
        monkeypatch.setattr(f"bubblescope.record.{module}._now", made)
    return made


class Job:
    """A step that does what it is given to do, after a forward."""

    def __init__(self, folder, clock):
        self.folder, self.clock = folder, clock
        self.session = Session(Settings(out=str(folder), timer="cpu"))
        self.passes = self.session.timed(clock.work, lambda *_: identity_of(Kind.FORWARD))

    def step(self, *does):
        """Return what was recorded beside the forward: name and lane, and how long it was."""
        self.session.begin_step()
        self.passes(SLOW_NS)
        for one in does:
            one()
        self.session.close()
        tasks = sources.load(self.folder).tasks.filter(kind="other")
        length = pl.col("end_ns") - pl.col("start_ns")
        return [*tasks.select("name", "lane", length).iter_rows()]


@pytest.fixture
def job(tmp_path, clock):
    made = Job(tmp_path, clock)
    yield made
    made.session.close()


@pytest.fixture
def sleeping(clock):
    """A handler that writes slowly what is a warning, and quickly what is none."""

    class Handler(logging.Handler):
        def emit(self, record):
            clock.work(SLOW_NS if record.levelno >= logging.WARNING else QUICK_NS)

    logger = logging.getLogger("of a job")
    logger.handlers, logger.propagate = [Handler()], False
    logger.setLevel(logging.INFO)
    yield logger
    logger.handlers = []


def test_logging_that_takes_long_is_recorded(job, monkeypatch, sleeping):
    monkeypatch.setattr(logging.Logger, "handle", logging.Logger.handle)
    torch_aside.logs(sys, job.session)
    places = []
    sleeping.addFilter(lambda record: places.append(record.funcName) or True)
    found = job.step(
        lambda: sleeping.info("quick"),
        lambda: sleeping.warning("slow"),
        lambda: sleeping.debug("not at all"),
    )
    [(name, lane, length_ns)] = found
    assert (name, lane) == ("logging", "host")
    assert length_ns == SLOW_NS
    assert places == ["<lambda>"] * 2  # where it was called from is still known


def writer(clock):
    class SummaryWriter:
        def __init__(self):
            self.added = []

        def add_scalar(self, tag, value, *, step=0):
            clock.work(SLOW_NS)
            self.added.append((tag, value, step))

        def add_text(self, tag):
            clock.work(QUICK_NS)
            self.added.append(tag)

        def flush(self):
            clock.work(SLOW_NS)

        def close(self):
            self.flush()

    return SimpleNamespace(SummaryWriter=SummaryWriter)


def test_writers_of_tensorboard_are_recorded(job):
    module = writer(job.clock)
    torch_aside.tensorboard(module, job.session)
    made = module.SummaryWriter()
    found = job.step(
        lambda: made.add_scalar("loss", 1.5, step=3),
        lambda: made.add_text("words"),
        made.close,  # which calls flush: one task
    )
    assert [name for name, *_ in found] == ["logging", "logging"]
    assert made.added == [("loss", 1.5, 3), "words"]


def test_runs_of_wandb_and_mlflow_are_recorded(job, monkeypatch):
    class Run:
        def log(self, values):
            job.clock.work(SLOW_NS)
            return values

    wandb = SimpleNamespace(Run=Run)
    torch_aside.wandb(wandb, job.session)
    fluent, public = ModuleType("mlflow.tracking.fluent"), ModuleType("mlflow")
    fluent.log_metric = public.log_metric = lambda name, value: (
        job.clock.work(SLOW_NS) or (name, value)
    )
    fluent.log_level = 20
    monkeypatch.setitem(sys.modules, "mlflow", public)
    torch_aside.mlflow(fluent, job.session)
    assert fluent.log_level == 20
    results = []
    found = job.step(
        lambda: results.append(Run().log({"loss": 1})),
        lambda: results.append(public.log_metric("loss", 1)),
        lambda: results.append(fluent.log_metric("loss", 2)),
    )
    assert [name for name, *_ in found] == ["logging"] * 3
    assert results == [{"loss": 1}, ("loss", 1), ("loss", 2)]


@pytest.mark.parametrize("name", ["send_to_device", "move_data_to_device"])
def test_batches_that_a_framework_moves_are_recorded(job, name):
    """By a device that stands in for one: it takes long for batches, and no time for what is there."""

    def move(batch, device):
        job.clock.work(SLOW_NS if device == "far" else QUICK_NS)
        return [*batch, device]

    module = SimpleNamespace(**{name: move})
    torch_aside.batches(module, job.session)
    moved = []
    found = job.step(
        lambda: moved.append(getattr(module, name)([1], "far")),
        lambda: moved.append(getattr(module, name)([1], "here")),
    )
    [(what, lane, length_ns)] = found
    assert (what, lane) == ("copy to device", "host")
    assert length_ns == SLOW_NS
    assert moved == [[1, "far"], [1, "here"]]


def test_what_only_its_end_shows_to_be_a_task_is_timed_on_the_host(tmp_path, monkeypatch):
    """Whatever the clock: nobody has asked the device when it began."""
    monkeypatch.setattr("bubblescope.record.session.chosen_timer", lambda _: Ticks())
    session = Session(Settings(out=str(tmp_path)))
    passes = session.timed(lambda: None, identity_of(Kind.FORWARD))
    session.begin_step()
    passes()
    began = time.monotonic_ns()
    session.was_beside(torch_aside.ASIDE, torch_aside.COPY, began, began + SLOW_NS)
    passes()
    session.close()
    tasks = sources.load(tmp_path).tasks
    copied = tasks.filter(name="copy to device")
    length = pl.col("end_ns") - pl.col("start_ns")
    assert copied.select("step", "lane", length).rows() == [(0, "host", SLOW_NS)]
    assert tasks.filter(kind="forward").select(length).to_series().to_list() == [10, 10]


class TestBeforeTheFirstStep:
    def evaluated(self, folder, clock, **asked):
        """Evaluate twice, log, and train a step; return the tasks of no step, and those of steps."""
        session = Session(Settings(out=str(folder), timer="cpu", **asked))
        aside = torch_aside.ASIDE
        evaluate = session.beside(clock.work, aside, "evaluation", early=True)
        log = session.beside(clock.work, aside, "logging")
        for one in (evaluate, log, evaluate):
            one(SLOW_NS)
        for _ in range(2):
            session.begin_step()
            session.timed(evaluate, identity_of(Kind.FORWARD))(SLOW_NS)
        session.close()
        tasks = sources.load(folder).tasks
        none = pl.col("step").is_null()
        return tasks.filter(none), tasks.filter(~none)

    def test_evaluations_are_recorded_once_the_job_trains(self, tmp_path, clock):
        began = clock()
        early, later = self.evaluated(tmp_path, clock)
        assert early["name"].to_list() == ["evaluation"] * 2  # and nothing else
        assert early["lane"].to_list() == ["host"] * 2
        lengths = early["host_end_ns"] - early["host_start_ns"]
        assert lengths.to_list() == [SLOW_NS] * 2
        starts = early["host_start_ns"] - early["host_start_ns"][0]
        assert starts.to_list() == [0, 2 * SLOW_NS]
        assert later["step"].unique().to_list() == [0, 1]
        assert clock() - began == 5 * SLOW_NS

    def test_not_if_they_are_not_asked_for(self, tmp_path, clock):
        early, later = self.evaluated(tmp_path, clock, start=1)
        assert not early.height
        assert later["step"].unique().to_list() == [1]

    def test_only_so_many(self, tmp_path, clock, monkeypatch):
        monkeypatch.setattr("bubblescope.record.early._MOST", 1)
        early, _ = self.evaluated(tmp_path, clock)
        assert early.height == 1

    def test_a_process_that_never_trains_records_nothing(self, tmp_path, clock):
        session = Session(Settings(out=str(tmp_path / "out"), timer="cpu"))
        session.beside(clock.work, torch_aside.ASIDE, "evaluation", early=True)(SLOW_NS)
        session.close()
        assert not (tmp_path / "out").exists()


def test_what_fails_beside_the_passes_fails_as_without(job):
    class Run:
        def log(self, values):
            raise KeyError(values)

    torch_aside.wandb(SimpleNamespace(Run=Run), job.session)

    def log():
        with pytest.raises(KeyError, match="loss"):
            Run().log("loss")

    assert job.step(log, log) == []


def test_every_hook_is_there():
    for modules in INTEGRATIONS.values():
        for target in modules.values():
            assert callable(resolve(f"bubblescope.record.integrations.{target}"))
