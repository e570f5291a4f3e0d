"""The operations of ByteDance's job traces, which are named after Megatron-LM's timers.

As https://github.com/ByteDance-Seed/StragglerAnalysis has them. They say more than a kind does: which
collective an operation is, and so what waits for it.
"""

from __future__ import annotations

from typing import Final

from bubblescope.model.kinds import Kind

FORWARD: Final = "forward-compute"
BACKWARD: Final = "backward-compute"
GATHER_PARAMETERS: Final = "params-all-gather"
SCATTER_GRADIENTS: Final = "grads-reduce-scatter"
REDUCE_APART: Final = "separate-grads-all-reduce"
"""Gradients are reduced after the step, where their reduction was not overlapped with backwards."""
REDUCE_LAYERNORM: Final = "layernorm-grads-all-reduce"
REDUCE_EMBEDDING: Final = "embedding-grads-all-reduce"
CLIP_GRADIENTS: Final = "optimizer-clip-main-grad"
OPTIMIZER: Final = "optimizer"
COLLECT_GARBAGE: Final = "gc"

TYPES: Final[dict[str, Kind | None]] = {
    FORWARD: Kind.FORWARD,
    BACKWARD: Kind.BACKWARD,
    "forward-send": Kind.SEND_FORWARD,
    "forward-recv": Kind.RECV_FORWARD,
    "backward-send": Kind.SEND_BACKWARD,
    "backward-recv": Kind.RECV_BACKWARD,
    GATHER_PARAMETERS: None,
    COLLECT_GARBAGE: None,
    REDUCE_LAYERNORM: None,
    REDUCE_EMBEDDING: None,
    SCATTER_GRADIENTS: None,
    REDUCE_APART: None,
    CLIP_GRADIENTS: None,
    OPTIMIZER: None,
}
"""The types of operations: known by their kind where it is one of its own, else by name."""

COMPUTATIONS: Final = (FORWARD, BACKWARD)
"""The types that are the pipeline's work."""

BY_REPLICA: Final = (GATHER_PARAMETERS, SCATTER_GRADIENTS, REDUCE_APART)
"""The types in which the replicas of a stage meet."""

TRANSFERS: Final = {
    "forward-send": "forward-pp-comm",
    "forward-recv": "forward-pp-comm",
    "backward-send": "backward-pp-comm",
    "backward-recv": "backward-pp-comm",
}
"""Both ends of a message are one type of operation to the straggler analysis."""

COMMUNICATION: Final = frozenset(
    {*TRANSFERS, *BY_REPLICA, REDUCE_LAYERNORM, REDUCE_EMBEDDING, CLIP_GRADIENTS}
)
"""The types that are communication."""
