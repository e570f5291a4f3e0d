"""Runs that were made one after the other lie in one folder, and are no ranks of one."""

from __future__ import annotations

import shutil

import polars as pl
import pytest

from bubblescope import sources
from bubblescope.analysis.rates import bubble_rates
from bubblescope.model.errors import SourceError
from kineto_maker import BASE, Trace

SECOND = 1_000_000_000


def run_of(folder, name, begins, *, process=77, step=0, comm=False, rank=None):
    """Write what a process recorded that states no rank, of a step that begins at some time."""
    trace = Trace(rank=rank, host="node0", base=BASE + begins)
    trace.range(f"ProfilerStep#{step}", 0, 40_000)
    trace.kernel(5_000, 30_000, at=1_000)
    if comm:
        trace.kernel(30_000, 35_000, at=2_000, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    for event in trace.events:
        if event["pid"] == 77:
            event["pid"] = process
    return trace.write(folder / name)


@pytest.mark.parametrize("apart", [11 * SECOND, 600 * SECOND])
def test_processes_that_ran_one_after_the_other_are_no_ranks(tmp_path, apart):
    for number in range(3):
        run_of(tmp_path, f"run{number}.json", number * apart, process=70 + number)
    with pytest.raises(SourceError, match=r"2 other traces, of processes that ran one after the"):
        sources.load(tmp_path)


@pytest.mark.parametrize(
    ("apart", "more"),
    [
        (0, {}),
        (2 * SECOND, {}),  # clocks of hosts may be so far apart
        (60 * SECOND, {"comm": True}),  # whoever communicates is not alone
    ],
)
def test_processes_that_may_have_run_together_are_ranks(tmp_path, apart, more):
    for number in range(2):
        run_of(tmp_path, f"run{number}.json", number * apart, process=70 + number, **more)
    assert sources.load(tmp_path).ranks["rank"].to_list() == [0, 1]


def test_ranks_that_are_stated_are_believed(tmp_path):
    for number in range(2):
        run_of(tmp_path, f"r{number}.json", number * 60 * SECOND, process=70 + number, rank=number)
    assert sources.load(tmp_path).ranks["rank"].to_list() == [0, 1]


@pytest.mark.parametrize("rank", [None, 0])
def test_two_profilers_of_one_process_that_count_alike_are_two_runs(tmp_path, rank):
    for number in range(2):
        run_of(tmp_path, f"run{number}.json", number * SECOND, step=4, rank=rank)
    with pytest.raises(SourceError, match=r"has step 4, and so has .*run0\.json"):
        sources.load(tmp_path)


def test_a_profiler_that_counts_on_is_one(tmp_path):
    for number in range(2):
        run_of(tmp_path, f"run{number}.json", number * SECOND, step=4 + number)
    timeline = sources.load(tmp_path)
    assert timeline.ranks["rank"].to_list() == [0]
    assert timeline.steps == [4, 5]


def test_a_copy_of_a_trace_is_no_other_rank(tmp_path):
    trace = run_of(tmp_path, "rank0.json", 0)
    shutil.copy(trace, tmp_path / "rank1.json")
    with pytest.raises(
        SourceError, match=r"rank1\.json: is a copy of .*rank0\.json.*give only one"
    ):
        sources.load(tmp_path)


def unmarked(folder, name, begins, rank, offsets=(0,)):
    """Write what a profiler recorded once or again and again, in kernels that nothing marks."""
    trace = Trace(rank=rank, host="node0", base=BASE + begins)
    for offset in offsets:
        for at in range(3):
            begun = offset + at * 100_000
            trace.kernel(begun + 5_000, begun + 80_000, at=begun + 1_000)
    return trace.write(folder / name)


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_profiler_recorded_again_and_again_without_marks_are_steps(tmp_path, ranks):
    for rank in range(ranks):
        for number in range(3):
            unmarked(tmp_path, f"r{rank}_{number}.json", number * SECOND, rank)
    timeline = sources.load(tmp_path)
    assert timeline.steps == [0, 1, 2]
    assert "each trace of a rank taken as one step" in timeline.run.inferred["step"]
    lengths = (
        timeline.step_times.select(length="end_ns").to_series() - timeline.step_times["start_ns"]
    )
    assert set(lengths) == {275_000}
    assert timeline.step_times["open"].all()
    assert timeline.budget["spent_ns"].sum() == ranks * 3 * 275_000


def test_windows_of_some_ranks_alone_are_not_numbered(tmp_path):
    for rank, number in ((0, 0), (0, 1), (1, 0)):
        unmarked(tmp_path, f"r{rank}_{number}.json", number * SECOND, rank)
    assert sources.load(tmp_path).steps == [0]


def twice_on(folder, name, begins, rank=0, *, times=2):
    """Write what a profiler recorded in kernels alone, in a trace that says when it was on."""
    trace = Trace(rank=rank, host="node0", base=BASE + begins)
    for window in range(times):
        begun = window * 5 * SECOND
        if times > 1:
            trace.event("Trace", f"PyTorch Profiler ({window})", begun, begun + 320_000, "Spans")
        for at in range(3):
            start = begun + at * 100_000
            trace.kernel(start + 5_000, start + 80_000, at=start + 1_000)
    return trace.write(folder / name)


@pytest.mark.parametrize("ranks", [1, 2])
def test_windows_of_several_traces_of_a_rank_are_steps_that_follow_one_another(tmp_path, ranks):
    for rank in range(ranks):
        for number in range(3):
            twice_on(tmp_path, f"r{rank}_{number}.json", number * 20 * SECOND, rank)
        twice_on(tmp_path, f"r{rank}_last.json", 60 * SECOND, rank, times=1)
    timeline = sources.load(tmp_path)
    assert timeline.steps == [*range(7)]
    begins = timeline.step_times.filter(rank=0).sort("step")["start_ns"]
    assert begins.is_sorted()
    assert begins.diff().drop_nulls().min() == 5 * SECOND
    assert timeline.step_times["open"].all()
    assert timeline.tasks.group_by("step").len()["len"].to_list() == [ranks] * 7
    assert timeline.budget["spent_ns"].sum() == ranks * 7 * 275_000
    assert "each time that the profiler was on" in timeline.run.inferred["step"]


def test_windows_of_which_ranks_have_not_as_many_are_refused(tmp_path):
    for rank, number in ((0, 0), (0, 1), (1, 0)):
        twice_on(tmp_path, f"r{rank}_{number}.json", number * 20 * SECOND, rank)
    with pytest.raises(SourceError, match="2 steps of one rank and 4 of another, which nothing"):
        sources.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "steps"), [("execute_model", [*range(6)]), ("iteration {}", None)]
)
def test_steps_that_each_trace_counts_by_itself_are_counted_on(tmp_path, name, steps):
    """Those that state their numbers say themselves that they are others."""
    for number in range(2):
        trace = Trace(rank=0, host="node0", base=BASE + number * 20 * SECOND)
        for at in range(3):
            start = at * 100_000
            trace.range(name.format(at), start, start + 90_000)
            trace.kernel(start + 5_000, start + 80_000, at=start + 1_000)
        trace.write(tmp_path / f"{number}.json")
    if steps is None:
        with pytest.raises(SourceError, match="has steps 0, 1, 2, and so has"):
            sources.load(tmp_path)
    else:
        assert sources.load(tmp_path).steps == steps


@pytest.mark.parametrize("on_device", [True, False])
def test_passes_of_several_traces_that_nothing_else_parts_are_a_step_each(tmp_path, on_device):
    """What lies between the traces is no idle time."""
    for number in range(3):
        trace = Trace(rank=0, host="node0", base=BASE + number * SECOND)
        for at, name in enumerate(("F", "B", "F", "B")):
            start = at * 100_000
            trace.range(name, start, start + 100_000)
            trace.operator("aten::mm", start, start + 100_000)
            if on_device:
                trace.kernel(start + 5_000, start + 100_000, at=start + 1_000)
        trace.write(tmp_path / f"r0_{number}.json")
    timeline = sources.load(tmp_path)
    assert timeline.steps == [0, 1, 2]
    assert "each trace of a rank taken as one step" in timeline.run.inferred["step"]
    length = timeline.tasks.group_by("step").agg(pl.col("end_ns").max() - pl.col("start_ns").min())
    assert length["end_ns"].max() == 400_000 - 5_000 * on_device
    assert bubble_rates(timeline).overall.makespan < 0.06
    assert timeline.budget["spent_ns"].sum() == on_device * 3 * 395_000


def windows(folder, begins, numbers, **more):
    """Write one trace of steps of 100 us, of which some were not recorded."""
    trace = Trace(rank=0, host="node0")
    for begun, number in zip(begins, numbers, strict=True):
        trace.range(f"ProfilerStep#{number}", begun, begun + 99_000)
        trace.kernel(begun + 5_000, begun + 80_000, at=begun + 1_000)
    for at in more.get("between", ()):
        trace.kernel(at + 5_000, at + 80_000, at=at)
    trace.write(folder / "rank0.json")
    return sources.load(folder)


STEPS = [0, 100_000, 5 * SECOND, 5 * SECOND + 100_000]


def test_what_a_profiler_left_out_is_no_idle_time(tmp_path):
    timeline = windows(tmp_path, STEPS, [3, 4, 8, 9])
    known = timeline.step_times.select(
        "step", "open", length=timeline.step_times["end_ns"] - timeline.step_times["start_ns"]
    )
    assert known.rows() == [
        (3, False, 100_000),
        (4, True, 75_000),
        (8, False, 100_000),
        (9, True, 75_000),
    ]
    assert timeline.budget["spent_ns"].sum() == 350_000


@pytest.mark.parametrize(
    ("numbers", "between"),
    [([3, 4, 5, 6], ()), ([3, 4, 8, 9], (2 * SECOND,))],  # nothing left out; recorded all along
)
def test_a_device_that_waits_between_steps_idles(tmp_path, numbers, between):
    timeline = windows(tmp_path, STEPS, numbers, between=between)
    assert timeline.budget["spent_ns"].sum() == STEPS[-1] + 75_000


def merged(folder, recorded, *, mark=None):
    """Write one trace of what a profiler recorded twice, 5 s apart, in kernels and perhaps marks."""
    trace = Trace(rank=0, host="node0")
    for window, begun in enumerate((0, 5 * SECOND)):
        if recorded:
            trace.event("Trace", f"PyTorch Profiler ({window})", begun, begun + 320_000, "Spans")
        for at in range(3):
            start = begun + at * 100_000
            trace.kernel(start + 5_000, start + 80_000, at=start + 1_000)
            if mark is not None:
                step = mark + 3 * window + at
                trace.range(f"ProfilerStep#{step}", start, start + 99_000)
    trace.write(folder / "rank0.json")
    return sources.load(folder)


def test_of_a_trace_that_says_when_its_profiler_was_on_each_time_is_a_step(tmp_path):
    timeline = merged(tmp_path, recorded=True)
    assert timeline.steps == [0, 1]
    assert "each time that the profiler was on" in timeline.run.inferred["step"]
    assert timeline.step_times["open"].all()
    assert timeline.tasks.select(pl.col("end_ns") - pl.col("start_ns")).to_series().max() == 275_000
    assert timeline.budget["spent_ns"].sum() == 2 * 275_000


def test_marks_that_count_on_while_the_profiler_was_off_leave_that_time_out(tmp_path):
    timeline = merged(tmp_path, recorded=True, mark=4)
    assert timeline.steps == [4, 5, 6, 7, 8, 9]
    assert timeline.step_times["open"].to_list() == [False, False, True] * 2
    assert timeline.budget["spent_ns"].sum() == 2 * 275_000


def listening(folder, **more):
    """Write one trace of kernels and operators that stops for 5 s, and what says more of that time."""
    trace = Trace(rank=0, host="node0")
    for begun in (0, 5 * SECOND):
        for at in range(100):
            start = begun + at * 1_000_000
            trace.operator("aten::mm", start, start + 600_000)
            trace.kernel(start + 5_000, start + 500_000, at=start + 1_000)
    if "span" in more:
        trace.event("Trace", "PyTorch Profiler (0)", 0, 5 * SECOND + 100_000_000, "Spans")
    if "around" in more:
        trace.range(more["around"], 0, 5 * SECOND + 100_000_000)
    for at in more.get("between", ()):
        trace.operator("aten::item", at, at + 1000)
    trace.write(folder / "rank0.json")
    return sources.load(folder).budget.group_by("use").agg(pl.col("spent_ns").sum())


def test_a_process_of_which_nothing_is_in_the_trace_for_long_may_not_have_been_recorded(tmp_path):
    """From the end of an operator that outlasts its kernel, to the next one, which then launches."""
    spent = dict(listening(tmp_path).iter_rows())
    assert spent["silent"] == 5 * SECOND - 99_600_000
    assert spent["host_operator"] == 100_000 + 1_000


@pytest.mark.parametrize(
    "more",
    [
        {"span": True},
        {"around": "epoch"},
        {"between": range(150_000_000, 5 * SECOND, 90_000_000)},
    ],
    ids=["states that it recorded", "was in a range", "did something now and then"],
)
def test_it_was_recorded_where_the_trace_says_so_or_shows_anything(tmp_path, more):
    spent = dict(listening(tmp_path, **more).iter_rows())
    assert "silent" not in spent
    assert spent["host_unknown"] > 4 * SECOND
