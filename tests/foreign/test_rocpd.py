"""rocpd files of AMD's rocprofv3: device intervals, exact to the nanosecond, of schema 3 and 4."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nsight_maker
from bubblescope import SourceError, sources
from bubblescope.render.text.report import Report
from bubblescope.sources.rocpd import RocpdSource
from full import examples
from nsight_maker import Style
from rocpd_maker import Process, merge, pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from bubblescope.model.timeline import Timeline

VERSIONS = ["3.0.0", "4.0.0", "4.1.0"]


def write(processes: list[Process], folder: Path) -> list[Path]:
    """Write files where rocprofv3 does."""
    paths = []
    for process in processes:
        (folder / process.host).mkdir(exist_ok=True)
        paths.append(process.write(folder / process.host / f"{process.pid}_results.db"))
    return paths


def one(process: Process, folder: Path, **how: str) -> Timeline:
    return sources.load(process.write(folder / "7_results.db"), **how)


def compute(timeline: Timeline, truth: pl.DataFrame) -> pl.DataFrame:
    """Return the compute tasks as the truth has them."""
    tasks = timeline.tasks.filter(pl.col("lane") == "compute").sort("rank", "start_ns")
    return tasks.select(pl.col(name).cast(kind) for name, kind in truth.schema.items())


def intervals(timeline: Timeline) -> list[tuple]:
    return timeline.tasks.sort("start_ns", "name").select("name", "start_ns", "end_ns").rows()


def codes(timeline: Timeline) -> dict[str, tuple[int | None, int | None]]:
    return {notice.code: (notice.lost, notice.total) for notice in timeline.run.warnings}


def said(timeline: Timeline, code: str) -> str:
    [text] = [notice.message for notice in timeline.run.warnings if notice.code == code]
    return text


def changed(path: Path, *statements: str) -> Path:
    """Change a file with SQL in which {uuid} stands for what its tables' names end in."""
    with closing(sqlite3.connect(path)) as connection:
        [(uuid,)] = connection.execute("SELECT value FROM rocpd_metadata WHERE tag = 'uuid'")
        for statement in statements:
            connection.execute(statement.format(uuid=uuid))
        connection.commit()
    return path


# Tasks


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "style",
    [
        Style(),
        Style(schedule="zb-h1", nested=True),
        Style(autograd_thread=True, comm=True),
        Style(names="bare", schedule="zb-h1"),
        Style(kernels=1, steps=1),
    ],
    ids=repr,
)
def test_every_interval_and_the_bubble_rate_are_exact(style, version, tmp_path):
    processes, truth, rate = pipeline(style, version)
    write(processes, tmp_path)
    timeline = sources.load(tmp_path)
    assert compute(timeline, truth).equals(truth)
    assert Report.of(timeline).bubbles.overall.makespan == pytest.approx(rate, abs=1e-12)
    assert [origin.version for origin in timeline.run.origins] == [version] * style.stages
    assert codes(timeline) == {}
    assert timeline.run.common_clock


@given(
    st.sampled_from(["1f1b", "gpipe", "zb-h1"]),
    st.sampled_from(["zero-bubble", "bare", "own"]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
)
@settings(max_examples=examples(12))
def test_a_program_reads_as_it_does_from_an_export_of_nsight(
    tmp_path_factory, schedule, names, comm, autograd_thread, kernels
):
    folder = tmp_path_factory.mktemp("both")
    style = Style(schedule, names, comm=comm, autograd_thread=autograd_thread, kernels=kernels)
    [export], _, _ = nsight_maker.pipeline(style)
    theirs = sources.load(export.write(folder / "node0.sqlite"))
    ours = sources.load(*write(pipeline(style)[0], folder))
    times = ["start_ns", "end_ns", "host_start_ns", "host_end_ns"]
    order = ["rank", "start_ns", "end_ns", "lane"]
    since = theirs.tasks.with_columns(pl.col(times) - nsight_maker.UTC)
    assert ours.tasks.sort(order).equals(since.sort(order))
    assert ours.ranks.equals(theirs.ranks)
    assert ours.run.warnings == theirs.run.warnings


@pytest.mark.parametrize("version", VERSIONS)
def test_a_merged_file_is_read_as_those_that_it_was_made_of(version, tmp_path):
    processes, truth, _ = pipeline(Style(), version)
    merged = merge(write(processes, tmp_path), tmp_path / "merged.db")
    timeline = sources.load(merged)
    assert compute(timeline, truth).equals(truth)
    assert [origin.path for origin in timeline.run.origins] == [str(merged)]
    with pytest.raises(SourceError, match="two traces of one rank; give only one of them"):
        sources.load(tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_task_is_the_work_launched_inside_its_range_by_any_thread(version, tmp_path):
    process = Process(7, version=version)
    process.range("F0.0.0", 1000, 1100)
    process.kernel(1200, 1300, at=1010)
    process.kernel(1350, 1400, at=1020, thread=5)  # autograd's
    process.kernel(1500, 1600, at=1110)
    timeline = one(process, tmp_path)
    assert intervals(timeline) == [("F0.0.0", 1200, 1400)]
    assert timeline.tasks["busy_ns"].to_list() == [150]
    assert timeline.tasks.select("host_start_ns", "host_end_ns").row(0) == (1000, 1100)
    assert codes(timeline) == {"kernels-outside-ranges": (1, 3)}


@pytest.mark.parametrize("version", VERSIONS)
def test_copies_are_work_of_the_gpu_that_they_go_to_or_come_from(version, tmp_path):
    process = Process(7, device=2, version=version)
    process.range("SEND_FORWARD.0.0.0", 1000, 1100)
    process.copy(1200, 1300, at=1010, to=2, source=3)
    process.copy(1310, 1400, at=1020, source=2)
    process.copy(1390, 1450, at=1030)  # from host to host: no work of a device
    timeline = one(process, tmp_path)
    assert intervals(timeline) == [("SEND_FORWARD.0.0.0", 1200, 1400)]
    assert timeline.ranks["device"].to_list() == [2]
    assert codes(timeline) == {}


def test_copies_that_were_asked_for_and_not_recorded_are_counted(tmp_path):
    process = Process(7)
    process.range("F0.0.0", 1000, 1100)
    process.kernel(1200, 1300, at=1010)
    process.launch(1020, name="hipMemcpyAsync")
    process.launch(1030, name="hipMemcpyWithStream")
    timeline = one(process, tmp_path)
    assert codes(timeline) == {"no-copies": (2, None)}
    assert "2 calls of hipMemcpy left no copy" in said(timeline, "no-copies")
    process.copy(1400, 1500, at=1040, source=0)
    assert codes(one(process, tmp_path)) == {}


@pytest.mark.parametrize(("copied", "use"), [(False, "untraced"), (True, "host_after_sync")])
def test_while_a_copy_that_was_not_recorded_may_be_under_way_the_host_is_not_late(
    tmp_path, copied, use
):
    process = Process(7)
    process.kernel(1_000, 100_000, at=10)
    process.launch(90_000, name="hipMemcpy", lasts=400_000)
    process.kernel(500_010, 600_000, at=500_000)
    if copied:
        process.copy(600_100, 600_200, at=600_050, source=0)
    idle = one(process, tmp_path).budget.filter(pl.col("detail") == "hipMemcpy")
    assert idle.select("use", "spent_ns").rows() == [(use, 400_000)]


def test_of_calls_with_one_stack_id_hips_is_the_launch(tmp_path):
    process = Process(7)
    process.range("F0.0.0", 1000, 1100)
    process.range("B0.0.0", 1100, 1200)
    hsa = {"name": "hsa_signal_store_screlease", "category": "HSA_CORE_API"}
    launch = process.launch(1050)
    process.launch(1020, stack=launch, **hsa)
    process.kernel(2000, 2100, launch=launch)
    process.kernel(2200, 2300, launch=process.launch(1150, **hsa))
    timeline = one(process, tmp_path)
    assert timeline.tasks.select("name", "start_ns").rows() == [("F0.0.0", 2000), ("B0.0.0", 2200)]


def test_stack_ids_are_each_process_own(tmp_path):
    processes = [Process(7 + device, device) for device in range(2)]
    for at, process in enumerate(processes):
        process.range(f"F{at}.0.0", 1000, 1100)
        process.kernel(2000 + at, 2100 + at, at=1010)
    timeline = sources.load(*write(processes, tmp_path))
    assert intervals(timeline) == [("F0.0.0", 2000, 2100), ("F1.0.0", 2001, 2101)]


@pytest.mark.parametrize("marks", ["MARKER_CORE_RANGE_API", "MARKER_CORE_API", "named"])
@pytest.mark.parametrize("kind", ["pushpop", "startend"])
def test_the_text_of_a_range_stands_where_each_writer_puts_it(marks, kind, tmp_path):
    process = Process(7, marks=marks)
    process.range('F0.0.0 "näher"', 1000, 1100, kind=kind)
    process.kernel(1200, 1300, at=1010)
    timeline = one(process, tmp_path, names=r"(?P<kind>F)(?P<mb>\d+).*\"näher\"")
    assert intervals(timeline) == [('F0.0.0 "näher"', 1200, 1300)]


def test_functions_without_a_text_are_no_ranges(tmp_path):
    process = Process(7)
    process.range("F0.0.0", 1000, 1100)
    process.range("roctxProcessRangeA", 1010, 1020, kind="startend")
    process.kernel(1200, 1300, at=1015)
    [held] = one(process, tmp_path).run.contents
    assert [(shape.shape, shape.count) for shape in held.names] == [("F#.#.#", 1)]


def test_a_range_left_open_ends_with_its_work_and_one_of_no_length_is_none(tmp_path):
    process = Process(7)
    process.range("F0.0.0", 1000, 1000)
    process.range("F1.0.0", 1010, None)
    process.kernel(2000, 2100, at=1020)
    process.range("B1.0.0", 1030, 1040)
    process.kernel(2200, 2300, at=1035)
    timeline = one(process, tmp_path)
    assert intervals(timeline) == [("F1.0.0", 2000, 2100), ("B1.0.0", 2200, 2300)]
    assert codes(timeline) == {"open-ranges": (1, 2)}


def test_names_that_are_not_known_are_described(tmp_path):
    process = Process(7)
    process.range("stage0/fwd:3", 1000, 1100)
    process.kernel(1200, 1300, at=1010)
    assert codes(one(process, tmp_path)) == {"no-pipeline-ranges": (None, None)}
    timeline = one(process, tmp_path, names=r"stage(?P<stage>\d+)/(?P<kind>fwd):(?P<mb>\d+)")
    assert timeline.tasks.select("kind", "stage", "microbatch").rows() == [("forward", 0, 3)]


def test_waiting_communication_is_a_lane_of_its_own(tmp_path):
    process = Process(7)
    process.range("F0.0.0", 1000, 1100)
    process.kernel(1200, 1300, at=1010)
    process.kernel(1250, 1900, at=1020, name="ncclDevKernel_Generic_4")
    process.kernel(1910, 1950, at=1030, name="ncclDevKernel_ReduceScatter_Sum_bf16")
    tasks = one(process, tmp_path).tasks.filter(pl.col("lane") == "comm").sort("start_ns")
    assert tasks.select("name", "kind", "microbatch").rows() == [
        ("ncclDevKernel_Generic_4", "other", 0),  # RCCL's, for whatever it does
        ("ncclDevKernel_ReduceScatter_Sum_bf16", "collective", 0),
    ]


@pytest.mark.parametrize("named", [True, False])
def test_without_passes_phases_and_steps_are_told_as_of_nsight(tmp_path, named):
    process, host, device = Process(7), 1000, 100_000
    step = ["embed", *["attend", "norm", "gate", "up", "down", "add"] * 4, "clip", "FusedAdamMath"]
    for number in range(4):
        begin = host
        for name in step:
            process.kernel(device, device + 10, at=host + 1, name=name)
            host, device = host + 10, device + 20
        if named:
            process.range(f"iteration {number + 8}", begin, host)
    timeline = one(process, tmp_path)
    assert timeline.steps == ([8, 9, 10, 11] if named else [0, 1, 2, 3])
    assert timeline.tasks.filter(kind="optimizer")["step"].to_list() == timeline.steps
    assert timeline.tasks.filter(kind="other").height >= 4


# What is not there


def test_work_without_a_launch_or_a_possible_time_is_counted(tmp_path):
    process = Process(7)
    process.range("F0.0.0", 1000, 1100)
    process.kernel(1200, 1300, at=1010)
    process.kernel(1310, 1320)
    process.kernel(1400, 1350, at=1020)
    timeline = one(process, tmp_path)
    assert intervals(timeline) == [("F0.0.0", 1200, 1300)]
    assert codes(timeline) == {"kernels-without-launch": (1, 2), "impossible-times": (1, 3)}


def test_without_launching_calls_it_says_what_to_record(tmp_path):
    process = Process(7)
    process.range("F0.0.0", 1000, 1100)
    process.kernel(1200, 1300)
    timeline = one(process, tmp_path)
    assert intervals(timeline) == [("all device work", 1200, 1300)]
    assert codes(timeline)["no-launching-calls"] == (1, 1)
    assert "rocprofv3 --runtime-trace" in said(timeline, "no-launching-calls")
    assert "rocprofv3 --runtime-trace" in said(timeline, "no-device-work")


def test_without_ranges_it_says_what_to_mark(tmp_path):
    process = Process(7)
    process.kernel(1200, 1300, at=1010)
    timeline = one(process, tmp_path)
    assert "no ROCTX ranges" in said(timeline, "no-pipeline-ranges")
    [held] = timeline.run.contents
    assert (held.host, held.process, held.devices) == ("node0", 7, (0,))
    assert held.counts == {"kernels": 1, "calls": 1}


TABLES = ["metadata", "string", "track", "event", "region", "kernel_dispatch", "memory_copy"]
TABLES += ["memory_allocate", "info_node", "info_process", "info_agent", "info_kernel_symbol"]


@pytest.mark.parametrize("table", TABLES)
def test_any_table_may_be_missing(table, tmp_path):
    process = Process(7)
    process.range("F0.0.0", 1000, 1100)
    process.kernel(1200, 1300, at=1010)
    path = process.write(tmp_path / "7_results.db")
    drop = f"DROP TABLE `rocpd_{table}{{uuid}}`"
    timeline = sources.load(changed(path, drop, f"DROP VIEW `rocpd_{table}`"))
    named = {"string", "event", "region"}
    names = (
        [] if table == "kernel_dispatch" else ["all device work" if table in named else "F0.0.0"]
    )
    assert timeline.tasks["name"].to_list() == names


@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_one_clear_error(share, tmp_path):
    path = pipeline(Style(stages=1))[0][0].write(tmp_path / "7_results.db")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(SourceError, match=r"7_results\.db: is (cut short|not a trace)"):
        sources.load(path)


def test_a_damaged_file_is_one_clear_error(tmp_path):
    path = pipeline(Style(stages=1))[0][0].write(tmp_path / "7_results.db")
    data = bytearray(path.read_bytes())
    for page in range(4096, len(data), 4096):
        data[page : page + 8] = b"\xff" * 8
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"7_results\.db: is a damaged SQLite file"):
        sources.load(path)


@pytest.mark.parametrize(("table", "column"), [("region", "start"), ("kernel_dispatch", "end")])
def test_values_that_are_no_numbers_are_one_clear_error(table, column, tmp_path):
    process = Process(7)
    process.range("F0.0.0", 1000, 1100)
    process.kernel(1200, 1300, at=1010)
    path = process.write(tmp_path / "7_results.db")
    changed(path, f"UPDATE `rocpd_{table}{{uuid}}` SET \"{column}\" = 'soon'")
    with pytest.raises(SourceError, match=rf"7_results\.db: rocpd_{table}.*{column} must be Int64"):
        sources.load(path)


@pytest.mark.parametrize("number", [0, 2**40, 2**62])
def test_ids_may_be_any_numbers(number, tmp_path):
    process = Process(7)
    process.range("F0.0.0", 1000, 1100)
    process.kernel(1200, 1300, at=1010)
    process.kernel(1310, 1320, at=1020)
    path = process.write(tmp_path / "7_results.db")
    changed(path, f"UPDATE `rocpd_region{{uuid}}` SET id = {number} WHERE id = 2")
    changed(path, "UPDATE `rocpd_kernel_dispatch{uuid}` SET agent_id = -1 WHERE id = 2")
    timeline = sources.load(path)
    assert intervals(timeline) == [("F0.0.0", 1200, 1300)]


def test_texts_that_are_no_json_do_no_harm(tmp_path):
    process = Process(7)
    process.range("F0.0.0", 1000, 1100)
    process.range("F1.0.0", 1200, 1300)
    process.kernel(2000, 2100, at=1010)
    path = process.write(tmp_path / "7_results.db")
    timeline = sources.load(
        changed(path, "UPDATE `rocpd_event{uuid}` SET extdata = '{{\"message' WHERE id = 2")
    )
    assert intervals(timeline) == [("F0.0.0", 2000, 2100)]


def test_compressed_texts_are_refused(tmp_path):
    path = Process(7).write(tmp_path / "7_results.db")
    changed(path, "INSERT INTO `rocpd_metadata{uuid}` (tag, value) VALUES ('compression', 'lz4')")
    with pytest.raises(SourceError, match=r"compressed texts \(lz4\)"):
        sources.load(path)


def test_a_file_without_events_reads_as_empty(tmp_path):
    timeline = one(Process(7), tmp_path)
    assert (len(timeline), timeline.ranks.height) == (0, 0)
    assert "no-device-work" in codes(timeline)


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("ascend_pytorch_profiler_0.db", ["TASK", "STRING_IDS", "MSTX_EVENTS"]),
        ("older.db", ["rocpd_api", "rocpd_op", "rocpd_string", "rocpd_metadata"]),
        ("notes.db", ["about"]),
    ],
)
def test_databases_of_others_are_not_claimed(name, tables, tmp_path):
    path = tmp_path / name
    with closing(sqlite3.connect(path)) as connection:
        for table in tables:
            connection.execute(f"CREATE TABLE {table} (id INTEGER, text TEXT)")
        connection.execute(f"INSERT INTO {tables[-1]} VALUES (1, 'rocpd_kernel_dispatch')")
        connection.commit()
    assert not RocpdSource().detect(path)


def test_a_rocpd_file_is_claimed_by_no_other_format(tmp_path):
    path = Process(7).write(tmp_path / "any name.sqlite")
    assert [name for name, source in sources.SOURCES.items() if source.detect(path)] == ["rocpd"]


# Machines and their clocks


def two_machines(tmp_path: Path, **how: str) -> tuple[Timeline, pl.DataFrame, float]:
    processes, truth, rate = pipeline(Style(schedule="zb-h1", hosts=2))
    return sources.load(*write(processes, tmp_path), **how), truth, rate


def test_machines_share_no_clock_unless_what_ran_tells_it(tmp_path):
    timeline, _, _ = two_machines(tmp_path, clock="raw")
    assert not timeline.run.common_clock
    assert "2 machines count from when each was booted" in said(timeline, "no-common-clock")
    assert Report.of(timeline).bubbles.overall.makespan is None


def test_clocks_of_machines_are_aligned_by_what_ran_each_by_one_offset(tmp_path):
    timeline, truth, rate = two_machines(tmp_path)
    assert compute(timeline, truth).equals(truth)
    assert timeline.run.common_clock
    assert "no-common-clock" not in codes(timeline)
    assert timeline.ranks["clock_offset_ns"].to_list() == [0, 0, 1_234_567, 1_234_567]
    assert Report.of(timeline).bubbles.overall.makespan == pytest.approx(rate, abs=1e-12)


def test_replicas_on_machines_of_their_own_are_not_taken_for_one_pipeline(tmp_path):
    processes, _, _ = pipeline(Style(names="bare"))
    others, _, _ = pipeline(Style(names="bare"))
    for process in others:
        process.host = "node1"
    timeline = sources.load(*write([*processes, *others], tmp_path))
    assert timeline.tasks["stage"].null_count() == len(timeline)
    assert not timeline.run.common_clock


def test_machines_of_one_name_are_told_apart(tmp_path):
    processes = [Process(7, host="job", machine=f"{number}-abcdefgh") for number in range(2)]
    for process in processes:
        process.range("F", 1000, 1100)
        process.kernel(1200, 1300, at=1010)
    paths = [process.write(tmp_path / f"{number}.db") for number, process in enumerate(processes)]
    hosts = sources.load(*paths).ranks["host"].to_list()
    assert hosts == ["job-0-abcdef", "job-1-abcdef"]


# Counters


@pytest.mark.parametrize("version", VERSIONS)
def test_held_memory_is_what_was_allocated_less_what_was_freed_of_it(version, tmp_path):
    process = Process(7, device=1, version=version)
    process.range("F0.0.0", 1000, 1100)
    process.kernel(1200, 1300, at=1010)
    process.allocate(100, 0xA0, 64)
    process.allocate(110, 0xB0, 32, agent=0)  # the host's
    process.allocate(120, 0xC0, 16)
    process.free(130, 0xA0)
    process.free(140, 0xA0)  # nothing that was seen to be allocated
    process.free(150, 0xB0)
    process.allocate(160, 0xA0, 8)
    process.free(170, 0xC0)
    counters = one(process, tmp_path).counters
    assert counters["name"].unique().to_list() == ["device memory"]
    assert counters.select("time_ns", "value").rows() == [
        (100, 64.0),
        (120, 80.0),
        (130, 16.0),
        (160, 24.0),
        (170, 8.0),
    ]


# From the command line


def run(*arguments: object, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "bubblescope", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "DISPLAY"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_info_report_and_why_read_a_folder_of_them(tmp_path):
    (tmp_path / "traces").mkdir()
    processes, _, rate = pipeline(Style())
    write(processes, tmp_path / "traces")
    assert "rocpd 3.0.0" in run("info", "traces", cwd=tmp_path)
    assert "F#.#.#" in run("names", "traces", cwd=tmp_path)
    report = json.loads(run("report", "traces", "--json", cwd=tmp_path))
    assert {origin["format"] for origin in report["run"]["sources"]} == {"rocpd"}
    assert report["bubble"]["overall"]["makespan"] == pytest.approx(rate)
    assert run("why", "traces", cwd=tmp_path)
