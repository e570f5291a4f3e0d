"""A command ends its process at once, and still does all that was to be done at its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

RUN = """
import atexit, sys, threading, time
import bubblescope.__main__ as command

def main():
    {main}

command.main = main
command.run()
"""


def ended(
    main: str, out: int | IO[str] | None = subprocess.PIPE
) -> subprocess.CompletedProcess[str]:
    """Run a command of which only this is left."""
    run = [sys.executable, "-c", RUN.format(main=main)]
    buffered = {key: text for key, text in os.environ.items() if key != "PYTHONUNBUFFERED"}
    return subprocess.run(
        run, text=True, env=buffered, check=False, stderr=subprocess.PIPE, stdout=out
    )


@pytest.mark.parametrize("code", [0, 2, 130])
def test_the_exit_code_is_that_of_the_command(code):
    assert ended(f"sys.exit({code})").returncode == code


def test_what_was_printed_and_what_was_registered_is_there():
    main = "print('answer', end=' '); atexit.register(print, 'and more', end=''); sys.exit(3)"
    done = ended(main)
    assert (done.stdout, done.stderr, done.returncode) == ("answer and more", "", 3)


def test_threads_end_first():
    late = "lambda: (time.sleep(0.2), print('late'))"
    done = ended(f"threading.Thread(target={late}).start(); sys.exit(0)")
    assert (done.stdout, done.returncode) == ("late\n", 0)


def test_a_bug_shows_where_it_is():
    done = ended("raise RuntimeError('bug')")
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: bug\n")


def test_a_disk_without_room_is_no_success():
    with Path("/dev/full").open("w") as full:
        assert ended("print('answer'); sys.exit(0)", full).returncode == 120


def test_nothing_is_taken_apart():
    held = "globals()['held'] = type('Held', (), {'__del__': lambda self: print('apart')})()"
    assert ended(f"{held}; sys.exit(0)").stdout == ""
    assert ended(f"{held}; raise RuntimeError").stdout == "apart\n"
