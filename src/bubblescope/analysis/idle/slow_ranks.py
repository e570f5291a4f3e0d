"""The rank that holds up a run most by being slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.analysis.idle.causes import Cause

if TYPE_CHECKING:
    from bubblescope.analysis.idle.ledger import Ledger

LEAST: Final = 0.01
"""Share of the idle time below which a cause is not spoken of."""

_SLOW: Final = 0.05
"""By how much slower a rank must be to be spoken of whatever its share of the idle time."""


class SlowRank(NamedTuple):
    """A rank that is slower than a healthy one.

    Attributes:
        rank: Which.
        slow_share: By how much longer its tasks are than on a healthy rank at its stage.
        steps: Number of steps in which it was.
        of: Number of steps that there are.
        task: Row in the timeline of the first task that was longer; null if there is none.
    """

    rank: int
    slow_share: float
    steps: int
    of: int
    task: int | None

    @property
    def stands_out(self) -> bool:
        """Whether it is a twentieth slower in most steps, which chance does not make it."""
        return self.slow_share >= _SLOW and 2 * self.steps > self.of

    def __str__(self) -> str:
        slower = f"{100 * self.slow_share:.0f} % slower"
        return f"rank {self.rank} is {slower} than a healthy rank at its stage"


def notable(ledger: Ledger) -> SlowRank | None:
    """Return the slowest rank of a run if it is worth a word; else None.

    It is if slow ranks make a hundredth of the idle time, or if it is a twentieth slower in most steps:
    among a thousand ranks, what one does to its own pipeline is a small share of all.
    """
    found = slowest(ledger)
    if found is None:
        return None
    totals = dict(ledger.totals().select("cause", "share").iter_rows())
    return found if found.stands_out or totals[Cause.SLOW_RANK.value] >= LEAST else None


def slowest(ledger: Ledger) -> SlowRank | None:
    """Return the slowest rank of a run; None if no idle time is because of slow ranks."""
    if not (ledger.table["cause"] == Cause.SLOW_RANK.value).any():
        return None
    run, length = ledger.counterfactuals.run, ledger.counterfactuals.lengths
    slow = pl.col("was") > pl.col("healthy")
    tasks = pl.DataFrame(
        {
            "rank": run.rank,
            "step": run.step,
            "was": length.rank_ns,
            "healthy": length.stage_ns,
            "task": run.task,
        }
    )
    top = (
        tasks.group_by("rank")
        .agg(
            times=pl.col("was").sum() / pl.col("healthy").sum(),
            steps=pl.col("step").filter(slow).n_unique(),
            task=pl.col("task").filter(slow).first(),
        )
        .sort("times", "rank", descending=[True, False])
        .row(0, named=True)
    )
    return SlowRank(top["rank"], top["times"] - 1, top["steps"], len(set(run.steps)), top["task"])
