"""The data model: what a timeline accepts, and what its operations keep."""

from __future__ import annotations

import re

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope import SourceError, Timeline, TimelineError, concat
from bubblescope.model.bounds import RANKS
from bubblescope.model.counters import COUNTER_SCHEMA
from bubblescope.model.kinds import LANE_OF, Kind
from bubblescope.model.provenance import Contents, NameShape, Notice, Origin, Run
from bubblescope.model.saved_timelines import opened
from bubblescope.model.timeline import together

I32 = st.integers(0, 2**31 - 1)
PLACES = st.integers(0, RANKS - 1)


@st.composite
def timelines(draw: st.DrawFn, first_rank: int = 0) -> Timeline:
    """Any valid timeline."""
    ranks = list(range(first_rank, first_rank + draw(st.integers(1, 4))))
    rows = []
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(list(Kind)))
        start = draw(st.integers(0, 2**55))
        length = draw(st.integers(0, 2**40))
        pair = kind is Kind.FORWARD_BACKWARD
        rows.append(
            {
                "rank": draw(st.sampled_from(ranks)),
                "step": draw(st.none() | I32),
                "kind": kind.value,
                "stage": draw(st.none() | PLACES),
                "chunk": draw(st.none() | st.integers(0, 2**15 - 1)),
                "microbatch": draw(st.none() | PLACES),
                "pair_microbatch": draw(PLACES) if pair else None,
                "lane": LANE_OF[kind].value,
                "start_ns": start,
                "end_ns": start + length,
                "busy_ns": draw(st.none() | st.integers(0, length)),
                "name": draw(st.text(st.characters(exclude_categories=["Cs"]))),
            }
        )
    names = dict.fromkeys(("rank", "kind", "lane", "start_ns", "end_ns", "name"))
    frame = pl.DataFrame(rows, infer_schema_length=None) if rows else empty(list(names))
    hosts = pl.DataFrame(
        {
            "rank": ranks,
            "host": [draw(st.text(st.characters(exclude_categories=["Cs"]))) for _ in ranks],
            "stages": [draw(st.none() | st.lists(PLACES, max_size=3)) for _ in ranks],
            "clock_error_ns": [draw(st.none() | st.integers(0, 2**62)) for _ in ranks],
        },
        schema_overrides={"stages": pl.List(pl.Int32), "clock_error_ns": pl.Int64},
    )
    run = Run(
        origins=(Origin("native", None, "a.bubbles"),),
        microbatches=draw(st.none() | I32),
        inferred={"stage": "guess"},
        warnings=(
            Notice("torn-tail", draw(st.text(st.characters(exclude_categories=["Cs"]))), 1, 2),
        ),
        contents=(
            Contents("x", "h", 7, (0,), {"kernels": 3}, (NameShape("F#", "F1", 2, "forward"),)),
        ),
    )
    samples = draw(
        st.lists(
            st.tuples(
                st.sampled_from(ranks),
                st.sampled_from(["memory allocated", "SMs Active"]),
                st.sampled_from(["bytes", "%", ""]),
                st.integers(-(2**62), 2**62),
                st.floats(allow_nan=False, allow_infinity=False),
            ),
            max_size=8,
        )
    )
    counters = pl.DataFrame(samples, schema=COUNTER_SCHEMA, orient="row")
    return Timeline(frame, hosts, run, counters=counters)


def empty(columns: list[str]) -> pl.DataFrame:
    return pl.DataFrame(schema=dict.fromkeys(columns, pl.Null))


def tasks(**columns: object) -> pl.DataFrame:
    """Two valid tasks, with some columns replaced."""
    return pl.DataFrame(
        {
            "rank": [0, 1],
            "step": [0, 0],
            "kind": ["forward", "backward"],
            "lane": ["compute", "compute"],
            "start_ns": [10, 20],
            "end_ns": [20, 35],
            "name": ["F0", "B0"],
            **columns,
        },
        strict=False,
    )


@given(timeline=timelines())
def test_a_saved_timeline_loads_back_identical(timeline, tmp_path_factory):
    path = timeline.save(tmp_path_factory.mktemp("bundle") / "run.parquet")
    assert Timeline.load(path) == timeline


@given(st.data(), st.integers(1, 4))
def test_saved_timelines_that_are_read_together_are_those_that_are_joined(
    tmp_path_factory, data, count
):
    folder = tmp_path_factory.mktemp("bundles")
    parts = [data.draw(timelines(first_rank=8 * at)) for at in range(count)]
    parts = data.draw(st.permutations(parts))
    files = [part.save(folder / f"{at}.parquet") for at, part in enumerate(parts)]
    try:
        whole = concat(parts)
    except TimelineError as error:  # such as of runs that are years apart
        with pytest.raises(TimelineError, match=re.escape(str(error))):
            together([opened(file) for file in files])
        return
    assert together([opened(file) for file in files]) == whole


def test_of_saved_timelines_that_are_read_together_the_one_that_breaks_a_rule_is_named(tmp_path):
    good = Timeline(tasks()).save(tmp_path / "good.parquet")
    other = Timeline(tasks(rank=[2, 3])).save(tmp_path / "other.parquet")
    again = Timeline(tasks(rank=[3, 3])).save(tmp_path / "again.parquet")
    metadata = pl.read_parquet_metadata(other)
    own = {key: text for key, text in metadata.items() if key.startswith("bubblescope")}
    ends = Timeline.load(other).tasks
    for name, frame in {
        "backwards": ends.with_columns(end_ns=pl.lit(0, pl.Int64)),
        "stranger": ends.with_columns(rank=pl.lit(0, pl.Int32)),  # which is a rank of another file
    }.items():
        frame.write_parquet(tmp_path / f"{name}.parquet", metadata=own)
        with pytest.raises(SourceError, match=rf"{name}.parquet: was written by another"):
            together([opened(good), opened(tmp_path / f"{name}.parquet")])
    with pytest.raises(TimelineError, match="rank 3 is claimed by two traces"):
        together([opened(good), opened(other), opened(again)])


@given(timeline=timelines())
def test_tasks_are_sorted_by_rank_lane_and_start(timeline):
    keys = timeline.tasks.select("rank", pl.col("lane").to_physical(), "start_ns").rows()
    assert keys == sorted(keys)


@given(timeline=timelines(), bounds=st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)))
def test_a_time_slice_keeps_whole_every_task_that_overlaps_it(timeline, bounds):
    start, end = sorted(bounds)
    kept = timeline.slice(start_ns=start, end_ns=end)
    wanted = [row for row in timeline.tasks.iter_rows() if row[11] > start and row[10] < end]
    assert list(kept.tasks.iter_rows()) == wanted


@given(timeline=timelines())
def test_slicing_by_every_rank_and_concatenating_gives_all_back(timeline):
    parts = [timeline.slice(ranks=[rank]) for rank in timeline.ranks["rank"]]
    assert concat(parts).tasks.equals(timeline.tasks)
    assert concat(parts).ranks.equals(timeline.ranks)
    assert concat(parts).counters.equals(timeline.counters)


@given(timeline=timelines(), bounds=st.tuples(*[st.integers(-(2**62), 2**62)] * 3))
def test_a_time_slice_keeps_what_each_counter_holds_at_every_moment(timeline, bounds):
    start, moment, end = sorted(bounds)
    kept = timeline.slice(start_ns=start, end_ns=end).counters

    assert kept.filter(~pl.col("time_ns").is_between(start, end, closed="left")).is_empty()
    if moment < end:
        assert held(kept, moment) == held(timeline.counters, moment)


def held(counters: pl.DataFrame, moment: int) -> dict[tuple, float]:
    """What every counter holds at a moment."""
    before = counters.filter(pl.col("time_ns") <= moment)
    return {row[:3]: row[4] for row in before.iter_rows()}


def counters(**columns: object) -> pl.DataFrame:
    """Two valid samples, with some columns replaced."""
    return pl.DataFrame(
        {
            "rank": [0, 1],
            "name": ["memory allocated"] * 2,
            "unit": ["bytes"] * 2,
            "time_ns": [12, 22],
            "value": [512.0, 1024.0],
            **columns,
        }
    )


def test_a_slice_by_step_or_rank_keeps_its_counters():
    samples = pl.DataFrame({"time_ns": [5, 12, 25], "value": [1.0, 2.0, 3.0]})
    samples = samples.with_columns(
        rank=pl.lit(0, pl.Int32), name=pl.lit("memory allocated"), unit=pl.lit("bytes")
    )
    timeline = Timeline(tasks(step=[3, 4]), None, None, samples)

    times = ("time_ns", "value")
    assert timeline.slice(steps=[3]).counters.select(times).rows() == [(10, 1.0), (12, 2.0)]
    assert timeline.slice(steps=[4], ranks=[0]).counters.select(times).rows() == [
        (20, 2.0),
        (25, 3.0),
    ]
    assert timeline.slice(ranks=[1]).counters.is_empty()


def test_a_slice_that_begins_at_a_sample_has_that_sample_alone_there():
    samples = pl.concat([counters(time_ns=[5, 5]), counters(time_ns=[10, 11], value=[1.0, 2.0])])
    timeline = Timeline(tasks(start_ns=[0, 0], end_ns=[20, 20]), None, None, samples)

    kept = timeline.slice(start_ns=10, end_ns=20).counters

    assert kept.select("rank", "time_ns", "value").rows() == [
        (0, 10, 1.0),
        (1, 10, 1024.0),
        (1, 11, 2.0),
    ]


def test_notices_leave_counters_alone():
    timeline = Timeline(tasks(), None, None, counters())
    assert timeline.with_notices(Notice("x", "y")).counters.equals(timeline.counters)
    assert timeline != Timeline(tasks())


def test_with_notices_it_is_another_timeline_whose_tables_are_not_checked_again(monkeypatch):
    timeline = Timeline(tasks(), None, None, counters())
    monkeypatch.setattr("bubblescope.model.timeline._check", None)
    noted = timeline.with_notices(Notice("x", "half a character: \ud800"))
    assert noted.tables.keys() == timeline.tables.keys()
    assert noted.tasks.equals(timeline.tasks)
    assert noted.ranks.equals(timeline.ranks)
    assert [notice.code for notice in noted.run.warnings] == ["x"]
    assert noted.run == noted.run.encodable()
    assert not timeline.run.warnings


def test_a_frame_that_is_changed_later_does_not_change_the_timeline():
    frame = Timeline(tasks()).tasks  # of the right types already
    timeline = Timeline(frame)
    frame.drop_in_place("name")
    assert "name" in timeline.tasks.columns


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"rank": [0, 2]}, "counters row 1: rank 2 is not in ranks"),
        ({"value": [1.0, float("nan")]}, "counters row 1: the rule is that value is finite"),
        ({"value": [float("inf"), 1.0]}, "counters row 0: the rule is that value is finite"),
        ({"unit": ["bytes", None]}, "counters row 1: unit must not be null"),
        ({"time_ns": [1.5, 2.5]}, "counters: column time_ns must be Int64, not Float64"),
        ({"step": [0, 0]}, "counters: column step is unknown"),
    ],
)
def test_counters_that_break_a_rule_are_refused(columns, message):
    with pytest.raises(TimelineError, match=message):
        Timeline(tasks(), None, None, counters(**columns))


def test_bundles_from_before_there_were_counters_still_load(tmp_path):
    timeline = Timeline(tasks(), None, None, counters())
    path = timeline.save(tmp_path / "run.parquet")
    metadata = pl.read_parquet_metadata(path)
    kept = {key: value for key, value in metadata.items() if key.startswith("bubblescope.")}
    assert "bubblescope.counters" not in pl.read_parquet_metadata(
        Timeline(tasks()).save(tmp_path / "without.parquet")
    )

    timeline.tasks.write_parquet(
        path, metadata={key: kept[key] for key in kept if key != "bubblescope.counters"}
    )
    assert Timeline.load(path) == Timeline(tasks())

    timeline.tasks.write_parquet(path, metadata=kept | {"bubblescope.counters": "UEFSMQ=="})
    with pytest.raises(SourceError, match="another version of bubblescope or is damaged"):
        Timeline.load(path)


def test_a_slice_by_step_keeps_that_step_only():
    timeline = Timeline(tasks(step=[3, 4]))
    assert timeline.slice(steps=[4]).tasks["name"].to_list() == ["B0"]
    assert timeline.steps == [3, 4]


def test_slicing_by_an_absent_step_or_rank_says_what_there_is():
    timeline = Timeline(tasks(step=[3, 4]))
    with pytest.raises(TimelineError, match=r"step 7 is not in the timeline, which holds 3\.\.4"):
        timeline.slice(steps=[7])
    with pytest.raises(TimelineError, match=r"rank 9 is not in the timeline, which holds 0\.\.1"):
        timeline.slice(ranks=[0, 9])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"end_ns": [20, 19]}, r"tasks row 1: the rule is that end_ns is not before start_ns"),
        ({"busy_ns": [None, 16]}, r"tasks row 1: the rule is that busy_ns fits in the task"),
        ({"busy_ns": [-1, None]}, r"tasks row 0: the rule is that busy_ns is not negative"),
        ({"microbatch": [0, -1]}, r"tasks row 1: the rule is that microbatch is not negative"),
        ({"rank": [0, 1 << 24]}, r"tasks row 1: the rule is that rank is below 1,048,576"),
        ({"pair_stage": [1, None]}, r"tasks row 0: the rule is that only a forward_backward"),
        ({"kind": ["forward", "sideways"]}, r"tasks row 1: kind must be one of forward, backward"),
        ({"lane": ["compute", None]}, r"tasks row 1: lane must not be null"),
        ({"start_ns": ["10", "soon"]}, r"tasks row 1: start_ns must be Int64, not 'soon'"),
        ({"rank": [0, 2**40]}, r"tasks row 1: rank must be Int32, not 1099511627776"),
        ({"start_ns": [10.5, 20.0]}, r"tasks: column start_ns must be Int64, not Float64"),
        ({"colour": ["red", "blue"]}, r"tasks: column colour is unknown"),
    ],
)
def test_a_table_that_breaks_a_rule_is_refused_by_row_and_rule(columns, message):
    with pytest.raises(TimelineError, match=message):
        Timeline(tasks(**columns))


def test_a_missing_column_is_named():
    with pytest.raises(TimelineError, match="tasks: column end_ns is missing"):
        Timeline(tasks().drop("end_ns"))


def test_every_task_must_be_of_a_known_rank_and_every_rank_known_once():
    with pytest.raises(TimelineError, match="tasks row 1: rank 1 is not in ranks"):
        Timeline(tasks(), pl.DataFrame({"rank": [0], "host": ["a"]}))
    with pytest.raises(TimelineError, match="ranks row 1: rank 0 appears twice"):
        Timeline(tasks(rank=[0, 0]), pl.DataFrame({"rank": [0, 0], "host": ["a", "b"]}))


def test_joining_two_traces_of_one_rank_names_both():
    parts = [
        Timeline(tasks(), None, Run(origins=(Origin("native", None, path),)))
        for path in ("a.bubbles", "b.bubbles")
    ]
    with pytest.raises(
        TimelineError, match=r"rank 0 is claimed by two traces: a.bubbles and b.bubb"
    ):
        concat(parts)
    with pytest.raises(TimelineError, match="nothing to concatenate"):
        concat([])


def test_joined_runs_agree_on_what_they_declare_or_declare_nothing():
    def part(rank: int, schedule: str | None, microbatches: int | None) -> Timeline:
        run = Run(schedule=schedule, microbatches=microbatches)
        return Timeline(tasks(rank=[rank, rank]), None, run)

    joined = concat([part(0, "1f1b", 8), part(1, None, 8), part(2, "1f1b", 4)])
    assert (joined.run.schedule, joined.run.microbatches) == ("1f1b", None)


@pytest.mark.parametrize("size", [0, 4, 100])
def test_a_truncated_bundle_is_one_clear_error(tmp_path, size):
    path = Timeline(tasks()).save(tmp_path / "run.parquet")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(SourceError, match=r"run\.parquet: cannot be read as Parquet"):
        Timeline.load(path)


def test_parquet_that_is_no_bundle_is_refused(tmp_path):
    tasks().write_parquet(tmp_path / "other.parquet")
    with pytest.raises(SourceError, match="not a timeline that bubblescope saved"):
        Timeline.load(tmp_path / "other.parquet")
    with pytest.raises(SourceError, match="no such file"):
        Timeline.load(tmp_path / "absent.parquet")


def test_a_timeline_describes_itself():
    timeline = Timeline(tasks())
    assert repr(timeline) == "Timeline(2 tasks, 2 ranks, 1 steps, 0.000 ms)"
    assert (timeline.start_ns, timeline.end_ns, timeline.duration_ns) == (10, 35, 25)
    assert len(timeline) == 2
    assert timeline != "something else"
