"""A measured run, and what it would have been without some of the causes of its idle time.

A run is what its schedule makes inevitable, plus what each cause adds: lengths that differ, results
that are on their way, tasks that start late. Without a cause, the run is replayed without what that
cause added; with none of them, what idle time is left is inherent to the schedule.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.between_rounds import closed, closed_stretches, rounds
from bubblescope.analysis.idle.causes import ADDED, Cause
from bubblescope.analysis.idle.measured_run import Waits, clocks, in_circles, measured_run
from bubblescope.analysis.idle.rank_waits import rank_waits
from bubblescope.analysis.idle.slow_ranks import Work, slow_ranks
from bubblescope.analysis.idle.task_lengths import Lengths, Medians, Typical, lengths
from bubblescope.analysis.idle.whole_run_facts import early_between
from bubblescope.analysis.outside_passes import AWAITS_SENDS, ON_HOST, by_name, names_of
from bubblescope.model import intervals
from bubblescope.model.clock_errors import MAX_DRIFT, clock_errors
from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind
from bubblescope.model.memory import give_back
from bubblescope.model.ordering import stretches_of
from bubblescope.model.timeline_tables import PIPELINE
from bubblescope.model.timing import HOST
from bubblescope.schedules.parts import Parts
from bubblescope.schedules.replay import Edges

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray
    from typing_extensions import Self

    from bubblescope.analysis.idle.measured_run import MeasuredRun, Replay
    from bubblescope.analysis.idle.slow_ranks import SlowRank
    from bubblescope.analysis.idle.whole_run_facts import Known
    from bubblescope.analysis.schedule.recognise import Recognition
    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.replay import Graph

_INTERVAL: Final = ("rank", "start_ns", "end_ns")
_SENDS: Final = [Kind.SEND_FORWARD.value, Kind.SEND_BACKWARD.value]
_SYNCS: Final = [Kind.COLLECTIVE.value, Kind.OPTIMIZER.value]


class Counterfactuals(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A measured run, and what it would have been without some of the causes.

    The run has n tasks, and e edges from stage to stage.

    Attributes:
        run: The run.
        timeline: What it was measured in.
        typical: What tasks take, as a rule.
        lengths: How long its tasks would be with some of what makes them differ.
        present: The causes that made any difference to it.
        between: What time between its rounds was taken out, as
            `analysis.between_rounds.between_rounds` returns it.
        sent_ns: By how much longer results from stage to stage were on their way by a cause, e long.
        later_ns: How late tasks started by a cause, n long; only causes that made any.
        pauses_ns: How long hosts paused in all, by what they did.
        planned: The tasks in the order of their schedule, where that is another.
        unseen: Whether ranks may have waited for others that left no trace, or of which the traces do
            not tell what they passed on: that is unexplained then, and nobody knows what it costs.
    """

    run: MeasuredRun
    timeline: Timeline
    typical: Typical
    lengths: Lengths
    present: tuple[Cause, ...]
    between: pl.DataFrame
    sent_ns: dict[Cause, Ints]
    later_ns: dict[Cause, Ints]
    pauses_ns: dict[str, int]
    planned: _Planned | None
    unseen: bool

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        recognition: Recognition | None,
        known: Known | None = None,
        like: Sequence[Graph] = (),
    ) -> Self | None:
        """Measure a run; None if it has no pipeline tasks, or its ranks share no clock.

        Args:
            timeline: The run.
            recognition: The schedule that it followed; its order is kept where `Cause.ORDER` is left
                out.
            known: As of `measured_run`.
            like: Likewise.
        """
        if not timeline.run.common_clock:
            return None
        shorter = closed(timeline)
        run = measured_run(shorter, known, like)
        if known is None:  # of a part, what it leaves is used again for the next
            give_back()
        if run is None:
            return None
        typical = known.typical if known else Typical.of(Medians.of(run))
        parts = lengths(run, typical)
        sent = _sent(run, shorter, None if known is None else known.ways.early)
        between = rounds(timeline).between
        between = between.filter(pl.col("step").is_in(run.steps, nulls_equal=True))
        waits = closed_stretches(rank_waits(timeline), timeline)
        unseen = _fed_unseen(run, shorter, recognition)
        pauses, later = _lags(run, shorter, waits, unseen)
        planned = _planned(run, recognition)
        made = {
            Cause.ORDER: planned is not None,
            Cause.CLOCK: bool(run.early_ns.any()),
            **{cause: not np.array_equal(*both) for cause, both in parts.steps().items()},
        }
        there = {cause for cause, any_made in made.items() if any_made}
        there |= later.keys() | {cause for cause, ns in sent.items() if ns.any()}
        present = tuple(cause for cause in ADDED if cause in there)
        if known is None:
            give_back()
        return cls(
            run,
            timeline,
            typical,
            parts,
            present,
            between,
            sent,
            later,
            pauses,
            planned,
            bool(unseen.any()),
        )

    def parts(self) -> Iterator[Self]:
        """Yield the run part by part, some steps at a time, each with its tasks numbered from 0."""
        if len(self.run.graph.operations) == 1:
            yield self
            return
        for index, tasks in enumerate(self.run.graph.operations):
            links = self.run.links_of(index)
            ends = self.run.step[[tasks.start, tasks.stop - 1]].tolist()
            steps = slice(ends[0], ends[1] + 1)
            yield msgspec.structs.replace(
                self,
                run=self.run.part(index),
                lengths=Lengths(*(ns[tasks] for ns in self.lengths)),
                sent_ns={cause: ns[links] for cause, ns in self.sent_ns.items()},
                later_ns={cause: ns[tasks] for cause, ns in self.later_ns.items()},
                planned=self.planned and self.planned.part(index, steps),
            )

    def only(self, steps: Collection[int | None]) -> Self:
        """Return some of its steps by themselves, in which all of `present` are asked for."""
        wanted = np.array([step in steps for step in self.run.steps])
        if wanted.all():
            return self
        run, tasks, edges = self.run.only(wanted)
        links = edges[self.run.links]
        planned = None
        if self.planned is not None:
            graph = self.planned.graph
            place = np.cumsum(tasks) - 1
            kept = tasks[graph.edges.target]
            local = Edges(*(place[end[kept]] for end in graph.edges))
            within = kept[: len(self.planned.overlap_ns)]
            planned = _Planned(
                Parts(local, run.graph.bounds),
                self.planned.overlap_ns[within],
                self.planned.steps[wanted],
            )
        return msgspec.structs.replace(
            self,
            run=run,
            lengths=Lengths(*(ns[tasks] for ns in self.lengths)),
            sent_ns={cause: ns[links] for cause, ns in self.sent_ns.items()},
            later_ns={cause: ns[tasks] for cause, ns in self.later_ns.items()},
            planned=planned,
        )

    def made_by(self, cause: Cause) -> Mask:
        """Say in which steps a cause made any difference, s long."""
        run = self.run
        if cause is Cause.ORDER:
            return np.zeros(len(run.steps), bool) if self.planned is None else self.planned.steps
        if cause in (taken := self.lengths.steps()):
            return _in_steps(run.step, len(run.steps), np.not_equal(*taken[cause]))
        made = _in_steps(run.step, len(run.steps), self.late_ns(cause) != 0)
        target = run.graph.edges.target[run.links]
        if cause in self.sent_ns:
            made |= _in_steps(run.step[target], len(run.steps), self.sent_ns[cause] != 0)
        if cause is Cause.CLOCK:
            made |= _in_steps(run.step[target], len(run.steps), run.early_ns != 0)
        return made

    def with_causes(self, causes: AbstractSet[Cause]) -> Replay:
        """Return the run with only these causes."""
        run = self.run
        if set(causes) == set(self.present):
            return run.as_measured
        return self.replay_with(causes)

    def step_ns(self, causes: AbstractSet[Cause]) -> int:
        """Return how long a step of the run would be with only these causes, the mean."""
        run = self.run
        if set(causes) == set(self.present):
            return run.as_measured.step_ns
        lengths_ns = self.lengths_with(causes)
        return mean_ns(int(lengths_ns.sum()), len(lengths_ns))

    @cached_property
    def slow_ranks(self) -> list[SlowRank]:
        """The ranks that are slower than healthy ones at their stage, slowest first."""
        work = Work.of_steps(self.run, self.lengths, self.timeline)
        return slow_ranks(work, self.typical)

    def replay_with(
        self,
        causes: AbstractSet[Cause],
        shorter_ns: Ints | None = None,
        times: NDArray[np.float64] | None = None,
    ) -> Replay:
        """Return the replay of the run with only these causes, also where these are all of them.

        Args:
            causes: Which.
            shorter_ns: By how much each task is shorter as well, n long.
            times: How many times as long each then is, n long.
        """
        replay = self.run.replay(*self._altered(causes, shorter_ns, times))
        if shorter_ns is None and times is None:
            self._known_lengths[frozenset(causes)] = replay.length_ns
        return replay

    def lengths_with(self, causes: AbstractSet[Cause]) -> Ints:
        """Return how long each step of `replay_with` is, s long."""
        some, known = frozenset(causes), self._known_lengths
        if some not in known:
            known[some] = self.run.lengths(*self._altered(some))
        return known[some]

    @cached_property
    def _known_lengths(self) -> dict[frozenset[Cause], Ints]:
        """What `lengths_with` has returned: several questions ask for the same."""
        return {}

    def _altered(
        self,
        causes: AbstractSet[Cause],
        shorter_ns: Ints | None = None,
        times: NDArray[np.float64] | None = None,
    ) -> tuple[Ints, Ints, Waits]:
        """Return durations, lags and what is waited for, as `MeasuredRun.replay` takes them."""
        duration = self.lengths.even_ns.copy()
        for cause, (without_ns, with_ns) in self.lengths.steps().items():
            if cause in causes:
                duration += with_ns
                duration -= without_ns
        if shorter_ns is not None:
            duration -= shorter_ns
        if times is not None:
            duration = np.round(duration * times).astype(np.int64)
        lag = np.zeros(len(self.run), np.int64)
        for cause in causes & self.later_ns.keys():
            lag += self.later_ns[cause]
        return np.maximum(duration, 0, out=duration), lag, self._waits(causes)

    def _waits(self, causes: AbstractSet[Cause]) -> Waits:
        """Return what is waited for with only these causes; the same where they differ in others."""
        sent = frozenset(causes & self.sent_ns.keys())
        planned = None if Cause.ORDER in causes else self.planned
        key, known = (sent, planned is None), self._known_waits
        if key not in known:
            run = self.run
            delay = np.minimum(run.delay_ns, 0)
            for cause in sent:
                delay[run.links] += self.sent_ns[cause]
            if planned is not None:
                delay[: run.within] = planned.overlap_ns
            graph = run.graph if planned is None else planned.graph
            known[key] = Waits.of(graph, delay)
        return known[key]

    @cached_property
    def _known_waits(self) -> dict[tuple[frozenset[Cause], bool], Waits]:
        """What `_waits` has returned."""
        return {}

    def late_ns(self, cause: Cause) -> Ints:
        """Return how late a cause made each task start itself, n long; 0 for one that does not."""
        return self.later_ns.get(cause, np.zeros(len(self.run), np.int64))


def _in_steps(step: Ints, count: int, marked: Mask) -> Mask:
    """Say which of so many steps have anything that is marked."""
    found: Mask = np.bincount(step[marked], minlength=count) > 0
    return found


def mean_ns(total_ns: int, count: int) -> int:
    """Return the mean of so many lengths of time, which are these together."""
    return round(total_ns / count)


class _Planned(msgspec.Struct, frozen=True):
    """The tasks of a run in the order of their schedule.

    Attributes:
        graph: What waits for what then; edges within groups come first, as many as the run has.
        overlap_ns: The delays of these: less than 0 where tasks of a group overlap.
        steps: Which steps can keep that order, s long; the others keep their own.
    """

    graph: Parts
    overlap_ns: Ints
    steps: Mask

    def part(self, index: int, steps: slice) -> _Planned:
        """Return one part of the run by itself, which has these steps."""
        own = self.graph.own[index]
        within = own[: np.searchsorted(own, len(self.overlap_ns))]
        return _Planned(self.graph.alone(index), self.overlap_ns[within], self.steps[steps])


def _planned(run: MeasuredRun, recognition: Recognition | None) -> _Planned | None:
    """Return the run's tasks in the order of their schedule, where that is another."""
    if recognition is None or recognition.plan is None or not recognition.departed:
        return None
    there = recognition.position >= 0
    observed = recognition.observed.task[there]  # in steps, too, that the run leaves out
    rows = 1 + max(int(run.task.max()), int(observed.max(initial=0)))
    position = np.full(rows, np.iinfo(np.int64).max)
    np.minimum.at(position, observed, recognition.position[there])
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
    kept = np.where(after - before == 1, overlap[after], 0)
    keeps = np.ones(len(run.steps), bool)
    try:
        graph = Parts(Edges(ahead, behind), run.graph.bounds)
    except ScheduleError:  # so much is missing of some steps that they cannot keep the plan's order
        begins = np.append(stretches_of(run.step), len(run))
        keeps = ~in_circles(Edges(ahead, behind), begins)
        if not keeps.any():
            return None
        stuck = ~keeps[run.step[after]]
        measured = run.graph.edges
        # Both have an edge for each task but the first of a group, here by the task that waits.
        turn, other = np.argsort(after), np.argsort(measured.target[: run.within])
        for mine, its in ((ahead, measured.source), (behind, measured.target)):
            values = mine[turn]
            mine[turn] = np.where(stuck[turn], its[other], values)
        values = kept[turn]
        kept[turn] = np.where(stuck[turn], run.delay_ns[other], values)
        graph = Parts(Edges(ahead, behind), run.graph.bounds)
    return _Planned(graph, kept, keeps)


def _sent(run: MeasuredRun, timeline: Timeline, early: pl.DataFrame | None) -> dict[Cause, Ints]:
    """Return by how much longer results were on their way by what may have made them so.

    Args:
        run: The run.
        timeline: Its timeline.
        early: As of `Ways`; as the run tells if None.
    """
    across = np.maximum(run.delay_ns[run.links], 0)
    sure = np.maximum(across - _doubt(run, timeline, early), 0)
    return {Cause.TRANSFER: sure, Cause.CLOCK: across - sure}


def _doubt(run: MeasuredRun, timeline: Timeline, early: pl.DataFrame | None = None) -> Ints:
    """Return how much of each result's way, from stage to stage, clocks may have made up.

    It is what the two clocks may be off, and what they must be off because a result the other way was
    used before it was there; but no more than passed, in that step, until any result between them was
    used, for none is under way for less than no time, and what clocks drift in a step.
    """
    clock = clocks(timeline)
    error, group = np.zeros((2, len(clock)), np.int64)
    known = clock_errors(timeline)
    error[known["rank"].to_numpy()] = known["error_ns"].to_numpy()
    group[known["rank"].to_numpy()] = known["group"].to_numpy()
    source, target = (run.rank[edge[run.links]] for edge in run.graph.edges)
    one, other = clock[source], clock[target]
    if early is None:
        early = early_between(one, other, -run.early_ns)
    doubt: Ints = error[source] + error[target] + _of_pairs(early, other, one)
    doubt[one == other] = 0
    if timeline.run.clock is not None:  # of clocks that nothing bounds, all of it may be made up
        doubt = np.where(group[source] == group[target], doubt, np.iinfo(np.int64).max)
    return np.minimum(doubt, _soonest(run, one, other))


def _of_pairs(early: pl.DataFrame, one: Ints, other: Ints) -> Ints:
    """Return `early_ns` of pairs of clocks, 0 where there is none.

    Args:
        early: As of `Ways`.
        one: Numbers of clocks.
        other: Those beside them.
    """
    ends = [early[name].to_numpy().astype(np.int64) for name in ("one", "other")]
    count = 1 + max(int(numbers.max(initial=0)) for numbers in (one, other, *ends))
    known = ends[0] * count + ends[1]
    order = np.argsort(known)
    pair = one.astype(np.int64) * count + other
    at = np.searchsorted(known[order], pair)
    found = np.append(known[order], -1)[at] == pair
    early_ns: Ints = np.where(found, np.append(early["early_ns"].to_numpy()[order], 0)[at], 0)
    return early_ns


def _soonest(run: MeasuredRun, one: Ints, other: Ints) -> Ints:
    """Return, for each result from stage to stage, how soon any of its step was used likewise.

    That is: after it was made by one clock, by the other; and how far the two may drift apart between
    the first and the last such use. Of overlapped pairs no one knows when either half ran: they tell
    nothing.

    Args:
        run: The run.
        one: The clock that each result was made by.
        other: That by which it was used.
    """
    source, target = (edge[run.links] for edge in run.graph.edges)
    wait = run.as_measured.start_ns[target] - run.as_measured.end_ns[source]
    pair = run.kind == list(Kind).index(Kind.FORWARD_BACKWARD)
    most = np.iinfo(np.int64).max
    sure = np.where(pair[source] | pair[target], most, np.maximum(wait, 0))
    used = run.as_measured.start_ns[target]
    ways = pl.DataFrame(
        {"step": run.step[target], "one": one, "other": other, "sure": sure, "used": used}
    )
    told = ways.select(
        pl.col("sure").min().over("step", "one", "other"),
        between=(pl.col("used").max() - pl.col("used").min()).over("step", "one", "other"),
    )
    soonest, between = (told[name].to_numpy() for name in ("sure", "between"))
    drift = np.ceil(2 * MAX_DRIFT * between).astype(np.int64)
    far: Ints = np.minimum(soonest, most - drift) + drift
    return far


def _fed_unseen(run: MeasuredRun, timeline: Timeline, recognition: Recognition | None) -> Mask:
    """Return which tasks may need a result of which no trace tells when it was there.

    It is of a stage that left no trace in their pipeline, or it is not known which stage they are of,
    and with it what they need. The only trace of a job of several ranks whose times are the host's
    tells nothing of that either, unless it states the stage.

    Args:
        run: The run, of n tasks.
        timeline: Its tasks.
        recognition: Its schedule, which tells how many stages there are.

    Returns:
        n long.
    """
    tasks, ranks, told = timeline.tasks, timeline.ranks, timeline.run
    forward, backward = (np.isin(run.kind, kinds) for kinds in (_FORWARDS, _BACKWARDS))
    passes = forward | backward
    one_of_several = ranks.height == 1 < (told.world or 1) and "stage" in told.inferred
    if one_of_several and ranks["timed"][0] == HOST:
        return passes
    pipeline = ranks.select("rank", pipeline=pl.struct(PIPELINE).rank("dense").cast(pl.Int64))
    seen = (
        pl.concat([tasks.select("rank", stage=name).unique() for name in ("stage", "pair_stage")])
        .drop_nulls()
        .join(pipeline, on="rank")
    )
    plan = None if recognition is None else recognition.plan
    last = max(int(seen["stage"].max() or 0), 0 if plan is None else plan.stages - 1)  # type: ignore[arg-type]
    of_rank = np.zeros(int(ranks["rank"].max() or 0) + 1, np.int64)  # type: ignore[arg-type]
    of_rank[pipeline["rank"].to_numpy()] = pipeline["pipeline"].to_numpy()
    known = seen["pipeline"].to_numpy() * (last + 1) + seen["stage"].to_numpy()
    fed = np.where(backward, run.stage + 1, run.stage - 1)
    there = np.isin(of_rank[run.rank] * (last + 1) + fed, known)
    found: Mask = passes & ((run.stage < 0) | ((fed >= 0) & (fed <= last) & ~there))
    return found


_FORWARDS, _BACKWARDS = (
    [list(Kind).index(kind) for kind in kinds]
    for kinds in (
        (Kind.FORWARD, Kind.FORWARD_BACKWARD),
        (Kind.BACKWARD, Kind.BACKWARD_INPUT),
    )
)


def _lags(
    run: MeasuredRun, timeline: Timeline, waits: pl.DataFrame, unseen: Mask
) -> tuple[dict[str, int], dict[Cause, Ints]]:
    """Take apart how late tasks started, by what their rank was doing meanwhile.

    Args:
        run: The run.
        timeline: Its tasks, and all else that its ranks were in.
        waits: When its hosts waited for other ranks, as `rank_waits`, without the time between rounds.
        unseen: Which tasks may need a result of which it is not known when it was there: a host that
            seems late may have waited for it.

    Returns:
        How long hosts paused in all, by what they did, and how late tasks started by each cause that
        made any late.
    """
    opens = run.opens_ns[run.step]
    ready, start = run.ready_ns + opens, run.as_measured.start_ns + opens
    left, nothing = run.lag_ns, np.zeros(len(run), np.int64)

    def meanwhile(tasks: pl.DataFrame) -> Ints:
        """Return for how much of what is left the ranks were in tasks, and take it off."""
        nonlocal left
        if tasks.is_empty():
            return nothing
        tasks = tasks.sort("rank", "start_ns")
        rank, begin, end = (tasks[name].to_numpy().astype(np.int64) for name in _INTERVAL)
        covered: Ints = intervals.covered_ns((rank, begin, end), (run.rank, ready, start))
        covered = np.minimum(covered, left)
        left = left - covered
        return covered

    tasks = timeline.tasks
    pauses: Counter[str] = Counter()
    paused = np.zeros(len(run), np.int64)
    others = tasks.filter(ON_HOST)
    kinds = {kind.value: tasks.filter(kind=kind.value) for kind in (Kind.GC, Kind.DATA)}
    named_others = by_name(others, names_of(timeline).pauses)
    for name, named in (*kinds.items(), *named_others.items(), ("other", others)):
        late = meanwhile(named)
        pauses[name] += int(late.sum())
        paused += late
    synced = meanwhile(tasks.filter(pl.col("kind").is_in(_SYNCS)))
    # On the host's clock nothing is launched: what keeps a rank is what it does itself.
    on_host = timeline.ranks.filter(pl.col("timed") == HOST)["rank"]
    hosted = np.isin(run.rank, on_host.to_numpy())
    sending = pl.col("kind").is_in(_SENDS) | AWAITS_SENDS
    held_up = meanwhile(tasks.filter(sending, pl.col("rank").is_in(on_host.implode())))
    launched = tasks["host_start_ns"].fill_null(np.iinfo(np.int64).min)
    launched_late = launched.to_numpy()[run.task] > ready
    # The host was late, but waited for other ranks itself: for a result, or in a collective.
    awaited = meanwhile(waits.filter("of_result"))
    synced = synced + meanwhile(waits.filter(~pl.col("of_result")))
    later = {
        Cause.PAUSE: paused,
        Cause.SYNC: synced,
        Cause.TRANSFER: awaited,
        Cause.LAUNCH: np.where(launched_late & ~hosted & ~unseen, left, 0),
        Cause.SEND: held_up,
        Cause.CODE: np.where(hosted & ~unseen, left, 0),
        Cause.UNEXPLAINED: np.where((launched_late | hosted) & ~unseen, 0, left),
    }
    return pauses, {cause: late for cause, late in later.items() if late.any()}
