"""The Perfetto trace, where it says more than the tasks' own intervals."""

from __future__ import annotations

import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.render.traces import perfetto
from bubblescope.render.traces.slices import ARGUMENTS, flows, step_spans
from synthetic import ORIGIN, hostile, one_f_one_b, staggered
from trace_processor import AROUND, opened, seen_tracks

ARROWS = """
    select a.name || ' -> ' || b.name as arrow
    from flow join slice a on slice_out = a.id join slice b on slice_in = b.id order by 1
"""


def test_steps_that_overlap_keep_their_true_extent(tmp_path):
    """One track nests its slices: on it, the step that began first would end when the other did."""
    with opened(perfetto.write(staggered(), tmp_path / "run.pftrace")) as query:
        assert query("select name, ts, dur from slice where category = 'steps' order by ts") == [
            ("step 0", ORIGIN, 220),
            ("step 1", ORIGIN + 150, 180),
        ]
        assert query("select name from stats where severity = 'error' and value > 0") == []


def test_steps_come_first_and_ranks_follow_on_as_many_rows_as_they_take(tmp_path):
    with opened(perfetto.write(staggered(), tmp_path / "run.pftrace")) as query:
        assert seen_tracks(query) == [
            ("steps", "steps"),
            ("steps", "steps 2"),
            ("rank 0 · unknown", "compute"),
            ("rank 0 · unknown", "comm"),
            ("rank 1 · unknown", "compute"),
            ("rank 1 · unknown", "comm"),
            ("rank 1 · unknown", "host"),
        ]


def test_a_send_and_its_receive_are_joined_even_if_the_receive_was_waiting(tmp_path):
    """Readers draw an arrow from the end that began first, so the second one points back."""
    with opened(perfetto.write(staggered(), tmp_path / "run.pftrace")) as query:
        assert [arrow for (arrow,) in query(ARROWS)] == [
            "RF0 82 ns -> SF0 10 ns",
            "SF0 10 ns -> RF0 7 ns",
        ]


def test_every_task_keeps_its_length_when_a_zero_length_one_touches_it(tmp_path):
    with opened(perfetto.write(staggered(), tmp_path / "run.pftrace")) as query:
        assert query("select dur from slice where category = 'gc' order by dur") == [(0,), (5,)]


def test_arguments_are_exact_and_unknown_ones_left_out(tmp_path):
    with opened(perfetto.write(staggered(), tmp_path / "run.pftrace")) as query:
        said = query(
            "select key, coalesce(string_value, cast(int_value as text)) as value from slice "
            "join args using (arg_set_id) where slice.name = 'SF0 10 ns' "
            f"and ts = {ORIGIN + 100} and key like 'debug.%'"
        )
    assert {key.removeprefix("debug."): value for key, value in said} == {
        "kind": "send_forward",
        "name": "send_forward",
        "step": "0",
        "microbatch": "0",
        "peer": "1",
        "host_start_ns": str(ORIGIN + 93),
    }


def test_times_are_utc(tmp_path):
    timeline = one_f_one_b(ranks=2, microbatches=2, steps=1)
    with opened(perfetto.write(timeline, tmp_path / "run.pftrace")) as query:
        assert query("select min(ts) from slice") == [(ORIGIN,)]


def test_a_hostile_name_loses_no_slice(tmp_path):
    timeline = hostile()
    with opened(perfetto.write(timeline, tmp_path / "run.pftrace")) as query:
        assert query(f"select count(*) from slice where category not in {AROUND}") == [
            (len(timeline),)
        ]


def test_only_a_pair_that_is_beyond_doubt_is_an_arrow():
    def pairs(*changes: pl.Expr) -> int:
        return flows(Timeline(staggered().tasks.with_columns(*changes))).height

    assert pairs() == 2
    assert pairs(pl.lit(None, pl.Int32).alias("peer")) == 0  # nobody says with whom
    assert pairs(pl.lit(None, pl.Int32).alias("microbatch")) == 0  # nor what
    assert pairs(pl.lit(0, pl.Int32).alias("step")) == 0  # two of each look the same
    received = pl.col("kind") == "recv_forward"
    early = [
        pl.col(time) - pl.when(received).then(300).otherwise(0) for time in ("start_ns", "end_ns")
    ]
    assert pairs(*early) == 0  # no receive ends before its send starts


def test_a_waiting_receives_arrow_arrives_when_its_send_starts():
    arrows = flows(staggered())
    assert arrows["flow"].to_list() == [1, 2]
    assert arrows["at_ns"].to_list() == [ORIGIN + 105, ORIGIN + 300]


@pytest.mark.parametrize(
    ("per_rank", "expected"),
    [
        (False, [(0, 0, 0, 220, 0), (0, 1, 150, 330, 1)]),
        (True, [(0, 0, 0, 110, 0), (0, 1, 150, 310, 0), (1, 0, 112, 220, 0), (1, 1, 312, 330, 0)]),
    ],
)
def test_step_spans_take_rows_only_where_they_overlap(per_rank, expected):
    spans = step_spans(staggered().tasks, per_rank=per_rank)
    assert [
        (rank, step, start - ORIGIN, end - ORIGIN, row)
        for rank, step, start, end, row in spans.rows()
    ] == expected


def test_arguments_leave_out_only_what_a_slices_place_shows():
    shown = {"rank", "lane", "start_ns", "end_ns"}
    assert set(ARGUMENTS) == set(staggered().tasks.columns) - shown
