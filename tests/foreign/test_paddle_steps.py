"""PaddlePaddle's older logs, whose steps are NVTX ranges, and the helpers that jobs import."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bubblescope import sources
from bubblescope.cli import cli
from bubblescope.compat.paddle import job_schedule_profiler_range, switch_job_schedule_profiler
from bubblescope.sources.paddle_logs import step_times
from paddle_maker import MS, NS, codes, line, window, write


def push(name, ms, pid=22317):
    return f"{prefix(pid)}NVTX range push: {name}, time: {MS + ms:.6f}\n"


def pop(ms, pid=22317):
    return f"{prefix(pid)}NVTX range pop, time: {MS + ms:.6f}\n"


def prefix(pid):
    return f"I1101 16:02:11.845734 {pid} cuda_profiler.cc:55] "


def step(number, at, *, inside=(), pid=22317):
    """A step of 495 ms whose jobs take 480, and what else its thread logs before them."""
    return [
        push(number, at, pid),
        *inside,
        line("forward", 0, at + 10, at + 100, pid=pid),
        line("backward", 0, at + 100, at + 480, pid=pid),
        line("optimizer", 0, at + 480, at + 490, pid=pid),
        pop(at + 495, pid),
    ]


def step_row(folder, *options):
    done = CliRunner().invoke(cli, ["paddle", "--log_dir", str(folder), *options])
    assert done.exit_code == 0, done.output
    events = json.loads((folder / "pipeline_profile.json").read_text())["traceEvents"]
    row = [(event["name"], event["ph"], event["ts"]) for event in events if event["tid"] == "Step"]
    begins, ends = row[::2], row[1::2]
    return [
        (name, start / 1000 - MS, end / 1000 - MS)
        for (name, _, start), (_, _, end) in zip(begins, ends, strict=True)
    ]


def steps(folder):
    return sources.load(folder).tasks.sort("start_ns")["step"].to_list()


def test_a_step_lasts_as_long_as_its_range(tmp_path):
    write(tmp_path, *step(3, 0), *step(4, 500))
    assert steps(tmp_path) == [3, 3, 3, 4, 4, 4]
    assert step_row(tmp_path) == [("step3", 0, 495), ("step4", 500, 995)]


def test_over_all_workers_from_the_first_start_to_the_last_end(tmp_path):
    """And never before the step before has ended, as in Paddle's own tool."""
    write(tmp_path, *step(3, 0), *step(4, 500))
    write(tmp_path, *step(3, 20, pid=7), *step(4, 510, pid=7), name="workerlog.1")
    assert step_row(tmp_path) == [("step3", 0, 515), ("step4", 515, 1005)]


def test_ranges_of_operators_nest_in_it(tmp_path):
    """With `nvprof_enable_record_event` each operator is a range too; pops do not say of what."""
    inside = [push("matmul_v2", 1), push("phi::MatmulKernel", 2), pop(3), pop(4)]
    write(tmp_path, *step(3, 0, inside=inside), *step(4, 500, inside=inside))
    assert step_row(tmp_path) == [("step3", 0, 495), ("step4", 500, 995)]


def test_each_thread_nests_by_itself(tmp_path):
    """Another thread's range is open while this one's begins and ends."""
    other = [push("allreduce", 1, pid=99)]
    write(tmp_path, *step(3, 0, inside=other), pop(497, pid=99), *step(4, 500))
    assert step_row(tmp_path) == [("step3", 0, 495), ("step4", 500, 995)]


def test_pops_of_steps_before_the_first_are_of_no_range(tmp_path):
    """Paddle pops in every iteration before the last, and pushes from the first profiled on."""
    write(tmp_path, pop(-900), pop(-400), *step(2, 0))
    assert step_row(tmp_path) == [("step2", 0, 495)]


def test_a_killed_job_loses_the_end_of_its_last_step_only(tmp_path):
    write(tmp_path, *step(3, 0), *step(4, 500)[:-1])
    assert step_row(tmp_path) == [("step3", 0, 495), ("step4", 510, 990)]
    assert codes(sources.load(tmp_path))["open-steps"].lost == 1


def test_a_log_may_hold_both_forms(tmp_path):
    """The range stands around the very lines of its jobs; the other says where counting began."""
    write(tmp_path, window(7), *step(8, 0), *step(9, 500))
    assert steps(tmp_path) == [8, 8, 8, 9, 9, 9]


def test_steps_outside_of_all_ranges_count_on(tmp_path):
    jobs = [line("forward", 0, 1000, 1100), line("backward", 0, 1100, 1480)]
    write(tmp_path, *step(8, 0), *step(9, 500), *jobs)
    assert steps(tmp_path) == [8, 8, 8, 9, 9, 9, 10, 10]
    assert step_row(tmp_path)[2] == ("step10", 1000, 1480)


def test_of_several_runs_each_has_its_own_steps(tmp_path):
    write(tmp_path, *step(3, 0), *step(4, 500), *step(0, 9000, pid=4), *step(1, 9500, pid=4))
    assert steps(tmp_path) == [0, 0, 0, 1, 1, 1]
    assert step_row(tmp_path) == [("step0", 9000, 9495), ("step1", 9500, 9995)]
    assert step_row(tmp_path, "--run", "0") == [("step3", 0, 495), ("step4", 500, 995)]


@pytest.mark.parametrize("damage", ["time: 16977933", "push", "NVTX range ", "pop, time:"])
def test_a_damaged_line_harms_no_other(tmp_path, damage):
    text = "".join([*step(3, 0), *step(4, 500)])
    write(tmp_path, text.replace("push: 4, time", damage, 1))
    assert steps(tmp_path) == [3, 3, 3, 4, 4, 4]
    assert step_row(tmp_path)[0] == ("step3", 0, 495)


@given(st.lists(st.integers(0, 3), max_size=12), st.integers(0, 3))
def test_however_deep_ranges_nest(tmp_path_factory, depths, before):
    """Against a stack, walked event by event."""
    events, stack, truth, at = [pop(-10 + i) for i in range(before)], [], [], 0
    for number, depth in enumerate(depths):
        events.append(push(number, at := at + 1))
        stack.append((number, at))
        for _ in range(depth):
            events.append(push("op", at := at + 1))
            events.append(pop(at := at + 1))
        events.append(line("forward", 0, at + 1, at + 2))
        last, start = stack.pop()
        events.append(pop(at := at + 3))
        truth.append((f"step{last}", start, at))
    folder = tmp_path_factory.mktemp("logs")
    write(folder, *events, line("forward", 0, at + 10, at + 20) if not depths else "")
    assert step_row(folder)[: len(truth)] == (truth or [("step0", at + 10, at + 20)])[: len(truth)]


def test_nanoseconds_of_steps_are_exact(tmp_path):
    text = "".join(step(3, 0)).replace(f"{MS}.000000", f"{MS}.123456", 1)
    path = write(tmp_path, text)
    assert step_times([path]).rows() == [(0, 3, NS + 123_456, NS + 495_000_000)]


# In the job

NAMES = [
    {"start": 1, "end": 3},
    {"start": 1, "stop": 3},
    {"start_step": 1, "stop_step": 3},
]


@pytest.mark.parametrize("names", NAMES)
def test_the_range_takes_paddles_names_and_its_manuals(names):
    profiled = []
    for iteration in range(5):
        with job_schedule_profiler_range(iteration, exit_after_prof=False, **names) as on:
            profiled += [iteration] if on else []
    assert profiled == [1, 2]


@pytest.mark.parametrize("names", [{}, {"start": 1}, {"start": 1, "end": 2, "stop": 2}])
def test_a_range_without_an_end_or_with_two_is_refused(names):
    with pytest.raises(TypeError, match="give one of"):
        with job_schedule_profiler_range(0, **names):
            raise AssertionError


@pytest.mark.parametrize(("leave", "reached"), [(True, 3), (False, 5)])
def test_the_switch_profiles_its_window_and_leaves_after_it(capsys, leave, reached):
    """Paddle's own leaves before the last iteration of the window."""
    model = SimpleNamespace(_engine=SimpleNamespace(enable_job_schedule_profiler=None))
    states = []
    with pytest.raises(SystemExit) if leave else nullcontext() as left:
        for iteration in range(5):
            switch_job_schedule_profiler(model, iteration, 1, 3, exit_after_prof=leave)
            states.append(model._engine.enable_job_schedule_profiler)
    assert not leave or left.value.code is None
    assert states == [False, True, True, False, False][:reached]
    assert capsys.readouterr().err == "Schedule Profiler start at step 1 and end at step 3\n"


def test_a_switch_without_a_window_does_nothing(capsys):
    model = SimpleNamespace(_engine=SimpleNamespace(enable_job_schedule_profiler=True))
    for iteration in range(3):
        switch_job_schedule_profiler(model, iteration, -1, -1)
        assert model._engine.enable_job_schedule_profiler is False
    assert capsys.readouterr().err == ""
