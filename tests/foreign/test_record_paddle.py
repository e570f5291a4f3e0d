"""Recording Paddle: the package itself where it is installed, and stand-ins of its structure.

The stand-ins have the classes, signatures and calls of PaddlePaddle 3.3.1, without models or transfers.
"""

from __future__ import annotations

import sys
import textwrap
from types import ModuleType, SimpleNamespace

import numpy as np
import polars as pl
import pytest

from bubblescope import sources
from bubblescope.record.integrations import paddle_pipelines as paddle
from bubblescope.record.session import Session
from bubblescope.record.settings import Settings
from bubblescope.record.timers.events import PaddleTimer
from bubblescope.render.text.report import Report
from evaluating import check_evaluations, said_evaluations, stamped
from full import needs
from jobs import run

RANKS, MICROBATCHES, STEPS = 3, 6, 2
FIELDS = ("rank", "step", "stage", "chunk", "microbatch")
TRANSFERS = ("send_forward", "recv_forward", "send_backward", "recv_backward")


class Grid:
    """Three stages, two replicas, which share out the optimizer's state."""

    def __init__(self, rank):
        self.rank = rank

    get_data_parallel_rank = get_model_parallel_rank = lambda self: 0
    get_sharding_parallel_world_size = lambda self: 2  # noqa: E731

    def get_global_rank(self):
        return self.rank

    def get_sharding_parallel_rank(self):
        return self.rank // RANKS

    def get_pipe_parallel_group(self):
        first = self.rank // RANKS * RANKS
        return SimpleNamespace(ranks=list(range(first, first + RANKS)))

    def get_sharding_parallel_group(self):
        return SimpleNamespace(ranks=[self.rank % RANKS, self.rank % RANKS + RANKS])

    def get_data_parallel_group(self):
        return SimpleNamespace(ranks=[self.rank])

    def get_sep_parallel_group(self):
        raise AssertionError("sep is not enabled")

    def _get_p2p_next_rank(self):
        return self.rank + 1

    def _get_p2p_prev_rank(self):
        return self.rank - 1


class PipelineParallel:
    """All forwards, then all backwards."""

    def __init__(self, rank, p2p):
        self._hcg, self._p2p = Grid(rank), p2p
        self.stage_id, self.num_stages = rank % RANKS, RANKS
        self.accumulate_steps = MICROBATCHES
        self.ran = []

    def train_batch(self):
        return self.forward_backward_pipeline("data", None)

    def eval_batch(self):
        for number in range(self.accumulate_steps):
            self._forward_step(None, "data", step_id=number)

    def forward_backward_pipeline(self, data, scaler=None, static_scheduler=False):
        del scaler
        if static_scheduler:
            return "f0;b0;"
        first, last = self.stage_id == 0, self.stage_id == self.num_stages - 1
        for number in range(self.accumulate_steps):
            if not first:
                self._move(recv_prev=True)
            self._forward_step(input_tensor=None, micro_dataset=data, step_id=number)
            if not last:
                self._move(tensor_send_next=1)
        for number in range(self.accumulate_steps):
            if not last:
                self._move(recv_next=True)
            self._backward_step(None, None, None, step_id=number)
            if not first:
                self._move(tensor_send_prev=1)
        return self._broadcast_final_loss()

    def _move(self, **what):
        nothing = {"tensor_send_next": None, "tensor_send_prev": None}
        self._p2p._p2p_helper(**{**nothing, "recv_prev": False, "recv_next": False, **what})

    def _broadcast_final_loss(self):
        return len(self.ran)

    def _forward_step(self, input_tensor, micro_dataset, chunk_id=None, step_id=None):
        self.ran.append(("f", chunk_id, step_id))

    def _backward_step(
        self, input_tensor, output_tensor, output_tensor_grad, chunk_id=None, step_id=None
    ):
        self.ran.append(("b", chunk_id, step_id))


class PipelineParallelWithInterleave(PipelineParallel):
    """Two chunks; in the middle a forward and a backward at a time."""

    num_model_chunks = 2
    overlap_schedule_mode = False

    def eval_batch(self):
        self.forward_backward_pipeline("data", None, forward_only=True)

    def _get_virtual_pp_rank(self, micro_step, forward):
        chunk = micro_step // self.num_stages % self.num_model_chunks
        return chunk if forward else self.num_model_chunks - 1 - chunk

    def forward_backward_pipeline(self, data, scaler, forward_only=False, compute_loss=True):
        del scaler, compute_loss
        count, early = self.accumulate_steps * self.num_model_chunks, 4
        if forward_only:
            early = count
        for number in range(early):
            self._forward_step_helper(data, number)
        self._move(tensor_send_next=1, recv_prev=True)
        if forward_only:
            return None
        for number in range(early, count):
            self._forward_backward_helper(data, number, number - early)
        for number in range(count - early, count):
            self._backward_step_helper(number)
        return self._broadcast_final_loss()

    def _forward_step_helper(self, data, number):
        self._forward_step(None, data, self._get_virtual_pp_rank(number, forward=True), number)

    def _backward_step_helper(self, number):
        chunk = self._get_virtual_pp_rank(number, forward=False)
        self._backward_step(None, None, None, chunk_id=chunk, step_id=number)

    def _forward_backward_helper(self, micro_dataset, forward, backward, p2p_async_handle=None):
        if self.overlap_schedule_mode:
            self.ran.append(("fb", forward, backward))
            return
        self._forward_step_helper(micro_dataset, forward)
        self._backward_step_helper(backward)


class BaseOfItsOwn(PipelineParallelWithInterleave):
    """One that calls its base."""

    def forward_backward_pipeline(self, data, scaler, forward_only=False):
        return super().forward_backward_pipeline(data, scaler, forward_only)


class Overlapping(PipelineParallelWithInterleave):
    overlap_schedule_mode = True


class WeightGradStore:
    @classmethod
    def pop(cls):
        pass


class DualPipeVParallel(PipelineParallel):
    """DeepSeek's, with Paddle's names."""

    store = WeightGradStore
    overlapped_forward_backward = True

    def __init__(self, rank, p2p):
        super().__init__(rank, p2p)
        self.prev_rank, self.next_rank = rank - 1, rank + 1

    def eval_batch(self):
        self.forward_backward_pipeline("data", None, forward_only=True)

    def forward_backward_pipeline(self, data, scaler, forward_only=False, compute_loss=True):
        del scaler, compute_loss
        self.forward_only = forward_only
        self.comm_forward_ops, self.comm_backward_ops = [], []
        for what in ("f", "b", "send_f", "send_b", "recv_f", "recv_b"):
            setattr(self, f"current_{what}_acc_id", [0, 0])
        m = self.accumulate_steps
        for _ in range(m):
            self._recv_forward(0)
            self._commit_and_wait_comm()
            self._forward_compute(0, data)
            self._send_forward(0)
        self._forward_compute(1, micro_datasets=data)
        for _ in range(m - 1):
            self._forward_backward_compute(1, 1, data)
        self._backward_compute(1)
        for number in range(m):
            self._backward_compute(0, enable_zb=number > m // 2)
        for _ in range(m - m // 2 - 1):
            self.store.pop()
        self._commit_and_wait_comm()
        return self._broadcast_final_loss()

    def _count(self, what, phase):
        getattr(self, f"current_{what}_acc_id")[phase] += 1
        self.ran.append((what, phase))

    def _forward_compute(self, phase, micro_datasets=None):
        self._count("f", phase)

    def _backward_compute(self, phase, enable_zb=False):
        if not self.forward_only:
            self._count("b", phase)

    def _forward_backward_compute(self, forward_phase, backward_phase, micro_datasets=None):
        self._count("f", forward_phase)
        self._count("b", backward_phase)

    def _recv_forward(self, phase):
        if self.stage_id:
            self._count("recv_f", phase)
            self.comm_forward_ops.append(phase)

    def _send_forward(self, phase):
        if self.stage_id < self.num_stages - 1:
            self._count("send_f", phase)
            self.comm_forward_ops.append(phase)

    def _recv_backward(self, phase):
        pass

    def _send_backward(self, phase):
        pass

    def _commit_and_wait_comm(self, p2p_overlap=False):
        self.comm_forward_ops, self.comm_backward_ops = [], []


def copied(one, **bases):
    """Return a class like another, with attributes of its own to replace."""
    own = {k: v for k, v in vars(one).items() if k not in ("__dict__", "__weakref__")}
    base = tuple(bases.get(base.__name__, base) for base in one.__bases__)
    made = type(one.__name__, base, {})
    for name, value in own.items():
        setattr(made, name, bound(value, made) if getattr(value, "__closure__", None) else value)
    return made


def bound(function, owner):
    """Return a function whose super() is that of another class."""
    cell = (lambda: owner).__closure__[0]
    code, known, defaults = function.__code__, function.__globals__, function.__defaults__
    return type(function)(code, known, function.__name__, defaults, (cell,))


def hooked(folder, rank, **window):
    """Return a session, the pipelines that it records, and the optimizer."""
    session = Session(Settings(str(folder), timer="cpu", **window))
    p2p = ModuleType("p2p_communication")
    p2p._p2p_helper, p2p._hcg = lambda **_: (None, None, None), Grid(rank)
    paddle.transfers(p2p, session)
    module = ModuleType("pipeline_parallel")
    bases = {}
    for one in (PipelineParallel, PipelineParallelWithInterleave, BaseOfItsOwn, Overlapping):
        bases[one.__name__] = copied(one, **bases)
        setattr(module, one.__name__, bases[one.__name__])
    paddle.pipelines(module, session)
    pipe = copied(DualPipeVParallel, **bases)
    pipe.store = copied(WeightGradStore)
    paddle.dualpipev(SimpleNamespace(DualPipeVParallel=pipe, WeightGradStore=pipe.store), session)
    module.DualPipeVParallel = pipe
    hybrid = SimpleNamespace(HybridParallelOptimizer=type("O", (), {"step": lambda _: "stepped"}))
    paddle.optimizer(hybrid, session)
    return session, module, p2p, hybrid.HybridParallelOptimizer()


def played(folder, name, ranks=RANKS, **window):
    """Return what the pipelines of all ranks ran."""
    results = []
    for rank in range(ranks):
        session, module, p2p, optimizer = hooked(folder, rank, **window)
        pipeline = getattr(module, name)(rank, p2p)
        for _ in range(STEPS):
            results.append(pipeline.train_batch())
            assert optimizer.step() == "stepped"
            pipeline.eval_batch()
        session.close()
        results.append(pipeline.ran)
    return results


@pytest.fixture
def _on_a_device(monkeypatch):
    device = SimpleNamespace(get_device=lambda: "gpu:4")
    monkeypatch.setitem(sys.modules, "paddle", SimpleNamespace(device=device))


def passes(timeline, *kinds):
    tasks = timeline.tasks.with_columns(pl.col("chunk").fill_null(0))
    return tasks.filter(pl.col("kind").is_in(kinds)).select(FIELDS).rows()


def expected(timeline):
    """Every micro-batch of every step on every stage."""
    return sorted(
        (rank, step, stage, chunk, number)
        for rank, stages in timeline.ranks.select("rank", "stages").iter_rows()
        for step in range(STEPS)
        for chunk, stage in enumerate(stages)
        for number in range(MICROBATCHES)
    )


@pytest.mark.usefixtures("_on_a_device")
class TestOfItsStructure:
    @pytest.mark.parametrize(
        ("name", "stages"),
        [
            ("PipelineParallel", [[0], [1], [2]]),
            ("PipelineParallelWithInterleave", [[0, 3], [1, 4], [2, 5]]),
            ("BaseOfItsOwn", [[0, 3], [1, 4], [2, 5]]),
        ],
    )
    def test_every_pass_is_recorded_once_and_run_as_before(self, tmp_path, name, stages):
        with_us = played(tmp_path / "r", name, ranks=2 * RANKS)
        assert with_us == played(tmp_path / "outside", name, ranks=2 * RANKS, start=1000)
        timeline = sources.load(tmp_path / "r", clock="raw")
        assert timeline.ranks["stages"].to_list() == stages * 2
        assert timeline.ranks.select("dp", "tp", "device").rows() == [
            (replica, 0, 4) for replica in (0, 1) for _ in range(RANKS)
        ]
        assert timeline.ranks["pp"].to_list() == list(range(RANKS)) * 2
        replicas = [[first, first + RANKS] for first in range(RANKS)]
        pipelines = [list(range(first, first + RANKS)) for first in (0, RANKS)]
        groups = timeline.groups.filter(pl.col("ranks").list.len() > 1)
        for role, ranks in (("pp", pipelines), ("fsdp", replicas)):
            assert sorted(groups.filter(role=role)["ranks"].to_list()) == ranks
        for kind in ("forward", "backward"):
            assert sorted(passes(timeline, kind)) == expected(timeline)
        counts = dict(timeline.tasks.group_by("kind").len().iter_rows())
        assert counts["optimizer"] == counts["collective"] == 2 * RANKS * STEPS
        assert timeline.run.schedule == name
        assert timeline.run.microbatches == MICROBATCHES
        assert timeline.steps == list(range(STEPS))

    @pytest.mark.parametrize(
        "name", ["PipelineParallel", "PipelineParallelWithInterleave", "DualPipeVParallel"]
    )
    def test_an_evaluation_is_a_task_of_the_step_that_it_follows(self, tmp_path, name):
        session, module, p2p, _ = hooked(tmp_path, 0)
        pipeline = getattr(module, name)(0, p2p)
        stamps = [stamped(pipeline.eval_batch, 0, None)]
        for step in range(STEPS):
            pipeline.train_batch()
            stamps.append(stamped(pipeline.eval_batch, 0, step))
        session.close()
        timeline = sources.load(tmp_path)
        check_evaluations(timeline, stamps)
        assert timeline.steps == list(range(STEPS))

    def test_transfers_say_their_micro_batch_and_peer(self, tmp_path):
        played(tmp_path, "PipelineParallel")
        tasks = sources.load(tmp_path, clock="raw").tasks
        for kind in TRANSFERS:
            moved = tasks.filter(kind=kind)
            assert moved.height == STEPS * MICROBATCHES * (RANKS - 1)
            way = 1 if kind in ("send_forward", "recv_backward") else -1
            assert (moved["peer"] == moved["rank"] + way).all()
            assert not moved.select("rank", "step", "microbatch").is_duplicated().any()

    def test_one_call_may_move_two(self, tmp_path):
        played(tmp_path, "PipelineParallelWithInterleave")
        tasks = sources.load(tmp_path, clock="raw").tasks
        for kind in ("send_forward", "recv_forward"):
            assert tasks.filter(kind=kind).height == RANKS * STEPS

    def test_overlapped_passes_are_pairs(self, tmp_path):
        played(tmp_path, "Overlapping")
        timeline = sources.load(tmp_path, clock="raw")
        pairs = timeline.tasks.filter(kind="forward_backward")
        assert pairs.height == RANKS * STEPS * (2 * MICROBATCHES - 4)
        seconds = pairs.select(
            "rank", "step", *(f"pair_{name}" for name in ("stage", "chunk", "microbatch"))
        ).rows()
        assert sorted(passes(timeline, "forward", "forward_backward")) == expected(timeline)
        assert sorted(passes(timeline, "backward") + seconds) == expected(timeline)

    def test_dualpipev_is_recorded_by_its_counts(self, tmp_path):
        with_us = played(tmp_path / "r", "DualPipeVParallel")
        assert with_us == played(tmp_path / "outside", "DualPipeVParallel", start=1000)
        timeline = sources.load(tmp_path / "r", clock="raw")
        assert timeline.ranks["stages"].to_list() == [[0, 5], [1, 4], [2, 3]]
        pairs = timeline.tasks.filter(kind="forward_backward")
        assert pairs.height == RANKS * STEPS * (MICROBATCHES - 1)
        seconds = pairs.select(
            "rank", "step", *(f"pair_{name}" for name in ("stage", "chunk", "microbatch"))
        ).rows()
        inputs = passes(timeline, "backward_input")
        assert inputs == passes(timeline, "backward_weight")
        assert sorted(passes(timeline, "forward", "forward_backward")) == expected(timeline)
        assert sorted([*passes(timeline, "backward"), *inputs, *seconds]) == expected(timeline)
        counts = dict(timeline.tasks.group_by("kind").len().iter_rows())
        each = STEPS * MICROBATCHES * (RANKS - 1)
        assert counts["send_forward"] == counts["recv_forward"] == each

    def test_a_schedule_that_is_only_printed_is_no_step(self, tmp_path):
        session, module, p2p, _ = hooked(tmp_path, 0)
        pipeline = module.PipelineParallel(0, p2p)
        assert pipeline.forward_backward_pipeline(None, static_scheduler=True) == "f0;b0;"
        assert session.recorder is None

    @pytest.mark.parametrize("unsaid", ["_hcg", "num_model_chunks"])
    def test_a_pipeline_that_says_nothing_of_itself_trains_on(self, tmp_path, unsaid):
        session, module, p2p, _ = hooked(tmp_path, 0)
        pipeline = module.PipelineParallel(0, p2p)
        setattr(pipeline, unsaid, None)
        with pytest.warns(RuntimeWarning, match="training goes on") as warned:
            for _ in range(STEPS):
                pipeline.train_batch()
        assert len(warned) == 1
        assert len(pipeline.ran) == 2 * MICROBATCHES * STEPS
        session.close()

    def test_a_version_that_lacks_a_function_is_left_alone(self, tmp_path):
        module = ModuleType("pipeline_parallel")
        module.PipelineParallel = copied(PipelineParallel)
        del module.PipelineParallel._backward_step
        before = dict(vars(module.PipelineParallel))
        with pytest.raises(AttributeError):
            paddle.pipelines(module, Session(Settings(str(tmp_path), timer="cpu")))
        assert dict(vars(module.PipelineParallel)) == before


def test_paddles_events_are_a_timer():
    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = 7

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return end.at - self.at + 0.5

    device = SimpleNamespace(Event=Event, synchronize=lambda: None)
    timer = PaddleTimer(device)
    anchor = timer.anchor()
    times = timer.resolve([timer.mark()], [timer.mark()], anchor, np.zeros(1, bool))
    assert (times - anchor.time_ns == np.array([[500_000], [500_000]])).all()


EXECUTOR = """
import os, sys, time

class core:
    @staticmethod
    def is_compiled_with_cuda():
        return os.environ["CUDA_THERE"] == "yes"

class _StandaloneExecutor:
    def __init__(self, *types):
        self._plan = self
        self._types = types

    def job_list(self):
        return [type("Job", (), {"type": lambda _, name=name: name})() for name in self._types]

    def run(self, feed_names, return_numpy=True, enable_job_schedule_profiler=False):
        ms = time.time() * 1000
        for number, name in enumerate(self._types * enable_job_schedule_profiler):
            sys.stderr.write(
                f"I1020 09:15:07.265326 22317 standalone_executor.cc:217] Profiler Info: Job (0), "
                f"type = {name}, micro_batch_id = 0, job_start_time = {ms + number:.6f}, "
                f"job_end_time = {ms + number + 0.5:.6f}\\n"
            )
        sys.stderr.flush()
        return enable_job_schedule_profiler
"""
WORKER = """
from paddle.base.executor import _StandaloneExecutor
start, train = _StandaloneExecutor("default"), _StandaloneExecutor("forward", "backward", "optimizer")
ran = [start.run([])] + [train.run([]) for _ in range(5)] + [start.run([])]
print(*map(int, ran), flush=True)
"""
LAUNCHER = """
import os, subprocess, sys
folder = sys.argv[2]
os.makedirs(folder)
workers = []
for rank in range(2):
    with open(f"{folder}/workerlog.{rank}", "w") as log:
        environment = {**os.environ, "PADDLE_GLOBAL_RANK": str(rank), "PADDLE_LOCAL_SIZE": sys.argv[3]}
        workers.append(
            subprocess.Popen([sys.executable, sys.argv[1]], stdout=log, stderr=log, env=environment)
        )
sys.exit(max(worker.wait() for worker in workers))
"""


def hide_real(*packages):
    """Make packages of these folders, which are found before those that are installed."""
    for package in packages:
        (package / "__init__.py").touch()


class TestStaticGraphs:
    def launched(self, tmp_path, *options, cuda="yes", workers="2", nodes="1"):
        package = tmp_path / "paddle" / "base"
        package.mkdir(parents=True)
        hide_real(package, package.parent)
        (package / "executor.py").write_text(EXECUTOR)
        (tmp_path / "worker.py").write_text(WORKER)
        (tmp_path / "launcher.py").write_text(LAUNCHER)
        run(
            [
                *(sys.executable, "-m", "bubblescope", "record", *options),
                *("--output", str(tmp_path / "recording"), "--"),
                *(sys.executable, str(tmp_path / "launcher.py"), str(tmp_path / "worker.py")),
                *(str(tmp_path / "log"), workers),
            ],
            PADDLE_NNODES=nodes,
            CUDA_THERE=cuda,
        )
        return [(tmp_path / "log" / f"workerlog.{rank}").read_text() for rank in range(2)]

    def test_the_executor_profiles_the_steps_to_record(self, tmp_path):
        logs = self.launched(tmp_path, "--steps", "1:3")
        for log in logs:
            assert "0 0 1 1 0 0 0" in log.splitlines()
            assert "Traceback" not in log
        timeline = sources.load(tmp_path / "recording", clock="raw")
        assert timeline.steps == [1, 2]
        counts = dict(timeline.tasks.group_by("kind").len().iter_rows())
        assert counts == {"forward": 4, "backward": 4, "optimizer": 4}
        assert timeline.ranks["rank"].to_list() == [0, 1]

    def test_logs_of_machines_are_kept_apart(self, tmp_path):
        self.launched(tmp_path, workers="1", nodes="2")
        kept = sorted((tmp_path / "recording").rglob("machine*/workerlog.*"))
        assert [path.parent.name for path in kept] == ["machine0", "machine1"]

    def test_it_leaves_after_the_window_if_it_is_to(self, tmp_path):
        logs = self.launched(tmp_path, "--steps", ":2", "--exit-after")
        assert all("Profiler Info" in log and "0 1 1" not in log for log in logs)
        assert sources.load(tmp_path / "recording", clock="raw").steps == [0, 1]

    def test_without_cuda_it_says_that_there_is_nothing(self, tmp_path):
        logs = self.launched(tmp_path, cuda="no")
        for log in logs:
            assert log.count("cannot record Paddle's static graph") == 1
            assert "0 0 0 0 0 0 0" in log.splitlines()


def test_an_executor_without_profiler_is_one_warning(tmp_path):
    package = tmp_path / "paddle" / "base"
    package.mkdir(parents=True)
    hide_real(package, package.parent)
    (package / "executor.py").write_text(
        "class _StandaloneExecutor:\n    def run(self, feed):\n        return feed\n"
    )
    script = tmp_path / "job.py"
    script.write_text(
        "from paddle.base.executor import _StandaloneExecutor as E; print(E().run(3))"
    )
    record = (sys.executable, "-m", "bubblescope", "record", "--output", str(tmp_path / "out"))
    done = run([*record, "--", sys.executable, str(script)])
    assert done.stdout.splitlines()[0] == "3"
    assert done.stderr.count("bubblescope cannot record paddle.base.executor") == 1


TRAIN = """
import hashlib, sys, time
import numpy as np, paddle
from paddle import nn
from paddle.distributed import fleet, parallel
from paddle.distributed.fleet.meta_parallel import LayerDesc, PipelineLayer

steps, microbatches, ranks = map(int, sys.argv[1:])
paddle.set_device("cpu")
parallel.ParallelEnv._device_id = 0  # which the build for CPUs asks for, but does not set
strategy = fleet.DistributedStrategy()
# Paddle's transfers through gloo cannot be batched.
strategy.hybrid_configs = {"pp_degree": ranks, "pp_configs": {"use_batch_p2p_comm": False}}
strategy.pipeline_configs = {"accumulate_steps": microbatches, "micro_batch_size": 2}
fleet.init(is_collective=True, strategy=strategy)
paddle.seed(3)
np.random.seed(3)

class Loss(nn.Layer):
    def forward(self, found, wanted):
        return ((found - wanted) ** 2).mean()

layers = [LayerDesc(nn.Linear, 8, 8) for _ in range(2 * ranks)]
model = fleet.distributed_model(PipelineLayer(layers=layers, num_stages=ranks, loss_fn=Loss()))
optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
optimizer = fleet.distributed_optimizer(optimizer)
digest = hashlib.sha256()
for step in range(steps):
    x = paddle.to_tensor(np.random.rand(2 * microbatches, 8).astype("float32"))
    digest.update(model.train_batch([x, x], optimizer).numpy().tobytes())
    if step == 0:
        began = time.time_ns()
        model.eval_batch([x, x], compute_loss=True)
        print("evaluated", paddle.distributed.get_rank(), 0, began, time.time_ns(), flush=True)
for parameter in model.parameters():
    digest.update(parameter.numpy().tobytes())
print(f"rank {paddle.distributed.get_rank()} {digest.hexdigest()}", flush=True)
"""


def test_paddles_dygraph_pipeline_is_recorded_as_it_ran(tmp_path):
    needs("paddle")
    ranks, script = 2, tmp_path / "train.py"
    script.write_text(TRAIN)

    def launch(name: str) -> list[str]:
        return [
            *(sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks)),
            *("--log_dir", str(tmp_path / name), str(script)),
            *map(str, (STEPS, MICROBATCHES, ranks)),
        ]

    def digests(name: str) -> list[str]:
        logs = [(tmp_path / name / f"workerlog.{rank}").read_text() for rank in range(ranks)]
        found = [line for log in logs for line in log.splitlines() if line.startswith("rank ")]
        assert len(found) == ranks, logs[0][-2000:]
        return found

    record = (sys.executable, "-m", "bubblescope", "record", "--output", str(tmp_path / "out"))
    done = run([*record, "--", *launch("with")], PADDLE_DISTRI_BACKEND="gloo")
    assert done.returncode == 0, done.stderr[-2000:]
    run(launch("without"), PADDLE_DISTRI_BACKEND="gloo")
    assert digests("with") == digests("without")
    timeline = sources.load(tmp_path / "out")
    logs = [(tmp_path / "with" / f"workerlog.{rank}").read_text() for rank in range(ranks)]
    check_evaluations(timeline, said_evaluations("".join(logs)))
    for kind in ("forward", "backward"):
        assert sorted(passes(timeline, kind)) == expected(timeline)
    counts = dict(timeline.tasks.group_by("kind").len().iter_rows())
    assert counts["optimizer"] == counts["collective"] == ranks * STEPS
    assert {kind: counts[kind] for kind in TRANSFERS} == dict.fromkeys(
        TRANSFERS, STEPS * MICROBATCHES * (ranks - 1)
    )
    found = Report.of(timeline).to_dict()["schedule"]
    assert found["schedule"] == "1f1b"
    assert timeline.groups.filter(role="pp")["ranks"].to_list() == [[0, 1]]


STATIC = """
import paddle
from paddle.base import core
from paddle.base.executor import _StandaloneExecutor

core.is_compiled_with_cuda = lambda: True
paddle.enable_static()
program = paddle.static.Program()
with paddle.static.program_guard(program):
    paddle.ones([2]) + 1
jobs = [core.Job("forward"), core.Job("backward")]
plan = core.Plan(jobs, {"forward": program, "backward": program})
executor = _StandaloneExecutor(paddle.CPUPlace(), plan, core.Scope())
theirs, told = executor._new_exe, []

class Told:
    def run(self, feed_names, profile):
        told.append(int(profile))
        return theirs.run(feed_names, profile)

executor._new_exe = Told()
for _ in range(5):
    executor.run([])
print("told", *told, flush=True)
"""


def test_paddles_own_executor_is_told_to_profile_the_steps_to_record(tmp_path):
    needs("paddle")
    script = tmp_path / "static.py"
    script.write_text(textwrap.dedent(STATIC))
    record = (sys.executable, "-m", "bubblescope", "record", "--output", str(tmp_path / "out"))
    done = run([*record, "--steps", "1:3", "--", sys.executable, str(script)])
    assert "told 0 1 1 0 0" in done.stdout.splitlines(), done.stderr[-2000:]
    assert "Schedule Profiler start at step 1 and end at step 3" in done.stderr
    assert done.stderr.count("keep those in files workerlog.0") == 1
