"""Modules that a loop calls though no optimizer holds their parameters.

Teachers, averages of the weights, reference and reward models, frozen encoders, losses that are
networks themselves: their forwards take time of a step, but are no passes of what is trained.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from bubblescope.record.integrations.torch_aside import ASIDE
from bubblescope.record.integrations.torch_loop.called import Called, Part
from bubblescope.record.integrations.torch_loop.models import (
    has_parameters,
    holds,
    only_holds,
    wrapped_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bubblescope.record.session import Session


class Untrained(Called):
    """What such a module calls in place of itself, to be noticed.

    Args:
        module: The module.
        loop: The `Loop` that follows it.
        session: Records it.
        name: What its forwards are called.

    Attributes:
        name: The same.
        called: Whether it was called so far.
    """

    def __init__(self, module: Any, loop: Any, session: Session, name: str) -> None:
        super().__init__(module, loop)
        self.name, self.called = name, False
        self._recorded = session.beside(_called, ASIDE, name, early=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        module: Any = self._model()
        compiler = self._compiler
        if compiler.used and compiler.traces():
            return (self._theirs or module._call_impl)(*args, **kwargs)  # noqa: SLF001
        return self._otherwise(module, args, kwargs)

    def _aside(self, model: Any, args: Any, kwargs: Any) -> Any:
        self.called = True
        run = self._theirs or model._call_impl  # noqa: SLF001  what it calls without us
        return self.loop.untrained(self._recorded, run, args, kwargs)


class UntrainedModules:
    """The modules of a process that run beside what is trained.

    Args:
        loop: The `Loop` that is told when they run.
        session: Records them.
    """

    def __init__(self, loop: Any, session: Session) -> None:
        self._loop, self._session = loop, session
        self._modules: list[weakref.ref[Any]] = []
        self._new: list[weakref.ref[Any]] = []
        """Those that are followed since this step began."""

    def follow(self, outermost: Iterable[Any], trained: set[int]) -> None:
        """Follow those of some modules, or of their parts where nobody calls the whole.

        Args:
            outermost: Modules that are part of no other.
            trained: Identities of the parameters that optimizers hold.
        """
        self._new += self._hook_all(beside(outermost, trained))

    def begin_step(self) -> None:
        """Follow the parts of what was not called in a whole step.

        A job may call a method of it, such as the `encode` of an autoencoder, and that its parts.
        """
        new, self._new = self._new, []
        for reference in new:
            module: Any = reference()
            call = getattr(module, "_compiled_call_impl", None)
            if isinstance(call, Untrained) and not call.called:
                self._hook_all(beside(module.children(), set()), call.name)

    def hook(self, module: Any, name: str | None = None) -> None:
        """Follow a module, whose own name is told unless another is given."""
        Untrained(module, self._loop, self._session, name or f"running {_kind_of(module)}")
        others = [one for one in self._modules if one() is not None and one() is not module]
        self._modules = [*others, weakref.ref(module)]

    def _hook_all(self, modules: Iterable[Any], name: str | None = None) -> list[weakref.ref[Any]]:
        """Follow modules, and return those that were not followed yet."""
        new = [one for one in modules if not self._follows(one)]
        for module in new:
            self.hook(module, name)
        return list(map(weakref.ref, new))

    def _follows(self, module: Any) -> bool:
        call = module._compiled_call_impl  # noqa: SLF001
        return isinstance(call, Called) and call.loop is self._loop

    def __contains__(self, module: Any) -> bool:
        return any(one() is module for one in self._modules)

    def leave(self) -> None:
        """Follow nothing any more."""
        for reference in self._modules:
            leave(reference())
        self._modules.clear()


def leave(module: Any) -> None:
    """Let a module no longer be one of these, or a part that is waited for, if it is."""
    call = getattr(module, "_compiled_call_impl", None)
    if isinstance(call, (Untrained, Part)):
        call.leave()


def beside(modules: Iterable[Any], trained: set[int]) -> Iterator[Any]:
    """Yield modules that have parameters, but none that is trained, and that can be called."""
    for module in modules:
        if not has_parameters(module):
            continue
        if only_holds(module):
            yield from beside(module.children(), trained)
        elif not holds(module, trained):
            yield module


def _kind_of(module: Any) -> str:
    """Return what a module is, below what only wraps it, and whatever FSDP has made of its class."""
    *_, inner = module, *wrapped_in(module)
    kind = next(kind for kind in type(inner).__mro__ if not _shards(kind))
    return str(getattr(inner, "original_name", kind.__name__))  # of what is scripted


def _shards(kind: type) -> bool:
    return any(base.__name__ == "FSDPModule" for base in kind.__mro__)


def _called(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)
