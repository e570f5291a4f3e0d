"""Recording forwards and backwards."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, Final

from bubblescope.model.kinds import Kind
from bubblescope.record.arguments import position_of, taker

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.record.integrations.megatron.placement import Step, Work
    from bubblescope.record.integrations.megatron.turns import Progress
    from bubblescope.record.session import Session

_now: Final = time.monotonic_ns


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
        place = progress.forwards(*_argument(function, "model"), self._place)
        return self.computing(function, place, progress.note_forward)

    def backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is recorded as the backward of its `output_tensor`."""
        progress = self._progress
        place = progress.backwards(*_argument(function, "output_tensor"), self._place)
        return self.computing(function, place, progress.note_backward)

    def _place(self, kind: Kind, work: Work) -> bytes:
        return self._step.layout.place(kind, work)

    def both(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that is recorded as a forward and a backward at once.

        They are those of its `f_model` and of its `b_output_tensor`; it may have only one of them.
        """
        step, progress = self._step, self._progress
        forwards, backwards = taker(function, "f_model"), taker(function, "b_model")
        output = taker(function, "b_output_tensor")
        ahead: Work | None = None
        back: Work | None = None

        def place(args: Any, kwargs: Any) -> bytes | None:
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
        place: Callable[[Any, Any], bytes | None],
        note: Callable[[Any], None],
    ) -> Callable[..., Any]:
        """Return a function that is recorded as a task which makes tensors.

        Args:
            function: What to record.
            place: Called with its arguments by place and by name, returns where the task belongs.
            note: Called with what the function returned.
        """
        session, step, intake, now = self._session, self._step, self._session.intake, _now
        timed = session.timed(function, lambda *args, **kwargs: place(args, kwargs))

        @functools.wraps(function)
        def compute(*args: Any, **kwargs: Any) -> Any:
            if self.busy or not step.training:
                return function(*args, **kwargs)
            items = intake.items
            if items is None:
                if step.recorder is None:
                    return function(*args, **kwargs)
                return self._with_marks(timed, note, args, kwargs)
            if self._waiting is not None:  # only in Sail's runtime
                self.end_wait()
            what = None
            try:
                what = place(args, kwargs)
            except Exception as error:  # noqa: BLE001  the job goes on
                session.fail(error)
            begin = None
            try:  # signals may raise behind any call, and nothing is busy then
                self.busy = True
                at, begin = intake.step, now()
                result = function(*args, **kwargs) if kwargs else function(*args)
            finally:
                self.busy = False
                end = now()
                if what is not None and begin is not None and intake.items is not None:
                    items += (at, what, begin, end, begin, end, None)
                    if len(items) >= intake.most:
                        intake.relieve()
            try:
                note(result)
            except Exception as error:  # noqa: BLE001  the job goes on
                session.fail(error)
            return result

        return compute

    def _with_marks(
        self, timed: Callable[..., Any], note: Callable[[Any], None], args: Any, kwargs: Any
    ) -> Any:
        """Call a function that is recorded with marks of a device or of a vendor."""
        if self._waiting is not None:
            self.end_wait()
        self.busy = True
        try:
            result = timed(*args, **kwargs)
        finally:
            self.busy = False
        self._noted(note, result)
        return result

    def _noted(self, note: Callable[[Any], None], result: Any) -> None:
        try:
            note(result)
        except Exception as error:  # noqa: BLE001  the job goes on
            self._session.fail(error)

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


def _argument(function: Callable[..., Any], name: str) -> tuple[int, Callable[[Any, Any], Any]]:
    """Return where an argument is if it is given by place, and what finds it however it is given."""
    return position_of(function, name), taker(function, name)
