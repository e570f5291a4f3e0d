"""How much shorter tasks become when some of what is inside them goes: idle time, or time of kernels.

Time belongs to the innermost task that it lies in, of those that overlap to the one begun last, as in
`Timeline.budget`. So nothing is taken away twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.budget import is_spent_on
from bubblescope.model.device_time import NONE, innermost
from bubblescope.model.errors import ScheduleError, TimelineError
from bubblescope.model.intervals import NEVER, covered_ns, reached_ns
from bubblescope.model.kinds import Lane
from bubblescope.model.patterns import compiled

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.model.arrays import Ints
    from bubblescope.model.budget import Use
    from bubblescope.model.timeline import Timeline

_IF_KNOWN: Final = ("launch_ns", "full")
"""Columns of activities that are used where they are there."""


def segments(timeline: Timeline) -> pl.DataFrame:
    """Return the time of a run's compute tasks, no moment of a rank twice.

    Returns:
        Frame with rank, start_ns, until_ns and task (row of the timeline's tasks), by rank and start.
    """
    tasks = (
        timeline.tasks.with_row_index("task")
        .filter(pl.col("lane") == Lane.COMPUTE.value)
        .sort("rank", "start_ns", "end_ns", descending=[False, False, True])
    )
    parts = [pl.DataFrame(schema=_SEGMENTS)]
    for (rank,), own in tasks.group_by("rank", maintain_order=True):
        edges, owner = innermost(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
        held = owner[:-1] != NONE
        part = {
            "rank": np.full(int(held.sum()), rank),
            "start_ns": edges[:-1][held],
            "until_ns": edges[1:][held],
            "task": own["task"].to_numpy()[owner[:-1][held]],
        }
        parts.append(pl.DataFrame(part, schema=_SEGMENTS))
    return pl.concat(parts)


_SEGMENTS: Final = {
    "rank": pl.Int32(),
    "start_ns": pl.Int64(),
    "until_ns": pl.Int64(),
    "task": pl.Int64(),
}


def spent_inside(timeline: Timeline, uses: Collection[Use]) -> Ints:
    """Return how much of each task its device spent on some uses.

    Args:
        timeline: The run.
        uses: Classes of the budget.

    Returns:
        n lengths of time in nanoseconds, one for each of the timeline's tasks.

    Raises:
        TimelineError: The traces do not tell what the devices did.
    """
    if not timeline.budget.height:
        raise TimelineError(
            "the traces hold no kernels, so they do not show what devices did inside tasks"
        )
    rows = timeline.budget.filter(is_spent_on(uses), pl.col("inside").is_not_null()).sort(
        "start_ns"
    )
    # A row lies in one segment: tasks cut the time that rows are about.
    placed = rows.join_asof(
        segments(timeline).sort("start_ns"), on="start_ns", by="rank", check_sortedness=False
    ).filter(pl.col("start_ns") < pl.col("until_ns"))
    kinds = timeline.tasks["kind"].gather(placed["task"]).cast(pl.String)
    placed = placed.filter(kinds == placed["inside"].cast(pl.String))
    spent = np.zeros(len(timeline), np.int64)
    np.add.at(spent, placed["task"].to_numpy(), placed["spent_ns"].to_numpy())
    return spent


class Saved(NamedTuple):
    """By how much windows of time would be shorter.

    Attributes:
        most_ns: n lengths, if whatever comes after moves up.
        least_ns: n lengths, if what was launched late stays where it is: of each window, what is saved
            after the last operation that its device had to wait for the host to launch.
    """

    most_ns: Ints
    least_ns: Ints


class FasterKernels:
    """Kernels of some names that take less time.

    A kernel that matches begins when it did and ends earlier. What no other activity of its device
    covers then is saved: all that comes after moves up by it. Time under overlap is not saved.

    Args:
        activities: Frame with rank, device, name, start_ns and end_ns of everything that devices ran;
            and, if known, `full`, which is matched as well, and `launch_ns`, when the host launched it.
        pattern: A regular expression, found anywhere in a name.
        factor: What a kernel that matches takes of its time, from 0 to 1.
        by: Columns that tell devices apart.

    Attributes:
        less_ns: By how much less they take, all of them together.

    Raises:
        ScheduleError: The pattern is none, matches no kernel, or the factor is not from 0 to 1.
    """

    def __init__(
        self,
        activities: pl.DataFrame | None,
        pattern: str,
        factor: float,
        by: tuple[str, ...] = ("rank", "device"),
    ) -> None:
        if activities is None or not activities.height:
            raise ScheduleError(
                "which kernels ran is not known: the run was read without them, or its traces hold none"
            )
        if not 0 <= factor <= 1:
            raise ScheduleError(
                f"a faster kernel takes between 0 and 1 times its time, not {factor:g} times"
            )
        kept = [name for name in _IF_KNOWN if name in activities.columns]
        ran = activities.select(*by, "name", "start_ns", "end_ns", *kept).sort(*by, "start_ns")
        self._by = by
        self._group = ran.select(pl.struct(by).rle_id()).to_series().to_numpy().astype(np.int64)
        self._places = ran.select(*by, group=pl.Series(self._group)).unique()
        self._start = ran["start_ns"].to_numpy()
        self._end = np.maximum(ran["end_ns"].to_numpy(), self._start)
        matched = _matching(ran, pattern).to_numpy()
        length = self._end - self._start
        less = np.where(matched, length - np.round(length * factor).astype(np.int64), 0)
        self.less_ns = int(less.sum())
        self._sooner = self._end - less
        self._pinned = self._late(ran)

    def _late(self, ran: pl.DataFrame) -> pl.DataFrame:
        """Return when, on which device, something began that was launched after all before was done."""
        if "launch_ns" not in ran.columns:
            return pl.DataFrame(schema={"group": pl.Int64, "pinned_ns": pl.Int64})
        reached = reached_ns(self._end, self._group)
        launched = ran["launch_ns"].fill_null(np.iinfo(np.int64).min).to_numpy()
        late = (reached > NEVER) & (launched > reached) & (self._start > reached)
        found = {"group": self._group[late], "pinned_ns": self._start[late]}
        return pl.DataFrame(found).sort("pinned_ns")

    def saved(self, windows: pl.DataFrame) -> Saved:
        """Return by how much windows of time would be shorter.

        Args:
            windows: Frame with the columns of `by`, start_ns and until_ns.
        """
        own = self._grouped(windows)
        group, start, until = (own[name].to_numpy() for name in ("group", "start_ns", "until_ns"))
        free = self.free_ns(windows)
        return Saved(self._shorter((group, start, until)), self._shorter((group, free, until)))

    def free_ns(self, windows: pl.DataFrame) -> Ints:
        """Return from when on nothing in a window waits for the host to launch it; its start or later.

        Args:
            windows: As of `saved`.
        """
        own = self._grouped(windows).with_row_index("window").sort("until_ns")
        late = own.join_asof(
            self._pinned,
            left_on="until_ns",
            right_on="pinned_ns",
            by="group",
            check_sortedness=False,
        ).sort("window")
        return late.select(pl.max_horizontal("start_ns", "pinned_ns")).to_series().to_numpy()

    def _grouped(self, windows: pl.DataFrame) -> pl.DataFrame:
        own = windows.join(self._places, on=self._by, how="left", maintain_order="left")
        return own.with_columns(pl.col("group").fill_null(NONE))

    def gone(self) -> pl.DataFrame:
        """Return the stretches of time that activities cover now, and would not.

        Returns:
            Frame with the columns of `by`, start_ns and end_ns; none overlap on a device.
        """
        # Kernels begin when they did, so what one leaves uncovered ends where the next begins, at last.
        last = np.append(self._group[1:] != self._group[:-1], True)[: len(self._group)]
        following = np.where(last, -NEVER, np.append(self._start[1:], 0))
        start, end = (
            np.maximum(reached_ns(ends, self._group), ends) for ends in (self._sooner, self._end)
        )
        found = {"group": self._group, "start_ns": start, "end_ns": np.minimum(end, following)}
        rows = pl.DataFrame(found).filter(pl.col("start_ns") < pl.col("end_ns"))
        return rows.join(self._places, on="group", maintain_order="left").drop("group")

    def _shorter(self, windows: tuple[Ints, Ints, Ints]) -> Ints:
        before = covered_ns((self._group, self._start, self._end), windows)
        after = covered_ns((self._group, self._start, self._sooner), windows)
        return before - after


def _matching(ran: pl.DataFrame, pattern: str) -> pl.Series:
    """Return whether each activity's name matches; there are few names, so each is tried once."""
    try:
        wanted = compiled(pattern)
    except ValueError as error:
        raise ScheduleError(f"{pattern!r} is not a regular expression: {error}") from None
    matched = pl.repeat(value=False, n=len(ran), eager=True)
    for column in ("name", "full"):
        if column in ran.columns:
            names = ran[column].drop_nulls().unique()
            found = [name for name in names if wanted.search(name)]
            matched |= ran[column].is_in(found).fill_null(value=False)
    if not matched.any():
        longest = (
            ran.group_by("name")
            .agg(took=(pl.col("end_ns") - pl.col("start_ns")).sum())
            .sort("took", "name", descending=[True, False])["name"]
        )
        raise ScheduleError(
            f"no kernel's name matches {pattern!r}; most time goes to {', '.join(longest[:3])}"
        )
    return matched
