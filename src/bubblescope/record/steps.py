"""What one step was on one rank, as soon as it is over."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from bubblescope.vocabulary import COMPUTE_KINDS, Lane

__all__ = ["StepTimes", "step_times"]


class StepTimes(NamedTuple):
    """What one step was on one rank.

    Attributes:
        step: Its number.
        start_ns: When its first forward or backward began, on the host's monotonic clock.
        end_ns: When its last one ended.
        busy_ns: Time in between in which one ran.
        kinds_ns: Time of each kind of task.
    """

    step: int
    start_ns: int
    end_ns: int
    busy_ns: int
    kinds_ns: dict[str, int]

    @property
    def span_ns(self) -> int:
        """From its first forward or backward to its last."""
        return self.end_ns - self.start_ns

    @property
    def bubble(self) -> float:
        """Share of that in which none ran: the rank's bubble rate named `span`."""
        return 1 - self.busy_ns / self.span_ns if self.span_ns else 0.0


def step_times(step: int, rows: pl.DataFrame) -> StepTimes | None:
    """Return what a step was, from its rows of a recording; None if it has no forward or backward."""
    own = rows.filter(pl.col("step") == step)
    kinds = dict(
        own.group_by("kind").agg((pl.col("end_ns") - pl.col("start_ns")).sum()).iter_rows()
    )
    phase = own.filter(
        pl.col("lane") == Lane.COMPUTE.value,
        pl.col("kind").is_in([kind.value for kind in COMPUTE_KINDS]),
    ).sort("start_ns")
    if phase.is_empty():
        return None
    first = phase["start_ns"][0]
    reached = pl.col("end_ns").cum_max().shift(1).fill_null(first)
    busy, last = phase.select(
        (pl.col("end_ns") - pl.max_horizontal("start_ns", reached)).clip(lower_bound=0).sum(),
        last=pl.col("end_ns").max(),
    ).row(0)
    return StepTimes(step, first, last, busy, kinds)
