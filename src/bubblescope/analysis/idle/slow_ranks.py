"""The ranks that are slow: one answer for all who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.analysis.idle.chance import rank_errors
from bubblescope.analysis.idle.task_lengths import Durations, lengths
from bubblescope.analysis.phase import compared

if TYPE_CHECKING:
    from bubblescope.analysis.idle.measured_run import MeasuredRun
    from bubblescope.analysis.idle.task_lengths import Lengths
    from bubblescope.model.timeline import Timeline

_SLOW: Final = 0.05
"""By how much slower a rank must be to be spoken of whatever its share of the idle time."""

_SIGMAS: Final = 6.0
"""Standard errors that it must be slower by, which none of a thousand ranks is by chance."""

_OF_WORK: Final = 0.005
"""What it must take longer in a step, of what the busiest rank works in one: no step is shorter."""


class SlowRank(NamedTuple):
    """A rank that is slower than a healthy one.

    Attributes:
        rank: Which.
        slow_share: By how much longer its tasks are than on a healthy rank at its stage.
        steps: Number of steps in which it was.
        of: Number of steps that there are.
        task: Row in the timeline of the first task that was longer.
        error: By how much it may seem slower than it is, as `rank_errors` has it.
        of_work: What its tasks take longer in a step, of what the busiest rank works in one.
    """

    rank: int
    slow_share: float
    steps: int
    of: int
    task: int
    error: float
    of_work: float

    @property
    def odd(self) -> bool:
        """Whether it is a twentieth slower, not by chance, and by enough to make steps longer."""
        enough = self.slow_share >= _SLOW and self.of_work >= _OF_WORK
        return enough and self.slow_share > _SIGMAS * self.error

    @property
    def stands_out(self) -> bool:
        """Whether it is odd, and slower in most steps."""
        return self.odd and 2 * self.steps > self.of

    def __str__(self) -> str:
        slower = f"{100 * self.slow_share:.0f} % slower"
        return f"rank {self.rank} is {slower} than a healthy rank at its stage"


def standing_out(timeline: Timeline) -> SlowRank | None:
    """Return the slowest rank of a run if it stands out, whether or not the ranks share a clock."""
    tasks = compared(timeline, "task", "rank", "step", "kind", "stage", "start_ns", "end_ns").sort(
        "step", "rank", "start_ns"
    )
    if not tasks.height:
        return None
    run = Durations.of(tasks)
    found = slow_ranks(run, lengths(run))
    return found[0] if found and found[0].stands_out else None


def slow_ranks(run: Durations | MeasuredRun, parts: Lengths) -> list[SlowRank]:
    """Return the ranks that are slower than healthy ones at their stage, slowest first.

    Args:
        run: The tasks.
        parts: Their lengths, taken apart.
    """
    slow = pl.col("was") > pl.col("healthy")
    tasks = pl.DataFrame(
        {
            "rank": run.rank,
            "step": run.step,
            "kind": run.kind,
            "stage": run.stage,
            "was": parts.rank_ns,
            "healthy": parts.stage_ns,
            "own": parts.own_ns,
            "task": run.task,
        }
    )
    work = tasks.group_by("rank", "step").agg(pl.col("own").sum())
    busiest = work.group_by("step").agg(pl.col("own").max())["own"].sum()
    lost = pl.col("was") - pl.col("healthy")
    found = (
        tasks.group_by("rank")
        .agg(
            share=pl.col("was").sum() / pl.col("healthy").sum() - 1,
            steps=pl.col("step").filter(slow).n_unique(),
            of=pl.lit(len(set(run.steps))),
            task=pl.col("task").filter(slow).min(),
            of_work=lost.sum() / busiest,
        )
        .sort("rank")
        .with_columns(error=rank_errors(tasks))
        .drop_nulls("task")
        .filter(pl.col("share") > 0)
        .sort("share", "rank", descending=[True, False])
        .select("rank", "share", "steps", "of", "task", "error", "of_work")
    )
    return [SlowRank(*row) for row in found.iter_rows()]
