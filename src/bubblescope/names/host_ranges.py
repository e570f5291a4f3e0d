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
    EXCHANGE = "exchange"
    """With other ranks, by the host itself; a send that goes on in the background is none."""
    OTHER = "other"


ON_HOST: Final = ("gloo:", "mpi:", "ucc:")
"""What annotations of communication begin with that the host itself does, from issue to completion."""

# Made when a name is first looked at: most runs have none of these.
_DATA: Final = (
    r"enumerate\(DataLoader\)|(?:\w*[ _.-])?data[ _-]?load(?:er|ing)?\b|get[ _](?:batch|data)$"
)
_OPTIMIZER: Final = r"(?:## )?optimizer|\w*Optimizer\w*\.step\b"
_OPERATOR: Final = r"\w+(?:::\w+)+|\w+Backward\d*(?=, seq| |$)"
_EXCHANGE: Final = (
    rf"(?:{'|'.join(ON_HOST)})(?!send)"
    r"|MPI_(?:[BRS]?send|M?[Rr]ecv|Sendrecv|M?[Pp]robe|Wait|Barrier|Bcast|All|Reduce|Gather|Scatter)"
)
_AWAITS: Final = re.compile(r"<built-in method wait of (?:PyCapsule|pybind11)")
_GARBAGE: Final = re.compile(r"Python GC|gc\.collect|<built-in function collect>")
_COMPILES: Final = re.compile(r"compil(?:e(?![dr])|ing|ation)", re.IGNORECASE)
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_STEP: Final = re.compile(r"(ProfilerStep)#\d+")


def collects_garbage(name: str) -> bool:
    """Say whether a function of Python, as PyTorch's profilers name it, collects garbage."""
    return _GARBAGE.search(name) is not None


def awaits(name: str) -> bool:
    """Say whether a function of Python, as PyTorch's profilers name it, may wait for other ranks.

    Requests of `torch.distributed` are waited for by a function of pybind11, which names all of its
    functions after itself. Other libraries have such functions too.
    """
    return _AWAITS.match(name) is not None


def calls_ranks(name: str) -> bool:
    """Say whether an operator asks for an exchange with other ranks."""
    return name.startswith("c10d::")


def compiles(name: str) -> bool:
    """Say whether a range compiles code, as against running what was compiled."""
    return _COMPILES.search(name) is not None


def unnumbered(name: str) -> str:
    """Return the name by which what the host does is summed up over steps: without their number."""
    step = _STEP.fullmatch(name)
    return name if step is None else step[1]


def without_address(name: str) -> str:
    """Return the name of a function of Python without where in memory its object lies.

    >>> without_address("<built-in method item of Tensor object at 0x7f1bafe38dd0>")
    '<built-in method item of Tensor object>'
    """
    return _ADDRESS.sub("", name)


@cache
def doing(name: str) -> Doing:
    """Say what an annotation is about, by its name.

    `enumerate(DataLoader)#..` and `Optimizer.step#..` are torch.profiler's; `aten::addmm, seq = 5, ..`
    is what `torch.autograd.profiler.emit_nvtx` calls operators. `Get batch` is GPT-NeoX's
    (`megatron/training.py`), `get_data` Megatron-LM's (`examples/multimodal/train.py`), and
    `DeepSpeedZeroOptimizer_Stage3.step` DeepSpeed's (`runtime/zero/stage3.py`).
    `gloo:recv` and its like are what PyTorch's process groups of the host call their work
    (`ProcessGroupGloo.cpp`, `ProcessGroupMPI.cpp`, `ProcessGroupUCC.cpp`).
    """
    if re.match(_DATA, name, re.IGNORECASE):
        return Doing.DATA
    if re.match(_OPTIMIZER, name, re.IGNORECASE):
        return Doing.OPTIMIZER
    if re.match(_EXCHANGE, name):
        return Doing.EXCHANGE
    return Doing.OPERATOR if re.match(_OPERATOR, name) else Doing.OTHER
