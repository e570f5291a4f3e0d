"""A vendor's profiler that runs at the same time traces the recorded steps, and nothing else.

The CUDA runtime is a library made here, which notes when each of its functions is called.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from bubblescope import sources
from bubblescope.record import Recorder, profiler_api
from full import needs

if TYPE_CHECKING:
    from pathlib import Path

RUNTIME = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int note(const char *name) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    FILE *log = fopen(getenv("FAKE_CUDART_LOG"), "a");
    fprintf(log, "%s %s %lld\n", getenv("RANK") ? getenv("RANK") : "0", name,
            (long long)now.tv_sec * 1000000000LL + now.tv_nsec);
    fclose(log);
    return getenv("FAKE_CUDART_ERROR") ? atoi(getenv("FAKE_CUDART_ERROR")) : 0;
}

int cudaProfilerStart(void) { return note("start"); }
int cudaProfilerStop(void) { return note("stop"); }
int cudaDeviceSynchronize(void) { return note("wait"); }
"""

BY_HAND = """
import ctypes, os, time
from bubblescope.record import CpuTimer, Recorder

if os.environ.get("LOADED"):  # as a framework loads its own, by a path that nobody else finds
    ctypes.CDLL(os.environ["LOADED"])
with Recorder(
    "recording", rank=0, timer=CpuTimer(), start=2, stop=4, profiler_api=True
) as recorder:
    for _ in range(6):
        with recorder.step(), recorder.task("forward", microbatch=0):
            time.sleep(0.001)
"""

TRAIN = """
import torch
from torch import nn

model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory) -> Path:
    """Return a folder with a CUDA runtime."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "cudart.c").write_text(RUNTIME)
    library = folder / "libcudart.so.12"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, folder / "cudart.c"], check=True, timeout=120
    )
    (folder / "libcudart.so").symlink_to(library)  # before one that is installed
    return folder


def run(tmp_path: Path, program: str, *before: str, **variables: str):
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(program))
    environment = {**os.environ, "FAKE_CUDART_LOG": str(tmp_path / "calls"), **variables}
    return subprocess.run(
        [*before, sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=tmp_path,
        env={"PYTHONWARNINGS": "default", **environment},
    )


def calls(tmp_path: Path) -> list[tuple[str, int]]:
    path = tmp_path / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(name, int(at)) for _, name, at in map(str.split, lines)]


def check_window(tmp_path: Path, steps: list[int]) -> None:
    """Check that the profiler was on for all tasks of the recorded steps."""
    [(first, on), (second, _), (third, off)] = calls(tmp_path)
    assert (first, second, third) == ("start", "wait", "stop")
    timeline = sources.load(tmp_path / "recording", clock="raw")
    assert timeline.steps == steps
    offset = time.time_ns() - time.monotonic_ns()
    slack = 50_000_000  # the two clocks are read one after the other
    assert on + offset <= timeline.start_ns + slack
    assert timeline.end_ns <= off + offset + slack


@pytest.mark.parametrize("found", ["by the loader", "in the job"])
def test_the_profiler_is_on_for_the_recorded_steps(tmp_path, runtime, found):
    where = {"by the loader": "LD_LIBRARY_PATH", "in the job": "LOADED"}[found]
    value = str(runtime) if where == "LD_LIBRARY_PATH" else str(runtime / "libcudart.so.12")
    done = run(tmp_path, BY_HAND, **{where: value})
    assert (done.returncode, done.stderr) == (0, "")
    check_window(tmp_path, [2, 3])


def test_an_unedited_job_needs_only_the_option(tmp_path, runtime):
    """The command that stands behind `nsys profile --capture-range=cudaProfilerApi`."""
    needs("torch")
    command = (sys.executable, "-m", "bubblescope", "record", "--steps", "2:4", "--profiler-api")
    done = run(tmp_path, TRAIN, *command, "--", LD_LIBRARY_PATH=str(runtime))
    assert done.returncode == 0, done.stderr
    check_window(tmp_path, [2, 3])


def test_a_window_without_an_end_ends_with_the_recording(tmp_path, runtime):
    program = BY_HAND.replace("start=2, stop=4", "start=1")
    assert run(tmp_path, program, LD_LIBRARY_PATH=str(runtime)).returncode == 0
    check_window(tmp_path, [1, 2, 3, 4, 5])


def test_a_job_that_fails_in_the_window_switches_it_off(tmp_path, runtime):
    program = BY_HAND.replace("time.sleep(0.001)", "assert recorder._step < 3")
    assert run(tmp_path, program, LD_LIBRARY_PATH=str(runtime)).returncode == 1
    assert [name for name, _ in calls(tmp_path)] == ["start", "wait", "stop"]


def test_without_the_option_nothing_is_called(tmp_path, runtime):
    program = BY_HAND.replace(", profiler_api=True", "")
    assert run(tmp_path, program, LD_LIBRARY_PATH=str(runtime)).returncode == 0
    assert calls(tmp_path) == []


def test_a_runtime_that_refuses_is_one_warning(tmp_path, runtime):
    done = run(tmp_path, BY_HAND, LD_LIBRARY_PATH=str(runtime), FAKE_CUDART_ERROR="35")
    assert done.returncode == 0
    assert done.stderr.count("RuntimeWarning") == 1
    assert "cudaProfilerStart returned error 35" in done.stderr
    assert sources.load(tmp_path / "recording").steps == [2, 3]


def test_so_is_a_machine_without_a_runtime(tmp_path, monkeypatch):
    monkeypatch.setattr(profiler_api, "_NAMES", ("libnone.so",))
    monkeypatch.setattr(profiler_api, "_LOADED", re.compile("nothing is loaded"))
    with pytest.warns(RuntimeWarning, match=r"no CUDA runtime .*recording goes on"):
        profiler_api.switch(tmp_path).on()


class Npu:
    """What of `torch_npu.profiler` is used, noting each call."""

    ExportType = SimpleNamespace(Db="db")
    ProfilerLevel = SimpleNamespace(Level1="Level1")

    def __init__(self) -> None:
        self.calls: list[object] = []

    def _ExperimentalConfig(self, **how):  # noqa: N802  as it is called there
        return how

    def tensorboard_trace_handler(self, folder: str):
        return folder

    def profile(self, *, on_trace_ready, experimental_config):
        self.calls.append((on_trace_ready, experimental_config))
        return SimpleNamespace(
            start=lambda: self.calls.append("start"), stop=lambda: self.calls.append("stop")
        )


def test_on_ascend_its_own_profiler_writes_beside_the_recording(tmp_path, monkeypatch):
    npu = Npu()
    monkeypatch.setitem(sys.modules, "torch_npu.profiler", npu)
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(profiler=npu))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(npu=None))
    switch = profiler_api.switch(tmp_path)
    switch.on()
    switch.on()  # of every step of the window
    switch.off()
    switch.off()
    config = {"export_type": "db", "profiler_level": "Level1", "mstx": True}
    assert npu.calls == [(str(tmp_path), config), "start", "stop"]


def test_a_job_without_torch_npu_that_says_it_has_npus_is_one_warning(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu.profiler", None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(npu=None))
    with pytest.warns(RuntimeWarning, match="cannot switch the device's profiler"):
        profiler_api.switch(tmp_path).on()


def test_the_profiler_is_off_outside_of_the_window(tmp_path, monkeypatch):
    """As seen from the tasks: those of no recorded step begin with it off."""
    seen = []

    class Profiler:
        on = False

        def start(self) -> None:
            Profiler.on = True

        def stop(self) -> None:
            Profiler.on = False

    monkeypatch.setattr(
        "bubblescope.record.recorder.switch", lambda _: profiler_api.Switch(Profiler)
    )
    with Recorder(tmp_path, rank=0, start=1, stop=3, profiler_api=True) as recorder:
        for step in range(5):
            with recorder.step():
                seen.append((step, Profiler.on))
        seen.append(("after", Profiler.on))
    assert seen == [(0, False), (1, True), (2, True), (3, False), (4, False), ("after", False)]
