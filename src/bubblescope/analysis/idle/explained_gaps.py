"""What each gap between tasks is made of: stretches with one cause each.

A step is replayed with ever more of its causes (`bubblescope.analysis.idle.ledger`), and each of its
gaps is given to causes by what that very gap was in each replay. Waiting also moves from gap to gap, so
these do not quite add up to a rank's amounts; what a cause has too much is taken from its latest gaps
and given to the causes that have too little.

Clocks that differ move idle time rather than make it: a rank whose clock is ahead seems to begin late
and to end late. All of it that is where it would not be by the right clock is given to the clocks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.idle.causes import Cause
from bubblescope.model.arrays import at_once
from bubblescope.model.kinds import Kind
from bubblescope.model.timeline import TASK_SCHEMA

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bubblescope.analysis.idle.counterfactuals import Counterfactuals
    from bubblescope.analysis.idle.measured_run import MeasuredRun, Replay
    from bubblescope.model.arrays import Ints

_NOBODY = -1
CAUSE_DTYPE: Final = pl.Enum([cause.value for cause in Cause])
_CAUSES: Final = CAUSE_DTYPE.categories.cast(CAUSE_DTYPE)

_AT_ONCE: Final = 1 << 14
"""Gaps that are looked at at once."""


class Explained(msgspec.Struct, frozen=True):
    """What a part of a run says.

    Attributes:
        table: Rows of `Ledger.table`.
        stretches: What its gaps are made of.
        error: How far each of its steps is off when it is replayed with all causes, as a share.
    """

    table: pl.DataFrame
    stretches: Stretches
    error: np.ndarray

    @classmethod
    def of(cls, part: Counterfactuals) -> Explained:
        """Share out the gaps of a part of a run."""
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


class Stretches(msgspec.Struct, frozen=True):
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


def _stretches(causes: tuple[Cause, ...], given: Ints) -> Stretches:
    """Return what gaps are made of.

    `causes` were added to the replays one after the other, and `given` is what each replay is
    responsible for of each gap, the first for what is inherent.
    """
    code = np.array([0, *(list(Cause).index(cause) for cause in causes)], np.int8)
    item, player = np.nonzero(given.T)
    return Stretches(item.astype(np.int32), code[player], given[player, item])


def rows_of(part: Counterfactuals, made: Stretches) -> pl.DataFrame:
    """Lay what each gap is made of one after the other, as rows of `Ledger.gaps`."""
    run, count = part.run, len(part.run)
    items = _Items.of(run)
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


def _sums(run: MeasuredRun, items: _Items, made: Stretches) -> pl.DataFrame:
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
