"""Every trace format reads file by file, wherever that is done, and sends back no more than it made."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import kineto_maker
import nsight_maker
from bubblescope import sources
from bubblescope.model.errors import BubblescopeError
from bubblescope.sources import SOURCES
from fuzz.seeds import TARGETS

FORMATS = sorted(SOURCES.built_in.keys() - {"dataset"})
"""All but ours of many files, of which Polars reads what is asked for."""
SEEDS = [(name, seed) for name in FORMATS for seed in TARGETS[name].seeds]


class Elsewhere:
    """An engine that does jobs as another process would: from pickles to pickles, in no order."""

    workers = 2

    def __init__(self):
        self.named, self.sent = [], 0

    def sends(self, count, size, *, threads=False):
        return count > 0

    def run(self, work, jobs, *, name=str):
        work = pickle.dumps(work)
        for index in reversed(range(len(jobs))):
            self.named.append(name(jobs[index]))
            result = pickle.dumps(pickle.loads(work)(pickle.loads(pickle.dumps(jobs[index]))))
            self.sent += len(result)
            yield index, pickle.loads(result)


@pytest.mark.parametrize("activities", [False, True], ids=["", "kernels"])
@pytest.mark.parametrize(("name", "seed"), SEEDS)
def test_a_run_that_is_read_elsewhere_is_the_same(name, seed, activities, tmp_path):
    TARGETS[name].seeds[seed](tmp_path)
    elsewhere = Elsewhere()
    found = sources.load(tmp_path, engine=elsewhere, activities=activities)
    assert found == sources.load(tmp_path, activities=activities)
    assert elsewhere.named
    files = {origin.path for origin in found.run.origins if Path(origin.path).exists()}
    assert files <= set(elsewhere.named)


@pytest.mark.parametrize("name", ["kineto", "nsight"])
def test_what_is_sent_does_not_grow_with_the_kernels(name, tmp_path):
    maker = {"kineto": kineto_maker, "nsight": nsight_maker}[name]
    sent = []
    for kernels in (2, 20):
        folder = tmp_path / str(kernels)
        folder.mkdir()
        style = nsight_maker.Style(stages=2, kernels=kernels)
        if name == "nsight":
            [export], _, _ = maker.pipeline(style)
            export.write(folder / "node0.sqlite")
        else:
            for trace in maker.pipeline(style)[0]:
                trace.write(folder / f"rank{trace.rank}.json")
        elsewhere = Elsewhere()
        tasks = len(sources.load(folder, engine=elsewhere))
        sent.append(elsewhere.sent)
    assert sent[1] - sent[0] < 10 * 18 * tasks  # bytes for each kernel more: of gaps between them


def test_a_damaged_file_is_named_wherever_it_is_read(tmp_path):
    TARGETS["primus"].seeds["bare"](tmp_path)
    (damaged := tmp_path / "pp_rank_0.json").write_text("{")
    said = []
    for how in ({}, {"engine": Elsewhere()}):
        with pytest.raises(BubblescopeError, match=str(damaged)) as error:
            sources.load(tmp_path, **how)
        said.append(str(error.value))
    assert said[0] == said[1]


def test_an_option_that_there_is_not_is_refused(tmp_path):
    TARGETS["primus"].seeds["bare"](tmp_path)
    with pytest.raises(TypeError, match="load\\(\\) takes no executor"):
        sources.load(tmp_path, executor=None)
