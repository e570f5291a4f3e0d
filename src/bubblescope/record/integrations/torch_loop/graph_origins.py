"""Which forward made a tensor: autograd's graph remembers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from itertools import islice
from typing import Any, Final

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of

_KEY: Final = "bubblescope"
_FAR: Final = 1000
"""Nodes to look through, between a loss and the models' outputs."""


class Work:
    """A micro-batch in a chunk of this rank's models: one object for each, in every step.

    Attributes:
        chunk: The chunk; None if there are several.
        microbatch: The micro-batch within the step and chunk.
        forward: Where its forward belongs, packed.
        backward: Where its backward belongs, packed.
    """

    __slots__ = ("backward", "chunk", "forward", "microbatch")

    def __init__(self, chunk: int | None, microbatch: int, stage: int | None) -> None:
        self.chunk = chunk
        self.microbatch = microbatch
        self.forward, self.backward = (
            identity_of(kind, stage=stage, chunk=chunk, microbatch=microbatch)
            for kind in (Kind.FORWARD, Kind.BACKWARD)
        )


class Chunk:
    """A chunk of this rank's models, and how far it has come in the step.

    Attributes:
        number: Which of its rank's chunks it is.
        works: Its micro-batches, as far as any step has come.
        forwards: How many of them have gone forward in the step.
    """

    __slots__ = ("forwards", "number", "works")

    def __init__(self, number: int) -> None:
        self.number = number
        self.works: list[Work] = []
        self.forwards = 0


Origin = tuple[int, Work]
"""What made a tensor: the step, and what of it."""


class Origins:
    """What made the outputs of models, in the metadata that autograd keeps for each node of its graph.

    To look for that in a node takes long. Nodes have numbers, which count up within a thread, so those
    after the last that was noted have none.

    Args:
        tensor: PyTorch's class of tensors.
    """

    def __init__(self, tensor: type) -> None:
        self._tensor: Any = tensor
        self._last = -1
        """The highest number of a node in which anything was noted."""

    def note(self, output: Any, origin: Origin) -> None:
        """Note what a model's output was made by."""
        nodes = (output.grad_fn,) if type(output) is self._tensor else self._nodes(output)
        for node in nodes:
            if node is not None:
                node.metadata[_KEY] = origin
                number = node._sequence_nr()  # noqa: SLF001  it has no other name
                if number > self._last:  # noqa: PLR1730  `max` takes longer
                    self._last = number

    def of(self, tensors: Any, far: int = _FAR) -> Origin | None:
        """Return what tensors were made by; None if no model made them, or several micro-batches did.

        Args:
            tensors: A tensor, or any structure of them.
            far: How many nodes of the graph to look through.
        """
        if type(tensors) is not self._tensor:
            return self._of_all(self._nodes(tensors), far)
        node, last = tensors.grad_fn, self._last
        # A loss is mostly made from one output by one function after the other.
        while node is not None and far > 0:
            if node._sequence_nr() <= last:  # noqa: SLF001
                found: Origin | None = node.metadata.get(_KEY)
                if found is not None:
                    return found
            only = None
            for earlier, _ in node.next_functions:
                if earlier is not None:
                    if only is not None:
                        return self._of_all([node], far)
                    only = earlier
            node = only
            far -= 1
        return None

    def _of_all(self, waiting: list[Any], far: int) -> Origin | None:
        """Return what the tensors that these nodes made were made by; see `of`."""
        found: Origin | None = None
        seen = set(waiting)
        for node in islice(waiting, far):  # which grows meanwhile
            origin: Origin | None = None
            if node._sequence_nr() <= self._last:  # noqa: SLF001
                origin = node.metadata.get(_KEY)
            if origin is None:
                for earlier, _ in node.next_functions:
                    if earlier is not None and earlier not in seen:
                        seen.add(earlier)
                        waiting.append(earlier)
            elif found is None or found == origin:
                found = origin
            elif found[0] == origin[0] and found[1].microbatch == origin[1].microbatch:
                found = origin[0], Work(None, origin[1].microbatch, None)
            else:
                return None
        return found

    def _nodes(self, tensors: Any) -> list[Any]:
        """Return the graph's nodes that made the tensors of a structure."""
        nodes = []
        waiting = [tensors]
        for one in waiting:  # which grows meanwhile
            if isinstance(one, self._tensor):
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
