"""Runs a command with little memory and time, and says what it took."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

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


def bounded(*arguments: object, mib: int = 3000, seconds: int = 60) -> Ran:
    """Run `bubblescope` in a process of its own, with so much address space and processor time.

    Address space is what `ulimit -v` bounds; it is more than the memory that is held.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with tempfile.TemporaryFile() as output:
        started = subprocess.Popen(
            [sys.executable, "-m", "bubblescope", *map(str, arguments)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            preexec_fn=limit,  # noqa: PLW1509  no thread holds a lock that it needs
            env=os.environ | {"POLARS_MAX_THREADS": "2"},
        )
        ended = time.monotonic() + 10 * seconds  # what waits takes no processor time
        while not (found := os.wait4(started.pid, os.WNOHANG))[0]:
            if time.monotonic() > ended:
                started.kill()
            time.sleep(0.005)
        _, status, used = found
        started.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read().decode(errors="replace")
    return Ran(started.returncode, said, used.ru_maxrss / 1024, used.ru_utime + used.ru_stime)


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files of a folder."""
    return sum(one.stat().st_size for one in [path, *path.rglob("*")] if one.is_file())
