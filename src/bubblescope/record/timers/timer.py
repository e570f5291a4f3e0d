"""What a clock for tasks does, and the one that every machine has.

A timer hands out an opaque mark at each end of a task and turns marks into nanoseconds later, in
another thread. All results are on the host's monotonic clock, which every process of a host shares, so
that ranks of one host need no alignment.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Timer(ABC):
    """What all clocks do.

    Attributes:
        name: What it is called.
        tied: Whether its times hang on an anchor, so that tasks are handed over step by step.
        sees_kernels: Whether it knows how long a task's kernels ran.
    """

    name: str
    tied = True
    sees_kernels = False

    @abstractmethod
    def anchor(self) -> Any:
        """Tie the device's clock to the host's, between steps and outside every task.

        Returns:
            What `resolve` needs for the marks that are taken from now on.
        """

    @abstractmethod
    def mark(self) -> Any:
        """Take a mark now on the device's current stream. Never waits for the device."""

    @abstractmethod
    def resolve(
        self, begins: Sequence[Any], ends: Sequence[Any], anchor: Any, comm: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return when tasks began and ended, and forget their marks.

        Called from a thread that may wait for the device.

        Args:
            begins: The mark at the beginning of each task.
            ends: That at its end.
            anchor: What `anchor` returned before they were taken.
            comm: Which of them communicate.

        Returns:
            Monotonic times in nanoseconds, of shape (2, tasks); of a timer that sees kernels
            (3, tasks), with how long any of a task's ran, -1 for a task without.
        """

    def settle(self) -> None:  # noqa: B027  most clocks need not
        """Get ready to resolve all marks taken so far; the job's thread is here, between steps."""

    def rest(self) -> None:  # noqa: B027
        """Cost nothing until the next `anchor`: what follows is not recorded."""


class CpuTimer(Timer):
    """The host's monotonic clock, for work that runs where it is called."""

    name = "cpu"
    tied = False

    def anchor(self) -> None:
        """Do nothing: this is the host's clock already."""

    def mark(self) -> int:
        """Return the time."""
        return time.monotonic_ns()

    def resolve(
        self, begins: Sequence[int], ends: Sequence[int], anchor: None, comm: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Return the marks, which are times."""
        del anchor, comm
        return np.array([begins, ends], np.int64)
