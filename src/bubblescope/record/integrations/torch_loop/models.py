"""Which modules a training loop calls: its models."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["models_of", "parts_of", "replicated"]

_REPLICATED: Final = frozenset(
    {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
)


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


def parts_of(model: Any) -> list[Any]:
    """Return the direct parts of a module that have parameters."""
    return [part for part in model.children() if next(part.parameters(), None) is not None]


def replicated(model: Any) -> bool:
    """Say whether every rank holds a replica of the model, or a shard of it."""
    return any(kind.__name__ in _REPLICATED for kind in type(model).__mro__)


def _holds(module: Any, wanted: set[int]) -> bool:
    return any(id(parameter) in wanted for parameter in module.parameters())
