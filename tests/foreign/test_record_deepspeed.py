"""Recording DeepSpeed: the package itself where it is installed, and a stand-in of its structure.

The stand-in has the classes, signatures and calls of `deepspeed.runtime.pipe` 0.19.8, without models.
"""

from __future__ import annotations

import sys
import textwrap
import time
from types import MethodType, ModuleType, SimpleNamespace

import polars as pl
import pytest

from bubblescope import sources
from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of
from bubblescope.record.integrations import deepspeed
from bubblescope.record.session import Session
from bubblescope.record.settings import Settings
from bubblescope.render.text.report import Report
from evaluating import check_evaluations, said_evaluations, stamped
from full import needs
from jobs import digests, forked, run

RANKS, MICROBATCHES, STEPS = 2, 4, 3
TRANSFERS = ("send_forward", "recv_forward", "send_backward", "recv_backward")


class Instruction:
    def __init__(self, **said):
        self.kwargs = said


NAMES = (
    "OptimizerStep",
    "ReduceGrads",
    "ReduceTiedGrads",
    "LoadMicroBatch",
    "ForwardPass",
    "BackwardPass",
    "SendActivation",
    "RecvActivation",
    "SendGrad",
    "RecvGrad",
    "CommitP2P",
    "Unheard",
)
I = SimpleNamespace(**{name: type(name, (Instruction,), {}) for name in NAMES})  # noqa: E741


class TrainSchedule:
    """All forwards, then all backwards, in two buffers."""

    def __init__(self, micro_batches, stages, stage_id):
        self.micro_batches, self.stages, self.stage_id = micro_batches, stages, stage_id

    def steps(self):
        first, last = self.stage_id == 0, self.stage_id == self.stages - 1
        for number in range(self.micro_batches):
            buffer = {"buffer_id": number % 2}
            yield [I.LoadMicroBatch(**buffer)] if first or last else []
            yield [] if first else [I.RecvActivation(**buffer)]
            yield [I.ForwardPass(**buffer)]
            yield [] if last else [I.SendActivation(**buffer)]
        for number in range(self.micro_batches):
            buffer = {"buffer_id": number % 2}
            yield [] if last else [I.RecvGrad(**buffer)]
            yield [I.BackwardPass(**buffer), I.Unheard()]
            yield [] if first else [I.SendGrad(**buffer)]
        yield [I.ReduceTiedGrads(), I.ReduceGrads(), I.OptimizerStep()]


class InferenceSchedule(TrainSchedule):
    def steps(self):
        for number in range(self.micro_batches):
            yield [I.ForwardPass(buffer_id=number % 2)]


class DualPipeVSchedule(TrainSchedule):
    """Transfers are queued, and done by CommitP2P."""

    def steps(self):
        first, last, m = self.stage_id == 0, self.stage_id == self.stages - 1, self.micro_batches
        ends = {0: (first, last), 1: (last, first)}
        for phase in (0, 1):
            begins, ends_here = ends[phase]
            for number in range(m):
                said = {"buffer_id": phase * m + number, "phase": phase}
                if begins and phase == 0:
                    yield [I.LoadMicroBatch(buffer_id=number)]
                yield [] if begins else [I.RecvActivation(**said)]
                yield [I.CommitP2P(), I.ForwardPass(**said)]
                yield [] if ends_here else [I.SendActivation(**said)]
        for phase in (1, 0):
            begins, ends_here = ends[phase]
            for number in range(m):
                said = {"buffer_id": phase * m + number, "phase": phase}
                yield [] if ends_here else [I.RecvGrad(**said)]
                yield [I.CommitP2P(), I.BackwardPass(**said)]
                yield [] if begins else [I.SendGrad(**said)]
        yield [I.CommitP2P(), I.ReduceTiedGrads(), I.ReduceGrads(), I.OptimizerStep()]


class Grid:
    """Pipelines of rank 2 * stage + replica."""

    def __init__(self, rank):
        self.rank = rank

    def get_stage_id(self):
        return self.rank // 2

    def stage_to_global(self, stage):
        return 2 * stage + self.rank % 2

    def topology(self):
        lines = {"pipe": [[0, 2], [1, 3]], "data": [[0, 1], [2, 3]]}
        return SimpleNamespace(
            get_coord=lambda rank: SimpleNamespace(pipe=rank // 2, data=rank % 2),
            get_axis_names=lambda: list(lines),
            get_axis_comm_lists=lines.get,
        )


def module_of():
    """Return a module like deepspeed.runtime.pipe.engine."""

    class PipelineEngine:
        schedule = TrainSchedule
        evaluating = staticmethod(lambda: None)

        def __init__(self, rank):
            self.grid = Grid(rank)
            self.global_rank = rank
            self.stage_id = self.grid.get_stage_id()
            self.num_stages = RANKS
            self.micro_batches = MICROBATCHES
            self.device = SimpleNamespace(index=5)
            self.ran = []
            self.inner = lambda: None

        def train_batch(self):
            self._exec_schedule(self.schedule(self.micro_batches, self.num_stages, self.stage_id))
            return self._aggregate_total_loss()

        def eval_batch(self):
            torch.grad = False
            try:
                self.evaluating()
                self._exec_schedule(
                    InferenceSchedule(self.micro_batches, self.num_stages, self.stage_id)
                )
            finally:
                torch.grad = True

        def _aggregate_total_loss(self):
            return len(self.ran)

        def _exec_schedule(self, pipe_schedule):
            for commands in pipe_schedule.steps():
                for command in commands:
                    run = MethodType(self._INSTRUCTION_MAP[type(command)], self)
                    run(**command.kwargs)

        def _run(self, **said):
            self.ran.append(tuple(said.values()))

        def _step(self):
            self.inner()
            self.ran.append(())

        _INSTRUCTION_MAP = {  # noqa: RUF012  as it is there
            **dict.fromkeys((getattr(I, name) for name in NAMES), _run),
            I.OptimizerStep: _step,
        }
        del _INSTRUCTION_MAP[I.CommitP2P]

    class DualPipeVEngine(PipelineEngine):
        schedule = DualPipeVSchedule
        _INSTRUCTION_MAP = {  # noqa: RUF012
            **PipelineEngine._INSTRUCTION_MAP,
            I.CommitP2P: PipelineEngine._run,
        }

    torch = SimpleNamespace(grad=True, is_grad_enabled=lambda: torch.grad)
    module = ModuleType("deepspeed.runtime.pipe.engine")
    module.torch, module.PipelineEngine = torch, PipelineEngine
    module.DualPipeVEngine = DualPipeVEngine
    return module


def played(folder, name, **window):
    """Return what the engines of two pipelines ran and their losses."""
    results = []
    for rank in range(2 * RANKS):
        module = module_of()
        session = Session(Settings(str(folder), **window))
        deepspeed.engine(module, session)
        engine = getattr(module, name)(rank)
        engine.inner = session.timed(engine.inner, lambda: identity_of(Kind.OPTIMIZER))
        for _ in range(STEPS):
            results.append((engine.train_batch(), list(engine.ran)))
            engine.eval_batch()
        session.close()
        assert "_INSTRUCTION_MAP" not in vars(engine)
    return results


def check(timeline, *, chunks, transfers=True, ranks=RANKS):
    """Every F and B of m x stages x steps once, on its place, and what goes with them."""
    tasks = timeline.tasks
    passes = tasks.filter(pl.col("kind").is_in(["forward", "backward"]))
    expected = {
        (rank, step, kind, stage, chunk, number)
        for rank, places in timeline.ranks.select("rank", "stages").iter_rows()
        for chunk, stage in enumerate(places)
        for step in range(STEPS)
        for kind in ("forward", "backward")
        for number in range(MICROBATCHES)
    }
    fields = ("rank", "step", "kind", "stage", "chunk", "microbatch")
    found = passes.with_columns(pl.col("chunk").fill_null(0)).select(fields).rows()
    assert len(found) == len(expected)
    assert set(found) == expected
    replicas = timeline.ranks.height // ranks
    counts = dict(tasks.group_by("kind").len().iter_rows())
    assert counts["optimizer"] == timeline.ranks.height * STEPS
    assert counts["collective"] == 3 * timeline.ranks.height * STEPS
    if transfers:
        each = replicas * STEPS * MICROBATCHES * (chunks * ranks - 1 - (chunks > 1))
        assert {kind: counts[kind] for kind in TRANSFERS} == dict.fromkeys(TRANSFERS, each)
    ends = {1: "send_forward", -1: "recv_forward"}
    place_of_stage = {
        (dp, stage): rank
        for rank, dp, places in timeline.ranks.select("rank", "dp", "stages").iter_rows()
        for stage in places
    }
    dp_of = dict(timeline.ranks.select("rank", "dp").iter_rows())
    for way, kind in ends.items():
        back = {"send_forward": "recv_backward", "recv_forward": "send_backward"}[kind]
        moved = tasks.filter(pl.col("kind").is_in([kind, back]))
        for rank, stage, peer in moved.select("rank", "stage", "peer").iter_rows():
            assert place_of_stage[dp_of[rank], stage + way] == peer
    assert timeline.steps == list(range(STEPS))
    assert timeline.run.microbatches == MICROBATCHES


class TestOfItsStructure:
    @pytest.mark.parametrize(
        ("name", "chunks", "schedule"),
        [("PipelineEngine", 1, "TrainSchedule"), ("DualPipeVEngine", 2, "DualPipeVSchedule")],
    )
    def test_every_instruction_is_recorded_once_and_run_as_before(
        self, tmp_path, name, chunks, schedule
    ):
        with_us = played(tmp_path / "recording", name)
        without = played(tmp_path / "outside", name, start=1000)
        assert with_us == without
        timeline = sources.load(tmp_path / "recording", clock="raw")
        check(timeline, chunks=chunks)
        assert timeline.run.schedule == schedule
        stages = [[0], [0], [1], [1]] if chunks == 1 else [[0, 3], [0, 3], [1, 2], [1, 2]]
        assert timeline.ranks.select("stages", "dp", "device").rows() == [
            (places, rank % 2, 5) for rank, places in enumerate(stages)
        ]
        assert timeline.ranks["pp"].to_list() == [0, 0, 1, 1]
        other = timeline.tasks.filter(kind="other", lane="compute").height
        assert other == (STEPS * 2 * RANKS * MICROBATCHES if chunks == 1 else 0)

    @pytest.mark.parametrize("name", ["PipelineEngine", "DualPipeVEngine"])
    def test_an_evaluation_is_a_task_of_the_step_that_it_follows(self, tmp_path, name):
        module = module_of()
        session = Session(Settings(str(tmp_path)))
        deepspeed.engine(module, session)
        engine = getattr(module, name)(0)
        stamps = []

        def evaluate(after, evaluating):
            engine.evaluating = evaluating
            stamps.append(stamped(engine.eval_batch, 0, after))

        evaluate(None, lambda: time.sleep(0.05))
        for step in range(STEPS):
            engine.train_batch()
            evaluate(step, lambda: time.sleep(0.05))
            evaluate(step, lambda: time.sleep(0.05) or 1 / 0)
        session.close()
        timeline = sources.load(tmp_path)
        check_evaluations(timeline, stamps)
        assert timeline.steps == list(range(STEPS))
        passes = timeline.tasks.filter(kind="forward")
        assert passes.height == STEPS * MICROBATCHES * len(timeline.ranks["stages"][0])

    def test_only_the_window_is_recorded(self, tmp_path):
        played(tmp_path, "PipelineEngine", start=1, stop=2)
        assert sources.load(tmp_path, clock="raw").steps == [1]

    def test_the_job_leaves_after_the_window_if_it_is_to(self, tmp_path):
        with pytest.raises(SystemExit):
            played(tmp_path, "PipelineEngine", stop=1, exit_after=True)

    def test_an_engine_that_says_nothing_of_itself_trains_on(self, tmp_path):
        module = module_of()
        session = Session(Settings(str(tmp_path)))
        deepspeed.engine(module, session)
        engine = module.PipelineEngine(0)
        engine.grid.topology = None
        with pytest.warns(RuntimeWarning, match="training goes on") as warned:
            for _ in range(STEPS):
                engine.train_batch()
        assert len(warned) == 1
        assert len(engine.ran) == STEPS * 27

    def test_an_error_of_the_job_is_its_own(self, tmp_path):
        module = module_of()
        session = Session(Settings(str(tmp_path)))
        deepspeed.engine(module, session)
        engine = module.PipelineEngine(0)
        engine.inner = lambda: 1 / 0
        with pytest.raises(ZeroDivisionError):
            engine.train_batch()
        assert "_INSTRUCTION_MAP" not in vars(engine)
        assert session.recorder.recording
        session.close()


def test_a_version_that_lacks_a_function_is_one_warning(tmp_path):
    package = tmp_path / "deepspeed" / "runtime" / "pipe"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):  # before an installed one
        (folder / "__init__.py").touch()
    (package / "engine.py").write_text("class PipelineEngine:\n    pass\n")
    script = tmp_path / "job.py"
    script.write_text("import deepspeed.runtime.pipe.engine as e; print(e.PipelineEngine.__name__)")
    record = (sys.executable, "-m", "bubblescope", "record", "--output", str(tmp_path / "out"))
    done = run([*record, "--", sys.executable, str(script)])
    assert done.stdout.splitlines()[0] == "PipelineEngine"
    assert done.stderr.count("bubblescope cannot record deepspeed.runtime.pipe.engine") == 1
    assert "Traceback" not in done.stderr


TRAIN = """
import hashlib, sys, time
import deepspeed, torch
from deepspeed.pipe import LayerSpec
from torch import nn

name, steps, microbatches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
# It would compile a way of its own through shared memory for a minute, once on each machine.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo")
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.manual_seed(3)
layers = [LayerSpec(nn.Linear, 8, 8) for _ in range(2 * ranks)]
module = getattr(deepspeed.pipe, name)
net = module(
    layers=layers, num_stages=ranks, loss_fn=nn.functional.mse_loss, partition_method="uniform"
)
config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": microbatches}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
torch.manual_seed(9)

def batches():
    while True:
        x = torch.randn(2, 8)
        yield x, torch.tanh(x)

data, digest = batches(), hashlib.sha256()
for step in range(steps):
    digest.update(engine.train_batch(data).detach().numpy().tobytes())
    if step == 0:
        began = time.time_ns()
        engine.eval_batch(data)
        print(f"\\nevaluated {rank} 0 {began} {time.time_ns()}\\n", end="", flush=True)
for parameter in net.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print(f"\\nrank {rank} {digest.hexdigest()}\\n", end="", flush=True)
"""


@pytest.mark.parametrize(
    ("name", "chunks", "schedule"),
    [("PipelineModule", 1, "1f1b"), ("DualPipeVModule", 2, "dualpipev")],
)
def test_deepspeed_itself_is_recorded_as_it_ran(tmp_path, name, chunks, schedule):
    needs("deepspeed")
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAIN))
    job = script, name, str(STEPS), str(MICROBATCHES)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS))
    launch = [*torchrun, "--standalone", *map(str, job)]
    folder = tmp_path / "recording"
    with_us = run(
        [sys.executable, "-m", "bubblescope", "record", "--output", str(folder), "--", *launch]
    )
    assert with_us.returncode == 0, with_us.stderr[-2000:]
    assert "built successfully" not in with_us.stdout
    alone = run(forked(RANKS, "deepspeed", *job))
    assert digests(with_us, RANKS) == digests(alone, RANKS)
    timeline = sources.load(folder)
    check(timeline, chunks=chunks)
    check_evaluations(timeline, said_evaluations(with_us.stdout))
    assert Report.of(timeline).to_dict()["schedule"]["schedule"] == schedule
