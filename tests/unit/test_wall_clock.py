"""Where the time of whole steps goes."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from bubblescope.analysis import wall_clock as wall_clock_module
from bubblescope.analysis.study import study
from bubblescope.analysis.verdict import Verdict
from bubblescope.analysis.wall_clock import wall_clock
from bubblescope.model.kinds import COMPUTE_KINDS, Kind, Lane
from bubblescope.model.timeline import Timeline
from bubblescope.model.whole_steps import PASSES, UNRECORDED
from bubblescope.render.text.report import Report
from bubblescope.render.text.why import Explanation
from synthetic import one_f_one_b
from unsynchronised import Pipeline

MS = 1_000_000


def run():
    return one_f_one_b(ranks=3, microbatches=4, steps=4, hosts=1, comm=False)


def spread(timeline, factor):
    """Put time between steps: the pipeline works in the first part of each."""
    origin = timeline.start_ns
    first = timeline.tasks.group_by("step").agg(opens=pl.col("start_ns").min())
    tasks = timeline.tasks.join(first, on="step", how="left", maintain_order="left")
    moved = (pl.col("opens") - origin) * (factor - 1)
    times = ["start_ns", "end_ns", "host_start_ns", "host_end_ns"]
    return tasks.with_columns(pl.col(times) + moved).drop("opens")


def beside(timeline, kind, name, start_ns, length_ns, lane=Lane.HOST):
    """Return tasks of all ranks and steps so long after the step's first start."""
    return (
        timeline.group_by("rank", "step", maintain_order=True)
        .agg(pl.col("start_ns").min())
        .with_columns(
            start_ns=pl.col("start_ns") + start_ns,
            kind=pl.lit(kind.value),
            lane=pl.lit(lane.value),
            name=pl.lit(name),
        )
        .with_columns(end_ns=pl.col("start_ns") + length_ns)
    )


def with_pauses(*pauses):
    healthy = run()
    tasks = spread(healthy, 4).select(run().tasks.columns)
    plain = tasks.with_columns(pl.col("kind", "lane").cast(pl.String))
    added = [beside(tasks, *pause) for pause in pauses]
    return Timeline(pl.concat([plain, *added], how="diagonal"), healthy.ranks, healthy.run)


def taken_apart(timeline):
    return wall_clock(timeline, study(timeline).ledger)


def test_every_nanosecond_of_a_step_is_something():
    found = taken_apart(with_pauses((Kind.DATA, "data", 20 * MS, 9 * MS)))
    sums = found.table.group_by("rank", "step").agg(pl.col("spent_ns", "phase_ns").sum())
    steps = found.steps.join(sums, on=["rank", "step"])
    assert steps.height == 3 * 3  # the last of each rank has no end
    assert (steps["spent_ns"] == steps["end_ns"] - steps["start_ns"]).all()
    assert (found.table["phase_ns"] <= found.table["spent_ns"]).all()
    assert (found.table["phase_ns"] >= 0).all()


def test_what_is_beside_the_passes_is_told_with_its_length():
    found = taken_apart(
        with_pauses(
            (Kind.DATA, "data", 20 * MS, 9 * MS),
            (Kind.OTHER, "checkpoint", 31 * MS, 4 * MS),
            (Kind.OTHER, "evaluation", 36 * MS, 2 * MS),
        )
    )
    totals = {row["what"]: row for row in found.totals().to_dicts()}
    assert totals["data loading"]["per_step_ns"] == 9 * MS
    assert totals["checkpoint"]["per_step_ns"] == 4 * MS
    assert totals["evaluation"]["per_step_ns"] == 2 * MS
    for name in ("data loading", "checkpoint", "evaluation"):
        assert totals[name]["outside_ns"] == totals[name]["per_step_ns"]
    assert totals[PASSES]["outside_ns"] == 0
    assert sum(row["share"] for row in totals.values()) == pytest.approx(1)


def test_of_tasks_that_overlap_the_first_in_order_counts():
    """A collection of garbage within a forward is part of it; one while data is loaded is not data."""
    found = taken_apart(
        with_pauses(
            (Kind.GC, "gc", 0, 100_000),  # on rank 0 within a forward
            (Kind.DATA, "data", 20 * MS, 9 * MS),
            (Kind.GC, "gc", 21 * MS, 1 * MS),
        )
    )
    of_first = found.table.filter(rank=0, step=0)
    spent = dict(of_first.select("what", "spent_ns").iter_rows())
    assert spent["garbage collection"] == 1 * MS
    assert spent["data loading"] == 8 * MS


def test_it_agrees_with_counting_nanosecond_by_nanosecond():
    """By marking every microsecond of a step, in Python."""
    timeline = with_pauses(
        (Kind.DATA, "data", 15 * MS, 9 * MS), (Kind.OTHER, "log", 18 * MS, 9 * MS)
    )
    found = taken_apart(timeline)
    tasks = timeline.tasks.with_columns(pl.col("start_ns", "end_ns") // 1000)
    passes = {kind.value for kind in COMPUTE_KINDS}
    for row in found.steps.to_dicts():
        begin, end = row["start_ns"] // 1000, row["end_ns"] // 1000
        marks = np.zeros(end - begin, int)
        own = tasks.filter(rank=row["rank"])
        for rank, wanted in ((1, {"other"}), (2, {"data"}), (3, {"optimizer"}), (4, passes)):
            for task in own.filter(pl.col("kind").is_in(list(wanted))).to_dicts():
                marks[max(0, task["start_ns"] - begin) : max(0, task["end_ns"] - begin)] = rank
        spent = found.table.filter(rank=row["rank"], step=row["step"])
        expected = dict(
            zip((UNRECORDED, "log", "data loading", "optimizer", PASSES), range(5), strict=True)
        )
        for what, mark in expected.items():
            said = spent.filter(what=what)["spent_ns"].sum() / 1000
            assert said == pytest.approx((marks == mark).sum(), abs=60), what


def test_a_run_of_one_step_has_no_whole_one():
    assert taken_apart(run().slice(steps=[1])) is None


def test_steps_between_which_some_were_not_recorded_are_left_out():
    found = taken_apart(run().slice(steps=[0, 1, 3]))
    assert found.steps["step"].unique().to_list() == [0]


def test_where_steps_overlap_no_time_is_of_the_pipeline_phase_twice():
    """Ranks begin a step while others are in the one before: both phases are on."""
    found = taken_apart(Pipeline("zb-h2", (1.0, 1.0, 1.0, 1.0), rest=0.0).play())
    sums = found.table.group_by("rank", "step").agg(pl.col("spent_ns", "phase_ns").sum())
    assert (sums["phase_ns"] <= sums["spent_ns"]).all()
    assert (found.table["phase_ns"] <= found.table["spent_ns"]).all()


def test_a_phase_within_others_counts_once():
    edges = pl.DataFrame([(0, 40), (40, 100), (100, 200)], ["start_ns", "end_ns"], orient="row")
    steps = edges.with_row_index("step").with_columns(rank=0)
    ends = [(0, 50), (10, 45), (20, 30), (60, 70), (90, 120)]
    phases = pl.DataFrame(ends, ["start_ns", "end_ns"], orient="row").with_columns(rank=0)
    table = wall_clock_module.taken_apart(run().tasks.clear(), steps, phases, ())
    assert table.select("step", "phase_ns").rows() == [(0, 40), (1, 10 + 10 + 10), (2, 20)]


def test_report_and_why_tell_it():
    timeline = with_pauses((Kind.DATA, "data", 20 * MS, 9 * MS))
    report, why = Report.of(timeline), Explanation.of(timeline)
    assert "data loading" in str(report)
    said = json.loads(report.to_json())["wall_clock"]
    assert said == json.loads(why.to_json())["wall_clock"]
    assert sum(row["per_step_ns"] for row in said["spent"]) == pytest.approx(said["step_ns"], abs=9)
    first = why.findings[0]
    assert (first.role, first.key) == ("verdict", "whole_step")
    [data] = [one for one in why.findings if one.values.get("what") == "data loading"]
    assert data.values["rank_ns"] == data.values["mean_ns"] == 9 * MS
    assert "9.000 ms" in str(why)
    for language in ("en", "zh"):
        assert "{" not in str(Explanation.of(timeline, language=language))


def test_a_long_first_step_is_evidence_and_no_remedy_of_a_page():
    timeline = with_pauses((Kind.DATA, "data", 20 * MS, 9 * MS))
    times = ["start_ns", "end_ns", "host_start_ns", "host_end_ns"]
    later_ns = pl.when(pl.col("step") > 0).then(pl.lit(3_000 * MS)).otherwise(0)
    tasks = timeline.tasks.with_columns(pl.col(times) + later_ns)
    first_is_long = Timeline(tasks, timeline.ranks, timeline.run)
    findings = Explanation.of(first_is_long).findings
    assert [one.key for one in findings[:2]] == ["whole_step", "warm_up"]
    remedies = Verdict.of(first_is_long, study(first_is_long)).remedies
    assert "warm_up" not in {one.key for one in remedies}
    assert [one.key for one in remedies if one.spent_ns] == ["no_task"]


def test_a_step_that_is_all_pipeline_needs_no_word():
    packed = run()
    passes = [kind.value for kind in COMPUTE_KINDS]
    alone = Timeline(packed.tasks.filter(pl.col("kind").is_in(passes)), packed.ranks, packed.run)
    findings = Explanation.of(with_gaps_of(alone, 100_000)).findings
    assert not [one for one in findings if one.key == "whole_step"]


def with_gaps_of(timeline, gap_ns):
    """Return the same steps with only so much time between one and the next."""
    times = ["start_ns", "end_ns", "host_start_ns", "host_end_ns"]
    window = timeline.tasks.group_by("step").agg(
        opens=pl.col("start_ns").min(), length=pl.col("end_ns").max() - pl.col("start_ns").min()
    )
    window = window.sort("step").with_columns(
        to=(pl.col("length") + gap_ns).cum_sum() - pl.col("length")
    )
    tasks = timeline.tasks.join(window, on="step").with_columns(
        pl.col(times) - pl.col("opens") + pl.col("to")
    )
    kept = tasks.select(timeline.tasks.columns)
    return Timeline(kept, timeline.ranks, timeline.run)


@pytest.mark.parametrize("ranks", [[0], [0, 1, 2]])
def test_what_a_rank_spends_is_set_beside_the_mean_of_all_where_there_are_others(ranks):
    timeline = with_pauses((Kind.DATA, "data", 20 * MS, 9 * MS)).slice(ranks=ranks)
    said = " ".join(str(Explanation.of(timeline)).split())
    assert "Rank 0 spends 9.000 ms a step" in said
    assert ("the mean of all ranks is" in said) is (len(ranks) > 1)
    found = Verdict.of(timeline, study(timeline)).remedies
    assert any(one.headline == "Load data in the background." and one.spent_ns for one in found)
