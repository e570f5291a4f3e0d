"""Frames for pandas: what is a whole number stays one."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import bubblescope
from bubblescope import BubblescopeError
from bubblescope.model.timeline_tables import TABLES
from bubblescope.render.data_frames import to_pandas
from chunked import with_an_empty_chunk
from full import module

LATE_NS = 2**62 + 1
"""A moment that no float is: the next ones are 512 ns away."""


@pytest.fixture(scope="module")
def pandas():
    return module("pandas")


@pytest.fixture(scope="module")
def run():
    return bubblescope.simulate("1f1b", devices=2, microbatches=3)


def test_times_are_whole_and_what_is_missing_is_missing(pandas, run):
    tasks = run.to_pandas()
    assert (tasks["start_ns"].dtype, tasks["end_ns"].dtype) == ("int64", "int64")
    assert (tasks["rank"].dtype, tasks["microbatch"].dtype) == ("int32", "Int32")
    assert tasks["kind"].dtype == tasks["name"].dtype == "string"
    assert tasks["peer"].isna().tolist() == run.tasks["peer"].is_null().to_list()
    assert set(tasks["kind"]) == set(run.tasks["kind"].cast(str))
    floats = [
        name for name, dtype in tasks.dtypes.items() if pandas.api.types.is_float_dtype(dtype)
    ]
    assert floats == ["certainty"]


@pytest.mark.usefixtures("pandas")
def test_types_do_not_depend_on_what_is_in_them(run):
    whole, none = run.to_pandas(), run.slice(start_ns=-2, end_ns=-1).to_pandas()
    assert len(none) == 0
    assert whole.dtypes.to_dict() == none.dtypes.to_dict()


@pytest.mark.parametrize("table", ["tasks", "ranks", *TABLES])
def test_every_table_has_the_same_values_in_both(pandas, run, table):
    ours, theirs = getattr(run.timeline, table), run.to_pandas(table)
    assert list(theirs.columns) == ours.columns
    for name in ours.columns:
        back = [
            None if not isinstance(value, list) and pandas.isna(value) else value
            for value in theirs[name]
        ]
        assert back == ours[name].to_list(), name


def test_a_whole_number_that_is_no_float_is_kept(pandas):
    frame = pl.DataFrame(
        {"at_ns": [LATE_NS, None], "n": [1, 2], "ok": [True, None], "x": [0.5, None]}
    )
    made = to_pandas(frame)
    assert made["at_ns"].dtype == "Int64"
    assert made["at_ns"].tolist() == [LATE_NS, pandas.NA]
    assert made["n"].dtype == "Int64"
    assert to_pandas(frame, ["n"])["n"].dtype == "int64"
    assert made["ok"].dtype == "boolean"
    assert made["ok"].tolist() == [True, pandas.NA]
    assert made["x"].dtype == "float64"


def test_what_is_changed_there_is_not_changed_here(pandas, run):
    before = run.tasks.clone()
    tasks = run.to_pandas()
    tasks["start_ns"] += 1
    tasks.loc[0, "microbatch"] = 99
    tasks.loc[0, "name"] = "changed"
    assert run.tasks.equals(before)


def test_arrow_takes_them_with_the_same_types(pandas, run):
    arrow = module("pyarrow")
    table = arrow.Table.from_pandas(run.to_pandas())
    for name, dtype in run.tasks.schema.items():
        field = table.schema.field(name)
        assert table[name].null_count == run.tasks[name].null_count(), name
        if dtype.is_integer():
            assert str(field.type) == str(dtype).lower(), name
    assert pl.DataFrame(table.select(["start_ns", "microbatch"])).equals(
        run.tasks.select("start_ns", "microbatch")
    )


def test_sums_are_exact(pandas, run):
    tasks = run.to_pandas()
    spent = (tasks["end_ns"] - tasks["start_ns"]).groupby(tasks["kind"]).sum()
    ours = run.tasks.group_by("kind").agg((pl.col("end_ns") - pl.col("start_ns")).sum())
    assert spent.to_dict() == dict(ours.with_columns(pl.col("kind").cast(str)).iter_rows())


def test_a_table_that_there_is_not_is_one_sentence(run):
    with pytest.raises(
        BubblescopeError, match="has no table 'task'; it has tasks, ranks, counters"
    ):
        run.to_pandas("task")


def test_without_pandas_the_sentence_says_what_to_install(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(BubblescopeError, match=r"pip install 'bubblescope\[notebook\]'"):
        run.to_pandas()


def test_what_is_done_to_a_frame_of_pandas_does_nothing_to_the_run(pandas):
    frame = with_an_empty_chunk(pl.DataFrame({"start_ns": [1, 2], "share": [0.5, 1.5]}))
    written = to_pandas(frame, never_missing={"start_ns"})
    for column in frame:
        assert not np.shares_memory(written[column.name].to_numpy(), column.to_numpy())
