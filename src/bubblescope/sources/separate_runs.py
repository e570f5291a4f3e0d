"""Traces of runs that were made one after the other, which are no ranks of one.

A folder may hold what a person profiled again and again. Where no trace states a rank, each process
would become one, with minutes between them in which all devices idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model import units
from bubblescope.model.errors import SourceError
from bubblescope.model.extents import extents
from bubblescope.model.kinds import Lane

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from bubblescope.model.timeline import Timeline

_APART_NS: Final = 10_000_000_000
"""How far apart captures are at least that are not taken for one: hosts' clocks are seldom so."""
ADVICE: Final = "give one of them, or compare two with `bubblescope compare`"


def refuse_separate_runs(timeline: Timeline, paths: Sequence[Path | str]) -> None:
    """Refuse ranks that ran one after the other and communicate with nobody.

    Args:
        timeline: What traces hold of which none states a rank.
        paths: The traces.

    Raises:
        SourceError: They are runs of their own.
    """
    if not timeline.run.common_clock or _communicates(timeline):
        return
    spans = [frame.select(_SPAN) for frame in (timeline.tasks, timeline.budget)]
    ranks = extents(pl.concat(spans), "rank").sort("start_ns")
    apart = ranks["start_ns"][1:] - ranks["end_ns"].cum_max()[:-1]
    if not len(apart) or (least := int(apart.min())) < _APART_NS:  # type: ignore[arg-type]
        return
    first, *others = sorted({str(path) for path in paths})
    beside = units.count(len(others), "other trace")
    raise SourceError(
        first,
        f"was read with {beside}, of processes that ran one after the other, {units.duration(least)} "
        f"or more apart, and exchange nothing: they are runs of their own, not ranks of one; {ADVICE}",
    )


def refuse_steps_twice(
    path: Path | str, steps: Iterable[int | None], other: Path | str, others: Iterable[int | None]
) -> None:
    """Refuse two captures of a process if both have a step of one number.

    A profiler that goes on counts on; one that is made anew, for another run in the process, begins
    with the numbers of the one before.

    Args:
        path: A trace.
        steps: The numbers of its steps, null where a step has none.
        other: A trace of the same process, from another time.
        others: The numbers of its steps.

    Raises:
        SourceError: They are runs of their own.
    """
    known = {step for step in steps if step is not None}
    if twice := sorted(known.intersection(others)):
        raise SourceError(
            path,
            f"has {units.listed('step', twice)}, and so has {other}, which "
            f"the same process recorded at another time: they are runs of their own; {ADVICE}",
        )


_SPAN: Final = ("rank", "start_ns", "end_ns")


def _communicates(timeline: Timeline) -> bool:
    """Say whether any rank exchanges anything with another, as far as is known."""
    return bool(timeline.operations.height) or bool(
        (timeline.tasks["lane"] == Lane.COMM.value).any()
    )
