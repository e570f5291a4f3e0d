"""How long steps are without some of what devices spend them on: bounds, and replays within them.

With h the time that goes, and c the exposed communication, of rank r in a step of length s:

* one device: s - h.
* several devices that communicate: exposed communication contains waiting for the slowest, and how
  much of it would be left is not known. Between max over r of (s - h - c), where nobody waits any more,
  or max s - the sum over r of h if that is longer (no path through the step loses more than goes on all
  ranks together), and max over r of (s - h), where each waits as long as it did. Ranks that are late in
  turns, each waiting for the others, would gain less than that.
* the same where nearly all of that is in collectives of which it is known who waits for whom: the run
  is replayed without h (`bubblescope.analysis.coupled_ranks`).
* where exposed communication itself goes, waiting and all: max over r of (s - h).

The time in which a host waits for other ranks itself (`Use.RANK_WAIT`) is part of c as well.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.analysis.arrivals import arrivals, over_steps
from bubblescope.analysis.coupled_ranks import CoupledRanks
from bubblescope.analysis.device_steps import CAPTURE, DEVICE, PLACE
from bubblescope.analysis.prediction import GAPS_IN_LINE, MORE_HIDDEN, NO_WAITING, all_of
from bubblescope.model.budget import Use, is_spent_on
from bubblescope.model.met_collectives import met

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.analysis.coupled_ranks import Replay
    from bubblescope.analysis.device_steps import DeviceSteps
    from bubblescope.model.timeline import Timeline

WAITS: Final = (Use.COMMUNICATION, Use.RANK_WAIT)
"""What contains waiting for other ranks."""

_MATCHED: Final = 0.95
"""Share of exposed communication in matched collectives from which on ranks are replayed."""


class Left(NamedTuple):
    """How long a step is without something, the mean over steps.

    Attributes:
        longest_ns, shortest_ns: At most and at least.
        conditions: What has to be so for the shortest.
        waits_gone: Whether nobody may wait for other ranks any more either.
    """

    longest_ns: int
    shortest_ns: int
    conditions: tuple[str, ...] = ()
    waits_gone: bool = False

    @property
    def best_if(self) -> str:
        """What has to be so for the shortest, in words."""
        return all_of(*self.conditions, NO_WAITING if self.waits_gone else "")


def bounded(
    steps: DeviceSteps, removed: pl.DataFrame, best_if: str, waits: Collection[Use] = WAITS
) -> Left:
    """Return between what a step is, whoever waits for whom.

    Args:
        steps: The steps.
        removed: Frame with rank, device, step, removed_ns and most_ns: by how much each would be
            shorter, at least and at most.
        best_if: What has to be so for the most to go.
        waits: What stays of `WAITS`.
    """
    of = steps.lengths
    waiting = steps.spent(waits, "waiting_ns")
    for spent in (removed.select(*PLACE, "removed_ns", "most_ns"), waiting):
        of = of.join(spent, on=PLACE, how="left", nulls_equal=True)
    of = of.with_columns(pl.col("removed_ns", "most_ns", "waiting_ns").fill_null(0))
    length, most = pl.col("length_ns"), pl.col("most_ns")
    best = (length - most).max()
    waits_gone = steps.several and (Use.COMMUNICATION in waits or bool(waiting.height))
    if waits_gone:
        alone = (length - most - pl.col("waiting_ns")).max()
        best = pl.max_horizontal(alone, length.max() - most.sum())
    longest = steps.mean((length - pl.col("removed_ns")).max(), of)
    conditions = (best_if,) if (of["most_ns"] > of["removed_ns"]).any() else ()
    return Left(longest, steps.mean(best, of), conditions, waits_gone)


class Gone(NamedTuple):
    """What goes of the time of ranks.

    Attributes:
        known: Frame with rank, start_ns and end_ns: where it is known when.
        in_sums: Frame with step and spent_ns: where it is known how much only; None if nowhere.
    """

    known: pl.DataFrame
    in_sums: pl.DataFrame | None = None

    @classmethod
    def spent_on(cls, uses: Collection[Use], steps: DeviceSteps) -> Gone:
        """Return what was spent on some classes."""
        rows = steps.budget.filter(is_spent_on(uses), pl.col("spent_ns") > 0)
        known = pl.col("spent_ns") == pl.col("end_ns") - pl.col("start_ns")
        in_sums = rows.filter(~known)
        return cls(rows.filter(known), in_sums if in_sums.height else None)


class ReplayedSteps:
    """The steps of a run as ranks that wait for each other in collectives.

    Args:
        timeline: The run.
        steps: Its steps.
    """

    def __init__(self, timeline: Timeline, steps: DeviceSteps) -> None:
        self._timeline = timeline
        self._steps = steps

    @cached_property
    def ranks(self) -> CoupledRanks:
        """The ranks."""
        found = met(self._timeline)
        first = self._timeline.operations.group_by("rank").agg(pl.col("start_ns").min())
        windows = self._steps.windows.group_by("rank").agg(pl.col("start_ns").min())
        begun = pl.concat([first, windows]).group_by("rank").agg(pl.col("start_ns").min())
        return CoupledRanks(found, dict(begun.iter_rows()))

    @cached_property
    def arrivals(self) -> pl.DataFrame:
        """Who waited for whom, as `bubblescope.analysis.arrivals.over_steps` returns it."""
        found = arrivals(self._timeline)
        if self._steps.span == CAPTURE:
            found = found.with_columns(step=pl.lit(None, pl.Int32))
        return over_steps(found, self._steps.lengths)

    @cached_property
    def are_matched(self) -> bool:
        """Whether nearly all exposed communication is in collectives of which it is known who waits."""
        budget = self._steps.budget
        spent = int(budget.filter(pl.col("use") == Use.COMMUNICATION.value)["spent_ns"].sum())
        known = int(self.arrivals["exposed_ns"].sum())
        return spent > 0 and known >= _MATCHED * spent

    def within(self, bounds: Left, least: Gone, most: Gone) -> Left:
        """Return bounds that replays narrow.

        Args:
            bounds: As of `bounded`.
            least: What goes at least.
            most: What goes at most.
        """
        longest = min(bounds.longest_ns, self.mean_ns(self.ranks.without(least.known)))
        hides = self.ranks.hides
        at_best = self.ranks.without(most.known, most=True)
        sooner = self.mean_ns(at_best, most.in_sums, sure=not hides)
        in_line = GAPS_IN_LINE if most.in_sums is not None else ""
        conditions = (*bounds.conditions, in_line, MORE_HIDDEN if hides else "")
        return Left(longest, max(bounds.shortest_ns, sooner), conditions)

    def mean_ns(
        self, replay: Replay, in_sums: pl.DataFrame | None = None, *, sure: bool = True
    ) -> int:
        """Return how long a step is in a run that was replayed.

        Args:
            replay: The run.
            in_sums: Frame with step and spent_ns: what goes as well, nobody knows when; no path through
                a step loses more than all of it.
            sure: Whether it would be just so, and not as short at best. One rank may then be too early
                where a step begins, and not where it ends: the mean step of any rank is no longer for
                that, and the mean of the longest ones no shorter.
        """
        steps, windows = self._steps, self._steps.windows
        rank, *times = (windows[name].to_numpy() for name in ("rank", "start_ns", "until_ns"))
        start, until = replay.moved_ns(rank, times)
        sooner = pl.Series((times[1] - times[0]) - (until - start))
        found = steps.lengths.join(
            windows.select(*PLACE, sooner_ns=sooner), on=PLACE, how="left", nulls_equal=True
        )
        more = pl.lit(0).alias("more_ns")
        if in_sums is not None:
            sums = in_sums.group_by("step").agg(pl.col("spent_ns").sum().alias("more_ns"))
            found = found.join(sums, on="step", how="left", nulls_equal=True)
            more = pl.col("more_ns").fill_null(0)
        left = pl.col("length_ns") - pl.col("sooner_ns")
        if sure:
            return steps.mean((left - more).max(), found)
        return round(found.group_by(DEVICE).agg((left - more).mean().alias("of"))["of"].max())  # type: ignore[arg-type]
