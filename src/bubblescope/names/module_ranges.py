"""Names of ranges that are about one module of a model.

PyTorch's profiler calls them `nn.Module: Linear_0` (with_stack=True); FSDP2 has ranges before and after
each module's forward and backward, such as `FSDP::pre_forward (layers.3)`; TransformerEngine and
Megatron-LM mark theirs for NVTX.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, Literal

import msgspec


class ModuleRange(msgspec.Struct, frozen=True):
    """What a range's name says of a module.

    Attributes:
        module: The module's name: its place in the model if the range says so, or its class.
        edge: Whether the range comes right before ("begin") or after ("end") the module's own work.
        way: "forward" or "backward", of ranges that have an edge.
    """

    module: str
    edge: Literal["begin", "end"] | None = None
    way: Literal["forward", "backward"] | None = None


_NUMBERS: Final = r"(?:, (?:seq|op_id|sizes|input_op_ids) = .*)?"
"""What `torch.autograd.profiler.emit_nvtx` puts behind names."""
_TORCH: Final = re.compile(r"nn\.Module: (?P<module>.+)")
_FSDP: Final = re.compile(
    rf"FSDP::(?:(?P<edge>pre|post)_(?P<way>forward|backward)\w*|\w+) \((?P<module>.+)\){_NUMBERS}"
)
_PLAIN: Final = tuple(
    re.compile(pattern + _NUMBERS)
    for pattern in (
        # TransformerEngine's module/base.py and, in its autograd functions, module/linear.py etc.
        r"_?(?P<module>(?:[A-Z][a-z0-9]*)*(?:Linear|MLP|Norm|Attention)) forward",
        r"(?:transformer_engine\.)?_(?P<module>[A-Z]\w+?)(?:_|\.)(?:forward|backward)(?:\.\w+)*",
        # Megatron-LM's nvtx_range_push: the module of the code, its function and a suffix.
        r"megatron\.core\.(?:transformer|models|ssm|extensions|fusions)\.(?P<module>[\w.]+)",
    )
)
_WRAPPERS: Final = re.compile(
    r"(?:^|\.)(?:_checkpoint_wrapped_module|_fsdp_wrapped_module|_orig_mod)(?=\.|$)"
)
"""What wrappers add to a module's place in the model."""


@cache
def module_range(name: str) -> ModuleRange | None:
    """Say which module a range is about, by its name; None if it is about none."""
    if found := _TORCH.fullmatch(name):
        return ModuleRange(found["module"])
    if found := _FSDP.fullmatch(name):
        module = _WRAPPERS.sub("", found["module"]).lstrip(".")
        if found["edge"] is None:
            return ModuleRange(module)
        edge: Literal["begin", "end"] = "begin" if found["edge"] == "pre" else "end"
        return ModuleRange(module, edge, found["way"])  # type: ignore[arg-type]  # one of the two
    for pattern in _PLAIN:
        if found := pattern.fullmatch(name):
            return ModuleRange(found["module"])
    return None
