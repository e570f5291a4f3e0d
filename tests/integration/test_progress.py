"""What long work says that it is at: to a person at a terminal, and to nobody else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import textwrap

import pytest

from bubblescope import facade
from bubblescope.analysis.view import View
from bubblescope.render.html import page
from bubblescope.render.text.compare import Comparison
from bubblescope.render.text.report import Report
from bubblescope.render.text.stragglers import Stragglers
from bubblescope.render.text.whatif import Predictions
from bubblescope.render.text.why import Explanation
from bubblescope.sources import load
from places import ROOT

RUN = ROOT / "examples" / "demo" / "1f1b"
STUDY = [
    "recognising the schedule",
    "replaying the schedule",
    "measuring bubbles",
    "explaining idle time",
]
SLOW = """
import time
from types import SimpleNamespace
from bubblescope import cli
from bubblescope.analysis import study
from bubblescope.cli import console

class Timer:
    rings = []
    def __init__(self, seconds, ring):
        assert seconds == 1.0
        self.ring = ring
    def start(self):
        self.rings.append(self.ring)
    def cancel(self):
        self.rings.remove(self.ring)

quick = study.ledger_in_turn
def ledger(*arguments, **more):
    for ring in Timer.rings:
        ring()
    time.sleep(0.5)
    return quick(*arguments, **more)
console.threading = SimpleNamespace(Timer=Timer)
study.ledger_in_turn = ledger
cli.main()
"""
"""A command whose second is over when it explains idle time, however busy the machine is."""


class Told:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.phases: list[str] = []

    def begin(self, what: str, total: int | None = None) -> None:
        del total
        self.phases.append(what)

    def advance(self, amount: int = 1) -> None:
        """Move on."""


@pytest.fixture(scope="module")
def run():
    return load(RUN)


@pytest.mark.parametrize(
    ("work", "phases"),
    [
        (lambda run, told: Report.of(run, progress=told), [*STUDY, "adding up whole steps"]),
        (lambda run, told: Explanation.of(run, progress=told), [*STUDY, "weighing causes"]),
        (lambda run, told: Predictions.of(run, progress=told), [*STUDY, "answering what-ifs"]),
        (
            lambda run, told: Stragglers.of(run, progress=told),
            ["ordering operations", "replaying steps without stragglers"],
        ),
        (lambda run, told: Comparison.of(run, run, progress=told), ["comparing the runs"]),
        (
            lambda run, told: View.of(run, progress=told),
            [*STUDY, "answering what-ifs", "summing up"],
        ),
        (lambda _, told: load(RUN, progress=told), ["reading recordings"]),
    ],
)
def test_long_work_says_what_it_is_at(run, work, phases):
    told = Told()
    work(run, told)
    assert told.phases == phases


def test_writing_is_told_last(run, tmp_path):
    for name in ("run.svg", "run.csv", "run.html", "run.pftrace"):
        told = Told()
        facade.write(run, tmp_path / name, progress=told)
        assert told.phases[-1] == f"writing {name}"
    told = Told()
    page.write(View.of(run), tmp_path / "run.html", progress=told)
    assert told.phases == ["writing run.html"]


def watched(*arguments: str, **variables: str) -> str:
    """Return what a command with a slow ledger prints to a terminal of its own as its error stream."""
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key not in {"CI", "NO_COLOR"}}
    environment |= {"TERM": "xterm", "COLUMNS": "80", **variables}
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SLOW), *arguments],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env=environment,
    ) as process:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 1 << 16):
                said += piece
        except OSError:  # Linux says so that the other end is closed
            pass
        assert process.wait() == 0, said
    os.close(ours)
    return said.decode()


def test_a_person_sees_what_takes_longer_than_a_second():
    said = watched("why", str(RUN))
    assert "explaining idle time" in said
    assert "reading" not in said  # which took less
    assert "\x1b[3" in said  # colours
    assert "\x1b[3" not in watched("why", str(RUN), NO_COLOR="1").replace("\x1b[3A", "")


@pytest.mark.parametrize(
    ("options", "variables"), [(["-q"], {}), ([], {"CI": "true"}), ([], {"TERM": "dumb"})]
)
def test_nobody_else_does(options, variables):
    assert "explaining" not in watched("why", str(RUN), *options, **variables)


def test_a_pipe_is_silent_even_if_colours_are_forced():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SLOW), "why", str(RUN)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"},
    )
    assert "explaining" not in done.stderr
