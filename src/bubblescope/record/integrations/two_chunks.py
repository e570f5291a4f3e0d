"""Pipes that run two model chunks on each device as DualPipe does, whatever they call their parts."""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bubblescope.model.kinds import Kind
from bubblescope.record.buffer import LANE_OF_KIND, PAIRED, identity_of, pack_identity
from bubblescope.recording.rows import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.record.session import Session

_TRANSFERS: Final = {
    "_recv_forward": (Kind.RECV_FORWARD, "recv_f", False),
    "_send_forward": (Kind.SEND_FORWARD, "send_f", True),
    "_recv_backward": (Kind.RECV_BACKWARD, "recv_b", True),
    "_send_backward": (Kind.SEND_BACKWARD, "send_b", False),
}
"""Method -> what it queues, as what the pipe counts it, and whether chunk 0's go to or come from the
next rank; chunk 1's then do so with the previous rank."""


class Names(NamedTuple):
    """What a pipe of this kind calls its parts.

    Attributes:
        compute: Format of the methods that compute, for forward, backward and forward_backward.
        counter: Format of its counts of micro-batches by chunk, for f, b, send_f, recv_f and so on.
        queues: Lists in which it collects what is to be sent and received.
        overlaps: Whether its model overlaps forwards and backwards.
    """

    compute: str
    counter: str
    queues: tuple[str, ...]
    overlaps: str


class TwoChunks:
    """What the calls of a pipe of two chunks are. A process runs one step at a time.

    Args:
        session: The session.
        names: What the pipe calls its parts.
        whole: Returns the global rank of what the pipe knows as a neighbour's rank.
    """

    def __init__(self, session: Session, names: Names, whole: Callable[[Any, int], int]) -> None:
        self._session = session
        self._names = names
        self._whole = whole
        self._stages: list[int] = []
        self._second = 0
        self._queued: list[bytes] = []
        self._weights: deque[bytes] = deque()

    def record(self, pipe: Any, store: Any) -> None:
        """Replace the methods of a pipe's class, and the one of its weight gradients.

        Raises:
            AttributeError: One of them is missing; then nothing was replaced.
        """
        timed = self._session.timed
        places: dict[str, Callable[..., bytes | None]] = {
            "forward": self._forward,
            "backward": self._backward,
            "forward_backward": self._pair,
        }
        computing = {self._names.compute.format(what): place for what, place in places.items()}
        new: dict[str, Any] = {
            **{name: timed(getattr(pipe, name), place) for name, place in computing.items()},
            **{name: self._queueing(getattr(pipe, name), *how) for name, how in _TRANSFERS.items()},
            "_commit_and_wait_comm": self._committing(pipe._commit_and_wait_comm),  # noqa: SLF001
        }
        pop: Any = classmethod(timed(store.pop.__func__, self._weight))
        for name, function in new.items():
            setattr(pipe, name, function)
        store.pop = pop

    def begin(self, stages: list[int], *, second: int = 0) -> None:
        """Begin a step.

        Args:
            stages: Stage of each of the two chunks.
            second: Number of the first micro-batch of chunk 1.
        """
        self._stages = stages
        self._second = second
        self._queued.clear()
        self._weights.clear()

    def _chunk(self, pipe: Any, phase: int) -> int:
        return int(phase ^ getattr(pipe, "is_in_second_half", False))

    def _next(self, pipe: Any, phase: int, what: str) -> tuple[int, int, int]:
        """Return stage, chunk and micro-batch of what the pipe counts next."""
        chunk = self._chunk(pipe, phase)
        done = getattr(pipe, self._names.counter.format(what))[chunk]
        return self._stages[chunk], chunk, done + chunk * self._second

    def _place(
        self, kind: Kind, pipe: Any, phase: int, what: str, peer: int | None = None
    ) -> bytes:
        stage, chunk, microbatch = self._next(pipe, phase, what)
        return identity_of(kind, stage=stage, chunk=chunk, microbatch=microbatch, peer=peer)

    def _forward(self, pipe: Any, phase: int, *_: Any, **__: Any) -> bytes | None:
        """The loss is in it."""
        return None if pipe.forward_only else self._place(Kind.FORWARD, pipe, phase, "f")

    def _backward(self, pipe: Any, phase: int, enable_zb: bool = False) -> bytes | None:
        """It is of the input gradient alone if it puts off the rest."""
        if pipe.forward_only:
            return None
        if not enable_zb:
            return self._place(Kind.BACKWARD, pipe, phase, "b")
        self._weights.append(self._place(Kind.BACKWARD_WEIGHT, pipe, phase, "b"))
        return self._place(Kind.BACKWARD_INPUT, pipe, phase, "b")

    def _weight(self, *_: Any) -> bytes | None:
        return self._weights.popleft() if self._weights else None

    def _pair(self, pipe: Any, phase0: int, phase1: int, *_: Any, **__: Any) -> bytes | None:
        """Where the model overlaps nothing, the pipe calls a forward and a backward instead."""
        if pipe.forward_only or not getattr(pipe, self._names.overlaps):
            return None
        forward, backward = self._next(pipe, phase0, "f"), self._next(pipe, phase1, "b")
        return pack_identity(*forward, UNKNOWN, *backward, PAIRED, LANE_OF_KIND[PAIRED])

    def _queueing(
        self, function: Callable[..., Any], kind: Kind, what: str, to_next: bool
    ) -> Callable[..., Any]:
        """Return a function that notes which transfer it queues."""

        @functools.wraps(function)
        def queue(pipe: Any, phase: int) -> Any:
            recorder = self._session.recorder
            if recorder is None or not recorder.recording or pipe.forward_only:
                return function(pipe, phase)
            place = self._transfer(pipe, phase, kind, what, to_next=to_next)
            before = self._waiting(pipe)
            result = function(pipe, phase)
            # The ends of the pipeline have nobody to send to or receive from.
            if place is not None and self._waiting(pipe) > before:
                self._queued.append(place)
            return result

        return queue

    def _waiting(self, pipe: Any) -> int:
        return sum(len(getattr(pipe, name, None) or ()) for name in self._names.queues)

    def _transfer(
        self, pipe: Any, phase: int, kind: Kind, what: str, *, to_next: bool
    ) -> bytes | None:
        try:
            next_one = to_next == (self._chunk(pipe, phase) == 0)
            peer = pipe.next_rank if next_one else pipe.prev_rank
            return self._place(
                kind, pipe, phase, what, None if peer is None else self._whole(pipe, peer)
            )
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)
            return None

    def _committing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is recorded as the transfers that were queued, all at once."""

        @functools.wraps(function)
        def commit(pipe: Any, *args: Any, **kwargs: Any) -> Any:
            transfers = function
            for place in self._queued:
                transfers = self._session.timed(transfers, lambda *_, _is=place, **__: _is)
            self._queued.clear()
            return transfers(pipe, *args, **kwargs)

        return commit
