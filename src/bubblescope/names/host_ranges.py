"""What annotations say that the host is doing: loading data, running an optimizer or an operator."""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from typing import Final


class Doing(Enum):
    """What an annotation is about."""

    DATA = "data"
    OPTIMIZER = "optimizer"
    OPERATOR = "operator"
    OTHER = "other"


# Made when a name is first looked at: most runs have none of these.
_DATA: Final = (
    r"enumerate\(DataLoader\)|(?:\w*[ _.-])?data[ _-]?load(?:er|ing)?\b|get[ _](?:batch|data)$"
)
_OPTIMIZER: Final = r"(?:## )?optimizer|\w*Optimizer\w*\.step\b"
_OPERATOR: Final = r"\w+(?:::\w+)+|\w+Backward\d*(?=, seq| |$)"
_GARBAGE: Final = re.compile(r"Python GC|gc\.collect|<built-in function collect>")
_STEP: Final = re.compile(r"(ProfilerStep)#\d+")


def collects_garbage(name: str) -> bool:
    """Say whether a function of Python, as PyTorch's profilers name it, collects garbage."""
    return _GARBAGE.search(name) is not None


def unnumbered(name: str) -> str:
    """Return the name by which what the host does is summed up over steps: without their number."""
    step = _STEP.fullmatch(name)
    return name if step is None else step[1]


@cache
def doing(name: str) -> Doing:
    """Say what an annotation is about, by its name.

    `enumerate(DataLoader)#..` and `Optimizer.step#..` are torch.profiler's; `aten::addmm, seq = 5, ..`
    is what `torch.autograd.profiler.emit_nvtx` calls operators. `Get batch` is GPT-NeoX's
    (`megatron/training.py`), `get_data` Megatron-LM's (`examples/multimodal/train.py`), and
    `DeepSpeedZeroOptimizer_Stage3.step` DeepSpeed's (`runtime/zero/stage3.py`).
    """
    if re.match(_DATA, name, re.IGNORECASE):
        return Doing.DATA
    if re.match(_OPTIMIZER, name, re.IGNORECASE):
        return Doing.OPTIMIZER
    return Doing.OPERATOR if re.match(_OPERATOR, name) else Doing.OTHER
