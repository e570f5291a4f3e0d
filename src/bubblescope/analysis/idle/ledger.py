"""The ledger: every idle nanosecond of every rank has exactly one cause.

A step is replayed with ever more of its causes, first none, then the stages' own costs, the slowness
of ranks, and so on in the order of `bubblescope.analysis.idle.causes.ADDED`; with the last one that
makes any difference to it, it is the measured step itself. What a rank's idle time in a step grows by
when a cause is added is that cause's. Where it shrinks instead (a rank that works longer waits less),
the causes before it get as much less, the latest first, so that nothing is negative and the sum is what
was measured.

Within a step, each gap is given to causes in the same way, by what that very gap was in each replay.
Waiting also moves from gap to gap, so these do not quite add up to a rank's amounts; what a cause has
too much is taken from its latest gaps and given to the causes that have too little.

Clocks that differ move idle time rather than make it: a rank whose clock is ahead seems to begin late
and to end late. All of it that is where it would not be by the right clock is given to the clocks.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.between_rounds import laid_open
from bubblescope.analysis.idle.causes import ADDED, Cause
from bubblescope.analysis.idle.counterfactuals import Counterfactuals
from bubblescope.analysis.idle.slow_ranks import Work, slow_ranks
from bubblescope.model import intervals
from bubblescope.model.arrays import at_once
from bubblescope.model.errors import TimelineError
from bubblescope.model.extents import extents
from bubblescope.model.kinds import COMPUTE_KINDS, Kind, Lane
from bubblescope.model.memory import give_back
from bubblescope.model.timeline import TASK_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

    from bubblescope.analysis.idle.evidence import Evidence
    from bubblescope.analysis.idle.measured_run import MeasuredRun, Replay
    from bubblescope.analysis.idle.shares import Shares
    from bubblescope.analysis.idle.slow_ranks import SlowRank
    from bubblescope.analysis.idle.task_lengths import Typical
    from bubblescope.analysis.schedule.recognise import Recognition
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline

_NOBODY = -1
CAUSE_DTYPE: Final = pl.Enum([cause.value for cause in Cause])
_CAUSES: Final = CAUSE_DTYPE.categories.cast(CAUSE_DTYPE)

_AT_ONCE: Final = 1 << 14
"""Gaps that are looked at at once."""

_TOTALS = {"cause": pl.String, "idle_ns": pl.Int64}


class Replays(msgspec.Struct, frozen=True):
    """What a ledger was made of.

    Attributes:
        counterfactuals: The run, and what it would have been without causes.
        stretches: What the gaps of the run are made of, part by part.
    """

    counterfactuals: Counterfactuals
    stretches: tuple[_Stretches, ...]


class Told(msgspec.Struct, frozen=True):
    """What replays said of their causes before they were let go of.

    Attributes:
        shares: What each cause costs.
        evidence: What shows it.
        slow_ranks: As of `Counterfactuals`.
        work: What tasks of each rank, stage and kind took, as `work_by_place` returns it.
        gaps: The rows of `Ledger.gaps`, some steps at a time.
    """

    shares: Shares
    evidence: Evidence
    slow_ranks: list[SlowRank]
    work: pl.DataFrame
    gaps: tuple[pl.DataFrame, ...]


class Entries(msgspec.Struct, frozen=True):
    """What steps enter into the ledger of their run.

    Attributes:
        table, outside, left_out: As of `Ledger`.
        errors: Frame with step, pipeline and error: how far each replayed step is from the measured
            one, as a share of this.
        present: The causes that made any difference.
        phases: Frame with step, pipeline, start_ns and end_ns: when the pipeline phase of each step
            was, without what `between` takes out.
        between: As of `Counterfactuals`.
        work: What ranks worked.
    """

    table: pl.DataFrame
    outside: pl.DataFrame
    left_out: int
    errors: pl.DataFrame
    present: frozenset[Cause]
    phases: pl.DataFrame
    between: pl.DataFrame
    work: Work

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Those of `present`, in the order in which they are added."""
        return tuple(cause for cause in ADDED if cause in self.present)

    @classmethod
    def of(cls, found: Counterfactuals) -> tuple[Self, tuple[_Stretches, ...]]:
        """Look at some steps.

        Args:
            found: What they would have been without causes.

        Returns:
            What they enter, and what their gaps are made of, part by part.
        """
        run = found.run
        made = at_once(_Explained.of, list(found.parts()))
        steps = {
            "step": pl.Series(run.steps, dtype=TASK_SCHEMA["step"]),
            "pipeline": pl.Series(run.pipeline, dtype=pl.Int32),
        }
        errors = pl.DataFrame({**steps, "error": np.concatenate([one.error for one in made])})
        closes = run.opens_ns + run.as_measured.length_ns
        entries = cls(
            # Steps of pipelines that run theirs each for itself are the same step.
            table=_summed([one.table for one in made]),
            outside=_outside(found.timeline, run, found.between),
            left_out=run.left_out,
            errors=errors,
            present=frozenset(found.present),
            phases=pl.DataFrame({**steps, "start_ns": run.opens_ns, "end_ns": closes}),
            between=found.between,
            work=Work.of_steps(run, found.lengths, found.timeline),
        )
        return entries, tuple(one.stretches for one in made)

    @classmethod
    def joined(cls, parts: Sequence[Entries]) -> Self:
        """Return what several parts of a run enter together, each of whole steps."""
        outside, errors, phases, between = (
            pl.concat([getattr(part, name) for part in parts])
            for name in ("outside", "errors", "phases", "between")
        )
        return cls(
            table=_summed([part.table for part in parts]),
            outside=outside.sort("step", "rank"),
            left_out=sum(part.left_out for part in parts),
            errors=errors.sort("step", "pipeline"),
            present=frozenset().union(*(part.present for part in parts)),
            phases=phases.sort("step", "pipeline"),
            between=between.sort("step", "pipeline", "start_ns"),
            work=Work.joined([part.work for part in parts]),
        )


def _summed(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    key = ["step", "rank", "cause"]
    return pl.concat(tables).group_by(key).agg(pl.col("idle_ns").sum()).sort(key)


class Ledger(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Why each rank was idle.

    Attributes:
        table: Frame with step, rank, cause and idle_ns, the sums of `gaps`; only where not 0.
        outside: The same for what is idle before and after the pipeline phase and between its rounds,
            from the first start to the last end of anything in the step: all of it is synchronisation.
        replay_error: How far the replayed steps are from the measured ones, as a share of these; the
            mean over the steps.
        worst_error: The same of the worst step.
        steps: Number of steps that it is about; all that are compared across ranks.
        left_out: Number of results that no replay waits for, as of `MeasuredRun`.
        present: The causes that made any difference to the run.
        typical: What its tasks take, as a rule.
        slow_ranks: The ranks that are slower than healthy ones, slowest first, if any idle time is
            because of such, or ranks wait for each other inside of passes.
        phases, between: As of `Entries`.
        replays: What it was made of; None where none of that was kept.
        again: Makes that again, of a run that is here but was replayed some steps at a time; else None.
        told: What such replays said of causes, if they were asked.
    """

    table: pl.DataFrame
    outside: pl.DataFrame
    replay_error: float
    worst_error: float
    steps: int
    left_out: int
    present: tuple[Cause, ...]
    typical: Typical
    slow_ranks: tuple[SlowRank, ...]
    phases: pl.DataFrame
    between: pl.DataFrame
    replays: Replays | None
    again: Callable[[], Replays] | None
    told: Told | None

    @classmethod
    def of(
        cls,
        entries: Entries,
        typical: Typical,
        replays: Replays | None = None,
        *,
        again: Callable[[], Replays] | None = None,
        told: Told | None = None,
    ) -> Self:
        """Close the ledger of a run.

        Args:
            entries: What all of its steps enter.
            typical: What its tasks take, as a rule.
            replays: What the entries were made of, if that is kept.
            again: Makes that again, where it is not kept and can be made.
            told: What was asked of it before it was let go of.
        """
        table, error = entries.table, entries.errors.sort("step", "pipeline")["error"].to_numpy()
        return cls(
            table=table,
            outside=entries.outside,
            replay_error=float(error.mean()),
            worst_error=float(error.max()),
            steps=entries.errors["step"].n_unique(),
            left_out=entries.left_out,
            present=entries.causes,
            typical=typical,
            slow_ranks=tuple(slow_ranks(entries.work, typical))
            if Cause.SLOW_RANK in entries.causes or entries.work.waits
            else (),
            phases=entries.phases,
            between=entries.between,
            replays=replays,
            again=again,
            told=told,
        )

    @property
    def counterfactuals(self) -> Counterfactuals:
        """The replays behind it; made again where they were not kept, which takes as much memory.

        Raises:
            TimelineError: The run was looked at in parts that are not here.
        """
        return self._replays.counterfactuals

    @property
    def stretches(self) -> tuple[_Stretches, ...]:
        """What the gaps of the run are made of, part by part; raises as `counterfactuals`."""
        return self._replays.stretches

    @cached_property
    def _replays(self) -> Replays:
        if self.replays is not None:
            return self.replays
        if self.again is not None:
            return self.again()
        raise TimelineError(
            "the run was looked at in parts, none of which is kept; ask for some of its steps"
        )

    @cached_property
    def gaps(self) -> pl.DataFrame:
        """Every stretch of idle time with one cause, in the pipeline phase of a step.

        A frame with step, rank, start_ns, end_ns, cause, task (row in the timeline of the task before
        which it is; null if it is the last of the step) and root (row of the task on which all those
        that were waited for waited in the end; where the cause is a slow rank, of the last task
        before the gap that was slow and held it up). Laid out when first asked for: it is large.
        """
        return pl.concat(self.gaps_by_part())

    def gaps_by_part(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of `gaps` some steps at a time, so that not all need be there at once."""
        return laid_out(self._replays) if self.told is None else iter(self.told.gaps)

    def totals(self) -> pl.DataFrame:
        """Return idle_ns and its share of all by cause, largest first.

        A cause may make steps longer and no idle time: it is among them with 0.
        """
        present = [cause.value for cause in self.present]
        none = pl.DataFrame({"cause": present, "idle_ns": 0}, schema=_TOTALS)
        return (
            pl.concat([self.table.select(_TOTALS.keys()), none])
            .group_by("cause")
            .agg(pl.col("idle_ns").sum())
            .with_columns(share=(pl.col("idle_ns") / pl.col("idle_ns").sum()).fill_nan(0.0))
            .sort("idle_ns", "cause", descending=[True, False])
        )


def laid_out(replays: Replays) -> Iterator[pl.DataFrame]:
    """Yield the rows of `Ledger.gaps`, some steps at a time."""
    found = replays.counterfactuals
    for part, made in zip(found.parts(), replays.stretches, strict=True):
        rows = _rows(part, _Items.of(part.run), made)
        yield laid_open(rows, found.between, found.run.pipelines)


def ledger(timeline: Timeline, recognition: Recognition | None) -> Ledger | None:
    """Give each idle nanosecond of a run a cause.

    Args:
        timeline: The run.
        recognition: The schedule that it followed.

    Returns:
        None if the run has no pipeline tasks, or its ranks share no clock.
    """
    found = Counterfactuals.of(timeline, recognition)
    if found is None:
        return None
    entries, stretches = Entries.of(found)
    give_back()
    return Ledger.of(entries, found.typical, Replays(found, stretches))


def replays_of(timeline: Timeline, recognition: Recognition | None) -> Replays:
    """Return what the ledger of a run is made of, which has one; arguments as of `ledger`."""
    made = ledger(timeline, recognition)
    if made is None or made.replays is None:
        raise ValueError("what was replayed once can be replayed again")
    return made.replays


class _Explained(msgspec.Struct, frozen=True):
    """What a part of a run says.

    Attributes:
        table: Rows of `Ledger.table`.
        stretches: What its gaps are made of.
        error: How far each of its steps is off when it is replayed with all causes, as a share.
    """

    table: pl.DataFrame
    stretches: _Stretches
    error: np.ndarray

    @classmethod
    def of(cls, part: Counterfactuals) -> _Explained:
        run, causes = part.run, part.present
        items = _Items.of(run)
        idle = _levels(part, items)
        found = _stretches(causes, _given(idle, items.begins, displaced=Cause.CLOCK in causes))
        phase = _phase(run, items)
        found = msgspec.structs.replace(
            found, cause=np.where(found.cause == 0, phase[found.item], found.cause).astype(np.int8)
        )
        again = part.lengths_with(frozenset(causes) - {Cause.CLOCK})
        error = np.abs(again - run.as_measured.length_ns) / np.maximum(run.as_measured.length_ns, 1)
        return cls(_sums(run, items, found), found, error)


def _levels(part: Counterfactuals, items: _Items) -> Ints:
    """Return how long each gap is with ever more causes, in the order of `part.present`, first none.

    A step with all causes that there are in it is the measured one itself.
    """
    run, causes = part.run, part.present
    last = np.zeros(len(run.steps), np.int64)
    for count, cause in enumerate(causes, start=1):
        last[part.made_by(cause)] = count
    measured = items.idle(run.as_measured)
    whole = last[run.step[run.first[:-1]]][items.group]
    levels = np.empty((len(causes) + 1, len(measured)), np.int64)

    def replay(count: int) -> None:
        levels[count] = measured
        if (last > count).any():
            replayed = items.idle(part.replay_with(frozenset(causes[:count])))
            np.copyto(levels[count], replayed, where=whole > count)

    at_once(replay, range(len(levels)))
    return levels


class _Items(msgspec.Struct, frozen=True):
    """The gaps of a run, before each task and after the last of each group, in the order of time.

    Attributes:
        place: For each of the n + g gaps in that order, its index among those before tasks followed
            by those after the last.
        group: Its group.
        begins: The first gap of each group.
    """

    place: Ints
    group: Ints
    begins: Ints

    @classmethod
    def of(cls, run: MeasuredRun) -> _Items:
        groups = len(run.first) - 1
        group = np.concatenate([run.group, np.arange(groups)])
        place = np.argsort(group, kind="stable")
        return cls(place, group[place], run.first[:-1] + np.arange(groups))

    def idle(self, replay: Replay) -> Ints:
        """Return how long each gap is."""
        return np.concatenate([replay.gap_ns, replay.tail_ns])[self.place]

    def ends(self, run: MeasuredRun) -> Ints:
        """Return when each gap ends: where the task after it starts, or where the step does."""
        length = run.as_measured.length_ns[run.step[run.first[1:] - 1]]
        return np.concatenate([run.as_measured.start_ns, length])[self.place]


class _Stretches(msgspec.Struct, frozen=True):
    """What gaps are made of: stretches with one cause each, in the order of time.

    Attributes:
        item: The gap of each.
        cause: Index among the causes.
        size_ns: How long it is.
    """

    item: NDArray[np.int32]
    cause: NDArray[np.int8]
    size_ns: Ints


def _given(idle: Ints, begins: Ints, *, displaced: bool) -> Ints:
    """Return how much of each gap each replay in turn is responsible for: replays x gaps.

    Groups have nothing to do with each other. Some at a time are looked at, so that what is worked out
    stays in a processor's cache, and takes little memory.

    Args:
        idle: How long each gap is in each replay, replays x gaps; what is returned is written over it.
        begins: The first gap of each group.
        displaced: Whether the last replay is given all by which it makes gaps longer, also what it
            makes others shorter by.
    """
    edges = np.append(begins, idle.shape[1])
    bounds = [0]
    while (low := bounds[-1]) < len(begins):
        high = int(np.searchsorted(edges, edges[low] + _AT_ONCE, "right")) - 1
        bounds.append(max(low + 1, high))

    def share_out(groups: tuple[int, int]) -> None:
        low, high = groups
        own = slice(edges[low], edges[high])
        idle[:, own] = _shared_out(idle[:, own], edges[low : high + 1] - edges[low], displaced)

    at_once(share_out, list(pairwise(bounds)))
    return idle


def _shared_out(idle: Ints, edges: Ints, displaced: bool) -> Ints:
    """Return the same of a few groups, whose gaps begin at `edges` and end at the last of these."""
    begins = edges[:-1]
    group = np.repeat(np.arange(len(begins)), np.diff(edges))
    own = np.diff(np.minimum(np.maximum.accumulate(idle, axis=0), idle[-1]), axis=0, prepend=0)
    totals, have = (np.add.reduceat(values, begins, axis=1) for values in (idle, own))
    if displaced:
        totals[:-1] = np.minimum(totals[:-1], totals[-1] - have[-1])
    levels = np.minimum.accumulate(totals[::-1], axis=0)[::-1]
    due = np.diff(levels, axis=0, prepend=0)
    # What is beyond its due is taken from each cause's latest gaps, and given where it is short.
    surplus = np.maximum(have - due, 0)
    up_to = np.cumsum(own, axis=1)
    after = up_to[:, edges[1:] - 1][:, group] - up_to
    taken = np.clip(surplus[:, group] - after, 0, own)
    rest: Ints = own - taken
    short = np.maximum(due - have, 0)
    # Both as one line of nanoseconds, group by group; where either changes, cut.
    offered, wanted = np.cumsum(taken.T.ravel()), np.cumsum(short.T.ravel())
    cuts = np.sort(np.concatenate([offered, wanted]), kind="stable")  # both are in order
    cuts = cuts[np.diff(cuts, prepend=0) > 0]
    sizes = np.diff(cuts, prepend=0)
    item = np.searchsorted(offered, cuts) // len(own)
    cause = np.searchsorted(wanted, cuts) % len(own)
    np.add.at(rest, (cause, item), sizes)
    return rest


def _stretches(causes: tuple[Cause, ...], given: Ints) -> _Stretches:
    """Return what gaps are made of.

    `causes` were added to the replays one after the other, and `given` is what each replay is
    responsible for of each gap, the first for what is inherent.
    """
    code = np.array([0, *(list(Cause).index(cause) for cause in causes)], np.int8)
    item, player = np.nonzero(given.T)
    return _Stretches(item.astype(np.int32), code[player], given[player, item])


def _rows(part: Counterfactuals, items: _Items, made: _Stretches) -> pl.DataFrame:
    """Lay what each gap is made of one after the other, as rows of `Ledger.gaps`."""
    run, count = part.run, len(part.run)
    item, size = made.item, made.size_ns
    place = items.place[item]
    group = items.group[item]
    last = run.first[1:] - 1
    until = np.cumsum(size)
    whole = np.bincount(item, size, minlength=len(items.place)).astype(np.int64)
    passed = until - (np.cumsum(whole) - whole)[item]
    end = items.ends(run)[item] - whole[item] + passed
    step = run.step[last][group]
    opens = run.opens_ns[step]
    roots = np.concatenate([_roots(run), _lasts(run)[run.step[last]]])
    # A gap after the last task is waiting for whoever is last.
    roots[count:] = roots[roots[count:]]
    root = roots[place]
    slow = _CAUSES.gather(made.cause) == Cause.SLOW_RANK.value
    if slow.any():
        rows = np.flatnonzero(slow.to_numpy())
        root[rows] = _slow_tasks(part, roots)[place[rows]]
    task = np.append(run.task, np.int32(_NOBODY))[np.minimum(place, count)]
    return pl.DataFrame(
        {
            "step": pl.Series(run.steps, dtype=TASK_SCHEMA["step"]).gather(step),
            "rank": pl.Series(run.rank[last][group], dtype=TASK_SCHEMA["rank"]),
            "start_ns": opens + end - size,
            "end_ns": opens + end,
            "cause": _CAUSES.gather(made.cause),
            "task": task,
            "root": run.task[root],
        }
    ).with_columns(task=pl.when(pl.col("task") >= 0).then("task"))


def _sums(run: MeasuredRun, items: _Items, made: _Stretches) -> pl.DataFrame:
    """Return the rows of `Ledger.table`."""
    kinds, groups = len(Cause), len(items.begins)
    total = np.zeros(groups * kinds, np.int64)
    np.add.at(total, items.group[made.item] * kinds + made.cause, made.size_ns)
    group, cause = np.divmod(np.flatnonzero(total), kinds)
    first = run.first[:-1][group]
    table = {
        "step": pl.Series(run.steps, dtype=TASK_SCHEMA["step"]).gather(run.step[first]),
        "rank": pl.Series(run.rank[first], dtype=TASK_SCHEMA["rank"]),
        "cause": _CAUSES.gather(cause).cast(pl.String),
        "idle_ns": total[total > 0],
    }
    return pl.DataFrame(table)


def _phase(run: MeasuredRun, items: _Items) -> Ints:
    """Return the phase of each gap in order, as index among the causes."""
    kinds = list(Kind)
    forward = np.isin(
        run.kind, [kinds.index(kind) for kind in (Kind.FORWARD, Kind.FORWARD_BACKWARD)]
    )
    backward = np.isin(
        run.kind,
        [kinds.index(kind) for kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.FORWARD_BACKWARD)],
    )
    far = np.iinfo(np.int64).max
    begins = run.first[:-1]
    turn = np.minimum.reduceat(np.where(backward, run.as_measured.start_ns, far), begins)
    done = np.maximum.reduceat(np.where(forward, run.as_measured.end_ns, -1), begins)
    ends = items.ends(run)
    warm, cool = ends <= turn[items.group], ends > done[items.group]
    phase: Ints = np.where(warm, 0, np.where(cool, 2, 1))
    return phase


def _roots(run: MeasuredRun) -> Ints:
    """Return for each task the one that it waited for in the end, over all that waited in between.

    A task that did not wait is its own.
    """
    waited = (run.as_measured.gap_ns > 0) & (run.feeder != _NOBODY)
    root = np.where(waited, run.feeder, np.arange(len(run)))
    while True:
        further = root[root]
        if (further == root).all():
            return root
        root = further


def _slow_tasks(part: Counterfactuals, roots: Ints) -> Ints:
    """Return for each gap the last task on the path to it that a slow rank ran; its root if none did.

    The path goes back from what ended the gap: from a task that waited to the one that it waited for,
    from one that did not to the one before it on its rank.

    Args:
        part: The run, of n tasks in g groups.
        roots: Of its gaps, n + g long: before each task, and after the last of each group.
    """
    run, own = part.run, np.arange(len(part.run))
    first = np.zeros(len(run), bool)
    first[run.first[:-1]] = True
    fed, waited = run.feeder != _NOBODY, run.as_measured.gap_ns > 0
    before = np.where(waited, np.where(fed, run.feeder, own), np.where(first, own, own - 1))
    slow = part.lengths.rank_ns > part.lengths.stage_ns
    before = np.where(slow, own, before)
    while ((further := before[before]) != before).any():
        before = further
    ends = np.concatenate(
        [np.where(fed, run.feeder, own), _lasts(run)[run.step[run.first[1:] - 1]]]
    )
    found = before[ends]
    return np.where(slow[found], found, roots)


def _lasts(run: MeasuredRun) -> Ints:
    """Return the task of each step that ends last."""
    ends = np.flatnonzero(run.as_measured.end_ns == run.as_measured.length_ns[run.step])
    last: Ints = ends[np.append(np.diff(run.step[ends]) > 0, True)]
    return last


def _outside(timeline: Timeline, run: MeasuredRun, between: pl.DataFrame) -> pl.DataFrame:
    """Return how long each rank was idle in its steps outside of the pipeline phase and its rounds."""
    phase = pl.DataFrame(
        {
            "step": pl.Series(run.steps, dtype=TASK_SCHEMA["step"]),
            "pipeline": pl.Series(run.pipeline, dtype=pl.Int32),
            "opens": run.opens_ns,
            "closes": run.opens_ns + run.as_measured.length_ns,
        }
    )
    window = ["step", "pipeline"]
    rest = between.group_by(window).agg(rest=(pl.col("end_ns") - pl.col("start_ns")).sum())
    phase = (
        phase.join(rest, on=window, how="left", nulls_equal=True)
        .with_columns(pl.col("rest").fill_null(0))
        .with_columns(closes=pl.col("closes") + pl.col("rest"))
    )

    def placed(rows: pl.DataFrame) -> pl.DataFrame:
        """Add the pipeline and its phase to rows of ranks and steps; drop those of other steps."""
        of = pl.col("pipeline").fill_null(0)  # ranks without tasks of the pipeline
        rows = rows.join(run.pipelines, on="rank", how="left").with_columns(of)
        return rows.join(phase, on=window, nulls_equal=True)

    tasks = timeline.tasks.select("rank", "step", "kind", "lane", "start_ns", "end_ns")
    edges = pl.col("start_ns").min(), pl.col("end_ns").max()
    steps = (
        placed(extents(tasks, "rank", "step"))
        .group_by(window)
        .agg(*edges, pl.col("opens", "closes", "rest").first())
    )
    around = (pl.col("opens") - pl.col("start_ns")) + (pl.col("end_ns") - pl.col("closes"))
    around += pl.col("rest")
    idle = steps.select(*window, window=around).join(run.pipelines, on="pipeline")
    kinds = [kind.value for kind in COMPUTE_KINDS]
    work = tasks.filter(pl.col("lane") == Lane.COMPUTE.value, ~pl.col("kind").is_in(kinds))
    work = placed(work).sort("step", "rank", "start_ns")
    fresh_ns = intervals.fresh_start_ns(*intervals.columns(work, "step", "rank"))
    fresh = work.with_columns(start_ns=pl.Series(fresh_ns))
    before = (pl.min_horizontal("end_ns", "opens") - pl.col("start_ns")).clip(lower_bound=0)
    after = (pl.col("end_ns") - pl.max_horizontal("start_ns", "closes")).clip(lower_bound=0)
    meanwhile = fresh.select(*window, "rank", "start_ns", "end_ns").join(
        between.rename({"start_ns": "from_ns", "end_ns": "until_ns"}), on=window, nulls_equal=True
    )
    inside = pl.min_horizontal("end_ns", "until_ns") - pl.max_horizontal("start_ns", "from_ns")
    busy = (
        pl.concat(
            [
                fresh.select("step", "rank", busy=before + after),
                meanwhile.select("step", "rank", busy=inside.clip(lower_bound=0)),
            ]
        )
        .group_by("step", "rank")
        .agg(pl.col("busy").sum())
    )
    return (
        idle.join(busy, on=["step", "rank"], how="left", nulls_equal=True)
        .select(
            "step",
            "rank",
            cause=pl.lit(Cause.SYNC.value),
            idle_ns=pl.col("window") - pl.col("busy").fill_null(0),
        )
        .filter(pl.col("idle_ns") > 0)
        .sort("step", "rank")
    )
