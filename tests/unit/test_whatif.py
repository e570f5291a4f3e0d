"""Predictions against the truth: the run that really has what was asked about."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from bubblescope import Timeline
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.idle.ledger import ledger
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.analysis.whatif import WhatIf
from bubblescope.cli import cli
from bubblescope.model.errors import ScheduleError
from bubblescope.model.provenance import Run
from bubblescope.schedules import generate, torch_csv
from bubblescope.schedules.simulate import Costs, simulate
from bubblescope.schedules.zb_auto import Times
from injected import Fault, Job, fault, job


def asked(timeline: Timeline) -> WhatIf:
    found = recognise(timeline)
    explained = ledger(timeline, found)
    assert explained is not None
    return WhatIf(found, explained)


def step(timeline: Timeline) -> float:
    """Return the mean pipeline phase of a step."""
    parts = timeline.tasks.filter(lane="compute").partition_by("step")
    return float(np.mean([int(p["end_ns"].max()) - int(p["start_ns"].min()) for p in parts]))


@pytest.mark.parametrize(
    "cause",
    [Cause.IMBALANCE, Cause.SLOW_RANK, Cause.TRANSFER, Cause.PAUSE, Cause.LAUNCH, Cause.ORDER],
)
def test_without_a_cause_a_run_takes_what_it_takes_without_it(cause):
    for seed in range(5):
        random = np.random.default_rng([seed, list(Cause).index(cause)])
        made = job(random)
        try:
            run = made.play(fault(cause, random, made))
        except ScheduleError:
            continue
        said = asked(run).without(cause)
        assert said.step_ns == pytest.approx(step(run), abs=1)
        assert said.predicted_ns == pytest.approx(step(made.play()), rel=1e-6)
        assert said.error == 0


def test_a_slow_rank_made_healthy():
    made = Job(generate("1f1b", 4, 12))
    run = made.play(Fault(Cause.SLOW_RANK, slow={(1, 2): 1.5, (0, 1): 1.2}))
    truth = made.play(Fault(Cause.SLOW_RANK, slow={(0, 1): 1.2}))
    assert asked(run).healthy(6).predicted_ns == pytest.approx(step(truth), abs=2)
    with pytest.raises(ScheduleError, match="no rank 9"):
        asked(run).healthy(9)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_stage_with_other_work(factor):
    made = Job(generate("zb-h1", 4, 12), jitter=0.2)
    run = made.play()
    truth = made.play(Fault(Cause.IMBALANCE, heavy={2: factor}))
    said = asked(run).scaled("stage", 2, factor)
    assert said.predicted_ns == pytest.approx(step(truth), rel=1e-6)


def test_layers_moved_from_stage_to_stage():
    made = Job(generate("1f1b", 4, 12))
    run = made.play()
    truth = made.play(Fault(Cause.IMBALANCE, heavy={0: 1.25, 3: 0.75}))
    said = asked(run).moved(2, 3, 0, [8, 8, 8, 8])
    assert said.predicted_ns == pytest.approx(step(truth), abs=2)
    for wrong in ((9, 3, 0, [8, 8, 8, 8]), (1, 3, 3, [8, 8, 8, 8]), (1, 3, 0, [8, 8])):
        with pytest.raises(ScheduleError):
            asked(run).moved(*wrong)


TIMES = Times(10_000_000, 11_000_000, 9_000_000, 300_000)


def simulated(name: str, microbatches: int = 16, chunks: int | None = None) -> Timeline:
    plan = generate(name, 4, microbatches, chunks=chunks, times=TIMES)
    played = simulate(plan, Costs.shared(plan, TIMES), steps=2)
    return Timeline(played.tasks, played.ranks, Run())


@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("gpipe", None),
        ("1f1b", None),
        ("eager-1f1b", None),
        ("zb-h2", None),
        ("zb-2p", None),
        ("interleaved-1f1b", 2),
        ("interleaved-1f1b", 4),
        ("zb-v", None),
        ("dualpipev", None),
    ],
)
def test_another_schedule_takes_what_it_takes_when_it_is_run(name, chunks):
    said = asked(simulated("zb-h1")).schedule(name, chunks)
    assert said.predicted_ns == pytest.approx(step(simulated(name, chunks=chunks)), abs=2)
    assert said.error < 1e-9


@pytest.mark.parametrize("share", [0.4, 0.45, 0.6, 2 / 3])
def test_how_a_backward_splits_that_was_recorded_whole_is_a_range(share):
    def run(name: str, weight: int) -> Timeline:
        return simulate(generate(name, 4, 8), Costs(100_000, 200_000 - weight, weight), steps=2)

    weight = round(200_000 * (1 - share))
    said = asked(run("1f1b", weight)).schedule("zb-h1")
    truth = step(run("zb-h1", weight))
    assert said.error < 1e-9
    assert said.best_ns is not None
    assert said.best_ns * (1 - 1e-6) <= truth <= said.predicted_ns * (1 + 1e-6)
    assert said.best_if == "input gradients are 40% of a backward"
    again = asked(run("zb-v", weight)).schedule("zb-h1")  # which has recorded both
    assert again.best_ns is None
    assert "split" not in again.needs


def test_operations_that_start_late_do_so_in_other_schedules():
    """A host that takes so long for each operation does where there are twice as many."""
    late = 7_000

    def run(name: str) -> Timeline:
        plan = generate(name, 4, 8)
        taken = late + 400_000 // plan.stages
        timeline = simulate(plan, Costs(taken, taken, taken), steps=2)
        tasks = timeline.tasks.filter(lane="compute")
        return Timeline(
            tasks.with_columns(pl.col("start_ns") + late, busy_ns=None),
            timeline.ranks,
            timeline.run,
        )

    said = asked(run("zb-h1")).schedule("zb-v")
    assert said.predicted_ns == pytest.approx(step(run("zb-v")), rel=1e-4)


def test_short_operations_that_scatter_do_not_make_a_step_unsure():
    """As the first stage's input gradient in PyTorch, which computes all with the weights'."""

    def run(name: str) -> Timeline:
        plan = generate(name, 4, 8)
        random = np.random.default_rng(1)
        given = np.full((plan.stages, 8), 100_000 * 4 // plan.stages)
        weight = given.copy()
        weight[0] += given[0] - 20
        given[0] = random.integers(10, 30, 8)
        return simulate(plan, Costs(100_000 * 4 // plan.stages, given, weight), steps=3)

    for name, chunks in (("1f1b", None), ("zb-v", None), ("interleaved-1f1b", 4)):
        assert asked(run("zb-h1")).schedule(name, chunks).error < 1e-3


def test_what_chance_makes_unsure_beyond_a_tenth_is_a_range():
    for jitter, sure in ((0.05, True), (0.6, False)):
        run = asked(Job(generate("1f1b", 4, 8), replicas=1, steps=1, jitter=jitter).play())
        for said in (run.microbatches(16), run.scaled("stage", 1, 0.5)):
            assert said.error <= 0.1
            assert ("scatter much" in said.best_if) != sure
            if not sure:
                assert said.best_ns < 0.85 * said.predicted_ns
        taken = said.predicted_ns / said.step_ns
        assert said.saved_share == pytest.approx(1 - taken, abs=1e-6)


def test_other_numbers_of_microbatches():
    said = asked(simulated("1f1b")).microbatches(24)
    truth = step(simulated("1f1b", 24))
    assert said.predicted_ns == pytest.approx(truth, abs=2)
    assert said.saved_share == pytest.approx(1 - (truth / 24) / (said.step_ns / 16), abs=1e-6)


def test_advice_is_ranked_and_keeps_to_the_memory():
    found = asked(simulated("1f1b"))
    said = found.advice()
    assert [one.saved_share for one in said] == sorted(
        (one.saved_share for one in said), reverse=True
    )
    assert all(one.memory is None or one.memory <= 4 for one in said)
    roomy = found.advice(memory=100)
    assert {one.change for one in said} < {one.change for one in roomy}
    assert roomy[0].saved_share >= said[0].saved_share


def test_a_run_whose_schedule_is_unknown_can_still_be_replayed():
    timeline = simulated("1f1b")
    explained = ledger(timeline, None)
    found = WhatIf(None, explained)
    assert found.without(Cause.TRANSFER).saved_ns > 0
    with pytest.raises(ScheduleError, match="not recognised"):
        found.schedule("zb-v")
    assert found.advice()


@pytest.mark.parametrize("ranks", [[1], [0, 2, 3]])
def test_what_stages_without_a_trace_would_take_in_another_plan_is_not_made_up(ranks):
    found = asked(simulated("1f1b").slice(ranks=ranks))
    for question in (
        ("schedule", "zb-h1"),
        ("microbatches", 16),
        ("moved", 1, 0, 1, [8, 8, 8, 8]),
        ("partitioned", [9, 7, 8, 8], [8, 8, 8, 8]),
    ):
        with pytest.raises(ScheduleError, match="left no trace, so how long stages take there"):
            found.together(question)
        with pytest.raises(ScheduleError, match="left no trace, so how long stages take there"):
            found.together(question, ("scaled", "rank", ranks[0], 0.9))
    assert not any(one.change.startswith(("zb", "16")) for one in found.advice())
    assert found.scaled("rank", ranks[0], 0.5).saved_ns > 0


def invoke(*arguments: str):
    return CliRunner().invoke(cli, ["whatif", *arguments])


@pytest.fixture
def run(tmp_path):
    return str(simulated("1f1b").save(tmp_path / "run.parquet"))


def test_the_command_gives_ranked_advice(run):
    result = invoke(run, "-q")
    assert result.exit_code == 0
    assert "32 micro-batches" in result.stdout
    said = json.loads(invoke(run, "--json").stdout)
    assert said["schema"] == "bubblescope.whatif/1"
    assert said["predictions"][0]["saved_share"] >= said["predictions"][-1]["saved_share"]


def test_the_command_answers_questions(run):
    asked_for = [
        *("--without", "exposed transfer"),
        *("--stage", "2=0.5"),
        *("--rank", "1=2"),
        *("--healthy", "0"),
        *("--move", "1@3:0", "--layers", "8,8,8,8"),
        *("--microbatches", "32"),
        *("--schedule", "zb-v"),
        *("--schedule", "interleaved-1f1b", "--chunks", "4"),
    ]
    said = json.loads(invoke(run, "--json", "--each", *asked_for).stdout)
    assert [one["change"] for one in said["predictions"]] == [
        "without exposed transfer",
        "stage 2 takes 0.5 times as long",
        "rank 1 takes 2 times as long",
        "rank 0 healthy",
        "1 layer from stage 3 to stage 0",
        "32 micro-batches",
        "zb-v",
        "interleaved-1f1b, 4 chunks",
    ]


def test_the_command_asks_all_changes_at_once(run):
    asked_for = [
        *("--move", "1@3:0", "--move", "1@3:1", "--layers", "8,8,8,8"),
        *("--healthy", "0", "--microbatches", "32"),
    ]
    (said,) = json.loads(invoke(run, "--json", *asked_for).stdout)["predictions"]
    assert said["change"] == (
        "rank 0 healthy and 1 layer from stage 3 to stage 0 and 1 layer from stage 3 to stage 1 and "
        "32 micro-batches"
    )
    outright = ("--partition", "9,9,8,6", "--layers", "8,8,8,8", "--healthy", "0")
    (same,) = json.loads(invoke(run, "--json", *outright, *asked_for[-2:]).stdout)["predictions"]
    assert same["predicted_ns"] == said["predicted_ns"]


def test_a_schedule_may_be_a_plan_of_a_file(run, tmp_path):
    mine = tmp_path / "mine.csv"
    torch_csv.write(generate("zb-h1", 4, 16), mine)
    known = json.loads(invoke(run, "--json", "--schedule", "zb-h1").stdout)["predictions"][0]
    asked_for = ("--plan", str(mine), "--schedule", "mine")
    (said,) = json.loads(invoke(run, "--json", *asked_for).stdout)["predictions"]
    assert said["change"] == "mine"
    assert said["predicted_ns"] == known["predicted_ns"]
    together = json.loads(invoke(run, "--json", *asked_for, "--healthy", "0").stdout)
    assert together["predictions"][0]["change"] == "rank 0 healthy and mine"
    for other in (("--microbatches", "32"), ("--chunks", "2")):
        result = invoke(run, *asked_for, *other)
        assert result.exit_code != 0
        assert "mine is a plan for" in (result.output + str(result.exception))
    torch_csv.write(generate("zb-h1", 8, 16), mine)
    assert "8 devices" in str(invoke(run, *asked_for).exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--partition", "9,7,8,8"), "--partition needs --layers"),
        (
            ("--partition", "9,8,8,8", "--layers", "8,8,8,8"),
            "32 layers, and the partition is of 33",
        ),
        (("--partition", "16,16", "--layers", "8,8,8,8"), "layers are given for 2"),
        (("--move", "5@3:0", "--move", "4@3:1", "--layers", "8,8,8,8"), "not 9 to give"),
        (("--microbatches", "32", "--microbatches", "64"), "one number of micro-batches"),
        (("--schedule", "zb-v", "--without", "slow rank"), "ask about them one at a time"),
        (("--without", "stage imbalance", "--healthy", "0"), "nothing left to change"),
        (
            ("--schedule", "zb-v", "--move", "1@3:0", "--layers", "8,8,8,8"),
            "zb-v has 8",
        ),
        (("--stage", "2"), "is not like 2=0.5"),
        (("--stage", "9=0.5"), "the run has no stage 9"),
        (("--move", "1@3:0"), "--layers"),
        (("--move", "1-3-0", "--layers", "8,8,8,8"), "is not like"),
        (("--layers", "x", "--move", "1@3:0"), "is not like"),
        (("--healthy", "77"), "no rank 77"),
        (("--schedule", "chimera", "--microbatches", "0"), "micro-batch"),
    ],
)
def test_questions_that_make_no_sense_are_refused_in_one_sentence(run, arguments, words):
    result = invoke(run, *arguments)
    assert result.exit_code != 0
    assert words in (result.output + str(result.exception))
