"""How long steps take: each by itself, and from one to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.arrays import in_blocks
from bubblescope.model.extents import extents
from bubblescope.model.kinds import Lane
from bubblescope.model.provenance import ONE_STEP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bubblescope.analysis.rates import BubbleRates
    from bubblescope.model.provenance import Run
    from bubblescope.model.timeline import Timeline


def step_windows(timeline: Timeline) -> pl.DataFrame:
    """Return the steps of runs of which tasks alone are known: each to the first task of the next.

    Returns:
        Frame with rank, step, start_ns, end_ns and open: whether no step follows on that rank, so that
        it ends with its last task.
    """
    return closed(step_edges(timeline.tasks))


def step_edges(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return rank, step, start_ns and end_ns of steps: their first and last task on devices."""
    wanted = pl.col("step").is_not_null(), pl.col("lane") == Lane.COMPUTE.value
    parts = [
        extents(block.filter(*wanted), "rank", "step")
        for block in in_blocks(tasks.select("rank", "step", "lane", "start_ns", "end_ns"))
    ]
    return extents(pl.concat(parts), "rank", "step")


def closed(edges: pl.DataFrame) -> pl.DataFrame:
    """Return the frame of `step_windows`.

    Args:
        edges: As `step_edges` returns it, of all steps.
    """
    following = pl.col("start_ns").shift(-1).over("rank")
    return edges.sort("rank", "start_ns").with_columns(
        end_ns=pl.coalesce(following, "end_ns"), open=following.is_null()
    )


def is_one_step(run: Run) -> bool:
    """Say whether all of a run was taken as one step, for want of a sign of any: it may be several."""
    return run.inferred.get("step") == ONE_STEP


def whole(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that count wherever it is said how long a step is, or what is in it.

    They are those whose end was recorded. Of a run without such, all are, for want of better.

    Args:
        steps: Frame with open, as `Timeline.step_times`.
    """
    ended = steps.filter(~pl.col("open").fill_null(value=False))
    return ended if ended.height else steps


def phase_lengths(bubbles: BubbleRates) -> dict[int | None, int | None]:
    """Return how long each step takes by itself: its pipeline phase, first start to last end anywhere.

    Where pipelines run their steps each for itself, it is the mean over the ranks. None where the ranks
    share no clock, or only some of them have the step.
    """
    lengths = bubbles.table.group_by("step").agg(pl.col("makespan_ns").mean())
    return {step: None if ns is None else round(ns) for step, ns in lengths.iter_rows()}


def to_next(timeline: Timeline) -> dict[int, int]:
    """Return how long it takes from each step to the next: from start to start, the mean over ranks.

    The last step is left out, and those that the next one by number does not follow.
    """
    return nexts(step_windows(timeline))


def nexts(windows: pl.DataFrame) -> dict[int, int]:
    """Return what `to_next` does.

    Args:
        windows: As `step_windows` returns it.
    """
    followed = windows.with_columns(
        follows=pl.col("step").shift(-1).over("rank") == pl.col("step") + 1
    )
    lengths = (pl.col("end_ns") - pl.col("start_ns")).sum()
    sums = followed.filter("follows").group_by("step").agg(ns=lengths, ranks=pl.len()).sort("step")
    return {step: round(ns / ranks) for step, ns, ranks in sums.iter_rows()}


def steady_ns(timeline: Timeline) -> int | None:
    """Return how long a step takes in the steady state: the mean of `to_next` over the later half.

    The first steps fill the pipeline. None of a run of one step.
    """
    lengths = list(to_next(timeline).values())
    later = lengths[len(lengths) // 2 :]
    return round(sum(later) / len(later)) if later else None


_WARMING: Final = 2
"""How many times as long as the others a first step takes that is not like them."""


class WarmUp(msgspec.Struct, frozen=True):
    """A first step that takes much longer than the others, as one that loads and compiles does.

    Attributes:
        step: Its number.
        length_ns: How long it takes.
        median_ns: How long the others take.
    """

    step: int
    length_ns: int
    median_ns: int

    @property
    def factor(self) -> float:
        """How many times as long as the others it takes."""
        return self.length_ns / self.median_ns


def warm_up(lengths: Mapping[int, int]) -> WarmUp | None:
    """Return the first step if it is much longer than the others, of which there are two at least.

    Args:
        lengths: How long each step takes whose end is known.
    """
    if len(lengths) <= _WARMING:
        return None
    first = min(lengths)
    others = round(np.median([length for step, length in lengths.items() if step != first]))
    if not others or lengths[first] < _WARMING * others:
        return None
    return WarmUp(first, lengths[first], others)
