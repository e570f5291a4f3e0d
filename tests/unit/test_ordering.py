"""Rows that are in order already are left where they are; others are sorted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from bubblescope.model.ordering import (
    counted,
    distinct,
    in_order,
    numbered,
    order_of_runs,
    stretches,
)

NUMBERS = st.one_of(st.none(), st.integers(-2, 2))


@given(
    st.lists(st.tuples(NUMBERS, st.integers(0, 2), st.integers(0, 2)), max_size=12), st.booleans()
)
def test_rows_are_in_the_order_in_which_sorting_puts_them(rows, sort_first):
    frame = pl.DataFrame(rows, {"a": pl.Int32, "b": pl.Int64, "c": pl.Int8}, orient="row")
    frame = frame.sort("a", "b") if sort_first else frame
    frame = frame.with_row_index("at")
    assert in_order(frame, "a", "b").equals(frame.sort("a", "b", maintain_order=True))


def test_what_is_in_order_is_not_copied():
    frame = pl.DataFrame({"a": [0, 0, 1], "b": [1, 2, 0]})
    assert in_order(frame, "a", "b") is frame
    assert in_order(frame, "b", "a") is not frame


def test_an_enumeration_counts_by_its_categories():
    kinds = pl.Series("kind", ["z", "a", "z"], pl.Enum(["z", "a"]))
    assert in_order(kinds.to_frame(), "kind")["kind"].to_list() == ["z", "z", "a"]


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 4)), max_size=10))
def test_runs_are_sorted_as_their_members_would_be(runs):
    key = np.array([value for value, times in runs for _ in range(times)], np.int64)
    assert order_of_runs(key).tolist() == np.argsort(key, kind="stable").tolist()


@given(
    st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 2), st.integers(-1, 1)), max_size=30),
    st.sampled_from([1, 1000, 1 << 30]),
)
def test_rows_that_are_alike_have_one_number_in_the_order_of_rows(rows, times):
    """Numbers may be far apart, as those of ranks that a trace names so."""
    columns = np.array(rows, np.int64).reshape(-1, 3).T * times
    number, count = numbered(*columns)
    kinds = sorted({tuple(row) for row in rows})
    assert count == len(kinds)
    assert number.tolist() == [kinds.index(row) for row in rows]


COLUMNS = {"a": pl.Int32, "b": pl.Boolean, "c": pl.Enum(["z", "a"])}
ROWS = st.lists(
    st.tuples(NUMBERS, st.one_of(st.none(), st.booleans()), st.sampled_from([None, "a", "z"])),
    max_size=12,
)


@given(ROWS)
def test_a_stretch_begins_where_a_row_is_not_as_the_one_before(rows):
    """A row without a value is like another without, and like none with one, not even with zero."""
    frame = pl.DataFrame(rows, COLUMNS, orient="row")
    turns = [at for at, row in enumerate(rows) if at == 0 or row != rows[at - 1]]
    assert stretches(frame, *COLUMNS).tolist() == turns


@given(ROWS)
def test_different_rows_are_there_once(rows):
    frame = pl.DataFrame(rows, COLUMNS, orient="row")
    found = distinct(frame, *COLUMNS).rows()
    assert len(found) == len({*found})
    assert {*found} == {*rows}


@given(st.lists(st.integers(0, 5), max_size=20), st.sampled_from([1, 1 << 40]))
def test_numbers_are_counted_however_far_apart_they_are(numbers, times):
    found = zip(*(of.tolist() for of in counted(np.array(numbers, np.int64) * times)), strict=True)
    assert list(found) == sorted(Counter(number * times for number in numbers).items())
