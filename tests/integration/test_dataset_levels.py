"""Datasets that are described and served without being read."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import ExitStack

import numpy as np
import polars as pl
import pytest

from bubblescope import SourceError, Timeline, sources
from bubblescope.cli import dataset_levels as levels
from bubblescope.cli import info
from bubblescope.datasets.building import Dataset
from bubblescope.engine import engine
from bubblescope.model.errors import ScheduleError
from bubblescope.render.html.page_blocks import step_questions
from bubblescope.render.html.page_blocks.block_files import LEFT_OUT, Levels
from bubblescope.render.html.page_blocks.served import Blocks
from bubblescope.render.html.serve.resources import Resources
from bubblescope.render.html.serve.windows import Sight
from bubblescope.schedules import generate
from bubblescope.sources.dataset import derived_folder
from bubblescope.sources.dataset.catalogue import catalogue_of
from bubblescope.sources.dataset.store import Folder, store_of
from commands import called
from injected import Job
from random_runs import made
from serving import get, serving, window


def traces(folder, seed=4):
    """A run, each rank of which is a file."""
    timeline = made(seed).timeline
    folder.mkdir()
    for rank in timeline.ranks["rank"]:
        timeline.slice(ranks=[rank]).save(folder / f"rank{rank:04}.parquet")
    return folder


@pytest.fixture
def dataset(tmp_path):
    """A dataset of several parts and blocks."""
    found = sources.find([traces(tmp_path / "traces")], None, None)
    Dataset(store_of(tmp_path / "run"), {}, engine(workers=1), 4, 2).make(found)
    return tmp_path / "run"


def test_levels_are_of_one_version(dataset, monkeypatch):
    store = store_of(dataset)
    catalogue = catalogue_of(store)
    monkeypatch.setattr(derived_folder, "__version__", "0.0.1")
    earlier = Levels.of(store, catalogue)
    monkeypatch.undo()
    assert earlier.folder != Levels.of(store, catalogue).folder


class TestInfo:
    def test_a_large_dataset_is_described_as_its_traces_are(self, dataset, tmp_path, monkeypatch):
        whole = json.loads(called("info", tmp_path / "traces", "--json", cwd=tmp_path).stdout)
        monkeypatch.setattr(info, "_FEW", 0)
        told = json.loads(called("info", dataset, "--json", cwd=tmp_path).stdout)
        for ranks in (told["ranks"], whole["ranks"]):
            for rank in ranks:  # of a dataset, clocks are as they were recorded
                del rank["clock_offset_ns"], rank["clock_error_ns"]
        for key in ("ranks", "groups", "steps", "tasks", "origins", "cannot_answer", "timed"):
            assert told[key] == whole[key], key
        shown = called("info", dataset, cwd=tmp_path).stdout
        assert f"Timeline({whole['tasks']} tasks, {len(whole['ranks'])} ranks" in shown

    def test_no_more_of_it_is_read_than_one_block_of_tasks(self, dataset, tmp_path, monkeypatch):
        monkeypatch.setattr(info, "_FEW", 0)
        plain, names = Folder.read, []
        monkeypatch.setattr(
            Folder, "read", lambda self, name: (names.append(name), plain(self, name))[1]
        )
        called("info", dataset, cwd=tmp_path)
        assert len({name.split("/")[1] for name in names if name.startswith("tasks/")}) == 1

    def test_a_part_that_is_chosen_is_read(self, dataset, tmp_path, monkeypatch):
        monkeypatch.setattr(info, "_FEW", 0)
        told = json.loads(called("info", dataset, "--json", "--ranks", "1", cwd=tmp_path).stdout)
        assert [rank["rank"] for rank in told["ranks"]] == [1]


class TestLevels:
    def test_they_are_made_with_a_dataset_once(self, tmp_path, monkeypatch):
        folder = traces(tmp_path / "traces")
        asked = ("dataset", folder, "-o", "run", "--levels", "--workers", "1")
        called(*asked, cwd=tmp_path)
        made_, catalogue = levels_of(tmp_path / "run")
        assert made_.there
        index = made_.index()
        assert sum(part.tasks for part in index.parts) == sum(
            part.count("tasks") for part in catalogue.parts
        )
        monkeypatch.setattr("bubblescope.render.html.page_blocks.page_facts.make_levels", None)
        called(*asked, cwd=tmp_path)

    def test_blocks_are_without_columns_that_have_no_value(self, tmp_path):
        folder = traces(tmp_path / "traces")
        called("dataset", folder, "-o", "run", "--levels", "--workers", "1", cwd=tmp_path)
        made_, _ = levels_of(tmp_path / "run")
        files = [*(tmp_path / "run" / made_.folder).glob("tasks/*/*.parquet")]
        assert files
        for file in files:
            held = pl.read_parquet(file)
            empty = {name for name in held.columns if held[name].null_count() == held.height}
            assert not empty & LEFT_OUT
            assert "microbatch" in held.columns

    def test_those_of_a_dataset_that_was_added_to_are_made_anew(self, tmp_path):
        folder = traces(tmp_path / "traces")
        last = folder / "rank0000.parquet"
        shutil.move(last, tmp_path)
        asked = ("dataset", folder, "-o", "run", "--levels", "--workers", "1")
        called(*asked, cwd=tmp_path)
        before, _ = levels_of(tmp_path / "run")
        shutil.move(tmp_path / last.name, last)
        called(*asked, cwd=tmp_path)
        after, _ = levels_of(tmp_path / "run")
        assert before.folder != after.folder
        assert [one.name for one in (tmp_path / "run/levels").iterdir()] == [
            after.folder.split("/")[1]
        ]

    def test_serving_makes_them_where_they_are_missing_and_keeps_them(self, dataset, monkeypatch):
        monkeypatch.setattr(levels, "ENOUGH", 0)
        assert levels_of(dataset)[0].there is False
        with ExitStack() as meanwhile:
            found = levels.levels_for((str(dataset),), options(), meanwhile).levels
            assert found.there
        assert levels_of(dataset)[0].there

    def test_they_are_kept_elsewhere_where_the_dataset_cannot_be_written_to(
        self, dataset, monkeypatch
    ):
        def refused(self, name, content):
            if str(self.root) == str(dataset):
                raise PermissionError(13, "Permission denied")
            return plain(self, name, content)

        plain = Folder.write
        monkeypatch.setattr(Folder, "write", refused)
        monkeypatch.setattr(levels, "ENOUGH", 0)
        with ExitStack() as meanwhile:
            found = levels.levels_for((str(dataset),), options(), meanwhile).levels
            assert found.there
            place = found.store.root
            assert place != dataset
        assert not place.exists()

    @pytest.mark.parametrize(
        "other", [{"steps": [range(1)]}, {"ranks": [range(1)]}, {"clock": "raw"}]
    )
    def test_a_part_of_it_is_read_as_before(self, dataset, monkeypatch, other):
        monkeypatch.setattr(levels, "ENOUGH", 0)
        with ExitStack() as meanwhile:
            assert levels.levels_for((str(dataset),), {**options(), **other}, meanwhile) is None

    def test_a_small_one_is_read_too(self, dataset):
        with ExitStack() as meanwhile:
            assert levels.levels_for((str(dataset),), options(), meanwhile) is None

    def test_nothing_is_written_into_a_small_one(self, dataset):
        before = sorted(dataset.rglob("*"))
        with ExitStack() as meanwhile:
            levels.levels_for((str(dataset),), options(), meanwhile)
        assert sorted(dataset.rglob("*")) == before

    def test_what_is_shown_is_on_the_clock_of_the_run(self, tmp_path):
        """Hosts whose clocks differ are put right, in blocks as in what is read at once."""
        timeline = made(4).timeline
        folder = tmp_path / "traces"
        folder.mkdir()
        for rank in timeline.ranks["rank"]:
            own = timeline.slice(ranks=[rank])
            late_ns = 10**9 * (rank % 2)
            tasks = own.tasks.with_columns(pl.col("start_ns", "end_ns") + late_ns)
            ranks = own.ranks.with_columns(host=pl.lit(f"host{rank % 2}"))
            Timeline(tasks, ranks, own.run).save(folder / f"rank{rank:04}.parquet")
        done = called("dataset", folder, "-o", "run", "--levels", "--workers", "1", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        loaded = sources.load(tmp_path / "run")
        blocks = Blocks(levels_of(tmp_path / "run")[0])
        shown = blocks._near(*2 * [np.arange(blocks.ranks)], -1e30, 1e30).tasks
        assert sorted(shown["start_ns"]) == sorted(loaded.tasks["start_ns"])
        assert blocks.cut(Sight(0, 1e9, 10, frozenset({0}), frozenset({"compute"})))


class TestWhatIfs:
    """Questions about a dataset of which only blocks are read."""

    ASKED = "--stage 1=0.5"

    @pytest.fixture
    def large(self, tmp_path):
        """A dataset whose steps differ, with levels, as it is served."""
        run = Job(generate("1f1b", 2, 4), replicas=1, steps=3, jitter=0.3, seed=5).play()
        run.save(tmp_path / "run.parquet")
        asked = ("dataset", tmp_path / "run.parquet", "-o", "set", "--levels", "--workers", "1")
        assert called(*asked, cwd=tmp_path).returncode == 0
        return served(tmp_path / "set")

    def test_they_are_about_the_step_in_sight(self, large, tmp_path):
        told = large.asking._told
        predicted = []
        for step in told.steps:
            whole = called(
                "whatif", "set", "--steps", str(step.step), *self.ASKED.split(), "--json",
                cwd=tmp_path,
            )  # fmt: skip
            [known] = json.loads(whole.stdout)["predictions"]
            asked = {"ask": self.ASKED, "at": str(step.end - 1)}
            answer = json.loads(Resources(large).answer("whatif", asked)[1])["answer"]
            assert answer["predicted"] == known["predicted_ns"]
            assert answer["saved"] == known["saved_ns"]
            assert answer["change"].endswith(f", of step {step.step}")
            predicted.append(answer["predicted"])
        assert len(set(predicted)) == len(predicted)
        opening = json.loads(Resources(large).answer("whatif", {"ask": self.ASKED})[1])["answer"]
        assert opening["predicted"] == predicted[told.opening]

    def test_the_page_says_what_can_be_asked(self, large, tmp_path):
        whatif = large.asking.head()
        assert whatif.command == f"bubblescope whatif {tmp_path / 'set'}"
        assert whatif.stages == [0, 1]
        for cause in whatif.causes:
            answer = Resources(large).answer("whatif", {"ask": f"--without '{cause}'"})
            assert b'"predicted"' in answer[1], answer

    def test_what_cannot_be_answered_is_said(self, large, tmp_path, monkeypatch):
        def refusal(ask):
            return json.loads(Resources(large).answer("whatif", {"ask": ask})[1])["error"]

        assert "stage 7" in refusal("--stage 7=2")
        monkeypatch.setattr(step_questions, "_REPLAYED", 3)
        step = large.asking._told.steps[large.asking._told.opening].step
        again = served(tmp_path / "set")
        with pytest.raises(ScheduleError, match=rf"about 16 tasks.*set --steps {step}"):
            again.asking.answer(self.ASKED)
        monkeypatch.undo()
        (tmp_path / "set").rename(tmp_path / "elsewhere")
        with pytest.raises(SourceError, match=re.escape(str(tmp_path / "set"))):
            again.asking.answer(self.ASKED)
        with serving(again) as server:
            status, _, said = get(server, "window", **window(ranks="0-1"))
        assert status == 500
        assert said.decode().startswith(str(tmp_path / "set"))
        assert "was moved, removed or added to while it was served" in said.decode()


def served(root):
    """A dataset as `serve` has it."""
    found, catalogue = levels_of(root)
    return Blocks(found, dataset=(store_of(root), catalogue))


def options():
    """Options of a command that reads, as they are if nothing is said."""
    return {
        "steps": None, "ranks": None, "clock": "auto", "quiet": True, "workers": 1, "mode": "local",
    }  # fmt: skip


def levels_of(root):
    """Where the levels of a dataset are, and its catalogue."""
    store = store_of(root)
    catalogue = catalogue_of(store)
    return Levels.of(store, catalogue), catalogue
