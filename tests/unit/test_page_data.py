"""What the page is told, beside what the analyses and plain arithmetic say."""

from __future__ import annotations

import base64
import itertools
import json
import re
import zlib

import msgspec
import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from bubblescope import Timeline
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.overview import Overview
from bubblescope.analysis.pipeline_phase import phases
from bubblescope.analysis.rates import bubble_rates
from bubblescope.analysis.view import View
from bubblescope.cli import cli
from bubblescope.facade import write
from bubblescope.model import units
from bubblescope.model.counters import COUNTER_SCHEMA
from bubblescope.model.errors import ScheduleError, TimelineError
from bubblescope.model.provenance import Run
from bubblescope.render.html import packing
from bubblescope.render.html import page as html
from bubblescope.render.html.data import Outline, PageData
from bubblescope.render.html.packing import packed
from bubblescope.render.html.serve.whatifs import Asking
from bubblescope.render.layout import ordered_ranks
from bubblescope.render.wording import counted
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from bubblescope.schedules.zb_auto import Times
from bubblescope.sources import load
from device_exports import kineto
from device_maker import Mode, make
from injected import Fault, Job
from page_tables import columns
from synthetic import empty, one_f_one_b

COORDINATES = ("pp", "dp", "tp", "cp", "ep", "etp", "edp")
FORWARDS = ("forward", "forward_backward")
BACKWARDS = ("backward", "backward_input", "forward_backward")


def told(timeline: Timeline, **how) -> tuple[dict, dict[str, dict[str, np.ndarray]]]:
    """Return the head and the tables of a page."""
    page = html.render(View.of(timeline, **how))

    def element(name: str) -> str:
        return re.search(rf'<script id="{name}"[^>]*>(.*?)</script>', page, re.DOTALL)[1]

    head = json.loads(element("head"))
    return head, {
        name: columns(base64.b64decode(element(name)), said)
        for name, said in head["columns"].items()
    }


def lane(head: dict, tables: dict, which: str) -> pl.DataFrame:
    """Return the tasks of a lane of all ranks, on the clock of the run."""
    parts = []
    for row in head["rows"]:
        span = slice(row["from"], row["to"])
        own = {name: column[span] for name, column in tables["tasks"].items()}
        start = int(head["origin"]) + np.cumsum(own["gap"])
        part = pl.DataFrame({**own, "start_ns": start, "end_ns": start + own["length"]})
        number = head["ranks"][row["rank"]]["rank"]
        parts.append(part.with_columns(rank=pl.lit(number), lane=pl.lit(row["lane"])))
    kinds = pl.Series([kind["name"] for kind in head["kinds"]])
    tasks = pl.concat(parts).filter(lane=which)
    return tasks.with_columns(kind=kinds.gather(tasks["kind"]))


def spans(tasks: pl.DataFrame) -> list[tuple[int, int]]:
    """Return the first start and last end of each step."""
    found = tasks.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return found.sort("step").select("start_ns", "end_ns").rows()


def job(name: str = "1f1b", *faults: Fault, **how) -> Timeline:
    return Job(generate(name, 4, 8), **{"replicas": 2, "steps": 3, **how}).play(*faults)


def overlapped() -> Timeline:
    """Return a run whose forwards and backwards overlap in pairs."""
    times = Times(10_000_000, 11_000_000, 9_000_000, 300_000)
    plan = generate("dualpipe", 4, 8, times=times)
    return simulate(plan, Costs.shared(plan, times, forward_backward_ns=25_000_000), steps=2)


def slowed(jitter: float = 0.1) -> Timeline:
    return job("1f1b", Fault(Cause.SLOW_RANK, slow={(1, 2): 1.5}), jitter=jitter)


def test_the_head_knows_how_many_micro_batches_and_chunks_the_whole_run_has():
    for timeline in (job(), job("interleaved-1f1b"), overlapped()):
        told = PageData.of(View.of(timeline)).told
        for field, number in (("microbatch", told.microbatches), ("chunk", told.chunks)):
            pair = timeline.tasks.get_column(f"pair_{field}")
            numbers = {*timeline.tasks[field].drop_nulls(), *pair.drop_nulls()}
            assert number == max(numbers, default=-1) + 1


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame({"a": [1.5, -2.25, 1e300], "b": [0, 1, 255]}),
        pl.DataFrame({"a": [-1, 40_000, 3], "b": [2**40, 5, -(2**50)], "c": [0.1, 0.2, 2.0**60]}),
        pl.DataFrame({"a": [4.0, 5.0]}),
        pl.DataFrame(schema={"a": pl.Float64, "b": pl.Int64}),
    ],
)
def test_columns_of_whole_and_other_numbers_survive(frame):
    data, described = packed(frame)
    found = columns(data, described)
    for name, dtype in frame.schema.items():
        assert found[name].tolist() == frame[name].to_list()
        if dtype == pl.Float64:
            assert next(one for one in described if one.name == name).type == "f64"


@pytest.mark.parametrize("timeline", [one_f_one_b(), slowed(), job("zb-h1"), overlapped()])
def test_cells_are_the_makespan_rates_of_each_rank_in_each_step(timeline):
    head, tables = told(timeline)
    cells = tables["cells"]
    said = {}
    for rank, step, busy, span in zip(*cells.values(), strict=True):
        place = (head["steps"][step]["step"], head["ranks"][rank]["rank"])
        said[place] = (int(busy), int(span))
    bubbles = bubble_rates(timeline)
    keys = bubbles.table.select("step", "rank").rows()
    assert len(said) == len(keys)
    for key, rates in zip(keys, bubbles.per_rank_step(), strict=True):
        busy, span = said[key]
        assert (busy, span) == (rates.busy_ns, rates.makespan_ns)
        assert 1 - busy / span == rates.makespan
    order = list(zip(cells["rank"], cells["step"], strict=True))
    assert order == sorted(order)


@pytest.mark.parametrize(
    "timeline",
    [
        overlapped(),
        *(
            job(name, jitter=0.2)
            for name in ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "chimera")
        ),
    ],
)
def test_phases_begin_and_end_where_forwards_and_backwards_do(timeline):
    head, tables = told(timeline)
    said = tables["phases"]
    spanned = {(row["rank"], row["step"]): row for row in bubble_rates(timeline).table.to_dicts()}
    places = list(zip(said["rank"].tolist(), said["step"].tolist(), strict=True))
    assert places == sorted(places)
    assert len(places) == len(spanned)
    origin = int(head["origin"])
    for (place, step), *times in zip(
        places, *(said[name] for name in ("start", "steady", "cool", "end")), strict=True
    ):
        rank = head["ranks"][place]["rank"]
        start, steady, cool, end = (origin + int(time) for time in times)
        tasks = timeline.tasks.filter(rank=rank, step=step, lane="compute").to_dicts()
        first = min(task["start_ns"] for task in tasks if task["kind"] in BACKWARDS)
        last = max(task["end_ns"] for task in tasks if task["kind"] in FORWARDS)
        assert (steady, cool) == (first, max(first, last))
        row = spanned[rank, step]
        assert (start, end) == (row["start_ns"], row["end_ns"])
        parts = [b - a for a, b in itertools.pairwise((start, steady, cool, end))]
        assert min(parts) >= 0
        assert sum(parts) == row["span_ns"]


def test_phases_of_ranks_that_run_one_way_only():
    tasks = one_f_one_b().tasks.filter(lane="compute").with_columns(step=None)
    one_way = {}
    for kind in ("forward", "backward"):
        own = phases(tasks.filter(pl.col("kind").is_in([kind, "optimizer"])))
        assert own["step"].null_count() == len(own) == 4
        one_way[kind] = own.row(1, named=True)
    only = one_way["forward"]
    assert only["start_ns"] < only["steady_ns"] == only["cool_ns"] == only["end_ns"]
    only = one_way["backward"]
    assert only["start_ns"] == only["steady_ns"] == only["cool_ns"] < only["end_ns"]
    assert phases(empty().tasks).is_empty()


@pytest.mark.parametrize("timeline", [one_f_one_b(), slowed(), job("zb-h1", jitter=0.3)])
def test_spread_is_that_of_plain_quantiles(timeline):
    head, _ = told(timeline)
    tasks = timeline.tasks.filter(pl.col("lane") != "host")
    found = {}
    for one in head["spread"]:
        kind = head["kinds"][one["kind"]]["name"]
        own = tasks.filter(
            pl.col("kind") == kind, pl.col("stage").eq_missing(pl.lit(one["stage"], pl.Int32))
        )
        length = (own["end_ns"] - own["start_ns"]).to_numpy()
        assert one["count"] == len(length)
        wanted = [*np.quantile(length, [0, 0.25, 0.5, 0.75, 1]), length.mean()]
        named = ("least", "low", "middle", "high", "most", "mean")
        assert [one[name] for name in named] == pytest.approx(wanted, rel=0, abs=0.5)
        found[one["kind"], one["stage"]] = one["count"]
    assert sum(found.values()) == len(tasks)
    order = [(kind, stage is None, stage or 0) for kind, stage in found]
    assert order == sorted(order)


def test_a_run_of_devices_is_said_to_be_as_long_as_its_steps(tmp_path):
    """The last may go on after the last task."""
    timeline = load(kineto(make(Mode(), 3), tmp_path))
    overview = Overview.of(timeline)
    ends = pl.col("end_ns") + pl.when(pl.col("step") == pl.col("step").max()).then(5_000_000)
    steps = overview.device_steps.with_columns(end_ns=pl.coalesce(ends, "end_ns"))
    longer = msgspec.structs.replace(overview, device_steps=steps)
    length_ns = steps["end_ns"].max() - min(steps["start_ns"].min(), timeline.start_ns)
    assert units.duration(length_ns) in counted(timeline, longer, of_devices=True)
    assert units.duration(timeline.duration_ns) in counted(timeline, longer, of_devices=False)


def test_ranks_have_their_coordinates():
    made = slowed()
    known = {
        name: (pl.col("rank") + at).cast(made.ranks.schema[name])
        for at, name in enumerate(COORDINATES)
        if name not in ("dp", "cp")
    }
    timeline = Timeline(made.tasks, made.ranks.with_columns(**known), made.run)
    head, _ = told(timeline)
    ranks = ordered_ranks(timeline).to_dicts()
    for said, rank in zip(head["ranks"], ranks, strict=True):
        assert [said[name] for name in COORDINATES] == [rank[name] for name in COORDINATES]


def test_pairs_name_both_of_their_halves():
    timeline = overlapped()
    shown = lane(*told(timeline), "compute").sort("rank", "start_ns", "end_ns")
    pairs = shown.filter(kind="forward_backward")
    own = timeline.tasks.filter(kind="forward_backward", lane="compute")
    own = own.sort("rank", "start_ns", "end_ns").select("pair_microbatch", "pair_chunk")
    assert len(own)
    assert pairs.select("pair", "pair_chunk").rows() == own.rows()
    others = shown.filter(pl.col("kind") != "forward_backward").select("pair", "pair_chunk")
    assert set(others.rows()) == {(-1, -1)}


def test_counters_come_with_the_page():
    plain = slowed()
    times = plain.start_ns + np.array([0, 10_000_000, 30_000_000])
    counters = pl.DataFrame(
        {"rank": 5, "name": "memory", "unit": "B", "time_ns": times, "value": [1e9, 2.5e9, 0.5]},
        schema=COUNTER_SCHEMA,
    )
    head, tables = told(Timeline(plain.tasks, plain.ranks, plain.run, counters=counters))
    assert head["counters"] == [{"name": "memory", "unit": "B", "least": 0.5, "most": 2.5e9}]
    [extent] = head["samples"]
    assert head["ranks"][extent["rank"]]["rank"] == 5
    assert (extent["counter"], extent["from"], extent["to"]) == (0, 0, 3)
    assert (np.cumsum(tables["samples"]["gap"]) + plain.start_ns).tolist() == times.tolist()
    assert tables["samples"]["value"].tolist() == [1e9, 2.5e9, 0.5]
    head, tables = told(plain)
    assert head["counters"] == head["samples"] == []
    assert not len(tables["samples"]["value"])


def test_a_page_has_no_what_if_unless_it_is_asked_for():
    head, tables = told(slowed())
    assert [one["lane"] for one in head["overlays"]] == ["ideal"]
    assert {row["lane"] for row in head["rows"]} == {"compute", "ideal"}
    assert head["end"] == slowed().duration_ns
    assert set(tables) >= {"tasks", "gaps", "links", "phases", "cells", "samples"}


@pytest.mark.parametrize("above", [None, "ideal"])
def test_a_page_is_told_what_stands_above_when_it_opens(above):
    view = View.of(slowed())
    assert view.above is None
    assert PageData.of(msgspec.structs.replace(view, above=above)).told.above == above


QUESTIONS = {
    "without": lambda run: run.without(Cause.SLOW_RANK),
    "healthy": lambda run: run.healthy(6),
    "stage": lambda run: run.scaled("stage", 2, 0.5),
    "rank": lambda run: run.scaled("rank", 1, 3),
    "move": lambda run: run.moved(2, 3, 0, [8, 8, 8, 8]),
    "same": lambda run: run.schedule("1f1b"),
    "zb-h1": lambda run: run.schedule("zb-h1"),
    "zb-v": lambda run: run.schedule("zb-v"),
    "dualpipe": lambda run: run.schedule("dualpipe"),
    "interleaved": lambda run: run.schedule("interleaved-1f1b", 4),
    "more": lambda run: run.microbatches(16),
}


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS.keys())
def test_the_lane_of_a_what_if_lasts_as_long_as_was_predicted(question):
    timeline = slowed()
    answers = []
    head, tables = told(timeline, whatif=lambda run: answers.append(question(run)) or answers[0])
    shown = lane(head, tables, "whatif")
    said = answers[0]
    now = spans(timeline.tasks.filter(lane="compute"))
    then = spans(shown)
    assert [start for start, _ in then] == [start for start, _ in now]
    assert said.error - said.chance == pytest.approx(0, abs=1e-9)
    assert np.mean([end - start for start, end in then]) == pytest.approx(said.predicted_ns, abs=1)
    assert set(shown["rank"]) == set(timeline.ranks["rank"])
    assert head["overlays"][1]["name"] == said.change
    lanes = [row["lane"] for row in head["rows"] if row["rank"] == 0]
    assert list(dict.fromkeys(lanes)) == ["compute", "ideal", "whatif"]
    latest = max(timeline.end_ns, shown["end_ns"].max())
    assert head["end"] == latest - timeline.start_ns


def test_another_schedule_has_the_lengths_that_were_measured():
    timeline = slowed()
    shown = lane(*told(timeline, whatif=QUESTIONS["zb-h1"]), "whatif")
    key = ["rank", "step", "stage", "microbatch"]
    length = (pl.col("end_ns") - pl.col("start_ns")).alias("length")
    own = timeline.tasks.select(*key, length, "kind").cast({"kind": pl.String})
    forward = shown.filter(kind="forward").join(own.filter(kind="forward"), on=key)
    assert len(forward) == len(own.filter(kind="forward"))
    assert (forward["length"] == forward["length_right"]).all()
    halves = shown.filter(pl.col("kind").str.starts_with("backward_"))
    assert halves.group_by("kind").len()["len"].to_list() == [8 * 4 * 2 * 3] * 2
    whole = halves.group_by(key).agg(pl.col("length").sum())
    both = whole.join(own.filter(kind="backward"), on=key)
    assert len(both) == len(own.filter(kind="backward"))
    assert (both["length"] - both["length_right"]).abs().max() <= 1


def test_where_the_model_is_off_so_is_its_lane():
    random = np.random.default_rng(1)
    late = {(0, 0, int(index)): 5_000_000 for index in random.choice(64, 30, replace=False)}
    timeline = job("1f1b", Fault(Cause.LAUNCH, late_ns=late), steps=1, replicas=1)
    answers = []
    question = QUESTIONS["zb-h1"]
    shown = lane(
        *told(timeline, whatif=lambda run: answers.append(question(run)) or answers[0]), "whatif"
    )
    [(start, end)] = spans(shown)
    assert answers[0].error > 0.01
    off = abs((end - start) / answers[0].predicted_ns - 1)
    assert off == pytest.approx(answers[0].error - answers[0].chance, rel=1e-6)


def test_ranks_without_a_trace_have_no_what_if():
    timeline = slowed().slice(ranks=range(1, 8))
    shown = lane(*told(timeline, whatif=QUESTIONS["zb-h1"]), "whatif")
    assert set(shown["rank"]) == {*range(1, 8)}
    now = spans(timeline.tasks.filter(lane="compute"))
    assert [start for start, _ in spans(shown)] == [start for start, _ in now]


def test_a_run_without_steps_has_a_what_if():
    whole = job(steps=1)
    timeline = Timeline(whole.tasks.with_columns(step=None), whole.ranks)
    for name in ("zb-h1", "stage"):
        head, tables = told(timeline, whatif=QUESTIONS[name])
        shown = lane(head, tables, "whatif")
        assert set(shown["step"]) == {-1}
        assert shown["start_ns"].min() == timeline.start_ns
        assert set(tables["phases"]["step"]) == {-1}
        assert not len(tables["cells"]["rank"])


def test_without_a_common_clock_there_are_no_cells_and_no_what_if():
    whole = slowed()
    timeline = Timeline(whole.tasks, whole.ranks, Run(common_clock=False))
    head, tables = told(timeline)
    assert not len(tables["cells"]["rank"])
    assert len(tables["phases"]["rank"]) == 24
    assert head["overlays"] == []
    for hopeless in (timeline, empty()):
        with pytest.raises(TimelineError, match="share a clock"):
            told(hopeless, whatif=QUESTIONS["stage"])


def test_a_what_if_that_makes_no_sense_is_refused(tmp_path):
    path = tmp_path / "page.html"
    with pytest.raises(ScheduleError, match="the run has no stage 9"):
        write(slowed(), path, to="html", whatif=lambda run: run.scaled("stage", 9, 0.5))
    assert not path.exists()


def test_a_window_of_the_page_refers_to_nothing_outside_it():
    timeline = slowed()
    whole = PageData.of(View.of(timeline, whatif=QUESTIONS["zb-h1"]))
    middle = timeline.start_ns + timeline.duration_ns // 2
    near = (pl.col("end_ns") > middle) & (pl.col("start_ns") < middle + 50_000_000)
    part = msgspec.structs.replace(
        whole, tasks=whole.tasks.filter(near), gaps=whole.gaps.filter(near)
    )
    assert 0 < len(part.tasks) < len(whole.tasks)
    head = msgspec.to_builtins(part.head({}, part.places()))
    tables = {name: columns(*packed(frame)) for name, frame in part.tables()}
    key = ["rank", "start_ns", "end_ns"]
    shown = lane(head, tables, "compute").sort(key)
    assert shown.select(key).rows() == timeline.tasks.filter(near).sort(key).select(key).rows()
    names = pl.Series(head["names"])
    assert set(names.gather(shown["name"])) == {"task"}
    rows = part.tasks["task"]
    for name, found in (
        ("task", np.cumsum(tables["gaps"]["task_step"])),
        ("root", tables["gaps"]["root"]),
    ):
        for row, at in zip(part.gaps[name].to_list(), found.tolist(), strict=True):
            assert at == -1 if row not in rows else rows[at] == row
    source = np.cumsum(tables["links"]["source_step"])
    target = source + tables["links"]["reach"]
    links = {(rows[int(a)], rows[int(b)]) for a, b in zip(source, target, strict=True)}
    known = set(rows.drop_nulls())
    assert links == {(a, b) for a, b in whole.links.iter_rows() if {a, b} <= known}
    assert links


@pytest.fixture
def run(tmp_path):
    return str(slowed().save(tmp_path / "run.parquet"))


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (("--without", "slow rank"), "without slow rank"),
        (("--healthy", "6"), "rank 6 healthy"),
        (("--stage", "2=0.5"), "stage 2 takes 0.5 times as long"),
        (("--move", "1@3:0", "--layers", "8,8,8,8"), "1 layer from stage 3 to stage 0"),
        (("--microbatches", "12"), "12 micro-batches"),
        (("--schedule", "interleaved-1f1b", "--chunks", "4"), "interleaved-1f1b, 4 chunks"),
        (("--healthy", "6", "--schedule", "zb-v"), "rank 6 healthy and zb-v"),
    ],
)
def test_the_command_takes_the_questions_of_whatif(run, tmp_path, asked, name):
    path = tmp_path / "page.html"
    result = CliRunner().invoke(cli, ["view", run, "--no-open", "-o", str(path), *asked])
    assert result.exit_code == 0, result.output
    head = re.search(r'id="head"[^>]*>(.*?)</script>', path.read_text(), re.DOTALL)[1]
    assert json.loads(head)["overlays"][1]["name"] == name


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--schedule", "zb-v", "--schedule", "zb-h1"), "a run has one schedule"),
        (("--move", "1@3:0"), "--layers"),
        (("--stage", "9=0.5"), "the run has no stage 9"),
    ],
)
def test_the_command_refuses_what_it_cannot_show(run, tmp_path, asked, words):
    path = tmp_path / "page.html"
    result = CliRunner().invoke(cli, ["view", run, "--no-open", "-o", str(path), *asked])
    assert result.exit_code != 0
    assert words in (result.output + str(result.exception))
    assert not path.exists()


@pytest.mark.parametrize("size", [0, 1, packing._PIECE, packing._PIECE + 1, 3 * packing._PIECE])
def test_large_tables_are_compressed_in_pieces_that_are_one_stream(size):
    data = memoryview(np.random.default_rng(size).integers(0, 7, size, np.uint8))
    assert zlib.decompress(packing.deflated([data], 4)) == data
    assert zlib.decompress(packing.deflated([data[:5], memoryview(b""), data[5:]], 4)) == data
    assert zlib.decompress(packing.deflated([data[:9], data, data[:9]], 1)) == bytes(
        [*data[:9], *data, *data[:9]]
    )


def _bytes(kind: str) -> np.ndarray:
    random, count = np.random.default_rng(3), 2 * packing._APART
    return {
        "what no two have in common": random.integers(0, 256, count, np.uint8),
        "few values in any order": random.integers(0, 40, count, np.uint8),
        "the same again and again": np.tile(random.integers(0, 256, 999, np.uint8), 600)[:count],
        "one value": np.full(count, 7, np.uint8),
        "what is alike only now and then": np.where(
            np.arange(count) % 2048 < 1024, random.integers(0, 256, count, np.uint8), 0
        ).astype(np.uint8),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("what no two have in common", (0, zlib.Z_DEFAULT_STRATEGY)),
        ("few values in any order", (1, zlib.Z_HUFFMAN_ONLY)),
        ("the same again and again", (1, zlib.Z_DEFAULT_STRATEGY)),
        ("one value", (1, zlib.Z_DEFAULT_STRATEGY)),
        ("what is alike only now and then", (1, zlib.Z_DEFAULT_STRATEGY)),
    ],
)
def test_each_sort_of_bytes_is_compressed_as_suits_it(kind, way):
    data = memoryview(_bytes(kind))
    assert packing._suited(data, 1) == way
    packed = packing.deflated([data], 1)
    assert zlib.decompress(packed) == data
    assert len(packed) <= packing._AS_GOOD * len(zlib.compress(data, 1))


def test_bytes_of_one_kind_are_compressed_apart_from_others():
    noise, alike = (
        memoryview(_bytes(kind)) for kind in ("what no two have in common", "one value")
    )
    assert [len(piece) for piece in packing._pieces([noise, alike])] == [len(noise), len(alike)]
    assert len(packing.deflated([noise, alike], 1)) < len(noise) + len(alike) // 100


def test_the_lowest_bytes_of_all_large_numbers_come_first():
    given = [pl.Series("a", [1, 256, 66051]), pl.Series("b", [3, 258]), pl.Series("c", [4])]
    data, columns = packing.packed(given)
    planes = [[1, 0, 3], [0, 1, 2], [0, 0, 1], [0, 0, 0], [3, 0, 2, 1], [4]]
    assert zlib.decompress(data) == b"".join(bytes(row).ljust(8, b"\0") for row in planes)
    assert [(one.type, one.length) for one in columns] == [("i32", 3), ("i16", 2), ("u8", 1)]


def test_the_page_that_is_written_is_the_one_that_is_returned(tmp_path):
    timeline = one_f_one_b()
    path = html.write(View.of(timeline), tmp_path / "run.html", title="A run")
    assert path.read_text(encoding="utf-8") == html.render(View.of(timeline), title="A run")


def test_tables_of_any_size_are_written_as_they_are(monkeypatch):
    data = bytes(range(256)) * 5
    monkeypatch.setattr(packing, "_WHOLE", 6)
    assert base64.b64decode("".join(packing.Packed(data, []).text())) == data


def test_data_that_nobody_can_ask_holds_on_to_nothing_that_answers():
    data = Outline.of(View.of(one_f_one_b())).with_tasks()
    assert data.asks is None
    with pytest.raises(ValueError, match="nobody can ask"):
        Asking(data)


def test_of_a_run_without_a_pipeline_ranks_and_steps_say_how_long_their_devices_idled(tmp_path):
    """As the large number does: tasks without gaps between them may have idle devices inside."""
    ranks = make(Mode(ranks=3), seed=6)
    run = load(kineto(ranks, tmp_path))
    head, _ = told(run)
    captured = [rank.truth["capture"] for rank in ranks]
    assert [rank["idle"] for rank in head["ranks"]] == [
        one["idle_ns"] / one["total_ns"] for one in captured
    ]
    assert head["verdict"]["share"] == (
        sum(one["idle_ns"] for one in captured) / sum(one["total_ns"] for one in captured)
    )
    for step in head["steps"]:
        of = [one for rank in ranks for one in rank.truth["steps"] if one["step"] == step["step"]]
        idle = sum(one["idle_ns"] for one in of) / sum(one["total_ns"] for one in of)
        assert step["idle"] == idle


def test_of_a_pipeline_bubble_rates_say_how_long_ranks_idled():
    head, _ = told(one_f_one_b())
    assert {one["idle"] for one in [*head["ranks"], *head["steps"]]} == {None}


@pytest.mark.parametrize("run", [job(), job("zb-h1"), overlapped()], ids=["1f1b", "zb-h1", "pairs"])
def test_kinds_that_are_shown_at_once_have_a_fill_of_their_own(run):
    shown = set(run.tasks["kind"].cast(pl.String).unique())
    kinds = [kind for kind in PageData.of(View.of(run)).told.kinds if kind.name in shown]
    for fills in ([kind.fill for kind in kinds], [kind.dark.fill for kind in kinds]):
        assert len(set(fills)) == len(fills)
