"""Which modules a training loop calls: its models."""

from __future__ import annotations

import gc
import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_NO_FORWARD: Final = frozenset(
    {"torch.nn.modules.module", "lightning.pytorch.core.module", "pytorch_lightning.core.module"}
)
"""Where a `forward` comes from that only says, if it is called, that there is none."""
_REPLICATED: Final = frozenset(
    {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
)
_WRAPPERS: Final = {
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
}
"""Kinds of modules that only pass on to another, and what they call that."""

_DEEP: Final = 16
"""How many calls there may be between a checkpoint and the model that it runs."""


class Modules:
    """The modules of a process, as far as they were made since it is recorded.

    Attributes:
        complete: Whether none was made before.
    """

    def __init__(self) -> None:
        self.complete = False
        self._made: list[weakref.ref[Any]] = []
        self._most = _FEW
        self._seen = -1
        """How many of those that were made `grown` has told of; -1 if it was never asked."""

    def add(self, module: Any) -> None:
        """Note that a module was made."""
        self._made.append(weakref.ref(module))
        if len(self._made) >= self._most:
            self._made = [one for one in self._made if one() is not None]
            self._most = max(_FEW, 2 * len(self._made))
            self._seen = min(self._seen, 0)

    def grown(self) -> bool:
        """Say whether there may be modules with parameters that were not when this was last asked.

        Some jobs make modules in every step, which are gone soon or have no parameters.
        """
        seen, self._seen = self._seen, len(self._made)
        return seen < 0 or any(has_parameters(one()) for one in self._made[seen:])

    def outermost(self) -> list[Any]:
        """Return the modules that are part of no other; see `models_of` for how long that may take."""
        return _outermost(self._there() if self.complete else _all_modules())

    def models_of(self, parameters: Iterable[Any]) -> list[Any]:
        """Return the modules that hold some of these parameters and are part of no other module.

        A loop may keep its model anywhere. Where it is not among those that were made since, it is
        found among all objects of the process, which takes as long as a step.
        """
        wanted = {id(parameter) for parameter in parameters}
        if self.complete:
            found = [one for one in _outermost(self._there()) if holds(one, wanted)]
            if wanted.issubset(id(one) for model in found for one in model.parameters()):
                return found
        return [one for one in _outermost(_all_modules()) if holds(one, wanted)]

    def _there(self) -> list[Any]:
        return [one for made in self._made if (one := made()) is not None]


_FEW: Final = 1024
"""Modules that are kept in mind before any are forgotten that are gone."""


def _all_modules() -> list[Any]:
    """Return the modules of the process, whenever they were made."""
    module = sys.modules["torch.nn"].Module
    # By type, for `isinstance` asks objects, and some answer by doing something.
    return [one for one in gc.get_objects() if issubclass(type(one), module)]


def _outermost(modules: Sequence[Any]) -> list[Any]:
    """Return those of some modules that are part of no other of them."""
    inner = {id(part) for one in modules for part in vars(one).get("_modules", {}).values()}
    return [one for one in modules if id(one) not in inner]


def called_of(models: Iterable[Any], wanted: set[int]) -> Iterator[Any]:
    """Yield the modules that a loop can call: a model's parts, where it only holds them together.

    So do lists of modules, and Lightning's modules that leave it to `training_step` what is called.

    Args:
        models: They.
        wanted: Identities of parameters, of which each of the parts has to hold one.
    """
    for model in models:
        if only_holds(model):
            yield from called_of(parts_of(model, wanted), wanted)
        else:
            yield model


def only_holds(model: Any) -> bool:
    """Say whether a module has no `forward`, so that nobody can call it."""
    # What is scripted answers for its class with an error; what is compiled has one of its own.
    home = getattr(getattr(type(model), "forward", None), "__module__", None)
    return home in _NO_FORWARD and "forward" not in vars(model)


def parts_of(model: Any, wanted: set[int]) -> list[Any]:
    """Return the direct parts of a module that hold some parameters, which are given as above."""
    return [part for part in model.children() if holds(part, wanted)]


def replicated(model: Any) -> bool:
    """Say whether every rank holds a replica of the model, or a shard of it."""
    return any(kind.__name__ in _REPLICATED for kind in type(model).__mro__)


def wrapped_in(model: Any) -> Iterator[Any]:
    """Yield what a model only wraps, if that is all that it does, and what that wraps in turn.

    A job may call it alone, mostly in an evaluation, for which ranks need not wait for each other.
    """
    names = (_WRAPPERS[kind.__name__] for kind in type(model).__mro__ if kind.__name__ in _WRAPPERS)
    inner = getattr(model, next(names, ""), None)
    if inner is not None:
        yield inner
        yield from wrapped_in(inner)


def has_parameters(module: Any) -> bool:
    """Say whether a module, or None, has parameters."""
    with suppress(Exception):  # a module may be half made, or say it in a way of its own
        return next(module.parameters(), None) is not None
    return False


def frozen(module: Any) -> bool:
    """Say whether a module has parameters and none of them is to be trained."""
    with suppress(Exception):  # as above
        return has_parameters(module) and not any(one.requires_grad for one in module.parameters())
    return False


def in_checkpoint() -> bool:
    """Say whether a reentrant checkpoint runs what calls this: without gradients, but to train."""
    checkpoint = sys.modules.get("torch.utils.checkpoint")
    return checkpoint is not None and _within(checkpoint.CheckpointFunction.forward.__code__)


def in_function() -> bool:
    """Say whether a function of autograd runs what calls this: without gradients, whoever calls it."""
    return _within(sys.modules["torch"].autograd.Function.apply.__code__)


def _within(code: Any) -> bool:
    """Say whether code runs what calls this."""
    frame: Any = sys._getframe(2)  # noqa: SLF001
    for _ in range(_DEEP):
        if frame is None or frame.f_code is code:
            break
        frame = frame.f_back
    return frame is not None and frame.f_code is code


def holds(module: Any, wanted: set[int]) -> bool:
    """Say whether a module holds some of these parameters, which are given by their identities."""
    with suppress(Exception):  # as above
        return any(id(parameter) in wanted for parameter in module.parameters())
    return False
