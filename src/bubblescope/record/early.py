"""What a process does before its first step, kept until it shows whether the process trains at all.

Which rank this is, and whether it ever makes a step, is known only then; so is the file.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from bubblescope.record.buffer import WIDTH, Buffer, pack_step
from bubblescope.record.timers import chosen_timer
from bubblescope.recording.rows import UNKNOWN

if TYPE_CHECKING:
    from bubblescope.record.timers.timer import Timer

_MOST: Final = 10_000
"""Tasks that are kept: the first."""
_now: Final = time.monotonic_ns
_NO_STEP: Final = pack_step(UNKNOWN)


class Early:
    """Takes tasks as `Recorder` does, and keeps them.

    Args:
        timer: Name of the clock, as `chosen_timer` takes it.

    Attributes:
        timer: The clock, once there is a task; the recorder has to have the same. None before, and if
            none can be had.
        recording: Whether it takes any more.
    """

    def __init__(self, timer: str | None) -> None:
        self.timer: Timer | None = None
        self.recording = True
        self._name = timer
        self._anchor: Any = None
        self._items: list[Any] = []

    def begin_task(self, what: bytes, name: str | None = None) -> tuple[bytes, int, Any]:
        """Take the time at the beginning of a task. Never raises."""
        del what, name
        if self.timer is None:
            self._start()
        return _NO_STEP, _now(), self._mark()

    def end_task(self, what: bytes, began: tuple[bytes, int, Any], name: str | None = None) -> None:
        """Keep a task that ends now. Never raises."""
        step, host_begin, begin = began
        end, host_end = self._mark(), _now()
        if begin is not None and end is not None:
            self._items += (step, what, begin, end, host_begin, host_end, name)
            self.recording = len(self._items) < _MOST * WIDTH

    def abandon_task(self) -> None:
        """Let what `begin_task` began last be none."""

    def taken(self) -> Buffer | None:
        """Return what was kept, for the recorder to write; None if that is nothing."""
        self.recording = False
        return Buffer(self._items, self._anchor) if self._items else None

    def _start(self) -> None:
        try:
            timer = chosen_timer(self._name)
            if timer.sees_kernels:  # which costs more than what comes before the training is worth
                self.recording = False
                return
            self._anchor, self.timer = timer.anchor(), timer
        except Exception:  # noqa: BLE001  if there is no clock, the recorder will say so
            self.recording = False

    def _mark(self) -> Any:
        with suppress(Exception):  # the job will notice itself if the device is lost
            return None if self.timer is None else self.timer.mark()
        return None
