"""What names of ranges say of phases where no pipeline runs: forward, backward, optimizer.

They are believed only of traces that name no passes in a pipeline's terms, for in those the same words
may stand for parts of passes.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple

from bubblescope.model.kinds import Kind

_PART: Final = r"(?:[ _-]?(?:pass|step))?(?:\(\))?"
_WORDS: Final = {
    Kind.FORWARD: rf"(?:model[ ._])?(?:forward|fwd){_PART}|\w*Engine\.forward",
    Kind.BACKWARD: rf"(?:loss[ ._])?(?:backward|bwd){_PART}|\w*Engine\.backward",
    Kind.OPTIMIZER: r"(?:optimizer|optim|opt)(?:[ ._-]step)?(?:\(\))?|\w*(?:Engine|Optimizer\w*)\.step",
    Kind.RECOMPUTE: rf"recomput(?:e|ation){_PART}",
}
"""A whole phase: the words of loops written by hand, and methods of DeepSpeed's engine and optimizers
(`DeepSpeedZeroOptimizer_Stage3.step`, in `deepspeed/runtime/zero/stage3.py`), which its
`instrument_w_nvtx` names by class and function."""
_PHASE: Final = tuple(
    (kind, re.compile(rf"(?:## )?(?:{words})(?: ##)?", re.IGNORECASE))
    for kind, words in _WORDS.items()
)

LABELLED_BACKWARD: Final = (
    r"^(?:[\w.]*\.backward(?:\.\w+)*|(?:transformer_engine\.)?_[A-Z]\w*_backward(?:[._]\w+)*"
    r"|[A-Za-z]\w* backward)$"
)
"""Ranges within the backward of a module: `module.func.suffix` of Megatron-LM's nvtx_range_push, where
the function is an autograd function's backward, and TransformerEngine's
(`transformer_engine._Linear.backward.dgrad_gemm`, `_LayerNormMLP_backward`)."""

OPTIMIZER_KERNEL: Final = (
    r"(?i)(?:adam(?:[^a]|$)|lamb(?:stage|_|optimizer)|adagrad|adadelta|rmsprop|\bsgd|sgd(?:_|functor|math|momentum)"
    r"|FusedOptimizer|\blion_|muon|PointwiseOp\w*Functor|addcdiv)"
)
"""Kernels that only an optimizer runs: fused ones of PyTorch, Apex, DeepSpeed and TransformerEngine
carry its name or take a list of its tensors, those of PyTorch's for-each optimizers divide by the root
of the second moment."""

AUTOGRAD_THREAD: Final = r"^pt_autograd_\d+$"
"""What PyTorch calls the threads of its autograd engine (torch/csrc/autograd/engine.cpp)."""

_FSDP: Final = re.compile(
    r"FSDP::(?P<root>root_)?(?P<edge>pre|post)_forward(?: \((?P<module>.*)\))?"
)


class ForwardEdge(NamedTuple):
    """A range that FSDP2 makes right before or after the forward of a module.

    Attributes:
        module: The module's place in the model; "" for the whole model.
        begins: Whether it comes before the forward.
        root: Whether the forward is the whole model's.
    """

    module: str
    begins: bool
    root: bool


@cache
def phase_word(name: str) -> Kind | None:
    """Return the phase that a name says a range to be, as a whole; None if it says none.

    >>> phase_word("loss.backward()"), phase_word("forward_backward")
    (<Kind.BACKWARD: 'backward'>, None)
    """
    return next((kind for kind, words in _PHASE if words.fullmatch(name)), None)


@cache
def forward_edge(name: str) -> ForwardEdge | None:
    """Say whether a range is FSDP2's at the edge of a forward, by its name."""
    found = _FSDP.fullmatch(name)
    if found is None:
        return None
    return ForwardEdge(found["module"] or "", found["edge"] == "pre", found["root"] is not None)
