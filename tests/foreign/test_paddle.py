"""PaddlePaddle's worker logs: tasks read from them, and the files of Paddle's own tool."""

from __future__ import annotations

import json
import shutil

import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bubblescope import sources
from bubblescope.cli import cli
from bubblescope.compat.paddle import job_schedule_profiler_range
from bubblescope.model.errors import BubblescopeError, SourceError
from nsight_maker import Style, solve
from paddle_maker import MS, NS, codes, line, window, write
from places import SHARED

DATA = SHARED / "paddle"


def pipeline(folder, style):
    """Write the logs of a made pipeline; return its true tasks."""
    plan = solve(style)
    makespan = max(tasks[-1][3] for tasks in plan.values())
    kinds = {"backward_input": "backward_b", "backward_weight": "backward_w"}
    truth = []
    for stage, tasks in plan.items():
        lines = [window(7)]
        for step in range(style.steps):
            origin = step * (makespan + 50)
            for kind, microbatch, start, end in tasks:
                name = kinds.get(kind.value, kind.value)
                low, high = origin + start, origin + end
                if kind.value == "forward":
                    lines.append(line("recv_forward", microbatch, low, low + 1, pid=stage))
                lines.append(line(name, microbatch, low, high, pid=stage))
                truth.append(
                    (stage, 7 + step, kind.value, microbatch, NS + low * 10**6, NS + high * 10**6)
                )
        write(folder, *lines, name=f"workerlog.{stage}")
    schema = ["rank", "step", "kind", "microbatch", "start_ns", "end_ns"]
    return pl.DataFrame(truth, schema=schema, orient="row")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_every_job_of_a_pipeline_is_read_exactly(tmp_path, schedule):
    truth = pipeline(tmp_path, Style(schedule=schedule))

    timeline = sources.load(tmp_path)

    found = timeline.tasks.filter(lane="compute").select(truth.columns)
    assert found.sort("rank", "start_ns").rows() == truth.sort("rank", "start_ns").rows()
    receives = timeline.tasks.filter(kind="recv_forward")
    assert receives.group_by("rank", "step").len()["len"].unique().to_list() == [8]
    assert timeline.ranks["stages"].to_list() == [[0], [1], [2], [3]]


def test_stages_are_unknown_rather_than_none_where_nothing_tells_them(tmp_path):
    write(tmp_path, line("lr", 0, 1, 2))

    timeline = sources.load(tmp_path)

    assert timeline.ranks["stages"].to_list() == [None]
    assert "stage" not in timeline.run.inferred


def test_nanoseconds_are_exact(tmp_path):
    text = line("forward", 0, 1, 2).replace(f"{MS + 1}.000000", f"{MS + 1}.234567")
    write(tmp_path, text)

    [task] = sources.load(tmp_path).tasks.to_dicts()

    assert task["start_ns"] == NS + 1_234_567


@pytest.mark.parametrize(
    ("kind", "meaning", "chunk"),
    [
        ("forward", "forward", None),
        ("forward1", "forward", 1),
        ("forward(chunk0)", "forward", 0),
        ("backward2", "backward", 2),
        ("backward_b0", "backward_input", 0),
        ("backward_w1", "backward_weight", 1),
        ("backward_w0_reduce", "backward_weight", 0),
        ("backward_w_reduce", "backward_weight", None),
        ("recv_forward1", "recv_forward", 1),
        ("send_backward0", "send_backward", 0),
        ("optimizer", "optimizer", None),
        ("lr", "other", None),
        ("default", "other", None),
    ],
)
def test_every_job_type_of_every_pass_is_known(tmp_path, kind, meaning, chunk):
    write(tmp_path, line(kind, 3, 5, 6))

    [task] = sources.load(tmp_path).tasks.to_dicts()

    assert (task["kind"], task["chunk"], task["name"]) == (meaning, chunk, f"{kind}_3")


def test_jobs_without_times_are_unknown_and_not_at_zero(tmp_path):
    write(
        tmp_path,
        line("recv_forward0", 0, None, None),
        line("forward0", 0, 5, 6),
        line("send_backward0", 0, None, None),
    )

    timeline = sources.load(tmp_path)

    assert timeline.tasks["kind"].to_list() == ["forward"]
    assert codes(timeline)["unknown-times"].lost == 2


def test_jobs_that_overlap_are_kept(tmp_path):
    """As in the one real log of October 2023, whose job numbers are not yet micro-batches."""
    write(tmp_path, line("forward", 2, 213, 254, job=3), line("forward", 3, 214, 219, job=4))

    tasks = sources.load(tmp_path).tasks

    assert tasks["microbatch"].to_list() == [2, 3]
    assert tasks["name"].to_list() == ["forward_3", "forward_4"]


def test_steps_begin_where_the_profiler_did(tmp_path):
    jobs = [
        line(kind, microbatch, 10 * step + at, 10 * step + at + 1)
        for step in range(3)
        for at, (kind, microbatch) in enumerate(
            [("recv_forward", 0), ("forward", 0), ("forward", 1), ("backward", 0), ("optimizer", 0)]
        )
    ]
    write(tmp_path, window(5), *jobs)

    steps = sources.load(tmp_path).tasks.sort("start_ns")["step"].to_list()

    assert steps == [5] * 5 + [6] * 5 + [7] * 5


def one_f_one_b(folder, workers, *, chunks=1, skip=()):
    """Write the logs of a pipeline in which micro-batch 0 passes the workers in turn, but for some."""
    for worker in range(workers):
        lines = []
        for chunk in range(chunks):
            stage, last = chunk * workers + worker, chunks * workers - 1
            name = f"(chunk{chunk})" if chunks > 1 else ""
            at = 10 * stage
            lines.append((at, line(f"forward{name}", 0, at, at + 8)))
            at = 10 * (2 * last + 1 - stage)
            lines.append((at, line(f"backward{name}", 0, at, at + 8)))
        if worker not in skip:
            write(folder, *(text for _, text in sorted(lines)), name=f"workerlog.{worker}")
    return folder


@pytest.mark.parametrize(
    ("chunks", "workers", "missing"),
    [(1, 4, {1}), (1, 4, {2}), (1, 4, {0}), (1, 5, {1, 3}), (1, 3, {1}), (2, 4, {1}), (2, 4, {0})],
)
def test_a_missing_log_does_not_shift_the_stages(tmp_path, chunks, workers, missing):
    whole = sources.load(one_f_one_b(tmp_path / "whole", workers, chunks=chunks))
    cut = sources.load(one_f_one_b(tmp_path / "cut", workers, chunks=chunks, skip=missing))
    columns = ["rank", "kind", "chunk", "stage", "start_ns"]
    assert whole.tasks["stage"].max() == workers * chunks - 1
    expected = whole.tasks.filter(~pl.col("rank").is_in(missing)).select(columns)
    assert cut.tasks.select(columns).equals(expected)
    assert f"{max(missing)}, without a log, counted as stages" in cut.run.inferred["stage"]
    assert "missing-ranks" in codes(cut)


def test_workers_evenly_apart_may_be_one_of_several_replicas(tmp_path):
    every = one_f_one_b(tmp_path / "whole", 4)
    for folder, names in (("second", (4, 5, 6, 7)), ("other", (0, 2, 4, 6))):
        for worker, number in enumerate(names):
            write(
                tmp_path / folder,
                (every / f"workerlog.{worker}").read_bytes().decode("latin-1"),
                name=f"workerlog.{number}",
            )
        run = sources.load(tmp_path / folder)
        stages = dict(run.tasks.select("rank", "stage").unique().iter_rows())
        assert stages == dict(zip(names, range(4), strict=True))
        assert "taken to be of other replicas" in run.run.inferred["stage"]


def test_one_log_of_a_later_worker_has_no_stage(tmp_path):
    every = one_f_one_b(tmp_path / "whole", 4)
    text = (every / "workerlog.2").read_bytes().decode("latin-1")
    run = sources.load(write(tmp_path / "one", text, name="workerlog.2"))
    assert run.tasks["stage"].null_count() == len(run)


def test_other_lines_bad_bytes_and_mixed_writes_do_no_harm(tmp_path):
    first, second, third = (line("forward", index, index, index + 1) for index in range(3))
    write(
        tmp_path,
        "caf\xe9 \xff\n",
        "no newline before this: ",
        first.rstrip("\n"),
        second,  # two writers, one line
        "Profiler Info: Job (oops\n",
        third.replace("I1020 09:15:07.265326 22317 standalone_executor.cc:217]", "x.cc]"),
    )

    timeline = sources.load(tmp_path)

    assert timeline.tasks["microbatch"].to_list() == [0, 1, 2]
    assert codes(timeline)["broken-lines"].lost == 1


def test_a_number_cut_short_is_never_taken_for_a_smaller_one(tmp_path):
    whole = line("forward", 0, 0, 1) + line("backward", 0, 1, 2)
    for cut in range(len(whole) - 2, len(whole) - 12, -1):
        write(tmp_path, whole[:cut])
        timeline = sources.load(tmp_path)
        assert timeline.tasks["kind"].to_list() == ["forward"]
        assert codes(timeline)["broken-lines"].lost == 1


def test_of_several_runs_the_last_is_read_unless_another_is_chosen(tmp_path):
    def pair(at, pid):
        return line("forward", 0, at, at + 1, pid=pid) + line(
            "backward", 0, at + 1, at + 2, pid=pid
        )

    again = line("forward", 1, 1002, 1003, pid=22)
    write(
        tmp_path, window(2), pair(0, 11), window(2), pair(1000, 22), again, window(50), pair(9, 22)
    )

    assert sources.load(tmp_path).steps == [50]
    assert "3 runs" in codes(sources.load(tmp_path))["several-runs"].message
    assert [len(sources.load(tmp_path, run=run)) for run in range(3)] == [2, 3, 2]
    with pytest.raises(SourceError, match="no run 3: it holds 3"):
        sources.load(tmp_path, run=3)


def test_machines_are_in_the_order_of_their_numbers(tmp_path):
    for machine in (0, 2, 10):
        for worker in (0, 1):
            text = line("forward", 0, machine + worker / 8, machine + 1)
            write(tmp_path, text, name=f"machine{machine}/workerlog.{worker}")

    timeline = sources.load(tmp_path)

    assert timeline.ranks.select("rank", "host", "device").rows() == [
        (0, "machine0", 0),
        (1, "machine0", 1),
        (4, "machine2", 0),
        (5, "machine2", 1),
        (20, "machine10", 0),
        (21, "machine10", 1),
    ]
    assert {"clocks-unchecked", "missing-ranks"} <= set(codes(timeline))


def test_a_log_given_as_two_workers_is_refused(tmp_path):
    """A link to it is meant so, and workers that were not timed may well write the same."""
    for start, workers in ((None, (0, 1)), (0, (2,)), (1, (3,))):
        for worker in workers:
            times = (start, None) if start is None else (start, start + 1)
            write(tmp_path, line("forward", 0, *times), name=f"workerlog.{worker}")
    (tmp_path / "workerlog.4").symlink_to("workerlog.3")
    assert sources.load(tmp_path).ranks["rank"].to_list() == [0, 1, 2, 3, 4]
    shutil.copy(tmp_path / "workerlog.3", tmp_path / "workerlog.5")
    with pytest.raises(
        SourceError, match=r"workerlog\.5: is a copy of .*workerlog\.3.*give only one"
    ):
        sources.load(tmp_path)


def test_two_logs_of_one_worker_are_refused(tmp_path):
    for folder in ("a", "b"):
        write(tmp_path, line("forward", 0, 0, 1), name=f"{folder}/workerlog.0")
    with pytest.raises(SourceError, match="is of rank 0, and so is"):
        sources.load(tmp_path)


@pytest.mark.parametrize(
    ("start", "end", "code"),
    [(9, 5, "impossible-times"), (0, 10**9, "impossible-times")],
)
def test_times_that_cannot_be_are_dropped(tmp_path, start, end, code):
    write(
        tmp_path, *[line("forward", index, 1, 2) for index in range(3)], line("lr", 0, start, end)
    )

    timeline = sources.load(tmp_path)

    assert len(timeline) == 3
    assert codes(timeline)[code].lost == 1


def test_a_clock_in_another_unit_is_told(tmp_path):
    write(tmp_path, line("forward", 0, 0, 0.5).replace(str(MS), str(MS)[:-3]))

    assert "implausible-clock" in codes(sources.load(tmp_path))


def test_a_log_without_jobs_says_how_to_get_them(tmp_path):
    write(tmp_path, "hello\n")

    timeline = sources.load(tmp_path)

    assert not len(timeline)
    assert "job_schedule_profiler_start" in codes(timeline)["no-pipeline-ranges"].message


def record(name, phase, ms, row=2):
    return json.dumps(
        {"name": name, "cat": "pipeline timeline", "ph": phase, "pid": 0, "tid": row, "ts": MS + ms}
    )


def test_dygraph_records_are_in_milliseconds_though_they_say_microseconds(tmp_path):
    marks = [
        ("F0", 0, 20),
        ("F1", 20, 40),
        ("B0", 50, 90),
        ("B1", 90, 130),
        ("F0", 200, 220),
        ("B0", 220, 260),
    ]
    lines = [
        record(name, phase, ms) + "\n"
        for name, start, end in marks
        for phase, ms in (("B", start), ("E", end))
    ]
    write(tmp_path, *lines, "{torn", name="profile_record_tmp_file_for_rank_5")

    timeline = sources.load(tmp_path)

    columns = ["rank", "stage", "step", "kind", "microbatch", "start_ns", "end_ns"]
    assert timeline.tasks.select(columns).rows()[2] == (
        5,
        1,
        0,
        "backward",
        0,
        NS + 50_000_000,
        NS + 90_000_000,
    )
    assert timeline.tasks["step"].to_list() == [0, 0, 0, 0, 1, 1]
    assert codes(timeline)["broken-lines"].lost == 1
    assert "coarse-times" in codes(timeline)


# The drop-in command.


def run(*arguments):
    return CliRunner().invoke(cli, ["paddle", *map(str, arguments)], catch_exceptions=False)


def made(folder):
    files = ("pipeline_profile.json", "pipeline_profile_perfetto.json")
    return [json.loads((folder / name).read_text())["traceEvents"] for name in files]


@pytest.mark.skipif(not DATA.exists(), reason="the reference files are not here")
def test_the_files_equal_those_of_paddles_own_script(tmp_path):
    for log in (DATA / "1f1b").glob("workerlog.*"):
        shutil.copy(log, tmp_path)

    assert run("--devices", "0,1,2,3", "--log_dir", tmp_path).exit_code == 0

    assert made(tmp_path) == made(DATA / "1f1b")


def test_rows_of_devices_and_machines_are_named_and_numbered_alike(tmp_path):
    """The original leaves rows of other devices than 0, 1, ... and of one machine unnumbered."""
    for worker in (4, 5):
        write(tmp_path, line("forward", 0, 0, worker), name=f"machine3/workerlog.{worker}")

    run("--devices", "4,5", "--log_dir", tmp_path, "--multi_machine")

    chrome, perfetto = made(tmp_path)
    rows = ["GPU4(machine:3)", "GPU5(machine:3)", "Step"]
    assert sorted({event["tid"] for event in chrome}) == rows
    assert {event["tid"] for event in perfetto} == {2333, 2334, 2335}
    labels = {event["tid"]: event["args"]["name"] for event in perfetto if event["ph"] == "M"}
    assert labels == {2333: "STEP", 2334: "GPU:4(machine:3)", 2335: "GPU:5(machine:3)"}


def test_every_pass_has_its_colour_and_unknown_times_no_row(tmp_path):
    write(
        tmp_path,
        line("recv_forward0", 0, None, None),
        line("forward0", 0, 0, 1),
        line("backward_b0", 0, 1, 2),
        line("backward_w0_reduce", 0, 2, 3),
    )

    run("--log_dir", tmp_path)

    chrome, _ = made(tmp_path)
    assert [(event["cat"], event["cname"]) for event in chrome if event["ph"] == "B"] == [
        ("forward0", "thread_state_running"),
        ("backward_b0", "rail_idle"),
        ("backward_w0_reduce", "rail_animation"),
        ("step", "thread_state_unknown"),
    ]
    [begin, end] = [event["ts"] for event in chrome if event["cat"] == "step"]
    assert (begin, end) == (MS * 1000.0, (MS + 3) * 1000.0)


def test_the_command_says_what_is_wrong(tmp_path):
    def refused(*arguments):
        with pytest.raises(BubblescopeError) as caught:
            run(*arguments)
        return str(caught.value)

    assert "not a folder" in refused("--log_dir", tmp_path / "nowhere")
    assert "no workerlog.N" in refused("--log_dir", tmp_path)
    assert "no folders machine0" in refused("--log_dir", tmp_path, "--multi_machine")
    assert "workerlog.7" in refused("--log_dir", tmp_path, "--devices", "7")
    assert run("--log_dir", tmp_path, "--devices", "a").exit_code == 2
    write(tmp_path, "nothing\n")
    assert run("--log_dir", tmp_path).exit_code == 3


# The helper inside the job.


@pytest.mark.parametrize(
    ("start", "stop", "leave", "reached", "profiled"),
    [
        (0, 2, True, 2, [0, 1]),
        (1, 3, True, 3, [1, 2]),
        (1, 3, False, 5, [1, 2]),
        (2, 2, True, 5, []),
        (3, 1, True, 5, []),
    ],
)
def test_the_profiler_range_profiles_its_window_and_leaves(start, stop, leave, reached, profiled):
    seen, chosen, code = 0, [], "stayed"
    try:
        for iteration in range(5):
            with job_schedule_profiler_range(iteration, start, stop, leave) as profiling:
                seen += 1
                if profiling:
                    chosen.append(iteration)
    except SystemExit as left:
        code = left.code
    assert (seen, chosen) == (reached, profiled)
    assert code == (None if leave and start < stop else "stayed")


def test_the_profiler_range_never_swallows_an_exception():
    with pytest.raises(RuntimeError, match="diverged"):
        with job_schedule_profiler_range(1, 0, 2):
            raise RuntimeError("diverged")


# Damage.

SOUND = "".join(
    [window(3)]
    + [
        line(kind, microbatch, 10 * index, 10 * index + 9)
        for index, (kind, microbatch) in enumerate(
            [("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1), ("optimizer", 0)]
        )
    ]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


def facts(folder, data):
    (folder / "workerlog.0").write_bytes(data)
    try:
        timeline = sources.load(folder)
    except BubblescopeError as error:
        message = str(error)
    else:
        columns = ["kind", "microbatch", "start_ns", "end_ns"]
        return set(timeline.tasks.select(columns).rows())
    assert "\n" not in message
    return set()


@given(low=st.integers(0, len(SOUND)), high=st.integers(0, len(SOUND)))
def test_a_cut_log_never_gives_other_numbers(folder, low, high):
    low, high = sorted((low, high))
    known = facts(folder, SOUND.encode())
    assert facts(folder, SOUND[:low].encode()) <= known
    assert facts(folder, SOUND[high:].encode()) <= known


@given(at=st.integers(0, len(SOUND) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_costs_no_more_than_its_job(folder, at, byte):
    data = bytearray(SOUND.encode())
    data[at] = byte
    assert len(facts(folder, SOUND.encode()) & facts(folder, bytes(data))) >= 4


@given(st.sets(st.integers(0, 5), min_size=1))
def test_doubled_lines_count_once(folder, doubled):
    lines = SOUND.splitlines(keepends=True)
    text = "".join(line * (1 + (index in doubled)) for index, line in enumerate(lines))
    (folder / "workerlog.0").write_text(text)
    timeline = sources.load(folder)
    assert len(timeline) == 5
    if doubled - {0}:
        assert codes(timeline)["repeated-lines"].lost == len(doubled - {0})


@given(st.permutations(SOUND.splitlines(keepends=True)))
def test_the_order_of_lines_does_not_change_the_times(folder, lines):
    assert facts(folder, "".join(lines).encode()) == facts(folder, SOUND.encode())
