"""Simulation: a plan and its costs become a timeline like any other."""

from __future__ import annotations

import json
import os

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import bubblescope
from bubblescope import sources
from bubblescope.cli import cli
from bubblescope.demo.options import Options
from bubblescope.facade import write
from bubblescope.model.errors import BubblescopeError, ScheduleError
from bubblescope.model.kinds import Kind
from bubblescope.render.formats import FORMATS
from bubblescope.render.text.report import Report
from bubblescope.schedules import LINEAR, SCHEDULES, generate, named, torch_csv
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
    result = invoke("--schedule", "zb-2p", *SIZE, "-o", str(page), "--save-plan", str(plan))
    assert f"wrote {page}" in result.output.replace("\n", "")
    assert page.read_text().startswith("<!doctype html>")
    assert torch_csv.read(plan).order(0) == generate("zb-2p", 4, 8).order(0)
    for way in (("--schedule", str(plan)), ("--plan", str(plan))):
        own = invoke(*way, "-o", str(page))
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
    assert [line.split()[0] for line in lines[2:5]] == ["gpipe", "1f1b", "zb-2p"]
    assert "fastest" in next(line for line in lines if line.startswith("zb-2p"))
    assert "dualpipe: dualpipe needs an even number of devices and" in result.output
    drawn = picture.read_text()
    assert drawn.count("bubble rate") == 3
    said = json.loads(invoke(*arguments, "--json", "-o", str(picture)).output)
    assert (said["schema"], said["steps"]) == ("bubblescope.simulate/1", 1)
    rows = said["schedules"]
    assert [row["schedule"] for row in rows] == names.split(",")
    assert rows[1]["makespan"] == pytest.approx(3 / 10)
    assert rows[1]["peak_memory"] == 4
    assert rows[1]["over_ideal"] == pytest.approx(3 / 7)  # (p - 1) / m, as Megatron-LM counts
    assert rows[1]["length_ns"] == 300_000_000
    assert rows[1]["step_ns"] is None
    assert "even number" in rows[3]["problem"]


def test_with_several_steps_a_step_is_from_one_to_the_next():
    """Table 9 of the zero-bubble paper, 1.5B with m = 24 and 28.3B with m = 96: the steps of ZB-2p and
    ZB-H2 are as long by themselves, but follow one another as their longest device allows, which is
    what table 5's bubble rates are of."""
    for p, m, times, rates in (
        (8, 24, (18.522, 18.086, 9.337, 0.601), (0.1585, 0.1083, 0.0433)),
        (32, 96, (10.419, 10.207, 7.715, 0.408), (0.1421, 0.0641, 0.0038)),
    ):
        options = ("--forward", "--backward-input", "--backward-weight", "--comm")
        given = [
            part for one in zip(options, (f"{t}ms" for t in times), strict=True) for part in one
        ]
        size = ("--stages", str(p), "--microbatches", str(m), "--steps", "8", "-o", os.devnull)
        said = json.loads(invoke("--compare", "ZB-H1,zbh2,ZB2P", *size, *given, "--json").output)
        found = said["schedules"]
        assert [row["schedule"] for row in found] == ["zb-h1", "zb-h2", "zb-2p"]
        assert [row["longest_span"] for row in found] == pytest.approx(rates, abs=5e-5)
        work = m * sum(times[:3]) * 1e6
        for row, rate in zip(found, rates, strict=True):
            assert row["step_ns"] == pytest.approx(work / (1 - rate), rel=1e-4)
        assert found[1]["length_ns"] == pytest.approx(found[2]["length_ns"], rel=1e-3)
    shown = invoke("--compare", "zb-h2,zb-2p", *SIZE, "--steps", "4", "-o", os.devnull).output
    assert "from step to step in the steady state" in " ".join(shown.split())


def test_json_says_how_long_one_step_takes_and_how_long_it_is_to_the_next():
    more = ("--steps", "3", "--optimizer", "7ms", "--sync", "5ms")
    [first, second, last] = json.loads(invoke(*SIZE, *more, "--json").output)["bubble"]["per_step"]
    assert [one["length_ns"] for one in (first, second, last)] == [330_000_000] * 3
    assert [one["to_next_ns"] for one in (first, second, last)] == [342_000_000] * 2 + [None]
    assert first["makespan_ns"] == 4 * 330_000_000  # summed over the ranks
    assert "342.0 ms from step to step" in invoke(*SIZE, *more).output


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("ZB-V", "zb-v"),
        ("zbv", "zb-v"),
        ("ZBVZeroBubble", "zb-v"),
        ("ScheduleZBVZeroBubble", "zb-v"),
        ("1F1B", "1f1b"),
        ("Schedule1F1B", "1f1b"),
        ("forward_backward_pipelining_without_interleaving", "1f1b"),
        ("PipeDream-Flush", "1f1b"),
        ("Interleaved1F1B", "interleaved-1f1b"),
        ("ScheduleInterleaved1F1B", "interleaved-1f1b"),
        ("1F1B-I", "interleaved-1f1b"),
        ("VPP", "interleaved-1f1b"),
        ("ScheduleInterleavedZeroBubble", "interleaved-zb"),
        ("ScheduleLoopedBFS", "looped-bfs"),
        ("ScheduleGPipe", "gpipe"),
        ("FThenB", "gpipe"),
        ("ScheduleDualPipeV", "dualpipev"),
        ("DualPipe", "dualpipe"),
        ("V-Half", "v-half"),
        ("zero bubble h1", "zb-h1"),
        ("Eager1F1B", "eager-1f1b"),
    ],
)
def test_schedules_are_understood_by_the_names_that_others_give_them(name, meaning):
    assert named(name).name == meaning
    listed = CliRunner().invoke(cli, ["schedules", name, "--json"])
    assert [one["name"] for one in json.loads(listed.output)] == [meaning]
    if meaning in LINEAR:
        assert Options(schedule=name).schedule == meaning


def test_every_schedule_of_torch_is_understood():
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    made = [
        name
        for name in vars(schedules)
        if name.startswith("Schedule") and name != "ScheduleWarning"
    ]
    assert len(made) >= 7
    for name in made:
        assert named(name).name in SCHEDULES


def test_a_name_that_is_none_gets_the_nearest():
    for name, near in (
        ("zb-h3", "zb-h"),
        ("interleved", "interleaved-1f1b"),
        ("dualpip", "dualpipe"),
    ):
        with pytest.raises(ScheduleError, match=f"did you mean {near}"):
            named(name)
    with pytest.raises(ScheduleError, match="not a schedule; the schedules are gpipe"):
        named("nonsense")


def test_a_plan_is_a_schedule_like_any_other(tmp_path):
    plan = torch_csv.write(generate("zb-h1", 4, 8), tmp_path / "mine.csv")
    out = ("-o", str(tmp_path / "all.svg"), "--json")
    for way in (("--compare", f"1F1B,{plan}"), ("--compare", "1f1b", "--plan", str(plan))):
        rows = json.loads(invoke(*way, *out).output)["schedules"]
        assert [row["schedule"] for row in rows] == ["1f1b", "mine"]
        assert rows[0]["length_ns"] > rows[1]["length_ns"]  # both of the plan's size
    named_so = invoke("--plan", str(plan), "--schedule", "mine", "--json")
    assert json.loads(named_so.output)["schedule"]["schedule"] in ("zb-h1", "mine")
    before = plan.read_bytes()
    for option, size in (("--stages", "8"), ("--microbatches", "16"), ("--chunks", "2")):
        refused = invoke("--plan", str(plan), option, size)
        assert refused.exit_code == 2
        assert f"{option} says {size}" in refused.output
        assert f"{option} says {size}" in invoke("--compare", f"1f1b,{plan}", option, size).output
    assert plan.read_bytes() == before
    other = torch_csv.write(generate("1f1b", 4, 8), tmp_path / "other.csv")
    several = invoke("--plan", str(plan), "--plan", str(other))
    assert "--plan gives 2 schedules" in several.output
    with pytest.raises(BubblescopeError, match="is for 4 devices and 8 micro-batches"):
        bubblescope.simulate(torch_csv.read(plan), devices=8)


def test_a_plan_named_as_a_known_schedule_is_still_the_plan(tmp_path):
    plan = torch_csv.write(generate("gpipe", 4, 8), tmp_path / "1f1b.csv")
    said = json.loads(invoke("--plan", str(plan), "--json").output)
    assert said["peak_memory"] == [8, 8, 8, 8]


def test_what_the_check_for_deadlocks_is_about_is_said():
    assert "Only the order of computing is checked for deadlocks" in invoke(*SIZE).output
    compared = invoke("--compare", "1f1b", *SIZE, "-o", os.devnull).output
    assert "Only the order of computing is checked for deadlocks" in compared


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--schedule", "1f1b"), "give --stages and --microbatches"),
        (("--forward", "10", *SIZE), "'10' is not like 10ms, 300us or 1.5s"),
        (("--schedule", "nonsense", *SIZE), "'nonsense' is not a schedule"),
        (("--compare", "1f1b,nonsense", *SIZE), "'nonsense' is not a schedule"),
        (("--compare", "dualpipe", "--stages", "3", "--microbatches", "8"), "an even number"),
        (("--schedule", "no.csv"), "no.csv: cannot be read as a schedule"),
        ((*SIZE, "-o", "x.docx"), "x.docx has the ending of no known format"),
        ((*SIZE, "-o", "no/such/x.svg"), "no/such does not exist; make it first"),
        ((*SIZE, "--save-plan", "no/such/x.csv"), "no/such does not exist; make it first"),
        ((*SIZE, "--plan", "no/such/x.csv"), "no/such/x.csv: cannot be read as a schedule"),
        ((*SIZE, "--schedule", "zbw"), "did you mean zb-v?"),
        ((*SIZE, "--schedule", ""), "'' is not a schedule"),
        ((*SIZE, "--compare", "1f1b", "--schedule", "zb-v"), "goes neither with --schedule"),
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
