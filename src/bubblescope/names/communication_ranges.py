"""What ranges on the host say about the communication that is launched inside of them.

A range is an annotation, an operator, a Python function or an NVTX range. What
`torch.autograd.profiler.emit_nvtx` appends to a name (", seq = 7, op_id = 12") does not count.
"""

from __future__ import annotations

import re
from typing import Final

from bubblescope.names.communication_kernels import operation_in

OPERATION: Final = r"^nccl:\w"
"""Names that may tell an operation: what ProcessGroupNCCL calls its work."""

APPENDED: Final = r", (?:seq|op_id) = .*$"
"""What `emit_nvtx` appends to names."""
_SHARDS: Final = frozenset({"allgather", "reducescatter"})
_EVERY: Final = frozenset(
    {"allreduce", "allgather", "reducescatter", "broadcast", "reduce", "gather", "scatter"}
    | {"alltoall", "sendrecv", "send", "recv"}
)
_BETWEEN_TWO: Final = frozenset({"sendrecv", "send", "recv"})

REPLICATED: Final = "DistributedDataParallel.forward"
"""The range that shows that a job uses DistributedDataParallel."""
_GRADIENT: Final = r"autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"

_FSDP: Final = (
    # torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py
    r"FSDP::(?:pre_forward|post_forward|all_gather|pre_backward|post_backward_reduce"
    r"|backward_prefetch|post_backward\w*)\b"
    # torch/distributed/fsdp/_runtime_utils.py; `forward` is the whole model's
    r"|FullyShardedDataParallel\._(?:pre|post)_(?:forward|backward)\w*"
)
_END: Final = r"(?:, |$)"
"""Where a name ends, or what is appended to it begins."""
_TENSOR: Final = (
    # Functions of autograd in Megatron-LM's core/tensor_parallel. What is of sequences is left out:
    # an expert layer gathers them in a group of its own.
    r"(?:_(?:Copy|Reduce|Scatter|Gather)(?:To|From)(?:Tensor)?ModelParallelRegion"
    r"|_VocabParallelCrossEntropy"
    r"|LinearWithGradAccumulationAndAsyncCommunication)"
    rf"(?:Backward)?{_END}"
    # communication_op.py of vLLM and of SGLang, as Python's stack has it
    r"|(?:.*: )?tensor_model_parallel_(?:all_reduce|fused_\w+|all_gather|reduce_scatter|gather)"
    rf"{_END}"
)
_ROLES: Final = tuple(
    (re.compile(pattern), operations, role)
    for pattern, operations, role in (
        (_FSDP, _SHARDS, "fsdp"),
        # Shards that are replicated as well: HSDP reduces them a second time among replicas.
        (_FSDP, frozenset({"allreduce"}), "dp"),
        (_GRADIENT, frozenset({"allreduce"}), "dp"),
        (_TENSOR, _EVERY, "tp"),
        # transformer_engine/pytorch/attention: rings of keys and values, or all-to-alls of heads.
        (r"(?:transformer_engine\.)?AttnFuncWithCPAnd", _EVERY, "cp"),
        # torchtitan's operators around Hybrid-EP.
        (r"hybridep(?:\.|::)(?:dispatch|combine)", _EVERY, "ep"),
        # torch.distributed.pipelining: the actions of a schedule that send or receive.
        (r"PP:\d+(?:SEND|RECV)_[FB]\d+", _BETWEEN_TWO, "pp"),
    )
)

ROLE: Final = "|".join(f"(?:^(?:{pattern.pattern}))" for pattern, _, _ in _ROLES)
"""Names that may tell a role, apart from what `emit_nvtx` appends to them."""


def bare(name: str) -> str:
    """Return a range's name without what `emit_nvtx` appends to it."""
    return re.sub(APPENDED, "", name)


def operation_of_range(name: str) -> str | None:
    """Return the operation that a range says is launched in it, in the words of `CommunicationKernel`.

    "nccl:_all_gather_base" is an "allgather"; None of other ranges, and of "nccl:coalesced".
    """
    if not re.match(OPERATION, name):
        return None
    words = bare(name).removeprefix("nccl:").split(" ")[0]
    return "barrier" if words.endswith("barrier") else operation_in(words)


def role_of_range(name: str, operation: str | None, *, replicated: bool) -> str | None:
    """Return what communication is for that is launched in a range, in the vocabulary of `ROLES`.

    Args:
        name: The range's.
        operation: What is launched, in the words of `CommunicationKernel`; None if unknown.
        replicated: Whether the job uses DistributedDataParallel (`REPLICATED` is in its trace): only
            then it is known whose all-reduce follows upon a gradient.
    """
    plain = bare(name)
    for pattern, operations, role in _ROLES:
        if operation in operations and pattern.match(plain):
            return role if replicated or not plain.startswith("autograd::") else None
    return None
