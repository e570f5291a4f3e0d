"""The Chrome trace, where it says more than the tasks' own intervals."""

from __future__ import annotations

import json

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubblescope import Timeline
from bubblescope.exports import chrome
from bubblescope.exports.slices import ARGUMENTS
from synthetic import ORIGIN, hostile, staggered
from trace_processor import opened


def events(timeline: Timeline, path) -> list[dict]:
    return json.loads(chrome.write(timeline, path).read_text())["traceEvents"]


def test_the_steps_of_each_rank_keep_their_true_extent(tmp_path):
    """Marked by ids that are the same on all ranks, they would run into each other."""
    with opened(chrome.write(staggered(), tmp_path / "run.json")) as query:
        steps = "select name, ts, dur from slice where category = 'step' order by ts"
        assert query(steps) == [
            ("step 0", 0, 110),
            ("step 0", 105, 115),
            ("step 1", 150, 160),
            ("step 1", 230, 100),
        ]
        assert query("select name from stats where severity = 'error' and value > 0") == []


def test_steps_of_one_rank_that_overlap_or_touch_keep_their_extent(tmp_path):
    spans = [(0, 0, 100), (1, 50, 150), (2, 100, 100), (3, 100, 200)]
    frame = pl.DataFrame(spans, schema=["step", "start_ns", "end_ns"], orient="row").with_columns(
        rank=0, kind=pl.lit("gc"), lane=pl.lit("host"), name=pl.lit("x")
    )
    with opened(chrome.write(Timeline(frame), tmp_path / "run.json")) as query:
        found = query("select name, ts, dur from slice where category = 'step' order by name")
    assert found == [(f"step {step}", start, end - start) for step, start, end in spans]


def test_every_complete_event_is_a_task(tmp_path):
    complete = [event for event in events(staggered(), tmp_path / "run.json") if event["ph"] == "X"]
    assert len(complete) == len(staggered())


def test_arguments_are_those_that_any_task_has(tmp_path):
    known = {"kind", "step", "microbatch", "peer", "host_start_ns", "name"}
    assert known < set(ARGUMENTS)
    for event in events(staggered(), tmp_path / "run.json"):
        if event["ph"] == "X":
            assert set(event["args"]) == known


def test_times_since_the_epoch_are_text_because_javascript_would_round_them(tmp_path):
    first = next(e for e in events(staggered(), tmp_path / "run.json") if e["ph"] == "X")
    assert first["args"]["host_start_ns"] == str(ORIGIN - 7)
    assert int(json.loads((tmp_path / "run.json").read_text())["otherData"]["start_ns"]) == ORIGIN


def test_an_arrow_leaves_and_arrives_within_its_slices(tmp_path):
    found = events(staggered(), tmp_path / "run.json")
    slices = [event for event in found if event["ph"] == "X"]
    for event in (event for event in found if event["ph"] in "sf"):
        assert [
            one["name"][:2]
            for one in slices
            if (one["pid"], one["tid"]) == (event["pid"], event["tid"])
            and one["ts"] <= event["ts"] < one["ts"] + one["dur"]
        ] == [{"s": "SF", "f": "RF"}[event["ph"]]]
    with opened(tmp_path / "run.json") as query:
        assert query("select count(*) from flow") == [(2,)]


def test_processes_and_threads_are_named_and_ordered(tmp_path):
    found = events(staggered(), tmp_path / "run.json")

    def said(what: str, key: str) -> dict:
        named = [event for event in found if event["name"] == what]
        return {(event["pid"], event["tid"]): event["args"][key] for event in named}

    assert list(said("process_name", "name").values()) == ["rank 0 · unknown", "rank 1 · unknown"]
    assert list(said("process_sort_index", "sort_index").values()) == [0, 1]
    names, order = said("thread_name", "name"), said("thread_sort_index", "sort_index")
    second = [names[place] for place in sorted(order, key=order.get) if place[0] == 1]
    assert second == ["steps", "compute", "comm", "host"]


def test_a_hostile_name_loses_no_slice(tmp_path):
    timeline = hostile()
    with opened(chrome.write(timeline, tmp_path / "run.json")) as query:
        assert query("select count(*) from slice where category != 'step'") == [(len(timeline),)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("chrome") / "run.json"


@settings(max_examples=30, deadline=None)
@given(
    start=st.integers(0, 30 * 24 * 3600 * 10**9),
    length=st.integers(0, 24 * 3600 * 10**9),
)
def test_times_are_exact_over_a_month(shared, start, length):
    frame = pl.DataFrame({"start_ns": [0, start], "end_ns": [1, start + length]}).with_columns(
        pl.col("start_ns", "end_ns") + ORIGIN,
        rank=0,
        kind=pl.lit("other"),
        lane=pl.lit("compute"),
        name=pl.lit("x"),
    )
    found = [
        (round(event["ts"] * 1000), round(event["dur"] * 1000))
        for event in events(Timeline(frame), shared)
        if event["ph"] == "X"
    ]
    assert sorted(found) == sorted([(0, 1), (start, length)])
