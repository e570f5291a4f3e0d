"""One rate, whoever is asked: the report, `watch`, Prometheus, the page and the server."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

import bubblescope
from bubblescope.analysis.live import RunningJob
from bubblescope.analysis.view import View
from bubblescope.cli import cli
from bubblescope.record.step_times import step_times
from bubblescope.recording.columns import FORMAT, Header
from bubblescope.recording.file import Sink
from bubblescope.recording.follow import Tail
from bubblescope.render.html.data import PageData
from bubblescope.render.html.serve import query
from recorded_rows import recorded

STEPS = range(3)
RANKS = range(2)


def rows(rank, step, random):
    """Return the forwards and backwards of a step, some of which overlap."""
    start = np.sort(random.integers(0, 900_000, 8)) + step * 2_000_000
    end = start + random.integers(1, 200_000, 8)
    return [
        recorded(
            4,
            kind=kind,
            step=step,
            stage=rank,
            microbatch=range(4),
            start_ns=start[part],
            end_ns=end[part],
        )
        for kind, part in (("forward", slice(0, 4)), ("backward", slice(4, 8)))
    ]


@pytest.fixture(params=range(5))
def recording(request, tmp_path):
    """Write a run; return its folder and what was written of each rank and step."""
    random = np.random.default_rng(request.param)
    written = {(rank, step): rows(rank, step, random) for rank in RANKS for step in STEPS}
    for rank in RANKS:
        about = Header(FORMAT, "1", rank, [rank], "here", 1, rank, "boot", 0, "cpu")
        sink = Sink(tmp_path / f"rank{rank:05d}.bubbles", about)
        for step in STEPS:
            for part in written[rank, step]:
                sink.write(part)
        sink.close(complete=True)
    return tmp_path, written


def watched(folder):
    """Return what `bubblescope watch` makes of a folder."""
    tail, job = Tail(folder), RunningJob()
    job.update(tail.news(), tail)
    return job.figures()


def test_of_a_whole_run(recording):
    folder, _ = recording
    run = bubblescope.load(folder)
    rates = run.report().bubbles
    overall = rates.overall.makespan

    live = watched(folder)
    assert live.definition == "makespan"
    assert live.rate == overall
    per_rank = dict(live.ranks.select("rank", "idle").iter_rows())
    assert per_rank == {rank: rates.per_rank[rank].makespan for rank in RANKS}

    said = CliRunner().invoke(cli, ["watch", str(folder), "--once"]).stdout
    assert f"bubble {100 * overall:.2f} % makespan" in said
    said = CliRunner().invoke(cli, ["report", str(folder)]).stdout
    assert re.search(rf"makespan +{100 * overall:.2f} %", said)
    said = json.loads(CliRunner().invoke(cli, ["report", str(folder), "--json"]).stdout)
    assert said["bubble"]["overall"]["makespan"] == overall

    page = PageData.of(View.of(run.timeline))
    assert page.told.overall.makespan == overall
    lengths = {one["step"]: one["length_ns"] for one in said["bubble"]["per_step"]}
    assert {one.step: one.phase for one in page.told.steps} == lengths


def test_of_a_stretch_that_the_page_measures(recording):
    folder, _ = recording
    run = bubblescope.load(folder).slice(steps=[1])
    page = PageData.of(View.of(run.timeline))
    totals = query.totals(page, 0, run.duration_ns, RANKS)
    rates = run.report().bubbles.overall
    assert totals.busy == rates.busy_ns
    assert totals.idle / totals.spanned == pytest.approx(rates.makespan, abs=1e-12)


def test_of_each_step_that_prometheus_is_told(recording):
    folder, written = recording
    table = bubblescope.load(folder).report().bubbles
    spans = {
        (row["rank"], row["step"]): rate.span
        for row, rate in zip(table.table.iter_rows(named=True), table.per_rank_step(), strict=True)
    }
    for (rank, step), parts in written.items():
        told = step_times(step, parts)
        assert told.bubble == spans[rank, step]
