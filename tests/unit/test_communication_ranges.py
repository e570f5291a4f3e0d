from __future__ import annotations

import re

import pytest

from bubblescope.names.communication_ranges import (
    OPERATION,
    ROLE,
    operation_of_range,
    role_of_range,
)
from bubblescope.names.group_roles import ROLES


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("nccl:all_reduce", "allreduce"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:_all_gather_base", "allgather"),
        ("nccl:_reduce_scatter_base", "reducescatter"),
        ("nccl:reduce_scatter_tensor_coalesced", "reducescatter"),
        ("nccl:all_to_all, op_id = 991144", "alltoall"),
        ("nccl:broadcast", "broadcast"),
        ("nccl:_reduce_oop", "reduce"),
        ("nccl:gather", "gather"),
        ("nccl:send 0->1", "send"),
        ("nccl:recv 0<-1", "recv"),
        ("nccl:coalesced", None),
        ("nccl::all_reduce", None),
        ("all_reduce", None),
    ],
)
def test_operations(name, operation):
    assert operation_of_range(name) == operation
    assert operation is None or re.match(OPERATION, name)


@pytest.mark.parametrize(
    ("name", "operation", "role"),
    [
        ("FSDP::all_gather (layers.0)", "allgather", "fsdp"),
        ("FSDP::pre_forward (layers.0), op_id = 3", "allgather", "fsdp"),
        ("FSDP::backward_prefetch for layers.0", "allgather", "fsdp"),
        ("FSDP::post_backward_reduce (layers.0)", "reducescatter", "fsdp"),
        ("FSDP::post_backward_reduce (layers.0)", "allreduce", "dp"),
        ("FSDP::post_backward_reduce (layers.0)", "sendrecv", None),
        ("FullyShardedDataParallel._post_backward_hook", "reducescatter", "fsdp"),
        ("FullyShardedDataParallel._pre_forward_prefetch", "allgather", "fsdp"),
        ("FullyShardedDataParallel.forward", "allgather", None),
        ("_ReduceFromModelParallelRegion", "allreduce", "tp"),
        ("_CopyToModelParallelRegionBackward", "allreduce", "tp"),
        ("_GatherFromTensorModelParallelRegion, seq = 4, op_id = 7", "allgather", "tp"),
        ("_GatherFromSequenceParallelRegion", "allgather", None),
        ("_VocabParallelCrossEntropy", "allreduce", "tp"),
        (
            "vllm/distributed/communication_op.py(12): tensor_model_parallel_all_reduce",
            "allreduce",
            "tp",
        ),
        ("vllm/fused_moe/layer.py(7): maybe_all_reduce_tensor_model_parallel", "allreduce", None),
        ("transformer_engine.AttnFuncWithCPAndKVP2P.forward", "sendrecv", "cp"),
        ("AttnFuncWithCPAndKVAllGather", "allgather", "cp"),
        ("hybridep::dispatch", "alltoall", "ep"),
        ("PP:0SEND_F3", "sendrecv", "pp"),
        ("PP:0F3", "sendrecv", None),
        ("ProfilerStep#3", "allreduce", None),
        ("aten::mm", None, None),
    ],
)
def test_roles(name, operation, role):
    assert role_of_range(name, operation, replicated=False) == role
    assert role is None or (role in ROLES and re.search(ROLE, name))


def test_only_in_a_job_with_replicas_is_a_gradient_reduced_among_them():
    name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad, op_id = 1"
    assert role_of_range(name, "allreduce", replicated=True) == "dp"
    assert role_of_range(name, "allreduce", replicated=False) is None
    assert role_of_range(name, "allgather", replicated=True) is None
