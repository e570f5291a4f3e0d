"""Which forward made a tensor: autograd's graph remembers."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from dataclasses import is_dataclass
from itertools import islice
from typing import Any, Final

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import identity_of

_FAR: Final = 1000
"""Nodes to look through, between a loss and the models' outputs."""


_APART: Final = 1 << 15
"""How many numbers the loop's thread leaves out, which takes it some 25 ms."""
_AT_ONCE: Final = 1 << 10


def apart(torch: Any) -> None:
    """Let this thread's nodes have numbers that no other thread's soon have.

    It only counts on as it makes nodes, and those of most threads that help a loop are fewer.
    """
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():  # noqa: SLF001
        return  # somebody looks at everything that is computed
    with torch.enable_grad():
        leaves = [torch.empty((), device="cpu", requires_grad=True)] * _AT_ONCE
        for _ in range(_APART // _AT_ONCE):
            torch.atleast_1d(*leaves)


class Work:
    """A micro-batch in a chunk of this rank's models: one object for each, in every step.

    Attributes:
        chunk: The chunk; None if there are several.
        microbatch: The micro-batch within the step and chunk.
        forward: Where its forward belongs, packed.
        backward: Where its backward belongs, packed.
        next: The next micro-batch of the chunk; None if no step has come so far.
    """

    __slots__ = ("backward", "chunk", "forward", "microbatch", "next")

    def __init__(self, chunk: int | None, microbatch: int, stage: int | None) -> None:
        self.chunk = chunk
        self.microbatch = microbatch
        self.forward, self.backward = (
            identity_of(kind, stage=stage, chunk=chunk, microbatch=microbatch)
            for kind in (Kind.FORWARD, Kind.BACKWARD)
        )
        self.next: Work | None = None


class Chunk:
    """A chunk of this rank's models, and how far it has come in the step.

    Attributes:
        number: Which of its rank's chunks it is.
        next: The micro-batch that goes forward next; None if no step has come so far.
    """

    __slots__ = ("_works", "next", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.next: Work | None = None
        self._works: list[Work] = []

    @property
    def forwards(self) -> int:
        """How many micro-batches have gone forward in the step."""
        return len(self._works) if self.next is None else self.next.microbatch

    def go_on(self, microbatch: int) -> None:
        """Let a micro-batch, of those that steps have had, or the first one that none has, be next."""
        self.next = self._works[microbatch] if microbatch < len(self._works) else None

    def due(self, stage: int | None) -> Work:
        """Return the micro-batch that goes forward next.

        Args:
            stage: The chunk's stage, if it is known.
        """
        if self.next is None:
            self.next = Work(self.number, len(self._works), stage)
            if self._works:
                self._works[-1].next = self.next
            self._works.append(self.next)
        return self.next


class Origins:
    """Which forward made the nodes of autograd's graph, by their numbers.

    A thread numbers the nodes that it makes, one after the other. So what a forward made are the
    numbers from where its thread was before to where it was afterwards, and nothing need be noted in a
    node, or looked up in one. Each thread begins to count at 0, so one that works in step with the loop
    would have the very same numbers; the loop's thread goes `apart` once.

    Most loops run backward what they have just run forward. If that is the only forward that has not
    been backward, a loss is its own if it was made just as a loss of this step was which the graph
    has told of: by the same operation, and as many nodes after the forward. If a loss of no model is
    made like that too, this may be wrong once in a job: then the graph is asked of all that are.

    Args:
        tensor: PyTorch's class of tensors.

    Attributes:
        bounds: Where the thread was before and after each forward of this step and the last, in turn.
            Always the same list, as `works` is.
        works: What these forwards were.
        open: How many forwards may still be backward; more than that, if some never will be.
        last: The last forward; None in a step that has had none.
        far: How many nodes after the last forward a loss of its own was made; less than 0 if within.
        kind: By which kind of node; None if none has been looked for in this step.
    """

    __slots__ = (
        "_backward",
        "_earlier",
        "_left",
        "_tensor",
        "_unsure",
        "bounds",
        "far",
        "kind",
        "last",
        "open",
        "works",
    )

    def __init__(self, tensor: type) -> None:
        self._tensor: Any = tensor
        self.bounds: list[int] = []
        self.works: list[Work] = []
        self._earlier = 0
        """How many of them were of the last step."""
        self.open = self._left = 0
        """How many of those that are open are left of the last step."""
        self._backward: set[Work] = set()
        """What has been backward in this step, as far as the graph was asked."""
        self._unsure: set[tuple[int, Any]] = set()
        """How losses were made of which it turned out that not all are of the last forward."""
        self.last: Work | None = None
        self.far = 0
        self.kind: Any = None

    def clear(self) -> None:
        """Forget everything: another thread is followed, which has numbers of its own."""
        self.bounds.clear()
        self.works.clear()
        self._earlier = self.open = self._left = 0
        self._backward.clear()
        self.last = self.kind = None

    def begin_step(self) -> None:
        """Forget the step before the last."""
        del self.bounds[: 2 * self._earlier]
        del self.works[: self._earlier]
        self._earlier = len(self.works)
        self.open = self._left = max(self.open - self._left, 0)
        self._backward.clear()
        self.last = self.kind = None

    def note(self, work: Work, before: int, after: int, *, again: bool = False) -> None:
        """Note what a forward was, and where the thread was before and after it.

        Args:
            work: What it was.
            before: The number of the first node that it made.
            after: That of the next one, after it.
            again: Whether the same micro-batch was noted before: its models run one after the other.
        """
        self.bounds += (before, after)
        self.works.append(work)
        self.last = work
        self.open += not again

    def spoil(self) -> None:
        """Let the graph be asked of everything for the rest of this step, and in the next."""
        self.open += 1

    def backs(self, tensors: Any, *, frees: bool) -> Work | None:
        """Return what a backward is that starts from tensors; see `of`.

        Args:
            tensors: As `of` takes it.
            frees: Whether what it has run through is gone afterwards, so that no other can follow.
        """
        work = self.of(tensors)
        if self.open == 1 and self.last is not None:
            self._learn(tensors, work)
        if work is None or work.chunk is None:
            return work
        if work is self.last and self.open == 0 and work not in self._backward:
            # It was told of another backward before: so these two are not to be told apart that way.
            self._unsure.add((self.far, self.kind))
            self.kind = None
        if frees and work not in self._backward:
            self._backward.add(work)
            self.open = max(self.open - 1, 0)
        return work

    def _learn(self, tensors: Any, work: Work | None) -> None:
        """Learn how a loss of the last forward is made, or that others are made like it."""
        root = tensors.grad_fn if type(tensors) is self._tensor else None
        if root is None:
            return
        made = root._sequence_nr() - self.bounds[-1], type(root)  # noqa: SLF001
        if work is not self.last:
            self._unsure.add(made)
            if made == (self.far, self.kind):
                self.kind = None
        elif made not in self._unsure:
            self.far, self.kind = made

    def of(self, tensors: Any, far: int = _FAR) -> Work | None:
        """Return what of this step made tensors; None if nothing did, or several micro-batches.

        Args:
            tensors: A tensor, or any structure of them.
            far: How many nodes of the graph to look through.
        """
        if type(tensors) is not self._tensor:
            return self._of_all(self._nodes(tensors), far)
        node, bounds = tensors.grad_fn, self.bounds
        # A loss is mostly made from one output by one function after the other.
        for _ in range(far):
            if node is None:
                break
            at = bisect(bounds, node._sequence_nr())  # noqa: SLF001  it has no other name
            if at & 1:
                return self.works[at >> 1] if at >> 1 >= self._earlier else None
            if not at:  # older than all of them, as is what it was made from
                break
            made_from = node.next_functions
            if len(made_from) != 1:
                made_from = [one for one in made_from if one[0] is not None]
                if len(made_from) != 1:
                    return self._of_all([node], far)
            node = made_from[0][0]
        return None

    def _of_all(self, waiting: list[Any], far: int) -> Work | None:
        """Return what the tensors that these nodes made were made by; see `of`."""
        found: Work | None = None
        seen = set(waiting)
        for node in islice(waiting, far):  # which grows meanwhile
            at = bisect(self.bounds, node._sequence_nr())  # noqa: SLF001
            if at == 0:
                continue
            if not at & 1:
                for earlier, _ in node.next_functions:
                    if earlier is not None and earlier not in seen:
                        seen.add(earlier)
                        waiting.append(earlier)
                continue
            work = self.works[at >> 1]
            if at >> 1 < self._earlier or (found and found.microbatch != work.microbatch):
                return None
            same = found is None or found is work
            found = work if same else Work(None, work.microbatch, None)
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
