"""Loops written by hand in plain PyTorch, recorded as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from statistics import median
from types import SimpleNamespace
from typing import TYPE_CHECKING

import polars as pl
import pytest

import bubblescope
from bubblescope import sources
from bubblescope.analysis.study import study
from bubblescope.record.integrations.torch_loop import ranks
from bubblescope.record.integrations.torch_loop.ranks import Standing, comes_next
from bubblescope.recording.reader import read_stream
from bubblescope.render.text.report import Report
from full import TURN, needs

if TYPE_CHECKING:
    from pathlib import Path

needs("torch")

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
PASSES = ("forward", "backward")
RANKS, MICROBATCHES, STEPS = 4, 8, 3
SCHEDULES = {"recv": "gpipe", "irecv": "1f1b", "batch": "1f1b"}
"""How the pipeline sends and receives, and its schedule then."""
IN_TURN = [(kind, 0, number) for number in (0, 1) for kind in "FB"]
"""What is recorded of a step of two micro-batches."""

BEGINNING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
def made():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())
def optimizer_of(*models):
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
x = torch.ones(2, 4)
"""

STAMPED = """
import time
from contextlib import contextmanager
@contextmanager
def stamped(name):
    begin = time.monotonic_ns()
    yield
    print("stamp", name, begin, time.monotonic_ns(), sep="|")
"""
"""What a job takes its own times with, to be compared with what is recorded of it."""

PIPELINE = """
import hashlib, sys, torch
from torch import distributed, nn
microbatches, steps, *modes = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank, ranks = distributed.get_rank(), distributed.get_world_size()
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first, last = rank == 0, rank == ranks - 1
data = torch.randn(len(modes) * steps, microbatches, 4, 16, generator=torch.Generator().manual_seed(1))
digest = hashlib.sha256()
sending = []

def receive(peer):
    x = torch.empty(4, 16)
    if mode == "batch":
        operation = distributed.P2POp(distributed.irecv, x, peer)
        for work in distributed.batch_isend_irecv([operation]):
            work.wait()
    elif mode == "irecv":
        distributed.irecv(x, peer).wait()
    else:
        distributed.recv(x, peer)
    return x

def send(x, peer):
    if mode == "batch":
        operation = distributed.P2POp(distributed.isend, x, peer)
        sending.extend(distributed.batch_isend_irecv([operation]))
    elif mode == "irecv":
        sending.append(distributed.isend(x, peer))
    else:
        distributed.send(x, peer)

for step in range(len(modes) * steps):
    mode = modes[step // steps]
    flying = []
    def forward(i):
        x = data[step, i] if first else receive(rank - 1).requires_grad_()
        y = model(x)
        if last:
            y = nn.functional.mse_loss(y, torch.tanh(data[step, i])) / microbatches
        else:
            send(y.detach(), rank + 1) if mode == "batch" else send(y, rank + 1)
        flying.append((x, y))
    def backward():
        x, y = flying.pop(0)
        if last:
            digest.update(y.detach().numpy().tobytes())
            y.backward()
        else:
            y.backward(receive(rank + 1))
        if not first:
            send(x.grad, rank - 1)
    ahead = microbatches if mode == "recv" else min(ranks - 1 - rank, microbatches)
    for i in range(ahead):
        forward(i)
    for i in range(ahead, microbatches):
        forward(i)
        backward()
    for _ in range(ahead):
        backward()
    for work in sending:
        work.wait()
    sending.clear()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():  # a validation
        model(torch.ones(1, 16))
    loss = torch.ones(1)
    distributed.all_reduce(loss)  # for a log
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print(f"rank {rank} {digest.hexdigest()}\\n", end="", flush=True)
distributed.destroy_process_group()
"""


def run(command: list[str]) -> subprocess.CompletedProcess:
    # A pipeline that hangs is stopped with all its processes.
    limited = ["timeout", "600", *command]
    return subprocess.run(limited, capture_output=True, text=True, check=False, env=ENVIRONMENT)


def recorded(folder: Path, command: list[str], *options: str) -> subprocess.CompletedProcess:
    ours = [sys.executable, "-m", "bubblescope", "record", "--output", str(folder)]
    return run([*ours, *options, "--", *command])


def script(tmp_path: Path, program: str) -> str:
    path = tmp_path / "job.py"
    path.write_text(program)
    return str(path)


def torchrun(tmp_path: Path, processes: int, program: str, *arguments: object) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"),
        *(str(processes), script(tmp_path, program), *map(str, arguments)),
    ]


def job(tmp_path: Path, program: str) -> list[str]:
    return [sys.executable, script(tmp_path, BEGINNING + textwrap.dedent(program))]


def train(tmp_path: Path, program: str, *options: str):
    """Record a job of one process; return what was recorded and what it said."""
    done = recorded(tmp_path / "out", job(tmp_path, program), *options)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    assert "RuntimeWarning" not in done.stderr
    return sources.load(tmp_path / "out"), done.stdout.splitlines()


def order(timeline, *kinds: str, step: int | None = None) -> list[tuple]:
    """Return kind, chunk and micro-batch of tasks in the order in which they began."""
    tasks = timeline.tasks.filter(pl.col("kind").cast(pl.String).is_in(kinds or PASSES))
    if step is not None:
        tasks = tasks.filter(step=step)
    rows = tasks.sort("start_ns").select(pl.col("kind").cast(pl.String), "chunk", "microbatch")
    return [(kind[0].upper(), chunk, microbatch) for kind, chunk, microbatch in rows.iter_rows()]


def counts(timeline) -> dict[tuple[int, str], int]:
    tasks = timeline.tasks.filter(pl.col("kind") != "gc")
    counted = tasks.group_by("step", pl.col("kind").cast(pl.String)).len()
    return {(step, kind): count for step, kind, count in counted.iter_rows()}


def results(output: str) -> list[str]:
    return sorted(line for line in output.splitlines() if line.startswith("rank "))


def stamped(folder: Path, said: list[str], name: str) -> list[tuple[int, int, int, int]]:
    """Return when a task began and ended, by a job's own stamps and as recorded, on one clock.

    Args:
        folder: The recording's, of one rank.
        said: What the job printed, with `STAMPED`.
        name: The task's name or kind.
    """
    (file,) = folder.glob("attempt-*/*.bubbles")
    rows, _ = read_stream(file.read_bytes())
    named = rows.filter((pl.col("name") == name) | (pl.col("kind") == name)).sort("start_ns")
    tasks = named.select("start_ns", "end_ns").rows()
    lines = [line.split("|") for line in said if line.startswith(f"stamp|{name}|")]
    stamps = sorted((int(begin), int(end)) for _, _, begin, end in lines)
    assert len(tasks) == len(stamps)
    return [(*stamp, *task) for stamp, task in zip(stamps, tasks, strict=True)]


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory):
    """What is recorded of a job that runs its pipeline in one way after the other."""
    tmp_path = tmp_path_factory.mktemp("pipelines")
    command = torchrun(tmp_path, RANKS, PIPELINE, MICROBATCHES, STEPS, *SCHEDULES)
    done = recorded(tmp_path / "out", command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert results(done.stdout) == results(run(command).stdout)
    assert len(results(done.stdout)) == RANKS
    return sources.load(tmp_path / "out")


class TestPipelines:
    @pytest.mark.parametrize("mode", SCHEDULES)
    def test_is_recorded_as_it_ran(self, pipelines, mode):
        first = list(SCHEDULES).index(mode) * STEPS
        timeline = pipelines.slice(steps=range(first, first + STEPS))
        assert len(timeline.steps) == STEPS

        passes = timeline.tasks.filter(pl.col("kind").cast(pl.String).is_in(PASSES))
        key = ("rank", "step", "microbatch", "kind")
        assert passes.height == 2 * RANKS * STEPS * MICROBATCHES
        assert passes.select(key).drop_nulls().n_unique() == passes.height
        assert passes.filter(pl.col("stage") != pl.col("rank")).is_empty()
        # In 1F1B as in GPipe, a rank's backwards are in the order of its forwards.
        backwards = passes.filter(kind="backward").sort("start_ns")
        for _, of_rank in backwards.group_by("rank", "step"):
            assert of_rank["microbatch"].to_list() == list(range(MICROBATCHES))

        for kind, away in {
            "send_forward": 1,
            "recv_forward": -1,
            "send_backward": -1,
            "recv_backward": 1,
        }.items():
            transfers = timeline.tasks.filter(kind=kind)
            assert transfers.height == (RANKS - 1) * STEPS * MICROBATCHES
            assert transfers.filter(pl.col("peer") != pl.col("rank") + away).is_empty()
            per_step = transfers.group_by("rank", "step").len()
            assert per_step["len"].unique().to_list() == [MICROBATCHES]
        if mode != "batch":  # which sends copies, that say nothing of their origin
            sent = timeline.tasks.filter(kind="send_forward")
            assert sent.select("rank", "step", "microbatch").drop_nulls().n_unique() == sent.height
        assert timeline.tasks.filter(kind="optimizer").height == RANKS * STEPS
        assert timeline.tasks.filter(kind="collective").is_empty()  # none is within a step

        found = Report.of(timeline).to_dict()["schedule"]
        assert (found["schedule"], found["confidence"]) == (SCHEDULES[mode], 1.0)
        assert found["devices"] == RANKS

    def test_two_models_on_a_rank_are_two_stages(self, tmp_path):
        program = """
            import torch
            from torch import distributed, nn
            distributed.init_process_group("gloo")
            rank = distributed.get_rank()
            models = [nn.Linear(4, 4), nn.Linear(4, 4)]
            optimizer = torch.optim.SGD([p for m in reversed(models) for p in m.parameters()], lr=0.1)
            for step in range(2):
                made, sending = {}, []
                def forward(chunk, i):
                    x = torch.ones(2, 4)
                    if rank or chunk:
                        distributed.recv(x, 1 - rank)
                    x.requires_grad_()
                    y = models[chunk](x)
                    made[chunk, i] = x, y
                    if not (rank and chunk):
                        sending.append(distributed.isend(y, 1 - rank))
                def backward(chunk, i):
                    x, y = made.pop((chunk, i))
                    gradient = torch.ones(2, 4)
                    if not (rank and chunk):
                        distributed.recv(gradient, 1 - rank)
                    y.backward(gradient)
                    if rank or chunk:
                        sending.append(distributed.isend(x.grad, 1 - rank))
                for act, chunks in ((forward, (0, 1)), (backward, (1, 0))):
                    for chunk in chunks:
                        for i in range(2):
                            act(chunk, i)
                for work in sending:
                    work.wait()
                optimizer.step()
            distributed.destroy_process_group()
        """
        command = torchrun(tmp_path, 2, textwrap.dedent(program))
        done = recorded(tmp_path / "out", command)
        assert done.returncode == 0, done.stderr[-3000:]
        timeline = sources.load(tmp_path / "out")
        passes = timeline.tasks.filter(pl.col("kind").cast(pl.String).is_in(PASSES))
        assert passes.height == 2 * 2 * 2 * 2 * 2
        assert passes.select("rank", "chunk", "step", "microbatch", "kind").n_unique() == 32
        assert passes.filter(pl.col("stage") != pl.col("rank") + 2 * pl.col("chunk")).is_empty()
        sent = timeline.tasks.filter(kind="send_forward").drop_nulls("microbatch")
        assert sent.select("rank", "chunk", "step", "microbatch").n_unique() == 3 * 2 * 2
        found = Report.of(timeline).to_dict()["schedule"]
        assert (found["schedule"], found["chunks"]) == ("looped-bfs", 2)

    def test_a_mesh_says_where_a_rank_stands(self, tmp_path):
        program = """
            import torch
            from torch import distributed, nn
            from torch.distributed.device_mesh import init_device_mesh
            distributed.init_process_group("gloo")
            rank = distributed.get_rank()
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
            model = nn.parallel.DistributedDataParallel(
                nn.Linear(4, 4), process_group=mesh["dp"].get_group()
            )
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x = torch.ones(2, 4)
            for step in range(2):
                if rank % 2:
                    distributed.recv(x, rank - 1)
                    model(x).sum().backward()
                else:
                    y = model(x)
                    distributed.send(y, rank + 1)
                    y.sum().backward()
                optimizer.step()
            distributed.destroy_process_group()
        """
        done = recorded(tmp_path / "out", torchrun(tmp_path, 4, textwrap.dedent(program)))
        assert done.returncode == 0, done.stderr[-3000:]
        timeline = sources.load(tmp_path / "out")
        found = timeline.ranks.select("rank", "dp").rows()
        assert found == [(0, 0), (1, 0), (2, 1), (3, 1)]
        passes = timeline.tasks.filter(pl.col("kind").cast(pl.String).is_in(PASSES))
        assert passes.height == 4 * 2 * 2
        assert passes.filter(pl.col("stage") != pl.col("rank") % 2).is_empty()


HOOKED = """
    import sys, torch
    from torch import distributed, nn
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    distributed.init_process_group("gloo")
    torch.manual_seed(distributed.get_rank())
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    def own(state, bucket):
        work = distributed.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0] / 2)
    hook = sys.argv[1]
    if hook == "powerSGD":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, matrix_approximation_rank=1)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook != "none":
        model.register_comm_hook(None, own if hook == "own" else getattr(default_hooks, hook))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        for micro in range(2):
            model(torch.randn(2, 8)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if not distributed.get_rank():
        print(model.module[0].weight.sum().item().hex())
    distributed.destroy_process_group()
"""


@pytest.mark.parametrize("hook", ["none", "own", "fp16_compress_hook", "powerSGD"])
def test_communication_hooks_of_ddp_do_the_same_and_end_each_backward(tmp_path, hook):
    """What a hook sends is called from autograd, not by the loop: the wait for all of it is one task.

    PyTorch 2.13 aborts one in ten of such jobs as they end, recorded or not; those are tried again.
    """
    command = [*torchrun(tmp_path, 2, textwrap.dedent(HOOKED)), hook]

    def unaborted(run):
        for attempt in range(6):
            done = run(tmp_path / f"out{attempt}")
            if "terminate called without an active exception" not in done.stderr:
                break
        assert done.returncode == 0, done.stderr[-3000:]
        return done, tmp_path / f"out{attempt}"

    plain, _ = unaborted(
        lambda _: subprocess.run(
            command, env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
    )
    done, out = unaborted(lambda folder: recorded(folder, command))
    assert plain.stdout.strip() in done.stdout
    timeline = sources.load(out)
    assert timeline.steps == [0, 1, 2, 3]
    own = timeline.tasks.filter(pl.col("kind").cast(pl.String).is_in((*PASSES, "collective")))
    counts = Counter(own["kind"].cast(pl.String).to_list())
    assert counts == dict.fromkeys(("forward", "backward", "collective"), 2 * 4 * 2)
    own = own.filter(pl.col("kind").cast(pl.String).is_in(PASSES))
    passes = own.select("rank", "step", "kind", "microbatch")
    assert passes.n_unique() == passes.height


@pytest.mark.parametrize("wrapped", ["model", "nn.parallel.DistributedDataParallel(model)"])
def test_replicas_are_one_stage(tmp_path, wrapped):
    """With DDP, made after the optimizer too, and with gradients averaged by hand."""
    program = f"""
        import torch
        from torch import distributed, nn
        from torch.utils.data import DataLoader
        distributed.init_process_group("gloo")
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model = {wrapped}
        for x in DataLoader(torch.ones(3, 4)):
            model(x).sum().backward()
            for parameter in model.parameters():
                distributed.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
        distributed.destroy_process_group()
    """
    done = recorded(tmp_path / "out", torchrun(tmp_path, 2, textwrap.dedent(program)))
    assert done.returncode == 0, done.stderr[-3000:]
    timeline = sources.load(tmp_path / "out")
    assert timeline.ranks.select("rank", "dp").rows() == [(0, 0), (1, 1)]
    passes = timeline.tasks.filter(pl.col("kind").cast(pl.String).is_in(PASSES))
    assert passes["stage"].to_list() == [0] * 2 * 2 * 3
    reduced = 2 * 3 * (2 + (wrapped != "model"))  # by hand for each parameter, and as DDP does
    assert timeline.tasks.filter(kind="collective").height == reduced
    assert timeline.steps == [0, 1, 2]


@pytest.mark.parametrize(
    ("rank", "ranks_", "group", "receives", "expected"),
    [
        (0, 1, None, False, (0, 1, 0)),
        (3, 4, None, True, (3, 4, 0)),
        (3, 4, None, False, (0, 1, 3)),
        (2, 4, [0, 1, 2, 3], False, (0, 1, 2)),
        (3, 4, [2, 3], True, (1, 2, 1)),
        (3, 8, [1, 3, 5, 7], True, (1, 2, 1)),
        (6, 8, [4, 6], True, (2, 4, 1)),
    ],
)
def test_where_a_rank_stands(monkeypatch, rank, ranks_, group, receives, expected):
    monkeypatch.setattr(ranks, "_rank", lambda: (rank, ranks_))
    monkeypatch.setattr(ranks, "_replicas", lambda _: group)
    wrapper = type("DistributedDataParallel", (), {})()
    models = [] if group is None else [wrapper]
    assert Standing.found(None, models, receives=receives) == expected
    assert Standing.found((1, 2), models, receives=receives) == (1, 2, None)


def test_the_first_rank_comes_after_the_last(monkeypatch):
    monkeypatch.setattr(ranks, "_rank", lambda: (3, 4))
    assert comes_next(0)
    assert not comes_next(2)


ACCUMULATION = """
    model = made()
    optimizer = optimizer_of(model)
    data = DataLoader(TensorDataset(torch.randn(12, 4)), batch_size=2)
    def evaluate():
        model.eval()
        for (other,) in data:
            with torch.no_grad():
                model(other)
        model.train()
    evaluate()
    for epoch in range(2):
        for number, (batch,) in enumerate(data):
            model(batch).pow(2).mean().backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
                evaluate()
    print(sum(p.sum().item() for p in model.parameters()))
"""


THERE_AND_BACK = """
trained(model, optimizer, 2)
in_thread(trained, model, optimizer, 4)
trained(model, optimizer, 2)
"""
ANEW = """
def anew():
    model = made()
    trained(model, torch.optim.Adam(model.parameters()), 4)
in_thread(anew)
"""
EVALUATED = 13
"""Tasks of an evaluation of that: six batches, each fetched and passed on, and the end of the data."""


# Steps, and a loop of that many; one job runs them all, for processes take long to start.
LOOPS = {
    "any order": (
        8,
        """
        from dataclasses import dataclass
        @dataclass
        class Output:
            name: str
            parts: list
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = made()
                self.structure = lambda y: y
            def forward(self, *, batch):
                return self.structure(self.inner(batch["x"]))
        model = Model()
        optimizer = optimizer_of(model)
        def outputs(count=3):
            return [model(batch={"x": x}) for _ in range(count)]
        for loss in reversed([y.sum() for y in outputs()]):  # step 0
            loss.backward()
        optimizer.step()

        y, *_ = outputs()  # step 1: far from the output
        for _ in range(50):
            y = (y * 1.01).relu() + x
        nn.functional.mse_loss(y, x, reduction="none").mean(0)[0].backward()
        optimizer.step()

        for structure, tensor in (  # steps 2 to 4
            (lambda y: {"logits": [y], "name": "y"}, lambda output: output["logits"][0]),
            (lambda y: (1, (y, None)), lambda output: output[1][0]),
            (lambda y: Output("y", [y]), lambda output: output.parts[0]),
        ):
            model.structure = structure
            for output in reversed(outputs(2)):
                tensor(output).sum().backward()
            optimizer.step()

        model.structure = lambda y: y
        sum(y.sum() for y in outputs()).backward()  # step 5: of several
        optimizer.step()
        kept = model(batch={"x": x})  # step 6
        torch.autograd.backward([kept.sum(), kept.mean()], retain_graph=True)
        optimizer.step()
        model(batch={"x": x})  # step 7: of the last step's, of none, and of one twice
        kept.sum().backward()
        model.inner[0].weight.sum().backward()
        model(batch={"x": model(batch={"x": x})}).sum().backward()
        optimizer.step()
        """,
    ),
    "several models": (
        3,
        """
        encoder, decoder, other = made(), made(), made()
        optimizer = optimizer_of(decoder, other, encoder)
        for step in range(2):
            for _ in range(2):
                decoder(encoder(x).relu()).sum().backward()
                other(x).sum().backward()
            optimizer.step()
        (encoder(x).sum() + other(x).sum()).backward()
        optimizer.step()
        """,
    ),
    "only held": (
        4,
        """
        class Holder(nn.Module):
            def __init__(self):
                super().__init__()
                self.model = made()
                self.loss = nn.MSELoss()
            def training_step(self):
                return self.loss(self.model(x), x)
        holder = Holder()
        optimizer = optimizer_of(holder)
        for step in range(4):
            for _ in range(2):
                holder.training_step().backward()
            optimizer.step()
        """,
    ),
    "forward alone": (
        2,
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.ModuleList([made()])
            def forward(self, x):
                return self.inner[0](x)
        model = Model()
        optimizer = optimizer_of(model)
        with torch.no_grad():
            model.forward(x)
        for step in range(2):
            for _ in range(2):
                model.forward(x).sum().backward()
            optimizer.step()
        """,
    ),
    "checkpointed": (
        3,
        """
        from torch.utils.checkpoint import checkpoint
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.reentrant = made(), True
            def forward(self, x):
                return checkpoint(self.inner, x, use_reentrant=self.reentrant)
        model = Model()
        optimizer = optimizer_of(model)
        y = x.clone().requires_grad_()
        for model.reentrant in (True, False):
            for _ in range(2):
                model(y).sum().backward()
            optimizer.step()
        for _ in range(2):
            checkpoint(model, y, use_reentrant=False).sum().backward()
        optimizer.step()
        """,
    ),
    "gradients": (
        3,
        """
        from torch.func import functional_call, grad
        model = made()
        optimizer = optimizer_of(model)
        parameters = list(model.parameters())
        for _ in range(2):  # step 0
            torch.autograd.grad(model(x).sum(), parameters)
        torch.autograd.grad(made()(x).sum(), x.clone().requires_grad_(), allow_unused=True)
        optimizer.step()
        for _ in range(2):  # step 1
            grad(lambda named: functional_call(model, named, (x,)).sum())(
                {name: one.detach() for name, one in model.named_parameters()}
            )
        optimizer.step()
        for _ in range(2):  # step 2: with a penalty
            y = x.clone().requires_grad_()
            loss = model(y).sum()
            slope, = torch.autograd.grad(loss, y, create_graph=True)
            (loss + slope.pow(2).sum()).backward()
        optimizer.step()
        """,
    ),
    "losses made alike": (
        2,
        """
        model, weight = made(), torch.ones(4, requires_grad=True)
        optimizer = optimizer_of(model)
        for _ in range(2):
            for number in range(8):  # what a loss of a micro-batch is, and one of none, is the same
                y = model(x)
                if number % 2:
                    weight.sum().backward()
                y.sum().backward()
            optimizer.step()
        """,
    ),
    "threads": (
        60,
        """
        import queue, threading
        model, teacher = made(), made()
        optimizer = optimizer_of(model)
        ahead = queue.Queue(2)
        def fetch():
            for batch in DataLoader(torch.randn(60, 4)):
                ahead.put((batch, teacher(batch), model(batch)))
            ahead.put(None)
        threading.Thread(target=fetch).start()
        while (batch := ahead.get()) is not None:
            model(batch[0]).sum().backward()
            optimizer.step()
        """,
    ),
    "overflowing": (
        3,
        """
        model = made()
        optimizer = optimizer_of(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
        for _ in range(3):
            for _ in range(2):
                scaler.scale(1e3 * model(x).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
    ),
    "skipped": (
        6,
        """
        model = made()
        optimizer = optimizer_of(model)
        for number in range(6):
            for _ in range(2):
                model(x).sum().backward()
            if number == 2:
                model.zero_grad()
            elif number == 3:
                optimizer.zero_grad()
            else:
                optimizer.step()
                optimizer.zero_grad()
        """,
    ),
    "gradients computed twice": (
        4,
        """
        model = made()
        optimizer = optimizer_of(model)
        for _ in range(4):
            model(x).sum().backward()
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    ),
    "gradients cleared before the backward": (
        4,
        """
        model = made()
        optimizer = optimizer_of(model)
        for number in range(4):
            loss = model(x).sum()
            if number > 1:
                optimizer.zero_grad()
            loss.backward()
            model(x).sum().backward()
            optimizer.step()
        """,
    ),
    "gradients of one of two models cleared": (
        4,
        """
        one, other = made(), made()
        optimizers = optimizer_of(one), optimizer_of(other)
        for number in range(4):
            one(x).sum().backward()
            if number > 1:
                optimizers[1].zero_grad()
            other(x).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
            optimizers[0].zero_grad()
        """,
    ),
    "an optimizer for each parameter": (
        3,
        """
        model = made()
        for parameter in model.parameters():
            optimizer = torch.optim.SGD([parameter], lr=0.1)
            parameter.register_post_accumulate_grad_hook(lambda _, o=optimizer: o.step())
        for _ in range(3):
            model(x).sum().backward()
        """,
    ),
}


@pytest.fixture(scope="module")
def timeline(tmp_path_factory):
    """What is recorded of all the loops."""
    program = ""
    for number, (_, loop) in enumerate(LOOPS.values()):
        body = textwrap.indent(textwrap.dedent(loop), "    ")
        program += f"def loop{number}():{body}\nloop{number}()\n"
    return train(tmp_path_factory.mktemp("loops"), program)[0]


class TestLoops:
    @pytest.fixture
    def steps(self, timeline):
        """Return what was recorded of one of the loops, as if the job had no other."""

        def of(name: str) -> bubblescope.Timeline:
            names = list(LOOPS)
            first = sum(LOOPS[one][0] for one in names[: names.index(name)])
            tasks = timeline.tasks.filter(
                pl.col("step").is_between(first, first + LOOPS[name][0] - 1)
            )
            return SimpleNamespace(tasks=tasks.with_columns(pl.col("step") - first))

        return of

    def test_all_steps_are_there(self, timeline):
        assert timeline.steps == list(range(sum(steps for steps, _ in LOOPS.values())))

    def test_a_backward_is_of_the_forward_that_it_starts_from(self, steps):
        recorded = steps("any order")

        def backwards(step: int) -> list[tuple]:
            return order(recorded, "backward", step=step)

        assert backwards(0) == [("B", 0, 2), ("B", 0, 1), ("B", 0, 0)]
        assert backwards(1) == [("B", 0, 0)]
        for step in (2, 3, 4):
            assert backwards(step) == [("B", 0, 1), ("B", 0, 0)]
        unknown = ("B", None, None)
        assert backwards(5) == [unknown]
        assert backwards(6) == [("B", 0, 0)]
        assert backwards(7) == [unknown, unknown, ("B", 0, 1)]
        # Twice through the model, and back at once: one micro-batch.
        assert order(recorded, "forward", step=7) == [("F", 0, 0), ("F", 0, 1), ("F", 0, 1)]

    def test_a_batch_whose_gradients_are_cleared_is_a_step_of_its_own(self, steps):
        """As where a loss is no number, if a job clears none within most of its steps."""
        for step in range(6):
            assert order(steps("skipped"), step=step) == IN_TURN
        for step in range(4):
            for name in ("gradients computed twice", "gradients cleared before the backward"):
                assert order(steps(name), step=step) == IN_TURN
            two = [("F", 0, 0), ("B", 0, 0), ("F", 1, 0), ("B", 1, 0)]
            assert order(steps("gradients of one of two models cleared"), step=step) == two

    def test_models_one_after_the_other_are_one_stage(self, steps):
        """As no backward is of one of them; those with backwards of their own are chunks."""
        recorded = steps("several models")
        forwards = [("F", 0, 0), ("F", 0, 0), ("B", 0, 0), ("F", 1, 0), ("B", 1, 0)]
        again = [(kind, chunk, 1) for kind, chunk, _ in forwards]
        for step in range(2):
            assert order(recorded, step=step) == forwards + again
        # Through both at once: the micro-batch is known, the chunk is not.
        assert order(recorded, step=2) == [("F", 0, 0), ("F", 1, 0), ("B", None, 0)]
        stages = recorded.tasks.drop_nulls("chunk")
        assert stages["stage"].to_list() == stages["chunk"].to_list()

    def test_a_model_that_is_only_held(self, steps):
        """By a module that nobody calls, as Lightning does."""
        recorded = steps("only held")
        for step in range(4):
            assert order(recorded, step=step) == IN_TURN

    def test_a_model_whose_forward_is_called_by_itself(self, steps):
        """PyTorch notices no such call; that of its part is noticed from the first on."""
        recorded = steps("forward alone")
        for step in range(2):
            assert order(recorded, step=step) == IN_TURN

    def test_activations_are_computed_again(self, steps):
        recorded = steps("checkpointed")
        for step in range(3):
            assert order(recorded, step=step) == IN_TURN

    def test_gradients_that_are_asked_for(self, steps):
        """By `torch.autograd.grad`, as by `backward`: of the forward that they start from."""
        recorded = steps("gradients")
        assert order(recorded, step=0) == [*IN_TURN, ("B", None, None)]
        assert order(recorded, step=1) == IN_TURN
        assert order(recorded, step=2) == [("F", 0, 0), ("B", 0, 0), ("B", 0, 0)] + [
            (kind, 0, 1) for kind in "FBB"
        ]

    def test_a_loss_that_is_made_as_those_of_the_model(self, steps):
        """It is taken for one of these once at most; then the graph is asked of all like it."""
        recorded = steps("losses made alike")
        for step in range(2):
            of_none = {("B", None, None): 4, **{("B", 0, number): 1 for number in range(8)}}
            found = Counter(order(recorded, "backward", step=step))
            wrong = sum((Counter(of_none) - found).values())
            assert wrong <= (step == 0), found

    def test_other_threads_do_not_count(self, steps):
        """One fetches data and runs a model of its own, while the loop trains."""
        kinds = ("forward", "backward", "optimizer")
        assert counts(steps("threads")) == {(s, kind): 1 for s in range(60) for kind in kinds}

    def test_a_step_that_a_scaler_leaves_out(self, steps):
        assert counts(steps("overflowing")) == {(s, k): 2 for s in range(3) for k in PASSES}

    def test_an_optimizer_for_each_parameter(self, steps):
        """They make their steps within the backward, as soon as there is a gradient."""
        kinds = {"forward": 1, "backward": 1, "optimizer": 2}
        assert counts(steps("an optimizer for each parameter")) == {
            (step, kind): count for step in range(3) for kind, count in kinds.items()
        }


class TestOneProcess:
    def test_a_thread_that_makes_graphs_in_step_with_the_loop(self, tmp_path):
        """Its nodes are numbered as those of the loop would be."""
        program = """
            from concurrent.futures import ThreadPoolExecutor
            policy, value = made(), made()
            optimizer = optimizer_of(policy)
            with ThreadPoolExecutor(1) as thread:
                for step in range(3):
                    both = []
                    for _ in range(3):
                        judged = thread.submit(lambda: value(x).sum())
                        both.append((policy(x), judged.result()))
                    for chosen, judged in both[:2]:
                        (chosen.sum() + judged).backward()
                    judged = both[2][1]
                    judged.backward()
                    optimizer.step()
        """
        timeline, _ = train(tmp_path, program)
        for step in range(3):
            backwards = order(timeline, "backward", step=step)
            assert backwards == [("B", 0, 0), ("B", 0, 1), ("B", None, None)]

    def test_a_model_that_is_scripted(self, tmp_path):
        program = """
            import warnings
            warnings.simplefilter("ignore")
            model = torch.jit.script(made())
            optimizer = optimizer_of(model)
            for step in range(3):
                for _ in range(2):
                    model(x).sum().backward()
                optimizer.step()
        """
        timeline, _ = train(tmp_path, program)
        for step in range(3):
            assert order(timeline, step=step) == IN_TURN

    def test_gradients_before_there_is_an_optimizer(self, tmp_path):
        """As torch's schedules ask for them to learn shapes."""
        program = """
            weight = torch.ones(2, 4, requires_grad=True)
            print(torch.autograd.grad((x * weight).sum(), weight)[0].sum().item())
            weight.sum().backward()
            model = made()
            optimizer = optimizer_of(model)
            for _ in range(2):
                model(x).sum().backward()
            optimizer.step()
        """
        timeline, said = train(tmp_path, program)
        assert said[0] == "8.0"
        assert order(timeline, step=0) == IN_TURN

    def test_data_for_training_that_is_fetched_before_the_model_is_put_back(self, tmp_path):
        """HF's Trainer fetches the next batches after an evaluation, and then says `model.train()`."""
        program = """
            model = made()
            optimizer = optimizer_of(model)
            data = iter(DataLoader(TensorDataset(torch.randn(12, 4)), batch_size=2))
            for step in range(3):
                batches = [next(data)[0] for _ in range(2)]
                model.train()
                for batch in batches:
                    model(batch).sum().backward()
                optimizer.step()
                model.eval()
                with torch.no_grad():
                    for (batch,) in DataLoader(TensorDataset(torch.randn(2, 4))):
                        model(batch)
        """
        timeline, _ = train(tmp_path, program)
        expected = {"data": 2, "forward": 2, "backward": 2, "optimizer": 1, "other": 5}
        assert counts(timeline) == {(s, k): n for s in range(3) for k, n in expected.items()}

    def test_an_interruption_at_any_moment_ends_no_recording(self, tmp_path):
        """A handler of a signal may raise behind any call, so behind one that reads the clock."""
        program = f"""
            import time, bubblescope.record
            from bubblescope.record.integrations.torch_loop import called, loop
            due = -1
            def now():
                global due
                due -= 1
                if due == 0:
                    raise KeyboardInterrupt
                return time.monotonic_ns()
            called._now = loop._now = now
            bubblescope.record.instrument("loop", folder={str(tmp_path / "out")!r})
            model = made()
            optimizer = optimizer_of(model)
            def step():
                for _ in range(2):
                    model(x).sum().backward()
                optimizer.step()
            step()
            interrupted = 0
            for number in range(1, 7):
                due = number
                try:
                    step()
                except KeyboardInterrupt:
                    interrupted += 1
                due = -1
                optimizer.step()
            print(interrupted)
            step()
        """
        done = run(job(tmp_path, program))
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.split() == ["6"]
        timeline = sources.load(tmp_path / "out")
        assert order(timeline, step=timeline.steps[0]) == IN_TURN
        assert order(timeline, step=timeline.steps[-1]) == IN_TURN

    def test_a_recording_that_begins_after_the_optimizer_was_made(self, tmp_path):
        program = f"""
            import bubblescope.record
            model = made()
            optimizer = torch.optim.Adam(model.parameters())
            def step():
                for _ in range(2):
                    model(x).sum().backward()
                optimizer.step()
            step()
            bubblescope.record.instrument("loop", "torch", folder={str(tmp_path / "out")!r})
            step()
            step()
        """
        done = run(job(tmp_path, program))
        assert done.returncode == 0, done.stderr[-3000:]
        timeline = sources.load(tmp_path / "out")
        assert timeline.steps == [1, 2]  # by Adam's own count
        for step in (1, 2):
            assert order(timeline, step=step) == IN_TURN

    def test_evaluations_within_a_step(self, tmp_path):
        """Functions of the job's own count on autograd's numbers without gradients too."""
        program = """
            class Own(torch.autograd.Function):
                @staticmethod
                def forward(context, x):
                    return x.clone()
                @staticmethod
                def backward(context, gradient):
                    return gradient
            class Model(nn.Module):
                def __init__(self, own):
                    super().__init__()
                    self.inner, self.own = made(), own
                def forward(self, x):
                    return Own.apply(self.inner(x)) if self.own else self.inner(x)
            for own in (False, True):
                model = Model(own)
                optimizer = optimizer_of(model)
                for step in range(2):
                    for _ in range(2):
                        y = model(x)
                        with torch.no_grad():
                            target = model(x)
                        (y - target).sum().backward()
                    optimizer.step()
        """
        timeline, _ = train(tmp_path, program)
        for step in range(4):
            assert order(timeline, step=step) == IN_TURN
        assert timeline.tasks.filter(name="evaluation").height == 2 * 2 * 2

    def test_a_model_in_a_reentrant_checkpoint_is_no_evaluation(self, tmp_path):
        program = """
            from torch.utils.checkpoint import checkpoint
            model = made()
            optimizer = optimizer_of(model)
            y = x.clone().requires_grad_()
            for step in range(2):
                model(y).sum().backward()
                for _ in range(2):
                    checkpoint(model, y, use_reentrant=True).sum().backward()
                optimizer.step()
        """
        timeline, _ = train(tmp_path, program)
        assert timeline.tasks.filter(name="evaluation").is_empty()
        assert order(timeline, "forward") == [("F", 0, 0)] * 2

    def test_backwards_in_random_order(self, tmp_path):
        """Some twice, some never, some a step later; of parts of outputs, of several, of no model."""
        program = """
            import random
            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.one, self.other = made(), made()
                def forward(self, x):
                    return self.one(x).tanh(), self.other(x).exp()
            model, weight = Model(), torch.ones(4, requires_grad=True)
            optimizer = optimizer_of(model)
            losses = (
                lambda y: (y ** 2).mean(), lambda y: y.sum(), lambda y: (y * weight).sum() / 3,
                lambda y: nn.functional.mse_loss(y, torch.zeros_like(y)),
            )
            chance, kept = random.Random(SEED), []
            for step in range(60):
                flying, todo, count = [], chance.randrange(1, 7), 0
                style = chance.choice(("alternate", "all first", "any"))
                while todo or flying:
                    if todo and (not flying or style == "all first" or
                                 (style == "any" and chance.random() < 0.5)):
                        flying.append((count, *model(x)))
                        print("told", step, "F", count)
                        todo, count = todo - 1, count + 1
                        continue
                    number, one, other = flying.pop(chance.randrange(len(flying)))
                    loss, how = chance.choice(losses), chance.randrange(8)
                    if how == 0:  # never, or later
                        kept.append((step, number, one))
                        continue
                    if how == 1:
                        print("told", step, "B", None)
                        loss(weight).backward()
                    if how == 2:
                        print("told", step, "B", number)
                        loss(one).backward(retain_graph=True)
                    if how == 3:
                        print("told", step, "B", number)
                        loss(other).backward()
                    print("told", step, "B", number)
                    loss(one).backward()
                    if kept and how == 4:
                        made_in, number, one = kept.pop()
                        print("told", step, "B", number if made_in == step else None)
                        loss(one).backward()
                optimizer.step()
        """
        seed = TURN
        timeline, said = train(tmp_path, program.replace("SEED", str(seed)))
        told = [line.split()[1:] for line in said if line.startswith("told")]
        tasks = timeline.tasks.filter(pl.col("kind").is_in(PASSES)).sort("start_ns")
        found = [
            [str(step), kind[0].upper(), str(microbatch)]
            for step, kind, microbatch in tasks.select(
                "step", pl.col("kind").cast(pl.String), "microbatch"
            ).iter_rows()
        ]
        assert len(found) == len(told)
        wrong = [pair for pair in zip(told, found, strict=True) if pair[0] != pair[1]]
        assert len(wrong) <= 4, wrong  # one for each way to make a loss, at most

    def test_gradients_are_accumulated(self, tmp_path):
        timeline, _ = train(tmp_path, ACCUMULATION)
        assert timeline.steps == [0, 1, 2, 3]
        for step in range(4):
            assert order(timeline, step=step) == [
                (kind, 0, number) for number in range(3) for kind in "FB"
            ]
        expected = {"data": 3, "forward": 3, "backward": 3, "optimizer": 1, "other": EVALUATED}
        found = {(s, k): n for s in range(4) for k, n in expected.items()}
        assert counts(timeline) == found | {(None, "other"): EVALUATED}  # before the first
        assert timeline.tasks["stage"].drop_nulls().unique().to_list() == [0]
        evaluated = timeline.tasks.filter(kind="other")
        assert evaluated["name"].unique().to_list() == ["evaluation"]
        assert evaluated["lane"].unique().to_list() == ["host"]

    def test_only_some_steps(self, tmp_path):
        timeline, said = train(tmp_path, ACCUMULATION, "--steps", "1:3", "--exit-after")
        assert timeline.steps == [1, 2]
        expected = {"data": 3, "forward": 3, "backward": 3, "optimizer": 1, "other": EVALUATED}
        assert counts(timeline) == {(s, k): n for s in (1, 2) for k, n in expected.items()}
        assert said[0].startswith("recorded")  # it did not come to its end

    def test_by_hand(self, tmp_path):
        """The end of the data, known only when it comes, is no step either."""
        program = f"""
            import bubblescope.record, gc
            gc.disable()  # one just when the data ends would be a task of a step that does not come
            seen = []
            bubblescope.record.instrument("loop", "torch", folder={str(tmp_path / "out")!r},
                                          on_step=lambda times: seen.append(times.step))
            class Stream(torch.utils.data.IterableDataset):
                def __iter__(self):
                    return iter(torch.randn(3, 4))
            model = made()
            optimizer = optimizer_of(model)
            for batch in DataLoader(Stream()):
                model(batch).sum().backward()
                optimizer.step()
            gc.collect()
            import atexit, time
            atexit.register(lambda: print(seen))
        """
        done = run(job(tmp_path, program))
        assert done.returncode == 0, done.stderr[-3000:]
        timeline = sources.load(tmp_path / "out")
        assert timeline.steps == [0, 1, 2]
        kinds = ("data", "forward", "backward", "optimizer")
        assert counts(timeline) == {(step, kind): 1 for step in range(3) for kind in kinds}
        assert "3" not in done.stdout

    def test_compiled_models(self, tmp_path):
        program = """
            from torch._dynamo.utils import counters
            compiled = {"backend": "eager", "fullgraph": True}
            class Model(nn.Module):
                def __init__(self, breaks=False):
                    super().__init__()
                    self.inner, self.breaks = made(), breaks
                def forward(self, x):
                    if self.breaks:
                        torch._dynamo.graph_break()
                    return self.inner(x).exp()
            def stepped(model, optimizer):
                for _ in range(3):
                    for _ in range(2):
                        model(x).sum().backward()
                    optimizer.step()
                seen = {name: dict(counters[name]) for name in ("graph_break", "frames", "stats")}
                print("rank", seen, [p.tolist() for p in optimizer.param_groups[0]["params"]])
                counters.clear()
                torch._dynamo.reset()

            model = Model()
            model.compile(**compiled)
            stepped(model, optimizer_of(model))
            model = torch.compile(Model(), **compiled)
            stepped(model, optimizer_of(model))
            model = Model()
            optimizer = optimizer_of(model)
            model.compile(**compiled)
            stepped(model, optimizer)
            model = Model()
            optimizer = optimizer_of(model)
            stepped(torch.compile(model, **compiled), optimizer)
            model = Model(breaks=True)
            optimizer = optimizer_of(model)
            stepped(torch.compile(model, backend="eager"), optimizer)
            model = Model()
            stepped(torch.compile(lambda x: model(x), **compiled), optimizer_of(model))
            model = Model(breaks=True)
            stepped(torch.compile(lambda x: model(x), backend="eager"), optimizer_of(model))
            model = Model()
            optimizer = optimizer_of(model)
            def whole(x):
                torch.autograd.grad(model(x).sum(), list(model.parameters()))
                return x.sum().requires_grad_()
            stepped(torch.compile(whole, backend="eager"), optimizer)
        """
        timeline, said = train(tmp_path, program)
        # So nothing of ours is compiled, nor breaks a graph: as many frames, graphs and breaks.
        assert results("\n".join(said)) == results(run(job(tmp_path, program)).stdout)
        assert "'graph_break': {}" in said[0]
        assert len(results("\n".join(said))) == 8
        assert timeline.steps == list(range(24))
        for step in range(24):
            tasks = order(timeline, step=step)
            assert [kind for kind, *_ in tasks if kind == "B"] == ["B", "B"]
            numbers = [number for kind, _, number in tasks if kind == "F"]
            # Inside of a compiled function nothing is seen.
            assert numbers == ([0, 1] if step // 3 < 5 else []), step

    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_compiled_steps_of_optimizers(self, tmp_path, backend):
        """As PyTorch's tutorial compiles them: as many graphs and breaks, and no compilation more."""
        program = f"""
            from torch._dynamo.utils import counters
            compiled = dict(backend={backend!r}, fullgraph=False)
            def trained(step, model, whole=False):
                for _ in range(4):
                    with stamped("step"):
                        if not whole:
                            loss = model(x).exp().sum()
                            loss.backward()
                        with stamped("optimizer"):
                            loss = (step() or loss) if not whole else step()
                    print("rank loss", loss.item().hex())
                seen = [sum(counters["graph_break"].values()), dict(counters["recompiles"])]
                seen += [counters["stats"][name] for name in ("unique_graphs", "calls_captured")]
                print("rank", *seen, [p.tolist() for p in model.parameters()])
                counters.clear()
                torch._dynamo.reset()

            model = made()
            optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))
            scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3)
            @torch.compile(**compiled)
            def step():
                optimizer.step()
                scheduler.step()
            trained(step, model)
            model = made()
            optimizer = optimizer_of(model)
            optimizer.step = torch.compile(optimizer.step, **compiled)
            trained(optimizer.step, model)
            model = made()
            last = optimizer_of(model)
            @torch.compile(**compiled)
            def all_of_it():
                loss = model(x).sum()
                loss.backward()
                last.step()
                last.zero_grad()
                return loss
            trained(all_of_it, model, whole=True)
        """
        timeline, said = train(tmp_path, STAMPED + textwrap.dedent(program))
        alone = run(job(tmp_path, STAMPED + textwrap.dedent(program)))
        assert results("\n".join(said)) == results(alone.stdout)
        assert timeline.steps == list(range(12))
        for step in range(8):
            assert order(timeline, step=step) == [("F", 0, 0), ("B", 0, 0)]
        for step in range(8, 12):  # a model inside of a compiled function is not seen
            assert [kind for kind, *_ in order(timeline, step=step)] == ["B"]
        for begin, end, *task in stamped(tmp_path / "out", said, "optimizer"):
            assert begin <= task[0] < task[1] <= end

    def test_what_a_loop_in_a_thread_does_beside_its_passes(self, tmp_path):
        """As Ray Train runs loops: not in the main thread."""
        program = STAMPED + textwrap.dedent("""
            import io, threading
            def trained():
                model = made()
                optimizer = optimizer_of(model)
                for _ in range(3):
                    model(x).sum().backward()
                    with stamped("gradient clipping"):
                        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    with torch.no_grad(), stamped("evaluation"):
                        model(x)
                    with stamped("checkpoint"):
                        torch.save(model.state_dict(), io.BytesIO())
            for _ in range(2):  # one after the other
                thread = threading.Thread(target=trained)
                thread.start()
                torch.save(1, io.BytesIO())  # of the main thread, which does not train
                thread.join()
        """)
        timeline, said = train(tmp_path, program)
        assert timeline.steps == list(range(6))
        for name in ("gradient clipping", "evaluation", "checkpoint"):
            for begin, end, *task in stamped(tmp_path / "out", said, name):
                assert begin <= task[0] < task[1] <= end

    @pytest.mark.parametrize(
        ("program", "steps"),
        [
            ("in_thread(trained, model, optimizer, 4)", [0, 1, 2, 3]),
            # As epochs that a server starts: each thread goes on where another has ended.
            ("for _ in range(3): in_thread(trained, model, optimizer, 2)", [0, 1, 2, 3, 4, 5]),
            (THERE_AND_BACK, [0, 1, 4, 5, 6, 7]),
            (ANEW, [2, 3]),
        ],
        ids=["alone", "threads", "there and back", "with an optimizer of its own"],
    )
    def test_what_one_thread_has_made_is_recorded_where_it_is_trained(
        self, tmp_path, program, steps
    ):
        """As the first of all, or once the thread has shown by a step, or two, that it trains."""
        program = f"""
import threading
done = 0
def in_thread(function, *given):
    thread = threading.Thread(target=function, args=given)
    thread.start()
    thread.join()
def trained(model, optimizer, steps):
    global done
    for _ in range(steps):
        known = done in {steps}
        for _ in range(2):
            with stamped("forward" if known else "none"):
                y = model(x)
            with stamped("backward" if known else "none"):
                y.sum().backward()
        with stamped("optimizer" if known else "none"):
            optimizer.step()
        optimizer.zero_grad()
        print("rank", done, y.sum().item().hex(), [p.tolist() for p in model.parameters()])
        done += 1
model = made()
optimizer = torch.optim.Adam(model.parameters())
{program}
"""
        command = job(tmp_path, STAMPED + program)
        done = recorded(tmp_path / "out", command)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "threads" not in done.stderr
        assert results(done.stdout) == results(run(command).stdout)
        timeline = sources.load(tmp_path / "out")
        assert timeline.steps == steps
        for step in steps:
            assert order(timeline, step=step) == IN_TURN
        for name in ("forward", "backward", "optimizer"):
            for begin, end, *task in stamped(tmp_path / "out", done.stdout.splitlines(), name):
                assert begin <= task[0] < task[1] <= end

    def test_a_training_that_failed_begins_anew(self, tmp_path):
        """With another model and optimizer: what the step had done until then is of no step."""
        program = """
            def trained(fails):
                model = made()
                optimizer = optimizer_of(model)
                for step in range(2):
                    for micro in range(2):
                        loss = model(x).sum()
                        if fails and step == micro == 1:
                            raise RuntimeError
                        loss.backward()
                    optimizer.step()
            for fails in (True, False):
                try:
                    trained(fails)
                except RuntimeError:
                    print("again")
        """
        done = recorded(tmp_path / "out", job(tmp_path, program))
        assert done.returncode == 0, done.stderr[-3000:]
        timeline = sources.load(tmp_path / "out")
        assert timeline.steps == [0, 1, 2]
        for step in timeline.steps:
            assert order(timeline, step=step) == IN_TURN
        of_none = timeline.tasks.filter(pl.col("step").is_null(), pl.col("kind").is_in(PASSES))
        assert of_none["kind"].to_list() == ["forward", "backward", "forward"]

    def test_of_threads_that_train_at_once_one_is_recorded(self, tmp_path):
        program = """
            import threading
            turn, done = threading.Barrier(2), []
            def trained():
                turn.wait()
                model = made()
                optimizer = optimizer_of(model)
                for step in range(4):
                    turn.wait()
                    model(x).sum().backward()
                    optimizer.step()
                done.append(step)
            both = [threading.Thread(target=trained) for _ in range(2)]
            for thread in both:
                thread.start()
            for thread in both:
                thread.join()
            assert done == [3, 3]
        """
        done = recorded(tmp_path / "out", job(tmp_path, program))
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stderr.count("RuntimeWarning: the job trains in several threads at once") == 1
        assert "the job trained 4 steps in other threads" in " ".join(done.stderr.split())
        kinds = ("forward", "backward", "optimizer")
        timeline = sources.load(tmp_path / "out")
        assert counts(timeline) == {(step, kind): 1 for step in range(4) for kind in kinds}
        [told] = [one for one in timeline.run.warnings if one.code == "other-threads"]
        assert told.lost == 4
        info = run([sys.executable, "-m", "bubblescope", "info", str(tmp_path / "out")])
        assert "rank 0 trained at least 4 steps in other threads" in " ".join(info.stderr.split())

    def test_what_is_wrapped_may_be_called_alone(self, tmp_path):
        """As in an evaluation of `model.module`, for which ranks need not wait for each other."""
        program = STAMPED + textwrap.dedent("""
            from torch import distributed
            from torch._dynamo.utils import counters
            from torch.nn.parallel import DistributedDataParallel as Ddp
            distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
            compiled = {"backend": "eager"}
            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.inner = made()
                def forward(self, x):
                    y = self.inner(x)
                    torch._dynamo.graph_break()
                    return self.inner(y)
            def trained(model, inner):
                optimizer = optimizer_of(model)
                for _ in range(2):
                    for _ in range(2):
                        with stamped("forward"):
                            y = model(x)
                        y.sum().backward()
                    optimizer.step()
                    with torch.no_grad(), stamped("evaluation"):
                        inner(x)
                inner(x).sum().backward()
                optimizer.step()
                seen = {name: dict(counters[name]) for name in ("graph_break", "frames", "stats")}
                print("rank", seen, [p.tolist() for p in optimizer.param_groups[0]["params"]])
                counters.clear()
                torch._dynamo.reset()
            model = Ddp(Model())
            trained(model, model.module)
            model = nn.DataParallel(Model())
            trained(model, model.module)
            model = torch.compile(Ddp(Model()), **compiled)
            trained(model, model._orig_mod.module)
            model = Ddp(torch.compile(Model(), **compiled))
            trained(model, model.module)
            inner = Model()
            trained(Ddp(torch.compile(inner, **compiled)), inner)
            distributed.destroy_process_group()
        """)
        timeline, said = train(tmp_path, program)
        alone = run(job(tmp_path, program))
        assert results("\n".join(said)) == results(alone.stdout)
        assert timeline.steps == list(range(15))
        for step in range(15):
            tasks = [(kind, microbatch) for kind, _, microbatch in order(timeline, step=step)]
            turns = 2 if step % 3 < 2 else 1
            assert tasks == [(kind, turn) for turn in range(turns) for kind in "FB"]
        for begin, end, *task in stamped(tmp_path / "out", said, "evaluation"):
            assert begin <= task[0] < task[1] <= end

    def test_a_model_that_is_wrapped_after_its_optimizer_was_made(self, tmp_path):
        """As Accelerate and Lightning do: what is called is the wrapper, which here calls it twice."""
        timeline, _ = train(
            tmp_path,
            """
            class Wrapper(nn.Module):
                def __init__(self, module):
                    super().__init__()
                    self.module = module
                def forward(self, x):
                    return self.module(x) + self.module(x)
            class Holder(nn.Module):  # which nobody calls
                def __init__(self, module):
                    super().__init__()
                    self.module = module
                def forward(self, x):
                    return self.module(x)
            model = made()
            optimizer = optimizer_of(model)
            wrapper = Wrapper(model)
            for step in range(2):
                for (batch,) in DataLoader(TensorDataset(torch.randn(2, 4))):
                    wrapper(batch).sum().backward()
                optimizer.step()
                model.eval()  # and the wrapper stays in training
                with torch.no_grad():
                    for batch in DataLoader(torch.randn(1, 4)):
                        model(batch)
                model.train()
            del wrapper, model, optimizer
            model = made()
            optimizer = optimizer_of(model)
            holder = Holder(model)
            for step in range(2):
                for _ in range(2):
                    model(x).sum().backward()
                optimizer.step()
            """,
        )
        assert timeline.steps == [0, 1, 2, 3]
        for step in range(4):
            assert order(timeline, step=step) == IN_TURN
        # A batch, its pass, and the end of the data, of two evaluations.
        assert timeline.tasks.filter(pl.col("name") == "evaluation").height == 2 * 3

    def test_failures_are_the_jobs(self, tmp_path):
        """What failed was no task, and may be tried again."""
        program = """
            class Failing(torch.autograd.Function):
                @staticmethod
                def forward(context, x):
                    return x.clone()
                @staticmethod
                def backward(context, gradient):
                    raise ValueError("backward")
            class Model(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.inner, self.error = made(), None
                def forward(self, x):
                    if self.error is not None:
                        raise self.error
                    return self.inner(x)
            model = Model()
            optimizer = optimizer_of(model)
            def tried(error):
                model.error = error
                try:
                    model(x)
                except BaseException as caught:
                    assert caught is error and caught.__context__ is None
                model.error = None
            for step in range(2):
                tried(ValueError("first of the step"))
                model(x).sum().backward()
                tried(KeyboardInterrupt())
                y = model(x)
                try:
                    Failing.apply(y).sum().backward()
                except ValueError as caught:
                    assert str(caught) == "backward"
                y.sum().backward()
                optimizer.step()
            model(x)
            print("going", flush=True)
            model.error = ValueError("the last")
            model(x)
        """
        done = recorded(tmp_path / "out", job(tmp_path, program))
        assert done.returncode == 1
        assert done.stdout.startswith("going")
        assert done.stderr.rstrip().endswith("ValueError: the last")
        timeline = sources.load(tmp_path / "out")
        assert timeline.steps == [0, 1, 2]
        for step in range(2):
            assert order(timeline, step=step) == IN_TURN
        assert order(timeline, step=2) == [("F", 0, 0)]

    def test_a_batch_that_is_left_out_or_tried_again_shifts_nothing(self, tmp_path):
        """A backward fails, as for want of memory; then its batch comes again, or the next one."""
        program = """
            class Failing(torch.autograd.Function):
                @staticmethod
                def forward(context, x):
                    return x.clone()
                @staticmethod
                def backward(context, gradient):
                    raise MemoryError("backward")
            model = made()
            optimizer = optimizer_of(model)
            for step in range(3):
                for turn in range(2):
                    if (step, turn) in ((0, 0), (1, 1), (2, 0)):
                        try:
                            Failing.apply(model(x)).sum().backward()
                        except MemoryError:
                            optimizer.zero_grad() if turn == 0 else None
                    model(x).sum().backward()
                optimizer.step()
        """
        timeline, _ = train(tmp_path, program)
        assert timeline.steps == [0, 1, 2]
        for step in range(3):
            assert order(timeline, step=step) == IN_TURN
        told = [one for one in timeline.run.warnings if one.code == "failed-steps"]
        assert sum(one.lost for one in told) == 3

    def test_a_model_is_saved_and_copied_as_it_is(self, tmp_path):
        """Nothing of ours is in files and copies, and nothing of PyTorch's stumbles over it."""
        timeline, _ = train(
            tmp_path,
            """
            import copy, io, threading
            class Own(nn.Linear):
                def __getstate__(self):
                    return dict(self.__dict__)
            def saved(model):
                file = io.BytesIO()
                torch.save(model, file)
                return file.getvalue()
            for model in (made(), Own(4, 4)):
                before = saved(model)
                optimizer = optimizer_of(model)
                assert b"bubblescope" not in saved(model)
                assert isinstance(model, Own) or saved(model) == before
                for _ in range(2):
                    model(x).sum().backward()
                    optimizer.step()
                loaded = torch.load(io.BytesIO(saved(model)), weights_only=False)
                replica = model._replicate_for_data_parallel()
                for other in (loaded, copy.deepcopy(model), copy.copy(model), replica):
                    other.forward = lambda x: 7
                    said = [other(x)]
                    thread = threading.Thread(target=lambda: said.append(other(x)))
                    thread.start()
                    thread.join()
                    assert said == [7, 7]
                with torch.no_grad():
                    for kind in (
                        torch.jit.script(model),
                        torch.jit.trace(model, x),
                        torch.fx.symbolic_trace(model),
                        torch.export.export(model, (x,)).module(),
                    ):
                        assert torch.equal(kind(x), model(x))
            """,
        )
        assert timeline.steps == [0, 1, 2, 3]

    def test_a_module_that_takes_a_models_place_with_all_it_has_is_called(self, tmp_path):
        """As libraries do that put in a layer of another class; the model itself is gone then."""
        train(
            tmp_path,
            """
            import gc
            class Other(nn.Module):
                def forward(self, x):
                    return 7
            model = made()
            optimizer = optimizer_of(model)
            model(x).sum().backward()
            optimizer.step()
            for _ in range(2):  # within a step, as everything is as usual
                model(x).sum().backward()
            other, shares = Other(), Other()
            vars(other).update(vars(model))
            assert other(x) == 7
            shares.__dict__ = other.__dict__ = vars(model)
            assert [other(x), shares(x)] == [7, 7]
            assert model(x).shape == (2, 4)
            vars(other).update(vars(model))
            del model, shares
            gc.collect()
            assert other(x) == 7
            """,
        )

    def test_nothing_of_ours_keeps_anything(self, tmp_path):
        """A model is gone when the job has no use for it, and so is the graph of every step."""
        _, said = train(
            tmp_path,
            """
            import gc, weakref
            gc.disable()
            graphs = []
            class Token:
                pass
            class Kept(torch.autograd.Function):
                @staticmethod
                def forward(context, x):
                    context.token = Token()
                    return x.clone()
                @staticmethod
                def backward(context, gradient):
                    return gradient
            def trained(model):
                optimizer = optimizer_of(model)
                for _ in range(3):
                    y = model(x)
                    graphs.append(weakref.ref(y))
                    y = Kept.apply(y)
                    graphs.append(weakref.ref(y.grad_fn.token))
                    y.sum().backward()
                    optimizer.step()
                    del y
            model = made()
            trained(model)
            assert not any(graph() for graph in graphs), "graphs"
            gone = [weakref.ref(model), weakref.ref(model[0].weight)]
            del model
            gc.collect(0)
            print([one() is None for one in gone])
            model = made()
            model.compile(backend="eager")
            trained(model)
            torch._dynamo.reset()
            gone = [weakref.ref(model)]
            del model
            gc.collect()
            print([one() is None for one in gone])
            """,
        )
        assert said[:2] == ["[True, True]", "[True]"]

    def test_importing_a_framework_changes_nothing(self, tmp_path):
        program = """
            import torch.distributed.pipelining, torch.distributed.pipelining.schedules
            model = made()
            optimizer = optimizer_of(model)
            for _ in range(3):
                model(x).sum().backward()
                optimizer.step()
        """
        done = recorded(tmp_path / "out", job(tmp_path, program))
        assert done.returncode == 0
        assert "following a training loop in PyTorch" in " ".join(done.stdout.split())
        assert sources.load(tmp_path / "out").steps == [0, 1, 2]

    @pytest.mark.parametrize(
        ("options", "program", "why"),
        [
            ((), "print('no optimizer')", "or made an optimizer of PyTorch"),
            ((), "optimizer_of(made())", "no module that holds its parameters ran with gradients"),
            (
                ("--steps", "5:9"),
                """
                model = made()
                optimizer = optimizer_of(model)
                for _ in range(3):
                    model(x).sum().backward()
                    optimizer.step()
                """,
                "of the 3 training steps that began, from 0 on, none is in 5:9",
            ),
        ],
    )
    def test_where_nothing_was_recorded_it_says_why(self, tmp_path, options, program, why):
        done = recorded(tmp_path / "out", job(tmp_path, program), *options)
        assert done.returncode == 3
        assert why in " ".join(done.stderr.split())

    def test_a_failure_of_ours_is_one_warning(self, tmp_path):
        program = f"""
            import warnings
            import bubblescope.record
            from bubblescope.record.integrations.torch_loop import graph_origins, loop
            def trained():
                torch.manual_seed(1)
                model = made()
                optimizer = optimizer_of(model)
                for (batch,) in DataLoader(TensorDataset(torch.randn(6, 4))):
                    model(batch).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                return torch.cat([p.flatten() for p in model.parameters()]).tolist()
            def fails(*_, **__):
                raise ValueError(name)
            plain = trained()
            for owner, name in (
                (graph_origins, "Work"), (loop.Origins, "of"), (loop.Origins, "note"),
                (loop.Modules, "models_of"), (loop.Modules, "add"),
                (loop.Loop, "_introduce"), (loop.Loop, "_goes"), (loop.Loop, "_trains"),
                (loop.Loop, "_look_further"),
            ):
                theirs = getattr(owner, name)
                setattr(owner, name, fails)
                bubblescope.record.instrument("loop", folder={str(tmp_path / "out")!r})
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    assert trained() == plain, name
                print(name, len(said), *(str(one.message) for one in said))
                setattr(owner, name, theirs)
        """
        done = run(job(tmp_path, program))
        assert done.returncode == 0, done.stderr[-3000:]
        for line in done.stdout.splitlines():
            name, count, *message = line.split()
            if name == "_look_further":  # it was not needed
                assert count == "0"
                continue
            assert count == "1", line
            assert message[:3] == ["bubblescope", "stopped", "recording"]


WAITED_FOR = """
    import time, torch
    from torch import distributed, nn
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    class Slow(nn.Linear):
        def forward(self, x):
            time.sleep({sleep})
            return super().forward(x)
    Replica = nn.parallel.DistributedDataParallel
    {model}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {later}
    for step in range(8):
        for micro in range(2):
            with replica.no_sync() if micro == 0 else torch.enable_grad():
                model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    distributed.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("model", "later"),
    [
        ("model = replica = Replica(Slow(4, 4))", ""),
        ("model = nn.Sequential(Slow(4, 4))", "replica = model[0] = Replica(model[0])"),
    ],
    ids=["a model", "a part of a model"],
)
def test_the_rank_that_others_wait_for_is_slow_and_not_the_one_that_waits(tmp_path, model, later):
    """Rank 1 sleeps in its forwards. Rank 0 waits for its gradients, in the last backward of a step."""
    program = WAITED_FOR.format(sleep="0.03 if rank else 0.005", model=model, later=later)
    done = recorded(tmp_path / "out", torchrun(tmp_path, 2, textwrap.dedent(program)))
    assert done.returncode == 0, done.stderr[-3000:]
    timeline = sources.load(tmp_path / "out")
    length = pl.col("end_ns") - pl.col("start_ns")
    sums = timeline.tasks.group_by("rank", "kind").agg(length.sum(), count=pl.len())
    spent = {(rank, str(kind)): (ns, count) for rank, kind, ns, count in sums.iter_rows()}
    # What only accumulates gradients reduces none.
    assert spent[0, "collective"][1] == spent[1, "collective"][1] == 8
    assert spent[0, "backward"][1] == 2 * 8
    # The first step is longer: much is set up in it.
    injected = 7 * 2 * 25_000_000
    assert injected < spent[0, "collective"][0] < 8 * 2 * 50_000_000
    assert spent[0, "backward"][0] < injected / 4
    slow = study(timeline).slow_rank
    assert slow is not None
    assert slow.rank == 1


COLLECTIVES = """
    import torch
    from torch import distributed, nn
    distributed.init_process_group("gloo")
    ranks = distributed.get_world_size()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one = lambda: torch.ones(2)
    for step in range(3):
        model(torch.ones(2, 4)).sum().backward()
        distributed.all_reduce(one())
        distributed.all_gather([one() for _ in range(ranks)], one())
        distributed.broadcast(one(), 0)
        distributed.all_gather_object([None] * ranks, step)
        distributed.barrier()
        waits = [distributed.all_reduce(one(), async_op=True) for _ in range(2)]
        for work in waits:
            assert type(work) is distributed.Work  # some wait for nothing else
            work.wait()
        optimizer.step()
        distributed.barrier()  # of no step
    distributed.destroy_process_group()
"""


def test_collectives_that_the_loop_calls_are_tasks_each_while_it_waits(tmp_path):
    done = recorded(tmp_path / "out", torchrun(tmp_path, 2, textwrap.dedent(COLLECTIVES)))
    assert done.returncode == 0, done.stderr[-3000:]
    tasks = sources.load(tmp_path / "out").tasks.filter(kind="collective")
    counts = tasks.group_by("rank", "step").len().sort("rank", "step")
    assert counts["len"].to_list() == [7] * 2 * 3


BROKEN_OFF = """
    import torch
    from torch import distributed, nn
    from torch._dynamo.utils import counters
    distributed.init_process_group("gloo")
    class Model(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            mean = y.detach().clone()
            distributed.all_reduce(mean)
            distributed.all_reduce(mean, async_op=True).wait()  # which a graph cannot hold
            return y + mean
    torch.manual_seed(0)
    model = Model(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model, backend="eager")
    for step in range(3):
        loss = compiled(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
    if distributed.get_rank() == 0:
        print("graphs", counters["stats"]["unique_graphs"], loss.item(), flush=True)
    distributed.destroy_process_group()
"""


def test_collectives_in_compiled_models_leave_the_graphs_as_they_are(tmp_path):
    command = torchrun(tmp_path, 2, textwrap.dedent(BROKEN_OFF))
    plain, recording = run(command), recorded(tmp_path / "out", command)
    assert recording.returncode == 0, recording.stderr[-3000:]
    [expected] = (line for line in plain.stdout.splitlines() if line.startswith("graphs"))
    assert expected in recording.stdout.splitlines()


SHARDED = """
    import json, os, time, torch
    from torch import distributed, nn
    from torch.distributed.fsdp import fully_shard
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(0)
    stamps = []
    def stamped(wait):
        def call(*args, **kwargs):
            begin = time.monotonic_ns()
            result = wait(*args, **kwargs)
            stamps.append([begin, time.monotonic_ns()])
            return result
        return call
    distributed.Work.wait = stamped(distributed.Work.wait)  # beneath what records
    class Slow(nn.Linear):
        def forward(self, x):
            time.sleep(0.02 if rank else 0.002)
            return super().forward(x)
    model = nn.Sequential(*[Slow(8, 8) for _ in range(3)])
    for part in (*model, model):
        fully_shard(part)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(6):
        if step % 2:
            for part in model:
                part.unshard(async_op=True)  # waited for in the forward
        loss = model(torch.ones(2, 8)).square().mean()
        loss.backward()
        losses.append(loss.item().hex())
        optimizer.step()
        optimizer.zero_grad()
    os.write(1, (json.dumps([rank, losses, stamps]) + chr(10)).encode())  # ranks share the output
    distributed.destroy_process_group()
"""


RING = """
    import time, torch
    from torch import distributed, nn
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    def passed_on(x, how):
        y = torch.empty_like(x)
        if how == 0:
            distributed.send(x, 1) if rank == 0 else distributed.recv(y, 0)
            distributed.recv(y, 1) if rank == 0 else distributed.send(x, 0)
        elif how == 1:
            for work in distributed.isend(x, 1 - rank), distributed.irecv(y, 1 - rank):
                work.wait()
        else:
            ops = [(distributed.isend, x), (distributed.irecv, y)]
            ops = [distributed.P2POp(op, tensor, 1 - rank) for op, tensor in ops]
            for work in distributed.batch_isend_irecv(ops):
                work.wait()
        return y
    class Around(torch.autograd.Function):
        @staticmethod
        def forward(context, x, how):
            context.how = how
            return passed_on(x.detach().contiguous(), how)
        @staticmethod
        def backward(context, gradient):
            return passed_on(gradient.contiguous(), context.how), None
    class Attention(nn.Linear):
        def forward(self, x):
            for how in range(3):
                time.sleep(0.02 if rank else 0.002)
                x = Around.apply(super().forward(x), how)
            return x
    model = Attention(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    distributed.destroy_process_group()
"""


def test_ranks_wait_for_each_other_in_transfers_within_passes(tmp_path):
    """As those of ring attention: they are collectives there, and say nothing of a pipeline."""
    done = recorded(tmp_path / "out", torchrun(tmp_path, 2, textwrap.dedent(RING)))
    assert done.returncode == 0, done.stderr[-3000:]
    timeline = sources.load(tmp_path / "out")
    # Two of each way, in each pass.
    assert timeline.tasks.filter(kind="collective").height == 2 * 6 * 2 * 3 * 2
    kinds = set(timeline.tasks["kind"].cast(pl.String)) - {"gc"}
    assert kinds == {"forward", "backward", "optimizer", "collective"}
    slow = study(timeline).slow_rank
    assert slow is not None
    assert slow.rank == 1


STAGES = """
    import json, sys, time, torch
    from torch import distributed, nn
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, ranks, now = distributed.get_rank(), distributed.get_world_size(), time.time_ns
    first, last, how = rank == 0, rank == ranks - 1, sys.argv[1]
    m, place, stamps, requests, began = 4, [0, 0], [], [], 0
    def begin():
        global began
        began = now()
    def end(kind):
        stamps.append([rank, kind, *place, began, now()])
    def send(x, peer):
        x = x.detach().contiguous()
        if how == "requests":
            requests.append((distributed.isend(x, peer), x))
        else:
            distributed.send(x, peer)
    def receive(peer):
        x = torch.empty(2, 4)
        if how == "requests":
            distributed.irecv(x, peer).wait()
        else:
            distributed.recv(x, peer)
        return x
    class Receive(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return receive(rank - 1)
        @staticmethod
        def backward(context, gradient):
            end("backward")
            send(gradient, rank - 1)
            return gradient
    class Send(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            end("forward")
            send(x, rank + 1)
            return x.clone()
        @staticmethod
        def backward(context, gradient):
            gradient = receive(rank + 1)
            begin()
            return gradient
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            time.sleep(0.004 + 0.002 * rank)
            return x.clone()
        @staticmethod
        def backward(context, gradient):
            time.sleep(0.008 + 0.004 * rank)
            return gradient
    class Stage(nn.Linear):
        def forward(self, x):
            if how == "by hand":
                x = x if first else receive(rank - 1).requires_grad_()
                self.given = x
            elif not first and how != "around":
                x = Receive.apply(x)
            begin()
            y = Slow.apply(super().forward(x))
            if how == "twice" and not last:
                y = Slow.apply(Send.apply(y))
            if how == "by hand":
                end("forward")
                if not last:
                    send(y, rank + 1)
            elif how not in ("twice", "around") and not last:
                y = Send.apply(y)
            return y
    model = Stage(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        made = {}
        def forward(i):
            place[:] = step, i
            x = torch.full((2, 4), float(i), requires_grad=not first)
            y = model(Receive.apply(x) if how == "around" and not first else x)
            if how == "around" and not last:
                y = Send.apply(y)
            made[i] = getattr(model, "given", None), y
            if last and how != "by hand":
                end("forward")
        def backward(i):
            place[:] = step, i
            given, y = made.pop(i)
            if how == "by hand":
                gradient = torch.ones(2, 4) if last else receive(rank + 1)
                begin()
                y.backward(gradient)
                end("backward")
                if not first:
                    send(given.grad, rank - 1)
                return
            begin()
            y.sum().backward()
            if first:
                end("backward")
        warm = min(ranks - 1 - rank, m) if how == "requests" else m
        for i in range(warm):
            forward(i)
        for i in range(m):
            if warm + i < m:
                forward(warm + i)
            backward(i)
        while requests:
            requests.pop()[0].wait()
        optimizer.step()
        optimizer.zero_grad()
    print("stamps", json.dumps(stamps) + "\\n", end="", flush=True)
    distributed.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["blocking", "requests", "by hand", "around", "twice"])
def test_stages_that_send_and_receive_within_passes_are_a_pipeline(tmp_path, how):
    """By autograd functions, in the model or around it, or the model itself.

    Not if each pass goes on after it has sent.
    """
    done = recorded(tmp_path / "out", torchrun(tmp_path, 3, textwrap.dedent(STAGES), how))
    assert done.returncode == 0, done.stderr[-3000:]
    timeline = sources.load(tmp_path / "out")
    kinds = timeline.tasks.with_columns(pl.col("kind").cast(pl.String))
    counts = dict(kinds.group_by("kind").len().iter_rows())
    stages = timeline.ranks["stages"].list.item().to_list()
    if how == "twice":
        assert stages == [0, 0, 0]
        assert counts["collective"] == 4 * 4 * 2 * (2 + 2)
        assert [one.code for one in timeline.run.warnings] == ["transfers-in-passes"]
        return
    assert stages == [0, 1, 2]
    assert "collective" not in counts
    transfers = ("recv_forward", "send_forward", "recv_backward", "send_backward")
    assert {counts[kind] for kind in transfers} == {4 * 4 * 2}
    lines = [line for line in done.stdout.splitlines() if line.startswith("stamps ")]
    stamps = {
        (rank, kind, *place): (began, ended)
        for line in lines
        for rank, kind, *place, began, ended in json.loads(line.partition(" ")[2])
    }
    passes = kinds.filter(pl.col("kind").is_in(PASSES))
    found = {
        (rank, kind, *place): (began, ended)
        for rank, kind, *place, began, ended in passes.select(
            "rank", "kind", "step", "microbatch", "start_ns", "end_ns"
        ).iter_rows()
    }
    assert found.keys() == stamps.keys()
    apart_ns = [
        abs(one - other)
        for key, times in stamps.items()
        for one, other in zip(times, found[key], strict=True)
    ]
    assert median(apart_ns) < 1_000_000
    schedule = Report.of(timeline).to_dict()["schedule"]["schedule"]
    assert schedule == ("1f1b" if how == "requests" else "gpipe")


def test_where_transfers_within_passes_are_not_timed_a_note_says_that_stages_are_not_told(tmp_path):
    """Not of those that all ranks do alike, as in ring attention."""
    command = torchrun(tmp_path, 3, textwrap.dedent(STAGES), "blocking")
    done = recorded(tmp_path / "out", command, "--marks", "torch")
    assert done.returncode == 0, done.stderr[-3000:]
    timeline = sources.load(tmp_path / "out")
    assert [one.code for one in timeline.run.warnings] == ["transfers-in-passes"]
    assert set(timeline.tasks["kind"]) - {"gc"} == {"forward", "backward", "optimizer"}
    around = recorded(
        tmp_path / "ring", torchrun(tmp_path, 2, textwrap.dedent(RING)), "--marks", "torch"
    )
    assert around.returncode == 0, around.stderr[-3000:]
    ring = sources.load(tmp_path / "ring")
    assert not ring.run.warnings
    assert set(ring.tasks["kind"]) - {"gc"} == {"forward", "backward", "optimizer"}


def test_ranks_wait_for_each_other_in_the_passes_of_a_sharded_model(tmp_path):
    """Rank 1 sleeps in its forwards; rank 0 waits for it in its own passes, for FSDP's collectives."""
    command = torchrun(tmp_path, 2, textwrap.dedent(SHARDED))
    plain, recording = run(command), recorded(tmp_path / "out", command)
    assert recording.returncode == 0, recording.stderr[-3000:]
    told, said = (
        {rank: rest for rank, *rest in map(json.loads, filter(_is_list, one.stdout.splitlines()))}
        for one in (plain, recording)
    )
    assert all(told[rank][0] == losses for rank, (losses, _) in said.items())
    timeline = sources.load(tmp_path / "out")
    tasks = timeline.tasks.with_columns(length=pl.col("end_ns") - pl.col("start_ns"))
    assert tasks.filter(kind="forward").height == tasks.filter(kind="backward").height == 2 * 6
    for rank, (_, stamps) in said.items():
        waits = tasks.filter(rank=rank, kind="collective").sort("start_ns")
        assert waits.height == len(stamps)
        # A task is the whole call, of which the job's own stamps are what waits at its end. On a busy
        # machine, a process may have to wait for a core in between, but not in most calls.
        waited_ns = [end - begin for begin, end in sorted(stamps)]
        besides = [all_ns - ns for all_ns, ns in zip(waits["length"], waited_ns, strict=True)]
        assert min(besides) >= 0
        assert median(besides) < 5_000_000
        passes = tasks.filter(pl.col("kind").cast(pl.String).is_in(PASSES), rank=rank)
        within = waits.join_where(
            passes.select("start_ns", "end_ns"),
            pl.col("start_ns") >= pl.col("start_ns_right"),
            pl.col("end_ns") <= pl.col("end_ns_right"),
        )
        assert within.height == waits.height


def _is_list(line: str) -> bool:
    return line.startswith("[")


COPIED = """
    import copy, gc, torch
    from torch import nn
    looks = []
    every = gc.get_objects
    gc.get_objects = lambda: looks.append(1) or every()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    outer.step()
    for task in range(5):
        inner = copy.deepcopy(model)
        optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
        inner(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    assert not looks
    loose = torch.nn.Parameter(torch.ones(4))  # of no module
    late = torch.optim.SGD([*inner.parameters(), loose], lr=0.1)
    assert looks
    inner(loose.expand(2, 4)).sum().backward()
    late.step()
"""


def test_models_that_a_job_copies_are_found_without_a_look_at_all_objects(tmp_path):
    done = recorded(tmp_path / "out", [sys.executable, script(tmp_path, textwrap.dedent(COPIED))])
    assert done.returncode == 0, done.stderr[-3000:]
    kinds = sources.load(tmp_path / "out").tasks["kind"].cast(pl.String).to_list()
    assert Counter(kinds) == {"forward": 7, "backward": 7, "optimizer": 7}
