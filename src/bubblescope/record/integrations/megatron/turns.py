"""Which micro-batch the next forward or backward is of, and which of them made a tensor."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, ref

from bubblescope.model.kinds import Kind
from bubblescope.record.integrations.megatron.placement import Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Origins:
    """What made the tensors of a step that may be sent."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[ReferenceType[Any], bool, Work]] = {}

    def clear(self) -> None:
        """Forget the last step."""
        self._made.clear()

    def note(self, tensor: Any, work: Work, *, activation: bool) -> None:
        """Remember what a forward returned, which is an activation, or a backward."""
        # Not the tensor itself: it would live longer than without us.
        if hasattr(tensor, "__weakref__"):
            self._made[id(tensor)] = ref(tensor), activation, work

    def of(self, tensor: Any) -> tuple[bool, Work] | None:
        """Return whether a tensor is an activation, and of which work.

        None if it is neither that nor a gradient, or was not made in this step.
        """
        made = self._made.get(id(tensor))
        # What was at this place in memory may be gone, and something else there.
        return None if made is None or made[0]() is not tensor else made[1:]


class Progress:
    """How far this rank is in its step, as its forwards and backwards say it.

    Args:
        origins: Is told what they return.

    Attributes:
        given: What the next forward or backward is, and of which kind, if the schedule says so.
        splits: Say whether a backward that begins now leaves its weight gradients for later.
        weights: Backwards whose weight gradients are to come.
        last: Whether it is a forward, and no backward -> the last that began.
    """

    def __init__(self, origins: Origins) -> None:
        self.given: tuple[Kind, Work] | None = None
        self.splits: list[Callable[[], bool]] = []
        self.weights: deque[Work] = deque()
        self._origins = origins
        self.begin({}, (), ())

    def begin(
        self,
        chunks: Mapping[int, int],
        works: Sequence[Sequence[Work]],
        backwards: Sequence[Work],
    ) -> None:
        """Begin a step.

        Args:
            chunks: Identity of a model chunk -> its number.
            works: The micro-batches of each chunk.
            backwards: All backwards, in the order that is expected.
        """
        self.weights.clear()
        self.last: dict[bool, Work | None] = {True: None, False: None}
        self._chunks = chunks
        self._works = works
        self._backwards = backwards
        self._begun = [0] * max(len(works), 1)
        self._ended = 0
        self._open: list[tuple[int, Work]] = []

    def next_forward(self, model: Any) -> tuple[Kind, Work]:
        """Return what a forward of this model chunk, which begins now, is."""
        if self.given is not None:
            kind, work = self.given
        else:
            chunk = self._chunks.get(id(model), 0)
            number = self._begun[chunk]
            self._begun[chunk] = number + 1
            kind, work = Kind.FORWARD, self._work(chunk, number)
        self.last[True] = work
        return kind, work

    def _work(self, chunk: int, number: int) -> Work:
        # Made before, for this is called often; there may be more than the schedule said.
        works = self._works[chunk]
        return works[number] if number < len(works) else Work(chunk, number)

    def next_backward(self, output: Any = None, chunk: int | None = None) -> tuple[Kind, Work]:
        """Return what a backward, which begins now, is.

        Args:
            output: What its forward returned.
            chunk: Its chunk, if the output is not known.

        Raises:
            LookupError: No forward is open.
        """
        if self.given is not None:
            kind, work = self.given
        else:
            left = any(splits() for splits in self.splits)
            kind = Kind.BACKWARD_INPUT if left else Kind.BACKWARD
            at = self._forward_of(output, chunk)
            work = self._open.pop(at)[1]
        self._ended += 1
        self.last[False] = work
        if kind is Kind.BACKWARD_INPUT:
            self.weights.append(work)
        return kind, work

    def forward_of(self, output: Any) -> Work:
        """Return the forward that made an output, or the next whose backward is due.

        Raises:
            LookupError: No forward is open.
        """
        return self._open[self._forward_of(output, None)][1]

    def _forward_of(self, output: Any, chunk: int | None) -> int:
        """Return which of the open forwards it is."""
        key = None if output is None else id(_first_tensor(output))
        for at, (made, _) in enumerate(self._open):
            if made == key:
                return at
        if chunk is None and self._ended < len(self._backwards):
            chunk = self._backwards[self._ended].chunk
        for at, (_, work) in enumerate(self._open):
            if work.chunk == chunk:
                return at
        if not self._open:
            raise LookupError("a backward without a forward")
        return 0

    def note_forward(self, result: Any) -> None:
        """Remember what the last forward returned: its backward, and who sends it, will name it."""
        work = self.last[True]
        if work is None:
            return
        tensor = _first_tensor(result)
        if self.given is None:
            self._open.append((id(tensor), work))
        self._origins.note(tensor, work, activation=True)

    def note_backward(self, result: Any) -> None:
        """Remember what the last backward returned."""
        work = self.last[False]
        if work is not None:
            self._origins.note(_first_tensor(result), work, activation=False)


def _first_tensor(made: Any) -> Any:
    """Return the first tensor of a result, however it is wrapped."""
    while isinstance(made, list | tuple) and made:
        made = made[0]
    return made
