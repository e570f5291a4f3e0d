"""Which forward made what a backward starts from: autograd's graph remembers."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Work", "made", "origin"]

_KEY: Final = "bubblescope"
_FAR: Final = 1000
"""Nodes to look through, between a loss and the model's output."""


class Work(NamedTuple):
    """A micro-batch in a model."""

    chunk: int
    microbatch: int


def made(output: Any, work: Work) -> None:
    """Note what a model's output was made by, in the metadata that autograd keeps for each node."""
    for node in _nodes(output):
        node.metadata[_KEY] = work


def origin(tensors: Any, far: int = _FAR) -> Work | None:
    """Return what tensors were made by; None if no model made them.

    Args:
        tensors: A tensor, or any structure of them.
        far: How many nodes of the graph to look through.
    """
    waiting = deque(_nodes(tensors))
    seen = set(waiting)
    while waiting and far > 0:
        far -= 1
        node = waiting.popleft()
        work: Work | None = node.metadata.get(_KEY)
        if work is not None:
            return work
        for earlier, _ in node.next_functions:
            if earlier is not None and earlier not in seen:
                seen.add(earlier)
                waiting.append(earlier)
    return None


def _nodes(tensors: Any) -> Iterator[Any]:
    """Yield the graph's nodes that made the tensors of a structure."""
    for leaf in sys.modules["torch.utils._pytree"].tree_leaves(tensors):
        node = getattr(leaf, "grad_fn", None)
        if node is not None:
            yield node
