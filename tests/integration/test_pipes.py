"""What a command prints may be read in part, as `head` does: it still does its work and ends well."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import bubblescope
from bubblescope.record import Recorder
from nsight_maker import Style, pipeline
from places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

RUN = ROOT / "examples/demo/1f1b"


def unread(*arguments: object, cwd: Path, both: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command whose output nobody reads, from its first letter on."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [sys.executable, "-m", "bubblescope", *map(str, arguments)],
            cwd=cwd,
            stdout=writing,
            stderr=writing if both else subprocess.PIPE,
            text=True,
            check=False,
            timeout=300,
            env={key: value for key, value in os.environ.items() if key != "DISPLAY"},
        )
    finally:
        os.close(writing)


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (("export", RUN, "--to", "svg", "-o", "run.svg"), "run.svg"),
        (("view", RUN, "-o", "run.html"), "run.html"),
        (("simulate", "--stages", 4, "--microbatches", 8, "--to", "svg", "-o", "s.svg"), "s.svg"),
        (
            ("simulate", "--json", "--stages", 4, "--microbatches", 8, "--save-plan", "p.csv"),
            "p.csv",
        ),
        (("simulate", "--compare", "1f1b,zb-h1", "--stages", 4, "--microbatches", 8), None),
    ],
)
@pytest.mark.parametrize("both", [False, True])
def test_a_command_whose_reader_went_still_writes_its_file(tmp_path, command, file, both):
    done = unread(*command, cwd=tmp_path, both=both)
    assert done.returncode == 0
    assert "error" not in (done.stderr or "")
    (tmp_path / "read").mkdir()
    beside = subprocess.run(
        [sys.executable, "-m", "bubblescope", *map(str, command)],
        cwd=tmp_path / "read",
        capture_output=True,
        check=True,
    )
    assert beside.stdout
    name = file or "schedules.svg"
    assert (tmp_path / name).read_bytes() == (tmp_path / "read" / name).read_bytes()


@pytest.mark.parametrize(
    "command",
    [("report", RUN), ("why", RUN, "--json"), ("schedules",), ("--help",), ("formats",)],
)
def test_a_command_that_only_prints_ends_well(tmp_path, command):
    done = unread(*command, cwd=tmp_path)
    assert done.returncode == 0
    assert "error" not in done.stderr


@pytest.mark.parametrize(("condition", "code"), [("step > +1%", 1), ("step > +1000%", 0)])
def test_a_verdict_stays_one(tmp_path, condition, code):
    """Exit codes say what they say with a reader."""
    for name, schedule in (("a", "zb-h1"), ("b", "1f1b")):
        run = bubblescope.simulate(schedule, devices=4, microbatches=8, steps=3)
        run.save(tmp_path / f"{name}.bubbles.parquet")
    files = (tmp_path / "a.bubbles.parquet", tmp_path / "b.bubbles.parquet")
    done = unread("compare", *files, "--fail-if", condition, cwd=tmp_path)
    assert done.returncode == code


def test_a_trace_that_cannot_be_read_is_still_an_error(tmp_path):
    done = unread("report", tmp_path / "none.sqlite", cwd=tmp_path)
    assert done.returncode == 2
    assert "none.sqlite" in done.stderr


def test_a_file_that_is_a_pipe_may_lose_its_reader(tmp_path):
    fifo = tmp_path / "run.json"
    os.mkfifo(fifo)
    command = [sys.executable, "-m", "bubblescope", "export", str(RUN), "--to", "json", "-o", fifo]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as writing:
        with fifo.open("rb") as reader:
            assert reader.read(100)
        _, said = writing.communicate(timeout=300)
    assert writing.returncode == 0
    assert "error" not in said


def test_watching_ends_when_nobody_looks(tmp_path):
    """Else it would watch for as long as the job runs."""
    with Recorder(tmp_path / "out", rank=0) as recorder:
        with recorder.step(), recorder.task("forward", microbatch=0):
            pass
        with recorder.step():
            recorder._flush()
            done = unread("watch", tmp_path / "out", "--interval", "0.1", cwd=tmp_path)
    assert done.returncode == 0


def test_vendors_artefacts_are_written(tmp_path):
    [export], _, _ = pipeline(Style())
    trace = export.write(tmp_path / "node0.sqlite")
    assert unread("export", trace, "--to", "csv", "-o", "t.csv", cwd=tmp_path).returncode == 0
    assert (tmp_path / "t.csv").stat().st_size


def test_a_command_without_any_output_ends_as_it_does_with(tmp_path):
    """As where a service starts it: Python then has no streams."""
    for code in (0, 7):
        script = '"$0" -m bubblescope record -o recording -- sh -c "exit $1" >&- 2>&-'
        arguments = ["sh", "-c", script, sys.executable, str(code)]
        done = subprocess.run(arguments, cwd=tmp_path, check=False)
        assert done.returncode == (code or 3)  # which says that nothing was recorded
