"""Recording DualPipe and DualPipeV: the package where it is installed, and a stand-in.

The stand-in has the methods and counts of https://github.com/deepseek-ai/DualPipe at commit 3da1bbe,
and its eight steps, but neither models nor transfers.
"""

from __future__ import annotations

import sys
import time
from types import ModuleType, SimpleNamespace

import polars as pl
import pytest

from bubblescope import sources
from bubblescope.record.integrations import deepseek_dualpipe as dualpipe
from bubblescope.record.session import Session
from bubblescope.record.settings import Settings
from bubblescope.render.text.report import Report
from evaluating import check_evaluations, stamped
from full import needs
from jobs import digests, run

RANKS, MICROBATCHES, STEPS = 4, 8, 2
PASSES = ("forward", "backward", "backward_input", "forward_backward")


class Torch:
    """As much of it as is asked."""

    grad = True

    def is_grad_enabled(self):
        return self.grad


class Store:
    """Weight gradients that wait."""

    waiting = 0

    @classmethod
    def pop(cls):
        assert cls.waiting
        cls.waiting -= 1


class Pipe:
    """One rank of either pipe, by the name of its class."""

    def __init__(self, rank, overlaps):
        self.rank, self.num_ranks, self.group = rank, RANKS, None
        self.prev_rank = rank - 1 if rank else None
        self.next_rank = rank + 1 if rank < RANKS - 1 else None
        self.overlapped_forward_backward = overlaps
        self.ran = []
        self.comm_ops = []
        if self.both_ways:
            self.is_in_second_half = rank >= RANKS // 2

    def parameters(self):
        yield SimpleNamespace(device=SimpleNamespace(index=None))

    def _flip(self, phase):
        return phase ^ getattr(self, "is_in_second_half", False)

    def _count(self, what, phase):
        number = getattr(self, f"current_{what}_chunk_id")
        number[self._flip(phase)] += 1
        self.ran.append((what, int(self._flip(phase)), number[self._flip(phase)]))

    def _first(self, phase):
        """Whether this is the first stage of a direction."""
        flipped = self._flip(phase)
        if self.both_ways:
            return self.rank == (RANKS - 1 if flipped else 0)
        return self.rank == 0 and flipped == 0

    def _last(self, phase):
        flipped = self._flip(phase)
        if self.both_ways:
            return self.rank == (0 if flipped else RANKS - 1)
        return self.rank == 0 and flipped == 1

    def _turns(self, phase):
        return not self.both_ways and self.rank == RANKS - 1 and phase

    def _forward_compute_chunk(self, phase):
        self._count("f", phase)

    def _backward_compute_chunk(self, phase, enable_zb=False):
        if self.forward_only:
            return
        self._count("b", phase)
        self.store.waiting += enable_zb

    def _forward_backward_compute_chunk(self, phase0, phase1):
        if self.forward_only or not self.overlapped_forward_backward:
            self._forward_compute_chunk(phase0)
            self._backward_compute_chunk(phase1)
            return
        self._count("f", phase0)
        self._count("b", phase1)

    def _forward_chunk(self, phase):
        self._recv_forward(phase)
        self._commit_and_wait_comm()
        self._forward_compute_chunk(phase)
        self._send_forward(phase)

    def _backward_chunk(self, phase, enable_zb=False):
        self._recv_backward(phase)
        self._commit_and_wait_comm()
        self._backward_compute_chunk(phase, enable_zb)
        self._send_backward(phase)

    def _forward_backward_chunk(self, phase0, phase1):
        self._recv_forward(phase0)
        self._recv_backward(phase1)
        self._commit_and_wait_comm()
        self._forward_backward_compute_chunk(phase0, phase1)
        self._send_forward(phase0)
        self._send_backward(phase1)

    def _weight_chunk(self):
        if self.forward_only:
            return
        self._commit_and_wait_comm()
        self.store.pop()

    def _queue(self, what, phase, nobody):
        if not nobody:
            self._count(what, phase)
            self.comm_ops.append(what)

    def _recv_forward(self, phase):
        self._queue("recv_f", phase, self._first(phase) or self._turns(phase == 1))

    def _send_forward(self, phase):
        self._queue("send_f", phase, self._last(phase) or self._turns(phase == 0))

    def _recv_backward(self, phase):
        if not self.forward_only:
            self._queue("recv_b", phase, self._last(phase) or self._turns(phase == 0))

    def _send_backward(self, phase):
        if not self.forward_only:
            self._queue("send_b", phase, self._first(phase) or self._turns(phase == 1))

    def _commit_and_wait_comm(self):
        self.comm_ops = []

    def step(self, *inputs, num_chunks=0, criterion=None):
        del inputs, criterion
        self.forward_only = not self.torch.is_grad_enabled()
        for what in ("f", "b", "send_f", "send_b", "recv_f", "recv_b"):
            setattr(self, f"current_{what}_chunk_id", [0, 0])
        half = self.both_ways
        ranks, m = (RANKS // 2, num_chunks // 2) if half else (RANKS, num_chunks)
        rank = min(self.rank, RANKS - 1 - self.rank) if half else self.rank
        left = ranks - rank - 1
        for _ in range(left * 2):
            self._forward_chunk(0)
        for _ in range(rank + 1):
            self._forward_chunk(0)
            self._forward_chunk(1)
        for _ in range(left):
            self._backward_chunk(1, enable_zb=True)
            self._weight_chunk()
            self._forward_chunk(1)
        for _ in range(m - ranks * 2 + rank + 1):
            self._forward_backward_chunk(0, 1)
            self._forward_backward_chunk(1, 0)
        for _ in range(left):
            self._backward_chunk(1)
            self._forward_backward_chunk(1, 0)
        for i in range(rank + 1):
            self._backward_chunk(1, enable_zb=i > (rank + 1) // 2)
            self._backward_chunk(0, enable_zb=i >= (rank + 1) // 2)
        for _ in range(left):
            self._weight_chunk()
            self._backward_chunk(0, enable_zb=True)
        while self.store.waiting:
            self._weight_chunk()
        self._commit_and_wait_comm()
        return len(self.ran)


def module_of(name, torch):
    """Return a module like dualpipe.dualpipe or dualpipe.dualpipev, with classes of its own."""
    module = ModuleType("dualpipe." + name.lower())
    module.torch = torch
    module.WeightGradStore = type("WeightGradStore", (), own(Store))
    module.dist = SimpleNamespace(
        distributed_c10d=SimpleNamespace(get_global_rank=lambda group, rank: 10 + rank)
    )
    known = {"torch": torch, "store": module.WeightGradStore, "both_ways": name == "DualPipe"}
    setattr(module, name, type(name, (), {**own(Pipe), **known}))
    return module


def own(one):
    return {
        key: value for key, value in vars(one).items() if key not in ("__dict__", "__weakref__")
    }


def played(folder, name, overlaps, **window):
    """Return what the pipes of all ranks ran."""
    results = []
    for rank in range(RANKS):
        torch = Torch()
        module = module_of(name, torch)
        session = Session(Settings(str(folder), **window))
        session.about(rank=rank)
        getattr(dualpipe, name.lower())(module, session)
        pipe = getattr(module, name)(rank, overlaps)
        for _ in range(STEPS):
            pipe.step(num_chunks=MICROBATCHES)
            torch.grad = False
            pipe.step(num_chunks=MICROBATCHES)
            torch.grad = True
        session.close()
        results.append(pipe.ran)
    return results


def check(timeline, *, both_ways, steps=STEPS, ranks=RANKS):
    """Every F, B and W of m x stages x steps once, with its micro-batch, chunk and stage."""
    fields = ["rank", "step", "stage", "chunk", "microbatch"]
    tasks = timeline.tasks.filter(lane="compute").drop_nulls("microbatch")
    paired = tasks.filter(kind="forward_backward")
    seconds = paired.select(
        "rank",
        "step",
        *(pl.col(f"pair_{name}").alias(name) for name in ("stage", "chunk", "microbatch")),
    )
    assert not seconds.null_count().sum_horizontal().item()
    forwards = pl.concat(
        [tasks.filter(pl.col("kind").is_in(["forward", "forward_backward"])).select(fields)]
    )
    backwards = pl.concat(
        [
            tasks.filter(pl.col("kind").is_in(["backward", "backward_input"])).select(fields),
            seconds,
        ]
    )
    half = MICROBATCHES // 2
    numbers = {0: range(half), 1: range(half, MICROBATCHES)}
    expected = {
        (rank, step, stage, chunk, number)
        for rank in range(ranks)
        for step in range(steps)
        for chunk, stage in enumerate([rank, (1 if both_ways else 2) * ranks - 1 - rank])
        for number in (numbers[chunk] if both_ways else range(MICROBATCHES))
    }
    for found in (forwards, backwards):
        assert found.height == len(expected)
        assert set(found.rows()) == expected
    inputs, weights = (
        tasks.filter(kind=kind).select(fields).rows()
        for kind in ("backward_input", "backward_weight")
    )
    assert sorted(inputs) == sorted(weights)
    assert inputs
    counts = dict(timeline.tasks.group_by("kind").len().iter_rows())
    stages = ranks if both_ways else 2 * ranks
    moved = steps * MICROBATCHES * (stages - 1)
    if not both_ways:
        moved -= steps * MICROBATCHES  # the last rank hands on to itself
    for kind in ("send_forward", "recv_forward", "send_backward", "recv_backward"):
        assert counts[kind] == moved
    assert timeline.run.microbatches == MICROBATCHES
    assert timeline.steps == list(range(steps))
    return counts


@pytest.mark.parametrize("overlaps", [True, False])
@pytest.mark.parametrize("name", ["DualPipe", "DualPipeV"])
class TestOfItsStructure:
    def test_every_pass_is_recorded_once_and_run_as_before(self, tmp_path, name, overlaps):
        assert played(tmp_path / "r", name, overlaps) == played(
            tmp_path / "outside", name, overlaps, start=1000
        )
        timeline = sources.load(tmp_path / "r", clock="raw")
        counts = check(timeline, both_ways=name == "DualPipe")
        assert (counts.get("forward_backward", 0) > 0) == overlaps
        assert timeline.run.schedule == name

    def test_peers_are_the_ranks_at_the_other_end(self, tmp_path, name, overlaps):
        played(tmp_path, name, overlaps)
        tasks = sources.load(tmp_path, clock="raw").tasks
        down = {"send_forward": 1, "recv_backward": 1, "recv_forward": -1, "send_backward": -1}
        for kind, rank, chunk, peer in (
            tasks.filter(pl.col("kind").is_in(list(down)))
            .select("kind", "rank", "chunk", "peer")
            .iter_rows()
        ):
            assert peer == 10 + rank + (down[kind] if chunk == 0 else -down[kind])


def test_an_evaluation_is_a_task_of_the_step_that_it_follows(tmp_path):
    torch = Torch()
    module = module_of("DualPipeV", torch)
    begin = module.DualPipeV.step
    stamps = []

    def slow(pipe, **how):
        time.sleep(0.05)
        return begin(pipe, **how)

    module.DualPipeV.step = slow
    session = Session(Settings(str(tmp_path)))
    dualpipe.dualpipev(module, session)
    pipe = module.DualPipeV(0, True)
    for after in (None, *range(STEPS)):
        if after is not None:
            pipe.step(num_chunks=MICROBATCHES)
        torch.grad = False
        stamps.append(stamped(lambda: pipe.step(num_chunks=MICROBATCHES), 0, after))
        torch.grad = True
    session.close()
    check_evaluations(sources.load(tmp_path), stamps)


def test_a_pipe_that_says_nothing_of_itself_trains_on(tmp_path):
    torch = Torch()
    module = module_of("DualPipeV", torch)
    session = Session(Settings(str(tmp_path)))
    dualpipe.dualpipev(module, session)
    pipe = module.DualPipeV(0, True)
    pipe.parameters = lambda: iter(())
    with pytest.warns(RuntimeWarning, match="training goes on") as warned:
        pipe.step(num_chunks=MICROBATCHES)
    assert len(warned) == 1
    assert pipe.ran


def test_a_version_that_lacks_a_function_is_left_alone(tmp_path):
    module = module_of("DualPipeV", Torch())
    del module.DualPipeV._commit_and_wait_comm
    before = dict(vars(module.DualPipeV))
    with pytest.raises(AttributeError):
        dualpipe.dualpipev(module, Session(Settings(str(tmp_path))))
    assert dict(vars(module.DualPipeV)) == before


TRAIN = """
import hashlib, sys
import torch
from torch import distributed, nn

torch.cuda.current_device = lambda: "cpu"  # it asks for no more than that
import dualpipe
from dualpipe import WeightGradStore, comm
from dualpipe.utils import run_backward

name, steps, m, overlaps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "overlap"
SHAPE = (2, 8)
comm.build_from_tensor_shapes = lambda: [torch.empty(SHAPE, requires_grad=True)]
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank, ranks = distributed.get_rank(), distributed.get_world_size()


class Split(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight)
        return torch.tanh(x) @ weight

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors

        def later():
            weight.grad = torch.tanh(x).T @ gradient + (0 if weight.grad is None else weight.grad)

        WeightGradStore.put(later) if WeightGradStore.enabled else later()
        return (gradient @ weight.T) * (1 - torch.tanh(x) ** 2), None


class Stage(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, x):
        return Split.apply(x, self.weight)

    @classmethod
    def overlapped(cls, module0, inputs0, criterion0, labels0, module1, loss1, outputs1, gradients1):
        outputs0 = [module0(*inputs0)]
        loss0 = criterion0(*outputs0, *labels0) if criterion0 is not None else None
        if loss1 is None:
            run_backward(outputs1, gradients1)
        else:
            loss1.backward()
            loss1.detach_()
        return outputs0, loss0


if overlaps:
    Stage.overlapped_forward_backward = Stage.overlapped
comm.set_p2p_tensor_shapes([SHAPE])
comm.set_p2p_tensor_dtype(torch.float32)
both_ways = name == "DualPipe"
last = (1 if both_ways else 2) * ranks - 1
pipe = getattr(dualpipe, name)(nn.Sequential(Stage(rank), Stage(last - rank)))
optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
torch.manual_seed(5)
x = torch.randn(2 * m, 8)
y = torch.tanh(x)
if both_ways:
    ends = {0: (x.chunk(2)[0], y.chunk(2)[1]), ranks - 1: (x.chunk(2)[1], y.chunk(2)[0])}
else:
    ends = {0: (x, y)}
data, labels = ends.get(rank, (None, None))


def criterion(output, target):
    return nn.functional.mse_loss(output, target).clone()


digest = hashlib.sha256()
for step in range(steps):
    loss, _ = pipe.step(data, num_chunks=m, criterion=criterion, labels=(labels,))
    if loss is not None:
        digest.update(loss.detach().numpy().tobytes())
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        pipe.step(data, num_chunks=m, criterion=criterion, labels=(labels,))
for parameter in pipe.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print(f"\\nrank {rank} {digest.hexdigest()}\\n", end="", flush=True)
distributed.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("name", "overlaps"),
    [("DualPipe", "overlap"), ("DualPipeV", "overlap"), ("DualPipeV", "no")],
)
def test_dualpipe_itself_is_recorded_as_it_ran(tmp_path, name, overlaps):
    needs("dualpipe")
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    launch = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS)),
        *("--standalone", str(script), name, str(STEPS), str(MICROBATCHES), overlaps),
    ]
    folder = tmp_path / "recording"
    with_us = run(
        [sys.executable, "-m", "bubblescope", "record", "--output", str(folder), "--", *launch]
    )
    assert with_us.returncode == 0, with_us.stderr[-2000:]
    assert digests(with_us, RANKS) == digests(run(launch), RANKS)
    timeline = sources.load(folder)
    counts = check(timeline, both_ways=name == "DualPipe")
    assert counts["optimizer"] == RANKS * STEPS
    assert (counts.get("forward_backward", 0) > 0) == (overlaps == "overlap")
    found = Report.of(timeline).to_dict()["schedule"]
    assert found["schedule"] == name.lower()
    assert found["missing"] == 0
