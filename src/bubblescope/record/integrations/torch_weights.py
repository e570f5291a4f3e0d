"""Whether a job has used its gradients: what its weights and their gradients show.

An optimizer that PyTorch does not know calls no hook of PyTorch's. But what it changes in place counts
up the version of a tensor, and gradients that are thrown away are gone.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_WATCHED: Final = 8
"""Weights of each module that are looked at: an optimizer changes all that have gradients."""


class _Mark(NamedTuple):
    weight: Any
    version: int


class Weights:
    """Some of the weights of modules, as they were after a round."""

    def __init__(self) -> None:
        self._marks: list[_Mark] = []

    def note(self, modules: Iterable[Any]) -> None:
        """Remember the weights of modules that have gradients.

        Only those that are plain parameters: shards of them change when they are put together, too.
        """
        plain = sys.modules["torch"].nn.Parameter
        self._marks = [
            _Mark(weight, weight._version)  # noqa: SLF001  it has no other name
            for module in modules
            for weight in islice(_with_gradients(module, plain), _WATCHED)
        ]

    def changed(self) -> bool:
        """Say whether any of them has changed since, or its gradient is gone; and forget them."""
        marks, self._marks = self._marks, []
        return any(
            mark.weight._version != mark.version or mark.weight.grad is None  # noqa: SLF001
            for mark in marks
        )


def _with_gradients(module: Any, plain: Any) -> Iterable[Any]:
    return (one for one in module.parameters() if type(one) is plain and one.grad is not None)
