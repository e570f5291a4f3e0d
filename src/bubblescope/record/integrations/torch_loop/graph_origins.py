"""Which forward made a tensor: autograd's graph remembers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import is_dataclass
from itertools import islice
from typing import Any, Final, NamedTuple

_KEY: Final = "bubblescope"
_FAR: Final = 1000
"""Nodes to look through, between a loss and the models' outputs."""


class Work(NamedTuple):
    """A micro-batch in a chunk of this rank's models.

    Attributes:
        step: The step that it is of.
        chunk: The chunk; None if there are several.
        microbatch: The micro-batch within the step and chunk.
    """

    step: int
    chunk: int | None
    microbatch: int


def made(output: Any, work: Work) -> None:
    """Note what a model's output was made by, in the metadata that autograd keeps for each node."""
    for node in _nodes(output):
        node.metadata[_KEY] = work


def origin(tensors: Any, far: int = _FAR) -> Work | None:
    """Return what tensors were made by; None if no model made them, or several micro-batches did.

    Args:
        tensors: A tensor, or any structure of them.
        far: How many nodes of the graph to look through.
    """
    waiting = _nodes(tensors)
    if not waiting:
        return None
    found: Work | None = None
    seen = set(waiting)
    for node in islice(waiting, far):  # which grows meanwhile
        work: Work | None = node.metadata.get(_KEY)
        if work is None:
            for earlier, _ in node.next_functions:
                if earlier is not None and earlier not in seen:
                    seen.add(earlier)
                    waiting.append(earlier)
        elif found is None or found == work:
            found = work
        elif found.step == work.step and found.microbatch == work.microbatch:
            found = work._replace(chunk=None)
        else:
            return None
    return found


def _nodes(tensors: Any) -> list[Any]:
    """Return the graph's nodes that made the tensors of a structure."""
    tensor = sys.modules["torch"].Tensor
    nodes = []
    waiting = [tensors]
    for one in waiting:  # which grows meanwhile
        if isinstance(one, tensor):
            node = one.grad_fn
            if node is not None:
                nodes.append(node)
        # Outputs need not be of the structures that PyTorch knows.
        elif isinstance(one, (list, tuple)):
            waiting += one
        elif isinstance(one, Mapping):
            waiting += one.values()
        elif is_dataclass(one):
            waiting += vars(one).values()
    return nodes
