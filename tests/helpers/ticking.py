"""A clock of a device that ticks once for each mark."""

from __future__ import annotations

from bubblescope.record import CpuTimer, Timer


class Ticks(Timer):
    """A timer whose marks are 10, 20, 30, ..."""

    name = "ticks"

    def __init__(self):
        self.now = 0

    def anchor(self):
        pass

    def mark(self):
        self.now += 10
        return self.now

    resolve = CpuTimer.resolve
