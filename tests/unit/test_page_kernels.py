"""The kernels of the page: which there are, where they stand, and what they sum up to."""

from __future__ import annotations

import base64
import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

import bubblescope
from bubblescope import Timeline
from bubblescope.analysis.picture_data import pictured
from bubblescope.analysis.view import View
from bubblescope.cli import cli
from bubblescope.model.budget import ACTIVITY_SCHEMA, BUSY
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.kinds import Kind
from bubblescope.render.html import kernels as page_kernels
from bubblescope.render.html import page as html
from bubblescope.render.html.data import PageData
from bubblescope.render.html.kernels import inside, kernels_of
from bubblescope.render.layout import TOUCHING_NS, ordered_ranks, short_label
from bubblescope.render.picture import svg
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from device_exports import kineto, nsight
from device_maker import Mode, make
from page_tables import columns
from synthetic import one_f_one_b

MODE = Mode(pairs=True, streams=3, jitter=True, ranks=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return kineto(make(MODE, 3), tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module")
def run(folder) -> Timeline:
    return bubblescope.load(folder, activities=True).timeline


def element(page: str, name: str) -> str:
    return re.search(rf'<script id="{name}"[^>]*>(.*?)</script>', page, re.DOTALL)[1]


def shown(timeline: Timeline) -> tuple[dict, pl.DataFrame]:
    """Return the head of a page, and its kernels as the viewer reads them."""
    page = html.render(View.of(timeline), kernels=True)
    head = json.loads(element(page, "head"))
    table = columns(base64.b64decode(element(page, "kernels")), head["columns"]["kernels"])
    parts = []
    for row in head["kernel_rows"]:
        own = {name: column[row["from"] : row["to"]] for name, column in table.items()}
        end = int(head["origin"]) + np.cumsum(own["gap"]) + own["length"]
        drawn = int(head["origin"]) + np.cumsum(own["gap"])
        assert (drawn[1:] >= end[:-1]).all()  # nothing overlaps
        names = [head["kernels"]["names"][code] for code in own["name"]]
        modules = [*head["kernels"]["modules"], None]
        parts.append(
            pl.DataFrame(
                {
                    "rank": head["ranks"][row["rank"]]["rank"],
                    "device": row["device"],
                    "stream": row["stream"],
                    "use": [head["kernels"]["uses"][code]["name"] for code in own["use"]],
                    "name": [short for short, _ in names],
                    "full": [full for _, full in names],
                    "module": pl.Series([modules[code] for code in own["module"]], dtype=pl.String),
                    "start_ns": drawn - own["cut"],
                    "end_ns": end,
                    "lead": own["lead"],
                }
            )
        )
    return head, pl.concat(parts)


class TestWhichThereAre:
    @pytest.mark.parametrize("write", [kineto, lambda made, to: nsight(made, to / "a.sqlite")])
    def test_the_page_has_every_kernel_of_the_run(self, tmp_path, write):
        timeline = bubblescope.load(write(make(MODE, 5), tmp_path), activities=True).timeline
        _, found = shown(timeline)
        lead = (pl.col("start_ns") - pl.col("launch_ns")).clip(lower_bound=-1).fill_null(-1)
        expected = timeline.activities.with_columns(pl.col("use").cast(pl.String), lead=lead)
        expected = expected.with_columns(pl.col("device", "stream").fill_null(-1))
        key = ["rank", "device", "stream", "start_ns", "end_ns", "name", "full", "use", "lead"]
        assert len(found) > 100
        assert found.select(key).sort(key).rows() == expected.select(key).sort(key).rows()

    def test_modules_and_work_before_the_first_task(self):
        timeline = with_kernels([(0, 7, -500, -100, "layers.1"), (0, 7, 50, 90, None)])
        head, found = shown(timeline)
        assert int(head["origin"]) == timeline.start_ns - 500
        assert head["end"] == timeline.duration_ns + 500
        assert found["module"].to_list() == ["layers.1", None]
        assert head["steps"][0]["start"] == 500

    def test_only_those_of_the_steps_and_ranks_that_are_shown(self, run):
        part = run.slice(ranks=[1])
        _, found = shown(part)
        assert set(found["rank"]) == {1}
        assert len(found) == len(part.activities)
        step = run.steps[0]
        _, found = shown(run.slice(steps=[step]))
        assert len(found) == run.activities.filter(pl.col("step") == step).height > 0

    def test_a_page_has_none_unless_they_are_asked_for(self, run):
        told = PageData.of(View.of(run)).told
        assert told.kernels is None
        assert "`bubblescope view PATH --kernels`" in told.no_kernels
        told = PageData.of(View.of(one_f_one_b()), kernels=True).told
        assert told.kernels is None
        assert told.no_kernels is None  # nothing would put them in

    def test_python_reads_them_if_they_are_asked_for(self, folder, tmp_path):
        page = bubblescope.view(folder, tmp_path / "a.html", kernels=True)
        assert json.loads(element(page.read_text(), "head"))["kernels"]
        trace = bubblescope.load(folder)
        trace.view(tmp_path / "b.html")
        assert json.loads(element((tmp_path / "b.html").read_text(), "head"))["kernels"] is None
        trace.export(tmp_path / "c.html", kernels=True)
        assert json.loads(element((tmp_path / "c.html").read_text(), "head"))["kernels"]


def with_kernels(rows) -> Timeline:
    """Return a run with kernels: rank, stream, start and end since its start, and module."""
    timeline = one_f_one_b()
    table = pl.DataFrame(
        [
            {
                "rank": rank,
                "device": 0,
                "step": 0,
                "stream": stream,
                "use": "compute",
                "name": "gemm",
                "full": "void gemm(int)",
                "module": module,
                "start_ns": timeline.start_ns + start,
                "end_ns": timeline.start_ns + end,
            }
            for rank, stream, start, end, module in rows
        ]
    )
    missing = [pl.lit(None).alias(name) for name in ACTIVITY_SCHEMA if name not in table.columns]
    table = table.with_columns(missing)
    table = table.select(pl.col(name).cast(kind) for name, kind in ACTIVITY_SCHEMA.items())
    return Timeline(
        timeline.tasks, timeline.ranks, timeline.run, **timeline.tables | {"activities": table}
    )


class TestRows:
    def arranged(self, *rows) -> list[tuple]:
        timeline = with_kernels([(0, *row, None) for row in rows])
        ranks = ordered_ranks(timeline).with_row_index("position")
        table = kernels_of(timeline, ranks).table
        start = pl.col("start_ns", "end_ns") - timeline.start_ns
        return table.select("stream", "row", start, "cut_ns").rows()

    def test_each_stream_has_a_row(self):
        assert self.arranged((9, 0, 10), (7, 5, 20), (7, 20, 30)) == [
            (7, 0, 5, 20, 0),
            (7, 0, 20, 30, 0),
            (9, 0, 0, 10, 0),
        ]

    def test_what_overlaps_by_rounding_stays_in_its_row(self):
        assert self.arranged((7, 0, 5000), (7, 4000, 9000)) == [
            (7, 0, 0, 5000, 0),
            (7, 0, 5000, 9000, 1000),
        ]

    def test_what_overlaps_otherwise_has_a_row_more(self):
        assert self.arranged((7, 0, 5000), (7, 2999, 9000), (7, 9000, 9001)) == [
            (7, 0, 0, 5000, 0),
            (7, 0, 9000, 9001, 0),
            (7, 1, 2999, 9000, 0),
        ]

    def test_at_random(self):
        rng = np.random.default_rng(1)
        start = rng.integers(0, 100_000, 400)
        end = start + rng.integers(0, 3_000, 400)
        streams = rng.integers(0, 3, 400)
        found = self.arranged(*zip(streams.tolist(), start.tolist(), end.tolist(), strict=True))
        true = sorted((stream, drawn - cut, ends) for stream, _, drawn, ends, cut in found)
        assert true == sorted(zip(streams.tolist(), start.tolist(), end.tolist(), strict=True))
        table = pl.DataFrame(found, schema=["stream", "row", "start", "end", "cut"], orient="row")
        for _, row in table.group_by("stream", "row", maintain_order=True):
            assert (row["start"][1:] >= row["end"][:-1]).all()
        assert table["cut"].max() <= TOUCHING_NS


def test_devices_that_run_whole_models_have_no_causes_of_bubbles():
    """Why they idle is what their budget says, as in the terminal."""
    run = simulate(generate("1f1b", 1, 2), Costs(10, 10, 10))
    late = pl.when(pl.col("microbatch") == 1).then(7).otherwise(0)
    tasks = run.tasks.with_columns(pl.col("start_ns", "end_ns") + late)
    spent = {"rank": 0, "device": 0, "step": 0, "start_ns": 0, "end_ns": 90, "spent_ns": 90}
    budget = pl.DataFrame([{**spent, "use": use} for use in ("compute", "copy_hidden")])

    def told(run: Timeline) -> tuple[list[float], int | None]:
        """Return the shares of causes, and of what time the step's idle share is."""
        head = json.loads(element(html.render(View.of(run)), "head"))
        shares = [cause["share"] for cause in head["causes"] if cause["share"]]
        return shares, head["steps"][0]["phase"]

    assert told(Timeline(tasks, run.ranks, run.run)) == ([1.0], 67)
    assert told(Timeline(tasks, run.ranks, run.run, budget=budget)) == ([], 90)


class TestSums:
    def test_what_ran_in_a_task_is_what_its_budget_says(self, run):
        """Two ways to the same figures: kernels, and the sums that are known without them."""
        data = PageData.of(View.of(run), kernels=True)
        tasks = data.tasks.filter(pl.col("task").is_not_null(), pl.col("lane") == "compute")
        assert (tasks["computing"] >= 0).all()
        assert len(tasks) > 3
        for row in tasks.iter_rows(named=True):
            found = inside(data.kernels, row["position"], row["start_ns"], row["end_ns"], 5)
            sums = (found.compute, found.communication, found.copy)
            assert sums == (row["computing"], row["communicating"], row["copying"])

    def test_every_nanosecond(self):
        rng = np.random.default_rng(2)
        start = np.sort(rng.integers(0, 200, 60))
        end = start + rng.integers(1, 12, 60)
        use, name = rng.integers(0, len(BUSY), 60), rng.integers(0, 8, 60)
        kernels = pl.DataFrame(
            {"position": 3, "start_ns": start, "end_ns": end, "cut_ns": 0, "use": use, "name": name}
        )
        for begin, stop in ((0, 220), (50, 100), (90, 91), (300, 400)):
            sums = [0] * len(BUSY)
            for at in range(begin, stop):
                running = use[(start <= at) & (at < end)]
                if len(running):
                    sums[min(running)] += 1
            found = inside(kernels, 3, begin, stop, 3)
            assert [found.compute, found.communication, found.copy] == sums
            clipped = np.clip(end, begin, stop) - np.clip(start, begin, stop)
            assert found.count == ((start < stop) & (end > begin)).sum()
            took = sorted((int(clipped[name == one].sum()) for one in range(8)), reverse=True)
            assert [ns for _, ns, _ in found.top] == [ns for ns in took[:3] if ns]
            assert inside(kernels, 2, begin, stop, 3).count == 0

    def test_of_lanes_that_do_not_compute_nothing_is_said(self, run):
        tasks = PageData.of(View.of(run)).tasks.filter(pl.col("lane") != "compute")
        assert (tasks["computing"] == -1).all()


class TestCommands:
    def invoke(self, *words):
        return CliRunner().invoke(cli, [str(word) for word in words])

    def test_view_puts_them_in(self, folder, tmp_path):
        page = tmp_path / "a.html"
        done = self.invoke("view", folder, "--kernels", "--no-open", "-q", "-o", page, "--ranks", 1)
        assert done.exit_code == 0
        head = json.loads(element(page.read_text(), "head"))
        assert {row["rank"] for row in head["kernel_rows"]} == {0}  # the only one on the page
        assert head["no_kernels"] is None

    def test_a_trace_without_any_makes_a_page_and_says_so(self, tmp_path):
        trace = one_f_one_b().save(tmp_path / "run.bubbles.parquet")
        page = tmp_path / "a.html"
        done = self.invoke("view", trace, "--kernels", "--no-open", "-q", "-o", page)
        assert done.exit_code == 0
        assert "it holds no kernels" in done.stderr
        assert json.loads(element(page.read_text(), "head"))["kernels"] is None

    def test_more_than_a_page_can_hold_are_refused(self, folder, run, tmp_path, monkeypatch):
        monkeypatch.setattr(page_kernels, "MOST_KERNELS", 10)
        with pytest.raises(BubblescopeError, match=f"{len(run.activities):,} kernels") as raised:
            html.render(View.of(run), kernels=True)
        assert raised.value.exit_code == 2
        assert all(option in str(raised.value) for option in ("--steps", "--ranks", "serve"))
        page = tmp_path / "a.html"
        with pytest.raises(BubblescopeError):
            CliRunner().invoke(
                cli,
                ["view", str(folder), "--kernels", "--no-open", "-q", "-o", str(page)],
                catch_exceptions=False,
            )
        assert not page.exists()


HOSTILE = "<b>&\"'\u202e\x00 nn.Module"


class TestNames:
    def tasks(self, *names: str) -> Timeline:
        tasks = (
            one_f_one_b()
            .tasks.head(len(names))
            .with_columns(
                kind=pl.lit(Kind.OTHER.value).cast(one_f_one_b().tasks.schema["kind"]),
                name=pl.Series(names),
                microbatch=pl.lit(None, pl.Int32),
                rank=pl.lit(0, pl.Int32),
                start_ns=pl.int_range(len(names)) * 1_000_000,
                end_ns=(pl.int_range(len(names)) + 1) * 1_000_000,
            )
        )
        bare = ["stage", "chunk", "busy_ns", "host_start_ns", "host_end_ns"]
        return Timeline(tasks.with_columns(pl.lit(None).alias(name) for name in bare))

    def test_a_task_of_no_known_kind_is_called_by_its_name(self):
        timeline = self.tasks("decode", "nn.Module: Layer_7", "", "x" * 300, "a\nb")
        found = timeline.tasks.select(short_label()).to_series()
        assert found.to_list() == ["decode", "Layer_7", "Other", "x" * 119 + "…", "a\ufffdb"]
        assert one_f_one_b().tasks.select(short_label()).to_series()[0] == "F0"

    def test_pictures_show_it_and_stay_pictures(self):
        text = svg.render(
            pictured(self.tasks(HOSTILE, "a name that is longer than its block is" * 4))
        )
        drawn = ET.fromstring(text)
        said = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
        assert "<b>&\"'\ufffd\ufffd nn.Module" in said
        begun = next(one for one in said if one and one.startswith("a name"))
        assert begun.endswith("…")
        titles = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}title")]
        assert any(one.startswith("<b>&") for one in titles)
        assert "Other" not in text
