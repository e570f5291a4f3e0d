"""From device work to its launch and its range, against definitions that look at everything."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bubblescope.model import device_time
from bubblescope.model.device_time import NONE, busy_intervals, lookup, match_work
from full import examples

DENSE, SPARSE = st.integers(-5, 20), st.integers(-(2**63), 2**63 - 1)
LAST = st.lists(st.integers(2**63 - 5, 2**63 - 1)) | st.lists(st.integers(-(2**63), -(2**63) + 5))


@given(
    st.lists(DENSE) | st.lists(SPARSE) | st.lists(st.sampled_from([0, 7, 10**9, 2**62])) | LAST,
    st.lists(DENSE | SPARSE),
    st.randoms(),
)
def test_an_id_is_found_where_it_was_used_last_in_any_order(keys, others, chance):
    wanted = [*keys, *others]
    chance.shuffle(wanted)
    last = {key: place for place, key in enumerate(keys)}
    found = lookup(np.array(keys, np.int64), np.array(wanted, np.int64))
    assert found.tolist() == [last.get(key, NONE) for key in wanted]


@pytest.mark.parametrize("keys", [[3, 1, 2], [10**12, 5, 10**9, 7]], ids=["dense", "sparse"])
def test_ids_need_not_be_in_order(keys):
    assert lookup(np.array(keys), np.array(keys[::-1])).tolist() == [*range(len(keys))][::-1]


@pytest.mark.parametrize("far", [0, 2**40], ids=["dense", "sparse"])
def test_of_an_id_used_twice_the_last_is_found(far):
    keys = np.array([1, 2, 1, far])
    assert lookup(keys, np.array([1, 2, 3])).tolist() == [2, 1, NONE]


class Range(NamedTuple):
    """A range that names a task; no two begin at one moment."""

    thread: int
    start: int
    end: int
    comm: bool


class Work(NamedTuple):
    """Device work; `at` None means that its launch is not known."""

    at: int | None
    thread: int
    device: int
    start: int
    end: int
    comm: bool


RANGES = st.lists(
    st.builds(Range, st.integers(0, 2), st.integers(0, 12), st.integers(13, 16), st.booleans())
    | st.builds(Range, st.integers(0, 2), st.integers(0, 12), st.integers(1, 12), st.booleans()),
    max_size=8,
    unique_by=lambda one: one.start,
).map(lambda found: sorted(one for one in found if one.end > one.start))
WORK = st.lists(
    st.builds(
        Work,
        st.none() | st.integers(0, 18),
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(100, 140),
        st.integers(140, 200),
        st.booleans(),
    ),
    max_size=20,
)


def most(values):
    """Return what is there most often, the least of several; None if there is nothing."""
    return min(set(values), key=lambda value: (-values.count(value), value), default=None)


def latest(ranges, at, threads):
    """Return the range begun last of those of some threads that are open."""
    there = [one for one in ranges if one.thread in threads and one.start <= at < one.end]
    return max(there, key=lambda one: one.start, default=None)


def expected(ranges, work):
    """Return the range of each piece of work, whether it counts, and how many ran elsewhere.

    A thread's own ranges come first. What another thread helps with is of a thread that works on the
    same device, or of one of which nobody knows where it works.
    """
    own = [None if one.at is None else latest(ranges, one.at, {one.thread}) for one in work]
    devices = {
        thread: most([w.device for w, o in zip(work, own, strict=True) if o and o.thread == thread])
        for thread in {one.thread for one in ranges}
    }
    owner = []
    for one, found in zip(work, own, strict=True):
        helped = {thread for thread, device in devices.items() if device in (one.device, None)}
        owner.append(found or (None if one.at is None else latest(ranges, one.at, helped)))
    timed = [False] * len(work)
    elsewhere = 0
    for each in ranges:
        mine = [index for index, found in enumerate(owner) if found is each]
        wanted = [index for index in mine if work[index].comm == each.comm]
        if each.comm and not wanted:  # peer-to-peer copies
            wanted = mine
        main = most([work[index].device for index in wanted])
        for index in wanted:
            timed[index] = work[index].device == main
            elsewhere += not timed[index]
    return owner, timed, elsewhere


@settings(max_examples=examples(200))
@given(RANGES, WORK)
@example([], [Work(1, 0, 0, 100, 140, comm=True)])
def test_work_is_of_the_range_that_launched_it_on_the_device_where_most_of_it_ran(ranges, work):
    ranges = sorted(ranges, key=lambda one: one.start)
    launches = {
        "process": [0] * len(work),
        "thread": [one.thread for one in work],
        "start_ns": [one.at or 0 for one in work],
        "correlation": range(len(work)),
    }
    known = pl.Series([one.at is not None for one in work], dtype=pl.Boolean)
    done = {
        "process": [0] * len(work),
        "device": [one.device for one in work],
        "start_ns": [one.start for one in work],
        "end_ns": [one.end for one in work],
        "correlation": range(len(work)),
        "comm": [0 if one.comm else None for one in work],
    }
    marks = {
        "range": range(len(ranges)),
        "thread": [one.thread for one in ranges],
        "host_start": [one.start for one in ranges],
        "until_ns": [one.end for one in ranges],
        "lane": ["comm" if one.comm else "compute" for one in ranges],
    }
    whole = dict.fromkeys(("range", "thread", "host_start", "until_ns"), pl.Int64)
    found = match_work(
        pl.DataFrame(marks, schema=whole | {"lane": pl.String}),
        pl.DataFrame(launches, schema=device_time.LAUNCHES).filter(known),
        pl.DataFrame(done, schema=device_time.WORK),
    )
    owner, timed, elsewhere = expected(ranges, work)
    assert found.launched.tolist() == [NONE if one.at is None else one.at for one in work]
    assert [ranges[row] if row != NONE else None for row in found.owner.tolist()] == owner
    assert (found.timed.tolist(), found.elsewhere) == (timed, elsewhere)


@given(WORK, st.lists(st.integers(0, 3), min_size=20, max_size=20), st.data())
def test_a_range_lasts_from_its_first_to_its_last_work_and_is_busy_while_any_runs(work, key, data):
    count = len(work)
    rows = data.draw(st.lists(st.integers(0, count - 1), unique=True).map(sorted)) if count else []
    done = pl.DataFrame(
        {
            "device": [one.device for one in work],
            "start_ns": [one.start for one in work],
            "end_ns": [one.end for one in work],
        },
        schema={"device": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64},
    )
    owner, numbers = np.array(key[:count], np.int64), np.array([70, 50, 60, 40])
    found = busy_intervals(done, owner, np.array(rows, np.int64), numbers)
    of = {number: [work[row] for row in rows if numbers[key[row]] == number] for number in numbers}
    assert {row[0]: row[2:] for row in found.iter_rows()} == {
        number: (
            min(one.start for one in mine),
            max(one.end for one in mine),
            len({moment for one in mine for moment in range(one.start, one.end)}),
        )
        for number, mine in of.items()
        if mine
    }
