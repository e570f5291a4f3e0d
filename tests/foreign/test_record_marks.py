"""Marks for vendors' profilers: what a job shows them, and that bubblescope reads it back."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from unittest import mock

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubblescope import RecorderError, sources
from bubblescope.model import bounds
from bubblescope.model.kinds import Kind
from bubblescope.names.parsed import ParsedName
from bubblescope.names.parser import NameParser
from bubblescope.record import AllMarks, CpuTimer, MstxMarks, NvtxMarks, Recorder
from bubblescope.record.buffer import identity_of
from bubblescope.record.session import Session
from bubblescope.record.settings import Settings
from bubblescope.record.vendor_marks import chosen_marks
from full import examples, needs
from kineto_maker import BASE, Trace

TRAIN = """
import sys, torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class
from torch.profiler import ProfilerActivity, profile, schedule as phases

name, steps, microbatches, folder = sys.argv[1], int(sys.argv[2]), 4, sys.argv[3]
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank, ranks = distributed.get_rank(), distributed.get_world_size()
schedule_class = get_schedule_class(name)
single = issubclass(schedule_class, PipelineScheduleSingle)
count = ranks if single else 2 * ranks
v = count - 1 - rank if "ZBV" in name else rank + ranks
places = [rank] if single else [rank, v]
models = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in places]
stages = [PipelineStage(m, p, count, torch.device("cpu")) for m, p in zip(models, places)]
schedule = schedule_class(stages[0] if single else stages, microbatches, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD([p for m in models for p in m.parameters()], lr=0.1)
x = torch.randn(4 * microbatches, 16)
every = phases(wait=0, warmup=0, active=steps, repeat=1)
export = lambda done: done.export_chrome_trace(f"{folder}/rank{rank}.json")
with profile(
    activities=[ProfilerActivity.CPU], schedule=every, on_trace_ready=export
) as profiler:
    for _ in range(steps):
        target = torch.tanh(x) if count - 1 in places else None
        schedule.step(*((x,) if 0 in places else ()), target=target)
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
distributed.destroy_process_group()
"""

RANKS, MICROBATCHES = 2, 4
RUNS = {
    "1F1B": (2, [0, 1], ()),
    "Interleaved1F1B": (4, [1, 2], ("--steps", "1:3")),
    "ZBVZeroBubble": (2, [0, 1], ()),
}
"""Schedule -> the steps that the job and torch.profiler go through, those to record, and how."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Jobs that torch.profiler profiles and `bubblescope record` records: all at once, to be quick."""
    needs("torch")
    folder = tmp_path_factory.mktemp("jobs")
    script = folder / "train.py"
    script.write_text(TRAIN)
    with ExitStack() as running:
        started = {}
        for name, (steps, _, options) in RUNS.items():
            profiled = folder / name / "profile"
            profiled.mkdir(parents=True)
            job = subprocess.Popen(
                [
                    *(sys.executable, "-m", "bubblescope", "record"),
                    *(
                        "--output",
                        str(folder / name / "recording"),
                        "--marks",
                        "torch",
                        *options,
                        "--",
                    ),
                    *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                    *("--nproc-per-node", str(RANKS)),
                    *(str(script), name, str(steps), str(profiled)),
                ],
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            running.enter_context(job)
            running.callback(job.kill)
            started[name] = job, folder / name
        yield started


def in_order(timeline):
    """All tasks of each rank in the order of their starts.

    Not garbage collections: there are some after the profiler has stopped. And of what belongs to no
    micro-batch, a recording's first line tells the stage, which marks do not.
    """
    tasks = timeline.tasks.filter(pl.col("kind") != "gc").sort("rank", "start_ns")
    return tasks.with_columns(stage=pl.when(pl.col("microbatch").is_not_null()).then("stage"))


@pytest.mark.parametrize("name", RUNS)
def test_what_torch_profiler_saw_of_a_job_is_what_was_recorded(jobs, name):
    """Every task once, in both, with the same numbers, in the same order and at the same time.

    PyTorch names many of these tasks as well, some of them wider: none may come twice.
    """
    job, folder = jobs[name]
    _, said = job.communicate(timeout=120)
    assert job.returncode == 0, said[-3000:]
    assert "Warning: bubblescope" not in said

    recorded = in_order(sources.load(folder / "recording"))
    timeline = sources.load(folder / "profile")
    profiled = in_order(timeline)

    _, steps, _ = RUNS[name]
    stages = RANKS if name == "1F1B" else 2 * RANKS
    passes = stages * MICROBATCHES * len(steps)
    kinds = dict(recorded.group_by("kind").len().iter_rows())
    assert kinds["forward"] == passes
    assert kinds.get("backward", 0) + kinds.get("backward_input", 0) == passes
    assert kinds.get("backward_weight", 0) == kinds.get("backward_input", 0)
    assert timeline.steps == steps
    assert (timeline.run.warnings, timeline.run.inferred) == ((), {})

    numbers = ["rank", "step", "kind", "lane", "stage", "chunk", "microbatch", "peer"]
    assert profiled.select(numbers).rows() == recorded.select(numbers).rows()

    # The clocks of the two differ; but for that, starts differ by far less than tasks lie apart.
    apart = profiled.select(
        "rank",
        late=recorded["start_ns"] - profiled["start_ns"],
        gap=pl.col("start_ns").diff().over("rank"),
    )
    astray = (pl.col("late") - pl.col("late").median()).abs().median()
    for rank in apart.partition_by("rank"):
        assert rank.select(astray).item() < rank["gap"].median()


class Vendor:
    """Stands in for NVTX and mstx. Ranges close in the order of a stack, for NVTX knows no other."""

    def __init__(self):
        self.calls = []
        self.open = {}

    def begin(self, way, *said):
        opened = self.open.setdefault((way, threading.get_ident()), [])
        opened.append(len(self.calls))
        self.calls.append((f"{way} begin", *said))
        return opened[-1]

    def end(self, way, number=None):
        opened = self.open[way, threading.get_ident()]
        assert number in {None, opened[-1]}
        opened.pop()
        self.calls.append((f"{way} end",))

    def names(self, way):
        return [said[1] for said in self.calls if said[0] == f"{way} begin"]


@contextmanager
def vendor():
    """A job that has NVTX and mstx."""
    seen = Vendor()
    modules = {name: ModuleType(name) for name in ("torch", "torch.cuda", "torch_npu")}
    modules["torch.cuda"].nvtx = SimpleNamespace(
        range_push=lambda name: seen.begin("nvtx", name),
        range_pop=lambda: seen.end("nvtx"),
        mark=lambda _: None,
    )
    mstx = SimpleNamespace(
        range_start=lambda name, stream: seen.begin("mstx", name, stream),
        range_end=lambda number: seen.end("mstx", number),
    )
    modules["torch_npu.npu"] = ModuleType("torch_npu.npu")
    modules["torch_npu.npu"].mstx = mstx
    modules["torch"].npu = SimpleNamespace(
        current_stream=lambda: "stream 7", is_available=lambda: False
    )
    with mock.patch.dict(sys.modules, modules):
        yield seen
    assert not any(seen.open.values())


NUMBERS = st.integers(0, 2**31 - 1)
TASKS = st.lists(
    st.tuples(
        st.sampled_from(list(Kind)),
        st.fixed_dictionaries(
            {},
            optional={
                **dict.fromkeys(("stage", "microbatch", "peer"), st.integers(0, bounds.RANKS - 1)),
                "chunk": st.integers(0, 2**15 - 1),
            },
        ),
        st.booleans(),
        st.integers(0, 3),
    ),
    max_size=12,
)
"""Kind, numbers, whether by the fast way of wrappers, and how many open tasks end before."""


@settings(max_examples=examples(40), deadline=None)
@given(NUMBERS, TASKS)
def test_every_task_is_one_range_whose_name_says_the_same(step, tasks):
    """Whatever lies inside of what, and whichever way a task is recorded."""
    expected = [ParsedName(kind, step=step, **numbers) for kind, numbers, *_ in tasks]
    with vendor() as seen, tempfile.TemporaryDirectory() as folder:
        marks = AllMarks([NvtxMarks(), MstxMarks()])
        with (
            Recorder(folder, rank=0, timer=CpuTimer(), marks=marks) as recorder,
            recorder.step(step),
        ):
            ends = []
            for kind, numbers, fast, ending in tasks:
                for end in [ends.pop() for _ in range(min(ending, len(ends)))]:
                    end()
                if fast:
                    place = identity_of(kind, **numbers)
                    began = recorder.begin_task(place)
                    ends.append(lambda place=place, began=began: recorder.end_task(place, began))
                else:
                    ends.append(opened(recorder.task(kind, **numbers)))
            for end in reversed(ends):
                end()
        parser = NameParser()
        for way in ("nvtx", "mstx"):
            assert [parser.parse(name) for name in seen.names(way)] == [[one] for one in expected]
        assert len(sources.load(folder)) == len(tasks)


def opened(task):
    """Begin a task, and return what ends it."""
    task.__enter__()
    return lambda: task.__exit__(None, None, None)


def test_the_name_of_an_overlapped_pair_says_both_halves(tmp_path):
    with vendor() as seen, Recorder(tmp_path, rank=0, timer=CpuTimer(), marks=NvtxMarks()) as job:
        with job.step(4), job.task(Kind.FORWARD_BACKWARD, stage=1, microbatch=5, pair=(6, 0, 2)):
            pass
    said = ParsedName(
        Kind.FORWARD_BACKWARD, step=4, stage=1, microbatch=5, pair_stage=6, pair_microbatch=2
    )
    assert [NameParser().parse(name) for name in seen.names("nvtx")] == [[said]]


def test_ranges_close_though_recording_has_failed_meanwhile(tmp_path):
    with vendor() as seen:
        session = Session(Settings(out=str(tmp_path), marks=("nvtx", "mstx"), timer="cpu"))
        session.begin_step()
        begun = session.begin([identity_of(Kind.SEND_FORWARD), identity_of(Kind.RECV_BACKWARD)])
        with pytest.warns(RuntimeWarning, match="stopped recording"):
            session.fail(ValueError("no such thing"))
        session.end(begun)
    assert len(seen.names("nvtx")) == len(seen.names("mstx")) == 2


def test_several_marks_enclose_each_other_and_end_if_the_task_fails(tmp_path):
    with vendor() as seen:
        marks = chosen_marks(["nvtx", "mstx"])
        with Recorder(tmp_path, rank=0, timer=CpuTimer(), marks=marks) as recorder:
            with pytest.raises(ZeroDivisionError), recorder.step():
                with recorder.task("forward", microbatch=1):
                    raise ZeroDivisionError
    name = "bubblescope:forward step=0 microbatch=1"
    assert seen.calls == [
        ("nvtx begin", name),
        ("mstx begin", name, "stream 7"),
        ("mstx end",),
        ("nvtx end",),
    ]


def test_each_thread_ends_its_own_ranges():
    with vendor() as seen:
        marks = MstxMarks()
        marks.push("outer")
        thread = threading.Thread(target=lambda: (marks.push("other"), marks.pop()))
        thread.start()
        thread.join()
        marks.pop()
    assert seen.names("mstx") == ["outer", "other"]


def test_outside_the_window_nothing_is_shown(tmp_path):
    with vendor() as seen:
        with Recorder(
            tmp_path, rank=0, timer=CpuTimer(), start=1, stop=2, marks=NvtxMarks()
        ) as all_:
            for _ in range(3):
                with all_.step(), all_.task("forward"):
                    pass
    assert seen.names("nvtx") == ["bubblescope:forward step=1"]


def test_marks_that_the_job_cannot_make_are_refused_before_it_trains(monkeypatch):
    def refuse(*_):
        raise RuntimeError("NVTX functions not installed")

    with vendor():
        monkeypatch.setattr(sys.modules["torch.cuda"].nvtx, "mark", refuse)
        with pytest.raises(RecorderError, match=r"no nvtx marks in this job .*not installed"):
            chosen_marks(["nvtx"])
        sys.modules["torch_npu.npu"] = None
        with pytest.raises(RecorderError, match="no mstx marks in this job"):
            chosen_marks(["mstx"])
    with pytest.raises(RecorderError, match="'rocm' are not marks; use some of nvtx, mstx, torch"):
        chosen_marks(["rocm"])
    assert chosen_marks([]) is None


def test_on_a_device_what_pytorch_names_too_comes_once_and_its_receives_stay(tmp_path):
    """PyTorch's ranges are wider than marks, and its steps are counted from another one."""
    trace = Trace(rank=1)
    kernel = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    for index, step in enumerate((5, 6)):
        at, of = index * 10_000, f"step={step} stage=1 microbatch=0"
        trace.range(f"ProfilerStep#{index}", at, at + 9000)
        trace.range("PP:1RECV_F0", at + 100, at + 190)
        received = {"Collective name": "recv", "Src Rank": 0}
        trace.kernel(at + 1000, at + 1100, at=at + 110, name=kernel, **received)
        trace.range("PP:1F0", at + 200, at + 900)
        trace.range(f"bubblescope:recv_forward {of} peer=0", at + 210, at + 230)
        trace.range(f"bubblescope:forward {of}", at + 250, at + 800)
        trace.kernel(at + 1200, at + 1300, at=at + 260)
        trace.kernel(at + 1300, at + 1390, at=at + 850)  # in PyTorch's range only
        trace.range("PP:1SEND_F0", at + 910, at + 990)
        trace.range(f"bubblescope:send_forward {of} peer=2", at + 920, at + 980)
        trace.kernel(at + 1400, at + 1500, at=at + 930, name=kernel)

    timeline = sources.load(trace.write(tmp_path / "t.json"))

    found = timeline.tasks.sort("start_ns").select(
        "step", "kind", "stage", "microbatch", "peer", "start_ns", "end_ns"
    )
    assert found.rows() == [
        (step, kind, 1, 0, peer, BASE + at + start, BASE + at + end)
        for step, at in ((5, 0), (6, 10_000))
        for kind, peer, start, end in (
            ("recv_forward", 0, 1000, 1100),
            ("forward", None, 1200, 1300),
            ("send_forward", 2, 1400, 1500),
        )
    ]
    lost = {notice.code: (notice.lost, notice.total) for notice in timeline.run.warnings}
    assert lost["kernels-outside-ranges"] == (2, 8)


def test_marks_of_other_tasks_take_nothing_from_pytorchs_names(tmp_path):
    trace = Trace(header={"deviceProperties": []})
    trace.range("PP:0F0", 100, 900)
    trace.operator("aten::linear", 200, 600)
    trace.range("bubblescope:data step=0", 20, 90)
    trace.operator("aten::stack", 30, 80)

    tasks = sources.load(trace.write(tmp_path / "t.json")).tasks.sort("start_ns")

    assert tasks.select("kind", "start_ns").rows() == [("data", BASE + 30), ("forward", BASE + 200)]
