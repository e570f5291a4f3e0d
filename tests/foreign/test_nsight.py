"""Nsight Systems exports: device intervals, exact to the nanosecond, whatever the export is like."""

from __future__ import annotations

import json
import os
import sqlite3
from typing import TYPE_CHECKING

import polars as pl
import pytest

import bubblescope
from bubblescope import NamesError, SourceError, sources
from bubblescope.render.text.report import Report
from nsight_maker import UTC, Export, Style, pipeline
from places import SHARED

if TYPE_CHECKING:
    from pathlib import Path

NSIGHT = SHARED / "nsight"
needs_shared = pytest.mark.skipif(not NSIGHT.exists(), reason="the shared traces are not here")
COLUMNS = ["rank", "step", "kind", "microbatch", "start_ns", "end_ns", "busy_ns"]


def write(exports: list[Export], folder: Path) -> Path:
    for index, export in enumerate(exports):
        export.write(folder / f"node{index}.sqlite")
    return folder


def compute(timeline: bubblescope.Timeline) -> list[tuple]:
    tasks = timeline.tasks.filter(pl.col("lane") == "compute").sort("rank", "start_ns")
    return tasks.select(
        pl.col(column).cast(pl.String) if column == "kind" else column for column in COLUMNS
    ).rows()


def codes(timeline: bubblescope.Timeline) -> dict[str, tuple[int | None, int | None]]:
    return {notice.code: (notice.lost, notice.total) for notice in timeline.run.warnings}


def one(export: Export, tmp_path: Path, **how: str) -> bubblescope.Timeline:
    return sources.load(export.write(tmp_path / "one.sqlite"), **how)


def intervals(timeline: bubblescope.Timeline) -> list[tuple]:
    """(name, start, end) of every task, since the session's start."""
    rows = timeline.tasks.sort("start_ns", "name").select("name", "start_ns", "end_ns").rows()
    return [(name, start - UTC, end - UTC) for name, start, end in rows]


@pytest.mark.parametrize(
    "style",
    [
        Style(),
        Style(schedule="gpipe"),
        Style(schedule="zb-h1"),
        Style(schedule="zb-h1", hosts=2, stages=8),
        Style(registered=True, nested=True),
        Style(autograd_thread=True, nested=True),
        Style(schedule="zb-h1", autograd_thread=True, registered=True, comm=True, hosts=2),
        Style(renumbered_devices=True),
        Style(names="own", schedule="zb-h1"),
        Style(names="bare"),
        Style(names="bare", schedule="zb-h1"),
        Style(names="bare", stages=1),
        Style(names="megatron"),
        Style(names="megatron", schedule="gpipe", comm=True),
        Style(names="custom", schedule="zb-h1"),
        Style(kernels=1, steps=1),
    ],
    ids=repr,
)
def test_every_interval_and_the_bubble_rate_are_exact(style, tmp_path):
    exports, truth, rate = pipeline(style)
    pattern = r"(?P<kind>fwd|bwd|wgrad|opt)/(mb(?P<mb>\d+))?" if style.names == "custom" else None
    if style.names == "custom":
        truth = truth.with_columns(pl.col("kind").replace("backward_input", "backward"))
    if style.names == "own":
        truth = truth.with_columns(pl.col("kind").replace("backward_input", "backward"))
    timeline = sources.load(write(exports, tmp_path), names=pattern)
    assert compute(timeline) == truth.select(COLUMNS).rows()
    overall = Report.of(timeline).bubbles.overall
    assert overall.makespan == pytest.approx(rate, abs=1e-12)
    stages = timeline.tasks.filter(pl.col("kind") == "forward").select("rank", "stage").unique()
    assert sorted(stages.rows()) == [(stage, stage) for stage in range(style.stages)]


def test_what_was_inferred_is_marked_and_what_was_stated_is_not(tmp_path):
    (tmp_path / "a").mkdir()
    exports, _, _ = pipeline(Style())
    assert set(sources.load(write(exports, tmp_path / "a")).run.inferred) == {"stage"}
    (tmp_path / "b").mkdir()
    exports, _, _ = pipeline(Style(names="bare"))
    inferred = sources.load(write(exports, tmp_path / "b")).run.inferred
    assert set(inferred) == {"rank", "step", "microbatch", "stage"}


def test_the_same_export_as_parquetdir_reads_the_same(tmp_path):
    [export], _, _ = pipeline(Style(schedule="zb-h1", comm=True))
    sqlite = sources.load(export.write(tmp_path / "run.sqlite"))
    parquet = sources.load(export.write_parquet_dir(tmp_path / "run_pqtdir"))
    assert parquet.tasks.equals(sqlite.tasks)
    assert parquet.ranks.equals(sqlite.ranks)


def test_waiting_communication_is_a_lane_of_its_own(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 100)
    process.kernel(200, 300, at=10)
    process.kernel(250, 900, at=20, name="ncclDevKernel_ReduceScatter_Sum_bf16")
    process.range("SEND_FORWARD.0.0.0", 110, 150)
    process.kernel(310, 700, at=120, name="ncclDevKernel_SendRecv")
    timeline = one(export, tmp_path)
    rows = timeline.tasks.select(
        "kind", "lane", "microbatch", "start_ns", "end_ns", "busy_ns"
    ).rows()
    assert [(*row[:3], row[3] - UTC, row[4] - UTC, row[5]) for row in rows] == [
        ("forward", "compute", 0, 200, 300, 100),
        ("collective", "comm", 0, 250, 900, None),
        ("send_forward", "comm", 0, 310, 700, 390),
    ]


def test_a_point_to_point_kernel_outside_any_range_is_not_called_a_collective(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 100)
    process.kernel(200, 300, at=10)
    process.kernel(400, 500, at=110, name="ncclDevKernel_SendRecv")
    timeline = one(export, tmp_path)
    assert timeline.tasks["kind"].to_list() == ["forward", "other"]
    assert "kernels-outside-ranges" not in codes(timeline)


def test_fused_sends_and_receives_are_two_tasks_of_one_interval(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 5)
    process.kernel(10, 20, at=1)
    process.range("SEND_FORWARD.3.0.0_RECV_BACKWARD.1.0.0", 30, 40)
    process.kernel(50, 60, at=31, name="ncclDevKernel_SendRecv")
    tasks = one(export, tmp_path).tasks.filter(pl.col("lane") == "comm")
    found = tasks.select("kind", "microbatch", pl.col("start_ns") - UTC).rows()
    assert sorted(found) == [("recv_backward", 1, 50), ("send_forward", 3, 50)]


def test_a_send_made_of_copies_counts_the_copies(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 5)
    process.kernel(10, 20, at=1)
    process.range("SEND_FORWARD.0.0.0", 30, 40)
    process.work("MEMCPY", 50, 60, at=31, bytes=8, copyKind=8)
    assert ("SEND_FORWARD.0.0.0", 50, 60) in intervals(one(export, tmp_path))


def test_copies_and_fills_are_work_of_their_range(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 50)
    process.work("MEMCPY", 100, 110, at=1, bytes=8, copyKind=1)
    process.work("MEMSET", 150, 160, at=2, value=0, bytes=8)
    timeline = one(export, tmp_path)
    assert intervals(timeline) == [("F0.0.0", 100, 160)]
    assert timeline.tasks["busy_ns"].to_list() == [20]


@pytest.mark.parametrize("mode", ["graph", "node"])
def test_cuda_graphs_in_both_trace_modes(tmp_path, mode):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 50)
    if mode == "graph":
        process.work("GRAPH_TRACE", 100, 190, at=1, graphId=4)
    else:
        launch = process.launch(1)
        process.kernel(100, 120, correlation=launch, graphNodeId=1)
        process.kernel(130, 190, correlation=launch, graphNodeId=2)
    assert intervals(one(export, tmp_path)) == [("F0.0.0", 100, 190)]


def test_time_in_whole_graphs_is_told_apart_and_what_would_show_more(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 50)
    process.work("GRAPH_TRACE", 100, 190, at=1, graphId=4)
    process.kernel(180, 200, at=2, stream=8)
    spent = Report.of(one(export, tmp_path)).to_dict()["device"]
    assert (spent["capture"]["compute_ns"], spent["capture"]["graphs_ns"]) == (100, 80)
    [graphs] = [row for row in spent["undecided"] if row["class"] == "compute"]
    assert (graphs["spent_ns"], graphs["idle_ns"]) == (80, None)
    assert graphs["options"] == ["nsys profile --cuda-graph-trace=node"]


def test_the_innermost_pipeline_range_wins(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 100)
    process.range("W3.0.0", 40, 60)
    process.kernel(200, 210, at=10)
    process.kernel(220, 230, at=50)
    process.kernel(240, 250, at=70)
    assert intervals(one(export, tmp_path)) == [("F0.0.0", 200, 250), ("W3.0.0", 220, 230)]


@pytest.mark.parametrize("end", [90, 100])
def test_ranges_inside_a_task_that_say_less_than_it_are_ignored(tmp_path, end):
    """Sail's runtime nests a plain F in F3.0.0; PyTorch an Optimizer.step in Optimizer.

    Both may end at the same nanosecond: clocks are coarser than that.
    """
    export = Export()
    process = export.process(7)
    process.range("F3.0.0", 0, 100)
    process.range("F", 10, end)
    process.range("forward-compute", 20, end - 10)
    process.kernel(200, 210, at=5)
    process.kernel(220, 230, at=30)
    process.kernel(240, 250, at=95)
    process.range("Optimizer", 110, 200)
    process.range("Optimizer.step#AdamW.step", 120, 150)
    process.kernel(300, 310, at=130)
    process.kernel(320, 330, at=160)
    timeline = one(export, tmp_path)
    assert intervals(timeline) == [("F3.0.0", 200, 250), ("Optimizer", 300, 330)]
    assert timeline.tasks["microbatch"].to_list() == [3, None]
    assert codes(timeline) == {}


def test_a_step_marker_is_no_task_and_owns_no_work(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("iter_0_4", 0, 100)
    process.range("F0.0.0", 10, 50)
    process.kernel(200, 240, at=20)
    process.kernel(240, 250, at=70)
    timeline = one(export, tmp_path)
    assert intervals(timeline) == [("F0.0.0", 200, 240)]
    assert timeline.tasks["step"].to_list() == [4]
    assert codes(timeline) == {"kernels-outside-ranges": (1, 2)}


def test_a_collective_that_has_nothing_to_do_is_not_missed(tmp_path):
    """Frameworks mark them even where a group is of one rank."""
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 10, 50)
    process.range("F1.0.0", 60, 70)
    process.range("SEND_POST_VALIDATION.0.0.0", 80, 90)
    process.kernel(200, 240, at=20)
    assert codes(one(export, tmp_path)) == {"ranges-without-work": (1, 3)}


def test_a_range_left_open_holds_what_its_thread_does_until_its_next_compute_task(tmp_path):
    """A backward in between is of another kind, and one of its own kind says nothing new."""
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, None)
    process.range("F", 10, None)
    process.kernel(1000, 1010, at=5)
    process.kernel(1020, 1030, at=15)
    process.range("B0.0.0", 50, 90)
    process.kernel(1040, 1050, at=60)
    process.kernel(1060, 1070, at=95)
    timeline = one(export, tmp_path)
    assert intervals(timeline) == [("F0.0.0", 1000, 1030), ("B0.0.0", 1040, 1050)]
    assert codes(timeline)["kernels-outside-ranges"] == (1, 4)


def test_parts_of_layers_are_tasks_without_a_microbatch(tmp_path):
    """DeepSeek's overlapped forward and backward: each part is there once for each layer."""
    export = Export()
    process = export.process(7)
    parts = ["combine(B)", "attn(F)", "mlp(B)", "dispatch(F)", "mlp(W)", "mlp(F)", "attn(B)"]
    for index, name in enumerate(parts * 2):
        process.range(name, 100 * index, 100 * index + 50)
        process.kernel(5000 + 100 * index, 5090 + 100 * index, at=100 * index + 1)
    tasks = one(export, tmp_path).tasks
    counts = dict(tasks.group_by("kind").len().iter_rows())
    assert counts == {
        "forward": 4,
        "backward_input": 4,
        "backward_weight": 2,
        "collective": 4,
    }
    assert tasks["microbatch"].null_count() == tasks.height


def test_parts_of_layers_within_whole_passes_are_left_out(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("PP:(1F3;1B0)OVERLAP_F_B", 0, 100)
    process.range("attn forward", 10, 20)
    process.range("mlp backward", 30, 40)
    process.kernel(200, 210, at=15)
    process.kernel(220, 230, at=35)
    assert intervals(one(export, tmp_path)) == [("PP:(1F3;1B0)OVERLAP_F_B", 200, 230)]


def test_forwards_of_parts_alone_tell_no_pass(tmp_path):
    export = Export()
    process = export.process(7)
    for index, name in enumerate(["attn forward", "mlp forward"]):
        process.range(name, 100 * index, 100 * index + 50)
        process.kernel(1000 + 100 * index, 1050 + 100 * index, at=100 * index + 1)
    assert set(one(export, tmp_path).tasks["kind"]) == {"other"}


def test_steps_of_megatron_bridge_are_numbered_as_it_numbers_them(tmp_path):
    export = Export()
    process = export.process(7)
    for index, step in enumerate((40, 41)):
        at = 1000 * index
        process.range(f"megatron.bridge.training.train.train.training_step_{step}", at, at + 900)
        for offset, name in enumerate(("forward_step", "backward_step")):
            begin = at + 100 + 200 * offset
            process.range(f"megatron.core.pipeline_parallel.schedules.{name}", begin, begin + 100)
            process.kernel(5000 + begin, 5050 + begin, at=begin + 1)
        process.range(
            "megatron.bridge.training.train.train_step.optimizer_step", at + 600, at + 700
        )
        process.kernel(5600 + at, 5650 + at, at=at + 601)
    timeline = one(export, tmp_path)
    assert timeline.tasks.select("step", "kind").rows() == [
        (step, kind) for step in (40, 41) for kind in ("forward", "backward", "optimizer")
    ]
    assert "step" not in timeline.run.inferred


def test_start_end_ranges_belong_to_the_thread_that_started_them(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 100, kind="startend", end_thread=3)
    process.kernel(200, 210, at=90)
    process.range("F1.0.0", 110, 140, kind="startend", thread=1, end_thread=0)
    process.kernel(220, 230, at=120, thread=1)
    assert intervals(one(export, tmp_path)) == [("F0.0.0", 200, 210), ("F1.0.0", 220, 230)]


def test_marks_are_no_ranges(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 100)
    process.range("B9.0.0", 40, None, kind="mark")
    process.kernel(200, 210, at=50)
    assert intervals(one(export, tmp_path)) == [("F0.0.0", 200, 210)]


def test_a_range_left_open_ends_with_its_work_and_is_counted(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, None)  # never closed
    process.kernel(200, 210, at=10)
    process.range("F1.0.0", 50, 60)
    process.kernel(220, 230, at=55)
    process.kernel(240, 250, at=70)  # no longer F0: another task has begun since
    process.range("F2.0.0", 80, None)  # cut by the end of the capture
    process.kernel(260, 270, at=90)
    timeline = one(export, tmp_path)
    assert intervals(timeline) == [("F0.0.0", 200, 210), ("F1.0.0", 220, 230), ("F2.0.0", 260, 270)]
    assert codes(timeline)["open-ranges"] == (2, 3)
    assert codes(timeline)["kernels-outside-ranges"] == (1, 4)
    assert timeline.tasks["host_end_ns"].null_count() == 2


def test_help_from_another_thread_goes_to_the_thread_of_the_same_device(tmp_path):
    export = Export()
    process = export.process(7)
    for device in (0, 1):  # one process, two devices, a thread for each, both inside a task at once
        process.range(f"F{device}.0.0", 0, 30, thread=device)
        process.kernel(100 + device, 110, at=10, thread=device, device=device)
        process.range(f"B{device}.0.0", 40 + device, 90, thread=device)
        process.kernel(200 + device, 210, at=60, thread=5 + device, device=device)
    timeline = one(export, tmp_path)
    assert timeline.tasks.select("rank", "name", pl.col("start_ns") - UTC).rows() == [
        (0, "F0.0.0", 100),
        (0, "B0.0.0", 200),
        (1, "F1.0.0", 101),
        (1, "B1.0.0", 201),
    ]


def test_work_on_a_stray_device_does_not_make_a_rank(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 30)
    process.work("MEMCPY", 50, 60, at=1, device=3, bytes=8, copyKind=8)
    process.kernel(100, 110, at=10)
    process.kernel(120, 130, at=11)
    timeline = one(export, tmp_path)
    assert intervals(timeline) == [("F0.0.0", 100, 130)]
    assert codes(timeline)["work-on-other-device"] == (1, 3)


def test_what_cannot_be_matched_is_counted(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 30)
    process.kernel(100, 110, at=10)
    process.kernel(120, 130)  # its launch was before the capture
    process.kernel(140, 150, at=40)
    process.range("F1.0.0", 50, 60)  # launched nothing
    timeline = one(export, tmp_path)
    assert intervals(timeline) == [("F0.0.0", 100, 110)]
    assert codes(timeline) == {
        "kernels-without-launch": (1, 3),
        "kernels-outside-ranges": (1, 3),
        "ranges-without-work": (1, 2),
    }


def test_correlation_ids_are_each_process_own(tmp_path):
    export = Export()
    for pid, at in ((7, 0), (8, 1000)):
        process = export.process(pid, device=pid - 7)
        process.range("F0.0.0", at, at + 30)
        process.kernel(at + 100, at + 110, at=at + 1)
    assert intervals(one(export, tmp_path)) == [("F0.0.0", 100, 110), ("F0.0.0", 1100, 1110)]


def test_sparse_correlation_ids_cost_no_memory(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 30)
    process.kernel(100, 110, at=1)
    process.next_correlation = 2**31
    process.kernel(120, 130, at=2)
    process.next_correlation = 2**40
    process.kernel(140, 150, at=3)
    assert intervals(one(export, tmp_path)) == [("F0.0.0", 100, 150)]


def test_ranks_follow_host_device_and_process_when_no_name_tells(tmp_path):
    exports = []
    for host in ("node10", "node2"):
        export = Export(host)
        for pid, device in ((30, 1), (40, 0)):
            process = export.process(pid, device)
            process.range("F", 0, 30)
            process.kernel(100, 110, at=1)
        exports.append(export)
    ranks = sources.load(write(exports, tmp_path)).ranks
    assert ranks.select("rank", "host", "device", "process").rows() == [
        (0, "node2", 0, 40),
        (1, "node2", 1, 30),
        (2, "node10", 0, 40),
        (3, "node10", 1, 30),
    ]


def test_a_flush_of_weight_gradients_has_no_micro_batch(tmp_path):
    export = Export()
    process = export.process(7)
    for index, name in enumerate(["F0.0.0", "B0.0.0", "W_clear.0.0"]):
        process.range(name, 100 * index, 100 * index + 50)
        process.kernel(1000 + 100 * index, 1050 + 100 * index, at=100 * index + 1)
    tasks = one(export, tmp_path).tasks.sort("start_ns")
    assert tasks.select("kind", "microbatch", "chunk").rows() == [
        ("forward", 0, 0),
        ("backward_input", 0, 0),
        ("backward_weight", None, 0),
    ]


def test_constant_names_are_not_believed(tmp_path):
    export = Export()
    process = export.process(7)
    for index in range(4):
        process.range("F0.0.0", 100 * index, 100 * index + 50)
        process.kernel(1000 + 100 * index, 1050 + 100 * index, at=100 * index + 1)
    process.range("Optimizer", 400, 450)
    process.kernel(1400, 1450, at=401)
    timeline = one(export, tmp_path)
    assert timeline.tasks["microbatch"].null_count() == 5
    assert codes(timeline)["repeated-names"] == (4, 5)


def old(export: Export) -> Export:
    """Give an export the tables and columns of 2022."""
    export.renamed = {"META_DATA_EXPORT": "EXPORT_META_DATA"}
    export.dropped = {
        "TARGET_INFO_SESSION_START_TIME": {"systemClockNs"},
        "NVTX_EVENTS": {"domainId"},
    }
    return export


def test_exports_of_2022_with_their_empty_tables(tmp_path):
    [export], truth, _ = pipeline(Style())
    timeline = sources.load(old(export).write(tmp_path / "old.sqlite", empty_tables=True))
    assert compute(timeline) == truth.select(COLUMNS).rows()
    assert timeline.run.origins[0].version == "2026.2.1.210"


def test_exports_without_registered_strings(tmp_path):
    [export], truth, _ = pipeline(Style())
    export.dropped = {"NVTX_EVENTS": {"textId"}}
    assert (
        compute(sources.load(export.write(tmp_path / "a.sqlite"))) == truth.select(COLUMNS).rows()
    )


def test_normalised_times_are_utc_already(tmp_path):
    export = Export(normalized=True)
    process = export.process(7)
    process.range("F0.0.0", UTC, UTC + 50)
    process.kernel(UTC + 100, UTC + 110, at=UTC + 1)
    assert intervals(one(export, tmp_path)) == [("F0.0.0", 100, 110)]


def test_two_captures_of_one_host_share_its_monotonic_clock(tmp_path):
    exports = []
    for index, (utc, monotonic) in enumerate([(UTC, 5000), (UTC + 777, 6000)]):  # UTC stepped back
        export = Export(utc_ns=utc, monotonic_ns=monotonic)
        process = export.process(7 + index, index)
        process.range(f"F{index}.0.0", 0, 50)
        process.kernel(100, 110, at=1)
        exports.append(export)
    timeline = sources.load(write(exports, tmp_path))
    assert intervals(timeline) == [("F0.0.0", 100, 110), ("F1.0.0", 1100, 1110)]


def test_several_hosts_are_checked_or_taken_at_their_word_with_a_warning(tmp_path):
    exports, _, _ = pipeline(Style(hosts=2))
    paths = write(exports, tmp_path)
    assert "clocks-unchecked" in codes(sources.load(paths, clock="raw"))
    assert "clocks-unchecked" not in codes(sources.load(paths))
    [note] = sources.load(paths).run.notes
    assert note.code == "clocks-checked"


def test_an_export_without_absolute_time_says_so(tmp_path):
    export = Export(utc_ns=None)
    process = export.process(7)
    process.range("F0.0.0", 0, 50)
    process.kernel(100, 110, at=1)
    timeline = one(export, tmp_path)
    assert timeline.start_ns == 100
    assert "no-absolute-time" in codes(timeline)


def test_names_that_are_not_utf8_do_no_harm(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("F0.0.0", 0, 50)
    process.range("caf\u00e9", 60, 70)
    process.kernel(100, 110, at=1)
    path = export.write(tmp_path / "one.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE NVTX_EVENTS SET text = CAST(X'636166E9' AS TEXT) WHERE start = 60"
        )
    connection.close()
    assert intervals(sources.load(path)) == [("F0.0.0", 100, 110)]


def test_a_trace_without_pipeline_ranges_says_what_it_holds(tmp_path):
    export = Export()
    process = export.process(7, device=2)
    for index in range(3):
        process.range(f"layer_{index}", 10 * index, 10 * index + 5)
        process.kernel(100 + 10 * index, 105 + 10 * index, at=10 * index + 1)
    timeline = one(export, tmp_path)
    assert intervals(timeline) == [(f"layer_{i}", 100 + 10 * i, 105 + 10 * i) for i in range(3)]
    assert set(timeline.tasks["kind"]) == {"other"}
    assert set(codes(timeline)) == {"no-pipeline-ranges"}
    [content] = timeline.run.contents
    assert (content.host, content.process, content.devices) == ("node0", 7, (2,))
    assert content.counts == {"kernels": 3, "calls": 3, "ranges": 3}
    [shape] = content.names
    assert (shape.shape, shape.example, shape.count, shape.kind) == ("layer_#", "layer_0", 3, None)


def test_a_users_pattern_that_fits_nothing_known_is_an_error(tmp_path):
    export = Export()
    process = export.process(7)
    process.range("Q1", 0, 50)
    process.kernel(100, 110, at=1)
    with pytest.raises(NamesError, match="captured 'Q'"):
        one(export, tmp_path, names=r"(?P<kind>[A-Z])(?P<mb>\d)")


def test_a_report_beside_its_export_is_not_read_twice(tmp_path):
    [export], _, _ = pipeline(Style())
    export.write(tmp_path / "run.sqlite")
    (tmp_path / "run.nsys-rep").write_bytes(b"opaque")
    assert len(sources.load(tmp_path).run.origins) == 1


def test_a_report_needs_nsys_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    (tmp_path / "run.nsys-rep").write_bytes(b"opaque")
    with pytest.raises(
        SourceError, match=r"run\.nsys-rep: is an Nsight Systems report, which only"
    ):
        sources.load(tmp_path / "run.nsys-rep")


def fake_nsys(folder: Path, script: str) -> None:
    (folder / "nsys").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nsys").chmod(0o755)


def test_a_report_is_exported_with_the_users_nsys(tmp_path, monkeypatch):
    [export], truth, _ = pipeline(Style())
    prepared = export.write(tmp_path / "prepared.data")
    fake_nsys(
        tmp_path,
        f'for a in "$@"; do case "$a" in --output=*) cp "{prepared}" "${{a#--output=}}";; esac; done',
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "run.nsys-rep").write_bytes(b"opaque")
    timeline = sources.load(tmp_path / "run.nsys-rep")
    assert compute(timeline) == truth.select(COLUMNS).rows()
    assert timeline.run.origins[0].path.endswith("run.nsys-rep")


def test_a_report_that_nsys_cannot_export_passes_its_reason_on(tmp_path, monkeypatch):
    fake_nsys(tmp_path, "echo 'the file is from a newer version' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "run.nsys-rep").write_bytes(b"opaque")
    with pytest.raises(SourceError, match="nsys export`: the file is from a newer version"):
        sources.load(tmp_path / "run.nsys-rep")


@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 0.999])
def test_a_truncated_export_is_one_clear_error(tmp_path, share):
    [export], _, _ = pipeline(Style())
    path = export.write(tmp_path / "run.sqlite")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(SourceError, match=r"run\.sqlite: is cut short: it .* export it again"):
        sources.load(path)


def test_a_damaged_export_is_one_clear_error(tmp_path):
    [export], _, _ = pipeline(Style())
    path = export.write(tmp_path / "run.sqlite")
    data = bytearray(path.read_bytes())
    for page in range(4096, len(data), 4096):
        data[page : page + 8] = b"\xff" * 8
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"run\.sqlite: is a damaged SQLite file"):
        sources.load(path)


def test_an_empty_export_reads_as_empty(tmp_path):
    path = Export().write(tmp_path / "run.sqlite", empty_tables=True)
    timeline = sources.load(path)
    assert (len(timeline), timeline.ranks.height) == (0, 0)
    assert "no-device-work" in codes(timeline)


def test_two_copies_of_one_export_are_refused(tmp_path):
    [export], _, _ = pipeline(Style())
    export.write(tmp_path / "a.sqlite")
    export.write(tmp_path / "b.sqlite")
    with pytest.raises(
        SourceError, match=r"b\.sqlite: holds process 2000.*a\.sqlite: two traces of"
    ):
        sources.load(tmp_path)


def test_a_damaged_parquet_table_is_named(tmp_path):
    [export], _, _ = pipeline(Style())
    folder = export.write_parquet_dir(tmp_path / "run")
    (folder / "NVTX_EVENTS.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(SourceError, match=r"NVTX_EVENTS\.parquet: cannot be read"):
        sources.load(folder)


@needs_shared
@pytest.mark.parametrize(
    ("folder", "rate"), [("zb_2nodes", 3 / 19), ("1f1b_autograd_thread", 3 / 11)]
)
def test_shared_made_traces_give_their_makers_bubble_rate(folder, rate):
    bubbles = Report.of(sources.load(NSIGHT / "made" / folder)).bubbles
    assert bubbles.overall.makespan == pytest.approx(rate, abs=1e-12)
    assert [rates.makespan for rates in bubbles.per_step.values()] == pytest.approx([rate] * 3)


@needs_shared
@pytest.mark.parametrize(
    "path", sorted((NSIGHT / "real").glob("*.sqlite")), ids=lambda path: path.stem
)
def test_real_exports_read_and_are_counted_as_sql_counts_them(path):
    timeline = sources.load(path)
    passes = timeline.tasks["kind"].is_in(["forward", "backward"]).any()
    assert len(timeline)
    assert ("no-pipeline-ranges" in codes(timeline)) != passes
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    counted = connection.execute(
        "SELECT (globalPid >> 24) & 0xffffff, count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY 1"
    ).fetchall()
    connection.close()
    assert sorted(
        (content.process, content.counts["kernels"]) for content in timeline.run.contents
    ) == sorted(counted)


@needs_shared
def test_intervals_agree_with_the_zero_bubble_loader():
    """Sail's own script made `peer_nvtx.json` of the same files; on one host its times are right."""
    peer = json.loads((NSIGHT / "made" / "zb_2nodes" / "peer_nvtx.json").read_text())
    timeline = sources.load(NSIGHT / "made" / "zb_2nodes" / "node0.sqlite")
    kinds = {
        "F": "forward",
        "B": "backward_input",
        "W": "backward_weight",
        "Optimizer": "optimizer",
    }
    origin = min(event["start_time"] for event in peer[0])
    compared = 0
    for rank in range(4):
        theirs = sorted(
            (kinds[event["type"]], event["start_time"] - origin, event["end_time"] - origin)
            for event in peer[rank]
            if event["type"] in kinds
        )
        mine = timeline.tasks.filter(pl.col("rank") == rank, pl.col("lane") == "compute")
        ours = sorted(
            (kind, start - timeline.start_ns, end - timeline.start_ns)
            for kind, start, end in mine.select(
                pl.col("kind").cast(pl.String), "start_ns", "end_ns"
            ).rows()
        )
        assert ours == theirs
        compared += len(ours)
    assert compared == 4 * 3 * (3 * 16 + 1)
