"""What it takes to be rid of a class of the devices' time, in a run that shows more of it.

What-ifs say so in a few words, and `bubblescope why` at length: both go by the same signs
(`bubblescope.analysis.advised`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from bubblescope.analysis.advised import (
    COMPILED,
    COMPILING,
    FIRST_STEP,
    FIRST_USE,
    LONG_CALLS,
    RECURS,
    seen,
)
from bubblescope.analysis.device_budget import budget
from bubblescope.analysis.prediction import (
    AS_GRAPHS,
    COMPILED_AHEAD,
    LOADED,
    NEEDS,
    NOT_HELD_UP,
    WARMED,
)
from bubblescope.model.budget import Use

if TYPE_CHECKING:
    from bubblescope.analysis.device_budget import Budget
    from bubblescope.model.timeline import Timeline

_IN_PARTICULAR: Final = {
    Use.LAUNCH_CALL: {FIRST_USE: LOADED, FIRST_STEP: LOADED, LONG_CALLS: NOT_HELD_UP},
    Use.HOST_OPERATOR: {
        RECURS: WARMED,
        FIRST_STEP: WARMED,
        COMPILING: COMPILED_AHEAD,
        COMPILED: AS_GRAPHS,
    },
}
"""Class -> key of the advice about it -> what it takes then."""


class Needs:
    """Says what it takes to be rid of a class of time.

    Args:
        timeline: The run. What its devices spent their time on is summed up once, where it matters.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def of(self, use: Use) -> str:
        """Return what it takes to be rid of a class; empty if that is not known."""
        ways = _IN_PARTICULAR.get(use)
        if ways is None or self._spent is None:
            return NEEDS.get(use, "")
        _, advised = seen(self._spent, use)
        return ways.get(advised, NEEDS[use])

    @cached_property
    def _spent(self) -> Budget | None:
        return budget(self._timeline)
