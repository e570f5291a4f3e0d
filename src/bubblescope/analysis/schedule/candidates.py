"""The schedules that a run may have followed, given how its stages are placed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from bubblescope.schedules import SCHEDULES
from bubblescope.schedules.classic import gpipe, looped_bfs
from bubblescope.schedules.dualpipe import mindspeed_dualpipev

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bubblescope.analysis.schedule.observe import Shape
    from bubblescope.schedules.plan import Plan


def _form(name: str) -> tuple[str, str, Callable[..., Plan]]:
    return name, "", SCHEDULES[name].make


_LAST_FIRST: Final = "last micro-batch's backward first"
_FORMS: Final[dict[str, list[tuple[str, str, Callable[..., Plan]]]]] = {
    "linear": [
        _form("1f1b"),
        _form("gpipe"),
        ("gpipe", _LAST_FIRST, partial(gpipe, last_first=True)),
        _form("eager-1f1b"),
        _form("zb-h1"),
        _form("zb-h2"),
    ],
    "looped": [
        _form("interleaved-1f1b"),
        _form("looped-bfs"),
        ("looped-bfs", _LAST_FIRST, partial(looped_bfs, last_first=True)),
        _form("interleaved-zb"),
    ],
    "zigzag": [
        _form("zb-v"),
        _form("v-half"),
        _form("v-min"),
        _form("dualpipev"),
        ("dualpipev", "MindSpeed's, last backwards whole", mindspeed_dualpipev),
        _form("hanayo"),
    ],
    "mirrored": [_form("dualpipe"), _form("chimera")],
}
"""The schedules of each placement, likelier ones first: where order cannot tell, these win."""


class Candidate(NamedTuple):
    """A schedule that a run may have followed.

    Attributes:
        name: Its name.
        variant: What tells it from the form in `SCHEDULES`; empty if nothing does.
        make: Returns the plan for so many micro-batches; may raise `ScheduleError`.
    """

    name: str
    variant: str
    make: Callable[[int], Plan]

    @classmethod
    def given(cls, plan: Plan, variant: str) -> Candidate:
        """Return the candidate that is this plan."""
        return cls(plan.name, variant, lambda _count: plan)


def known(shape: Shape, also: Sequence[Plan]) -> list[Candidate]:
    """Return every schedule with the placement, and those of `also` that have it."""
    devices, chunks = shape.devices, shape.chunks
    found = [
        Candidate.given(plan, "as given")
        for plan in also
        if [set(held) for held in plan.placement] == [set(held) for held in shape.placement]
    ]
    for name, variant, make in _FORMS[shape.name]:
        if SCHEDULES[name].any_chunks:
            found.append(Candidate(name, variant, partial(make, devices, chunks=chunks)))
        elif int(SCHEDULES[name].chunks) == chunks:
            found.append(Candidate(name, variant, partial(make, devices)))
    return found
