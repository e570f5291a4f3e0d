"""A large run is looked at some steps or ranks at a time: what is said of it is the same."""

from __future__ import annotations

import polars as pl
import pytest

from bubblescope.analysis.idle import in_turn
from bubblescope.analysis.idle.ledger import ledger
from bubblescope.analysis.report import Report
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.analysis.stragglers import Stragglers
from bubblescope.model import arrays, dependencies, parquet
from bubblescope.model.dependencies import passes
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.timeline import Timeline
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from dealt_runs import disturbed
from random_runs import made

MS = 1_000_000


def run(seed: int) -> Timeline:
    timeline = made(seed).timeline
    return disturbed(timeline, seed) if seed % 3 else timeline


def copy(timeline: Timeline) -> Timeline:
    """Return a run that remembers nothing."""
    return Timeline(timeline.tasks, timeline.ranks, timeline.run, **timeline.tables)


def asked(timeline: Timeline) -> list[object]:
    """Return what a run is asked, or why it cannot be told."""
    answers: list[object] = [passes(timeline), Report.of(timeline).to_dict()]
    try:
        answers.append(Stragglers.of(timeline).to_dict())
    except BubblescopeError as error:
        answers.append(str(error))
    return answers


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_BLOCK", 7)
    monkeypatch.setattr(dependencies, "_MANY", 0)
    monkeypatch.setattr(in_turn, "_SOME", 1)
    monkeypatch.setattr(parquet, "_MANY", 0)


@pytest.mark.parametrize("seed", range(9))
def test_answers_are_those_of_a_small_run(seed, request):
    timeline = run(seed)
    small = asked(copy(timeline))
    request.getfixturevalue("all_are_large")
    large = asked(copy(timeline))
    assert large[0].equals(small[0])
    assert large[1:] == small[1:]


@pytest.mark.usefixtures("all_are_large")
def test_its_ledger_is_that_of_all_steps_together():
    """With an order that departs from the plan, which each group of steps is told for its own tasks."""
    played = simulate(generate("1f1b", 4, 8), Costs(10 * MS, 20 * MS, 9 * MS, comm_ns=MS), steps=5)
    swapped = (pl.col("step") == 3) & (pl.col("rank") == 1) & (pl.col("kind") == "forward")
    microbatch = pl.when(swapped & (pl.col("microbatch") == 4)).then(5)
    microbatch = microbatch.when(swapped & (pl.col("microbatch") == 5)).then(4)
    tasks = played.tasks.with_columns(microbatch=microbatch.otherwise("microbatch"))
    timeline = Timeline(tasks, played.ranks, played.run)
    recognition = recognise(timeline)
    assert recognition.departed
    some = in_turn.ledger_in_turn(timeline, recognition)
    whole = ledger(timeline, recognition)
    assert some.table.equals(whole.table)
    assert some.totals().equals(whole.totals())
    assert (some.replay_error, some.present) == (whole.replay_error, whole.present)
    assert (some.replays, whole.replays is None) == (None, False)


@pytest.mark.usefixtures("all_are_large")
def test_columns_that_are_read_one_at_a_time_are_in_one_piece(tmp_path):
    timeline = run(0)
    timeline.tasks.write_parquet(tmp_path / "run.parquet", row_group_size=5)
    read = parquet.read(tmp_path / "run.parquet")
    assert read.equals(timeline.tasks)
    assert read.n_chunks("all") == [1] * read.width


def test_rules_hold_in_every_block(monkeypatch):
    monkeypatch.setattr(arrays, "_BLOCK", 7)
    tasks = run(0).tasks
    late = pl.int_range(pl.len()) == tasks.height - 1
    broken = tasks.with_columns(
        end_ns=pl.when(late).then(pl.col("start_ns") - 1).otherwise("end_ns")
    )
    with pytest.raises(BubblescopeError, match=f"row {tasks.height - 1}: the rule is that end_ns"):
        Timeline(broken)
