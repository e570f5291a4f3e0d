"""Runs a command with little memory and time, and says what it took."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

MIB = 1 << 20


class Ran(NamedTuple):
    """What became of a command.

    Attributes:
        code: Its exit code; below 0, the signal that ended it.
        said: All that it and what it loads printed.
        mib: The most memory that it held.
        seconds: Processor time that it took, of all threads.
    """

    code: int
    said: str
    mib: float
    seconds: float


_RUN = """
import json, os, resource, subprocess, sys

told, mib, seconds, *command = sys.argv[1:]
size, seconds = int(mib) << 20, int(seconds)

def limit():
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

started = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=limit)
_, status, used = os.wait4(started.pid, 0)
with open(told, "w") as file:
    spent = used.ru_utime + used.ru_stime
    json.dump([os.waitstatus_to_exitcode(status), used.ru_maxrss / 1024, spent], file)
"""
"""Runs a command within limits. It is a process of its own, and a small one: the most memory that a
process ever held counts what the one held that started it."""


def bounded(*arguments: object, mib: int = 3000, seconds: int = 60) -> Ran:
    """Run `bubblescope` in a process of its own, with so much address space and processor time.

    Address space is what `ulimit -v` bounds; it is more than the memory that is held. What waits takes
    no processor time, and is killed after ten times as long.
    """
    with tempfile.TemporaryDirectory() as folder:
        output, told = Path(folder) / "said", Path(folder) / "told"
        command = [sys.executable, "-m", "bubblescope", *map(str, arguments)]
        with output.open("wb") as said:
            started = subprocess.Popen(
                [sys.executable, "-S", "-c", _RUN, str(told), str(mib), str(seconds), *command],
                stdout=said,
                stderr=subprocess.STDOUT,
                env=os.environ | {"POLARS_MAX_THREADS": "2"},
                start_new_session=True,
            )
            try:
                started.wait(10 * seconds)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
        text = output.read_text(errors="replace")
        if not told.exists():
            return Ran(-signal.SIGKILL, text, 0.0, 0.0)
        code, most, spent = json.loads(told.read_text())
    return Ran(code, text, most, spent)


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return sum(one.stat().st_size for one in [path, *path.rglob("*")] if one.is_file())
