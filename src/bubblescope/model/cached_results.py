"""What is worked out of a timeline alone, once for each: several questions ask for the same."""

from __future__ import annotations

from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


def told(timeline: Timeline, known: Mapping[Callable[..., Any], Any]) -> Timeline:
    """Return a part of a run that remembers of the whole run what it could not tell itself.

    Args:
        timeline: Some steps or ranks of the run.
        known: Functions that are `remembered`, and what each makes of the whole run.
    """
    part = copy(timeline)
    works = {getattr(function, "__wrapped__", function): made for function, made in known.items()}
    part.remembered = works
    return part
