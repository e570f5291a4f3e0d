"""Processes that try inputs, so that one that ends or stops its process ends nothing else."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fuzz.seeds import all_targets
from fuzz.serving import PRINTED, READY, serve
from fuzz.trial import FAILED, Finding, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from fuzz.inputs import Input

PATIENCE_S: Final = 30.0
"""Seconds of processor after which an input is taken to hang; few take more than one."""
_IDLE: Final = 4
"""How many times as long by the clock one may take, which is waiting or on a busy machine."""
_LOOK_S: Final = 0.5
_LONG_START_S: Final = 120.0
_IN_MEMORY: Final = Path("/dev/shm")  # where a file costs next to nothing


class Worker:
    """A process that tries one input at a time, and is replaced when it dies.

    Args:
        data: Where real traces are; None for made ones alone.
        patience_s: How long to wait for an input, in seconds of processor.
        ask: As for `Trial`, if it is not to be the command line.
    """

    def __init__(
        self,
        data: Path | None = None,
        *,
        patience_s: float = PATIENCE_S,
        ask: Callable[..., Any] | None = None,
    ) -> None:
        self._data = data
        self._patience_s = patience_s
        self._ask = ask
        self._context = multiprocessing.get_context("spawn")
        self._folder = Path(
            tempfile.mkdtemp(prefix="fuzz-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None)
        )
        self._process: Any = None
        self._connection: Connection[Any, Any] | None = None

    def __call__(self, one: Input) -> Outcome:
        """Try an input; what it does to the process is a finding."""
        connection = self._connection or self._start()
        try:
            connection.send(one)
            if self._answered(connection):
                outcome: Outcome = connection.recv()
                return outcome
            kind, where = "hang", f"{one.target}: takes more than {self._patience_s:.0f} s"
        except (EOFError, ConnectionError):
            self._process.join(_LONG_START_S)
            code = self._process.exitcode
            if code == 1:  # Python's own end: the fault is here, not in what is tried
                raise RuntimeError(f"{one}: {self._printed()}") from None
            kind, where = "abort", f"{one.target}: ends with code {code}"
        self.stop()
        finding = Finding(kind, where, self._printed())
        return Outcome(FAILED, (finding,), frozenset(), frozenset(), self._patience_s, 0.0)

    def write(self, one: Input, folder: Path) -> None:
        """Make an input where it can be looked at."""
        with tempfile.TemporaryDirectory() as sound:
            all_targets(self._data)[one.target].seeds[one.seed](Path(sound))
            one.write(folder, Path(sound))

    def close(self) -> None:
        """End the process, and leave nothing of it."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answered(self, connection: Connection[Any, Any]) -> bool:
        """Wait for an answer, for as long as there is patience."""
        began, spent = time.monotonic(), self._spent()
        while not connection.poll(_LOOK_S):
            late = time.monotonic() - began > _IDLE * self._patience_s
            if late or self._spent() - spent > self._patience_s:
                return False
        return True

    def _spent(self) -> float:
        """Return the seconds of processor that the process has had; 0 where nobody counts them."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text("ascii", "replace")
        except OSError:
            return 0.0
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _printed(self) -> str:
        return (self._folder / PRINTED).read_text("utf-8", "replace")[-3000:]

    def stop(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._connection = None

    def _start(self) -> Connection[Any, Any]:
        # More threads than there are small tables are slow, and take addresses.
        os.environ.setdefault("POLARS_MAX_THREADS", "1")
        ours, theirs = self._context.Pipe()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        given = (theirs, self._folder, self._data, self._ask)
        self._process = self._context.Process(target=serve, args=given, daemon=True)
        self._process.start()
        theirs.close()
        self._connection = ours
        if not ours.poll(_LONG_START_S) or ours.recv() != READY:
            raise RuntimeError("a process that tries inputs did not start")
        return ours
