"""The ranks that are slow: one answer for all who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.analysis.finding import place
from bubblescope.analysis.idle.rank_noise import rank_errors
from bubblescope.analysis.idle.task_lengths import Durations, Typical
from bubblescope.model.kinds import Kind
from bubblescope.model.timing import on_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.analysis.finding import Shown
    from bubblescope.analysis.idle.measured_run import MeasuredRun
    from bubblescope.analysis.idle.task_lengths import Lengths
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline

_SLOW: Final = 0.05
"""By how much slower a rank must be to be spoken of whatever its share of the idle time."""

_SIGMAS: Final = 6.0
"""Standard errors that it must be slower by, which none of a thousand ranks is by chance."""

_OF_WORK: Final = 0.005
"""What it must take longer in a step, of what the busiest rank works in one: no step is shorter."""


class SlowRank(msgspec.Struct, frozen=True):
    """A rank that is slower than a healthy one.

    Attributes:
        rank: Which.
        slow_share: By how much longer its tasks are than on a healthy rank at its stage.
        steps: Number of steps in which it was.
        of: Number of steps that there are.
        task: The first task that was longer.
        error: By how much it may seem slower than it is, as `rank_errors` has it.
        of_work: What its tasks take longer in a step, of what the busiest rank works in one.
        mixed: Whether it may be one that waits: as of `Work`, and others do what it does.
        passing_share: By how much longer its tasks are in the steps in which it was slower, if that is
            all: no other rank does what it does, and it is not slow as a rule. Else None.
    """

    rank: int
    slow_share: float
    steps: int
    of: int
    task: Shown
    error: float
    of_work: float
    mixed: bool
    passing_share: float | None

    @property
    def odd(self) -> bool:
        """Whether it is a twentieth slower, not by chance, and by enough to make steps longer.

        A rank is not that may be waiting.
        """
        if self.mixed:
            return False
        enough = self.slow_share >= _SLOW and self.of_work >= _OF_WORK
        return enough and self.slow_share > _SIGMAS * self.error

    @property
    def stands_out(self) -> bool:
        """Whether it is odd, and slower in most steps."""
        return self.odd and 2 * self.steps > self.of

    def __str__(self) -> str:
        slower = f"{100 * self.slow_share:.0f} % slower"
        return f"rank {self.rank} is {slower} than a healthy rank at its stage"


class Worked(msgspec.Struct, frozen=True):
    """What some ranks worked.

    Attributes:
        steps: Frame with rank, step and own, what it worked there.
        ranks: Frame as of `Work`, with task, the row of the first that was longer; null if none was.
        numbers: Of the steps, as the run has them.
    """

    steps: pl.DataFrame
    ranks: pl.DataFrame
    numbers: list[int | None]

    @classmethod
    def of(cls, run: Durations | MeasuredRun, parts: Lengths) -> Self:
        """Look at tasks, and at their lengths taken apart.

        Steps are told apart as the run tells them. Where it knows just how long tasks took, these are
        those of one number, which is that of other ranks' too.
        """
        slow = pl.col("was") > pl.col("healthy")
        step = pl.Series(run.step)
        if isinstance(run, Durations):
            step = pl.Series(run.steps, dtype=pl.Int32).gather(step)
        tasks = pl.DataFrame(
            {
                "rank": run.rank,
                "step": step,
                "was": parts.rank_ns,
                "healthy": parts.stage_ns,
                "own": parts.own_ns,
                "task": run.task,
            }
        )
        return cls(
            tasks.group_by("rank", "step").agg(pl.col("own").sum()),
            tasks.group_by("rank").agg(
                pl.col("was", "healthy").sum(),
                steps=pl.col("step").filter(slow).n_unique().cast(pl.Int64),
                task=pl.col("task").filter(slow).min(),
            ),
            run.steps,
        )


PLACE: Final = ("rank", "stage", "kind")
"""Columns that tell apart what ranks do."""


def places_of(run: Durations | MeasuredRun) -> dict[str, Ints]:
    """Return these of tasks."""
    return {"rank": run.rank, "stage": run.stage, "kind": run.kind}


def work_by_place(run: Durations | MeasuredRun, parts: Lengths) -> pl.DataFrame:
    """Return what tasks take in all, by what they do.

    Args:
        run: The tasks.
        parts: Their lengths taken apart.

    Returns:
        Frame with rank, stage and kind, and own, was and healthy: as measured, as long as they take on
        the rank as a rule, and on a healthy one.
    """
    lengths_ns = {"own": run.duration_ns, "was": parts.rank_ns, "healthy": parts.stage_ns}
    return joined_by_place([pl.DataFrame({**places_of(run), **lengths_ns})])


def joined_by_place(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return what `work_by_place` does of several parts of a run together."""
    return pl.concat(parts).group_by(PLACE).agg(pl.col("own", "was", "healthy").sum())


class Work(msgspec.Struct, frozen=True):
    """What ranks worked in some steps, and what they would have on healthy ones.

    Attributes:
        ranks: Frame with rank, was (as long as its tasks take on it as a rule), healthy (on a healthy
            one), and steps (how many it was slower in).
        shown: The first task of each rank that was longer, if any was.
        busiest_ns: What the busiest rank of each step worked, in all.
        of: Number of steps.
        mixed: Whether tasks may contain waiting for other ranks: the host was timed, and no collective
            was recorded, so that those within a pass, as FSDP's, are part of it.
    """

    ranks: pl.DataFrame
    shown: dict[int, Shown]
    busiest_ns: int
    of: int
    mixed: bool

    @classmethod
    def of_steps(cls, run: Durations | MeasuredRun, parts: Lengths, timeline: Timeline) -> Self:
        """Look at some steps.

        Args:
            run: Their tasks.
            parts: The lengths of these, taken apart.
            timeline: That they are of.
        """
        return cls.of_ranks([Worked.of(run, parts)], timeline)

    @classmethod
    def of_ranks(cls, worked: Sequence[Worked], timeline: Timeline) -> Self:
        """Look at all steps, of which some ranks each are known.

        Args:
            worked: What they worked.
            timeline: Their tasks.
        """
        steps = pl.concat([one.steps for one in worked])
        numbers = {number for one in worked for number in one.numbers}
        ranks = pl.concat([one.ranks for one in worked])
        shown = ranks.drop_nulls("task").select("rank", "task").iter_rows()
        return cls(
            ranks.drop("task"),
            {rank: timeline.tasks.row(row, named=True) for rank, row in shown},
            int(steps.group_by("step").agg(pl.col("own").max())["own"].sum()),
            len(numbers),
            on_host(timeline.ranks) is not None
            and not (timeline.tasks["kind"] == Kind.COLLECTIVE.value).any(),
        )

    @classmethod
    def joined(cls, parts: Sequence[Work]) -> Self:
        """Return that of several parts of a run together, each of whole steps."""
        ranks = pl.concat([part.ranks for part in parts])
        shown: dict[int, list[Shown]] = {}
        for part in parts:
            for rank, task in part.shown.items():
                shown.setdefault(rank, []).append(task)
        return cls(
            ranks.group_by("rank").agg(pl.col("was", "healthy", "steps").sum()),
            {rank: min(tasks, key=place) for rank, tasks in shown.items()},
            sum(part.busiest_ns for part in parts),
            sum(part.of for part in parts),
            all(part.mixed for part in parts),
        )


def slow_ranks(work: Work, typical: Typical) -> list[SlowRank]:
    """Return the ranks that are slower than healthy ones at their stage, slowest first.

    Args:
        work: What they worked in all steps.
        typical: What tasks of the run take.
    """
    found = (
        work.ranks.with_columns(pl.col("rank").cast(pl.Int64))
        .join(rank_errors(typical.places, typical.medians.noise), on="rank", how="left")
        .with_columns(
            share=pl.col("was") / pl.col("healthy") - 1,
            of_work=(pl.col("was") - pl.col("healthy")) / work.busiest_ns,
        )
        .filter(pl.col("steps") > 0, pl.col("share") > 0)
        .join(_beside(typical), on="rank", how="left")
        .sort("share", "rank", descending=[True, False])
        .select("rank", "share", "steps", "error", "of_work", "alone", "passing")
    )
    return [
        SlowRank(
            rank,
            slow_share=share,
            steps=steps,
            of=work.of,
            task=work.shown[rank],
            error=error,
            of_work=of_work,
            mixed=work.mixed and not alone,
            passing_share=passing,
        )
        for rank, share, steps, error, of_work, alone, passing in found.iter_rows()
    ]


def _beside(typical: Typical) -> pl.DataFrame:
    """Return rank, alone (whether no other does what it does) and `SlowRank.passing_share`."""
    as_a_rule = pl.col("own_rank") > pl.col("healthy_ns") + 1
    ranks = (
        typical.places.with_columns(alone=pl.len().over("kind", "stage") == 1)
        .group_by(pl.col("rank").cast(pl.Int64))
        .agg(pl.col("alone").all(), slow=as_a_rule.any())
    )
    times = typical.medians.passing.group_by(pl.col("rank").cast(pl.Int64)).agg(
        passing=pl.col("times").mean() - 1
    )
    passing = pl.when("alone", ~pl.col("slow")).then("passing")
    return ranks.join(times, on="rank", how="left").select("rank", "alone", passing)
