"""What real Nsight Systems exports hold that tidy ones do not, and what broken ones do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import polars as pl
import pytest

import bubblescope
from bubblescope import SourceError, sources
from bubblescope.render.text.report import Report
from bubblescope.sources.sqlite_head import head_of
from nsight_maker import TABLES, UTC, Export, Process, Style, pipeline

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def task(process: Process, name: str, at: int, *, inside: Iterable[str] = ()) -> None:
    """Add a range of 50 ns with a kernel of 40 ns, 1000 ns later."""
    process.range(name, at, at + 50)
    for depth, inner in enumerate(inside, 1):
        process.range(inner, at + depth, at + 50 - depth)
    process.kernel(at + 1000, at + 1040, at=at + 10)


def load(export: Export, folder: Path) -> bubblescope.Timeline:
    return sources.load(export.write(folder / "one.sqlite"))


def read(timeline: bubblescope.Timeline, *columns: str) -> list[tuple]:
    return timeline.tasks.sort("rank", "start_ns").select(*columns).rows()


def codes(timeline: bubblescope.Timeline) -> dict[str, tuple[int | None, int | None]]:
    return {notice.code: (notice.lost, notice.total) for notice in timeline.run.warnings}


def one_task() -> Export:
    export = Export()
    task(export.process(7), "F0.0.0", 0)
    return export


# Types of events, which a version may number anew

NOW = {34: "NvtxMark", 59: "NvtxPushPopRange", 60: "NvtxStartEndRange"}
MOVED = {59: "NvtxMark", 134: "NvtxtMark", 159: "NvtxPushPopRange", 160: "NvtxStartEndRange"}


@pytest.mark.parametrize("container", ["sqlite", "parquet"])
@pytest.mark.parametrize("kind", ["pushpop", "startend"])
@pytest.mark.parametrize(
    ("types", "numbers"),
    [
        (NOW, {"pushpop": 59, "startend": 60}),
        (MOVED, {"pushpop": 159, "startend": 160}),
        # One that names only what it holds: what it does not name has its usual number.
        ({159: "NvtxPushPopRange"}, {"pushpop": 159, "startend": 60}),
        ({}, {"pushpop": 59, "startend": 60}),
    ],
)
def test_the_export_itself_says_which_events_are_ranges(tmp_path, types, numbers, kind, container):
    export = Export()
    export.says_types(types)
    process = export.process(7)
    process.range("F0.0.0", 0, 50, kind=kind)
    process.kernel(1000, 1040, at=10)
    process.range("B0.0.0", 100, 150, kind="mark")
    process.kernel(1100, 1140, at=110)
    marks = next((number for number, name in types.items() if name == "NvtxMark"), 34)
    export.rows["NVTX_EVENTS"][0]["eventType"] = numbers[kind]
    export.rows["NVTX_EVENTS"][1]["eventType"] = marks
    write = {"sqlite": export.write, "parquet": export.write_parquet_dir}[container]
    assert read(sources.load(write(tmp_path / "one.sqlite")), "name") == [("F0.0.0",)]


# Names


@pytest.mark.parametrize("autograd_thread", [False, True])
def test_numbers_survive_the_plain_ranges_that_sails_runtime_nests_in_its_own(
    tmp_path, autograd_thread
):
    style = Style(schedule="zb-h1", decorated=True, autograd_thread=autograd_thread)
    [export], truth, rate = pipeline(style)
    timeline = load(export, tmp_path)
    found = timeline.tasks.sort("rank", "start_ns").with_columns(pl.col("kind").cast(pl.String))
    assert found.select(truth.columns).equals(truth, null_equal=True)
    assert Report.of(timeline).bubbles.overall.makespan == pytest.approx(rate, abs=1e-12)
    assert set(timeline.run.inferred) == {"stage"}


def test_constant_names_of_interleaved_schedules_stay_unnumbered(tmp_path):
    export = Export()
    process = export.process(7)
    for index, letter in enumerate("FFBFBB"):
        task(process, f"{letter}0.0.0", 60 * index, inside=[letter])
    task(process, "Optimizer", 360)
    timeline = load(export, tmp_path)
    assert timeline.tasks["microbatch"].null_count() == 7
    assert codes(timeline) == {"repeated-names": (6, 7)}


def test_names_of_any_length_count(tmp_path):
    export = Export()
    process = export.process(7)
    task(process, "F1000.10.10", 0)
    task(process, "SEND_FORWARD.1000.10.10_RECV_BACKWARD.900.11.10", 60)
    assert sorted(load(export, tmp_path).tasks["microbatch"]) == [900, 1000, 1000]


def test_parts_of_one_sequence_are_tasks_of_one_micro_batch(tmp_path):
    export = Export()
    process = export.process(7)
    for index, name in enumerate(["F0.0.0", "F0.0.1", "B0.0.1", "B0.0.0"]):
        task(process, name, 60 * index)
    timeline = load(export, tmp_path)
    assert read(timeline, "microbatch", "chunk", "step") == [(0, 0, 0)] * 4
    assert codes(timeline) == {}


@pytest.mark.parametrize(
    ("path", "stages"),
    [
        ([(0, 0), (1, 0), (0, 1), (1, 1)], {(0, 0): 0, (1, 0): 1, (0, 1): 2, (1, 1): 3}),
        ([(0, 0), (1, 0), (1, 1), (0, 1)], {(0, 0): 0, (1, 0): 1, (1, 1): 2, (0, 1): 3}),
    ],
    ids=["interleaved", "V"],
)
def test_chunks_are_placed_by_the_way_of_a_micro_batch(tmp_path, path, stages):
    export = Export()
    ranks = [export.process(7 + rank, rank) for rank in range(2)]
    clock = 0
    for step in range(2):
        for letter, way in (("F", path), ("B", path[::-1])):
            for microbatch in range(3):
                for rank, chunk in way:
                    task(ranks[rank], f"{letter}{microbatch}.{chunk}.0", clock)
                    clock += 60
        for rank, process in enumerate(ranks):
            task(process, "Optimizer", clock)
            process.range(f"iter_{rank}_{step}", clock - 60 * 24 - 1, clock - 1)
        clock += 60
    tasks = load(export, tmp_path).tasks.filter(pl.col("kind") != "optimizer")
    assert {
        (rank, chunk): stage for rank, chunk, stage in tasks.select("rank", "chunk", "stage").rows()
    } == stages


# Steps and ranks


def test_a_capture_that_begins_within_a_step_keeps_its_rest_apart(tmp_path):
    """The step's marker was pushed before the capture, so it is not in the trace."""
    export = Export()
    process = export.process(7)
    for index, name in enumerate(["B6.0.0", "F7.0.0", "B7.0.0", "Optimizer"]):
        task(process, name, 60 * index)
    for index, name in enumerate(["F0.0.0", "B0.0.0"]):
        task(process, name, 300 + 60 * index)
    process.range("iter_3_8", 299, 420)
    timeline = load(export, tmp_path)
    assert read(timeline, "rank", "step", "microbatch") == [
        (3, None, 6),
        (3, None, 7),
        (3, None, 7),
        (3, None, None),
        (3, 8, 0),
        (3, 8, 0),
    ]
    assert Report.of(timeline).bubbles.table["step"].to_list() == [8]


def test_a_step_cut_by_the_end_of_the_capture_keeps_its_number(tmp_path):
    export = Export()
    process = export.process(7)
    for step, at in enumerate((0, 200)):
        process.range(f"iter_0_{step}", at, at + 150 if step == 0 else None)
        task(process, "F0.0.0", at + 10)
    assert read(load(export, tmp_path), "step") == [(0,), (1,)]


def test_a_rank_number_that_two_processes_claim_is_not_believed(tmp_path):
    export = Export()
    for pid in (7, 8):
        process = export.process(pid, pid - 7)
        process.range("iter_0_4", 0, 100)
        task(process, "F0.0.0", 10)
    timeline = load(export, tmp_path)
    assert read(timeline, "rank", "step") == [(0, 4), (1, 4)]
    assert "rank" in timeline.run.inferred


# Clocks


def test_captures_of_one_host_without_a_monotonic_clock_keep_their_own_time(tmp_path):
    for index in range(2):
        export = Export(utc_ns=UTC + 500 * index)
        task(export.process(7 + index, index), f"F{index}.0.0", 0)
        export.write(tmp_path / f"{index}.sqlite")
    timeline = sources.load(tmp_path)
    assert timeline.tasks["start_ns"].to_list() == [UTC + 1000, UTC + 1500]
    assert "clocks-unchecked" not in codes(timeline)


def test_one_run_may_lie_in_several_containers(tmp_path):
    exports, truth, _ = pipeline(Style(hosts=2))
    exports[0].write(tmp_path / "node0.sqlite")
    exports[1].write_parquet_dir(tmp_path / "node1_pqtdir")
    found = sources.load(tmp_path).tasks.sort("rank", "start_ns")
    assert found["start_ns"].equals(truth["start_ns"])


# Events


def test_streams_that_run_at_once_are_busy_once(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 50)
    process.kernel(100, 200, at=1)
    process.kernel(110, 120, at=2)
    process.kernel(130, 140, at=3)
    process.kernel(190, 230, at=4)
    assert load(export, tmp_path).tasks["busy_ns"].to_list() == [130]


def test_a_launching_call_recorded_twice_launches_once(tmp_path):
    """Versions of 2022 have a row for the call and one for the wrapper around it, of one id."""
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 50)
    call = process.launch(10)
    twin = dict(export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"][-1], start=9, end=16, eventClass=67)
    export.rows["CUPTI_ACTIVITY_KIND_RUNTIME"].insert(0, twin)
    process.kernel(100, 110, correlation=call)
    timeline = load(export, tmp_path)
    assert timeline.tasks["busy_ns"].to_list() == [10]
    assert codes(timeline) == {}


def test_work_of_no_known_process_or_launch_is_no_task(tmp_path):
    export = one_task()
    process = export.process(7)
    for missing in ("correlationId", "globalPid"):
        process.kernel(2000, 2010, correlation=101)
        export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1][missing] = None
    timeline = load(export, tmp_path)
    assert timeline.tasks["busy_ns"].to_list() == [40]
    assert codes(timeline)["kernels-without-launch"] == (1, 2)


@pytest.mark.parametrize("table", TABLES)
def test_any_table_may_be_missing(tmp_path, table):
    export = one_task()
    path = export.write(tmp_path / "one.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {table}")
    connection.close()
    timeline = sources.load(path)
    named = {"NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"}
    names = [] if table == "CUPTI_ACTIVITY_KIND_KERNEL" else ["F0.0.0"]
    assert read(timeline, "name") == [("all device work" if table in named else n,) for n in names]


def test_a_database_of_something_else_is_refused(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE points (x INTEGER, y INTEGER)")
    connection.close()
    with pytest.raises(SourceError, match=r"other\.sqlite: is not a trace of a known format"):
        sources.load(path)


def test_a_task_marked_by_two_tools_is_one_task(tmp_path):
    """A mark of ours around a step function that has a plain mark of its own."""
    export = Export()
    task(export.process(7), "bubblescope:backward_input step=0 microbatch=3", 0, inside=["B"])
    timeline = load(export, tmp_path)
    assert read(timeline, "kind", "microbatch") == [("backward_input", 3)]
    assert codes(timeline) == {}


def test_a_plain_range_left_open_hides_no_later_one(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F", 0, None)
    process.kernel(1000, 1040, at=10)
    for index, name in enumerate("BFB", 1):
        task(process, name, 60 * index)
    timeline = load(export, tmp_path)
    assert read(timeline, "name", "microbatch") == [("F", 0), ("B", 0), ("F", 1), ("B", 1)]
    assert codes(timeline) == {"open-ranges": (1, 4)}


def test_numbers_that_never_repeat_are_of_one_step(tmp_path):
    """Micro-batches in turn, each forward and backward through both chunks of a rank."""
    export = Export()
    process = export.process(7)
    order = [f"{way}{i}.{chunk}.0" for i in range(3) for way, chunk in ("F0", "F1", "B1", "B0")]
    for index, name in enumerate(order):
        task(process, name, 60 * index)
    assert load(export, tmp_path).steps == [0]


def test_communication_of_no_known_launch_is_shown_and_not_lost(tmp_path):
    export = one_task()
    export.process(7).kernel(2000, 2100, name="ncclDevKernel_AllReduce_Sum_f32")
    timeline = load(export, tmp_path)
    assert read(timeline, "lane") == [("compute",), ("comm",)]
    assert codes(timeline) == {}


def test_pipeline_ranges_without_any_device_work_are_not_called_unknown(tmp_path):
    export = Export()
    export.process(7).range("F0.0.0", 0, 50)
    timeline = load(export, tmp_path)
    assert len(timeline) == 0
    assert codes(timeline) == {"ranges-without-work": (1, 1), "no-device-work": (1, 1)}


def test_an_export_without_any_device_work_says_that_and_not_that_names_are_missing(tmp_path):
    export = Export()
    export.process(7).range("my_loop", 0, 50)
    timeline = load(export, tmp_path)
    assert len(timeline) == 0
    [notice] = timeline.run.warnings
    assert notice.code == "no-device-work"
    assert "no kernels, copies or fills of any device; profile with `--trace=cuda" in notice.message


def test_pages_of_unified_memory_are_moved_by_no_call(tmp_path: Path) -> None:
    """The driver moves them, and what CUPTI writes of it has correlation 0.

    It begins to as the host touches or prefetches them: until then the host did something else.
    """
    export = Export()
    process = export.process(7)
    process.kernel(1000, 2000, at=10)
    to_device, to_host, between = 11, 12, 13
    for start, kind in ((2300, to_host), (2500, to_device), (2600, to_device), (2700, between)):
        process.work("MEMCPY", start, start + 50, bytes=4096, copyKind=kind, correlation=0)
    process.work("MEMCPY", 3000, 3050, bytes=8, copyKind=1, correlation=99)
    spent = load(export, tmp_path).budget
    idle = spent.filter(pl.col("use").is_in(["pages", "unlinked", "host_unknown"]))
    sums = idle.group_by("use").agg(pl.col("spent_ns").sum())
    assert dict(sums.iter_rows()) == {"host_unknown": 300 + 150, "pages": 2 * 50, "unlinked": 250}
    copies = set(spent.filter(use="copy")["detail"])
    assert copies == {"DtoH unified", "HtoD unified", "DtoD unified", "HtoD"}


US = 1000


@pytest.mark.parametrize(
    ("around", "use", "detail"),
    [
        (None, "host_system", "read"),
        ("train_step", "host_system", "read"),
        ("aten::mul", "host_operator", "aten::mul"),
        ("Dataloader", "host_data", "Dataloader"),
    ],
)
@pytest.mark.parametrize("form", ["sqlite", "parquetdir"])
def test_what_the_launching_thread_waited_for_in_the_system_is_told(
    tmp_path: Path, around: str | None, use: str, detail: str, form: str
) -> None:
    """Where nothing says more. Other threads' calls, and those of under 10 us, say nothing."""
    export = Export()
    process = export.process(7)
    process.kernel(100 * US, 200 * US, at=50 * US)
    process.system_call("read", 190 * US, 480 * US)
    process.system_call("poll", 0, 900 * US, thread=5)
    for at in range(485, 500):
        process.system_call("munmap", at * US, at * US + 900)
    if around is not None:
        process.range(around, 60 * US, 503 * US)
    process.kernel(510 * US, 600 * US, at=505 * US)
    if form == "sqlite":
        timeline = load(export, tmp_path)
    else:
        timeline = sources.load(export.write_parquet_dir(tmp_path / "one"))
    late = timeline.budget.filter(pl.col("use").cast(pl.String).str.starts_with("host"))
    assert late.select("use", "detail", "spent_ns").rows() == [(use, detail, 305 * US)]


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (1, "pin_memory"),
        (8, "fewer copies of tensors"),
        (10, "keep on one device"),
        (11, "Prefetch"),
    ],
)
def test_the_advice_about_copies_is_one_for_their_sort(
    tmp_path: Path, kind: int, remedy: str
) -> None:
    export = Export()
    process = export.process(7)
    process.kernel(1000, 2000, at=10)
    process.work("MEMCPY", 2000, 4000, bytes=1 << 20, copyKind=kind, at=20)
    process.kernel(4000, 5000, at=30)
    export.write(tmp_path / "rank0.sqlite")
    said = str(bubblescope.why(tmp_path))
    assert remedy in " ".join(said.split())


def test_an_export_of_no_event_at_all_is_one_all_the_same(tmp_path: Path) -> None:
    """Such as of CPU samples alone. It may be of so many tables that its own stand far behind."""
    file = tmp_path / "samples.sqlite"
    with closing(sqlite3.connect(file)) as database:
        database.execute("BEGIN")  # or each table would be written to the disk by itself
        for number in range(3000):
            database.execute(f"CREATE TABLE OTHER_{number} (name TEXT, value TEXT, padding TEXT)")
        for table in ("StringIds (id INT, value TEXT)", "META_DATA_EXPORT (name TEXT, value TEXT)"):
            database.execute(f"CREATE TABLE {table}")
        database.commit()
    assert b"META_DATA_EXPORT" not in head_of(file)
    assert "no-device-work" in codes(sources.load(file))


@pytest.mark.parametrize("named", [True, False])
def test_a_plain_profile_of_megatron_says_how_to_get_tasks(tmp_path, named):
    """`--profile` marks operators by autograd's `emit_nvtx` at most, and no forward or backward."""
    export = Export()
    process = export.process(7)
    process.kernel(1000, 1040, at=10)
    if named:
        process.range("aten::linear, op_id = 12, sizes = [[4, 8], [8, 8], []]", 0, 50)
        process.range("aten::mm, seq = 3, op_id = 13", 60, 90)
    timeline = load(export, tmp_path)
    assert read(timeline, "kind", "name") == [("other", "all device work")]
    [notice] = [one for one in timeline.run.warnings if one.code == "no-pipeline-ranges"]
    assert "bubblescope record --marks nvtx -- nsys profile" in notice.message
    assert ("Megatron's --profile" in notice.message) == named


@pytest.mark.parametrize("number", [0, 1, 10**6, 2**31, 2**40])
def test_strings_may_have_any_ids(tmp_path, number):
    export = Export(first_string=number)
    process = export.process(7)
    process.range("F0.0.0", 0, 50, registered=True)
    process.kernel(1000, 1040, at=10)
    assert read(load(export, tmp_path), "name") == [("F0.0.0",)]


@pytest.mark.parametrize(
    ("table", "column"),
    [(table, column) for table, columns in TABLES.items() for column in columns],
)
def test_a_version_may_lack_any_column(tmp_path, table, column):
    export = one_task()
    export.dropped = {table: {column}}
    if len(TABLES[table]) > 1:
        load(export, tmp_path)
    parquet = sources.load(export.write_parquet_dir(tmp_path / "run"))
    assert parquet.run.contents is not None


@pytest.mark.parametrize(
    ("table", "column"),
    [("NVTX_EVENTS", "start"), ("CUPTI_ACTIVITY_KIND_KERNEL", "end")],
)
def test_values_that_are_no_numbers_are_one_clear_error(tmp_path, table, column):
    path = one_task().write(tmp_path / "one.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {table} SET {column} = 'soon'")
    connection.close()
    with pytest.raises(SourceError, match=rf"one\.sqlite: {table}\.{column} must be Int64"):
        sources.load(path)


@pytest.mark.parametrize("column", ["start", "end", "deviceId"])
def test_work_without_a_time_or_a_device_is_left_out(tmp_path, column):
    export = one_task()
    export.process(7).kernel(2000, 2010, at=12)
    export.rows["CUPTI_ACTIVITY_KIND_KERNEL"][-1][column] = None
    assert load(export, tmp_path).tasks["busy_ns"].to_list() == [40]


def test_work_that_ends_before_it_starts_is_left_out_and_counted(tmp_path):
    export = one_task()
    export.process(7).kernel(2010, 2000, at=12)
    export.process(7).kernel(9 * 86_400 * 10**9, 9 * 86_400 * 10**9 + 5, at=13)
    timeline = load(export, tmp_path)
    assert timeline.tasks["busy_ns"].to_list() == [40]
    assert timeline.tasks["end_ns"].max() - timeline.tasks["start_ns"].min() < 2000
    assert codes(timeline)["impossible-times"] == (2, 3)


def test_devices_whose_process_marks_nothing_are_said_to_be_left_out(tmp_path):
    export = one_task()
    export.process(8).kernel(2000, 2010, at=12)
    timeline = load(export, tmp_path)
    assert timeline.ranks.height == 1
    assert codes(timeline)["devices-without-tasks"] == (1, 2)


def test_work_that_is_there_again_counts_once(tmp_path):
    export = one_task()
    whole = load(export, tmp_path)
    export.rows["CUPTI_ACTIVITY_KIND_KERNEL"] *= 3
    timeline = load(export, tmp_path)
    assert timeline.tasks.equals(whole.tasks)
    assert timeline.budget.equals(whole.budget)
    assert codes(timeline)["repeated-rows"] == (2, 3)


# Device work that does not say its process: old exports, and those that were cut down by hand


def without_process(path: Path) -> Path:
    """Drop `globalPid` from every table of an export."""
    connection = sqlite3.connect(path)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    dropped = 0
    for table in tables:
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        if "globalPid" in columns:
            connection.execute(f'ALTER TABLE "{table}" DROP COLUMN "globalPid"')
            dropped += 1
    connection.commit()
    connection.close()
    assert dropped
    return path


def test_device_work_without_a_process_is_that_of_the_only_one(tmp_path):
    export = Export()
    process = export.process(7)
    for at, name in ((0, "F0.0.0"), (2000, "B0.0.0"), (4000, "F1.0.0"), (6000, "B1.0.0")):
        task(process, name, at)
    export.process(8).range("launcher", 0, 9000)  # it called nothing of CUDA
    path = export.write(tmp_path / "one.sqlite")
    whole = sources.load(path)
    cut = sources.load(without_process(path))
    assert len(cut) == 4
    assert cut == whole
    assert "unowned-work" not in codes(cut)


def test_device_work_of_several_processes_that_are_not_told_apart_is_left_out(tmp_path):
    export = Export()
    for pid in (7, 8):  # whose correlation ids are the same
        process = export.process(pid, device=pid - 7)
        task(process, "F0.0.0", 0)
        task(process, "B0.0.0", 2000)
    path = export.write(tmp_path / "two.sqlite")
    assert len(sources.load(path)) == 4
    cut = sources.load(without_process(path))
    assert not len(cut.tasks.filter(pl.col("kind") == "forward"))
    assert codes(cut)["unowned-work"] == (4, None)
    [message] = [one.message for one in cut.run.warnings if one.code == "unowned-work"]
    assert "do not state their process" in message
