"""Consecutive steps of a run whose ranks do not wait for each other between them.

Where all ranks wait for each other at the end of a step, as for the norm of all gradients, a step is
played by itself: every device is free when it begins. Elsewhere a rank begins the next step when its
own last task has ended and it has done what it does between steps (optimizer, data), while other
ranks may still be in this one. How late each is free for a step then depends on the step before.

A run shows that its ranks do not wait where one of them begins to compute or to receive for the next
step before the last task of this one has ended anywhere; and that they do where one that has ended
early could begin the next step, and does not before all have ended. Where the rank that ends last is
the only one of which it is known when it could begin, a run shows neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
import polars as pl

from bubblescope.analysis.idle.measured_run import as_replay
from bubblescope.model.kinds import COMPUTE_KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.analysis.idle.measured_run import MeasuredRun, Replay
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline

_Played = TypeVar("_Played")

_BEGIN: Final = [kind.value for kind in (*COMPUTE_KINDS, Kind.RECV_FORWARD, Kind.RECV_BACKWARD)]
"""Kinds of tasks that show that a rank has begun a step."""

_EARLY: Final = 0.01
"""Share of a step by which the next is begun before its end where ranks do not wait for each other.

As `bubblescope.analysis.pipeline_phase.pipelines` has it for replicas.
"""

_ROUNDS: Final = 32
"""Steps that may be played before one until it begins as after any number of them."""


class Chain(NamedTuple):
    """What follows what in a run whose ranks do not wait for each other between steps.

    A run has s steps, those of separate pipelines counted apart, as `MeasuredRun.steps`; g groups of
    tasks, one for each rank in each of them.

    Attributes:
        before: The step before each in the same pipeline, s long; -1 before a first one.
        rest_ns: How long after its last task each rank could begin each step, at the earliest known:
            ranks x s.
        group_before: The group of the same rank in the step before, g long; -1 for none.
        late_ns: How long the first task of each group starts after its device was free and its
            results were there, g long.
        sure: Whether the run shows that ranks do not wait; if not, it shows nothing.
    """

    before: Ints
    rest_ns: Ints
    group_before: Ints
    late_ns: Ints
    sure: bool

    @classmethod
    def of(cls, run: MeasuredRun, timeline: Timeline) -> Chain | None:
        """Return what follows what; None if ranks wait for each other, or no step follows another.

        How soon a rank could have begun is known where its first task needs no result, and where it
        was waiting to receive that before it was made. The latter may have waited for others between
        the steps as well, and of other ranks it is only known when they began; so of both it is no
        longer than usual.
        """
        before = _before(run)
        begins = run.first[:-1]
        rank, step = run.rank[begins], run.step[begins]
        at = np.full((int(run.rank.max()) + 1, len(run.steps)), -1)
        at[rank, step] = np.arange(len(begins))
        group_before = np.where(before[step] >= 0, at[rank, before[step]], -1)
        there = np.flatnonzero(group_before >= 0)
        if not len(there):
            return None
        opens = run.opens_ns[step]
        start = run.as_measured.start_ns[begins] + opens
        begun = np.minimum(_begun(run, timeline, rank, step), start)
        end = np.maximum.reduceat(run.as_measured.end_ns, begins) + opens
        consecutive = there[_consecutive(run, before)[step[there]]]
        feeder = run.feeder[begins]
        made = np.where(feeder >= 0, run.as_measured.end_ns[feeder] + opens, np.iinfo(np.int64).max)
        known = np.zeros(len(begins), bool)
        known[consecutive] = ((feeder < 0) | (begun < made))[consecutive]
        length = run.as_measured.length_ns[before[step]]
        over = run.opens_ns[before[step]] + length
        early = (over - begun) / np.maximum(length, 1)
        sure = _earliest(early[consecutive], step[consecutive]) > _EARLY
        told = known & ((over - end[group_before]) / np.maximum(length, 1) > _EARLY)
        if not sure and told.any():
            return None
        gap = np.zeros(len(begins), np.int64)
        gap[there] = np.maximum(begun[there] - end[group_before[there]], 0)
        usual = np.quantile(gap[known], 0.5, method="lower") if known.any() else 0
        own = known & (feeder < 0)
        rest = np.where(own, gap, np.minimum(gap, int(usual)))
        # When the device was free, since the step's first start; before that, at any time.
        free = np.full(len(begins), np.iinfo(np.int64).min)
        free[there] = end[group_before[there]] + rest[there] - opens[there]
        ready = np.where((feeder < 0) & (group_before >= 0), free, run.ready_ns[begins])
        late = np.maximum(run.as_measured.start_ns[begins] - np.maximum(ready, free), 0)
        table = np.zeros(at.shape, np.int64)
        table[rank, step] = rest
        return cls(before, table, group_before, late, sure)

    def replay(self, run: MeasuredRun, duration_ns: Ints) -> Replay:
        """Return the run with other durations, each step after the one before it.

        The first step of a pipeline begins as it did.

        Args:
            run: The run.
            duration_ns: How long each of its tasks takes.
        """
        begins = run.first[:-1]
        step = run.step[begins]
        rest = self.rest_ns[run.rank[begins], step]
        lag = run.lag_ns.copy()
        lag[begins] = self.late_ns
        ready = np.zeros(len(run), np.int64)
        delays = run.graph.delays(run.delay_ns)
        there = self.group_before >= 0

        def left(free: Ints) -> tuple[Ints, Ints]:
            ready[begins] = free
            end = run.graph.ends(duration_ns + lag, delays, ready)
            last = np.maximum.reduceat(end, begins)
            after = np.where(there, last[self.group_before] + rest, 0)
            opened = np.full(len(run.steps), np.iinfo(np.int64).max)
            np.minimum.at(opened, step[there], after[there])
            return np.where(there, after - opened[step], 0), end

        end = settled(left, np.zeros(len(begins), np.int64))
        return as_replay(end - duration_ns, end, run.first, run.step)

    def step_ns(self, replay: Replay) -> float:
        """Return the mean of the steps that have one before them."""
        return float(replay.length_ns[self.before >= 0].mean())


def settled(left: Callable[[Ints], tuple[Ints, _Played]], free_ns: Ints) -> _Played:
    """Play steps one after the other until nothing changes, all at once; return what was played last.

    Args:
        left: Given when devices are free for each step, since the first of them is, returns when they
            are free for the same step after that before it has been played so, and what was played.
        free_ns: When they are free at first.
    """
    for _ in range(_ROUNDS):
        then, played = left(free_ns)
        if (then == free_ns).all():
            break
        free_ns = then
    return played


def _before(run: MeasuredRun) -> Ints:
    """Return which step comes before each in its pipeline, -1 for none."""
    before = np.full(len(run.steps), -1)
    last: dict[int, int] = {}
    for index, pipeline in enumerate(run.pipeline):
        before[index] = last.get(pipeline, -1)
        last[pipeline] = index
    return before


def _consecutive(run: MeasuredRun, before: Ints) -> np.ndarray:
    """Return of which steps the one before is the one that ran before it, s long."""
    number = np.array([-1 if step is None else step for step in run.steps])
    consecutive: np.ndarray = (before >= 0) & (number[before] == number - 1)
    return consecutive


def _begun(run: MeasuredRun, timeline: Timeline, rank: Ints, step: Ints) -> Ints:
    """Return when ranks began steps, by computing or receiving, on the timeline's clock."""
    first = (
        timeline.tasks.filter(pl.col("kind").is_in(_BEGIN))
        .group_by("rank", "step")
        .agg(pl.col("start_ns").min())
    )
    wanted = pl.DataFrame({"rank": rank, "step": pl.Series(run.steps, dtype=pl.Int64).gather(step)})
    first = first.with_columns(pl.col("rank", "step").cast(pl.Int64))
    found = wanted.join(first, on=["rank", "step"], how="left", maintain_order="left")
    begun: Ints = found["start_ns"].fill_null(np.iinfo(np.int64).max).to_numpy()
    return begun


def _earliest(early: np.ndarray, step: Ints) -> float:
    """Return by which share of a step the next is begun before its end, the median of all."""
    if not len(step):
        return 0.0
    most = np.full(int(step.max()) + 1, -np.inf)
    np.maximum.at(most, step, early)
    return float(np.median(most[np.unique(step)]))
