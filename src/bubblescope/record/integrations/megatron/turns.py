"""Which micro-batch the next forward or backward is of, and which of them made a tensor."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from bubblescope.model.kinds import Kind
from bubblescope.record.integrations.megatron.placement import Pass, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Made = tuple[Callable[[], Any], bool, Pass]
    Found = Callable[[Any, Any], Any]  # called with a call's arguments by place and by name
    Place = Callable[[Kind, Work], bytes]

_FORWARD, _BACKWARD = Kind.FORWARD, Kind.BACKWARD  # members of an enumeration are slow to look up
_BACKWARD_INPUT: Final = Kind.BACKWARD_INPUT
_SEVERAL: Final = (list, tuple)
_alone: set[type] = set()
"""Types that were met and are none of these: to ask `isinstance` of a tensor takes longer."""


class Origins:
    """What made the tensors of a step that may be sent.

    Attributes:
        latest: Tensors, the last made at the end: a weak reference to each, for else it would live
            longer than without us; whether it is an activation, which a forward made; what made it.
    """

    def __init__(self) -> None:
        self.latest: list[Made] = []
        self._earlier: dict[int, Made] = {}

    def clear(self) -> None:
        """Forget the last step."""
        self.latest.clear()
        self._earlier.clear()

    def of(self, tensor: Any) -> tuple[bool, Work] | None:
        """Return whether a tensor is an activation, and of which work.

        None if it is neither that nor a gradient, or was not made in this step.
        """
        for reference, activation, made_by in self.latest[:-3:-1]:
            if reference() is tensor:  # what is sent is mostly one of the last two
                return activation, made_by.work
        there = ((made[0](), made) for made in self.latest)
        self._earlier.update((id(one), made) for one, made in there if one is not None)
        self.latest.clear()
        found = self._earlier.get(id(tensor))
        # What was at this place in memory may be gone, and something else there.
        return None if found is None or found[0]() is not tensor else (found[1], found[2].work)


class Progress:
    """How far this rank is in its step, as its forwards and backwards say it.

    Args:
        origins: Is told what they return.

    Attributes:
        given: What the next forward or backward is, and of which kind, if the schedule says so.
        splits: Say whether a backward that begins now leaves its weight gradients for later.
        weights: Backwards whose weight gradients are to come.
    """

    def __init__(self, origins: Origins) -> None:
        self.given: tuple[Kind, Work] | None = None
        self.splits: list[Callable[[], bool]] = []
        self.weights: deque[Work] = deque()
        self._made = origins.latest
        self.begin({}, (), ())

    def begin(
        self,
        chunks: Mapping[int, int],
        passes: Sequence[Sequence[Pass]],
        backwards: Sequence[Work],
    ) -> None:
        """Begin a step.

        Args:
            chunks: Identity of a model chunk -> its number.
            passes: The micro-batches of each chunk.
            backwards: All backwards, in the order that is expected.
        """
        self.weights.clear()
        self._chunks = chunks
        self._several = len(chunks) > 1
        self._passes = passes
        self._backwards = backwards
        self._begun = [0] * max(len(passes), 1)
        self._ended = 0
        self._ahead: Pass | None = None
        self._back: Pass | None = None
        """The forward and the backward that began last."""
        self._open: list[Made] = []
        """What forwards returned whose backward has not begun."""

    def last(self, *, forward: bool) -> Work | None:
        """Return the forward, or the backward, that began last."""
        found = self._ahead if forward else self._back
        return None if found is None else found.work

    def forwards(self, position: int, model: Found, place: Place) -> Callable[[Any, Any], bytes]:
        """Return what tells of a call that is a forward, and begins now, where it belongs.

        Args:
            position: Where its model chunk is among arguments by place.
            model: Finds the chunk, however it is given.
            place: Tells where the pass of a kind belongs, of a work.
        """

        def where(args: Any, kwargs: Any) -> bytes:
            one = args[position] if len(args) > position else model(args, kwargs)
            if self.given is not None:
                return place(*self.next_forward(one))
            # As in `_next_forward`: this is called often.
            chunk = self._chunks.get(id(one), 0) if self._several else 0
            number = self._begun[chunk]
            known = self._passes[chunk]
            if number >= len(known):
                return place(*self.next_forward(one))
            self._begun[chunk] = number + 1
            self._ahead = ahead = known[number]
            return ahead[1] or place(_FORWARD, ahead[0])

        return where

    def backwards(self, position: int, output: Found, place: Place) -> Callable[[Any, Any], bytes]:
        """Return what tells of a call that is a backward, and begins now, where it belongs.

        Args:
            position: Where what its forward returned is among arguments by place.
            output: Finds that, however it is given.
            place: Tells where the pass of a kind belongs, of a work.
        """

        def where(args: Any, kwargs: Any) -> bytes:
            made = args[position] if len(args) > position else output(args, kwargs)
            if self.given is not None or self.splits:
                return place(*self.next_backward(made))
            # As in `_first_tensor`: calling that, here and twice below, would take a sixth longer.
            tensor, kind, still = made, type(made), self._open
            while (kind is list or kind is tuple) and tensor:
                tensor = tensor[0]
                kind = type(tensor)
            if kind not in _alone:
                tensor = _first_tensor(tensor)
            if still and still[0][0]() is tensor and tensor is not None:  # mostly it is the oldest
                self._back = back = still.pop(0)[2]
                self._ended += 1
            else:
                back = self._next_backward(made, None)
            return back[2] or place(_BACKWARD, back[0])

        return where

    def next_forward(self, model: Any) -> tuple[Kind, Work]:
        """Return what a forward of this model chunk, which begins now, is."""
        if self.given is None:
            return _FORWARD, self._next_forward(model).work
        self._ahead = Pass(self.given[1])
        return self.given

    def _next_forward(self, model: Any) -> Pass:
        chunk = self._chunks.get(id(model), 0)
        number = self._begun[chunk]
        self._begun[chunk] = number + 1
        known = self._passes[chunk]
        # There may be more than the schedule said.
        self._ahead = known[number] if number < len(known) else Pass(Work(chunk, number))
        return self._ahead

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
            self._ended += 1
            self._back = Pass(work)
        else:
            kind = _BACKWARD_INPUT if any(splits() for splits in self.splits) else _BACKWARD
            work = self._next_backward(output, chunk).work
        if kind is _BACKWARD_INPUT:
            self.weights.append(work)
        return kind, work

    def _next_backward(self, output: Any, chunk: int | None) -> Pass:
        self._back = self._open.pop(self._forward_of(output, chunk))[2]
        self._ended += 1
        return self._back

    def forward_of(self, output: Any) -> Work:
        """Return the forward that made an output, or the next whose backward is due.

        Raises:
            LookupError: No forward is open.
        """
        return self._open[self._forward_of(output, None)][2].work

    def _forward_of(self, output: Any, chunk: int | None) -> int:
        """Return which of the open forwards it is."""
        tensor = _first_tensor(output)
        for at, made in enumerate(self._open):
            if made[0]() is tensor and tensor is not None:
                return at
        if chunk is None and self._ended < len(self._backwards):
            chunk = self._backwards[self._ended].chunk
        for at, made in enumerate(self._open):
            if made[2].work.chunk == chunk:
                return at
        if not self._open:
            raise LookupError("a backward without a forward")
        return 0

    def note_forward(self, result: Any) -> None:
        """Remember what the last forward returned: its backward, and who sends it, will name it."""
        if self._ahead is None:
            return
        tensor, kind = result, type(result)
        while (kind is list or kind is tuple) and tensor:
            tensor = tensor[0]
            kind = type(tensor)
        if kind not in _alone:
            tensor = _first_tensor(tensor)
        try:
            made: Made = ref(tensor), True, self._ahead
            self._made.append(made)
        except TypeError:  # nothing can refer to it weakly, so it is no tensor
            made = _nothing, True, self._ahead
        if self.given is None:
            self._open.append(made)

    def note_backward(self, result: Any) -> None:
        """Remember what the last backward returned."""
        if self._back is None:
            return
        tensor, kind = result, type(result)
        while (kind is list or kind is tuple) and tensor:
            tensor = tensor[0]
            kind = type(tensor)
        if kind not in _alone:
            tensor = _first_tensor(tensor)
        try:  # noqa: SIM105  `suppress` takes longer
            self._made.append((ref(tensor), False, self._back))
        except TypeError:  # nothing can refer to it weakly, so it is no tensor
            pass


def _first_tensor(made: Any) -> Any:
    """Return the first tensor of a result, however it is wrapped."""
    kind = type(made)
    while kind is tuple or kind is list or (kind not in _alone and _wraps(kind)):
        if not made:
            break
        made = made[0]
        kind = type(made)
    return made


def _wraps(kind: type) -> bool:
    wraps = issubclass(kind, _SEVERAL)
    if not wraps:
        _alone.add(kind)
    return wraps


def _nothing() -> None:
    """There is no tensor."""
