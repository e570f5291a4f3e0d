"""A large run is looked at some steps or ranks at a time: what is said of it is the same."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import polars as pl
import pytest

from bubblescope.analysis import standard_questions, view
from bubblescope.analysis.idle import ledger_by_steps, step_groups
from bubblescope.analysis.idle.ledger import ledger
from bubblescope.analysis.report import Report
from bubblescope.analysis.schedule.recognise import recognise
from bubblescope.analysis.stragglers import Stragglers
from bubblescope.analysis.view import View
from bubblescope.analysis.why import Explanation
from bubblescope.model import arrays, dependencies, parquet
from bubblescope.model import timeline as timeline_module
from bubblescope.model.dependencies import passes
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.timeline import Timeline
from bubblescope.render.html import page
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from dealt_runs import disturbed
from random_runs import made

if TYPE_CHECKING:
    from collections.abc import Callable

MS = 1_000_000


def run(seed: int) -> Timeline:
    timeline = made(seed).timeline
    return disturbed(timeline, seed) if seed % 3 else timeline


def copy(timeline: Timeline) -> Timeline:
    """Return a run that remembers nothing."""
    return Timeline(timeline.tasks, timeline.ranks, timeline.run, **timeline.tables)


def asked(timeline: Timeline) -> list[object]:
    """Return what a run is asked, or why it cannot be told."""

    def answered(question: Callable[[Timeline], object]) -> object:
        try:
            return question(timeline)
        except BubblescopeError as error:
            return str(error)

    report, stragglers = Report.of(timeline).to_dict(), lambda run: Stragglers.of(run).to_dict()
    return [passes(timeline), report, answered(stragglers), answered(explained)]


def explained(timeline: Timeline) -> dict[str, object]:
    why = Explanation.of(timeline)
    return {**why.to_dict(gaps=True), "longest": why.longest(10).to_dicts()}


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_questions, "LARGE", 0)
    monkeypatch.setattr(view, "LARGE", 0)
    monkeypatch.setattr(arrays, "_BLOCK", 7)
    monkeypatch.setattr(dependencies, "_MANY", 0)
    monkeypatch.setattr(step_groups, "_SOME", 1)
    monkeypatch.setattr(timeline_module, "_MANY", 0)
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
@pytest.mark.parametrize("seed", [0, 5, 9])
def test_a_page_is_the_same_whether_its_replays_are_kept(seed, monkeypatch):
    """Also the lanes of its what-ifs, for which the run is replayed again."""
    timeline, again = run(seed), []
    made = ledger_by_steps.replays_of
    monkeypatch.setattr(ledger_by_steps, "replays_of", lambda *run: again.append(run) or made(*run))
    pages = [page.render(View.of(copy(timeline), kept=kept)) for kept in (True, False)]
    assert pages[0] == pages[1]
    assert len(again) == 1


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
    some = ledger_by_steps.ledger_in_turn(timeline, recognition)
    whole = ledger(timeline, recognition)
    assert some.table.equals(whole.table)
    assert some.totals().equals(whole.totals())
    assert (some.replay_error, some.present) == (whole.replay_error, whole.present)
    assert (some.replays, whole.replays is None) == (None, False)
    assert some.gaps.equals(whole.gaps)


@pytest.mark.usefixtures("all_are_large")
def test_one_group_of_steps_at_a_time_is_explained_while_others_are_measured(monkeypatch):
    """Explaining takes most memory."""
    explaining, most = threading.Semaphore(1), []
    made = ledger_by_steps.Entries.of

    def explained_alone(*found):
        alone = explaining.acquire(blocking=False)
        most.append(1 if alone else 2)
        time.sleep(0.02)
        try:
            return made(*found)
        finally:
            if alone:
                explaining.release()

    monkeypatch.setattr(ledger_by_steps.Entries, "of", explained_alone)
    monkeypatch.setattr(arrays, "cores", lambda: 2)
    timeline = simulate(generate("1f1b", 4, 8), Costs(10 * MS, 20 * MS, 9 * MS), steps=6)
    ledger_by_steps.ledger_in_turn(timeline, None)
    assert most == [1] * 6


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
