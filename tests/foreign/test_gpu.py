"""Recordings, traces and predictions on an NVIDIA GPU, against kernels that note when they run.

They need a GPU with PyTorch and CuPy, and some of them cupti-python or Nsight Compute; without, they
are skipped. `pytest -s` shows the figures that docs/recording.md and docs/why.md state.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec

import numpy as np
import polars as pl
import pytest

import bubblescope
from bubblescope.analysis.device_budget import budget
from bubblescope.model.budget import Use
from places import ROOT

if not shutil.which("nvidia-smi") or not find_spec("cupy") or not find_spec("torch"):
    pytest.skip("needs an NVIDIA GPU, PyTorch and CuPy", allow_module_level=True)

PROGRAMS = ROOT / "tests" / "helpers" / "gpu"


def run(*command, **variables):
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [str(one) for one in command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def program(name, *arguments):
    return run(sys.executable, PROGRAMS / f"{name}.py", *arguments)


def training(*options):
    return sys.executable, PROGRAMS / "training.py", *options


def recorded(folder, command, *options):
    bubblescope_of = (
        sys.executable,
        "-m",
        "bubblescope",
        "record",
        "--output",
        folder,
        *options,
        "--",
    )
    return run(*bubblescope_of, *command)


def show(title, **figures):
    print(f"\n{title}")
    for name, values in figures.items():
        at = np.percentile(values, [0, 5, 50, 95, 100]).round().astype(int).tolist()
        print(f"  {name:12} least, 5 %, median, 95 %, most: {at} ns")


class Truth:
    """When the kernels of each task ran, on the host's monotonic clock up to a constant."""

    def __init__(self, folder):
        with np.load(folder / "truth.npz") as told:
            noted, owner, ties = told["noted"], told["owner"], told["ties"]
            of = {name: told[name] for name in ("step", "kind", "microbatch", "sleeps")}
        self.noted = noted - self._drift(noted, ties)
        tasks = np.arange(len(of["step"]))
        rows = [np.flatnonzero(owner == task) for task in tasks]
        busy = [(noted[one, 1] - noted[one, 0]).sum() for one in rows]
        self.tasks = pl.DataFrame(
            {
                **of,
                "kernels": [len(one) for one in rows],
                "began": [int(self.noted[one, 0].min()) for one in rows],
                "ended": [int(self.noted[one, 1].max()) for one in rows],
                "ran": busy,
            },
            schema_overrides={"step": pl.Int32, "microbatch": pl.Int32},
        )

    @staticmethod
    def _drift(noted, ties):
        """Return by how much the GPU's clock is ahead at each moment, by the tightest ties."""
        before, after, slot = ties.T
        middle = noted[slot].mean(axis=1)
        ahead = middle - (before + after) / 2
        early = np.arange(len(ties)) < len(ties) // 2
        points = []
        for half in (early, ~early):
            best = np.flatnonzero(half)[np.argsort((after - before)[half])[:5]]
            points.append((middle[best].mean(), ahead[best].mean()))
        (at, first), (then, last) = points
        return (first + (last - first) / (then - at) * (noted - at)).astype(np.int64)

    def beside(self, recording):
        """Return how far a recording is off: from the first kernel's start, the last one's end, ..."""
        tasks = recording.timeline.tasks.with_columns(pl.col("kind").cast(pl.String))
        both = self.tasks.join(tasks, on=["step", "kind", "microbatch"], validate="1:1")
        assert both.height == self.tasks.height
        end = (both["end_ns"] - both["ended"]).to_numpy()
        start = (both["start_ns"] - both["began"]).to_numpy()
        constant = int(np.median(end))
        return both, start - constant, end - constant


@pytest.fixture(scope="module")
def by_events(tmp_path_factory):
    folder = tmp_path_factory.mktemp("events")
    program("tasks", "cuda", folder, folder / "trace.json")
    return folder


def test_events_are_where_the_stream_reached_them(by_events):
    both, start, end = Truth(by_events).beside(bubblescope.load(by_events / "attempt-0001"))
    launched = ~both["sleeps"].to_numpy() & (both["kind"] != "send_forward").to_numpy()
    show("events, tasks whose host does not sleep", start=start[launched], end=end[launched])
    # The end is the last kernel's; the start is before the first one's by as long as its launch took.
    assert np.abs(end[launched]).max() < 50_000
    assert start[launched].max() < 5_000
    assert np.median(start[launched]) > -10_000


def test_marks_in_a_trace_of_torch_profiler_have_the_kernels_times(by_events):
    both, start, end = Truth(by_events).beside(bubblescope.load(by_events / "trace.json"))
    show("torch.profiler", start=start, end=end)
    for off in (start, end):
        assert np.abs(off).max() < 5_000
    assert (both["busy_ns"] - both["ran"]).is_between(0, 3_000 * both["kernels"]).all()


def test_cupti_has_the_kernels_times(tmp_path):
    pytest.importorskip("cupti")
    program("tasks", "cupti", tmp_path)
    both, start, end = Truth(tmp_path).beside(bubblescope.load(tmp_path))
    over = both["busy_ns"] - both["ran"]
    show("CUPTI", start=start, end=end, busy_a_kernel=over / both["kernels"])
    for off in (start, end):
        assert np.abs(off).max() < 5_000
    assert over.is_between(0, 3_000 * both["kernels"]).all()


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """A pipeline of two processes that share the GPU, recorded and traced at the same time."""
    folder = tmp_path_factory.mktemp("pipeline")
    two = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    recorded(folder / "out", [*two, PROGRAMS / "pipeline.py", folder], "--marks", "torch")
    return folder


def passes(loaded):
    """Return the forwards and backwards of a run from the third step on."""
    return (
        loaded.timeline.tasks.with_columns(pl.col("kind").cast(pl.String))
        .filter(pl.col("kind").is_in(["forward", "backward"]), pl.col("step") >= 3)
        .select("rank", "step", "kind", "stage", "microbatch", "start_ns", "end_ns")
    )


def traces_of(folder):
    return [folder / f"rank{rank}.json" for rank in range(2)]


def test_a_pipeline_of_two_processes_is_the_same_recorded_and_traced(pipeline):
    out, traced = bubblescope.load(pipeline / "out"), bubblescope.load(traces_of(pipeline))
    keys = ["rank", "step", "kind", "stage", "microbatch"]
    both = passes(out).join(passes(traced), on=keys, validate="1:1")
    assert both.height == passes(out).height == passes(traced).height == 2 * 5 * 12
    end = (both["end_ns"] - both["end_ns_right"]).to_numpy()
    start = (both["start_ns"] - both["start_ns_right"]).to_numpy()
    constant = int(np.median(end))  # of both ranks: two clocks, both of the host
    for kind in ("forward", "backward"):
        of = (both["kind"] == kind).to_numpy()
        show(f"events less kernels, {kind}s", start=start[of] - constant, end=end[of] - constant)
    assert np.abs(np.median(end - constant)) < 50_000
    rates = [
        float(np.mean([rate for step, rate in rates_of(one).items() if step >= 3]))
        for one in (out, traced)
    ]
    print(f"  bubble rate recorded {rates[0]:.2%}, traced {rates[1]:.2%}")
    assert abs(rates[0] - rates[1]) < 0.01


def test_a_device_whose_host_receives_waits_for_the_other_rank(pipeline):
    spent = budget(bubblescope.load(traces_of(pipeline)).timeline)
    print("\nrank, its host received for, its device waited for other ranks, idle, in ms")
    for rank, of in spent.per_rank.items():
        received = int((pipeline / f"rank{rank}.received").read_text())
        waited = of.idle[Use.RANK_WAIT]
        print(f"  {rank} {received / 1e6:9.1f} {waited / 1e6:9.1f} {of.idle_ns / 1e6:9.1f}")
        assert 0.85 * received < waited < 1.2 * received  # all of a gap is of one class
        assert waited > 0.75 * of.idle_ns


def rates_of(loaded):
    """Return the bubble rate of each step, from the tables of tasks alone."""
    found = {}
    for (step,), tasks in passes(loaded).group_by("step"):
        span = tasks["end_ns"].max() - tasks["start_ns"].min()
        busy = (tasks["end_ns"] - tasks["start_ns"]).sum()
        found[step] = 1 - busy / (span * tasks["rank"].n_unique())
    return found


def test_passes_of_that_pipeline_are_found_without_marks(pipeline, tmp_path):
    for path in traces_of(pipeline):
        told = json.loads(path.read_text())
        events = told["traceEvents"]
        told["traceEvents"] = [
            one for one in events if "bubblescope" not in str(one.get("name", ""))
        ]
        assert len(told["traceEvents"]) < len(events)
        (tmp_path / path.name).write_text(json.dumps(told))
    bare = bubblescope.load(traces_of(tmp_path))
    true, found = passes(bubblescope.load(traces_of(pipeline))), bare.timeline.tasks
    found = found.with_columns(pl.col("kind").cast(pl.String)).filter(
        pl.col("kind").is_in(["forward", "backward"])
    )
    print("\n", found.group_by("rank", "kind").len().sort("rank", "kind").rows())
    said = str(bare.report())
    print(said[said.index("\nSchedule") :][:300])
    both = true.join(found, on=["rank", "kind"]).filter(
        (
            pl.min_horizontal("end_ns", "end_ns_right")
            - pl.max_horizontal("start_ns", "start_ns_right")
        )
        > 0.5 * (pl.col("end_ns") - pl.col("start_ns"))
    )
    once = both.unique(["rank", "kind", "step", "microbatch"], keep="none")
    off = (both["end_ns_right"] - both["end_ns"]).to_numpy()
    show("without marks", start=(both["start_ns_right"] - both["start_ns"]).to_numpy(), end=off)
    print(f"  {both.height} of {true.height} passes, {both.height - once.height} by more than one")
    assert both.height == true.height


def test_gaps_have_the_class_and_length_that_they_were_made_with(tmp_path):
    program("gaps", tmp_path / "gaps.json")
    truth = Counter()
    for what, length in json.loads((tmp_path / "gaps.truth").read_text()):
        truth[what] += length
    found = budget(bubblescope.load(tmp_path / "gaps.json").timeline).overall.idle
    print("\ngaps: class, made, found, in us")
    for what, made in truth.items():
        print(f"  {what:16}{made / 1e3:12.1f}{found.get(Use(what), 0) / 1e3:12.1f}")
    for what, made in truth.items():
        rest = 6 * 250_000  # of six gaps: their launch calls, which are a class of their own
        more = 6 * 1_500_000 if what == "host_python" else 100_000  # Python between the cases
        assert -rest < found.get(Use(what), 0) - made < more


@pytest.mark.parametrize("size", [(512, 12, 128, 4), (1024, 6, 512, 8), (768, 3, 1024, 4)])
def test_a_host_that_keeps_ahead_takes_what_was_predicted(tmp_path, size):
    names = ("width", "layers", "length", "batch")
    options = [part for name, of in zip(names, size, strict=True) for part in (f"--{name}", of)]
    trace = tmp_path / "trace.json"
    took = json.loads(run(*training("--ahead", trace, *options)))
    said = bubblescope.load(trace).whatif(lambda run: run.host_never_late()).predictions[0]
    low, high = said.best_ns / 1e6, said.predicted_ns / 1e6
    print(f"\n{size}: {said.step_ns / 1e6:.2f} ms; said {low:.2f} to {high:.2f}; was {took}")
    for measured in took.values():
        assert low * 0.97 < measured < high * 1.03


def test_operations_are_as_many_as_torch_counts(tmp_path):
    counted = json.loads(run(*training("--flops")))
    run(*training("--profile", tmp_path / "trace.json", "--steps", "5"))
    flops = bubblescope.load(tmp_path / "trace.json").timeline.flops
    [step] = flops["step"].unique().sort().to_list()[:1]
    ours = dict(flops.filter(step=step).group_by("name").agg(pl.col("flops").sum()).iter_rows())
    for name, flop in counted.items():
        operator = name.replace("aten.", "aten::")
        # torch counts causal attention as if it were not; half of it is not executed.
        assert ours[operator] == (flop / 2 if "attention" in name else flop)


def ncu(tmp_path, *options):
    """Return Nsight Compute's row of each kernel of two recorded steps, as dictionaries."""
    if not shutil.which("ncu"):
        pytest.skip("needs Nsight Compute")
    log = tmp_path / "ncu.csv"
    tool = ["ncu", "--nvtx", "--metrics", "gpu__time_duration.sum", "--clock-control", "none"]
    tool += ["--csv", "--page", "raw", "--log-file", log, *options]
    small = training("--steps", "3", "--width", "256", "--layers", "2", "--length", "64")
    window = ("--steps", "2:3", "--marks", "nvtx", *(["--profiler-api"] if options else []))
    recorded(tmp_path / "out", [*tool, *small], *window)
    lines = (line for line in log.read_text().splitlines() if line.startswith('"'))
    names, _, *rows = csv.reader(lines)
    return [dict(zip(names, row, strict=True)) for row in rows]


@pytest.fixture(scope="module")
def small_trace(tmp_path_factory):
    """torch.profiler's trace of a step of the same job, with our marks."""
    folder = tmp_path_factory.mktemp("small")
    path = folder / "trace.json"
    small = training("--steps", "3", "--width", "256", "--layers", "2", "--length", "64")
    recorded(folder / "out", [*small, "--profile", path], "--marks", "torch")
    return bubblescope.load(path, activities=True)


def kernels_of(trace):
    """Return what Nsight Compute would call kernels: neither copies nor fills."""
    return trace.timeline.activities.filter(step=2).filter(
        pl.col("use") != "copy", ~pl.col("name").str.starts_with("Mem")
    )


def test_nsight_compute_sees_our_nvtx_ranges_around_the_kernels_that_we_put_there(
    tmp_path, small_trace
):
    mark = re.compile(r"bubblescope:forward step=\d+ .*?microbatch=(\d+)")
    ranges = Counter()
    for row in ncu(tmp_path):
        [said] = [value for name, value in row.items() if "Push/Pop_Range" in name]
        if found := mark.search(said):
            ranges[int(found[1])] += 1
    ours = kernels_of(small_trace).filter(kind="forward").group_by("microbatch").len()
    assert dict(ranges) == dict(ours.iter_rows())


def test_nsight_compute_is_switched_on_for_the_recorded_step_alone(tmp_path, small_trace):
    rows = ncu(tmp_path, "--profile-from-start", "off")
    assert len(rows) == kernels_of(small_trace).height
