"""The time that a device gave to a range of the host: that of the work launched inside of it.

Found in two joins on plain arrays:

1. device work -> the call that launched it, by correlation id, which is unique per process only;
2. that call -> the innermost range open at that moment, on its own thread or, failing that, on
   another thread of the process: PyTorch's autograd launches a backward from a thread of its own.

Traces are read by it, and jobs that time their tasks by kernels record by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.arrays import blocks
from bubblescope.model.intervals import fresh_start_ns
from bubblescope.model.kinds import Lane

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints, Mask

LAUNCHES: Final = {
    "process": pl.Int64,
    "thread": pl.Int64,
    "start_ns": pl.Int64,
    "correlation": pl.Int64,
}
"""Host calls that may have started device work."""

WORK: Final = {
    "process": pl.Int64,
    "device": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "correlation": pl.Int64,
    "comm": pl.Int32,
}
"""Kernels, copies, fills and graph launches on the device. `comm` is null, or, for a communication
kernel, an index into `Capture.comms`."""

_LARGEST: Final = np.iinfo(np.int64).max
NONE: Final = -1
NO_INTERVALS: Final = pl.DataFrame(
    schema={"range": pl.Int64, "device": pl.Int32}
    | dict.fromkeys(("start_ns", "end_ns", "busy_ns"), pl.Int64)
)


class Match(NamedTuple):
    """What each row of a process's device work belongs to."""

    launched: Ints  # when it was launched, in host time, or NONE
    owner: Ints  # row of its range, or NONE
    timed: Mask  # whether it counts for its range's interval
    elsewhere: int  # how much ran on another device than most of its range's work


def match_work(ranges: pl.DataFrame, launches: pl.DataFrame, work: pl.DataFrame) -> Match:
    """Match the work of one process with its launches and those with its task ranges."""
    call = lookup(launches["correlation"].to_numpy(), work["correlation"].to_numpy())
    calls = (launches["start_ns"].to_numpy(), launches["thread"].to_numpy())
    device = work["device"].to_numpy()
    if len(call) and call.min() != NONE:  # as in most captures, and there are no rows to choose
        launched, thread = (column[call] for column in calls)
        owner = _owners(launched, thread, device, ranges)
    else:
        launched, owner = (np.full(len(call), NONE, np.int64) for _ in range(2))
        rows = np.flatnonzero(call != NONE)
        launched[rows], thread = (column[call[rows]] for column in calls)
        owner[rows] = _owners(launched[rows], thread, device[rows], ranges)
    return Match(launched, owner, *_timed(work, owner, ranges))


def device_intervals(
    ranges: pl.DataFrame, launches: pl.DataFrame, work: pl.DataFrame
) -> tuple[pl.DataFrame, Mask, Ints]:
    """Find the device interval of ranges that one process knows by number.

    Args:
        ranges: Frame with range (their numbers), thread, host_start, until_ns (exclusive) and lane,
            by ascending host_start, of those that begin together the outer first.
        launches: Frame with the columns of `LAUNCHES` but process.
        work: Frame with the columns of `WORK` but process, in one chunk.

    Returns:
        Frame with range, device, start_ns, end_ns and busy_ns, one row for each range with work; for
        each row of the work, whether a range owns it; and when it was launched, or `NONE`.
    """
    match = match_work(ranges, launches, work)
    numbers = ranges["range"].to_numpy()
    intervals = busy_intervals(work, match.owner, np.flatnonzero(match.timed), numbers)
    return intervals, match.owner != NONE, match.launched


def innermost(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Cut overlapping intervals into disjoint segments, each owned by the latest-started one.

    For properly nested intervals that is the innermost; for others it is the one begun last.

    Args:
        starts: Interval starts, ascending.
        ends: Their ends, exclusive.

    Returns:
        Segment edges, ascending, and for each edge the index of the interval that owns the segment
        beginning there, or -1. The owner at time t is that of the last edge that is <= t.
    """
    edges = np.unique(np.concatenate([starts, ends]))
    owners = np.searchsorted(starts, edges, side="right") - 1
    # Whatever began last owns the segment, unless it has ended: then whatever outlasts that, and so on.
    outer = _outlasting(ends)
    rows = np.flatnonzero(owners >= 0)
    while len(rows := rows[ends[owners[rows]] <= edges[rows]]):
        owners[rows] = outer[owners[rows]]
        rows = rows[owners[rows] >= 0]
    return edges, owners


def _outlasting(ends: Ints) -> Ints:
    """Return for each interval the last one before it that ends later, or `NONE`.

    A chain of those that do not is passed over by doubling: everything between one and what it points
    at ends no later than it does.
    """
    outer = np.arange(NONE, len(ends) + NONE)
    rows = np.arange(1, len(ends))
    while len(rows := rows[ends[outer[rows]] <= ends[rows]]):
        outer[rows] = outer[outer[rows]]
        rows = rows[outer[rows] >= 0]
    return outer


def owner_at(times: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return for each moment the latest-started of the intervals that it lies in, or `NONE`.

    The intervals' starts are ascending; see `innermost`.
    """
    if not len(starts):
        return np.full(len(times), NONE, np.int64)
    edges, owners = innermost(starts, ends)
    owners = np.append(NONE, owners)
    if ascending(times):  # then it takes no search for each of them
        first = np.searchsorted(times, edges)
        return np.repeat(owners, np.diff(first, prepend=0, append=len(times)))
    return owners[np.searchsorted(edges, times, side="right")]


def lookup(keys: Ints, wanted: Ints) -> Ints:
    """Return for each wanted value its index in `keys`, or `NONE`; the last of several.

    Correlation ids are handed out by a counter, so a table addressed by id beats sorting about
    tenfold; should ids ever be sparse, sorting bounds the memory.
    """
    if not len(keys):
        return np.full(len(wanted), NONE, np.int64)
    low, high = int(keys.min()), int(keys.max())
    dense = high - low <= 16 * len(keys) + 1_000_000
    if dense and abs(low) < _LARGEST and high < _LARGEST:
        # What lies outside of the ids falls on the table's ends.
        table: Ints = np.full(high - low + 3, NONE, np.min_scalar_type(-len(keys)))
        for rows in blocks(len(keys)):
            table[keys[rows] - (low - 1)] = np.arange(rows.start, rows.stop)
        found: Ints = np.empty(len(wanted), table.dtype)
        for rows in blocks(len(wanted)):
            found[rows] = table[np.clip(wanted[rows], low - 1, high + 1) - (low - 1)]
        return found
    order = np.argsort(keys, kind="stable")
    # What is below all ids is compared with the greatest, which it is not.
    place = np.searchsorted(keys[order], wanted, side="right") - 1
    return np.where(keys[order[place]] == wanted, order[place], NONE)


def ascending(times: Ints) -> bool:
    """Say whether times are in order; some may be equal."""
    return bool((times[1:] >= times[:-1]).all())


def _owners(times: Ints, threads: Ints, devices: Ints, ranges: pl.DataFrame) -> Ints:
    """Return for each launch of a process the row of its range: own thread first, then others."""
    starts, ends = ranges["host_start"].to_numpy(), ranges["until_ns"].to_numpy()
    range_threads = ranges["thread"].to_numpy()
    owner = np.full(len(times), NONE, np.int64)
    device_of: dict[int, int] = {}
    several = len(devices) > 0 and devices.min() != devices.max()
    annotating = np.unique(range_threads)
    for thread in annotating:
        rows = _chosen(threads == thread)
        own = np.flatnonzero(range_threads == thread)
        local = owner_at(times[rows], starts[own], ends[own])
        owner[rows] = np.append(own, NONE)[local]
        if several and (found := local != NONE).any():
            used, times_used = np.unique(devices[rows][found], return_counts=True)
            device_of[int(thread)] = int(used[times_used.argmax()])
    # A process that drives several devices annotates each from its own thread; help from another
    # thread then belongs to the thread that works on the same device.
    left = np.flatnonzero(owner == NONE)
    for device in np.unique(devices[left]):
        rows = left[devices[left] == device]
        helped = [t for t in annotating if device_of.get(int(t), device) == device]
        candidates = np.flatnonzero(np.isin(range_threads, helped))
        local = owner_at(times[rows], starts[candidates], ends[candidates])
        owner[rows] = np.append(candidates, NONE)[local]
    return owner


def _chosen(mask: Mask) -> Ints | slice:
    """Return which elements a mask chooses; all of them as a slice, for which nothing is copied."""
    return slice(None) if mask.all() else np.flatnonzero(mask)


def _timed(work: pl.DataFrame, owner: Ints, ranges: pl.DataFrame) -> tuple[Mask, int]:
    """Say which device work defines its range's interval, and how much ran on a stray device.

    In a compute range that is all but communication. In a communication range it is the
    communication kernels, or whatever there is if there are none (peer-to-peer copies).
    """
    held = owner >= 0
    if not held.any():
        return held, 0
    timed = held
    if work["comm"].null_count() < work.height:
        comm = work["comm"].is_not_null().to_numpy()
        comm_range = (ranges["lane"] == Lane.COMM.value).to_numpy()
        has_comm = np.zeros(ranges.height, bool)
        has_comm[owner[held & comm]] = True
        timed = held & np.where(comm_range[owner], comm | ~has_comm[owner], ~comm)

    device = work["device"].to_numpy()
    if not len(device) or device.min() == device.max():
        return timed, 0
    main = np.full(ranges.height, NONE, device.dtype)
    main[owner[timed]] = device[timed]
    if not (timed & (main[owner] != device)).any():
        return timed, 0
    most = (
        pl.DataFrame({"range": owner[timed], "device": device[timed]})
        .group_by("range", "device")
        .len()
        .sort("range", "len", "device", descending=[False, True, False])
        .unique("range", keep="first")
    )
    main[most["range"].to_numpy()] = most["device"].to_numpy()
    stray = timed & (main[owner] != device)
    return timed & ~stray, int(stray.sum())


def busy_intervals(work: pl.DataFrame, owner: Ints, rows: Ints, ranges: Ints) -> pl.DataFrame:
    """Return for each range with work its device, interval and time with any of its work running.

    Args:
        work: All device work of a process.
        owner: For each row of it, an index into `ranges`.
        rows: The rows that count.
        ranges: Range numbers.
    """
    key = owner[rows]
    starts, ends = work["start_ns"].to_numpy()[rows], work["end_ns"].to_numpy()[rows]
    if not _in_order(key, starts):  # as on one stream they are
        order = np.lexsort((starts, key))
        rows, key, starts, ends = rows[order], key[order], starts[order], ends[order]
    if not len(key):
        return NO_INTERVALS
    first = np.append(0, np.flatnonzero(key[1:] != key[:-1]) + 1)
    begin, end = starts[first], np.maximum.reduceat(ends, first)
    return pl.DataFrame(
        {
            "range": ranges[key[first]],
            "device": work["device"].to_numpy()[rows[first]],
            "start_ns": begin,
            "end_ns": end,
            "busy_ns": np.add.reduceat(_alone_ns(starts, ends, key), first),
        },
        schema_overrides={"device": pl.Int32},
    )


def _alone_ns(starts: Ints, ends: Ints, key: Ints) -> Ints:
    """Return how long each interval covers what those of its key before it do not."""
    if (starts[1:] >= ends[:-1]).all():  # as on one stream, none overlaps with the next
        alone: Ints = np.maximum(ends - starts, 0)
        return alone
    return ends - fresh_start_ns(starts, ends, key)


def _in_order(major: Ints, minor: Ints) -> bool:
    """Say whether pairs are in lexicographic order."""
    if ascending(major) and ascending(minor):
        return True
    same = major[1:] == major[:-1]
    later = (major[1:] > major[:-1]) | (same & (minor[1:] >= minor[:-1]))
    return bool(later.all())
