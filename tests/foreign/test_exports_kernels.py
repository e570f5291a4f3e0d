"""Kernels in exports: by Perfetto's and Catapult's own readers, and beside the raw traces."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import Counter
from contextlib import closing

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

import bubblescope
import kineto_maker
from bubblescope import Timeline, sources
from bubblescope.cli import cli
from bubblescope.facade import write
from bubblescope.model.errors import BubblescopeError, TimelineError
from bubblescope.model.kinds import Kind
from bubblescope.render.traces import protobuf
from bubblescope.render.traces.kernels import kernel_slices
from catapult import viewing
from kineto_maker import AUTOGRAD, BASE, Trace
from nsight_maker import Style
from places import ROOT, SHARED
from synthetic import HOSTILE, ORIGIN, one_f_one_b
from trace_processor import opened

REAL = SHARED / "kineto"
real = pytest.mark.skipif(not REAL.exists(), reason="the real traces are not here")
GEMM = "void cutlass::Kernel<cutlass_80_gemm_64x64>(cutlass_80_gemm_64x64::Params)"
USES = "category in ('compute', 'communication', 'copy')"
TRACKS = {
    "perfetto": "select p.name as grp, t.name as lane, slice.name, ts, dur, category, slice.id "
    "from slice join track t on track_id = t.id join track p on t.parent_id = p.id",
    "chrome": "select process.name as grp, thread.name as lane, slice.name, ts, dur, category, "
    "slice.id from slice join thread_track t on track_id = t.id join thread using (utid) "
    "join process using (upid)",
}
"""Where each slice is: the names of its rank and track."""


def kernel_rows(query, fmt):
    """Return the kernels that Perfetto's trace processor reads, the earliest first."""
    columns = "grp, lane, name, ts, dur, category"
    return query(f"select {columns} from ({TRACKS[fmt]}) where {USES} order by ts, dur, lane, name")


def sums(query, fmt):
    """Return number and total length of a file's kernels, by rank's title, track and use."""
    found = query(
        f"select grp, lane, category, count(*) as n, sum(dur) as total from ({TRACKS[fmt]}) "
        f"where {USES} group by 1, 2, 3"
    )
    return {row[:3]: row[3:] for row in found}


def said_of(query, name):
    """Return the arguments of the one slice of a name."""
    rows = query(
        "select key, coalesce(string_value, cast(int_value as text)) as value from slice "
        f"join args using (arg_set_id) where slice.name = '{name}' and {USES}"
    )
    return {
        key.partition(".")[2]: value
        for key, value in rows
        if key.startswith(("debug.", "args.")) and value is not None
    }


def errors(query):
    return query("select name, value from stats where severity != 'info' and value > 0")


@pytest.fixture
def made(tmp_path):
    """A rank with two streams, on one of which kernels overlap."""
    trace = Trace(rank=1, device=1)
    trace.range("ProfilerStep#4", 0, 900)
    trace.range("PP:1F0", 100, 200)
    trace.event("python_function", "nn.Module: Linear_0", 105, 118)
    trace.kernel(5000, 5100, at=110, name=GEMM)
    trace.kernel(5100, 5200, at=120, name="Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy")
    trace.range("PP:1B0", 300, 400)
    trace.kernel(6000, 6200, at=310, tid=AUTOGRAD, name="ncclDevKernel_AllReduce_Sum_f32(int)")
    trace.events[-1]["args"]["stream"] = 23
    trace.kernel(6050, 6100, at=320, tid=AUTOGRAD, name="gelu")
    trace.kernel(6080, 6300, at=330, tid=AUTOGRAD, name="relu")
    trace.kernel(6300, 6300, at=500, name="empty")
    trace.kernel(50, 70, at=None, name="early")
    return trace.write(tmp_path / "t.json")


@pytest.mark.parametrize("fmt", ["perfetto", "chrome"])
def test_kernels_stand_below_their_rank_one_track_a_stream(tmp_path, made, fmt):
    run = bubblescope.load(made, activities=True)
    title = "rank 1 · stage 1 · node0"
    origin = BASE + 50  # the first kernel begins before all tasks
    first = 0 if fmt == "chrome" else origin
    with opened(run.export(tmp_path / "out", to=fmt, kernels=True)) as query:
        assert [(*row[:3], row[3] - first, *row[4:]) for row in kernel_rows(query, fmt)] == [
            (title, "stream 7", "early", 0, 20, "compute"),
            (title, "stream 7", "Kernel<cutlass_80_gemm_64x64>", 4950, 100, "compute"),
            (title, "stream 7", "Memcpy HtoD pinned", 5050, 100, "copy"),
            (title, "stream 23", "ncclDevKernel_AllReduce_Sum_f32", 5950, 200, "communication"),
            (title, "stream 7", "gelu", 6000, 50, "compute"),
            (title, "stream 7 (2)", "relu", 6030, 220, "compute"),
            (title, "stream 7", "empty", 6250, 0, "compute"),
        ]
        assert said_of(query, "Kernel<cutlass_80_gemm_64x64>") == {
            "full": GEMM,
            "module": "Linear_0",
            "launch_delay_ns": "4890",
            "kind": "forward",
            "step": "4",
            "stage": "1",
            "microbatch": "0",
        }
        assert said_of(query, "early") == {"full": "early"} or fmt == "chrome"
        assert errors(query) == []


@pytest.mark.parametrize("fmt", ["perfetto", "chrome"])
def test_tasks_and_arrows_are_the_same_with_and_without_kernels(tmp_path, fmt):
    parts, _, _ = kineto_maker.pipeline(Style(schedule="zb-h1", stages=2, microbatches=4))
    for index, part in enumerate(parts):
        part.write(tmp_path / f"rank{index}.json")
    timeline = sources.load(tmp_path, activities=True)
    tasks = f"select name, ts, dur, category from slice where not {USES} order by 1, 2, 3"
    arrows = "select count(*) from flow"
    found = []
    for kernels in (False, True):
        path = write(timeline, tmp_path / "out", to=fmt, kernels=kernels)
        with opened(path) as query:
            found.append((query(tasks), query(arrows)))
            rows = kernel_rows(query, fmt)
            assert errors(query) == []
    assert found[0] == found[1]
    assert found[0][1] != [(0,)]
    assert len(rows) == timeline.activities.height
    assert (
        sum(row[4] for row in rows)
        == timeline.activities.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
    )


@pytest.mark.parametrize("name", ["perfetto", "chrome", "csv", "json"])
def test_kernels_that_are_not_asked_for_are_not_written(tmp_path, made, name):
    paths = [
        write(sources.load(made, activities=kept), tmp_path / f"{kept}", to=name)
        for kept in (False, True)
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def hostile_kernels():
    """Kernels of texts that break readers, on two devices of one rank, one of them unknown."""
    tasks = one_f_one_b(ranks=1, microbatches=1, steps=1, comm=False).tasks
    count = 40
    kernels = pl.DataFrame({"index": range(count)}).select(
        rank=pl.lit(0, pl.Int32),
        device=pl.when(pl.col("index") % 2 == 0).then(pl.lit(3, pl.Int32)),
        stream=pl.when(pl.col("index") % 4 < 2).then(pl.lit(9, pl.Int32)),
        use=pl.lit("compute"),
        name=pl.concat_str(pl.lit(HOSTILE), pl.col("index")),
        full=pl.concat_str(pl.lit(HOSTILE), pl.lit("x" * 30_000)),
        module=pl.lit(HOSTILE),
        start_ns=ORIGIN + pl.col("index") * 10,
        end_ns=ORIGIN + pl.col("index") * 10 + 35,
        launch_ns=ORIGIN + pl.col("index") * 10 + 5,
    )
    return Timeline(tasks, activities=kernels)


@pytest.mark.parametrize("fmt", ["perfetto", "chrome"])
def test_hostile_names_lose_no_kernel(tmp_path, fmt):
    with opened(write(hostile_kernels(), tmp_path / "run", to=fmt, kernels=True)) as query:
        rows = kernel_rows(query, fmt)
        assert (len(rows), {row[4] for row in rows}) == (40, {35})
        assert {row[1] for row in rows} == {
            "device 3 · stream 9",
            "device 3 · stream unknown",
            "device unknown · stream 9",
            "device unknown · stream unknown",
        }
        [(delay,)] = query("select distinct int_value from args where key glob '*launch_delay_ns'")
        assert delay == -5  # launched, the clocks say, after it began
        assert errors(query) == []


@pytest.mark.browser
def test_catapult_shows_the_same(tmp_path, made, browser):
    timeline = sources.load(made, activities=True)
    with viewing(browser) as show:
        shown = show(write(timeline, tmp_path / "out.json", to="chrome", kernels=True))
    assert shown.warnings == []
    streams = [track for group, track in shown.tracks if track.startswith("stream")]
    assert streams == ["stream 7", "stream 7 (2)", "stream 23"]
    uses = {"compute", "communication", "copy"}
    rows = [row for row, _ in shown.slices if row.kind in uses]
    expected = Counter(
        (name, start - BASE - 50, end - start, use)
        for name, start, end, use in timeline.activities.select(
            "name", "start_ns", "end_ns", "use"
        ).iter_rows()
    )
    assert Counter(row[2:] for row in rows) == expected
    said = [args for args in shown.arguments if args.get("full") == GEMM]
    assert [(args["module"], args["launch_delay_ns"]) for args in said] == [("Linear_0", 4890)]


def raw_kineto(path):
    """Return number and total length of a trace's kernels, by stream and use, from its JSON alone."""
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
        events = json.load(file, parse_float=str, parse_int=str)["traceEvents"]
    found = {}
    for event in events:
        category = event.get("cat", "").lower()
        if event.get("ph") != "X" or category not in {"kernel", "gpu_memcpy", "gpu_memset"}:
            continue
        use = "compute"
        if category == "gpu_memcpy" or event["name"].startswith("__amd_rocclr_copyBuffer"):
            use = "copy"
        elif "nccl" in event["name"].lower() or "all_reduce" in event["name"]:
            use = "communication"
        whole, _, rest = event["dur"].partition(".")
        length = int(whole) * 1000 + int(rest.ljust(3, "0")[:3])
        key = (int(event["args"]["stream"]), use)
        count, total = found.get(key, (0, 0))
        found[key] = (count + 1, total + length)
    return found


def by_stream(found, title=""):
    """Return what `sums` found of a rank, rows of a stream together, by number of stream and use."""
    together = {}
    for (rank, track, use), (count, total) in found.items():
        if rank.startswith(title):
            key = (int(track.split()[1]), use)
            before = together.get(key, (0, 0))
            together[key] = (before[0] + count, before[1] + total)
    return together


@real
@pytest.mark.parametrize(
    "name",
    [
        "real/nccl_parser_config_nccl_data",
        "real/trace_filter_sampled_rank-0",
        "real/trace_filter_sampled_rank-1",
        "real/mi300_resnet_act_checkpoint",
        "no_ranges/tl_h100_qwen",
        "no_ranges/tl_b200_eager",
        "no_ranges/tl_sglang_decode",
    ],
)
@pytest.mark.parametrize("fmt", ["perfetto", "chrome"])
def test_streams_of_real_traces_add_up_to_the_raw_json(tmp_path, name, fmt):
    path = REAL / f"{name}.json.gz"
    run = bubblescope.load(path, activities=True)
    with opened(run.export(tmp_path / "out", to=fmt, kernels=True)) as query:
        assert by_stream(sums(query, fmt)) == raw_kineto(path)
        assert errors(query) == []


@real
@pytest.mark.parametrize("fmt", ["perfetto", "chrome"])
def test_streams_of_a_real_nsight_export_add_up_to_its_tables(tmp_path, fmt):
    path = SHARED / "nsight" / "real" / "h100_2gpu_1s.sqlite"
    table = "select deviceId, streamId, '{}', count(*), sum(end - start) from {} group by 1, 2"
    expected = {}
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as database:
        assert not database.execute(
            "select count(*) from CUPTI_ACTIVITY_KIND_KERNEL join StringIds on id = shortName "
            "where value like '%nccl%'"
        ).fetchone()[0]
        for use, kind in (("compute", "KERNEL"), ("copy", "MEMCPY"), ("compute", "MEMSET")):
            rows = database.execute(table.format(use, f"CUPTI_ACTIVITY_KIND_{kind}"))
            for *place, count, total in rows.fetchall():
                before = expected.get(tuple(place), (0, 0))
                expected[tuple(place)] = (before[0] + count, before[1] + total)
    run = bubblescope.load(path, activities=True)
    with opened(run.export(tmp_path / "out", to=fmt, kernels=True)) as query:
        found = sums(query, fmt)
    assert {
        (rank, *key): said
        for rank in (0, 1)
        for key, said in by_stream(found, f"rank {rank} ").items()
    } == expected


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.sampled_from([None, 7, 20]), st.integers(0, 60), st.integers(1, 8)),
        min_size=1,
        max_size=40,
    )
)
def test_kernels_take_a_second_row_only_where_they_overlap(drawn):
    kernels = pl.DataFrame(
        [(stream, start, start + length) for stream, start, length in drawn],
        schema={"stream": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64},
        orient="row",
    ).with_columns(rank=0, use=pl.lit("compute"), name=pl.lit("k"))
    timeline = Timeline(one_f_one_b(ranks=1, microbatches=1, steps=1).tasks, activities=kernels)
    slices = kernel_slices(timeline)
    assert slices.height == kernels.height
    for _, track in slices.group_by("track"):
        assert (track["start_ns"][1:] >= track["end_ns"][:-1]).all()
    for stream, own in kernels.group_by("stream"):
        name = "unknown" if stream[0] is None else stream[0]
        rows = slices.filter(pl.col("title").str.contains(f"stream {name}( |$)"))
        most = max(
            own.filter((pl.col("start_ns") <= at) & (pl.col("end_ns") > at)).height
            for at in own["start_ns"]
        )
        assert rows["track"].n_unique() == most
        spread = rows.filter(pl.col("title").str.contains(r"\("))
        for start, end in spread.select("start_ns", "end_ns").iter_rows():
            assert own.filter(
                (pl.col("start_ns") < end) & (pl.col("end_ns") > start)
            ).height > 1 or (
                own.filter((pl.col("start_ns") <= end) & (pl.col("end_ns") >= start)).height > 2
            )


def test_tables_hold_kernels_that_are_asked_for(tmp_path, made):
    run = bubblescope.load(made)
    kernels = bubblescope.load(made, activities=True).timeline.activities
    bundle = run.export(tmp_path / "run.bubbles.parquet", kernels=True)
    assert bubblescope.load(bundle).timeline.activities.equals(kernels)
    assert not bubblescope.load(run.export(bundle)).timeline.activities.height
    read = pl.read_csv(run.export(tmp_path / "run.csv", kernels=True))
    assert read.columns == kernels.columns
    times = ["start_ns", "end_ns", "launch_ns"]
    assert (
        read.select("name", "use", *times).rows()
        == kernels.select("name", pl.col("use").cast(pl.String), *times).rows()
    )
    said = json.loads(run.export(tmp_path / "run.json", kernels=True).read_text())
    assert [one["full"] for one in said["activities"]] == kernels["full"].to_list()
    assert len(said["tasks"]) == len(run)


def test_a_kernel_that_looks_like_a_formula_is_none_in_a_spreadsheet(tmp_path):
    kernels = (
        hostile_kernels()
        .activities.head(1)
        .with_columns(name=pl.lit("=cmd()"), full=pl.lit("@x"), module=pl.lit("-1\0"))
    )
    timeline = Timeline(hostile_kernels().tasks, activities=kernels)
    path = write(timeline, tmp_path / "run.csv", to="csv", kernels=True)
    assert pl.read_csv(path).select("name", "full", "module").row(0) == (
        "'=cmd()",
        "'@x",
        "'-1\ufffd",
    )


def test_what_cannot_carry_kernels_says_so(tmp_path, made):
    run = bubblescope.load(made)
    said = "svg has no option kernels; it is an option of perfetto, perfetto-tar, chrome, html"
    with pytest.raises(BubblescopeError, match=said):
        run.export(tmp_path / "run.svg", kernels=True)
    asked = ["export", str(made), "--kernels", "--to", "svg", "-o", str(tmp_path / "run.svg")]
    done = CliRunner().invoke(cli, asked)
    assert done.exit_code == 2
    assert (
        "--kernels is for --to perfetto, perfetto-tar, chrome, html, parquet, csv and json, not for svg"
        in done.stderr
    )
    assert run.export(tmp_path / "run.svg", kernels=False).exists()


def test_a_run_without_kernels_says_so(tmp_path):
    demo = ROOT / "examples" / "demo" / "1f1b"
    target = tmp_path / "run.pftrace"
    done = CliRunner().invoke(
        cli, ["export", str(demo), "--kernels", "--to", "perfetto", "-o", str(target), "-q"]
    )
    assert done.exit_code == 3
    assert "it holds no kernels: only traces of devices do" in done.stderr
    with pytest.raises(TimelineError, match="the kernels of this run were not kept"):
        bubblescope.load(demo).export(target, kernels=True)
    assert not target.exists()


@pytest.mark.parametrize("fmt", ["perfetto", "chrome"])
def test_the_command_writes_what_the_function_does(tmp_path, made, fmt):
    one = bubblescope.export(made, tmp_path / "one", to=fmt, kernels=True)
    other = tmp_path / "other"
    done = CliRunner().invoke(
        cli, ["export", str(made), "--kernels", "--to", fmt, "-o", str(other), "-q"]
    )
    assert done.exit_code == 0, done.output
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("fmt", ["perfetto", "chrome"])
def test_a_run_of_kernels_alone_keeps_its_nanoseconds(tmp_path, fmt):
    """Without tasks, times count from the first kernel: doubles would round those since the epoch."""
    trace = Trace()
    for index in range(5):
        trace.kernel(1000 + 11 * index, 1007 + 11 * index, at=500 + index)
    timeline = sources.load(trace.write(tmp_path / "t.json"), activities=True)
    bare = Timeline(timeline.tasks.clear(), timeline.ranks, activities=timeline.activities)
    with opened(write(bare, tmp_path / "out", to=fmt, kernels=True)) as query:
        rows = kernel_rows(query, fmt)
    assert [row[3] - rows[0][3] for row in rows] == [0, 11, 22, 33, 44]
    assert {row[4] for row in rows} == {7}


INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(st.tuples(INT64, st.booleans(), st.integers(0, 300)), max_size=20))
def test_columns_of_protobuf_are_those_of_the_official_classes(rows):
    """Each message has a name, perhaps a number, and another one within."""
    values = np.array([value for value, _, _ in rows], np.int64)
    known = np.array([there for _, there, _ in rows], np.bool_)
    names = np.array([name for _, _, name in rows], np.int64)
    inner = protobuf.numbers(1, names)
    content = protobuf.joined(
        protobuf.constant(1, 77, len(rows)),
        protobuf.numbers(4, values, known),
        protobuf.messages(11, inner, ~known),
    )
    packed = protobuf.messages(12, content).to_bytes()
    official = proto.DebugAnnotation()
    for value, there, name in rows:
        one = official.array_values.add(name_iid=77)
        if there:
            one.int_value = value
        else:
            one.dict_entries.add(name_iid=name)
    if packed:
        assert proto.DebugAnnotation.FromString(packed) == official
    assert packed == official.SerializeToString(deterministic=True)


def test_every_kind_is_text_that_trace_viewers_read(tmp_path):
    kinds = [kind.value for kind in Kind]
    kernels = pl.DataFrame({"kind": kinds}).with_columns(
        rank=pl.lit(0, pl.Int32),
        use=pl.lit("compute"),
        name=pl.col("kind"),
        full=pl.col("kind"),
        start_ns=ORIGIN + pl.int_range(0, len(kinds)) * 10,
        end_ns=ORIGIN + pl.int_range(0, len(kinds)) * 10 + 10,
    )
    timeline = Timeline(one_f_one_b(ranks=1).tasks, activities=kernels)
    with opened(write(timeline, tmp_path / "run", to="perfetto", kernels=True)) as query:
        found = query(
            "select name, string_value from slice join args using (arg_set_id) "
            f"where key = 'debug.kind' and {USES}"
        )
    assert sorted(found) == sorted((kind, kind) for kind in kinds)
