"""Intervals of time: what they cover together, what they leave, and where they overlap.

All of it rests on one question: in the order of their starts, how far have the intervals before this
one reached? What lies beyond that is new, what lies before it is covered already.

Recording uses this too, so NumPy is all that it loads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from bubblescope.model.ordering import stretches

if TYPE_CHECKING:
    import polars as pl

    from bubblescope.model.arrays import Ints

NEVER: Final = -(1 << 62)
"""Before all time: how far the intervals before a group's first have reached."""


def reached_ns(end_ns: Ints, group: Ints | None = None) -> Ints:
    """Return how far the intervals before each have reached: the latest of their ends.

    Args:
        end_ns: Ends of n intervals, by group, and in each group by start.
        group: Number of each interval's group, those of a group together; one group if left out.

    Returns:
        n times; `NEVER` for the first of a group.
    """
    before = np.full(len(end_ns), NEVER, np.int64)
    if len(end_ns) < 2:
        return before
    if group is None:
        before[1:] = np.maximum.accumulate(end_ns)[:-1]
        return before
    first = np.ones(len(end_ns), bool)
    np.not_equal(group[1:], group[:-1], out=first[1:])
    if (first[1:] | (end_ns[1:] >= end_ns[:-1])).all():  # mostly nothing lies within another
        before[1:] = end_ns[:-1]
        before[first] = NEVER
        return before
    # Groups stand one after the other on one axis, each on a stretch as long as all the time there is.
    shift = np.cumsum(first)
    low = int(end_ns.min())
    length = int(end_ns.max()) - low + 1
    values: Ints | None = None
    if length * int(shift[-1] + 1) >= 1 << 62:  # too long an axis: count ends instead
        values, ends = np.unique(end_ns, return_inverse=True)
        length = len(values)
    else:
        ends = np.subtract(end_ns, low, dtype=np.int64)
    # In place, since there may be millions of them.
    shift *= length
    ends += shift
    np.maximum.accumulate(ends, out=ends)
    ends -= shift
    if values is None:
        np.add(ends[:-1], low, out=before[1:])
    else:
        before[1:] = values[ends[:-1].clip(0)]
    before[first] = NEVER
    return before


def fresh_start_ns(start_ns: Ints, end_ns: Ints, group: Ints | None = None) -> Ints:
    """Return where each interval begins to cover what those before it do not; its end if nowhere.

    From there to their ends, intervals no longer overlap, and cover what they did.

    Args:
        start_ns: Starts of n intervals, by group, and ascending in each group.
        end_ns: Their ends.
        group: As in `reached_ns`.
    """
    fresh = reached_ns(end_ns, group)
    np.maximum(fresh, start_ns, out=fresh)
    return np.minimum(fresh, end_ns, out=fresh)


def union_ns(start_ns: Ints, end_ns: Ints) -> int:
    """Return how much time intervals cover together; they may be in any order.

    >>> union_ns(np.array([0, 5, 30]), np.array([10, 20, 40]))
    30
    """
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns = start_ns[order], end_ns[order]
    return int((end_ns - fresh_start_ns(start_ns, end_ns)).sum())


def covered_ns(intervals: tuple[Ints, Ints, Ints], windows: tuple[Ints, Ints, Ints]) -> Ints:
    """Return how much of each window the intervals of its group cover.

    Args:
        intervals: Group, start and end of n intervals, by group, and in each group by start.
        windows: Group, start and end of m windows, in any order; one that ends before it starts is
            empty.

    Returns:
        m lengths of time, in nanoseconds.
    """
    group, start, end = intervals
    own, begin, until = windows
    if not len(group) or not len(own):
        return np.zeros(len(own), np.int64)
    # Like what is fresh, but ascending: one that lies within others is empty where these end.
    reached = reached_ns(end, group)
    start = np.maximum(start, reached, out=reached)
    end = np.maximum(start, end)
    shift, own_shift = _one_axis((group, start, end), windows)
    start += shift
    end += shift
    before = np.zeros(len(start) + 1, np.int64)
    np.subtract(end, start, out=before[1:])
    np.cumsum(before, out=before)

    def covered_until(moment: Ints) -> Ints:
        at = np.searchsorted(start, moment, side="right")
        over = np.where(at > 0, np.maximum(end[at - 1] - moment, 0), 0)
        return before[at] - over

    covered: Ints = covered_until(np.maximum(until, begin) + own_shift) - covered_until(
        begin + own_shift
    )
    return covered


def met(intervals: tuple[Ints, Ints, Ints], windows: tuple[Ints, Ints, Ints]) -> tuple[Ints, Ints]:
    """Return which intervals of its group each window overlaps, by windows, then by intervals.

    Args:
        intervals: As of `covered_ns`; one without length overlaps what begins before it and ends after.
        windows: Likewise; none ends before it starts.

    Returns:
        For each time that two overlap, the number of the window, and that of the interval.
    """
    group, start, end = intervals
    own, begin, until = windows
    if not len(group) or not len(own):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    shift, own_shift = _one_axis(intervals, windows)
    # Of a group's intervals by their start, those may overlap a window from the first by which all so
    # far have reached beyond its begin, to the last that starts before its end.
    reach = np.maximum(reached_ns(end, group), end) + shift
    first = np.searchsorted(reach, begin + own_shift, side="right")
    behind = np.searchsorted(start + shift, until + own_shift, side="left")
    at, of = overlaps(first, behind)
    over = end[of] > begin[at]
    return at[over], of[over]


def overlaps(low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return every pair of i and one of low[i] .. high[i] - 1, by i."""
    count = np.maximum(high - low, 0)
    left = np.repeat(np.arange(len(low)), count)
    before = np.cumsum(count) - count
    return left, np.arange(len(left)) - np.repeat(before - low, count)


def _one_axis(
    intervals: tuple[Ints, Ints, Ints], windows: tuple[Ints, Ints, Ints]
) -> tuple[Ints, Ints]:
    """Return what to add to times of intervals and windows, so that groups follow one another."""
    group, start, end = intervals
    own, begin, until = windows
    zero = min(int(begin.min()), int(start.min()))
    length = max(int(until.max()), int(end.max())) - zero + 1
    lowest, highest = min(int(group[0]), int(own.min())), max(int(group[-1]), int(own.max()))
    if (highest - lowest + 1) * length < 1 << 62:
        group, own = group - lowest, own - lowest
    else:  # numbers with wide gaps
        groups = np.union1d(group, own)
        group, own = (np.searchsorted(groups, of) for of in (group, own))
    return group.astype(np.int64) * length - zero, own.astype(np.int64) * length - zero


def columns(frame: pl.DataFrame, *by: str) -> tuple[Ints, Ints, Ints | None]:
    """Return start, end and group of a frame's intervals, as the functions here take them.

    Args:
        frame: With start_ns and end_ns, sorted by group, and in each group by start.
        by: Columns that make a group; all are one group if there are none.
    """
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    if not by:
        return start, end, None
    group = np.zeros(frame.height, np.int64)
    group[stretches(frame, *by)[1:]] = 1
    return start, end, np.cumsum(group, out=group)


def idle_share(busy_ns: float, whole_ns: float | None) -> float | None:
    """Return the share of a time that is idle; None if the time is unknown or none.

    Every bubble rate of a time with a length is this: in reports, in `bubblescope watch`, in the
    metrics of a job, and on the page.

    >>> idle_share(30, 40), idle_share(0, 0)
    (0.25, None)
    """
    return 1 - busy_ns / whole_ns if whole_ns else None
