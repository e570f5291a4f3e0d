"""Simulation: a plan and its costs become a timeline like any other."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bubblescope import sources
from bubblescope.cli import cli
from bubblescope.facade import write
from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind
from bubblescope.render.formats import FORMATS
from bubblescope.render.text.report import Report
from bubblescope.schedules import LINEAR, SCHEDULES, generate, torch_csv
from bubblescope.schedules.simulate import Costs, durations, run, simulate, transfer_ns
from bubblescope.schedules.zb_auto import Times

F, B = Kind.FORWARD.value, Kind.BACKWARD.value


def compute(timeline):
    return timeline.tasks.filter(pl.col("lane") == "compute")


@given(st.sampled_from(LINEAR), st.integers(1, 5), st.integers(1, 8), st.integers(0, 4))
def test_tasks_neither_overlap_nor_start_before_what_they_need(name, p, m, comm):
    timeline = simulate(generate(name, p, m), Costs(5, 7, 3, comm_ns=comm), steps=2)
    tasks = compute(timeline)
    for _, lane in tasks.group_by("rank"):
        ordered = lane.sort("start_ns")
        assert (ordered["start_ns"][1:] >= ordered["end_ns"][:-1]).all()
    at = {
        (step, kind, stage, i): (start, end)
        for step, kind, stage, i, start, end in tasks.select(
            "step", "kind", "stage", "microbatch", "start_ns", "end_ns"
        ).iter_rows()
    }
    for (step, kind, stage, i), (start, _) in at.items():
        way = {F: -1, B: 1, "backward_input": 1}.get(kind)
        before = at.get((step, kind, stage + way, i)) if way else None
        if before:
            assert start >= before[1] + comm


def test_durations_are_numbers_tables_or_functions():
    plan = generate("1f1b", 2, 3)
    table = [[10, 20, 30], [40, 50, 60]]
    for forward in (table, np.array(table), lambda stage, i: 30 * stage + 10 * (i + 1)):
        taken = durations(plan, Costs(forward, [1, 2], 0))
        forwards = plan.kind == 0
        assert taken[forwards].tolist() == [
            table[stage][i]
            for stage, i in zip(plan.stage[forwards], plan.microbatch[forwards], strict=True)
        ]
        assert set(taken[~forwards & (plan.stage == 1)]) == {2}
    assert set(durations(plan, Costs(1, 2, 3, backward_ns=4))) == {1, 4}


def test_an_overlapped_pair_takes_its_own_time_or_the_sum():
    plan = generate("dualpipev", 2, 4)
    pairs = plan.kind == 4
    assert set(durations(plan, Costs(3, 2, 2))[pairs]) == {7}
    assert set(durations(plan, Costs(3, 2, 2, forward_backward_ns=5))[pairs]) == {5}


def test_transfers_are_a_number_a_table_or_a_function():
    plan = generate("1f1b", 3, 1)
    table = np.array([[0, 7, 0], [5, 0, 9], [0, 3, 0]])
    ends = run(plan, Costs(10, 10, 10, comm_ns=table)).end_ns.max()
    assert ends == 6 * 10 + 3 * 10 + 7 + 9 + 3 + 5

    def link(sends, waits):
        return int(table[sends.stage, waits.stage])

    assert run(plan, Costs(10, 10, 10, comm_ns=link)).end_ns.max() == ends
    assert transfer_ns(1_000_000, 100e9, latency_ns=5_000) == 15_000


def test_transfers_are_tasks_of_both_ends():
    timeline = simulate(generate("1f1b", 2, 1), Costs(10, 5, 5, comm_ns=3))
    rows = timeline.tasks.filter(pl.col("lane") == "comm").select(
        "rank", "kind", "stage", "microbatch", "peer", "start_ns", "end_ns"
    )
    assert sorted(rows.rows()) == [
        (0, "recv_backward", 0, 0, 1, 33, 36),
        (0, "send_forward", 0, 0, 1, 10, 13),
        (1, "recv_forward", 1, 0, 0, 10, 13),
        (1, "send_backward", 1, 0, 0, 33, 36),
    ]


def test_the_optimizer_waits_for_all_or_only_for_its_device():
    plan = generate("1f1b", 2, 1)
    for sync, starts in ((None, [40, 30]), (0, [40, 40]), (6, [46, 46])):
        timeline = simulate(plan, Costs(10, 5, 5, sync_ns=sync, optimizer_ns=4), steps=2)
        optimizer = timeline.tasks.filter(pl.col("kind") == "optimizer").sort("step", "rank")
        assert optimizer["start_ns"].to_list()[:2] == starts
        first = compute(timeline).filter(pl.col("step") == 1, pl.col("kind") == F).sort("rank")
        assert first["start_ns"][0] == starts[0] + 4  # the next step begins when it is done
        collectives = timeline.tasks.filter(pl.col("kind") == "collective")
        assert len(collectives) == (4 if sync else 0)


@pytest.mark.parametrize(
    ("costs", "why"),
    [
        (Costs([1, 2, 3], 1, 1), r"forward_ns has the shape \(3,\), but the plan has 2 stages"),
        (Costs(-1, 1, 1), "forward_ns is negative"),
        (Costs(1, 1, 1, comm_ns=np.zeros((3, 3))), r"comm_ns has the shape \(3, 3\)"),
        (Costs(1, 1, 1, comm_ns=-2), "comm_ns is negative"),
    ],
)
def test_costs_that_do_not_fit_are_refused(costs, why):
    with pytest.raises(ScheduleError, match=why):
        simulate(generate("1f1b", 2, 4), costs)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_simulated_run_reports_and_exports_like_a_measured_one(tmp_path, name):
    times = Times(400, 400, 400, 8)
    plan = generate(name, 4, 8, times=times, memory=4 if name == "zb-auto" else None)
    timeline = simulate(plan, Costs.shared(plan, times), steps=2)
    assert timeline.run.schedule == name
    assert "out of its order" not in str(Report.of(timeline))
    for fmt, known in FORMATS.items():
        write(timeline, tmp_path / f"run{known.suffix}", to=fmt)
    again = sources.load(tmp_path / "run.bubbles.parquet")
    assert again.tasks.equals(timeline.tasks)


def invoke(*arguments: str):
    return CliRunner().invoke(cli, ["simulate", *arguments], catch_exceptions=True)


SIZE = ("--stages", "4", "--microbatches", "8")


def test_the_command_prints_the_report_and_the_memory():
    result = invoke("--schedule", "zb-v", *SIZE, "--backward-weight", "8ms", "--comm", "0.3ms")
    assert result.exit_code == 0
    assert "zb-v, 4 devices, 8 micro-batches, stages in a V of 2 chunks" in result.output
    assert "Peak memory  4 micro-batches' activations at most" in result.output


def test_the_command_prints_json(tmp_path):
    result = invoke("--schedule", "1f1b", *SIZE, "--json", "-o", str(tmp_path / "x.svg"))
    said = json.loads(result.output)
    assert said["schedule"]["schedule"] == "1f1b"
    assert said["peak_memory"] == [4, 3, 2, 1]
    assert said["bubble"]["overall"]["makespan"] == pytest.approx(3 / 11)
    assert (tmp_path / "x.svg").exists()


def test_the_command_writes_any_format_and_the_plan(tmp_path):
    page, plan = tmp_path / "run.html", tmp_path / "plan.csv"
    result = invoke("--schedule", "zb-2p", *SIZE, "-o", str(page), "--plan", str(plan))
    assert f"wrote {page}" in result.output.replace("\n", "")
    assert page.read_text().startswith("<!doctype html>")
    assert torch_csv.read(plan).order(0) == generate("zb-2p", 4, 8).order(0)
    own = invoke("--schedule", str(plan), "-o", str(page))
    assert "plan (as given)" in own.output
    assert "plan (as given)" in page.read_text()
    for fmt in FORMATS:
        out = tmp_path / f"x.{fmt}"
        assert invoke("--schedule", "gpipe", *SIZE, "--to", fmt, "-o", str(out)).exit_code == 0
        assert out.exists()


def test_comparing_prints_a_table_and_draws_a_picture(tmp_path):
    picture = tmp_path / "all.svg"
    names = "gpipe,1f1b,zb-2p,dualpipe,dualpipev"
    arguments = ("--compare", names, "--stages", "4", "--microbatches", "7")
    result = invoke(*arguments, "-o", str(picture))
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["gpipe", "1f1b", "zb-2p"]
    assert "fastest" in next(line for line in lines if line.startswith("zb-2p"))
    assert "dualpipe: dualpipe needs an even number of devices and" in result.output
    drawn = picture.read_text()
    assert drawn.count("bubble rate") == 3
    rows = json.loads(invoke(*arguments, "--json", "-o", str(picture)).output)
    assert [row["schedule"] for row in rows] == names.split(",")
    assert rows[1]["makespan"] == pytest.approx(3 / 10)
    assert rows[1]["peak_memory"] == 4
    assert "even number" in rows[3]["problem"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--schedule", "1f1b"), "give --stages and --microbatches"),
        (("--forward", "10", *SIZE), "'10' is not like 10ms, 300us or 1.5s"),
        (("--schedule", "nonsense", *SIZE), "'nonsense' is no schedule"),
        (("--compare", "1f1b,nonsense", *SIZE), "'nonsense' is no schedule"),
        (("--compare", "dualpipe", "--stages", "3", "--microbatches", "8"), "an even number"),
        (("--schedule", "no.csv"), "no.csv: cannot be read as a schedule"),
        ((*SIZE, "-o", "x.docx"), "x.docx has the ending of no format"),
        ((*SIZE, "-o", "no/such/x.svg"), "no/such does not exist; make it first"),
        ((*SIZE, "--plan", "no/such/x.csv"), "no/such does not exist; make it first"),
        (("--compare", "1f1b", *SIZE, "-o", "no/such/x.svg"), "no/such does not exist"),
    ],
)
def test_mistakes_get_one_clear_error(arguments, why):
    result = invoke(*arguments)
    assert result.exit_code != 0
    assert why in result.output + str(result.exception)


def test_times_have_units():
    result = invoke("--json", *SIZE, "--forward", "1.5s", "--comm", "2us", "--backward", "20 ms")
    kinds = {kind["kind"]: kind["median_ns"] for kind in json.loads(result.output)["kinds"]}
    assert kinds["forward"] == 1_500_000_000
    assert kinds["backward"] == 20_000_000
    assert kinds["send_forward"] == 2_000


def test_schedules_are_listed_with_formula_and_source():
    result = CliRunner().invoke(cli, ["schedules"])
    for name, schedule in SCHEDULES.items():
        assert f"{name}  {schedule.title}" in result.output
        assert schedule.bubble in result.output
        assert schedule.source.split(",")[0] in result.output
    listed = json.loads(CliRunner().invoke(cli, ["schedules", "--json"]).output)
    assert [one["name"] for one in listed] == list(SCHEDULES)
