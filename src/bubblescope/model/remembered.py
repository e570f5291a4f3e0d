"""What is worked out of a timeline alone, once for each: several questions ask for the same."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.model.timeline import Timeline

_Result = TypeVar("_Result")


def remembered(work: Callable[[Timeline], _Result]) -> Callable[[Timeline], _Result]:
    """Let a timeline remember what a function made of it, which nobody may change.

    Args:
        work: Depends on the tasks alone and on where ranks stand, so that what it returns still holds
            when something else becomes known of a timeline.
    """

    @wraps(work)
    def known(timeline: Timeline) -> _Result:
        if work not in timeline.remembered:
            timeline.remembered[work] = work(timeline)
        return cast("_Result", timeline.remembered[work])

    return known
