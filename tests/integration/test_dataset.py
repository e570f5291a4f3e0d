"""Datasets: what is read of one is what is read of the traces, whole or in part."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import kineto_maker
from ascend_maker import Profile, sizes
from bubblescope import SourceError, Timeline, TimelineError, sources
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.pieces.kernels_of_pieces import kernels_of
from bubblescope.analysis.pieces.stragglers_of_pieces import stragglers_of
from bubblescope.analysis.pieces.study_of_pieces import measure, study_of
from bubblescope.cli.in_pieces import Watched
from bubblescope.datasets.building import Dataset, DatasetError
from bubblescope.datasets.dataset_pieces import pieces_of
from bubblescope.datasets.prepared_parts import Kept, keeping
from bubblescope.engine import engine
from bubblescope.model.provenance import Notice, Origin, Run
from bubblescope.record import Recorder
from bubblescope.render.text.kernels import Kernels
from bubblescope.render.text.report import Report
from bubblescope.render.text.stragglers import Stragglers
from bubblescope.render.text.why import Explanation
from bubblescope.schedules import generate
from bubblescope.sources.dataset import reading
from bubblescope.sources.dataset.catalogue import catalogue_of
from bubblescope.sources.dataset.measures_folder import Measures
from bubblescope.sources.dataset.store import store_of
from commands import called
from dealt_runs import disturbed
from full import examples, module, needs
from injected import Fault, Job
from nsight_maker import Style
from random_runs import made as random_run

if TYPE_CHECKING:
    from pathlib import Path


def saved(timeline: Timeline, folder: Path) -> list[Path]:
    """Write each rank of a run as a file of its own."""
    folder.mkdir(exist_ok=True)
    return [
        timeline.slice(ranks=[rank]).save(folder / f"rank{rank:04}.parquet")
        for rank in timeline.ranks["rank"]
    ]


def dataset(root, *traces, batch=2, block_steps=2, **how):
    """Make a dataset in this process."""
    found = sources.find(traces, how.get("source"), how.get("attempt"))
    return Dataset(store_of(root), how, engine(workers=1), batch, block_steps).make(found)


def assert_same(one: Timeline, other: Timeline) -> None:
    assert one.tasks.equals(other.tasks)
    assert one.ranks.equals(other.ranks)
    for name, frame in one.tables.items():
        assert frame.equals(other.tables[name]), name
    for field in Run.__struct_fields__:
        mine, its = getattr(one.run, field), getattr(other.run, field)
        if field in {"warnings", "notes"}:
            mine, its = sorted(mine, key=str), sorted(its, key=str)
        assert mine == its, field


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=examples(12))
def test_what_is_read_is_what_the_traces_say_whole_and_in_part(
    tmp_path_factory, seed, batch, block
):
    run = random_run(seed).timeline
    folder = tmp_path_factory.mktemp("run")
    files = saved(run, folder / "traces")
    dataset(folder / "set", *files, batch=batch, block_steps=block)
    assert_same(sources.load(folder / "set"), sources.load(*files))
    raw = sources.load(*files, clock="raw")
    random = np.random.default_rng(seed)
    ranks = raw.ranks["rank"].to_list()
    few = sorted(random.choice(ranks, random.integers(1, len(ranks) + 1), replace=False).tolist())
    wanted = [range(rank, rank + 1) for rank in few]
    part = sources.load(folder / "set", clock="raw", ranks=wanted)
    assert set(part.ranks["rank"]) == set(few)
    assert part.slice(ranks=few).tasks.equals(raw.slice(ranks=few).tasks)
    if raw.steps:
        first, last = sorted(random.choice(raw.steps, 2).tolist())
        steps = [step for step in raw.steps if first <= step <= last]
        part = sources.load(folder / "set", clock="raw", steps=[range(first, last + 1)])
        assert part.slice(steps=steps).tasks.equals(raw.slice(steps=steps).tasks)
        assert set(part.tasks["step"]) <= set(steps)


def recorded(folder, ranks, hosts, steps=3):
    for rank in range(ranks):
        with Recorder(folder, rank=rank, host=f"node{rank // hosts}", stages=[rank]) as job:
            for _ in range(steps):
                with job.step():
                    for i in range(2):
                        with job.task("forward", microbatch=i):
                            pass
                        with job.task("backward", microbatch=i):
                            pass


def test_recordings_of_one_host_share_its_clock_however_many_there_are(tmp_path):
    recorded(tmp_path / "rec", ranks=6, hosts=3)
    made = dataset(tmp_path / "set", tmp_path / "rec", batch=2)
    assert len(made.catalogue.parts) == 2  # three ranks of each host
    assert_same(sources.load(tmp_path / "set"), sources.load(tmp_path / "rec"))


STYLE = Style(stages=3, microbatches=4, steps=3)


def kineto(folder):
    folder.mkdir()
    for rank, trace in enumerate(kineto_maker.pipeline(STYLE)[0]):
        trace.write(folder / f"rank{rank}.json")
    return folder


def test_pytorch_traces_are_read_apart(tmp_path):
    folder = kineto(tmp_path / "traces")
    made = dataset(tmp_path / "set", folder, batch=1)
    assert (len(made.catalogue.parts), made.together) == (3, None)
    assert_same(sources.load(tmp_path / "set"), sources.load(folder))


def test_one_that_was_made_before_a_class_of_time_was_added_is_read(tmp_path):
    folder = kineto(tmp_path / "traces")
    dataset(tmp_path / "set", folder, batch=1)
    files = list((tmp_path / "set" / "budget").rglob("*.parquet"))
    assert files
    for file in files:
        rows = pl.read_parquet(file)
        known = pl.Enum([one for one in rows.schema["use"].categories if one != "rank_wait"])
        rows.with_columns(pl.col("use").cast(known)).write_parquet(file)
    assert_same(sources.load(tmp_path / "set"), sources.load(folder))


def test_what_only_all_traces_tell_is_read_together(tmp_path):
    folder = kineto(tmp_path / "traces")
    for path in folder.iterdir():  # ranges that do not say their stage
        path.write_text(re.sub(r"PP:\d+([FBW])(\d+)", r"\1\2", path.read_text()))
    made = dataset(tmp_path / "set", folder, batch=1)
    whole = sources.load(folder)
    assert whole.run.inferred["stage"].startswith("order in which micro-batch 0")
    assert (len(made.catalogue.parts), made.together) == (1, "the order of stages")
    assert_same(sources.load(tmp_path / "set"), whole)
    again = dataset(tmp_path / "set", folder, batch=1)
    assert (again.read, again.kept) == (0, 3)


def test_profiles_of_npus_are_read_apart(tmp_path):
    for rank in range(4):
        profile = Profile(rank, device=rank, metadata=sizes(4))
        profile.step(7, 0, 10_000)
        profile.range({"name": "forward_step"}, 1000 * rank, 1000 * rank + 900)
        profile.write(tmp_path / "traces")
    made = dataset(tmp_path / "set", tmp_path / "traces", batch=1)
    assert (len(made.catalogue.parts), made.together) == (4, None)
    assert_same(sources.load(tmp_path / "set"), sources.load(tmp_path / "traces"))


def test_notices_that_count_are_summed_and_those_of_all_ranks_are_said_once(tmp_path):
    run = random_run(1).timeline
    for rank in run.ranks["rank"]:
        one = run.slice(ranks=[rank])
        notices = (
            Notice("dropped-events", f"{rank} of {rank + 10} events were dropped", rank, rank + 10),
            Notice("missing-ranks", "99 of 100 ranks have no trace here (1, ...)", 99, 100),
        )
        known = Run(origins=(Origin("made", None, f"{rank}"),), warnings=notices, world=100)
        one.with_run(known).save(tmp_path / f"rank{rank}.parquet")
    ranks = run.ranks["rank"].to_list()
    dataset(tmp_path / "set", *tmp_path.glob("*.parquet"), batch=1)
    said = {one.code: one for one in sources.load(tmp_path / "set").run.warnings}
    lost, total = sum(ranks), sum(ranks) + 10 * len(ranks)
    assert said["dropped-events"].message == f"{lost} of {total} events were dropped"
    assert said["missing-ranks"].lost == 100 - len(ranks)


def test_it_goes_on_where_it_was_killed(tmp_path):
    files = saved(random_run(3).timeline, tmp_path / "traces")
    files += saved(_shifted(random_run(3).timeline, 1000), tmp_path / "more")
    root = tmp_path / "set"
    program = (
        "import sys, os, signal\n"
        "from bubblescope.datasets import writing\n"
        "count, real = int(sys.argv[1]), writing.write_part\n"
        "def dying(*a):\n"
        "    global count\n"
        "    count -= 1\n"
        "    if not count: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return real(*a)\n"
        "writing.write_part = dying\n"
        "sys.argv = ['bubblescope', 'dataset', *sys.argv[2:]]\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from bubblescope.cli import main\n"
        "main()\n"
    )
    command = [*map(str, files), "-o", str(root), "--batch", "1", "-q"]
    killed = subprocess.run([sys.executable, "-c", program, "3", *command], check=False)
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(SourceError, match=r"was not finished: .* it goes on"):
        sources.load(root)
    made = dataset(root, *files, batch=1, block_steps=10)
    assert (made.read, made.kept) == (len(files) - 2, 2)
    assert_same(sources.load(root), sources.load(*files))
    assert not [path for path in root.rglob(".*") if path.name != ".lock"]


def _shifted(timeline: Timeline, by: int) -> Timeline:
    """Return a run with other numbers of ranks."""
    moved = {name: frame for name, frame in timeline.tables.items() if "rank" not in frame.columns}
    return Timeline(
        timeline.tasks.with_columns(pl.col("rank") + by),
        timeline.ranks.with_columns(pl.col("rank") + by),
        timeline.run,
        **moved,
    )


def test_traces_are_added_and_those_that_changed_are_read_again(tmp_path):
    run = random_run(5).timeline
    first, *others = saved(run, tmp_path / "traces")
    root = tmp_path / "set"
    dataset(root, first, batch=1)
    before = sources.load(root)
    assert before.ranks.height == 1
    made = dataset(root, *others, batch=1)  # the first is in it, and not given any more
    assert (made.read, made.kept) == (len(others), 1)
    assert_same(sources.load(root), sources.load(first, *others))
    late = run.slice(ranks=[run.ranks["rank"][0]]).tasks.with_columns(pl.col("end_ns") + 1)
    changed = Timeline(late, run.ranks[:1], run.run)
    time.sleep(0.01)
    changed.save(first)
    made = dataset(root, first, *others, batch=1)
    assert (made.read, made.kept) == (1, len(others))
    assert_same(sources.load(root), sources.load(first, *others))
    assert len(list((root / "parts").iterdir())) == len(made.catalogue.parts)


def test_traces_that_were_renamed_take_the_place_of_what_they_were(tmp_path):
    first, *others = saved(random_run(5).timeline, tmp_path / "traces")
    root = tmp_path / "set"
    dataset(root, first, *others, batch=2)
    (tmp_path / "traces").rename(tmp_path / "renamed")
    made = dataset(root, tmp_path / "renamed", batch=2)
    assert (made.read, made.kept) == (1 + len(others), 0)
    assert_same(sources.load(root), sources.load(tmp_path / "renamed"))


def test_traces_of_one_rank_are_read_together(tmp_path):
    folder = kineto(tmp_path / "traces")
    (folder / "rank0.json").rename(folder / "a_rank0.json")
    (folder / "b_rank0.json").write_bytes((folder / "a_rank0.json").read_bytes())
    with pytest.raises(SourceError, match=r"holds rank 0, and so does .*two traces of one rank"):
        dataset(tmp_path / "set", folder, batch=1)


@pytest.mark.parametrize(
    "damage", ["missing", "cut", "a pipe", "other columns", "catalogue", "manifest", "path"]
)
def test_damage_is_one_sentence_that_names_the_file(tmp_path, damage):
    files = saved(random_run(3).timeline, tmp_path / "traces")
    root = tmp_path / "set"
    dataset(root, *files, batch=1)
    table = min((root / "tasks").rglob("*.parquet"))
    named = table
    if damage == "missing":
        table.unlink()
    elif damage == "cut":
        table.write_bytes(table.read_bytes()[:-50])
    elif damage == "a pipe":
        table.unlink()
        os.mkfifo(table)
    elif damage == "other columns":
        pl.DataFrame({"step": [0], "rank": [0]}).write_parquet(table)
    elif damage == "catalogue":
        named = root / "dataset.json"
        named.write_text(named.read_text()[:100])
    elif damage == "manifest":
        named = min((root / "parts").iterdir())
        named.write_text("{}")
    else:
        named = root / "dataset.json"
        said = json.loads(named.read_text())
        said["parts"][0]["name"] = "../../etc/passwd"
        named.write_text(json.dumps(said))
    with pytest.raises(SourceError) as error:
        sources.load(root)
    assert str(named.name) in str(error.value) or "contradicts" in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_not_in_it_is_refused_with_what_is(tmp_path):
    run = random_run(3).timeline
    dataset(tmp_path / "set", *saved(run, tmp_path / "traces"))
    with pytest.raises(
        TimelineError, match=r"step 999 is not in the timeline, which holds \d+\.\.\d+"
    ):
        sources.load(tmp_path / "set", steps=[range(999, 1001)])
    with pytest.raises(
        TimelineError, match=r"rank 999 is not in the timeline, which holds \d+\.\.\d+"
    ):
        sources.load(tmp_path / "set", ranks=[range(999, 1000)])


@pytest.mark.parametrize("ranks", [1, range(1, 2), [1], [range(1, 2)], np.array([1])], ids=repr)
def test_steps_and_ranks_are_numbers_and_ranges_of_them(tmp_path, ranks):
    run = random_run(3).timeline
    dataset(tmp_path / "set", *saved(run, tmp_path / "traces"))
    assert sources.load(tmp_path / "set", ranks=ranks).ranks["rank"].to_list() == [1]
    for wrong in ("1:2", ["1"], 1.0):
        with pytest.raises(TypeError, match=r"numbers and ranges of numbers, not '?1"):
            sources.load(tmp_path / "set", steps=wrong)


def test_nothing_that_is_there_is_overwritten(tmp_path):
    files = saved(random_run(3).timeline, tmp_path / "traces")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("all of it")
    with pytest.raises(DatasetError, match=r"is no dataset and holds other files \(thesis.tex\)"):
        dataset(mine, *files)
    done = called("dataset", *files, "-o", mine, "--overwrite", cwd=tmp_path)
    assert done.returncode == 2
    assert (mine / "thesis.tex").read_text() == "all of it"
    root = tmp_path / "set"
    dataset(root, *files, block_steps=2)
    with pytest.raises(DatasetError, match="was made with block_steps 2 and not 3"):
        dataset(root, *files, block_steps=3)
    (root / "notes.txt").write_text("keep")
    done = called("dataset", *files, "-o", root, "--overwrite", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (root / "notes.txt").read_text() == "keep"
    inside = called("dataset", tmp_path / "traces", "-o", tmp_path / "traces" / "x", cwd=tmp_path)
    assert (inside.returncode, "name another folder" in inside.stderr) == (2, True)
    assert not (tmp_path / "traces" / "x").exists()


def test_two_do_not_write_at_once(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    files = saved(random_run(3).timeline, tmp_path / "traces")
    root = tmp_path / "set"
    dataset(root, *files)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DatasetError, match="is being written by another process"):
            dataset(root, *files)


def test_a_full_disk_is_a_sentence_and_leaves_what_was(tmp_path):
    files = saved(random_run(3).timeline, tmp_path / "traces")
    root = tmp_path / "set"
    dataset(root, files[0], batch=1, block_steps=10)
    before = sources.load(root)
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "sys.argv = ['bubblescope', *sys.argv[1:]]\n"
        "from bubblescope.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            "dataset",
            *map(str, files),
            "-o",
            str(root),
            "--batch",
            "1",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert_same(sources.load(root), before)


def test_a_poison_trace_is_named_and_the_others_are_kept(tmp_path):
    files = saved(random_run(3).timeline, tmp_path / "traces")
    whole = files[-1].read_bytes()
    files[-1].write_bytes(whole[:10] + bytes(200) + whole[210:])
    with pytest.raises(SourceError, match=files[-1].name):
        dataset(tmp_path / "set", *files, batch=1)
    made = dataset(tmp_path / "set", *files[:-1], batch=1)
    assert made.kept == len(files) - 1


def test_a_folder_is_watched_while_it_grows(tmp_path):
    run = random_run(5).timeline
    folder, root = tmp_path / "traces", tmp_path / "set"
    files = saved(run, tmp_path / "all")
    folder.mkdir()
    files[0].rename(folder / files[0].name)
    watching = subprocess.Popen(
        [sys.executable, "-m", "bubblescope", "dataset", folder, "-o", root, "--watch", "0.2"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert "1 rank" in watching.stdout.readline()
        for file in files[1:]:
            file.rename(folder / file.name)
        ranks = 1
        while ranks < len(files):
            assert watching.stdout.readline()
            ranks = sources.load(root).ranks.height
    finally:
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 130
        watching.stdout.close()
    assert_same(sources.load(root), sources.load(folder))


def test_other_programs_read_it(tmp_path):
    run = random_run(3).timeline
    dataset(tmp_path / "set", *saved(run, tmp_path / "traces"))
    tasks = pl.scan_parquet(tmp_path / "set" / "tasks", hive_partitioning=True).collect()
    assert tasks.height == len(run)
    assert {*tasks.columns} == {*run.tasks.columns, "block"}
    plain = pl.read_parquet(next((tmp_path / "set" / "tasks").rglob("*.parquet")))
    assert plain.select("step", "rank", "lane", "start_ns").equals(
        plain.select("step", "rank", "lane", "start_ns").sort("step", "rank", "lane", "start_ns",
        nulls_last=True)
    )  # fmt: skip


def test_every_command_takes_one(tmp_path):
    run = random_run(8).timeline
    files = saved(run, tmp_path / "traces")
    dataset(tmp_path / "set", *files)
    for command in (["report"], ["why"], ["info"], ["stragglers"], ["whatif"]):
        one = called(*command, tmp_path / "set", "--json", cwd=tmp_path)
        other = called(*command, *files, "--json", cwd=tmp_path)
        assert one.returncode == other.returncode, one.stderr
        if one.returncode == 0:
            mine, its = json.loads(one.stdout), json.loads(other.stdout)
            assert _without_order(mine) == _without_order(its)


def _without_order(said):
    said.pop("warnings", None)
    return said


def test_of_what_does_not_fit_into_memory_some_steps_are_read_and_named(tmp_path):
    job = Job(generate("1f1b", 2, 4), replicas=1, steps=9, jitter=0.3, seed=4)
    run = job.play()
    dataset(tmp_path / "set", *saved(run, tmp_path / "traces"))
    a_step = len(run) // 9
    few = sources.load(tmp_path / "set", enough=3 * a_step)
    assert few.steps == [0, 4, 8]
    [said] = [one for one in few.run.warnings if one.code == "sampled-steps"]
    assert (said.lost, said.total) == (6, 9)
    assert "steps 0, 4, 8" in said.message
    lengths = run.tasks.group_by("step").agg(ns=pl.max("end_ns") - pl.min("start_ns"))
    median = lengths.sort("ns")["step"][4]
    assert sources.load(tmp_path / "set", enough=1).steps == [median]
    assert sources.load(tmp_path / "set", enough=3 * a_step, median=True).steps == [median]
    assert sources.load(tmp_path / "set", enough=len(run), median=True).steps == run.steps
    assert sources.load(tmp_path / "set", enough=1, steps=[range(9)]).steps == run.steps
    assert sources.load(tmp_path / "set", enough=len(run)).steps == run.steps


@pytest.fixture
def bucket(monkeypatch):
    """Return the address of an empty bucket of an S3 server on this machine."""
    needs("obstore")
    server = module("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    urllib.request.urlopen(
        urllib.request.Request(f"http://{host}:{port}/runs", method="PUT")
    ).close()
    yield "s3://runs"
    server.stop()


def test_object_storage_holds_datasets_as_folders_do(tmp_path, bucket):
    run = random_run(5).timeline
    first, *others = saved(run, tmp_path / "traces")
    address = f"{bucket}/mine/RUN"
    assert_same(_made(address, first), sources.load(first))
    made = called("dataset", *others, "-o", address, "-q", cwd=tmp_path)
    assert (made.returncode, f"wrote {address}" in made.stdout) == (0, True), made.stderr
    assert_same(sources.load(address), sources.load(first, *others))
    rank = run.ranks["rank"][0]
    part = sources.load(address, clock="raw", ranks=[range(rank, rank + 1)])
    assert part.ranks["rank"].to_list() == [rank]
    told = called("report", address, "--ranks", rank, "--json", cwd=tmp_path)
    assert told.returncode == 0, told.stderr


def test_what_is_wrong_with_object_storage_is_a_sentence(tmp_path, bucket):
    none = called("report", f"{bucket}/none", cwd=tmp_path)
    assert (none.returncode, none.stderr) == (
        2,
        f"error  {bucket}/none: is no dataset: it holds no dataset.json\n",
    )
    nowhere = called("report", "s3://nowhere/RUN", cwd=tmp_path)
    assert nowhere.returncode == 2
    assert "Traceback" not in nowhere.stderr
    store = store_of(f"{bucket}/taken")
    store.write("thesis.tex", b"all of it")
    files = saved(random_run(3).timeline, tmp_path / "traces")
    with pytest.raises(DatasetError, match=r"holds other files \(thesis.tex\)"):
        dataset(f"{bucket}/taken", *files)
    store = store_of(f"{bucket}/RUN")
    dataset(f"{bucket}/RUN", *files)
    store.remove(next(name for name in store.names("tasks")))
    with pytest.raises(
        SourceError, match=r"s3://runs/RUN/tasks/.* is in the catalogue and missing"
    ):
        sources.load(f"{bucket}/RUN")


def _made(root, *files):
    dataset(root, *files)
    return sources.load(root)


def test_no_part_is_read_ahead_that_there_is_no_room_to_keep(tmp_path, monkeypatch):
    root = tmp_path / "set"
    dataset(root, *saved(random_run(5).timeline, tmp_path / "traces"), block_steps=1)
    (folder := tmp_path / "kept").mkdir()
    read = []
    for spared in (0, 1 << 62):
        kept = Kept(folder, spared, every=False)
        pieces = pieces_of(store_of(root), engine(), kept=kept, size=1).got()
        with monkeypatch.context() as patch:
            patch.setattr(type(pieces), "part", lambda _, index: read.append(index))
            for part in range(len(pieces.parts)):
                pieces.make_ready(part)
    assert read == [*range(len(pieces.parts))]


@pytest.mark.parametrize("seed", range(12))
def test_what_is_said_of_a_dataset_in_pieces_is_what_is_said_of_all_of_it(tmp_path, seed):
    run = random_run(seed).timeline
    run = disturbed(run, seed) if seed % 3 else run
    root = tmp_path / "set"
    dataset(root, *saved(run, tmp_path / "traces"), batch=2, block_steps=1 + seed % 3)
    whole = sources.load(root)
    random = np.random.default_rng(seed)
    size = int(random.integers(1, max(2, len(whole))))
    with keeping(catalogue_of(store_of(root)), engine()) as kept:
        for held in (None, kept):  # parts that are read each time, and once
            pieces = pieces_of(store_of(root), engine(workers=1), size=size, kept=held)
            folder = held and held.folder
            found = study_of(pieces, sent, folder=folder)
            mine, its = Report.of_pieces(found).to_dict(), Report.of(whole).to_dict()
            assert _plain(mine) == _plain(its)
            short = study_of(pieces, sent, folder=folder, explained=False, then=_report)
            assert _plain(short) == _plain(its)
            if found.study.ledger is not None:
                assert str(Explanation.of_pieces(found)) == str(Explanation.of(whole))
        ready = [one for one in kept.folder.iterdir() if one.is_dir()]
        assert len(ready) == len(pieces.got().parts)
    assert not kept.folder.exists()


def test_parts_are_kept_where_there_is_room_and_those_of_killed_commands_removed(
    tmp_path, monkeypatch
):
    run = random_run(2).timeline
    dataset(tmp_path / "set", *saved(run, tmp_path / "traces"))
    store = store_of(tmp_path / "set")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getpid()):  # of a command that was killed, and of one that runs
        (tmp_path / f"bubblescope-parts-{socket.gethostname()}-{pid}-x").mkdir()
    with keeping(catalogue_of(store), engine()) as kept:
        assert kept.folder.is_dir()
    left = [one.name.split("-")[-2] for one in tmp_path.glob("bubblescope-parts-*")]
    assert left == [str(os.getpid())]
    room = shutil.disk_usage(tmp_path)._replace(free=2 * len(run))
    monkeypatch.setattr("bubblescope.datasets.prepared_parts.shutil.disk_usage", lambda _: room)
    with keeping(catalogue_of(store), engine()) as kept:
        whole = sources.load(tmp_path / "set")
        found = study_of(pieces_of(store, Counted(), kept=kept), sent, folder=kept.folder)
        assert _plain(Report.of_pieces(found).to_dict()) == _plain(Report.of(whole).to_dict())
        assert not any(one.is_dir() for one in kept.folder.iterdir())
        assert any(one.suffix == ".held" for one in kept.folder.iterdir())
    monkeypatch.undo()
    with keeping(catalogue_of(store), Elsewhere()) as kept:
        assert kept is None


class Elsewhere:
    """Workers on other machines."""

    def see(self, _folder):
        return False


def test_rows_that_break_a_rule_are_refused_where_they_are_cut_into_parts(tmp_path):
    """The rules are tried on a whole block at once, before its steps are told apart."""
    made = Job(generate("1f1b", 2, 4), replicas=1, steps=4).play()
    root = tmp_path / "set"
    dataset(root, *saved(made, tmp_path / "traces"), block_steps=4)
    file = next(root.glob("tasks/*/*.parquet"))
    rows = pl.read_parquet(file, hive_partitioning=False)
    wrong = pl.when(pl.col("step") == 2).then(pl.col("start_ns") - 1).otherwise("end_ns")
    rows.with_columns(end_ns=wrong).write_parquet(file)
    store = store_of(root)
    with keeping(catalogue_of(store), engine()) as kept:
        with pytest.raises(SourceError) as error:
            pieces_of(store, engine(workers=1), size=1, kept=kept)
    assert "set: holds contradictory data (tasks row " in str(error.value)


class Counted:
    """Workers of which it is known what they did, and how often."""

    def __init__(self):
        self.did = Counter()

    def run(self, work, jobs, **_):
        did = work.args[0] if isinstance(work, partial) else work
        self.did[(did.func if isinstance(did, partial) else did).__name__] += len(jobs)
        yield from sent(work, jobs)


@pytest.mark.parametrize("seed", range(12))
def test_measures_of_a_dataset_spare_looks_and_change_no_answer(tmp_path, seed):
    run = random_run(seed).timeline
    run = disturbed(run, seed) if seed % 3 else run
    root = tmp_path / "set"
    dataset(root, *saved(run, tmp_path / "traces"), batch=2, block_steps=1 + seed % 3)
    store, catalogue = store_of(root), catalogue_of(store_of(root))
    whole = sources.load(root)
    size = int(np.random.default_rng(seed).integers(1, max(2, len(whole))))
    with keeping(catalogue, engine()) as kept:
        pieces = pieces_of(store, Counted(), size=size, kept=kept)
        plain = study_of(pieces, sent, folder=kept.folder)
        usual = stragglers_of(pieces, sent, folder=kept.folder, then=_slowed)
    with keeping(catalogue, engine()) as kept:
        measures = Measures.of(store, catalogue, kept=True)
        pieces = pieces_of(store, Counted(), size=size, kept=kept, measures=measures)
        measure(pieces, sent, measures, folder=kept.folder)
    for held in (True, False):  # parts that are kept, and such that are read each time
        with keeping(catalogue, engine()) as kept:
            workers, folder = Counted(), kept.folder if held else None
            pieces = pieces_of(
                store, workers, size=size, kept=kept if held else None, measures=measures
            )
            assert set(workers.did) == {"_known_pieces"}
            assert pieces.got().ranks.equals(whole.ranks)
            assert pieces.got().run.clock == whole.run.clock
            parts = [pieces.got().part(index) for index in range(len(pieces.got().parts))]
            both = pl.concat([part.tasks for part in parts])
            by = ["rank", "lane", "start_ns", "end_ns"]
            assert both.sort(by).equals(whole.tasks.sort(by))
            found = study_of(pieces, workers.run, folder=folder, measures=measures)
            assert not {"first", "second", "whole", "_recorded"} & {*workers.did}
            mine, its = Report.of_pieces(found).to_dict(), Report.of(whole).to_dict()
            assert _plain(mine) == _plain(its) == _plain(Report.of_pieces(plain).to_dict())
            if found.study.ledger is not None:
                assert str(Explanation.of_pieces(found)) == str(Explanation.of(whole))
            told = stragglers_of(pieces, workers.run, folder=folder, then=_slowed)
            assert told == usual
            # With room, every file is read once.
            assert bool(workers.did["_cut"]) == (held and pieces.got().cuts > 0)
    # Of some steps nothing was measured.
    workers, some = Counted(), [range(whole.steps[0], whole.steps[0] + 1)] if whole.steps else None
    if some is not None:
        pieces_of(store, workers, steps=some, measures=measures)
        assert workers.did["_recorded"]


def test_measures_are_made_with_large_datasets_and_made_anew_where_they_do_not_fit(
    tmp_path, monkeypatch
):
    run = Job(generate("1f1b", 2, 4), replicas=2, steps=6, jitter=0.1, seed=4).play()
    root, traces = tmp_path / "set", tmp_path / "traces"
    files = saved(run, traces)
    assert called("dataset", *files, "-o", root, "-q", cwd=tmp_path).returncode == 0
    assert not (root / "measures").exists()
    whole = {name: called(name, root, "-q", cwd=tmp_path) for name in ("report", "why")}
    for one in ("in_pieces", "reading", "dataset_levels"):
        monkeypatch.setattr(f"bubblescope.cli.{one}.ENOUGH", len(run) // 4)
    for name, one in whole.items():  # of an earlier version
        assert called(name, root, "-q", cwd=tmp_path).stdout == one.stdout
    assert called("dataset", *files, "-o", root, "-q", cwd=tmp_path).returncode == 0
    made = sorted(path.name for path in (root / "measures").glob("*/*"))
    assert made == ["clocks.values", "steps.values"]
    [folder] = (root / "measures").iterdir()
    for name, one in whole.items():
        assert called(name, root, "-q", cwd=tmp_path).stdout == one.stdout
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
        for name, one in whole.items():  # damaged
            asked = called(name, root, "-q", cwd=tmp_path)
            assert (asked.returncode, asked.stdout) == (0, one.stdout), asked.stderr
    monkeypatch.setattr("bubblescope.sources.dataset.derived_folder.__version__", "0.0.1")
    assert Measures.of(store_of(root), catalogue_of(store_of(root))).folder != folder.name
    monkeypatch.undo()
    monkeypatch.setattr("bubblescope.cli.dataset_levels.ENOUGH", len(run) // 4)
    fewer = tmp_path / "growing"
    for some in (files[:2], files):
        assert called("dataset", *some, "-o", fewer, "-q", cwd=tmp_path).returncode == 0
        [only] = (fewer / "measures").iterdir()  # those of what it was are removed
    assert len([*only.iterdir()]) == 2


def test_a_dataset_whose_ranks_disagree_on_steps_is_whole_without_measures(tmp_path, monkeypatch):
    run = Job(generate("1f1b", 2, 4), replicas=1, steps=6, seed=4).play()
    off = pl.when(pl.col("rank") == 1).then(pl.col("step") + 1).otherwise("step")
    ranks = run.ranks.with_columns(host=pl.lit("node0"))
    run = Timeline(run.tasks.with_columns(step=off.cast(pl.Int32)), ranks, Run(common_clock=True))
    monkeypatch.setattr("bubblescope.cli.dataset_levels.ENOUGH", len(run) // 4)
    files = saved(run, tmp_path / "traces")
    made = called("dataset", *files, "-o", tmp_path / "set", "--batch", "1", "-q", cwd=tmp_path)
    assert made.returncode == 0
    assert "were not measured" in made.stderr
    assert catalogue_of(store_of(tmp_path / "set")).finished


@pytest.mark.parametrize("seed", range(4))
def test_clocks_are_corrected_in_pieces_as_they_are_at_once(tmp_path, monkeypatch, seed):
    """To the nanosecond: clocks that are off and drift, of parts of one step or of several."""
    monkeypatch.setattr("bubblescope.datasets.dataset_pieces._BESIDE_NS", 0)
    random = np.random.default_rng(seed)
    made = Job(generate("1f1b", 4, 8), replicas=2, steps=7, jitter=0.2, seed=seed).play()
    host = made.tasks["rank"].to_numpy() // 2
    off, drift = random.normal(0, 2e6, 4).astype(int), random.normal(0, 2e-5, 4) * (seed % 2)
    moved = {
        name: made.tasks[name] + off[host] + (made.tasks[name].to_numpy() * drift[host]).astype(int)
        for name in ("start_ns", "end_ns")
    }
    tasks = made.tasks.with_columns(busy_ns=None, host_start_ns=None, host_end_ns=None, **moved)
    ranks = made.ranks.with_columns(host=pl.format("node{}", pl.col("rank") // 2))
    root = tmp_path / "set"
    dataset(root, *saved(Timeline(tasks, ranks), tmp_path / "traces"), block_steps=1 + seed)
    whole = sources.load(root, clock="solve")
    assert whole.run.clock.method == "solved"
    assert whole.run.clock.violations_before > 0 == whole.run.clock.violations_after
    size = int(random.integers(1, len(whole)))
    with keeping(catalogue_of(store_of(root)), engine()) as kept:
        held = pieces_of(store_of(root), engine(workers=1), clock="solve", size=size, kept=kept)
        pieces = held.got()
        parts = [pieces.part(index) for index in range(len(pieces.parts))]
        again = [pieces.part(index) for index in range(len(pieces.parts))]
    # As `auto` does it, whose measures are kept: once of each file, on one clock at once.
    measures = Measures.of(store_of(root), catalogue_of(store_of(root)), kept=True)
    for _ in range(2):
        with keeping(catalogue_of(store_of(root)), engine()) as kept:
            held = pieces_of(
                store_of(root), engine(workers=1), size=size, kept=kept, measures=measures
            ).got()
            for cut in range(held.cuts):
                held.cut(cut)
            mine = [held.part(index) for index in range(len(held.parts))]
        assert all(part.tasks.equals(one.tasks) for part, one in zip(parts, mine, strict=True))
    assert pieces.run.clock == whole.run.clock
    assert pieces.ranks.equals(whole.ranks)
    assert all(part.tasks.equals(other.tasks) for part, other in zip(parts, again, strict=True))
    both = pl.concat([part.tasks for part in parts])
    by = ["rank", "lane", "start_ns", "end_ns"]
    assert both.sort(by).equals(whole.tasks.sort(by))
    for _ in range(12):  # what overlaps a time is found by clocks that are off
        begin = int(random.integers(whole.start_ns, whole.end_ns))
        end = begin + int(random.exponential(whole.duration_ns / 8)) + 1
        overlap = (pl.col("end_ns") > begin) & (pl.col("start_ns") < end)
        some, index = [0, int(random.integers(1, 8))], int(random.integers(len(pieces.parts)))
        own = pl.col("step").is_in(list(pieces.parts[index]))
        during, around = pieces.during(some, begin, end), pieces.around(index, begin, end).tasks
        wanted = whole.tasks.filter(overlap)
        assert during.sort(by).equals(wanted.filter(pl.col("rank").is_in(some)).sort(by))
        assert around.sort(by).equals(wanted.filter(~own).sort(by))


def test_only_files_that_may_hold_what_overlaps_a_time_are_read(tmp_path, monkeypatch):
    made = Job(generate("1f1b", 4, 8), replicas=2, steps=6, jitter=0.2, seed=3).play()
    later = pl.col("step").cast(pl.Int64) * 10_000_000_000
    tasks = made.tasks.with_columns(pl.col("start_ns", "end_ns") + later)
    tasks = tasks.with_columns(busy_ns=None, host_start_ns=None, host_end_ns=None)
    read = []

    def pieces_at(name, tasks):
        run = Timeline(tasks, made.ranks)
        dataset(tmp_path / name, *saved(run, tmp_path / f"{name} traces"), block_steps=3)
        pieces = pieces_of(store_of(tmp_path / name), engine(workers=1), size=1).got()
        read.clear()
        return pieces, run

    frame = reading._frame

    def counted(store, file, where=None):
        read.append(file)
        return frame(store, file, where)

    monkeypatch.setattr(reading, "_frame", counted)
    pieces, run = pieces_at("apart", tasks)
    step = run.slice(steps=[3])
    assert not pieces.around(3, step.start_ns, step.end_ns).tasks.height
    assert not read
    drawn = pieces.during([5], step.start_ns, step.end_ns)
    assert drawn.equals(step.slice(ranks=[5]).tasks)
    assert len(read) == 1  # the other ranks are in other files

    # What has no step may be anywhere in its block.
    odd = tasks.head(1).with_columns(
        step=None, kind=pl.lit("other", tasks.schema["kind"]), name=pl.lit("log"),
        start_ns=pl.lit(run.slice(steps=[2]).end_ns), end_ns=pl.lit(step.start_ns + 5),
        stage=None, microbatch=None,
    )  # fmt: skip
    pieces, _ = pieces_at("log", pl.concat([tasks, odd]))
    assert pieces.around(3, step.start_ns, step.end_ns).tasks["name"].to_list() == ["log"]
    # Catalogues of older versions do not say whether such rows are there.
    catalogue = json.loads((tmp_path / "apart" / "dataset.json").read_text())
    for part in catalogue["parts"]:
        for held in part["blocks"].values():
            assert held.pop("stepless") is False
    (tmp_path / "apart" / "dataset.json").write_text(json.dumps(catalogue))
    pieces = pieces_of(store_of(tmp_path / "apart"), engine(workers=1), size=1).got()
    read.clear()
    assert not pieces.around(3, step.start_ns, step.end_ns).tasks.height
    assert read


def sent(work, jobs):
    """Do jobs last first, as other processes would."""
    for index in reversed(range(len(jobs))):
        yield index, pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(jobs[index])))))


def _slowed(found):
    return Stragglers.of_pieces(found).to_dict()


def _report(found):
    return Report.of_pieces(found).to_dict()


def _plain(said):
    said["warnings"] = sorted(said["warnings"], key=str)
    said["notes"] = sorted(said["notes"], key=str)
    return said


def test_report_why_and_stragglers_look_at_large_datasets_in_pieces(tmp_path, monkeypatch):
    run = Job(generate("1f1b", 2, 4), replicas=2, steps=6, jitter=0.1, seed=4).play()
    root = tmp_path / "set"
    dataset(root, *saved(run, tmp_path / "traces"))
    whole = [called(name, root, "-q", cwd=tmp_path) for name in ("report", "why", "stragglers")]
    as_json = called("stragglers", root, "--json", "-q", cwd=tmp_path)
    assert len(as_json.stdout) > 3000
    monkeypatch.setattr("bubblescope.cli.in_pieces.ENOUGH", len(run) // 2)
    monkeypatch.setattr("bubblescope.cli.reading.ENOUGH", len(run) // 2)
    for name, one in zip(("report", "why", "stragglers"), whole, strict=True):
        parts = called(name, root, "-q", cwd=tmp_path)
        assert (parts.returncode, parts.stdout) == (0, one.stdout), parts.stderr
        assert "sampled" not in parts.stdout
    # Long JSON is compressed on its way, and printed piece by piece.
    monkeypatch.setattr("bubblescope.cli.console._PIECE", 999)
    parts = called("stragglers", root, "--json", "-q", cwd=tmp_path)
    assert parts.stdout == as_json.stdout
    few = called("whatif", root, "--stage", "1=1.2", cwd=tmp_path)
    assert "read 3 of the dataset's 6 steps" in " ".join(few.stderr.split())


def test_workers_that_are_asked_for_look_at_small_datasets_too(tmp_path, monkeypatch):
    """So the process that asks needs as little memory as of a large one; one worker is that process."""
    run = Job(generate("1f1b", 2, 4), replicas=1, steps=3, seed=4).play()
    root = tmp_path / "set"
    dataset(root, *saved(run, tmp_path / "traces"))
    whole, looks = called("why", root, "-q", cwd=tmp_path), []

    class Watching(Watched):
        def __call__(self, work, jobs):
            looks.append(len(jobs))
            return super().__call__(work, jobs)

    monkeypatch.setattr("bubblescope.cli.in_pieces.Watched", Watching)
    for workers, of_parts in (("1", False), ("2", True)):
        asked = called("why", root, "-q", "--workers", workers, cwd=tmp_path)
        assert (asked.returncode, asked.stdout) == (0, whole.stdout), asked.stderr
        assert bool(looks) == of_parts


@pytest.mark.parametrize("seed", range(6))
def test_kernels_in_pieces_are_those_of_all_of_it(tmp_path, monkeypatch, seed):
    """Sums, medians and percentiles to the nanosecond; spreads as far as sums of floats go."""
    run = with_kernels(seed)
    root = tmp_path / "set"
    dataset(root, *saved(run, tmp_path / "traces"), block_steps=1 + seed % 2, activities=True)
    whole = sources.load(root, activities=True)
    for by in (None, ("name",), ("stage", "rank", "use"), ("full", "kind")):
        known = Kernels.of(whole, by=by)
        pieces = pieces_of(store_of(root), engine(workers=1), size=1 + 40 * seed).got()
        found = Kernels.of_pieces(kernels_of(pieces, sent, by=by))
        spreads = ["microbatch_spread", "rank_spread"]
        key = list(known.by)
        one, other = (each.table.sort(key) for each in (found, known))
        assert one.drop(spreads).equals(other.drop(spreads))
        assert_frame_equal(one.select(spreads), other.select(spreads))
        assert found.against == known.against
        for name in ("total_ns", "device_ns", "devices"):
            assert getattr(found, name) == getattr(known, name)
    monkeypatch.setattr("bubblescope.cli.in_pieces.ENOUGH", 1)
    parts = called("kernels", root, "-q", cwd=tmp_path)
    monkeypatch.undo()
    assert (parts.returncode, parts.stdout) == (
        0,
        called("kernels", root, "-q", cwd=tmp_path).stdout,
    )


def with_kernels(seed):
    """A run of some ranks with kernels of a few names, of tasks and of none, in steps and in none."""
    random = np.random.default_rng(seed)
    ranks, steps, each = 4 + seed % 3, 3, 30
    count = ranks * steps * each
    at = np.arange(count)
    start = at % (steps * each) * 1000
    length = np.minimum(999, np.maximum(1, random.lognormal(5, 1, count))).astype(int)
    name = random.integers(0, 3, count)
    step = pl.Series(at // each % steps, dtype=pl.Int32)
    if seed % 3 == 1:
        step = step.set(pl.Series(random.random(count) < 0.1), None)
    place = {"rank": at // (steps * each), "device": at % 2, "step": step}
    use = [["compute", "communication", "copy"][one] for one in name.tolist()]
    times = {"start_ns": start, "end_ns": start + length}
    kernels = pl.DataFrame(
        {
            **place,
            **times,
            "use": use,
            "name": [f"kernel{one}" for one in name.tolist()],
            "full": [f"kernel{one}<int>" for one in name.tolist()],
            "microbatch": at % 5,
            "stage": place["rank"] % 2,
            "kind": ["forward" if one else "backward" for one in (at % 2).tolist()],
        }
    )
    spent = pl.DataFrame({**place, **times, "use": use, "spent_ns": length})
    stages = [[rank % 2] for rank in range(ranks)]
    held = pl.DataFrame({"rank": range(ranks), "host": "node", "stages": stages})
    nothing = random_run(1).timeline.tasks.clear()
    return Timeline(nothing, held, activities=kernels, budget=spent)


def test_a_page_of_a_large_dataset_shows_the_median_step_and_the_odd_ranks(tmp_path, monkeypatch):
    slow = Fault(Cause.SLOW_RANK, slow={(2, 1): 1.4})
    run = Job(generate("1f1b", 4, 8), replicas=4, steps=5, jitter=0.01, seed=4).play(slow)
    root = tmp_path / "set"
    dataset(root, *saved(run, tmp_path / "traces"))
    a_step = len(run) // 5
    monkeypatch.setattr("bubblescope.cli.view._PAGE", a_step // 4)
    made = called("view", root, "--no-open", "-o", tmp_path / "x.html", cwd=tmp_path)
    said = " ".join(made.stderr.split())
    assert made.returncode == 0, made.stderr
    assert "read 1 of the dataset's 5 steps" in said
    assert re.search(r"8 of 16 ranks are shown: odd rank \d+, their pipelines, and others", said)
