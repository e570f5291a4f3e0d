"""What changed between two runs: right, certain only where noise allows, and a gate that says why."""

from __future__ import annotations

import json
import re

import msgspec
import numpy as np
import polars as pl
import pytest

from bubblescope import BubblescopeError, Timeline
from bubblescope.analysis import step_measures as measures
from bubblescope.analysis.bootstrap import Sums, intervals
from bubblescope.analysis.compare import GROUPS, Change
from bubblescope.analysis.gate import condition, judge
from bubblescope.model.errors import ScheduleError
from bubblescope.model.provenance import ClockReport, Run
from bubblescope.render.text.compare import Comparison
from commands import called, started
from places import ROOT
from synthetic import empty
from two_runs import MS, made, noisy


def clocked(timeline, **changes):
    run = {name: getattr(timeline.run, name) for name in Run.__struct_fields__}
    return Timeline(timeline.tasks, timeline.ranks, Run(**{**run, **changes}))


def codes(comparison):
    return [note.code for note in comparison.notes]


def verdict(text, comparison, **options):
    return judge(condition(text), comparison, **options)


@pytest.fixture
def unexplained(monkeypatch):
    """No ledger can be made, which is also much faster."""

    def refuse(*_):
        raise ScheduleError("tasks wait for each other in a circle")

    monkeypatch.setattr(measures, "ledger", refuse)


# What changed -------------------------------------------------------------------------------------


def test_a_longer_forward_on_one_stage_is_found_and_exact():
    found = Comparison.of(made(), made([10 * MS, 10 * MS, 12 * MS, 10 * MS]))
    kind, stage = found.group("kind")[0], found.group("stage")[0]
    assert (kind.name, kind.difference) == ("forward", 8 * 2 * MS / 4)
    assert (stage.name, stage.difference) == ("2", 8 * 2 * MS)
    assert kind.interval == (4 * MS, 4 * MS)
    assert kind.certain
    assert found.group("cause")[0].name == "stage imbalance"
    assert {one.difference for one in found.group("kind")[1:]} == {0}
    assert found.differs == ()
    assert codes(found) == []


def test_a_slower_transfer_is_found_and_exact():
    found = Comparison.of(made(comm=MS), made(comm=3 * MS))
    cause = found.group("cause")[0]
    assert cause.name == "exposed transfer"
    assert cause.relative == pytest.approx(2)
    assert found.find("overall", "busy").difference == 0
    assert found.find("overall", "idle").difference == cause.difference
    assert {one.difference for one in found.group("stage")} == {0}


def test_times_of_all_add_up_to_the_step():
    found = Comparison.of(made(), made([10 * MS, 13 * MS, 12 * MS, 10 * MS], comm=2 * MS))
    step, busy, idle = (found.find("overall", name) for name in ("step", "busy", "idle"))
    assert step.difference == busy.difference + idle.difference
    assert sum(one.difference for one in found.group("cause")) == pytest.approx(
        idle.difference, abs=9
    )
    assert np.mean([one.difference for one in found.group("rank")]) == pytest.approx(
        idle.difference
    )


def test_another_schedule_is_told_and_what_it_costs():
    found = Comparison.of(made(), made(5 * MS, schedule="zb-h1"))
    assert [(one.what, one.before, one.after) for one in found.differs] == [
        ("schedule", "1f1b", "zb-h1"),
        ("backward", "whole", "split"),
    ]
    whole = found.find("kind", "backward")
    assert (whole.before, whole.after) == (160 * MS, 0)
    assert found.find("kind", "backward_weight").before == 0
    assert found.find("kind", "forward").difference == -40 * MS


def test_schedules_that_look_the_same_are_no_difference():
    one = Comparison.of(made(microbatches=1), made(schedule="gpipe", microbatches=1))
    assert [differs.what for differs in one.differs] == []


def test_other_stages_are_not_compared_by_number():
    found = Comparison.of(made(), made(5 * MS, schedule="interleaved-1f1b", chunks=2))
    assert {"stages", "chunks", "placement"} <= {one.what for one in found.differs}
    assert found.group("stage") == []
    assert len(found.group("rank")) == 4
    assert codes(found) == ["other-stages", "moved-stages"]


def test_other_shapes_are_told():
    found = Comparison.of(made(), made(ranks=8, microbatches=16))
    assert [one.what for one in found.differs] == [
        "ranks",
        "pipeline devices",
        "stages",
        "micro-batches",
    ]
    assert found.group("stage") == found.group("rank") == []
    assert codes(found) == ["other-work", "other-stages", "other-devices"]
    assert found.find("kind", "forward").difference == 80 * MS


def test_a_missing_rank_is_told_and_the_others_are_compared():
    found = Comparison.of(made(), made().slice(ranks=[1, 2, 3]))
    assert ("ranks", "4", "ranks 1, 2, 3") in found.differs
    assert "other-ranks" in codes(found)
    assert sorted(one.name for one in found.group("rank")) == ["1", "2", "3"]
    missing = next(one for one in found.group("stage") if one.name == "0")
    assert (missing.after, missing.difference, missing.interval) == (None, None, None)


def test_overlapped_pairs_are_stages_of_their_own():
    run = made(schedule="dualpipev", microbatches=8)
    names = [one.name for one in Comparison.of(run, run).group("stage")]
    assert any(re.fullmatch(r"\d with \d", name) for name in names)


# Noise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(3, 3), (5, 5), (5, 20), (30, 30)])
def test_intervals_hold_the_truth_as_often_as_they_say(before, after):
    # 2,000 independent measures at once; the standard error of their share is half a per cent.
    random = np.random.default_rng(7)
    a, b = (1e6 + 1e4 * random.standard_normal((2000, steps)) for steps in (before, after))
    low, high = intervals(*(Sums(one, np.ones_like(one)) for one in (a, b + 5e3))).difference
    assert 0.92 < np.mean((low <= 5e3) & (high >= 5e3)) < 0.99


def test_no_interval_reaches_below_what_can_be():
    found = Comparison.of(noisy(8, steps=2, noise=0.3), noisy(3, steps=2, noise=0.3))
    step = found.find("overall", "step")
    assert step.interval[0] == -step.before
    assert step.after_interval[0] == 0
    for one in found.changes:
        assert -one.before <= one.interval[0] <= one.difference
        assert 0 <= one.after_interval[0] <= one.after
    assert "95 % interval -100.00 to +" in str(found)


def test_the_interval_of_a_run_holds_the_truth(unexplained):
    exact = [made(time, ranks=2, microbatches=2, comm=0) for time in (10 * MS, 11 * MS)]
    truth = Comparison.of(*exact).find("overall", "step").difference
    held = 0
    for seed in range(60):
        found = Comparison.of(noisy(2 * seed), noisy(2 * seed + 1, 11 * MS))
        low, high = found.find("overall", "step").interval
        held += low <= truth <= high
    assert held >= 51  # fewer are less likely than one in ten thousand


def test_nothing_is_certain_between_identical_runs():
    run = noisy(1)
    found = Comparison.of(run, run)
    assert {one.difference for one in found.changes} == {0}
    assert not any(one.certain for one in found.changes)


@pytest.fixture(scope="module")
def alike():
    """Runs that differ by chance only."""
    return [Comparison.of(noisy(seed), noisy(seed + 100)) for seed in range(10)]


@pytest.mark.parametrize("group", GROUPS)
def test_little_is_certain_between_runs_that_differ_by_chance(alike, group):
    changes = [one for found in alike for one in found.group(group) if one.difference]
    assert changes
    assert np.mean([one.certain for one in changes]) < 0.2


def test_of_one_step_no_noise_is_known():
    found = Comparison.of(made(), made(12 * MS, steps=1))
    assert codes(found) == ["one-step"]
    assert {one.interval for one in found.changes} == {None}
    assert {one.certain for one in found.changes} == {None}


def test_the_comparison_is_the_same_every_time():
    one, other = noisy(1), noisy(2)
    assert Comparison.of(one, other).to_dict() == Comparison.of(one, other).to_dict()


def test_what_clocks_may_be_off_widens_the_intervals():
    run = made()
    ranks = run.ranks.with_columns(
        host=pl.format("host{}", "rank"), clock_error_ns=pl.lit(2 * MS, pl.Int64)
    )
    clock = ClockReport("checked", 0, 0, 0, 1, (), {}, 2 * MS, 0.0)
    off = clocked(Timeline(run.tasks, ranks, run.run), clock=clock)
    found = Comparison.of(run, off)
    low, high = found.find("overall", "step").interval
    assert low == -high
    assert high >= 2 * MS
    assert found.find("overall", "bubble").interval[1] > 0
    assert found.find("kind", "forward").interval == (0, 0)


# What cannot be compared --------------------------------------------------------------------------


def test_a_step_that_was_cut_through_is_left_out():
    run = made(steps=4)
    middle = run.tasks.filter(pl.col("step") == 3)["start_ns"].median()
    found = Comparison.of(run, run.slice(end_ns=int(middle)))
    assert found.after.steps == (0, 1, 2)
    assert found.after.left_out == (3,)
    assert codes(found) == ["torn-steps"]
    assert found.find("overall", "step").difference == 0


def test_a_slow_first_step_is_told_and_kept():
    run = made(steps=5)
    slow = pl.when((pl.col("step") == 0) & (pl.col("start_ns") == pl.col("start_ns").min()))
    late = run.tasks.with_columns(
        start_ns=slow.then(pl.col("start_ns") - 400 * MS).otherwise("start_ns")
    )
    found = Comparison.of(run, Timeline(late.with_columns(busy_ns=None), run.ranks, run.run))
    assert codes(found) == ["slow-first-step"]
    assert "--steps-b 1:5 leaves it out" in found.notes[0].message
    assert found.after.steps == (0, 1, 2, 3, 4)


def test_without_a_common_clock_only_what_a_rank_knows_is_compared():
    run = made()
    found = Comparison.of(run, clocked(run, common_clock=False))
    assert codes(found) == ["no-common-clock"]
    assert found.find("overall", "step").after is None
    assert found.find("overall", "span").difference == 0
    assert found.group("cause") == []
    with pytest.raises(BubblescopeError, match="cannot be decided: the ranks of B share no clock"):
        verdict("bubble > +2%", found)


def timed(by: str | None) -> Timeline:
    """Return a run whose times are of devices, of the host, or not known to be either."""
    run = made()
    return Timeline(run.tasks, run.ranks.with_columns(timed=pl.lit(by)), run.run)


def test_a_change_from_times_of_a_host_to_those_of_a_device_is_not_decided():
    found = Comparison.of(timed("host"), timed("device"))
    for asked in ("step > +2%", "bubble > +2%", "kind:forward > +1ms"):
        with pytest.raises(BubblescopeError, match="A has host times and B device times"):
            verdict(asked, found)
    assert verdict("step > 100s", found).outcome == "passed"
    for same in (("host", "host"), ("device", None)):
        alike = Comparison.of(*map(timed, same))
        assert verdict("step > +2%", alike).outcome == "passed"


def test_a_ledger_that_cannot_be_made_is_told(unexplained):
    found = Comparison.of(made(), made())
    assert codes(found) == ["causes-unknown", "causes-unknown"]
    assert found.group("cause") == []
    assert found.find("overall", "idle").difference == 0


def test_runs_without_steps_are_one_step():
    run = made(steps=1)
    unstepped = Timeline(run.tasks.with_columns(step=pl.lit(None, pl.Int32)), run.ranks, run.run)
    found = Comparison.of(unstepped, run)
    assert found.before.steps == (None,)
    assert {one.difference for one in found.changes} == {0}


def test_a_run_whose_stages_are_not_known_is_compared_by_rank():
    run = made()
    bare = run.tasks.with_columns(
        pl.lit(None).cast(run.tasks[name].dtype).alias(name) for name in ("stage", "chunk")
    )
    found = Comparison.of(run, Timeline(bare, run.ranks, run.run))
    assert "the stages of one run are not known" in found.notes[0].message
    assert found.group("stage") == []
    assert {one.difference for one in found.group("rank")} == {0}


def test_runs_without_passes_are_compared_by_kind():
    run = made()
    others = Timeline(run.tasks.filter(pl.col("kind") == "optimizer"), run.ranks, run.run)
    found = Comparison.of(others, others)
    assert found.find("overall", "step") is None


# The gate -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slower():
    """A step takes 9 ms more than 270 ms; the bubble rate is a ninth in both."""
    return Comparison.of(made(ranks=2, comm=0), made(11 * MS, ranks=2, comm=0))


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("step > +3%", "failed"),
        ("step > +4%", "passed"),
        ("step >= +9ms", "failed"),
        ("step > +9ms", "passed"),
        ("step > 0.25s", "failed"),
        ("step > 1s", "passed"),
        ("step < 1s", "failed"),
        ("step > -1%", "failed"),
        ("step<-1%", "passed"),
        ("bubble > 11%", "failed"),
        ("bubble > 12%", "passed"),
        ("bubble > +0%", "passed"),
        ("bubble >= +0pp", "failed"),
        ("span <= +0.1pp", "failed"),
        ("kind:forward > +9.9%", "failed"),
        ("kind:forward > +10.1%", "passed"),
        ("kind:recompute > +1%", "passed"),
        ("cause:exposed transfer > 1us", "passed"),
        ("stage:1 >= +8ms", "failed"),
        ("rank:0 > +1µs", "failed"),
    ],
)
def test_conditions(slower, text, outcome):
    assert verdict(text, slower).outcome == outcome, verdict(text, slower)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bubble", "is not a condition such as"),
        ("bubble > +2", "is not a condition such as"),
        ("bubble = +2%", "is not a condition such as"),
        ("bubbles > +2%", "there is no measure 'bubbles'; the measures are step, idle"),
        ("kind:fwd > +2%", "there is no kind 'fwd'; there are forward"),
        ("cause:x > +2%", "there is no cause 'x'; there are warm-up"),
        ("step > 2%", "step is a time; write +2%"),
        ("step > +2pp", "step is a time and has no percentage points"),
        ("bubble > 2pp", "percentage points are a difference; write +2pp"),
        ("bubble > 2ms", "bubble is a rate, not a time"),
    ],
)
def test_mistaken_conditions(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        condition(text)


def test_what_is_in_neither_run_cannot_be_decided(slower):
    with pytest.raises(
        BubblescopeError, match="'stage:9 > 1ms' cannot be decided: it is in neither"
    ):
        verdict("stage:9 > 1ms", slower)


def test_what_was_not_there_before_has_risen_beyond_any_share():
    found = Comparison.of(made(), made(schedule="zb-h1"))
    assert verdict("kind:backward_weight > +1000%", found).outcome == "failed"
    assert verdict("kind:backward < -99%", found).outcome == "failed"


def test_noise_alone_never_fails_a_gate():
    change = Change("overall", "step", "ns", 100, 110, 10, 0.1, (-5, 25), (95, 125))
    found = Comparison.of(made(steps=1), made(steps=1))
    found = msgspec.structs.replace(found, differs=(), changes=(change,), notes=())
    doubtful = verdict("step > +5%", found)
    assert doubtful.outcome == "not certain"
    assert doubtful.text == "+10.00 % (95 % interval -5.00 % to +25.00 %)"
    assert verdict("step > +5%", found, strict=True).outcome == "failed"
    assert verdict("step > -10%", found).outcome == "failed"
    assert verdict("step > 100ns", found).outcome == "not certain"
    assert verdict("step > 90ns", found).outcome == "failed"


def test_of_one_step_the_measured_value_decides():
    found = Comparison.of(made(steps=1), made(12 * MS, steps=1))
    decided = verdict("step > +1%", found)
    assert decided.outcome == "failed"
    assert "(no noise known)" in decided.text


# The command --------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    noisy(1).save(tmp_path / "a.parquet")
    noisy(2, 13 * MS).save(tmp_path / "b.parquet")
    empty().save(tmp_path / "empty.parquet")
    return tmp_path


def run(*arguments, cwd, code=0, process=False):
    done = (started if process else called)("compare", *arguments, cwd=cwd)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_the_page_says_what_changed(files):
    done = run("a.parquet", "b.parquet", cwd=files, process=True)
    shown = re.sub(r"\s+", " ", done.stdout)
    assert re.search(
        r"^B is [\d.]+ % slower than A \(95 % interval \+[\d.]+ to \+[\d.]+ %\): ", shown
    )
    assert "the largest change: forward (+" in shown
    assert "busy a rank)" in shown
    for title in ("Overall", "Idle by cause", "Tasks by kind", "Busy by stage", "Idle by rank"):
        assert title in shown
    back = run("b.parquet", "a.parquet", cwd=files).stdout
    assert "% faster than A" in back
    same = run("a.parquet", "a.parquet", cwd=files).stdout
    assert "B is as fast as A: a step takes" in same


def test_the_page_fits_a_terminal(files):
    for line in run("a.parquet", "b.parquet", cwd=files).stdout.splitlines():
        assert len(line) <= 80
        assert "…" not in line


def test_the_json_has_the_documented_keys(files):
    data = json.loads(
        run("a.parquet", "b.parquet", "--json", "--fail-if", "step > +90%", cwd=files).stdout
    )
    documented = (ROOT / "docs" / "compare.md").read_text()
    assert data["schema"] == "bubblescope.compare/1"
    assert list(data["changes"]) == list(GROUPS)
    assert data["conditions"][0]["outcome"] == "passed"
    for key in (
        *data,
        *data["before"],
        *data["changes"],
        *data["changes"]["overall"][0],
        *data["conditions"][0],
    ):
        assert re.search(rf"\b{key}\b", documented), key


def test_exit_codes(files):
    failed = run("a.parquet", "b.parquet", "--fail-if", "step > +2%", cwd=files, code=1)
    assert re.search(r"failed  step > \+2%: \+[\d.]+ % \(95 % interval ", failed.stdout)
    quiet = run("a.parquet", "b.parquet", "--json", "--fail-if", "step > +2%", cwd=files, code=1)
    assert "failed  step > +2%" in quiet.stderr
    json.loads(quiet.stdout)
    run("a.parquet", "b.parquet", "--fail-if", "step > +90%", cwd=files)
    refused = run("a.parquet", "b.parquet", "--fail-if", "step > 2%", cwd=files, code=2)
    [line] = refused.stderr.strip().splitlines()
    assert "step is a time; write +2%" in line
    run("a.parquet", cwd=files, code=2)
    run("a.parquet", "nowhere", cwd=files, code=2)
    run("a.parquet", "empty.parquet", cwd=files, code=3)


def test_each_run_may_have_steps_of_its_own(files):
    options = ("--steps", "0:4", "--steps-b", "2:7", "--json")
    data = json.loads(run("a.parquet", "b.parquet", *options, cwd=files).stdout)
    assert data["before"]["steps"] == [0, 1, 2, 3]
    assert data["after"]["steps"] == [2, 3, 4, 5, 6]
