"""What tells phases and steps of a process that names none: operators, and modules."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import polars as pl

from bubblescope.names.host_ranges import ON_HOST

if TYPE_CHECKING:
    from bubblescope.sources.capture import Capture

NONE: Final = -1
"""Stands for a correlation id, device or sequence number that an event does not have."""

NODE, CAST, PRODUCT, COMPUTE, BACKWARD, COMMUNICATION, SEND, RECEIVE = range(-3, 5)
"""Roles of an operator: a node of autograd's graph, which a call of its engine encloses; changing the
type of numbers, which autocast has autograd record also where that is off; multiplying matrices, which
optimizers and the clearing of gradients do not; of the forward or anything else; run by autograd's
engine; or moving data, among many ranks or between two. Those up to `COMPUTE` are the caller's own."""

MODULE: Final = "nn.Module: "
"""What the names of modules' forwards begin with."""

OPERATORS: Final = {
    "thread": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "role": pl.Int64,
    "sequence": pl.Int64,
}
"""Columns of operators. The sequence number advances whenever autograd records an operator for the
backward; operators under `torch.no_grad` or `torch.inference_mode`, and those that a recorded one
calls, have none."""

FRAMES: Final = {
    "thread": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "name": pl.String,
}
"""Columns of those Python functions that may tell a phase."""

_PRODUCT: Final = re.compile(
    r"aten::(?:mm|_scaled_mm|_grouped_mm|addmm_?|_addmm_activation|bmm|baddbmm_?|_?convolution"
    r"|_cudnn_rnn|_scaled_dot_product_\w+)$"
)
_NODE: Final = re.compile(r"Backward\d*$")
"""What nodes of autograd's graphs are called, which its engine runs: "AddmmBackward0"."""
_CASTS: Final = ("aten::to", "aten::_to_copy")
_BEGINNINGS: Final[dict[int, str | tuple[str, ...]]] = {
    BACKWARD: "autograd::engine::",
    NODE: "torch::autograd::",
    SEND: "c10d::send",
    RECEIVE: "c10d::recv",
    COMMUNICATION: ("c10d::", "record_param_comms", "nccl:", *ON_HOST),
}
"""What the names of operators of some roles begin with; the first that fits is right."""


class Traced(Protocol):
    """What one process recorded, or what it recorded of some of its devices."""

    @property
    def capture(self) -> Capture:
        """Its ranges, launches and device work."""

    @property
    def operators(self) -> pl.DataFrame:
        """Frame with the columns of `OPERATORS`."""

    @property
    def frames(self) -> pl.DataFrame:
        """Frame with the columns of `FRAMES`."""


class Part(msgspec.Struct, frozen=True):
    """What a source found of one process; see `Traced`."""

    capture: Capture
    operators: pl.DataFrame
    frames: pl.DataFrame


def role(name: str) -> int:
    """Return the role of an operator by its name."""
    for said, beginnings in _BEGINNINGS.items():
        if name.startswith(beginnings):
            return said
    if name in _CASTS:
        return CAST
    if _NODE.search(name):
        return NODE
    return PRODUCT if _PRODUCT.match(name) else COMPUTE
