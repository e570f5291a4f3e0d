"""What it takes to be rid of a class of the devices' time, in a run that shows more of it.

What-ifs say so in a few words, and `bubblescope why` at length: both go by the same signs
(`bubblescope.analysis.advised`).
"""

from __future__ import annotations

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
    from collections.abc import Callable

    from bubblescope.analysis.device_budget import Budget

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


def needs_of(use: Use, budget: Callable[[], Budget | None]) -> str:
    """Return what it takes to be rid of a class of time; empty if that is not known.

    Args:
        use: The class.
        budget: Returns what the run's devices spent their time on; asked only where it matters.
    """
    ways = _IN_PARTICULAR.get(use)
    spent = budget() if ways else None
    if ways is None or spent is None:
        return NEEDS.get(use, "")
    _, advised = seen(spent, use)
    return ways.get(advised, NEEDS[use])
