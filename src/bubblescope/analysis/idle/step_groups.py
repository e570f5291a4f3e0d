"""The tasks of a large run, those of some steps at a time.

Each part has what its steps' ranks were in meanwhile, and remembers of the whole run what it could not
tell itself: so what is said of its steps is what is said of them in the whole run.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from bubblescope.analysis.between_rounds import rounds
from bubblescope.analysis.idle.inside_passes import inside_passes
from bubblescope.analysis.idle.rank_waits import rank_waits
from bubblescope.analysis.outside_passes import names_of
from bubblescope.analysis.pipeline_phase import pipelines, step_facts
from bubblescope.analysis.schedule.observe import seen
from bubblescope.model.cached_results import told
from bubblescope.model.dependencies import passes
from bubblescope.model.kinds import COMPUTE_KINDS, Lane

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline

_SOME: Final = 1 << 17
"""Tasks that are looked at at a time, about: fewer take longer in all."""

_GROUPS: Final = 64
"""Groups of steps at most."""

_TELLING: Final = (step_facts, seen, names_of, pipelines, rounds, rank_waits)
"""What parts are told of the whole."""

NOBODY: Final = -1
"""Row of a task that stands beside."""

_PASS: Final = pl.col("kind").is_in([kind.value for kind in COMPUTE_KINDS])


def groups_of(timeline: Timeline) -> list[list[int]]:
    """Return the steps of a run in groups of about as many; one group if it is not worth more."""
    steps = timeline.steps
    count = min(len(steps), _GROUPS, len(timeline) // _SOME)
    return [group.tolist() for group in np.array_split(np.array(steps), max(1, count))]


class StepGroups:
    """The tasks of a run, those of some steps at a time, told of the whole run.

    What belongs to no step is with the steps in whose time it began; what is no pass and overlaps the
    time of others stands beside these, as ranks are in it meanwhile.

    Args:
        timeline: The run.
        groups: Its steps.
    """

    def __init__(self, timeline: Timeline, groups: list[list[int]]) -> None:
        self._timeline, self._groups = timeline, groups
        tasks = timeline.tasks
        group_of = {step: group for group, steps in enumerate(groups) for step in steps}
        stepped = tasks.select("step", "start_ns").drop_nulls("step")
        opens = stepped.group_by("step").agg(pl.col("start_ns").min()).sort("start_ns")
        del stepped
        began = np.searchsorted(opens["start_ns"].to_numpy(), tasks["start_ns"].to_numpy(), "right")
        by_time = opens["step"].replace_strict(group_of, return_dtype=pl.Int8).to_numpy()
        self._owner = (
            tasks["step"]
            .replace_strict(group_of, default=None, return_dtype=pl.Int8)
            .zip_with(tasks["step"].is_not_null(), pl.Series(by_time[np.maximum(began - 1, 0)]))
            .to_numpy()
        )
        del began
        self._rows = _by_group(self._owner, len(groups))
        is_pass = _PASS & (pl.col("lane") == Lane.COMPUTE.value)
        self._beside = np.flatnonzero(tasks.select(~is_pass).to_series().to_numpy())
        self._known = {look: look(timeline) for look in _TELLING}
        self._inside = inside_passes(timeline)
        self._fed = passes(timeline)
        source, target = (self._owner[self._fed[end].to_numpy()] for end in ("source", "target"))
        self._fed_rows = _by_group(np.where(source == target, source, NOBODY), len(groups))

    def having(self, steps: Collection[int | None] | None) -> list[int]:
        """Return which parts have any of some steps; all if it is None."""
        wanted = None if steps is None else set(steps)
        return [
            part for part, held in enumerate(self._groups) if wanted is None or wanted & {*held}
        ]

    def tasks(self, part: int) -> tuple[Timeline, Ints]:
        """Return those of a part, and their rows in the run; -1 for what stands beside."""
        rows = own = self._rows[part]
        others = self._beside[self._owner[self._beside] != part]
        if len(others):
            start, end = (self._timeline.tasks[name].to_numpy() for name in ("start_ns", "end_ns"))
            near = (end[others] > start[own].min()) & (start[others] < end[own].max())
            rows = np.sort(np.concatenate([own, others[near].astype(np.int32)]), kind="stable")
        known: Any = {
            **self._known,
            passes: self._passes(part, rows),
            inside_passes: self._inside.of(rows),
        }
        mine = np.where(self._owner[rows] == part, rows, NOBODY) if len(others) else rows
        return told(self._timeline.of_rows(rows), known), mine

    def _passes(self, part: int, rows: Ints) -> pl.DataFrame:
        """Return which tasks of a part feed which, by their places among the rows of its tasks."""
        fed = self._fed[self._fed_rows[part]]
        place = np.zeros(len(self._owner), np.uint32)
        place[rows] = np.arange(len(rows), dtype=np.uint32)
        ends = {name: pl.Series(place[fed[name].to_numpy()]) for name in ("source", "target")}
        return fed.with_columns(**ends)


def _by_group(owner: Ints, count: int) -> list[Ints]:
    """Return the places that are of each group, ascending; a group of -1 is none."""
    order = np.argsort(owner, kind="stable").astype(np.int32)
    ends = np.searchsorted(owner[order], np.arange(count + 1))
    return [order[low:high] for low, high in pairwise(ends.tolist())]
