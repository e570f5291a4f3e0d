"""A page of two runs: what it holds of the other, and that it is no surer than `compare`."""

from __future__ import annotations

import io
import json
import re

import msgspec
import numpy as np
import polars as pl
import pytest

import bubblescope
from bubblescope import BubblescopeError, Timeline, Trace
from bubblescope.analysis.view import View
from bubblescope.facade import write
from bubblescope.render.html import schema
from bubblescope.render.html.data import PageData
from bubblescope.render.text.compare import Comparison
from bubblescope.render.text.plain_console import PlainConsole
from bubblescope.sources import load
from commands import called
from device_exports import kineto
from device_maker import Mode, make
from places import ROOT
from two_runs import injected, made, noisy

A, B = ROOT / "examples/demo/1f1b", ROOT / "examples/demo/zb-h1"


def shown(before, after) -> PageData:
    comparison = Comparison.of(before, after, labels=("before", "after"))
    return PageData.of(View.of(before, against=comparison))


def told(before, after) -> schema.Against:
    return shown(before, after).told.against


def head_of(path) -> dict:
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script id="head"[^>]*>(.*?)</script>', text, re.DOTALL)[1])


def test_the_counterpart_of_a_task_is_the_same_task_of_the_other_run():
    before = made()
    after, truth = injected(before, 1)
    data = shown(before, after)
    tasks, reach = data.tasks, data.tasks["counterpart"].to_numpy()
    own = np.flatnonzero((tasks["lane"] == "compute").to_numpy())
    assert (reach[own] != 0).all()
    other = own + reach[own]
    assert (tasks["lane"].gather(other) == "against").all()
    assert (other + reach[other] == own).all()
    length = (tasks["end_ns"] - tasks["start_ns"]).to_numpy()
    key = tasks[own].select("rank", "step", "kind", "stage", "microbatch").rows()
    assert [truth[one] for one in key] == (length[other] - length[own]).tolist()
    beside = np.flatnonzero(~tasks["lane"].is_in(["compute", "against"]).to_numpy())
    assert not reach[beside].any()
    assert dict(data.tables())["tasks"]["counterpart"].to_list() == reach.tolist()


def test_what_has_no_counterpart_has_none():
    data = shown(made(), made(schedule="zb-h1"))
    matched = data.tasks.filter(pl.col("counterpart") != 0)
    assert set(matched["kind"]) == {"forward", "optimizer"}
    assert data.told.warnings[-1].startswith(
        "96 of 204 tasks on A's devices, and 192 of 300 on B's, have no counterpart"
    )


def test_what_could_have_been_has_no_counterpart():
    before = made()
    ghosts = dict(shown(before, injected(before, 1)[0]).tables())["ghosts"]
    assert ghosts.height > 0
    assert ghosts["counterpart"].unique().to_list() == [0]


def test_a_lane_of_the_other_run_is_directly_below_each_rank():
    data = shown(made(), made(12_000_000))
    for rank in range(4):
        lanes = [row.lane for row in data.places().rows if row.rank == rank]
        assert list(dict.fromkeys(lanes))[:2] == ["compute", "against"]
    assert data.told.overlays[0].lane == "against"


@pytest.mark.parametrize("slower", [8_000_000, 12_000_000])
def test_the_page_ends_when_the_last_step_of_both_has(slower):
    before, after = made(), made(slower)
    later = before.tasks.with_columns(pl.col("start_ns", "end_ns") + 10**15)  # a page begins at 0
    before = Timeline(later, before.ranks, before.run)
    data = shown(before, after)
    ends = [after.tasks.filter(step=step)["end_ns"].max() for step in before.steps]
    begins = [
        [run.tasks.filter(step=step)["start_ns"].min() for step in run.steps]
        for run in (before, after)
    ]
    laid = [end - its + mine for end, mine, its in zip(ends, *begins, strict=True)]
    pairs = data.told.against.pairs
    assert [pair.end for pair in pairs] == [end - before.start_ns for end in laid]
    assert data.told.end >= max(before.end_ns, *laid) - before.start_ns
    [first, *_] = data.told.against.pairs
    assert (first.step, first.other, first.shift) == (0, 0, 0)


def test_a_page_of_one_run_has_no_other():
    data = PageData.of(View.of(made()))
    assert data.told.against is None
    assert "counterpart" not in dict(data.tables())["tasks"].columns


# No surer than compare ----------------------------------------------------------------------------


PAIRS = {
    "exact": lambda: (made(), made(12_000_000)),
    "noise": lambda: (noisy(1), noisy(2)),
    "one step": lambda: (made(steps=1), made(12_000_000, steps=1)),
    "other shapes": lambda: (made(), made(ranks=8, microbatches=16)),
    "demo": lambda: tuple(bubblescope.load(path).timeline for path in (A, B)),
}


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_it_says_what_compare_prints(pair):
    before, after = pair()
    comparison = Comparison.of(before, after, labels=("before", "after"))
    said = PageData.of(View.of(before, against=comparison)).told.against
    printed = " ".join(re.sub(r"\s+", " ", _all(comparison)).split())
    assert said.headline == comparison.headline()
    for note in said.notes:
        assert note in printed
    changes = [(table.title, one) for table in said.tables for one in table.changes]
    assert len(changes) == len(comparison.changes)
    for title, one in changes:
        row = " ".join(
            part for part in (one.name, one.before, one.after, one.rise, one.relative) if part
        )
        noise = " noise" if one.certain is False and one.difference else ""
        assert f"{row}{noise}" in printed, title
        own = comparison.find(one.group, one.name)
        assert (one.difference, one.certain) == (own.difference, own.certain)
    assert (said.noise is not None) == any(one.interval for one in comparison.changes)


def _all(comparison: Comparison) -> str:
    out = PlainConsole(file=io.StringIO(), width=400, color_system=None)
    out.print(comparison.shown(everything=True))
    return out.file.getvalue()


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_reasons_are_ranked_certain_ones_first_then_the_largest(pair):
    ranked = told(*pair()).ranked
    assert ranked
    order = [(one.certain is False, -abs(one.difference)) for one in ranked]
    assert order == sorted(order)
    assert all(one.difference for one in ranked)


def test_reasons_are_the_parts_of_a_step():
    """They add up to its change: nothing is told twice."""
    for pair in (
        (made(), made([10_000_000, 10_000_000, 12_000_000, 10_000_000])),
        (made(), made(comm=0)),
    ):
        said = told(*pair)
        assert sum(one.difference for one in said.ranked) == pytest.approx(
            said.step.difference, abs=9
        )


def test_each_rank_has_the_rates_of_the_one_it_stands_against():
    before, after = made(), made([10_000_000, 10_000_000, 12_000_000, 10_000_000])
    alone = PageData.of(View.of(after)).told
    said = told(before, after)
    assert [one.makespan for one in said.rates] == [one.rates.makespan for one in alone.ranks]
    fewer = told(before, after.slice(ranks=[1, 2, 3]))
    assert fewer.rates[0] is None
    assert None not in fewer.rates[1:]


def test_of_devices_each_rank_has_the_idle_share_of_the_one_it_stands_against(tmp_path):
    runs = []
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        runs.append(load(kineto(make(Mode(ranks=2), seed), folder)))
    before, after = runs
    alone = [rank.idle for rank in PageData.of(View.of(after)).told.ranks]
    assert told(before, after).idle == alone
    assert None not in alone
    assert set(told(made(), made()).idle) == {None}


def test_what_is_told_is_read_back_as_the_schema():
    data = shown(made(), noisy(3, ranks=4))
    text = msgspec.json.encode(data.head({}, data.places()))
    assert msgspec.json.decode(text, type=schema.Head).against == data.told.against


# Commands -----------------------------------------------------------------------------------------


def test_compare_and_view_write_the_same_page(tmp_path):
    compared, viewed = tmp_path / "ab.html", tmp_path / "view.html"
    done = called("compare", str(A), str(B), "-o", str(compared), cwd=tmp_path)
    assert "wrote" in done.stdout
    assert "Idle by cause" in done.stdout
    called("view", str(A), "--against", str(B), "-o", str(viewed), "--no-open", cwd=tmp_path)
    bubblescope.view(A, tmp_path / "python.html", against=B)
    heads = [head_of(path) for path in (compared, viewed, tmp_path / "python.html")]
    for (
        head
    ) in heads:  # what would read one of the two runs again, only the command that reads it knows
        head["whatif"]["command"] = None
    assert heads[0] == heads[1] == heads[2]
    sides = heads[0]["against"]["sides"]
    assert [side["label"] for side in sides] == [str(A), str(B)]
    assert heads[0]["title"] == "1f1b and zb-h1"


def test_json_stays_json_beside_a_page(tmp_path):
    done = called(
        "compare", str(A), str(B), "--json", "-o", str(tmp_path / "ab.html"), cwd=tmp_path
    )
    assert json.loads(done.stdout)["schema"] == "bubblescope.compare/1"
    assert head_of(tmp_path / "ab.html")["against"]


def test_only_a_page_can_be_written_with_o(tmp_path):
    done = called("compare", str(A), str(B), "-o", str(tmp_path / "ab.svg"), cwd=tmp_path)
    assert done.returncode == 2
    assert "does not end in .html" in done.stderr
    run = Trace(made())
    with pytest.raises(BubblescopeError, match="cannot show two runs"):
        write(run.timeline, tmp_path / "x.svg", against=run.compare(run))
