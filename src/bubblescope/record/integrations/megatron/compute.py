"""Recording forwards and backwards."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from bubblescope.model.kinds import Kind
from bubblescope.record.arguments import taker

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.record.integrations.megatron.placement import Step, Work
    from bubblescope.record.integrations.megatron.turns import Progress
    from bubblescope.record.session import Session


class Compute:
    """Records forwards and backwards; what they call of each other is part of them.

    Args:
        session: Records them.
        step: That they belong to.
        progress: Says which they are.

    Attributes:
        busy: Whether a forward or a backward is running.
    """

    def __init__(self, session: Session, step: Step, progress: Progress) -> None:
        self.busy = False
        self._session = session
        self._step = step
        self._progress = progress
        self._waiting: tuple[bytes, Any] | None = None

    def forward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is recorded as the forward of its `model`."""
        progress = self._progress
        return self._pass(function, "model", progress.next_forward, progress.note_forward)

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is recorded as the backward of its `output_tensor`."""
        progress = self._progress
        return self._pass(function, "output_tensor", progress.next_backward, progress.note_backward)

    def _pass(
        self,
        function: Callable[..., Any],
        name: str,
        following: Callable[[Any], tuple[Kind, Work]],
        note: Callable[[Any], None],
    ) -> Callable[..., Any]:
        """Return a function that is recorded as the pass that its argument of this name tells."""
        argument = taker(function, name)

        def place(*args: Any, **kwargs: Any) -> bytes:
            return self._step.layout.place(*following(argument(args, kwargs)))

        return self.computing(function, place, note)

    def both(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is recorded as a forward and a backward at once.

        They are those of its `f_model` and of its `b_output_tensor`; it may have only one of them.
        """
        step, progress = self._step, self._progress
        forwards, backwards = taker(function, "f_model"), taker(function, "b_model")
        output = taker(function, "b_output_tensor")
        ahead: Work | None = None
        back: Work | None = None

        def place(*args: Any, **kwargs: Any) -> bytes | None:
            nonlocal ahead, back
            model, other = forwards(args, kwargs), backwards(args, kwargs)
            ahead = None if model is None else progress.next_forward(model)[1]
            back = None if other is None else progress.next_backward(output(args, kwargs))[1]
            if ahead is not None and back is not None:
                return step.layout.overlapped(ahead, back)
            if ahead is not None:
                return step.layout.place(Kind.FORWARD, ahead)
            return None if back is None else step.layout.place(Kind.BACKWARD, back)

        def note(result: Any) -> None:
            made, _, gradient = result
            if ahead is not None:
                progress.note_forward(made)
            if back is not None:
                progress.note_backward(gradient)

        return self.computing(function, place, note)

    def computing(
        self,
        function: Callable[..., Any],
        place: Callable[..., bytes | None],
        note: Callable[[Any], None],
    ) -> Callable[..., Any]:
        """Return a function that is recorded as a task which makes tensors.

        Args:
            function: What to record.
            place: Called with the same arguments, returns where the task belongs.
            note: Called with what the function returned.
        """
        step = self._step
        timed = self._session.timed(function, place)

        @functools.wraps(function)
        def compute(*args: Any, **kwargs: Any) -> Any:
            if self.busy or step.recorder is None:
                return function(*args, **kwargs)
            if self._waiting is not None:  # only in Sail's runtime
                self.end_wait()
            self.busy = True
            try:
                result = timed(*args, **kwargs)
            finally:
                self.busy = False
            try:
                note(result)
            except Exception as error:  # noqa: BLE001  the job goes on
                self._session.fail(error)
            return result

        return compute

    def begin_wait(self, place: bytes) -> None:
        """Record from now on, as a receive, what the next forward or backward waits for."""
        recorder = self._step.recorder
        if recorder is not None:
            self._waiting = place, recorder.begin_task(place)

    def end_wait(self) -> None:
        """End the receive that `begin_wait` began, if there is one."""
        waiting, self._waiting = self._waiting, None
        recorder = self._step.recorder
        if waiting is not None and recorder is not None:
            recorder.end_task(*waiting)
