"""Watching a recording while it is written: what is read, and what is shown of it."""

from __future__ import annotations

import errno
import io
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from polars.testing import assert_frame_equal
from rich.console import Console

from bubblescope import sources
from bubblescope.analysis.live import RunningJob
from bubblescope.analysis.pipeline_phase import cut_steps
from bubblescope.analysis.rates import bubble_rates
from bubblescope.analysis.study import study
from bubblescope.analysis.wall_clock import wall_clock
from bubblescope.cli import cli
from bubblescope.record import Recorder
from bubblescope.recording import file as sink
from bubblescope.recording import follow as tail
from bubblescope.recording.columns import SPOILED, Header
from bubblescope.recording.file import Sink
from bubblescope.recording.follow import Tail
from bubblescope.recording.rows import FIELDS, UNKNOWN
from bubblescope.render.text.watch import lines_above, picture, whole_line
from bubblescope.schedules import SCHEDULES, generate
from bubblescope.schedules.simulate import Costs, simulate
from recorded_rows import recorded

SECOND = 1_000_000_000


def header(rank=0, **facts):
    told = {"format": 1, "version": "1", "stages": [rank], "host": "here", "process": 7}
    told |= {"device": 0, "boot": "boot", "utc_ns": 0, "timer": "cpu"}
    return Header(**told | {"rank": rank} | facts)


def tasks(*rows, **constant):
    """Return tasks of a recording from (step, start_ns, end_ns)."""
    step, start_ns, end_ns = zip(*rows, strict=True)
    return recorded(len(rows), step=step, start_ns=start_ns, end_ns=end_ns, **constant)


def step(number, busy_s=(0, 1), **constant):
    """Return a step of 2 s that is busy from the one second to the other."""
    start, end = (int((2 * number + at) * SECOND) for at in busy_s)
    middle = (start + end) // 2
    return tasks((number, start, middle), (number, middle, end), **constant)


def path(folder, rank=0):
    return folder / f"rank{rank:05d}.bubbles"


class Watch:
    """Follows a folder as the command does."""

    def __init__(self, folder):
        self.tail, self.progress, self.folder = Tail(folder), RunningJob(), folder

    def look(self):
        self.news = self.tail.news()
        self.progress.update(self.news, self.tail)
        return self.progress.figures()

    def shown(self, room=32, width=200):
        out = io.StringIO()
        Console(file=out, width=width, color_system=None).print(
            picture(self.folder, self.look(), room)
        )
        return out.getvalue()


def test_figures_are_those_of_the_report(tmp_path):
    def rank(number):
        with Recorder(tmp_path, rank=number, stages=[number, 3 - number]) as recorder:
            for _ in range(5):
                barrier.wait()
                with recorder.step():
                    barrier.wait()  # steps of one number overlap, however busy the machine is
                    for chunk in (0, 1):
                        with recorder.task("forward", microbatch=0, chunk=chunk):
                            time.sleep(0.002 * (1 + number))
                        with recorder.task("recv_forward", microbatch=0, peer=1 - number):
                            time.sleep(0.003)
                        with recorder.task("backward", microbatch=0, chunk=chunk):
                            time.sleep(0.004)

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    figures = Watch(tmp_path).look()
    run = sources.load(tmp_path)
    bubbles = bubble_rates(run)
    assert figures.steps == [0, 1, 2, 3, 4]
    assert figures.definition == "makespan"
    assert figures.rate == pytest.approx(bubbles.overall.makespan)
    for row in figures.ranks.to_dicts():
        assert row["idle"] == pytest.approx(bubbles.per_rank[row["rank"]].makespan)
        assert row["busy_ns"] == pytest.approx(bubbles.per_rank[row["rank"]].busy_ns / 5)
    work = run.tasks.filter(lane="compute")
    busy = work.group_by("stage").agg((pl.col("end_ns") - pl.col("start_ns")).sum() / 5)
    assert dict(figures.stages.iter_rows()) == pytest.approx(dict(busy.iter_rows()))
    assert figures.stages["busy_ns"].is_sorted(descending=True)
    assert figures.closed == {0, 1}
    assert figures.last_ns == pytest.approx(time.time_ns(), abs=60 * SECOND)


_LANES = {"data": "host", "other": "host", "recv_backward": "comm"}


def in_pieces(folder, ranks=2, steps=14):
    """Write a job's steps in pieces, some ranks later than others; yield after each.

    A step is data, a forward, a receive, a backward, a checkpoint on every third, code that is not
    recorded, and the optimizer; the second step of rank 1 fails first.
    """
    files = [Sink(path(folder, rank), header(rank)) for rank in range(ranks)]
    for number in range(steps):
        for rank, written in enumerate(files):
            at, rows = number * 100 + rank, []
            if (number, rank) == (1, 1):
                rows += [("forward", 2, 1, None), ("other", 1, 0, SPOILED)]
            rows += [("data", 10 * (2 - rank), 0, None), ("forward", 20, 0, None)]
            rows += [("recv_backward", 5 + rank, 0, None), ("backward", 30, 0, None)]
            rows += [("other", 7, 0, "checkpoint")] * (number % 3 == 0) + [
                ("optimizer", 3, 2, None)
            ]
            tasks = []
            for kind, length, before, name in rows:
                at += before
                tasks.append((kind, at, at + length, name))
                at += length
            kinds, starts, ends, names = zip(*tasks, strict=True)
            for half in (slice(0, 3), slice(3, None)):
                count = len(kinds[half])
                written.write(
                    recorded(
                        count,
                        kind=kinds[half],
                        lane=[_LANES.get(kind, "compute") for kind in kinds[half]],
                        step=number,
                        microbatch=0,
                        start_ns=[int(s * SECOND / 100) for s in starts[half]],
                        end_ns=[int(s * SECOND / 100) for s in ends[half]],
                        host_start_ns=[int(s * SECOND / 100) for s in starts[half]],
                        name=names[half],
                    )
                )
                yield
    for written in files:
        written.close(complete=True)


def test_whole_steps_are_those_of_the_report(tmp_path):
    """However the tasks come: what ranks were in, to the nanosecond, and the pipeline phase of it."""
    watch = Watch(tmp_path)
    for _ in in_pieces(tmp_path):
        figures = watch.look()
    figures = watch.look()
    run = sources.load(tmp_path)
    told = wall_clock(run, study(run).ledger)
    assert figures.whole.numbers == list(range(3, 13))  # the last ten of which the next has begun
    steps = told.steps.filter(pl.col("step") >= 3)
    found = figures.whole.steps.sort("rank", "step")
    assert found.height == steps.height == 20
    assert (found["length_ns"] == steps["end_ns"] - steps["start_ns"]).all()
    table = told.table.filter(pl.col("step") >= 3)
    key = ["rank", "step", "what"]
    assert_frame_equal(figures.whole.spent.sort(key), table.drop("phase_ns").sort(key))
    phases = table.group_by("rank", "step").agg(pl.col("phase_ns").sum()).sort("rank", "step")
    assert found["phase_ns"].to_list() == phases["phase_ns"].to_list()
    sums = figures.whole.spent.group_by("rank", "step").agg(pl.col("spent_ns").sum())
    both = found.join(sums, on=["rank", "step"])
    assert (both["length_ns"] == both["spent_ns"]).all()
    [data] = figures.whole.shares().filter(what="data loading").to_dicts()
    assert (data["rank"], data["most_ns"], data["mean_ns"]) == (0, 0.2 * SECOND, 0.15 * SECOND)


def test_rounds_of_a_step_are_measured_as_in_the_report(tmp_path):
    """Of two ranks that accumulate gradients in three rounds; between these, one loads data."""
    watch = Watch(tmp_path)
    files = [Sink(path(tmp_path, rank), header(rank, microbatches=1)) for rank in range(2)]
    for number in range(14):
        for rank, written in enumerate(files):
            for turn in range(3):
                at = 100 * number + 20 * turn
                passes = [at, at + 9] if rank == 0 else [at + 3, at + 6]
                starts = np.array([*passes, at + 12])
                ends = starts + np.array([3, 3, 7])
                written.write(
                    recorded(
                        3,
                        kind=["forward", "backward", "data"],
                        lane=["compute", "compute", "host"],
                        step=number,
                        microbatch=[turn, turn, -1],
                        start_ns=starts * SECOND,
                        end_ns=ends * SECOND,
                    )
                )
                watch.look()
    for written in files:
        written.close(complete=True)
    figures, run = watch.look(), sources.load(tmp_path)
    known = study(run)
    assert figures.rate == known.bubbles.overall.makespan == 0.5
    assert figures.ranks["idle"].to_list() == [0.5, 0.5]
    told = wall_clock(run, known.ledger)
    phases = told.table.group_by("rank", "step").agg(pl.col("phase_ns").sum()).sort("rank", "step")
    found = figures.whole.steps.sort("rank", "step")
    expected = phases.filter(pl.col("step") >= 3)
    assert found["phase_ns"].to_list() == expected["phase_ns"].to_list()
    assert expected["phase_ns"].to_list()[:2] == [36 * SECOND, 36 * SECOND]


@pytest.mark.parametrize("name", ["1f1b", "dualpipev"])
def test_steps_that_lack_passes_are_left_out_as_in_the_report(tmp_path, name):
    """One lacks a micro-batch's backwards on one rank; the last has only begun."""
    ranks, steps = 2, 6
    chunks = 2 if SCHEDULES[name].any_chunks else None
    plan = generate(name, ranks, 4, chunks=chunks)
    run = simulate(plan, Costs(10_000_000, 11_000_000, 9_000_000), steps=steps)
    at = (pl.col("step") == 3) & (pl.col("rank") == 1)
    lost = at & (pl.col("kind") == "backward") & (pl.col("microbatch") == 1)
    half = at & (pl.col("pair_microbatch") == 1)  # of an overlapped forward and backward
    ends = run.tasks.filter(step=steps - 1)["end_ns"].median()
    begun = (pl.col("step") == steps - 1) & (pl.col("end_ns") > ends)
    kind = pl.when(half).then(pl.lit("forward")).otherwise(pl.col("kind").cast(pl.String))
    pair = pl.when(~half.fill_null(value=False)).then(pl.col("^pair_.*$"))
    rows = run.tasks.filter(~lost.fill_null(value=False), ~begun)
    rows = rows.with_columns(pair, kind=kind)
    watch, stages = Watch(tmp_path), run.ranks["stages"].to_list()
    files = [Sink(path(tmp_path, at), header(at, stages=stages[at])) for at in range(ranks)]
    for number, rank in itertools.product(range(steps), range(ranks)):
        part = rows.filter(rank=rank, step=number)
        numbers = [name for name in FIELDS if name not in {"stage", "pair_stage"}]
        held = {name: part[name].fill_null(UNKNOWN).to_numpy() for name in numbers}
        times = {name: part[name].to_numpy() for name in ("start_ns", "end_ns")}
        kinds, lanes = (part[name].cast(pl.String).to_list() for name in ("kind", "lane"))
        files[rank].write(recorded(part.height, kind=kinds, lane=lanes, **held, **times))
        watch.look()
    for file in files:
        file.close(complete=True)
    figures, read = watch.look(), sources.load(tmp_path)
    assert cut_steps(read.tasks) == [3, 5]
    assert figures.rate == pytest.approx(bubble_rates(read).overall.makespan)
    assert (figures.steps, figures.whole.numbers) == ([0, 1, 2, 4], [0, 1, 2, 4])
    said = "step 3 left out: lacks forwards or backwards that others have"
    assert said in " ".join(watch.shown().split())


def test_a_step_stays_what_it_was_though_its_last_task_runs_on(tmp_path):
    """Of a device, for the host fetches the next step's data before the last backward has ended."""
    watch, written = Watch(tmp_path), Sink(path(tmp_path), header())
    for at in range(0, 60, 10):
        held = {"kind": ["data", "forward", "backward"], "lane": ["host", "compute", "compute"]}
        times = {"start_ns": [at - 4, at, at + 4], "end_ns": [at - 3, at + 4, at + 10]}
        times = {name: 100 * SECOND + SECOND * np.array(value) for name, value in times.items()}
        written.write(recorded(3, **held, step=at // 10, microbatch=[-1, 0, 0], **times))
        assert watch.look().rate == 0
    assert watch.progress._steps["busy_ns"].unique().to_list() == [10 * SECOND]


def test_whole_steps_are_shown(tmp_path):
    watch = Watch(tmp_path)
    pieces = in_pieces(tmp_path, steps=8)
    next(pieces)
    assert "whole step" not in watch.shown()  # nobody knows yet when the first one ends
    for _ in pieces:
        watch.look()
    shown = " ".join(watch.shown().split())
    assert "step 6 share 7 steps share most on rank" in shown
    assert "forward and backward 500.0 ms 50.00 % 501.4 ms 50.14 % 1: 502.9 ms" in shown
    assert "data loading 150.0 ms 15.00 % 150.0 ms 15.00 % 0: 200.0 ms" in shown
    assert "checkpoint 70.00 ms 7.00 % 30.00 ms 3.00 % 0: 30.00 ms" in shown
    assert "the whole step 1.000 s" in shown
    assert re.search(r"of it pipeline phase 6\d\d\.\d ms", shown)
    line = " ".join(str(whole_line(watch.look().whole)).split())
    assert line.startswith("whole step 1.000 s, step 6: forward and backward 50.00 %, in no task")
    count = len(watch.shown(room=2).splitlines())
    assert count <= lines_above(watch.look()) + 2


def test_steps_that_do_not_follow_each_other_are_not_whole(tmp_path):
    written = Sink(path(tmp_path), header())
    for number in (0, 1, 5):
        written.write(step(number))
    assert Watch(tmp_path).look().whole.numbers == [0]


def test_ranks_of_several_hosts_are_measured_each_on_its_own_clock(tmp_path):
    for rank, host in enumerate(("a", "b")):
        written = Sink(path(tmp_path, rank), header(rank, host=host, utc_ns=rank * 1000 * SECOND))
        written.write(tasks((0, 0, 3), (0, 7, 10)))
        written.close(complete=True)
    figures = Watch(tmp_path).look()
    assert (figures.definition, figures.rate) == ("span", pytest.approx(0.4))


def test_only_what_is_new_is_read(tmp_path, monkeypatch):
    written = Sink(path(tmp_path), header())
    watch = Watch(tmp_path)
    watch.look()
    read = 0
    pread = os.pread

    def counting(file, length, at):
        nonlocal read
        data = pread(file, length, at)
        read += len(data)
        return data

    monkeypatch.setattr(tail.os, "pread", counting)
    for number in range(30):
        written.write(step(number))
        size = path(tmp_path).stat().st_size
        read = 0
        figures = watch.look()
        assert figures.last_step == number
        assert read < 8000 < size or number < 5
        read = 0
        watch.look()
        assert read == 0
        assert watch.news == []
    assert figures.steps == list(range(20, 30))
    assert figures.period_ns == 2 * SECOND
    written.close(complete=True)
    assert watch.look().closed == {0}


def test_half_a_message_is_left_until_it_is_whole(tmp_path):
    whole = tmp_path / "whole"
    written = Sink(path(whole), header())
    for number in range(3):
        written.write(step(number))
    written.close(complete=True)
    data = path(whole).read_bytes()
    (tmp_path / "job").mkdir()
    watch = Watch(tmp_path / "job")
    seen = []
    with path(tmp_path / "job").open("wb") as file:
        for at in range(0, len(data), 97):
            file.write(data[at : at + 97])
            file.flush()
            figures = watch.look()
            assert not figures.problems
            seen += [one.tasks for one in watch.news]
    assert pl.concat(seen)["start_ns"].to_list() == [
        int(s * SECOND / 2) for s in (0, 1, 4, 5, 8, 9)
    ]
    assert (figures.last_step, figures.closed) == (2, {0})


@pytest.mark.parametrize("links", [True, False])
def test_files_that_are_put_aside_lose_no_task(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(sink, "_linked", lambda *_: False)
    watch = Watch(tmp_path)
    seen = []
    written = Sink(path(tmp_path), header(), 80_000)
    for number in range(400):
        written.write(step(number))
        if number % 7 == 0:
            figures = watch.look()
            assert not figures.problems
            seen += [one.tasks for one in watch.news]
    assert sink.older(path(tmp_path)).exists()
    written.close(complete=True)
    figures = watch.look()
    seen += [one.tasks for one in watch.news]
    assert pl.concat(seen)["step"].unique().sort().to_list() == list(range(400))
    assert (figures.last_step, figures.closed) == (399, {0})
    assert len(figures.steps) == 10


@pytest.mark.parametrize("how", ["truncated", "replaced"])
def test_a_job_that_begins_anew_is_shown_alone(tmp_path, how):
    watch = Watch(tmp_path)
    written = Sink(path(tmp_path), header())
    for number in range(8):
        written.write(step(number))
    assert watch.look().last_step == 7
    written.close(complete=True)
    if how == "replaced":
        path(tmp_path).unlink()  # the next file may be given the same inode
    else:  # as older versions did
        os.truncate(path(tmp_path), 0)
    written = Sink(path(tmp_path), header(process=8))
    for number in range(2):
        written.write(step(number, (0, 0.5)))
    figures = watch.look()
    assert (figures.steps, figures.closed) == ([0, 1], set())
    for number in range(2, 20):
        written.write(step(number))
    assert watch.look().last_step == 19
    path(tmp_path).unlink()
    assert watch.look().ranks.is_empty()


def test_ranks_may_appear_late_and_in_folders_of_their_own(tmp_path):
    watch = Watch(tmp_path)
    assert "no recordings yet" in watch.shown()
    first = Sink(path(tmp_path), header())
    assert "1 rank · no step has ended yet" in watch.shown()
    first.write(step(0))
    assert watch.look().ranks["rank"].to_list() == [0]
    second = Sink(path(tmp_path / "node1", 1), header(1))
    for written in (first, second):
        written.write(step(1))
    figures = watch.look()
    assert figures.ranks["rank"].to_list() == [0, 1]
    assert figures.steps == [1]  # of step 0, one rank is missing
    Sink(path(tmp_path / "node2", 1), header(1))
    [problem] = watch.look().problems
    assert problem.endswith("is another recording of rank 1")


def test_a_long_recording_is_begun_at_its_end(tmp_path, monkeypatch):
    written = Sink(path(tmp_path), header())
    for number in range(60):
        for _ in range(2):
            written.write(step(number))
    monkeypatch.setattr(tail, "_BACKLOG", 60_000)
    watch = Watch(tmp_path)
    figures = watch.look()
    [recording] = watch.tail.recordings.values()
    assert recording.passed > path(tmp_path).stat().st_size - 70_000
    assert figures.steps == list(range(50, 60))
    lengths = watch.progress._steps["busy_ns"].unique().to_list()
    assert lengths == [SECOND]  # no step of which half was passed over
    monkeypatch.setattr(tail, "_BACKLOG", 1)
    written.write(step(60))
    assert watch.look().last_step == 60  # the last message at least


def test_what_is_no_recording_is_said_and_the_others_are_shown(tmp_path):
    path(tmp_path, 1).write_bytes(b"no recording at all")
    path(tmp_path, 2).write_bytes(b"")
    Sink(path(tmp_path, 3), header(3, format=99, version="9.9"))
    good = Sink(path(tmp_path), header())
    good.write(step(0))
    watch = Watch(tmp_path)
    shown = watch.shown()
    assert "rank00001.bubbles is not a recording or is damaged (no Arrow" in shown
    assert "rank00003.bubbles was recorded by bubblescope 9.9; update to read it" in shown
    assert watch.look().steps == [0]
    data = bytearray(path(tmp_path).read_bytes())
    data += b"\xaa" * 64
    path(tmp_path).write_bytes(data)
    assert "rank00000.bubbles is damaged: tasks in parts that fail" in watch.shown()
    for number in range(4, 12):
        path(tmp_path, number).write_bytes(b"xxxxxxxx")
    assert "and 7 files more" in watch.shown()


def test_what_cannot_be_read_is_said_where_there_is_nothing_else(tmp_path):
    """Once where lines are printed one after the other, and not as if nobody recorded."""
    folder = tmp_path / "attempt-0001"
    folder.mkdir()
    path(folder).write_bytes(b"no recording at all")
    assert "no recording can be read" in Watch(tmp_path).shown()
    later = threading.Timer(1, path(folder).unlink)
    later.start()
    Sink(path(folder, 1), header(1)).close(complete=True)
    done = CliRunner().invoke(cli, ["watch", "--interval", "0.1", str(tmp_path)])
    later.join()
    assert done.stderr.count("rank00000.bubbles is not a recording or is damaged (no Arrow") == 1


def test_a_folder_that_may_not_be_looked_into_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "attempt-0001"
    folder.mkdir()
    listed = os.scandir

    def scandir(place):
        if Path(place) == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
        return listed(place)

    monkeypatch.setattr(os, "scandir", scandir)
    shown = Watch(tmp_path).shown()
    assert "no recording can be read" in shown
    assert "attempt-0001 cannot be listed (Permission denied)" in shown


def test_a_rank_from_which_nothing_comes_is_named(tmp_path, monkeypatch):
    files = [Sink(path(tmp_path, rank), header(rank)) for rank in range(3)]
    watch = Watch(tmp_path)
    for number in range(3):
        for written in files[: 3 - number // 2]:
            written.write(step(number))
    watch.look()
    files[0].close(complete=True)
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 25)
    files[1].write(step(3))
    shown = watch.shown()
    assert re.search(r"silent: rank 2 for 2\d s\n", shown)
    assert re.search(r"2 .*silent for 2\d s", shown)
    assert re.search(r"0 .*ended", shown)
    assert shown.count("silent") == 2
    fresh = Watch(tmp_path)  # one who comes later knows it from the file's own time
    old = time.time() - 400
    os.utime(path(tmp_path, 2), (old, old))
    fresh.look()
    assert fresh.look().silent.keys() >= {2}
    assert fresh.look().silent[2] > 390


def test_of_many_ranks_the_slowest_are_shown(tmp_path):
    for rank in range(40):
        written = Sink(path(tmp_path, rank), header(rank))
        written.write(step(0, (0, 1 + rank / 100)))
        written.close(complete=True)
    shown = Watch(tmp_path).shown(room=3)
    assert "the 3 slowest of 40 ranks" in shown
    assert re.findall(r"^ +(\d+) +\d+ +█", shown, re.MULTILINE) == ["39", "38", "37"]
    assert "slowest stage 39: busy 1.390 s a step, 16.3 % over the mean" in shown


def test_bars_show_the_busy_share(tmp_path):
    for rank, end in enumerate((2, 1)):
        written = Sink(path(tmp_path, rank), header(rank))
        written.write(step(0, (0, end)))
        written.close(complete=True)
    bars = re.findall(r"([█░]+) +([\d.]+) %", Watch(tmp_path).shown())
    assert [(bar.count("█"), idle) for bar, idle in bars] == [(32, "0.00"), (16, "50.00")]


@pytest.mark.parametrize(
    ("timers", "said"),
    [
        (("cpu", "cpu"), "host times · ended"),
        (("cpu", "cuda"), "host times on rank 0 · ended"),
        (("cuda", "cupti"), None),
        (("cuda", "of another package"), None),
    ],
)
def test_times_of_the_host_are_said_to_be(tmp_path, timers, said):
    for rank, timer in enumerate(timers):
        written = Sink(path(tmp_path, rank), header(rank, timer=timer))
        written.write(step(0))
        written.close(complete=True)
    shown = Watch(tmp_path).shown()
    assert (said or "ended") in shown
    assert ("host times" in shown) == (said is not None)


def test_once_prints_one_picture(tmp_path):
    empty = CliRunner().invoke(cli, ["watch", "--once", str(tmp_path)])
    assert (empty.exit_code, "no recordings yet" in " ".join(empty.output.split())) == (3, True)
    written = Sink(path(tmp_path), header())
    written.write(step(0))
    done = CliRunner().invoke(cli, ["watch", "--once", str(tmp_path)])
    assert done.exit_code == 0
    assert "bubble 0.00 % makespan, step 0" in " ".join(done.output.split())


def test_a_folder_that_is_not_there_yet_is_waited_for(tmp_path):
    folder = tmp_path / "later"
    job = threading.Timer(1, lambda: Sink(path(folder), header()).close(complete=True))
    job.start()
    done = CliRunner().invoke(cli, ["watch", "--interval", "0.1", str(folder)])
    job.join()
    assert done.exit_code == 0
    assert "the folder does not exist yet" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--interval", "0", "."], "no number of seconds from 0.1 to 86,400"),
        (["--interval", "nan", "."], "no number of seconds"),
        (["--interval", "1e999", "."], "no number of seconds"),
        (["--interval", "soon", "."], "no number of seconds"),
        ([], "Missing argument"),
    ],
)
def test_misuse_is_one_clear_error(arguments, message):
    done = CliRunner().invoke(cli, ["watch", *arguments])
    assert done.exit_code == 2
    assert message in done.output


JOB = """
import sys, time
from bubblescope.record import Recorder
with Recorder(sys.argv[1], rank=0, stages=[0], max_mb=0.2) as recorder:
    for _ in range(30):
        with recorder.step():
            for i in range(50):
                with recorder.task("forward", microbatch=i):
                    time.sleep(0.0005)
"""


def watching(folder, **how):
    return subprocess.Popen(
        [sys.executable, "-m", "bubblescope", "watch", "--interval", "0.1", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    )


def test_it_follows_a_job_to_its_end(tmp_path):
    with watching(tmp_path) as watch:
        time.sleep(1)
        subprocess.run([sys.executable, "-c", JOB, str(tmp_path)], check=True)
        said, error = watch.communicate(timeout=30)
    assert (watch.returncode, error) == (0, "")
    steps = [int(number) for number in re.findall(r"1 rank · step (\d+) at", said)]
    assert steps == sorted(set(steps))
    assert steps[-1] == 29
    assert "% makespan, steps 20 to 29" in said


def test_ctrl_c_ends_it(tmp_path):
    Sink(path(tmp_path), header()).write(step(0))
    with watching(tmp_path) as watch:
        assert "step 0 at" in watch.stdout.readline()
        watch.send_signal(signal.SIGINT)
        _, error = watch.communicate(timeout=30)
    assert (watch.returncode, error) == (0, "")
