"""Which modules a training loop calls: its models."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NO_FORWARD: Final = frozenset(
    {"torch.nn.modules.module", "lightning.pytorch.core.module", "pytorch_lightning.core.module"}
)
"""Where a `forward` comes from that only says, if it is called, that there is none."""
_REPLICATED: Final = frozenset(
    {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
)

_DEEP: Final = 16
"""How many calls there may be between a checkpoint and the model that it runs."""


def models_of(parameters: Iterable[Any]) -> list[Any]:
    """Return the modules that hold some of these parameters and are part of no other module.

    A loop may keep its model anywhere; among all objects of the process it is found.
    """
    wanted = {id(parameter) for parameter in parameters}
    module = sys.modules["torch.nn"].Module
    # By type, for `isinstance` asks objects, and some answer by doing something.
    modules = [one for one in gc.get_objects() if issubclass(type(one), module)]
    inner = {id(part) for one in modules for part in vars(one).get("_modules", {}).values()}
    return [one for one in modules if id(one) not in inner and _holds(one, wanted)]


def called_of(models: Iterable[Any]) -> Iterator[Any]:
    """Yield the modules that a loop can call: a model's parts, where it only holds them together.

    So do lists of modules, and Lightning's modules that leave it to `training_step` what is called.
    """
    for model in models:
        home = getattr(type(model).forward, "__module__", None)
        # What is compiled has one of its own.
        if home in _NO_FORWARD and "forward" not in vars(model):
            yield from called_of(parts_of(model))
        else:
            yield model


def parts_of(model: Any) -> list[Any]:
    """Return the direct parts of a module that have parameters."""
    return [part for part in model.children() if next(part.parameters(), None) is not None]


def replicated(model: Any) -> bool:
    """Say whether every rank holds a replica of the model, or a shard of it."""
    return any(kind.__name__ in _REPLICATED for kind in type(model).__mro__)


def in_checkpoint() -> bool:
    """Say whether a reentrant checkpoint runs what calls this: without gradients, but to train."""
    checkpoint = sys.modules.get("torch.utils.checkpoint")
    if checkpoint is None:
        return False
    code = checkpoint.CheckpointFunction.forward.__code__
    frame: Any = sys._getframe(1)  # noqa: SLF001
    for _ in range(_DEEP):
        if frame is None or frame.f_code is code:
            break
        frame = frame.f_back
    return frame is not None and frame.f_code is code


def _holds(module: Any, wanted: set[int]) -> bool:
    return any(id(parameter) in wanted for parameter in module.parameters())
