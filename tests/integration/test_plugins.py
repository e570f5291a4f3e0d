"""Another package, installed as any other, adds a trace format, names, an output and a command."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from places import ROOT

PACKAGE = ROOT / "tests" / "plugin"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Install the package into a folder of its own."""
    place = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-build-isolation", "--target", place, PACKAGE]
    subprocess.run([*pip, *alone], check=True)
    return place


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "run.toy"
    path.write_text("0 ahead-0 0 10\n1 ahead-0 10 20\n1 back-0 20 40\n0 back-0 40 60\n")
    return path


def python(site, *arguments, cwd):
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(site), "COLUMNS": "120"},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def bubblescope(site, *arguments, cwd):
    return python(site, "-m", "bubblescope", *arguments, cwd=cwd)


def test_its_format_is_detected_and_its_names_are_understood(site, trace, tmp_path):
    said = bubblescope(site, "report", trace, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "2 ranks · 1 step · 4 tasks" in said.stdout
    assert "read from 1 trace (toy)" in said.stdout


def test_its_names_are_understood_in_traces_of_ours_too(site, tmp_path):
    code = "from bubblescope.names.parser import NameParser as P; print(P().parse('back-7'))"
    assert "microbatch=7" in python(site, "-c", code, cwd=tmp_path).stdout


def test_its_output_is_written_like_ours(site, trace, tmp_path):
    said = bubblescope(site, "export", "--to", "toy-count", trace, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "run.count").read_text() == "4 tasks\n"
    assert "toy-count" in bubblescope(site, "formats", cwd=tmp_path).stdout


def test_its_command_stands_beside_ours(site, trace, tmp_path):
    said = bubblescope(site, "toy", trace, cwd=tmp_path)
    assert said.stdout == "4 tasks, says another package\n"
    assert "Count the tasks of a run." in bubblescope(site, "--help", cwd=tmp_path).stdout


def test_without_it_nothing_of_it_is_known(trace, tmp_path):
    said = bubblescope("", "report", trace, cwd=tmp_path)
    assert said.returncode == 2
    assert "is not a trace of a known format" in said.stderr
