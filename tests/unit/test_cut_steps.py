"""Steps that were not recorded whole are left out of all that is compared across ranks."""

from __future__ import annotations

import json

import polars as pl
import pytest

from bubblescope.analysis.pipeline_phase import cut_steps, partial_steps
from bubblescope.analysis.step_measures import step_measures
from bubblescope.analysis.study import study
from bubblescope.analysis.wall_clock import wall_clock
from bubblescope.model.timeline import Timeline
from bubblescope.render.text.report import Report
from bubblescope.render.text.why import Explanation
from bubblescope.schedules import SCHEDULES, generate
from bubblescope.schedules.simulate import Costs, simulate

COSTS = Costs(10_000_000, 11_000_000, 9_000_000)
FITTING = [name for name in SCHEDULES if not name.startswith(("zb-1p", "zb-2p", "zb-auto"))]
ALL = pl.lit(value=True)


def run(name="1f1b", steps=6, microbatches=8):
    chunks = 2 if SCHEDULES[name].any_chunks else None
    return simulate(generate(name, 4, microbatches, chunks=chunks), COSTS, steps=steps)


def only(timeline, kept):
    return Timeline(timeline.tasks.filter(kept), timeline.ranks, timeline.run)


def lost(timeline, step, rank):
    """Leave out a few forwards of a step on one rank."""
    gone = (pl.col("step") == step) & (pl.col("rank") == rank) & (pl.col("microbatch") == 5)
    return only(timeline, ~gone)


@pytest.mark.parametrize("name", FITTING)
def test_whole_steps_are_not_cut(name):
    assert cut_steps(run(name).tasks) == []


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb-h1", "interleaved-1f1b"])
def test_steps_that_a_recording_begins_or_ends_in_are_cut(name):
    timeline = run(name)
    first, last = (timeline.tasks.filter(step=step) for step in (0, 5))
    begun = pl.col("start_ns") > int(first["start_ns"].quantile(0.6))
    ended = pl.col("end_ns") < int(last["end_ns"].quantile(0.4))
    assert cut_steps(timeline.tasks.filter(begun)) == [0]
    assert cut_steps(timeline.tasks.filter(ended)) == [5]
    assert cut_steps(timeline.tasks.filter(begun, ended)) == [0, 5]


def test_batches_that_grow_are_whole():
    """A step has fewer tasks than the others, but all of its micro-batches went all the way."""
    small = only(run(), (pl.col("step") >= 2) | (pl.col("microbatch") < 4))
    assert small.tasks.filter(step=0).height < small.tasks.filter(step=5).height
    assert cut_steps(small.tasks) == []
    assert cut_steps(lost(small, 4, 2).tasks) == [4]
    cut = (pl.col("step") != 1) | (pl.col("microbatch") < 3) | (pl.col("rank") > 0)
    assert cut_steps(only(small, cut).tasks) == [1]


def test_what_most_steps_lack_is_not_missing():
    some = run().tasks.filter((pl.col("rank") != 2) | (pl.col("microbatch") != 5))
    assert cut_steps(some) == []
    assert cut_steps(run(steps=1).tasks.filter(pl.col("end_ns") < 100_000_000)) == []
    unnamed = run().tasks.with_columns(microbatch=pl.lit(None, pl.Int32))
    assert cut_steps(unnamed) == []


def test_steps_that_lost_tasks_are_left_out_by_all_and_counted():
    healthy, timeline = run(), lost(run(), 3, 1)
    assert partial_steps(timeline) == [3]
    without = only(healthy, pl.col("step") != 3)
    expected, found = study(without), study(timeline)
    for name in ("makespan", "idle_ns", "makespan_ns", "excess", "no_wait"):
        wanted = pytest.approx(getattr(expected.bubbles.overall, name), abs=1e-12)
        assert getattr(found.bubbles.overall, name) == wanted
    assert found.ledger.totals().equals(expected.ledger.totals())
    rates = found.bubbles.per_step[3]
    assert rates.makespan is None
    assert rates.unknown["makespan"].startswith("the step lacks forwards or backwards that others")
    [notice] = found.bubbles.notices
    assert (notice.code, notice.lost, notice.total) == ("cut-steps", 1, 6)
    said = "step 3 not compared across ranks: it lacks forwards or backwards that others have"
    for answer in (Report.of(timeline), Explanation.of(timeline)):
        assert said in {row["message"] for row in json.loads(answer.to_json())["warnings"]}
        assert said in " ".join(str(answer).split())
    assert step_measures("A", timeline).side.left_out == (3,)
    assert 3 not in wall_clock(timeline, found.ledger).steps["step"].to_list()


def in_turn(steps, models=2, rest=50):
    """Return a run of one rank that trains models in turn, each a stage, and rests before each step."""
    rows = []
    for step in range(steps):
        for at, kind in enumerate(("forward", "backward")):
            begin = step * (100 + rest) + 50 * at
            rows.append((step, step % models, kind, begin, begin + 50))
    names = ["step", "stage", "kind", "start_ns", "end_ns"]
    tasks = pl.DataFrame(rows, schema=names, orient="row")
    return Timeline(
        tasks.with_columns(rank=0, microbatch=0, lane=pl.lit("compute"), name=pl.lit("x"))
    )


@pytest.mark.parametrize("models", [2, 3])
def test_models_that_are_trained_in_turn_lack_nothing(models):
    timeline = in_turn(12, models)
    assert cut_steps(timeline.tasks) == []
    wall = wall_clock(timeline, study(timeline).ledger)
    assert (wall.steps.height, wall.step_ns) == (11, 150)
    assert dict(wall.totals().select("what", "per_step_ns").iter_rows()) == {
        "forward and backward": 100,
        "in no task": 50,
    }


def test_a_model_may_be_trained_more_often_than_the_other():
    """As the critic of a GAN: one of its turns is three steps."""
    timeline = in_turn(12, models=3)
    tasks = timeline.tasks.with_columns(stage=pl.col("stage") // 2)
    assert tasks["stage"].unique().to_list() == [0, 1]
    assert cut_steps(tasks) == []
    lost_one = (pl.col("step") != 4) | (pl.col("kind") != "backward")
    assert 4 in cut_steps(tasks.filter(lost_one))


def test_what_is_lost_now_and_then_is_missing_however_often():
    timeline = run(steps=12)
    for step in (1, 4, 6):
        timeline = lost(timeline, step, 1)
    assert cut_steps(timeline.tasks) == [1, 4, 6]


def test_a_first_step_that_is_much_longer_than_the_others_is_named():
    timeline = in_turn(6, models=1)
    late = pl.col("step") > 0
    tasks = timeline.tasks.with_columns(
        pl.col("start_ns", "end_ns") + pl.when(late).then(900).otherwise(0)
    )
    said = " ".join(str(Explanation.of(Timeline(tasks))).split())
    assert "Step 0 takes 1.050 µs, 7.00 times the median of the others, 150 ns" in said
    assert "times the median" not in str(Explanation.of(timeline))
