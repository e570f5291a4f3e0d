"""The ledger: exact sums, the causes that were put into a run, and the task that a gap waited for."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bubblescope import Timeline, sources
from bubblescope.analysis.idle import measured_run as measured
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.idle.ledger import Ledger, ledger
from bubblescope.analysis.idle.measured_run import measured_run
from bubblescope.analysis.rates import bubble_rates
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.model.errors import ScheduleError
from bubblescope.model.provenance import Run
from bubblescope.render.text.why import Explanation
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from full import examples
from injected import CAUSES, Fault, Job, fault, grown, idle, job
from places import SHARED

REAL = [
    "jobtrace/trace-ST.parquet",
    "jobtrace/trace-SE.parquet",
    "primus/pp8",
    "nsight/made/zb_2nodes",
    "nsight/made/1f1b_autograd_thread",
    "ascend/1f1b",
    "ascend/dualpipev",
    "ascend/two_hosts_3ms_skew",
    "paddle/1f1b",
    "kineto/torch-2.13-gloo/1F1B",
    "kineto/torch-2.13-gloo/DualPipeV",
    "kineto/torch-2.13-gloo/Interleaved1F1B",
    "kineto/torch-2.13-gloo/ZBVZeroBubble",
]
INHERENT = {Cause.WARM_UP.value, Cause.STEADY.value, Cause.COOL_DOWN.value}


def explained(timeline: Timeline) -> Ledger:
    found = ledger(timeline, recognise(timeline))
    assert found is not None
    return found


def added(found: Ledger) -> dict[str, int]:
    """Return the idle time by cause of what is not inherent, largest first."""
    totals = found.totals().filter(~pl.col("cause").is_in(INHERENT))
    return dict(totals.select("cause", "idle_ns").iter_rows())


def check_sums(timeline: Timeline, found: Ledger) -> None:
    """Every idle nanosecond has one cause: the rows tile the gaps, and sums are what was measured."""
    rates = bubble_rates(timeline).table.select(
        "step", "rank", idle=pl.col("makespan_ns") - pl.col("busy_ns")
    )
    sums = found.table.group_by("step", "rank").agg(pl.col("idle_ns").sum())
    both = rates.join(sums, on=["step", "rank"], how="left", nulls_equal=True)
    assert (both["idle"] == both["idle_ns"].fill_null(0)).all()
    rows = found.gaps.sort("step", "rank", "start_ns")
    assert (rows["end_ns"] > rows["start_ns"]).all()
    assert (found.table["idle_ns"] > 0).all()
    apart = rows.select(
        (pl.col("start_ns") >= pl.col("end_ns").shift(1)).over("step", "rank").fill_null(value=True)
    )
    assert apart.to_series().all()
    ends = timeline.tasks["start_ns"].gather(found.gaps["task"].drop_nulls())
    assert (found.gaps.drop_nulls("task")["end_ns"] <= ends).all()


@pytest.mark.skipif(not SHARED.exists(), reason="needs the shared traces")
@pytest.mark.parametrize("path", REAL)
def test_sums_are_exact_and_replay_is_near_on_real_traces(path):
    timeline = sources.load(SHARED / path)
    found = explained(timeline)
    check_sums(timeline, found)
    assert found.worst_error <= 0.005


def faulty(seed: int, causes: set[Cause], jitter: float) -> Timeline | None:
    """Play a random job with faults; None if two changes of its order contradict each other."""
    random = np.random.default_rng(seed)
    made = job(random, jitter=jitter)
    try:
        return made.play(*[fault(cause, random, made) for cause in sorted(causes)])
    except ScheduleError:
        return None


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**31), st.sets(st.sampled_from(CAUSES), max_size=3))
def test_sums_are_exact_whatever_happened(seed, causes):
    run = faulty(seed, causes, jitter=0.2)
    if run is not None:
        check_sums(run, explained(run))


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**31), st.sets(st.sampled_from(CAUSES), max_size=3))
def test_a_run_looked_at_in_parts_is_as_one_looked_at_as_a_whole(seed, causes):
    """Also replays, of which some keep the schedule's order of tasks."""
    run = faulty(seed, causes, jitter=0.01)
    if run is None:
        return
    whole = explained(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured, "_PART", 1)
        patch.setattr(measured, "_WIDE", 0)
        parted = explained(run)
        rows = parted.gaps
    there = parted.counterfactuals
    assert len(whole.stretches) == 1
    assert len(parted.stretches) == len(there.run.steps)
    assert rows.equals(whole.gaps)
    assert parted.table.equals(whole.table)
    assert parted.worst_error == whole.worst_error
    some = frozenset(there.present[::2])
    alone = [part.lengths_with(some) for part in there.parts()]
    assert np.array_equal(np.concatenate(alone), whole.counterfactuals.lengths_with(some))


def test_a_run_without_faults_has_nothing_but_inherent_idle_time():
    for seed in range(8):
        run = job(np.random.default_rng(seed)).play()
        found = explained(run)
        assert added(found) == {}
        assert found.present == ()
        assert found.slow_ranks == ()


@pytest.mark.parametrize("jitter", [0.0, 0.01])
@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_that_was_put_in_comes_first_with_its_size(cause, jitter):
    for seed in range(6):
        random = np.random.default_rng([seed, CAUSES.index(cause)])
        made = job(random, jitter=jitter)
        try:
            one = fault(cause, random, made)
        except ScheduleError:  # no swap of this schedule costs anything
            continue
        run = made.play(one)
        truth = grown(made.play(), run, cause)
        whole = explained(run)
        found = added(whole)
        assert cause in whole.present
        assert bool(whole.slow_ranks) == (Cause.SLOW_RANK.value in found)
        assert next(iter(found)) == cause.value
        assert found[cause.value] == pytest.approx(truth, rel=0.02 if jitter else 1e-6)


@pytest.mark.parametrize(("one", "other"), list(combinations(CAUSES, 2)))
def test_of_two_causes_both_come_first(one, other):
    random = np.random.default_rng([7, CAUSES.index(one), CAUSES.index(other)])
    made = job(random)
    first, second = (fault(cause, random, made) for cause in (one, other))
    both = made.play(first, second)
    least = 0.02 * idle(both).sum()
    counts = [
        grown(made.play(without), both, cause) >= least
        for without, cause in ((second, one), (first, other))
    ]
    if all(counts):  # one may hide the other
        assert set(list(added(explained(both)))[:2]) == {one.value, other.value}


def test_gaps_lead_to_the_rank_that_made_everybody_wait():
    made = Job(generate("1f1b", 4, 12), replicas=2)
    run = made.play(Fault(Cause.SLOW_RANK, slow={(1, 2): 1.5}))
    found = explained(run)
    slow = 4 + 2
    blamed = found.gaps.filter(pl.col("cause") == Cause.SLOW_RANK.value, pl.col("rank") > 3)
    length = blamed["end_ns"] - blamed["start_ns"]
    roots = run.tasks["rank"].gather(blamed["root"])
    assert (length * (roots == slow)).sum() > 0.9 * length.sum()


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "interleaved-1f1b"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gaps_for_a_slow_rank_lead_to_the_slow_task_and_not_to_where_its_chain_begins(name, stage):
    fault = Fault(Cause.SLOW_RANK, slow={(1, stage): 1.5})
    run = Job(generate(name, 4, 8), replicas=2, steps=3).play(fault)
    gaps = explained(run).gaps.filter(cause=Cause.SLOW_RANK.value)
    assert gaps.height > 20
    roots = run.tasks[gaps["root"]]
    assert roots["rank"].unique().to_list() == [4 + stage]
    assert (roots["start_ns"] < gaps["end_ns"]).all()


def test_a_gap_names_the_task_after_it_and_a_late_launch_is_its_own_root():
    made = Job(generate("1f1b", 3, 6), replicas=1, steps=1)
    run = made.play(Fault(Cause.LAUNCH, late_ns={(0, 0, 4): 50_000_000}))
    late = explained(run).gaps.filter(pl.col("cause") == Cause.LAUNCH.value, pl.col("rank") == 0)
    first = late.row(0, named=True)
    assert first["task"] == first["root"]
    assert run.tasks["start_ns"][first["task"]] == first["end_ns"]
    assert first["end_ns"] - first["start_ns"] == 50_000_000


def test_what_is_idle_around_the_pipeline_is_synchronisation():
    plan = generate("1f1b", 4, 8)
    timeline = simulate(plan, Costs(10, 10, 10, sync_ns=70, optimizer_ns=30), steps=2)
    found = explained(timeline)
    assert found.outside["idle_ns"].to_list() == [70] * 8
    assert set(found.outside["cause"]) == {"synchronisation"}


def test_overlapping_tasks_are_not_idle_time():
    timeline = simulate(generate("dualpipev", 4, 12), Costs(10, 10, 10, comm_ns=2))
    moved = timeline.tasks.with_columns(
        end_ns=pl.when(pl.col("lane") == "compute").then(pl.col("end_ns") + 4).otherwise("end_ns")
    )
    check_sums(Timeline(moved, timeline.ranks), explained(Timeline(moved, timeline.ranks)))


def test_tasks_that_take_no_time_have_no_slow_ranks():
    for steps in (1, 3):
        run = Job(generate("interleaved-1f1b", 3, 6), steps=steps).play()
        timeless = run.tasks.with_columns(end_ns="start_ns")
        some = run.tasks.with_columns(
            end_ns=pl.when(pl.col("rank") == 1).then("start_ns").otherwise("end_ns")
        )
        for tasks in (timeless, some):
            timeline = Timeline(tasks, run.ranks)
            check_sums(timeline, explained(timeline))


def test_results_that_were_used_before_they_were_begun_are_left_out():
    run = job(np.random.default_rng(3)).play()
    shift = pl.Series(np.random.default_rng(0).integers(-(10**8), 10**8, len(run.tasks)))
    moved = run.tasks.with_columns(pl.col("start_ns", "end_ns") + shift)
    timeline = Timeline(moved, run.ranks)
    found = explained(timeline)
    assert found.counterfactuals.run.left_out > 0
    check_sums(timeline, found)
    assert "leaves out" in " ".join(str(Explanation.of(timeline)).split())


def test_there_is_no_ledger_without_tasks_or_a_common_clock():
    timeline = simulate(generate("1f1b", 2, 2), Costs(1, 1, 1))
    apart = Timeline(timeline.tasks, timeline.ranks, Run(common_clock=False))
    assert ledger(apart, recognise(apart)) is None
    nothing = Timeline(timeline.tasks.head(0), timeline.ranks)
    assert ledger(nothing, None) is None


def test_without_a_known_schedule_what_was_measured_is_its_order():
    timeline = simulate(generate("1f1b", 3, 6), Costs(10, 20, 0))
    unnumbered = timeline.tasks.with_columns(microbatch=pl.lit(None, pl.Int32))
    run = Timeline(unnumbered, timeline.ranks)
    assert recognise(run) is None
    check_sums(run, ledger(run, None))


def test_replaying_gives_back_the_measured_steps():
    run = job(np.random.default_rng(3), jitter=0.2).play()
    found = measured_run(run)
    again = found.replay()
    assert (again.start_ns == found.as_measured.start_ns).all()
    assert (again.gap_ns == found.as_measured.gap_ns).all()


def alone_on(timed: str, late_ns: int = 0) -> dict[Cause, int]:
    """Return the causes of the idle time of the first of four ranks alone, its second forward late."""
    made = simulate(generate("1f1b", 4, 8), Costs(1000, 2000, 0), steps=2)
    alone = made.slice(ranks=[0])
    late = pl.when((pl.col("microbatch") >= 1) | (pl.col("kind") == "backward")).then(late_ns)
    tasks = alone.tasks.with_columns(
        *(pl.col(name) + late.otherwise(0) for name in ("start_ns", "end_ns")),
    ).with_columns(host_start_ns=pl.col("start_ns") - 1)
    ranks = alone.ranks.with_columns(timed=pl.lit(timed))
    found = ledger(run := Timeline(tasks, ranks, alone.run), recognise(run))
    assert found is not None
    return {
        Cause(row["cause"]): row["idle_ns"] for row in found.totals().to_dicts() if row["idle_ns"]
    }


@pytest.mark.parametrize("timed", ["host", "device"])
def test_a_host_is_not_blamed_while_its_task_may_have_waited_for_a_stage_without_a_trace(timed):
    """Where one rank alone left a trace, nothing tells when the others' gradients were there."""
    idle_ns = 2 * 3 * (1000 + 2000)
    waiting = alone_on(timed)
    assert set(waiting) == {Cause.UNEXPLAINED}
    assert waiting[Cause.UNEXPLAINED] >= idle_ns
    # Its second forward needs nobody: that was the host.
    blamed = {"host": Cause.CODE, "device": Cause.LAUNCH}[timed]
    assert alone_on(timed, late_ns=700) == {**waiting, blamed: 2 * 700}
