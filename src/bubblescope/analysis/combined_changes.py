"""Changes of a run that are asked about together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from bubblescope.model.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.schedules.plan import Plan

Change: TypeAlias = tuple[Any, ...]
"""The name of a method of `bubblescope.analysis.whatif.WhatIf`, and what it is given."""


class Asked(NamedTuple):
    """Changes that are asked about together.

    Attributes:
        without: Causes and classes.
        never_late: Whether the host always launches in time.
        healthy: Ranks.
        scaled: "stage" or "rank", its number, and how many times as long it takes.
        layers: Layers of each stage now; empty if none move.
        moves: How many layers move from which stage to which.
        partition: Layers of each stage then; empty if it is not given outright.
        counts: Micro-batches of a step; one at most.
        schedules: Its name or plan, and chunks; one at most.
    """

    without: tuple[Any, ...]
    never_late: bool
    healthy: tuple[int, ...]
    scaled: tuple[tuple[str, int, float], ...]
    layers: tuple[int, ...]
    moves: tuple[tuple[int, int, int], ...]
    partition: tuple[int, ...]
    counts: tuple[int, ...]
    schedules: tuple[tuple[str | Plan, int | None], ...]

    @classmethod
    def of(cls, changes: Sequence[Change]) -> Self:
        """Sort changes.

        Raises:
            ScheduleError: They do not go together.
        """
        by: dict[str, list[tuple[Any, ...]]] = {}
        for name, *arguments in changes:
            by.setdefault(name, []).append(tuple(arguments))
        for name, words in _ONCE.items():
            if len(by.get(name, ())) > 1:
                raise ScheduleError(f"a run has one {words}; ask about them one at a time")
        if "kernels" in by:
            raise ScheduleError(
                "faster kernels cannot be combined with other changes; ask about them one at a time"
            )
        moves, parts = by.get("moved", []), by.get("partitioned", [])
        if moves and parts:
            raise ScheduleError(
                "a partition is given outright or by moves; ask about them one at a time"
            )
        layers = {tuple(one[-1]) for one in (*moves, *parts)}
        if len(layers) > 1:
            raise ScheduleError("a run has one number of layers at each stage")
        return cls(
            without=tuple(one for some in by.get("without", ()) for one in some),
            never_late="host_never_late" in by,
            healthy=tuple(rank for (rank,) in by.get("healthy", ())),
            scaled=tuple((what, number, factor) for what, number, factor in by.get("scaled", ())),
            layers=next(iter(layers), ()),
            moves=tuple((count, source, target) for count, source, target, _ in moves),
            partition=tuple(parts[0][0]) if parts else (),
            counts=tuple(count for (count,) in by.get("microbatches", ())),
            schedules=tuple(
                (one[0], one[1] if len(one) > 1 else None) for one in by.get("schedule", ())
            ),
        )


_ONCE = {
    "microbatches": "number of micro-batches",
    "schedule": "schedule",
    "partitioned": "partition",
}


def moved(layers: Sequence[int], moves: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
    """Return the layers of each stage once some have moved.

    Args:
        layers: How many each stage has now.
        moves: How many move, from which stage, to which; all at once.

    Raises:
        ScheduleError: There are no such stages, or they do not have so many layers.
    """
    stages, others = len(layers), list(layers)
    for count, source, target in moves:
        if not (0 <= source < stages and 0 <= target < stages and source != target):
            raise ScheduleError(f"layers move between two of the stages 0 to {stages - 1}")
        if count < 1:
            raise ScheduleError(f"stage {source} has {layers[source]} layers, not {count} to give")
        others[source] -= count
        others[target] += count
    for stage, left in enumerate(others):
        if left < 0:
            taken = sum(count for count, source, _ in moves if source == stage)
            raise ScheduleError(f"stage {stage} has {layers[stage]} layers, not {taken} to give")
    return tuple(others)
