"""What tasks do, and where: the kinds of pipeline work and the lanes of a rank."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Kind(str, Enum):
    """What a task does."""

    FORWARD = "forward"
    BACKWARD = "backward"
    """The fused backward, which makes input and weight gradients in one."""
    BACKWARD_INPUT = "backward_input"
    BACKWARD_WEIGHT = "backward_weight"
    FORWARD_BACKWARD = "forward_backward"
    """A forward of one micro-batch overlapped with a backward of another (DualPipe)."""
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    SEND_FORWARD = "send_forward"
    RECV_FORWARD = "recv_forward"
    SEND_BACKWARD = "send_backward"
    RECV_BACKWARD = "recv_backward"
    COLLECTIVE = "collective"
    DATA = "data"
    GC = "gc"
    OTHER = "other"


class Lane(str, Enum):
    """Where a task runs: the device's compute or communication streams, or the host."""

    COMPUTE = "compute"
    COMM = "comm"
    HOST = "host"


SHORT: Final[dict[Kind, str]] = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "B",
    Kind.BACKWARD_INPUT: "B",
    Kind.BACKWARD_WEIGHT: "W",
    Kind.FORWARD_BACKWARD: "FB",
    Kind.RECOMPUTE: "R",
    Kind.OPTIMIZER: "Opt",
    Kind.SEND_FORWARD: "SF",
    Kind.RECV_FORWARD: "RF",
    Kind.SEND_BACKWARD: "SB",
    Kind.RECV_BACKWARD: "RB",
    Kind.COLLECTIVE: "Coll",
    Kind.DATA: "Data",
    Kind.GC: "GC",
    Kind.OTHER: "Other",
}
"""The label drawn on a block of each kind."""

COMPUTE_KINDS: Final[frozenset[Kind]] = frozenset(
    {
        Kind.FORWARD,
        Kind.BACKWARD,
        Kind.BACKWARD_INPUT,
        Kind.BACKWARD_WEIGHT,
        Kind.FORWARD_BACKWARD,
        Kind.RECOMPUTE,
    },
)
"""The kinds that make up a pipeline's work; time without any of them is bubble."""

BACKWARDS: Final = (Kind.BACKWARD, Kind.BACKWARD_INPUT)
"""The kinds whose gradient the stage before works on."""

TRANSFERS: Final = (Kind.SEND_FORWARD, Kind.RECV_FORWARD, Kind.SEND_BACKWARD, Kind.RECV_BACKWARD)
"""The kinds that move a result from one stage to another."""

LANE_OF: Final[dict[Kind, Lane]] = {
    **dict.fromkeys(COMPUTE_KINDS, Lane.COMPUTE),
    Kind.OPTIMIZER: Lane.COMPUTE,
    **dict.fromkeys((*TRANSFERS, Kind.COLLECTIVE), Lane.COMM),
    Kind.DATA: Lane.HOST,
    Kind.GC: Lane.HOST,
    Kind.OTHER: Lane.COMPUTE,
}
"""The lane a kind runs on unless the source knows better."""
