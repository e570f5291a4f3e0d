"""Counters: what sources say beside the tasks, on every clock and in every export."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope import Timeline, sources
from bubblescope.clocks import align
from bubblescope.model.counters import COUNTER_SCHEMA, changes
from bubblescope.model.provenance import Run
from bubblescope.render.html.counter_samples import counters_of
from bubblescope.render.layout import ordered_ranks
from bubblescope.render.traces import chrome, perfetto
from full import module
from kineto_maker import BASE, Trace
from nsight_maker import UTC, Export
from synthetic import ORIGIN, one_f_one_b
from trace_processor import opened


def kineto(trace: Trace, tmp_path, **how) -> Timeline:
    trace.range("PP:0F0", 1_000, 2_000)
    trace.kernel(3_000, 9_000, at=1_500)
    return sources.load(trace.write(tmp_path / "rank0.json", **how))


def samples(timeline: Timeline, origin: int = BASE) -> list[tuple]:
    rows = timeline.counters.select("name", "unit", "time_ns", "value").iter_rows()
    return [(name, unit, time - origin, value) for name, unit, time, value in rows]


@pytest.mark.parametrize("base", [BASE, None])
@pytest.mark.parametrize("how", [{}, {"tail": True}, {"sort_keys": True}])
def test_memory_is_counted_on_the_device_and_on_the_host(tmp_path, base, how):
    trace = Trace(base=base)
    trace.memory(1_101, 512, 2**21)
    trace.memory(1_102, 64, sort=0)
    trace.memory(1_203, 1536, 2**21)
    trace.memory(1_304, 1536, 2**22)

    timeline = kineto(trace, tmp_path, **how)

    assert samples(timeline) == [
        ("host memory allocated", "bytes", 1_102, 64.0),
        ("memory allocated", "bytes", 1_101, 512.0),
        ("memory allocated", "bytes", 1_203, 1536.0),
        ("memory reserved", "bytes", 1_101, 2.0**21),
        ("memory reserved", "bytes", 1_304, 2.0**22),
    ]
    assert timeline.run.contents[0].counts["samples"] == 7
    assert not timeline.run.warnings


def test_devices_of_one_process_have_counters_of_their_own(tmp_path):
    trace = Trace()
    trace.memory(1_100, 512, device=0)
    trace.memory(1_200, 256, device=3)
    names = {name for name, *_ in samples(kineto(trace, tmp_path))}
    assert names == {
        f"memory {what} (device {n})" for n in (0, 3) for what in ("allocated", "reserved")
    }


def test_counters_that_tools_add_are_told_apart_by_what_tells_them_apart(tmp_path):
    trace = Trace()
    trace.count(1_000, "Queue Length", {"Queue Length": 3}, id=7)
    trace.count(1_100, "Queue Length", {"Queue Length": 0}, id=20)
    trace.count(1_200, "Memcpy DtoH", {"Memcpy BW": 12.5})
    trace.count(1_300, "heap", {"used": 5, "free": 6})
    trace.count(1_400, "", {"bare": 1})
    trace.count(1_500, "load", {"load": 1}, pid="a")
    trace.count(1_600, "load", {"load": 2}, pid="b")

    assert samples(kineto(trace, tmp_path)) == [
        ("Memcpy DtoH", "GB/s", 1_200, 12.5),
        ("Queue Length 20", "", 1_100, 0.0),
        ("Queue Length 7", "", 1_000, 3.0),
        ("bare", "", 1_400, 1.0),
        ("heap free", "", 1_300, 6.0),
        ("heap used", "", 1_300, 5.0),
        ("load (process a)", "", 1_500, 1.0),
        ("load (process b)", "", 1_600, 2.0),
    ]


def test_what_counts_nothing_costs_nothing_but_itself(tmp_path):
    trace = Trace()
    trace.memory(1_100, 512)
    trace.memory(1_200, -1, -1)  # the allocator does not know
    trace.memory(1_300, 2**64 - 1, 0)
    trace.memory(1_400 + 10**18, 3)  # no clock shows it
    trace.count(1_500, "c", {"x": "much", "y": None, "z": True, "w": float("nan"), "v": 2})
    trace._add("i", 1_600, name="[memory]", args="lost")
    trace._add("i", 1_700, name="Record Window End", args=None)
    trace._add("C", 1_800, name="empty", args=None)
    trace.events.append({"ph": "i", "name": "[memory]", "args": {"Total Allocated": 3}})

    timeline = kineto(trace, tmp_path)

    assert [row[0] for row in samples(timeline)] == [
        "c v",
        "memory allocated",
        "memory allocated",
        "memory reserved",
    ]
    found = {notice.code: notice.lost for notice in timeline.run.warnings}
    assert found == {"impossible-times": 3, "repaired-events": 1}
    assert timeline.tasks["name"].to_list() == ["PP:0F0"]


def test_a_run_on_the_host_has_its_memory(tmp_path):
    trace = Trace()
    trace.header["deviceProperties"] = []
    trace.range("PP:0F0", 1_000, 2_000)
    trace.operator("aten::mm", 1_100, 1_900)
    trace.memory(1_150, 64, sort=0)
    timeline = sources.load(trace.write(tmp_path / "rank0.json"))
    assert samples(timeline) == [("host memory allocated", "bytes", 1_150, 64.0)]


def test_torch_itself_writes_memory_as_expected(tmp_path):
    torch = module("torch")
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        with record_function("PP:0F0"):
            held = torch.ones(1 << 20) + 1
        with record_function("PP:0B0"):
            held.sum()
    profiled.export_chrome_trace(str(tmp_path / "rank0.json"))
    timeline = sources.load(tmp_path)

    counters = timeline.counters
    assert counters.select("name", "unit").unique().rows() == [("host memory allocated", "bytes")]
    assert counters["value"].max() >= 4 * (1 << 20)
    assert counters["time_ns"].is_between(timeline.start_ns - 10**9, timeline.end_ns + 10**9).all()


def test_without_tasks_counters_are_kept(tmp_path):
    trace = Trace()
    trace.memory(1_100, 512)
    timeline = sources.load(trace.write(tmp_path / "rank0.json"))
    assert timeline.counters.height == 2
    assert not len(timeline)


def nsight(tmp_path, gpus: int = 2, *, says: bool = True) -> Export:
    export = Export()
    for number in range(gpus):
        export.gpu(
            number, {3: "SMs Active [Throughput %]", 4: "GPC Clock Frequency [MHz]", 5: "X [Avg]"}
        )
    for number in range(2):
        process = export.process(100 + number, device=0)
        process.range("F0", 1_000, 2_000)
        process.kernel(3_000, 9_000, at=1_500)
        process.allocate(1_100, 4096)
        process.allocate(1_200, 100, kind=1)  # pinned memory of the host
        process.allocate(1_300, 1024 * (number + 1), release=True)
        if says:
            process.uses(1 - number)  # as CUDA_VISIBLE_DEVICES makes it
    for at, value in ((1_000, 40), (2_000, 40), (3_000, 90)):
        for number in range(gpus):
            export.sample(at, number, 3, value + number)
            export.sample(at, number, 4, 1_800_000_000)
            export.sample(at, number, 5, 7)
    return export


@pytest.mark.parametrize("folder", [False, True])
def test_nsight_tells_memory_and_metrics_of_each_process_own_gpu(tmp_path, folder):
    export = nsight(tmp_path)
    path = (
        export.write_parquet_dir(tmp_path / "one")
        if folder
        else export.write(tmp_path / "a.sqlite")
    )
    timeline = sources.load(path)

    assert timeline.counters.filter(rank=0).select("name", "unit", "time_ns", "value").rows() == [
        ("GPC Clock Frequency", "MHz", UTC + 1_000, 1800.0),
        ("SMs Active", "%", UTC + 1_000, 41.0),
        ("SMs Active", "%", UTC + 3_000, 91.0),
        ("device memory", "bytes", UTC + 1_100, 4096.0),
        ("device memory", "bytes", UTC + 1_300, 3072.0),
    ]
    second = timeline.counters.filter(rank=1)
    assert second.filter(name="SMs Active")["value"].to_list() == [40.0, 90.0]
    assert second.filter(name="device memory")["value"].to_list() == [4096.0, 2048.0]
    assert timeline.run.warnings == ()


def test_metrics_of_an_unknown_gpu_are_left_out_and_said_to_be(tmp_path):
    timeline = sources.load(nsight(tmp_path, says=False).write(tmp_path / "a.sqlite"))
    assert timeline.counters["name"].unique().to_list() == ["device memory"]
    assert [notice.code for notice in timeline.run.warnings] == ["unplaced-metrics"]


def test_memory_from_before_the_capture_never_makes_it_negative(tmp_path):
    export = Export()
    process = export.process(100)
    process.range("F0", 1_000, 2_000)
    process.kernel(3_000, 9_000, at=1_500)
    process.allocate(1_100, 1000, release=True)
    process.allocate(1_200, 300)
    timeline = sources.load(export.write(tmp_path / "a.sqlite"))
    assert timeline.counters["value"].to_list() == [0.0, 300.0]


def with_counters(timeline: Timeline, rows: list[tuple]) -> Timeline:
    counters = pl.DataFrame(rows, schema=COUNTER_SCHEMA, orient="row")
    return Timeline(timeline.tasks, timeline.ranks, timeline.run, counters=counters)


def test_counters_move_with_their_ranks_clock():
    timeline = one_f_one_b(ranks=2, hosts=2, comm=False)
    truth = with_counters(timeline, [(rank, "m", "", ORIGIN + 5, 1.0) for rank in (0, 1)])
    late = pl.when(rank=1).then(40_000_000).otherwise(0)
    skewed = Timeline(
        truth.tasks.with_columns(pl.col("start_ns", "end_ns") + late),
        truth.ranks,
        truth.run,
        truth.counters.with_columns(pl.col("time_ns") + late),
    )

    aligned = align(skewed)

    moved = skewed.tasks["start_ns"] - aligned.tasks["start_ns"]
    of_rank = dict(zip(skewed.tasks["rank"], moved, strict=True))
    assert of_rank[1] != 0
    assert (skewed.counters["time_ns"] - aligned.counters["time_ns"]).to_list() == [0, of_rank[1]]


def test_counters_of_a_run_without_a_common_clock_are_not_placed_on_one():
    timeline = one_f_one_b(ranks=2, hosts=2, comm=False)
    run = Run(common_clock=False)
    apart = Timeline(timeline.tasks, timeline.ranks, run)
    apart = with_counters(apart, [(0, "m", "", ORIGIN + 5, 1.0)])
    assert align(apart).counters.is_empty()


def example() -> Timeline:
    timeline = one_f_one_b(ranks=2, steps=1)
    return with_counters(
        timeline,
        [
            (0, "memory allocated", "bytes", ORIGIN - 1_000, 512.0),
            (0, "memory allocated", "bytes", ORIGIN + 2_000, 2.0**40),
            (1, "memory allocated", "bytes", ORIGIN + 3_000, 64.0),
            (1, "SMs Active", "%", ORIGIN + 1_000, 12.5),
        ],
    )


COUNTERS = """
    select p.name as rank, t.name, c.ts, c.value from counter c join track t on c.track_id = t.id
    join track p on t.parent_id = p.id order by 1, 2, 3
"""


def test_perfetto_shows_counters_under_their_rank(tmp_path):
    with opened(perfetto.write(example(), tmp_path / "run.pftrace")) as query:
        rows = query(COUNTERS)
        units = query("select distinct name, unit from counter_track order by 1")
        assert query("select name from stats where severity = 'error' and value > 0") == []
    assert [(title.split(" ·")[0], *rest) for title, *rest in rows] == [
        ("rank 0", "memory allocated", ORIGIN, 512.0),
        ("rank 0", "memory allocated", ORIGIN + 2_000, 2.0**40),
        ("rank 1", "SMs Active", ORIGIN + 1_000, 12.5),
        ("rank 1", "memory allocated", ORIGIN + 3_000, 64.0),
    ]
    assert units == [("SMs Active", "%"), ("memory allocated", "bytes")]


def test_chrome_shows_counters_of_their_rank(tmp_path):
    path = chrome.write(example(), tmp_path / "run.json")
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "C"]
    assert [(e["pid"], e["name"], e["ts"], e["args"]) for e in events] == [
        (0, "memory allocated (bytes)", 0.0, {"value": 512.0}),
        (0, "memory allocated (bytes)", 2.0, {"value": 2.0**40}),
        (1, "SMs Active (%)", 1.0, {"value": 12.5}),
        (1, "memory allocated (bytes)", 3.0, {"value": 64.0}),
    ]
    with opened(path) as query:
        assert query("select count(*) from counter") == [(4,)]


def page(timeline: Timeline, **how):
    ranks = ordered_ranks(timeline).with_row_index("position")
    return counters_of(timeline, ranks, timeline.start_ns, **how)


def test_the_page_has_counters_by_rank_and_name():
    made = page(example())
    assert msgspec.to_builtins(made.counters) == [
        {"name": "SMs Active", "unit": "%", "least": 12.5, "most": 12.5},
        {"name": "memory allocated", "unit": "bytes", "least": 64.0, "most": 2.0**40},
    ]
    assert msgspec.to_builtins(made.samples) == [
        {"rank": 0, "counter": 1, "from": 0, "to": 2},
        {"rank": 1, "counter": 0, "from": 2, "to": 3},
        {"rank": 1, "counter": 1, "from": 3, "to": 4},
    ]
    assert made.table.rows() == [(0, 512.0), (2_000, 2.0**40), (1_000, 12.5), (3_000, 64.0)]
    assert made.left_out == 0


def test_a_page_without_counters_has_empty_ones():
    made = page(one_f_one_b())
    assert (made.counters, made.samples, made.table.height, made.left_out) == ([], [], 0, 0)
    assert made.table.columns == ["gap", "value"]


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 9_000_000), st.integers(0, 50)), min_size=1, max_size=300),
    st.integers(60, 200),
)
def test_a_thinned_page_keeps_extremes_and_what_holds_in_silence(names, drawn, most):
    timeline = one_f_one_b(ranks=2, steps=1)
    rows = [
        (index % 2, f"c{index % names}", "", ORIGIN + time, float(value))
        for index, (time, value) in enumerate(drawn)
    ]
    timeline = with_counters(timeline, rows)
    made, whole = page(timeline, most_samples=most), page(timeline)

    assert made.table.height + made.left_out == whole.table.height
    assert made.table.height <= most
    assert made.counters == whole.counters
    assert [(one.rank, one.counter) for one in made.samples] == [
        (one.rank, one.counter) for one in whole.samples
    ]
    for thin, full in zip(made.samples, whole.samples, strict=True):
        kept, held = (extent(part.table, one) for part, one in ((made, thin), (whole, full)))
        assert set(kept) <= set(held)
        assert kept[-1] == held[-1]
        for pick in (min, max):
            assert pick(value for _, value in kept) == pick(value for _, value in held)


def extent(table: pl.DataFrame, place) -> list[tuple[int, float]]:
    part = table[place.first : place.to]
    return list(zip(part["gap"].cum_sum().to_list(), part["value"].to_list(), strict=True))


def test_a_million_samples_become_a_page_of_two_hundred_thousand():
    timeline = one_f_one_b(ranks=2, steps=1)
    count = 1_000_000
    random = np.random.default_rng(7)
    counters = pl.DataFrame(
        {
            "rank": np.arange(count, dtype=np.int32) % 2,
            "name": "memory allocated",
            "unit": "bytes",
            "time_ns": ORIGIN + np.sort(random.integers(0, timeline.duration_ns, count)),
            "value": np.cumsum(random.integers(-8, 9, count)) * 512.0,
        }
    )
    timeline = Timeline(timeline.tasks, timeline.ranks, timeline.run, counters=counters)
    made = page(timeline)
    assert 150_000 < made.table.height <= 200_000
    assert made.table.height + made.left_out == count
    assert made.counters[0].most == counters["value"].max()


def test_samples_that_say_what_holds_anyway_are_left_out():
    frame = pl.DataFrame(
        {
            "name": ["a"] * 4,
            "unit": [""] * 4,
            "time_ns": [3, 1, 2, 4],
            "value": [2.0, 1.0, 1.0, 2.0],
        }
    )
    assert changes(frame).select("time_ns", "value").rows() == [(1, 1.0), (3, 2.0)]
