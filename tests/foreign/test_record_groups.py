"""Coordinates and groups of real jobs: meshes, plain process groups, wrappers, Megatron's state.

Each job is recorded by its ranks, which are forked of a process that has imported PyTorch already, and
says itself where each of them stands.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import polars as pl
import pytest

import bubblescope
from bubblescope import sources
from full import needs
from jobs import run

needs("torch")

AXES = ("pp", "dp", "tp", "cp", "ep", "etp", "edp")

RANKS = """
import json, os, sys, tempfile, traceback
import torch
from torch import distributed, nn
import torch.distributed.fsdp, torch.distributed.pipelining
from torch.distributed.device_mesh import init_device_mesh
from bubblescope import record
from bubblescope.record import session
torch.set_num_threads(1)

def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

def run_stage(submodule, stage, group, steps):
    stages = torch.distributed.pipelining
    held = stages.PipelineStage(submodule, stage, 2, torch.device("cpu"), group=group)
    schedule = stages.ScheduleGPipe(held, 2, loss_fn=lambda y, x: (y - x).sum())
    for _ in range(steps):
        schedule.step(torch.ones(4, 4)) if stage == 0 else schedule.step(target=torch.ones(4, 4))

def fork(folder, size, job, *frameworks):
    store, children = tempfile.mktemp(), []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                record.instrument("torch", "loop", *frameworks, folder=folder, timer="cpu")
                distributed.init_process_group(
                    "gloo", init_method="file://" + store, rank=rank, world_size=size
                )
                truth = job(rank)
                session.current().close()
                with open(f"{folder}/truth{rank}.json", "w") as file:
                    json.dump(truth, file)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    if any(codes):
        sys.exit(f"{job.__name__}: {codes}")
"""

TORCH = """
def hybrid_shards(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
    model = nn.Linear(4, 4)
    torch.distributed.fsdp.fully_shard(model, mesh=mesh)
    train(model)
    return {"dp": rank}

def replicas_without_a_mesh(rank):
    train(nn.parallel.DistributedDataParallel(nn.Linear(4, 4)))
    return {"dp": rank}

def mesh_of_all_ranks(rank):
    init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    train(nn.Linear(4, 4))
    return {"dp": rank}

def mesh_without_replicas(rank):
    init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "cp"))
    train(nn.Linear(4, 4))
    return {"dp": 0, "tp": rank // 2, "cp": rank % 2}

def shards_without_names(rank):
    model = nn.Linear(4, 4)
    torch.distributed.fsdp.fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
    train(model)
    return {"dp": rank}

def plain_groups(rank):
    pipelines = [distributed.new_group([one, one + 2]) for one in range(2)]
    replicas = [distributed.new_group([stage * 2, stage * 2 + 1]) for stage in range(2)]
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4), process_group=replicas[rank // 2])
    run_stage(model, rank // 2, pipelines[rank % 2], 1)  # PyTorch's replicas fail in a second step
    return {"pp": rank // 2, "dp": rank % 2}

def pipelines_of_shards(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    model = nn.Linear(4, 4)
    torch.distributed.fsdp.fully_shard(model, mesh=mesh["dp"])
    run_stage(model, rank // 2, mesh.get_group("pp"), 2)
    return {"pp": rank // 2, "dp": rank % 2}

def unflattened(rank):
    world = init_device_mesh("cpu", (8,), mesh_dim_names=("world",))
    dense = world._unflatten(0, (2, 1, 2, 2), ("pp", "dp_replicate", "fsdp", "tp"))
    world._unflatten(0, (2, 1, 2, 2, 1), ("pp", "dp_replicate", "efsdp", "ep", "etp"))
    model = nn.Linear(4, 4)
    torch.distributed.fsdp.fully_shard(model, mesh=dense["dp_replicate", "fsdp"])
    run_stage(model, rank // 4, dense.get_group("pp"), 2)
    shard, inner = rank // 2 % 2, rank % 2
    return {"pp": rank // 4, "dp": shard, "tp": inner, "ep": inner, "etp": 0, "edp": shard}

def flattened(rank):
    names = ("dp_replicate", "dp_shard", "cp")
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=names)
    mesh["dp_shard", "cp"]._flatten("dp_shard_cp")
    train(nn.Linear(4, 4))
    return {"dp": rank // 2, "cp": rank % 2}

if __name__ == "__main__":
    for job, size in (
        (hybrid_shards, 4), (replicas_without_a_mesh, 4), (mesh_of_all_ranks, 4),
        (mesh_without_replicas, 4), (shards_without_names, 4), (plain_groups, 4),
        (pipelines_of_shards, 4), (unflattened, 8), (flattened, 8),
    ):
        fork(f"{sys.argv[1]}/{job.__name__}", size, job)
"""

GROUPS = {
    "hybrid_shards": {"dp": [[0, 2], [1, 3]], "fsdp": [[0, 1], [2, 3]]},
    "replicas_without_a_mesh": {"dp": [[0, 1, 2, 3]]},
    "mesh_of_all_ranks": {"dp": [[0, 1, 2, 3]]},
    "mesh_without_replicas": {"tp": [[0, 2], [1, 3]], "cp": [[0, 1], [2, 3]]},
    "shards_without_names": {"fsdp": [[0, 1, 2, 3]]},
    "plain_groups": {"pp": [[0, 2], [1, 3]], "dp": [[0, 1], [2, 3]]},
    "pipelines_of_shards": {"pp": [[0, 2], [1, 3]], "dp": [[0, 1], [2, 3]]},
    "unflattened": {
        "pp": [[0, 4], [1, 5], [2, 6], [3, 7]],
        "tp": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "ep": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "fsdp": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "efsdp": [[0, 2], [1, 3], [4, 6], [5, 7]],
    },
    "flattened": {
        "dp": [[0, 4], [1, 5], [2, 6], [3, 7]],
        "cp": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "fsdp": [[0, 1, 2, 3], [0, 2], [1, 3], [4, 5, 6, 7], [4, 6], [5, 7]],
    },
}

MEGATRON = """
zeros, tensor = torch.zeros, torch.tensor  # Megatron asks for CUDA by name
torch.zeros = lambda *a, device=None, **k: zeros(*a, **k)
torch.tensor = lambda *a, device=None, **k: tensor(*a, **k)
torch.cuda.current_device = lambda: "cpu"
from megatron.core import parallel_state as state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func, schedules
from megatron.core.transformer import TransformerConfig

class Chunk(nn.Module):
    model_type = ModelType.encoder_or_decoder

    def __init__(self, config):
        super().__init__()
        self.config, self.layer, self.given = config, nn.Linear(8, 8), None

    def set_input_tensor(self, tensors):
        self.given = tensors[0]

    def forward(self, x):
        return torch.tanh(self.layer(x if self.given is None else self.given))

def trained(tensor, pipeline, context, expert, expert_tensor):
    state.initialize_model_parallel(
        tensor, pipeline, None, context_parallel_size=context,
        expert_model_parallel_size=expert, expert_tensor_parallel_size=expert_tensor,
    )
    model = Chunk(TransformerConfig(
        num_layers=pipeline, hidden_size=8, num_attention_heads=tensor, batch_p2p_comm=False,
        use_cpu_initialization=True, pipeline_dtype=torch.float32,
        tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline,
        context_parallel_size=context,
    ))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        get_forward_backward_func()(
            forward_step_func=lambda _, m: (m(torch.ones(4, 2, 8)), lambda y: (y.sum(), {})),
            data_iterator=iter(()), model=[model], num_microbatches=2, seq_length=4 * context,
            micro_batch_size=2, forward_only=False,
        )
        optimizer.step()
    return {
        "pp": state.get_pipeline_model_parallel_rank(),
        "dp": state.get_data_parallel_rank(),
        "tp": state.get_tensor_model_parallel_rank(),
        "cp": state.get_context_parallel_rank(),
        "ep": state.get_expert_model_parallel_rank(),
        "etp": state.get_expert_tensor_parallel_rank(),
        "edp": state.get_expert_data_parallel_rank(),
    }

def tensors(_): return trained(2, 2, 1, 2, 1)
def contexts(_): return trained(1, 2, 2, 2, 2)

if __name__ == "__main__":
    for job in (tensors, contexts):
        fork(f"{sys.argv[1]}/{job.__name__}", 8, job, "megatron")
"""


def said_and_true(folder):
    """Return the coordinates that a recording has, and those that the job's ranks told."""
    ranks = sources.load(folder).ranks
    truth = [
        json.loads(Path(folder, f"truth{rank}.json").read_text("utf8")) for rank in ranks["rank"]
    ]
    return ranks.select(AXES).rows(), [tuple(one.get(axis) for axis in AXES) for one in truth]


def groups(folder):
    """Return the ranks of the groups of each role."""
    found = sources.load(folder).groups.drop_nulls("role").filter(pl.col("role") != "world")
    by_role = found.group_by("role").agg(pl.col("ranks").unique()).iter_rows()
    return {role: sorted(ranks) for role, ranks in by_role}


def forked(tmp_path, program):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS + program, encoding="utf8")
    done = run([sys.executable, str(script), str(tmp_path)])
    assert done.returncode == 0, done.stderr[-4000:]
    assert "RuntimeWarning" not in done.stderr  # a recorder's


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torch")
    forked(folder, TORCH)
    return folder


@pytest.mark.parametrize("name", GROUPS)
def test_every_rank_knows_its_place_and_its_groups(recorded, name):
    found, truth = said_and_true(recorded / name)
    assert found == truth
    assert groups(recorded / name) == GROUPS[name]


def test_info_shows_them(recorded):
    text = str(bubblescope.load(str(recorded / "unflattened")).info())
    assert "etp" in text
    assert "tp: 4 groups of 2 ranks: 0, 1; 2, 3; 4, 5; 6, 7" in text


def test_megatron(tmp_path):
    needs("megatron")
    forked(tmp_path, MEGATRON)
    for name in ("tensors", "contexts"):
        found, truth = said_and_true(tmp_path / name)
        assert found == truth
        assert {"pp", "dp", "ep"} <= set(groups(tmp_path / name))
