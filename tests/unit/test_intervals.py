"""What intervals cover together, against counting every nanosecond."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope.model import intervals
from bubblescope.model.intervals import (
    NEVER,
    covered_ns,
    fresh_start_ns,
    idle_share,
    met,
    reached_ns,
)

INTERVAL = st.tuples(st.integers(0, 3), st.integers(-20, 20), st.integers(0, 9))
"""Group, start and length."""


def arrays(drawn):
    """Return group, start and end, sorted as the functions want them."""
    group, start, length = np.array(sorted(drawn), np.int64).reshape(-1, 3).T
    return group, start, start + length


def moments(start, end):
    return {at for one, other in zip(start, end, strict=True) for at in range(one, other)}


@given(st.lists(INTERVAL, min_size=1, max_size=30), st.sampled_from([1, 2**40, 2**59]))
def test_how_far_those_before_have_reached(drawn, far):
    group, _, end = arrays(drawn)
    end = end * far  # so far that groups do not fit on one axis
    found = reached_ns(end, group)
    for at in range(len(end)):
        before = [end[i] for i in range(at) if group[i] == group[at]]
        assert found[at] == max(before, default=NEVER)
    assert (reached_ns(end) == [max(end[:at], default=NEVER) for at in range(len(end))]).all()


@given(st.lists(INTERVAL, min_size=1, max_size=30))
def test_what_is_fresh_adds_up_to_what_is_covered(drawn):
    group, start, end = arrays(drawn)
    fresh = fresh_start_ns(start, end, group)
    assert ((start <= fresh) & (fresh <= end)).all()
    for one in np.unique(group):
        own = group == one
        assert (end - fresh)[own].sum() == len(moments(start[own], end[own]))


@given(st.lists(INTERVAL, max_size=30), st.randoms())
def test_the_union_of_intervals_in_any_order(drawn, random):
    random.shuffle(drawn)
    start = np.array([start for _, start, _ in drawn], np.int64)
    end = start + np.array([length for *_, length in drawn], np.int64)
    assert intervals.union_ns(start, end) == len(moments(start, end))


@given(st.lists(INTERVAL, max_size=20), st.lists(INTERVAL, max_size=20))
def test_how_much_of_a_window_is_covered(drawn, asked):
    group, start, end = arrays(drawn)
    own, begin, until = np.array(asked, np.int64).reshape(-1, 3).T
    found = covered_ns((group, start, end), (own, begin, until))
    for at, (one, first, last) in enumerate(zip(own, begin, until, strict=True)):
        there = moments(start[group == one], end[group == one])
        assert found[at] == len(there & set(range(first, last)))


@given(
    st.lists(INTERVAL, max_size=20), st.lists(INTERVAL, max_size=20), st.sampled_from([1, 2**59])
)
def test_which_intervals_a_window_overlaps(drawn, asked, far):
    group, start, end = arrays(drawn)
    own, begin, length = np.array(asked, np.int64).reshape(-1, 3).T
    until = begin + length
    numbers, others = group * far, own * far  # so far that groups do not fit on one axis
    at, of = met((numbers, start, end), (others, begin, until))
    expected = [
        (window, one)
        for window in range(len(own))
        for one in range(len(group))
        if group[one] == own[window] and start[one] < until[window] and begin[window] < end[one]
    ]
    assert list(zip(at.tolist(), of.tolist(), strict=True)) == expected


def test_the_groups_of_a_frame_may_be_several_columns_and_unknown():
    frame = pl.DataFrame(
        {
            "step": [None, None, 0, 0, 0],
            "rank": [0, 0, 0, 1, 1],
            "start_ns": [0, 2, 1, 0, 1],
            "end_ns": [5, 3, 4, 2, 3],
        }
    )
    start, end, group = intervals.columns(frame, "step", "rank")
    assert intervals.fresh_start_ns(start, end, group).tolist() == [0, 3, 1, 0, 2]
    assert intervals.columns(frame)[2] is None


@pytest.mark.parametrize(
    ("busy", "whole", "share"), [(30, 40, 0.25), (0, 10, 1.0), (5, 0, None), (5, None, None)]
)
def test_the_idle_share_of_no_time_is_not_known(busy, whole, share):
    assert idle_share(busy, whole) == share
