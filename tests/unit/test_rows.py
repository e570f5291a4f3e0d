"""Rows of tasks: those that follow each other share one, however a trace rounds their times."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope import Timeline
from bubblescope.render.layout import TOUCHING_NS, drawn_ns, with_rows
from bubblescope.render.picture.blocks import _shared
from synthetic import one_f_one_b

MS = 1_000_000


def placed(*times: tuple[int, int]) -> list[tuple[int, int]]:
    """Return row and cut of tasks of one lane."""
    rows = [(0, "compute", start, end) for start, end in times]
    frame = pl.DataFrame(rows, schema=["rank", "lane", "start_ns", "end_ns"], orient="row")
    return with_rows(frame).select("row", "cut_ns").rows()


def test_tasks_that_overlap_by_a_nanosecond_stay_in_one_row():
    back_to_back = [(index * MS, (index + 1) * MS + 1) for index in range(5)]
    assert placed(*back_to_back) == [(0, 0), *[(0, 1)] * 4]


@pytest.mark.parametrize(
    ("length", "overlap", "row"),
    [
        (500_000, TOUCHING_NS, 0),
        (500_000, TOUCHING_NS + 1, 1),
        (100 * MS, 100_000, 0),
        (100 * MS, 100_001, 1),
    ],
)
def test_the_tolerance_is_two_microseconds_or_a_thousandth_of_the_shorter(length, overlap, row):
    cut = overlap if row == 0 else 0
    assert placed((0, 200 * MS), (200 * MS - overlap, 200 * MS - overlap + length)) == [
        (0, 0),
        (row, cut),
    ]


def test_the_lowest_free_row_wins():
    # The third begins when both rows are free, and the one below was free first.
    assert placed((0, 50 * MS), (10 * MS, 30 * MS), (60 * MS, 70 * MS)) == [(0, 0), (1, 0), (0, 0)]
    crowded = placed((0, 90 * MS), (1 * MS, 20 * MS), (2 * MS, 10 * MS), (30 * MS, 80 * MS))
    assert [row for row, _ in crowded] == [0, 1, 2, 1]


def test_a_task_within_another_has_a_row_of_its_own():
    assert placed((0, 2_000), (500, 900)) == [(0, 0), (1, 0)]


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 5_000)), max_size=25))
def test_nothing_overlaps_as_drawn_and_times_stay_true(pairs):
    rows = [(0, "compute", start, start + length) for start, length in pairs]
    schema = {"rank": pl.Int32, "lane": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")

    found = with_rows(frame)

    assert found.drop("row", "cut_ns").rows() == frame.sort("start_ns", "end_ns").rows()
    for _, row in found.group_by("row"):
        ordered = row.sort("start_ns", "end_ns", maintain_order=True)
        drawn = ordered.select(start=drawn_ns(), end="end_ns")
        assert (drawn["start"][1:] >= drawn["end"][:-1]).all()
        assert (drawn["start"] <= drawn["end"]).all()
        assert (ordered["cut_ns"] <= TOUCHING_NS).all()


def test_a_run_whose_tasks_touch_is_drawn_as_one_whose_do_not():
    exact = one_f_one_b(ranks=2, microbatches=4, steps=2, comm=False)
    longer = exact.tasks.with_columns(end_ns=pl.col("end_ns") + 1)

    touching = _shared(Timeline(longer, exact.ranks, exact.run).tasks)

    assert touching["row"].max() == 0
    assert touching["slots"].max() == 1
    assert touching["cut_ns"].sum() > 0
