"""What the page tells of devices, beside the rows of the budget and what the terminal prints."""

from __future__ import annotations

import re

import polars as pl
import pytest
from click.testing import CliRunner

from bubblescope.analysis.device_words import LABELS
from bubblescope.analysis.view import View
from bubblescope.cli import cli
from bubblescope.model import units
from bubblescope.model.budget import BUSY, IDLE
from bubblescope.render.html.data import PageData
from bubblescope.sources import load
from communicating import communicating
from device_exports import kineto
from device_maker import Mode, make
from synthetic import one_f_one_b


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return kineto(make(Mode(ranks=3), seed=6), tmp_path_factory.mktemp("devices"))


@pytest.fixture(scope="module")
def run(path):
    return load(path)


@pytest.fixture(scope="module")
def devices(run):
    return PageData.of(View.of(run)).told.devices


def sums(rows: pl.DataFrame) -> dict[str, int]:
    spent = dict(rows.group_by("use").agg(pl.col("spent_ns").sum()).iter_rows())
    named = {LABELS[use]: spent.get(use.value, 0) for use in (*BUSY, *IDLE)}
    return {name: time for name, time in named.items() if time}


def named(devices, times: list[int]) -> dict[str, int]:
    names = [*(use.name for use in devices.uses), *devices.idle]
    return {name: time for name, time in zip(names, times, strict=True) if time}


def test_its_times_are_the_sums_of_the_budget(run, devices):
    rows = run.budget
    assert named(devices, devices.overall) == sums(rows)
    ranks, steps = run.ranks["rank"].sort().to_list(), rows["step"].drop_nulls().unique().sort()
    for place, rank in enumerate(ranks):
        assert named(devices, devices.ranks[place]) == sums(rows.filter(rank=rank))
    for place, step in enumerate(steps):
        assert named(devices, devices.steps[place]) == sums(rows.filter(step=step))
    still_open = run.step_times.filter("open")["step"].unique().sort()
    assert [steps[place] for place in devices.open] == still_open.to_list()
    whole = rows.filter(pl.col("step").is_not_null(), ~pl.col("step").is_in(still_open.implode()))
    count = whole.select("rank", "step").n_unique()
    mean = {name: time // count for name, time in sums(whole).items()}
    assert named(devices, devices.step) == {name: time for name, time in mean.items() if time}


def test_what_time_is_lost_to_is_what_the_terminal_prints(path, devices, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    said = CliRunner().invoke(cli, ["report", str(path)]).output
    table = said.partition("Where devices lose time")[2].partition("\n\n")[0]
    printed = re.findall(r"^ +(\S+ [nµm]?s) +(\S+ %) ", table, re.MULTILINE)
    told = [(units.duration(one.time), units.percent(one.share)) for one in devices.losses]
    assert printed
    assert told[: len(printed)] == printed
    assert all(one.name in table for one in devices.losses[: len(printed)])


def test_where_no_trace_tells_there_is_nothing():
    assert PageData.of(View.of(one_f_one_b())).told.devices is None


def test_a_pipeline_has_its_devices_too():
    run = communicating(one_f_one_b())
    view = View.of(run)
    told = PageData.of(view).told
    assert view.devices is None
    assert all(rank.idle is None for rank in told.ranks)
    assert named(told.devices, told.devices.overall) == sums(run.budget)
    assert len(told.devices.ranks) == run.ranks.height
