"""A large run whose steps are explained when they are looked at, not when its levels are made."""

from __future__ import annotations

import json
import pickle
import shutil
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest

from bubblescope import Timeline
from bubblescope.analysis.pieces.run_in_pieces import Split, here
from bubblescope.cli import dataset_levels
from bubblescope.datasets.dataset_pieces import pieces_of
from bubblescope.model.errors import EngineError
from bubblescope.model.provenance import Run
from bubblescope.render.html.page_blocks.block_files import Levels
from bubblescope.render.html.page_blocks.page_facts import make_levels
from bubblescope.render.html.page_blocks.served import Blocks
from bubblescope.render.html.schema import Condition, Search, SearchWord
from bubblescope.render.html.serve.resources import Resources
from bubblescope.render.html.serve.windows import Sight
from bubblescope.schedules import generate
from bubblescope.sources.dataset.catalogue import catalogue_of
from bubblescope.sources.dataset.store import Folder, store_of
from commands import called
from injected import Job
from serving import get, serving, unpacked
from viewing import context_of, until

STEPS = 9
RANKS = frozenset(range(8))
LANES = frozenset({"compute"})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """A dataset of nine steps, each a part of its own."""
    folder = tmp_path_factory.mktemp("large")
    run = Job(generate("1f1b", 4, 6), replicas=2, steps=STEPS, jitter=0.2, seed=3).play()
    run.save(folder / "run.parquet")
    asked = ("dataset", folder / "run.parquet", "-o", "set", "--block-steps", "1", "--workers", "1")
    assert called(*asked, cwd=folder).returncode == 0
    return folder / "set"


@pytest.fixture(scope="module")
def small():
    """Parts of a step, and so few tasks replayed that they are those of three."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(pieces_of.__kwdefaults__, "size", 96)
        patch.setattr(dataset_levels, "REPLAYED", 200)
        patch.setattr(dataset_levels, "is_large", lambda catalogue: True)
        yield


@pytest.fixture(scope="module")
def workers():
    with dataset_levels.chosen({"workers": 1}) as workers:
        yield workers


def levels_in(folder, dataset, workers):
    """The levels of the dataset, made there."""
    store, levels = store_of(dataset), Levels(Folder(folder), "levels/0")
    dataset_levels.make(levels, store, catalogue_of(store), workers, None, quiet=True)
    return levels


@pytest.fixture(scope="module")
def first(dataset, small, workers, tmp_path_factory):
    return levels_in(tmp_path_factory.mktemp("levels"), dataset, workers)


@pytest.fixture
def made(dataset, first, workers, tmp_path):
    """The same with levels, as it is served."""
    shutil.copytree(first.store.root, tmp_path / "levels")
    levels, store = Levels(Folder(tmp_path / "levels"), first.folder), store_of(dataset)
    with ExitStack() as meanwhile:
        explain = dataset_levels._Explainer(levels, store, catalogue_of(store), workers, meanwhile)
        yield SimpleNamespace(
            levels=levels, index=levels.index(), told=levels.told(), explain=explain,
            blocks=Blocks(levels, explain=explain),
        )  # fmt: skip


def explained(made):
    return {
        number
        for number in range(len(made.index.parts))
        if made.levels.explained(number, made.index) is not None
    }


def sight(made, *steps):
    """All ranks in some steps that follow each other."""
    chosen = [made.told.steps[step] for step in steps]
    length = chosen[-1].end - chosen[0].start
    return Sight(float(chosen[0].start), length / 200, 200, RANKS, LANES)


def span(made, *steps):
    shown = sight(made, *steps)
    return round(shown.start_ns), round(shown.end_ns)


def test_some_steps_are_explained_at_first_and_that_with_which_the_page_opens(made):
    assert len(made.index.parts) == STEPS
    assert explained(made) == {1, 4, 7} | {made.told.opening}
    assert any(f"of {STEPS}; of other steps it is worked out" in note for note in made.told.notes)


def test_tasks_of_all_steps_are_shown_at_once(made, dataset):
    every = Sight(0.0, made.told.end / 400 + 1, 400, RANKS, LANES)
    head, tables = unpacked(made.blocks.cut(every))
    assert sum(head["rows"]) == 2 * 6 * 8 * STEPS
    assert set(head["unexplained"]) == {*range(STEPS)} - explained(made)
    assert len(tables["gaps"]["length"]) > 0


@pytest.mark.parametrize("step", [0, 5, 8])
def test_a_step_is_explained_as_why_explains_it_alone(made, dataset, step):
    """To the nanosecond, cause by cause: `why --steps N` reads that step, by another way."""
    assert made.blocks.explain(*span(made, step), {step}) == "explained"
    found = made.blocks.totals(*span(made, step), RANKS)
    assert found.unexplained == 0
    ours = {cause.name: ns for cause, ns in zip(made.told.causes, found.causes, strict=True) if ns}
    done = called("why", dataset, "--steps", step, "--json", cwd=dataset.parent)
    rows = json.loads(done.stdout)["causes"]
    assert ours == {row["cause"]: row["idle_ns"] for row in rows if row["idle_ns"]}


def test_once_all_are_explained_idle_time_is_where_it_is_if_that_is_done_at_once(
    made, dataset, workers, tmp_path, monkeypatch
):
    for step in range(STEPS):
        made.blocks.explain(*span(made, step), {step})
    monkeypatch.setattr(dataset_levels, "REPLAYED", 10**9)
    levels = levels_in(tmp_path / "whole", dataset, workers)
    assert all(levels.explained(number, levels.index()) for number in range(STEPS))
    for step in range(STEPS):
        of = [held.totals(*span(made, step), RANKS) for held in (made.blocks, Blocks(levels))]
        assert len({(one.busy, one.idle, sum(one.causes), *one.tasks) for one in of}) == 1
        shown = [unpacked(held.cut(sight(made, step))) for held in (made.blocks, Blocks(levels))]
        tasks, links = ([tables[name] for _, tables in shown] for name in ("tasks", "links"))
        for one, other in (tasks, links):
            assert all((one[name] == other[name]).all() for name in one)


def test_only_what_is_most_in_sight_is_explained_at_a_time(made):
    assert made.blocks.explain(*span(made, 2, 3), {2, 3}) == "explained"
    assert len(explained(made) & {2, 3}) == 1
    # Who has not seen that yet is told, and loads it.
    assert made.blocks.explain(*span(made, 2, 3), {2, 3}) == "explained"
    assert len(explained(made) & {2, 3}) == 1
    [left] = {2, 3} - explained(made)
    assert made.blocks.explain(*span(made, 2, 3), {left}) == "explained"
    assert {2, 3} <= explained(made)


def test_too_many_steps_at_once_are_not_explained(made):
    before = explained(made)
    unknown = {*range(STEPS)} - before
    assert made.blocks.explain(*span(made, 0, STEPS - 1), unknown) == "closer"
    assert explained(made) == before


def test_what_is_not_in_sight_is_left(made):
    assert made.blocks.explain(*span(made, 0), {8}) == "elsewhere"
    assert 8 not in explained(made)


def test_levels_that_cannot_be_written_to_say_so(made):
    assert Blocks(made.levels).explain(*span(made, 0), {0}) == "unknown"


def test_what_another_server_explained_is_not_worked_out_again(made):
    def never(number):
        raise AssertionError(number)

    other = Blocks(made.levels, explain=never)
    assert other.totals(*span(made, 0), RANKS).unexplained == 1
    made.blocks.explain(*span(made, 0), {0})
    assert other.explain(*span(made, 0), {0}) == "explained"
    assert other.totals(*span(made, 0), RANKS).unexplained == 0


def test_whether_parts_are_explained_is_looked_up_once(made, monkeypatch):
    """Where levels are far away, each look is a request."""
    read = []
    monkeypatch.setattr(
        Levels, "explained", lambda self, part, index: read.append(part), raising=True
    )
    for _ in range(3):
        made.blocks.cut(sight(made, 0, STEPS - 1))
        made.blocks.totals(0, made.told.end, RANKS)
    assert sorted(read) == [*range(STEPS)]


def test_totals_and_searches_say_what_they_leave_out(made):
    every = 0, made.told.end
    known = len(explained(made))
    assert made.blocks.totals(*every, RANKS).unexplained == STEPS - known
    long = SearchWord(any=[[Condition(column="length", least=1)]], negated=False)
    found = made.blocks.find(Search(what="gap", sets=[[long]]))
    assert found.unexplained == STEPS - known
    assert found.count > 0
    places = [made.blocks.where("gap", number) for number in found.ids]
    steps = [made.told.steps[step] for step in sorted(explained(made))]
    assert all(any(s.start <= p.start <= s.end for s in steps) for p in places)
    made.blocks.explain(*span(made, 0), {0})
    more = made.blocks.find(Search(what="gap", sets=[[long]]))
    assert (more.unexplained, more.count > found.count) == (STEPS - known - 1, True)


def test_a_number_that_no_idle_time_has_is_refused(made):
    first = int(made.blocks._blocks.firsts["gaps"][0])
    with pytest.raises(ValueError, match="no idle time"):
        made.blocks.where("gap", first)


def test_what_goes_wrong_is_said_and_the_rest_is_answered(made):
    def fails(number):
        raise EngineError("workers died")

    start, end = span(made, 0)
    asked = {"start": str(start), "end": str(end), "parts": "0"}
    resources = Resources(Blocks(made.levels, explain=fails))
    assert json.loads(resources.answer("explain", asked)[1]) == {"error": "workers died"}
    with serving(Blocks(made.levels, explain=made.explain)) as server:
        assert get(server, "explain", **asked)[2] == b'{"idle":"explained"}'
        assert get(server, "explain", **{**asked, "parts": "x"})[0] == 400
        assert get(server, "explain", **{**asked, "parts": str(10**12)})[0] == 400
        assert get(server, "explain", **{**asked, "start": "nan"})[0] == 400


@pytest.mark.browser
def test_the_page_asks_why_ranks_are_idle_and_shows_it(made, browser):
    said = "document.querySelector('.stage > .idle').textContent"
    in_step = (
        "[...bubblescope.app.data.gaps.start].some((s) => s < bubblescope.app.head.steps[0].end)"
    )
    failing, fails = [True], EngineError("workers died")

    def explain(number):
        if failing.pop() if failing else False:
            raise fails
        made.explain(number)

    with serving(Blocks(made.levels, explain=explain)) as server:
        context = context_of(browser, viewport={"width": 1000, "height": 600})
        page = context.new_page()
        page.goto(server.url)
        until(page, "!!window.bubblescope")
        page.keyboard.press("0")
        until(page, f"{said}.includes('workers died')")
        assert not page.evaluate(in_step)
        page.keyboard.press("d")  # what was asked in vain is asked again when the page moves
        until(page, f"{in_step} && {said} === ''")
        page.keyboard.press("f")
        until(page, f"{said}.includes('zoom in')")
        context.close()


def test_what_was_explained_is_there_when_it_is_served_again(made):
    made.blocks.explain(*span(made, 0), {0})
    again = Blocks(made.levels)
    assert again.totals(*span(made, 0), RANKS).unexplained == 0
    ours, theirs = (unpacked(held.cut(sight(made, 0)))[1]["gaps"] for held in (made.blocks, again))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_where_nothing_can_be_explained_nothing_is_asked_for(tmp_path):
    """Ranks without a common clock have no ledger: no step waits for one."""
    run = Job(generate("1f1b", 4, 6), replicas=2, steps=STEPS, seed=3).play()
    apart = Timeline(run.tasks, run.ranks, Run(common_clock=False))
    pieces = Split(apart, [[step] for step in range(STEPS)], [[*RANKS]])
    levels = Levels(Folder(tmp_path), "levels/0")
    make_levels(levels, pieces, here, replayed=200)
    parts = range(STEPS)
    assert all(levels.explained(number, levels.index()) for number in parts)
    assert Blocks(levels).find(Search(what="gap", sets=[[]])).count == 0


def test_who_asks_for_levels_is_sent_nothing_that_grows_with_the_run(tmp_path):
    """What workers find stays in a folder that all of them see."""

    def travels(replicas):
        """Return how much is sent at once at most, there or back."""
        most = 0

        def sent(work, jobs):
            nonlocal most
            for index, job in enumerate(jobs):
                packed = pickle.dumps((work, job))
                work_there, job_there = pickle.loads(packed)
                found = pickle.dumps(work_there(job_there))
                most = max(most, len(packed), len(found))
                yield index, pickle.loads(found)

        run = Job(generate("1f1b", 4, 6), replicas=replicas, steps=4, jitter=0.2, seed=3).play()
        half = replicas * 4 // 2
        batches = [[*range(half)], [*range(half, 2 * half)]]
        pieces = Split(run, [[step] for step in range(4)], batches)
        levels = Levels(Folder(tmp_path / f"set{replicas}"), "levels/0")
        folder = tmp_path / f"held{replicas}"
        folder.mkdir()
        make_levels(levels, pieces, sent, replayed=200, folder=folder)
        assert levels.there
        return most

    few, many = travels(2), travels(32)
    assert many < few + 200  # of numbers that are longer


def test_all_steps_are_explained_beforehand_where_that_is_asked_for(dataset, small, tmp_path):
    asked = ("dataset", dataset, "-o", "set", "--block-steps", "1", "--workers", "1", "--levels")
    assert called(*asked, cwd=tmp_path).returncode == 0
    store = store_of(tmp_path / "set")
    levels = Levels.of(store, catalogue_of(store))
    assert not all(levels.explained(number, levels.index()) for number in range(STEPS))
    assert called(*asked, "--explain-all", cwd=tmp_path).returncode == 0
    assert all(levels.explained(number, levels.index()) for number in range(STEPS))
    refused = called(*asked[:-1], "--explain-all", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--levels" in refused.stderr
