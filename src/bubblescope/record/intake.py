"""Where hooks put the tasks that they time: all that one needs to know of a recorder in every call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bubblescope.record.buffer import pack_step
from bubblescope.recording.rows import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable


class Intake:
    """Where tasks are put that are timed by the host's clock and told to nobody else.

    A hook that is called for every task records one in a few steps, for each call of a function and
    each attribute that is looked up takes its share of a microsecond::

        items = intake.items
        if items is None: ...  # nothing is recorded, or it takes `Recorder.begin_task`
        step, begin = intake.step, now()
        ...
        end = now()
        if intake.items is not None:  # the recording may have ended meanwhile
            items += (step, place, begin, end, begin, end, None)  # all at once, for other threads
            if len(items) >= intake.most:
                intake.relieve()

    Attributes:
        items: The list that takes the values of tasks, as `buffer.WIDTH` lists them, while tasks are
            recorded; None while they are not, and if they have marks of a device or of a vendor. It is
            always the same list.
        step: The step that tasks begin in now, packed.
        most: Values in the list at which it is to be relieved.
        relieve: Hands what is in the list to the writer; never raises.
    """

    __slots__ = ("items", "most", "relieve", "step")

    def __init__(self) -> None:
        self.items: list[Any] | None = None
        self.step = pack_step(UNKNOWN)
        self.most = 0
        self.relieve: Callable[[], None] = _nothing


def _nothing() -> None:
    """There is no recorder yet, so nothing is in the list."""
