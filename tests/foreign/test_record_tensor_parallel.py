"""Ranks that hold parts of each layer, by `torch.distributed.tensor`: what they wait for is told."""

from __future__ import annotations

import json
import textwrap

import polars as pl
import pytest
from test_record_loop import recorded, run, torchrun

from bubblescope import sources
from bubblescope.analysis.study import study
from full import needs

needs("torch")

JOB = """
    import json, os, sys, time
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # graphs are made in each run
    import torch
    from torch import distributed, nn
    from torch._dynamo.utils import counters
    from torch.distributed import _functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, parallelize_module
    )
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    stamps = []
    def stamped(wait):
        def call(*args, **kwargs):
            begin = time.monotonic_ns()
            result = wait(*args, **kwargs)
            stamps.append([begin, time.monotonic_ns()])
            return result
        return call
    @torch.library.custom_op("job::slow", mutates_args=())  # graphs hold it as it is
    def slow(x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02 if rank == 1 else 0.002)
        return x.clone()
    slow.register_fake(torch.empty_like)
    slow.register_autograd(lambda context, gradient: slow(gradient))
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        def forward(self, x):
            return x + self.down(slow(self.up(x)))
    model = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 8))
    for block in model[1:3]:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    if len(sys.argv) > 1:
        model = torch.compile(model, backend=sys.argv[1], fullgraph=True)
    else:
        functional.wait_tensor = stamped(functional.wait_tensor)  # above what records
    losses = []
    for step in range(6):
        loss = model(torch.ones(2, 8)).square().mean()
        loss.backward()
        losses.append(loss.item().hex())
        optimizer.step()
        optimizer.zero_grad()
    seen = {name: dict(counters[name]) for name in ("graph_break", "frames")}
    os.write(1, (json.dumps([rank, [losses, seen], stamps]) + chr(10)).encode())
    distributed.destroy_process_group()
"""


def both(tmp_path, *arguments, program=JOB):
    """Return what ranks say of a job without and with recording, and what was recorded."""
    command = torchrun(tmp_path, 2, textwrap.dedent(program), *arguments)
    plain, recording = run(command), recorded(tmp_path / "out", command)
    assert recording.returncode == 0, recording.stderr[-3000:]
    told, said = (
        {
            rank: rest
            for rank, *rest in map(
                json.loads, (line for line in one.stdout.splitlines() if line.startswith("["))
            )
        }
        for one in (plain, recording)
    )
    return told, said, sources.load(tmp_path / "out")


def test_the_rank_that_others_wait_for_is_slow(tmp_path):
    """Rank 1 sleeps in its passes; rank 0 waits for it in its own, for what layers reduce."""
    told, said, timeline = both(tmp_path)
    for rank, (results, stamps) in said.items():
        assert results == told[rank][0]
        waits = timeline.tasks.filter(rank=rank, kind="collective").sort("start_ns")
        assert waits.height == len(stamps) > 6
        spent_ns = (waits["end_ns"] - waits["start_ns"]).to_list()
        stamps_ns = [end - begin for begin, end in stamps]
        assert all(ns <= own for ns, own in zip(spent_ns, stamps_ns, strict=True))
        assert sum(spent_ns) > 0.8 * sum(stamps_ns)
    passes = timeline.tasks.filter(pl.col("kind").is_in(["forward", "backward"]))
    assert passes.height == 2 * 2 * 6
    slow = study(timeline).slow_rank
    assert slow is not None
    assert slow.rank == 1


REDUCED = """
            y = self.down(slow(self.up(x)))
            return x + functional.all_reduce(y, "sum", distributed.group.WORLD)
    model = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    known = torch.jit._builtins._find_builtin(torch.ops._c10d_functional.wait_tensor.op)
"""
"""What the job has instead: layers that reduce themselves. It says what waiting is for TorchScript."""


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_layers_that_reduce_themselves_wait_within_the_same_graphs(tmp_path, backend):
    head, _, _ = JOB.partition("            return x + ")
    _, _, tail = JOB.partition("foreach=False)")
    tail = tail.replace("[losses, seen]", "[losses, seen, known]")
    told, said, timeline = both(tmp_path, backend, program=head + REDUCED + tail)
    assert {rank: results for rank, (results, _) in said.items()} == {
        rank: results for rank, (results, _) in told.items()
    }
    waits = timeline.tasks.filter(kind="collective").group_by("rank", "step").len()
    assert waits["len"].to_list() == [4] * 2 * 6
    slow = study(timeline.slice(steps=range(1, 6))).slow_rank
    assert slow is not None
    assert slow.rank == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_ranks_wait_within_the_same_graphs(tmp_path, backend):
    """Rank 0 waits for rank 1 within its graphs; what is only tried, as they are made, is no wait."""
    told, said, timeline = both(tmp_path, backend)
    assert {rank: results for rank, (results, _) in said.items()} == {
        rank: results for rank, (results, _) in told.items()
    }
    waits = timeline.tasks.filter(kind="collective").group_by("rank", "step").len()
    assert waits["len"].to_list() == [4] * 2 * 6  # of two blocks, forward and backward
    slow = study(timeline.slice(steps=range(1, 6))).slow_rank  # the first step makes the graphs
    assert slow is not None
    assert slow.rank == 1
