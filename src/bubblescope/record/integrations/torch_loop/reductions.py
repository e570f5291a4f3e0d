"""When a backward waits for the gradients of other ranks, as with `DistributedDataParallel`."""

from __future__ import annotations

import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self

_COLLECTIVE: Final = identity_of(Kind.COLLECTIVE)
_SYNCS: Final = "require_backward_grad_sync"
"""What such a model has: whether its next backward reduces gradients."""


class Reducing:
    """The models of a loop that reduce their gradients as a backward ends.

    Args:
        models: They.
    """

    def __init__(self, models: Iterable[Any]) -> None:
        self._models = [weakref.ref(model) for model in models]

    @classmethod
    def of(cls, models: Iterable[Any]) -> Self | None:
        """Return those of all models that a loop calls, and of their parts; None if there are none."""
        some = [part for model in models for part in model.modules() if hasattr(part, _SYNCS)]
        return cls(some) if some else None

    def within(self, root: Any) -> Reduction | None:
        """Return what will part a backward from the reduction that it ends with; None if there is none.

        Args:
            root: Where the backward starts.
        """
        if root is None or not any(getattr(one(), _SYNCS, False) for one in self._models):
            return None
        return Reduction(root)


class Reduction:
    """Notes the moment at which a backward has all gradients of its own.

    The wait for those of other ranks is in a callback of the engine, which calls back in the order in
    which it was asked to: this one asks as the backward begins.
    """

    def __init__(self, root: Any) -> None:
        self._own = 0
        engine = sys.modules["torch"].autograd.Variable._execution_engine  # noqa: SLF001  no other name

        def computed() -> None:
            self._own = time.monotonic_ns()

        def begun(*_: Any) -> None:
            handle.remove()
            engine.queue_callback(computed)

        handle = root.register_prehook(begun)

    def ended(self, items: list[Any], step: Any, end: int) -> int:
        """Put what came after the backward itself into the tasks; return when that had ended.

        Args:
            items: The tasks.
            step: The step, packed.
            end: When the call returned.
        """
        if not self._own:
            return end
        items += (step, _COLLECTIVE, self._own, end, self._own, end, None)
        return self._own
