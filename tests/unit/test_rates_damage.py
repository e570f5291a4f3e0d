"""Rates of damaged runs: each is a share of time, or unknown for a stated reason."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bubblescope
from bubblescope import Timeline
from bubblescope.analysis.rates import CROWDED, PARTIAL, Rates, bubble_rates
from bubblescope.analysis.study import study
from bubblescope.schedules import generate
from injected import Job
from kineto_maker import pipeline
from nsight_maker import Style

SHARES = ("span", "makespan", "no_wait", "excess", "kernel_share")
ALL = (*SHARES, "over_ideal")


def assert_contract(rates: Rates) -> None:
    """Every rate is from 0 to 1 (idle over busy time: 0 or more), or null with the reason."""
    for name in ALL:
        rate = getattr(rates, name)
        if rate is None:
            assert rates.unknown[name]
        else:
            assert rate >= 0
            assert rate <= 1 or name == "over_ideal"
            assert name not in rates.unknown


def damaged(timeline: Timeline, kind: str, random: np.random.Generator) -> Timeline:
    """Return a run from which something is missing, or whose times are off."""
    tasks = timeline.tasks
    rank, step = pl.col("rank"), pl.col("step")
    ranks, steps = (tasks[name].unique().to_numpy() for name in ("rank", "step"))
    some = random.choice(ranks, random.integers(1, len(ranks) + 1), replace=False).tolist()
    when = int(random.choice(steps))
    here = rank.is_in(some) & (step == when)
    if kind == "steps":
        tasks = tasks.filter(~here)
    elif kind == "tasks":
        kept = random.random(tasks.height) > random.uniform(0, 0.6)
        tasks = tasks.filter(pl.Series(kept))
    elif kind == "merged":  # what a missing marker made of two steps
        tasks = tasks.with_columns(step=pl.when(here & (step > 0)).then(step - 1).otherwise(step))
    elif kind == "renumbered":
        tasks = tasks.with_columns(step=pl.when(rank.is_in(some)).then(step + 1).otherwise(step))
    elif kind == "shifted":
        away = int(random.integers(-(10**9), 10**9))
        shift = pl.when(here).then(away).otherwise(0)
        tasks = tasks.with_columns(pl.col("start_ns", "end_ns") + shift)
    elif kind == "longer":
        more = pl.when(here).then(int(random.integers(0, 10**8))).otherwise(0)
        tasks = tasks.with_columns(end_ns=pl.col("end_ns") + more)
    return Timeline(tasks, timeline.ranks, timeline.run)


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(["1f1b", "gpipe", "interleaved-1f1b", "zb-h1"]),
    st.lists(
        st.sampled_from(["steps", "tasks", "merged", "renumbered", "shifted", "longer"]), max_size=3
    ),
    st.integers(0, 2**32 - 1),
)
def test_every_rate_of_a_damaged_run_is_a_share_or_unknown_with_the_reason(name, kinds, seed):
    run = Job(generate(name, 3, 6), steps=3, seed=seed, jitter=0.1).play()
    random = np.random.default_rng(seed)
    for kind in kinds:
        run = damaged(run, kind, random)
    if not len(run):
        return

    found = study(run).bubbles

    for rates in [
        found.overall,
        *found.per_rank.values(),
        *found.per_step.values(),
        *found.per_rank_step(),
    ]:
        assert_contract(rates)
    ranks = found.table["rank"].n_unique()
    held = dict(found.table.group_by("step").len().iter_rows())
    cut = {*found.table.filter("cut")["step"]}
    for step, rates in found.per_step.items():
        assert (rates.makespan is None) == (held[step] < ranks or step in cut)
        if held[step] < ranks:
            assert rates.unknown["makespan"] == PARTIAL
            assert rates.span is not None
    left_out = {notice.code for notice in found.notices} - {"steps-apart"}
    assert bool(left_out) == any(found.table["partial"] | found.table["crowded"])


def test_a_step_with_too_much_work_for_it_is_not_compared_with_a_perfect_run():
    run = Job(generate("1f1b", 2, 2), replicas=1, steps=3).play()
    ideal = study(run).ideal.steps
    short = pl.when(pl.col("step") == 1).then(pl.col("ideal_ns") // 2).otherwise("ideal_ns")

    found = bubble_rates(run, ideal.with_columns(ideal_ns=short))

    assert found.per_step[1].no_wait is None
    assert found.per_step[1].unknown["no_wait"] == CROWDED
    assert found.per_step[1].makespan == pytest.approx(1 / 3)
    assert found.per_step[2].no_wait == pytest.approx(1 / 3)
    assert found.overall.no_wait == pytest.approx(1 / 3)
    assert [notice.code for notice in found.notices] == ["crowded-steps"]


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_marker_that_one_rank_lacks_changes_no_other_step(tmp_path, missing):
    traces, _, rate = pipeline(Style(stages=2, microbatches=2, steps=3))
    marker = f"ProfilerStep#{missing}"
    traces[1].events = [event for event in traces[1].events if event["name"] != marker]
    for trace in traces:
        trace.write(tmp_path / f"rank{trace.rank}.json")

    report = bubblescope.load(tmp_path).report()

    said = SimpleNamespace(**msgspec.json.decode(report.to_json()))
    assert said.bubble["overall"]["makespan"] == pytest.approx(rate)
    assert said.bubble["overall"]["no_wait"] == pytest.approx(rate)
    [partial] = [row for row in said.bubble["per_step"] if row["step"] == missing]
    assert (partial["makespan"], partial["no_wait"]) == (None, None)
    assert partial["unknown"]["makespan"] == PARTIAL
    assert "partial-steps" in {notice["code"] for notice in said.warnings}
    assert f"step {missing} not compared across ranks" in " ".join(str(report).split())
