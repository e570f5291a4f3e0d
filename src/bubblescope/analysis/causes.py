"""The causes of idle time, and what of a measured run each of them made.

A run is what its schedule makes inevitable, plus what each cause adds: lengths that differ, results
that are on their way, tasks that start late. Without a cause, the run is replayed without what that
cause added (`Worlds.played`); with none of them, what idle time is left is inherent to the schedule.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.lengths import lengths
from bubblescope.analysis.measured import clocks
from bubblescope.errors import ScheduleError
from bubblescope.replay import Edges, Graph
from bubblescope.vocabulary import Kind

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from bubblescope.analysis.measured import Measured, Played
    from bubblescope.analysis.recognition import Recognition
    from bubblescope.schedules.plan import Ints
    from bubblescope.timeline import Timeline

__all__ = ["ADDED", "MEANINGS", "Cause", "Worlds"]


class Cause(str, Enum):
    """Why a device was idle."""

    WARM_UP = "warm-up"
    STEADY = "steady"
    COOL_DOWN = "cool-down"
    IMBALANCE = "stage imbalance"
    SLOW_RANK = "slow rank"
    VARIATION = "micro-batch variation"
    ORDER = "order departure"
    TRANSFER = "exposed transfer"
    PAUSE = "host pause"
    LAUNCH = "host launch"
    SYNC = "synchronisation"
    UNEXPLAINED = "unexplained"
    CLOCK = "clock uncertainty"


MEANINGS: Final = {
    Cause.WARM_UP: "inherent to the schedule, before a rank's first backward",
    Cause.STEADY: "inherent to the schedule, between its first backward and last forward",
    Cause.COOL_DOWN: "inherent to the schedule, after its last forward",
    Cause.IMBALANCE: "stages do not cost the same",
    Cause.SLOW_RANK: "a rank is slower than others at the same stage, or than in other steps",
    Cause.VARIATION: "micro-batches do not cost the same",
    Cause.ORDER: "tasks ran in another order than the schedule's",
    Cause.TRANSFER: "results on their way between ranks",
    Cause.PAUSE: "garbage collection, data loading or a checkpoint on the host",
    Cause.LAUNCH: "the host launched a task after it could have run",
    Cause.SYNC: "collectives and the optimizer",
    Cause.UNEXPLAINED: "a task could have run and did not; the trace does not say why",
    Cause.CLOCK: "within what clocks of different hosts may be off",
}
"""One line for each cause, to be printed beside it."""

ADDED: Final = tuple(Cause)[3:]
"""The causes that add to what is inherent, in the order in which they are held responsible."""

_PAUSES: Final = [Kind.GC.value, Kind.DATA.value]
_SYNCS: Final = [Kind.COLLECTIVE.value, Kind.OPTIMIZER.value]


class Worlds:
    """A measured run, and what it would have been without some of the causes.

    Args:
        run: The run.
        timeline: What it was made from.
        found: The schedule that it followed; its order is kept where `Cause.ORDER` is left out.

    Attributes:
        run: The run.
        lengths: How long its tasks would be with some of what makes them differ.
        present: The causes that made any difference to it.
    """

    def __init__(self, run: Measured, timeline: Timeline, found: Recognition | None) -> None:
        self.run = run
        parts = self.lengths = lengths(run)
        self._longer = {
            Cause.IMBALANCE: parts.stage_ns - parts.even_ns,
            Cause.SLOW_RANK: parts.rank_ns - parts.stage_ns,
            Cause.VARIATION: parts.own_ns - parts.rank_ns,
        }
        across = run.delay_ns[run.within :]
        doubt = _doubt(run, timeline)
        self._kept = np.minimum(run.delay_ns, 0)
        sure = np.maximum(across - doubt, 0)
        self._sent = {
            Cause.TRANSFER: sure,
            Cause.CLOCK: np.maximum(across, 0) - sure,
        }
        self._later = _lags(run, timeline)
        self._planned = _planned(run, found)
        self.present = tuple(cause for cause in ADDED if self._matters(cause))

    def played(self, causes: AbstractSet[Cause]) -> Played:
        """Return the run with only these causes."""
        run = self.run
        if set(causes) == set(self.present):
            return run.played
        return self.replayed(causes)

    def replayed(self, causes: AbstractSet[Cause]) -> Played:
        """Return the replay of the run with only these causes, also where these are all of them."""
        run = self.run
        duration = self.lengths.even_ns.copy()
        duration += sum(self._longer[cause] for cause in causes & self._longer.keys())
        lag = np.zeros(len(run), np.int64)
        lag += sum(self._later[cause] for cause in causes & self._later.keys())
        delay = self._kept.copy()
        delay[run.within :] += sum(self._sent[cause] for cause in causes & self._sent.keys())
        graph = None
        if self._planned and Cause.ORDER not in causes:
            graph = self._planned.graph
            delay[: run.within] = self._planned.overlap_ns
        return run.replay(np.maximum(duration, 0), lag, delay, graph)

    def late_ns(self, cause: Cause) -> Ints:
        """Return how late a cause made each task start itself, n long; 0 for one that does not."""
        return self._later.get(cause, np.zeros(len(self.run), np.int64))

    def _matters(self, cause: Cause) -> bool:
        if cause is Cause.ORDER:
            return self._planned is not None
        added = (self._longer | self._sent | self._later)[cause]
        return bool(added.any()) or (cause is Cause.CLOCK and bool(self.run.early_ns.any()))


class _Planned(NamedTuple):
    graph: Graph
    overlap_ns: Ints


def _planned(run: Measured, found: Recognition | None) -> _Planned | None:
    """Return the run's tasks in the order of their schedule, where that is another."""
    if found is None or found.plan is None or not found.departures:
        return None
    position = np.full(int(run.task.max()) + 1, np.iinfo(np.int64).max)
    there = found.position >= 0
    np.minimum.at(position, found.observed.task[there], found.position[there])
    place = pl.DataFrame({"group": run.group, "at": position[run.task]}).select(
        # What the plan does not have (recomputation) goes with what follows it.
        pl.when(pl.col("at") < np.iinfo(np.int64).max)
        .then("at")
        .backward_fill()
        .forward_fill()
        .over("group")
        .fill_null(0)
    )
    order = np.lexsort((np.arange(len(run)), place.to_series().to_numpy(), run.group))
    same = run.group[order[1:]] == run.group[order[:-1]]
    before, after = order[:-1][same], order[1:][same]
    across = (edge[run.within :] for edge in run.graph.edges)
    ahead, behind = (np.concatenate(pair) for pair in zip((before, after), across, strict=True))
    overlap = np.zeros(len(run), np.int64)
    overlap[run.graph.edges.target[: run.within]] = run.delay_ns[: run.within]
    try:
        graph = Graph(len(run), Edges(ahead, behind))
    except ScheduleError:  # so much is missing that the plan's order cannot be kept
        return None
    return _Planned(graph, np.where(after - before == 1, overlap[after], 0))


def _doubt(run: Measured, timeline: Timeline) -> Ints:
    """Return how much of each result's way, from stage to stage, clocks may have made up.

    It is what the two clocks may be off, and what they must be off because a result the other way was
    used before it was there.
    """
    clock = clocks(timeline)
    error = np.zeros(len(clock), np.int64)
    known = timeline.ranks.select("rank", pl.col("clock_error_ns").fill_null(0))
    error[known["rank"].to_numpy()] = known["clock_error_ns"].to_numpy()
    source, target = (run.rank[edge[run.within :]] for edge in run.graph.edges)
    one, other = clock[source], clock[target]
    wrong = np.zeros((int(clock.max(initial=0)) + 1,) * 2, np.int64)
    np.maximum.at(wrong, (one, other), -run.early_ns)
    doubt: Ints = np.where(one == other, 0, error[source] + error[target] + wrong[other, one])
    return doubt


def _lags(run: Measured, timeline: Timeline) -> dict[Cause, Ints]:
    """Take apart how late tasks started, by what their rank was doing meanwhile."""
    opens = run.opens_ns[run.step]
    ready, start = run.ready_ns + opens, run.played.start_ns + opens
    left = run.lag_ns
    lags = {}
    for cause, kinds in ((Cause.PAUSE, _PAUSES), (Cause.SYNC, _SYNCS)):
        tasks = timeline.tasks.filter(pl.col("kind").is_in(kinds))
        lags[cause] = np.minimum(_covered(tasks, run.rank, ready, start), left)
        left = left - lags[cause]
    launched = timeline.tasks["host_start_ns"].fill_null(np.iinfo(np.int64).min)
    late = launched.to_numpy()[run.task] > ready
    lags[Cause.LAUNCH] = np.where(late, left, 0)
    lags[Cause.UNEXPLAINED] = left - lags[Cause.LAUNCH]
    return lags


def _covered(tasks: pl.DataFrame, rank: Ints, begin_ns: Ints, end_ns: Ints) -> Ints:
    """Return for how much of each interval a rank was at one of the tasks."""
    if not len(tasks):
        return np.zeros(len(rank), np.int64)
    tasks = tasks.select("rank", "start_ns", "end_ns").sort("rank", "start_ns")
    zero = min(int(begin_ns.min()), int(tasks["start_ns"].min() or 0))  # type: ignore[arg-type]
    far = max(int(end_ns.max()), int(tasks["end_ns"].max() or 0)) - zero + 1  # type: ignore[arg-type]
    # Ranks one after the other on one axis.
    shift = tasks["rank"].to_numpy().astype(np.int64) * far - zero
    start, end = (tasks[name].to_numpy() + shift for name in ("start_ns", "end_ns"))
    reached = np.maximum.accumulate(end)
    start = np.maximum(start, np.concatenate([[0], reached[:-1]]))
    end = np.maximum(end, start)
    before = np.concatenate([[0], np.cumsum(end - start)])

    def until(moment: Ints) -> Ints:
        at = np.searchsorted(start, moment, side="right")
        over = np.where(at > 0, np.maximum(end[at - 1] - moment, 0), 0)
        return before[at] - over

    own = rank * far - zero
    covered: Ints = until(np.maximum(end_ns, begin_ns) + own) - until(begin_ns + own)
    return covered
