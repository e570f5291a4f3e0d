"""When garbage collections began and ended, noted without running a line of Python.

A signal that comes while Python collects garbage is handled in the next line of Python. If that is one
of a callback of the collector's, what the job's handler raises there (as Ctrl-C does, or a handler of
SIGTERM that leaves) is printed and lost, and the job goes on as if there had been no signal. So what
the collector calls here is made of built-in functions only: `getattr` of a property whose getter is
`next`, of a `map` that appends the time to a list.
"""

from __future__ import annotations

import functools
import gc
import time
from typing import Any


class _Stamps(map):  # type: ignore[type-arg]
    """Takes a stamp whenever one of these is asked for; the collector asks by the name of its phase."""

    start = stop = property(next)


class Collected:
    """Notes garbage collections, from `begin` to `end`."""

    def __init__(self) -> None:
        self._stamps: list[int] = []
        stamps = _Stamps(self._stamps.append, iter(time.monotonic_ns, None))
        self._callback: Any = functools.partial(getattr, stamps)

    def begin(self) -> None:
        """Note collections from now on."""
        gc.callbacks.append(self._callback)

    def end(self) -> None:
        """Note none any more."""
        if self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)

    def taken(self) -> list[int]:
        """Return when collections began and ended since the last call, in turn, in monotonic ns."""
        whole = len(self._stamps) & ~1
        # Between these two, no signal is handled and no other thread runs: neither calls anything.
        found = self._stamps[:whole]
        del self._stamps[:whole]
        return found
