"""Clocks that time a task on the device that runs it.

A timer hands out an opaque mark at each end of a task and turns marks into nanoseconds later, in
another thread. All results are on the host's monotonic clock, which every process of a host shares, so
that ranks of one host need no alignment.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bubblescope.errors import RecorderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["Anchor", "CpuTimer", "CudaTimer", "NpuTimer", "Timer", "chosen_timer"]


class Timer(ABC):
    """What all clocks do.

    Attributes:
        name: What it is called.
        tied: Whether its times hang on an anchor, so that tasks are handed over step by step.
    """

    name: str
    tied = True

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
            Monotonic times in nanoseconds, of shape (2, tasks).
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


class Anchor(NamedTuple):
    """What host time a reference event on the device stands for.

    Attributes:
        event: The event.
        time_ns: The host's monotonic time when the device reached it.
        error_ns: How far that may be off: half the time between the host's readings around it.
    """

    event: Any
    time_ns: int
    error_ns: int


class CudaTimer(Timer):
    """CUDA events on the current stream, tied to the host's clock anew at every step.

    An event costs about a microsecond and no synchronisation. `anchor` synchronises once, between
    steps, to learn what host time a reference event stands for: the host's times just before and
    just after bound it, and re-anchoring each step keeps the drift between the two clocks and the
    32-bit float milliseconds of `elapsed_time` (under 1 ns error below 8 ms, 60 ns below 1 s) small.

    Args:
        cuda: Something with the `Event` and `synchronize` of `torch.cuda`, which is the default.
        clock: The host's monotonic clock.
    """

    name = "cuda"

    def __init__(self, cuda: Any = None, clock: Any = time.monotonic_ns) -> None:
        if cuda is None:
            import torch  # noqa: PLC0415  it is the job's, not a dependency

            cuda = torch.cuda
        self._cuda = cuda
        self._clock = clock
        self._free: list[Any] = []

    def anchor(self) -> Anchor:
        """Let the device run empty, record an event, and bound the moment it was reached."""
        self._cuda.synchronize()
        event = self._event()
        before = self._clock()
        event.record()
        event.synchronize()
        after = self._clock()
        return Anchor(event, (before + after) // 2, (after - before) // 2)

    def mark(self) -> Any:
        """Record an event on the current stream."""
        event = self._event()
        event.record()
        return event

    def resolve(
        self, begins: Sequence[Any], ends: Sequence[Any], anchor: Anchor, comm: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """Wait for each mark's event and measure it against the anchor's."""
        del comm
        marks = [*begins, *ends]
        times = np.empty(len(marks), np.int64)
        for index, event in enumerate(marks):
            event.synchronize()
            milliseconds = anchor.event.elapsed_time(event)
            times[index] = anchor.time_ns + round(milliseconds * 1e6)
        self._free += marks
        return times.reshape(2, -1)

    def _event(self) -> Any:
        try:
            return self._free.pop()  # not "if any": another thread may take the last one
        except IndexError:
            return self._cuda.Event(enable_timing=True)


class NpuTimer(CudaTimer):
    """Events of Ascend NPUs through torch_npu, whose interface is that of `torch.cuda`.

    Args:
        npu: Something with the `Event` and `synchronize` of `torch.npu`, which is the default.
        clock: The host's monotonic clock.
    """

    name = "npu"

    def __init__(self, npu: Any = None, clock: Any = time.monotonic_ns) -> None:
        if npu is None:
            import torch  # noqa: PLC0415  it is the job's, not a dependency

            npu = vars(torch)["npu"]  # torch_npu puts it there
        super().__init__(npu, clock)


def _cupti() -> Timer:
    from bubblescope.record.cupti import CuptiTimer  # noqa: PLC0415  only if asked for

    return CuptiTimer()


_TIMERS: Final[dict[str, tuple[str, Callable[[], Timer]]]] = {
    "cuda": ("cuda", CudaTimer),
    "hip": ("cuda", CudaTimer),  # PyTorch for ROCm has the interface of CUDA
    "npu": ("npu", NpuTimer),
    "cupti": ("cuda", _cupti),
    "cpu": ("cpu", CpuTimer),
}
"""The device that each needs, and how to make it."""


def chosen_timer(name: str | None = None) -> Timer:
    """Return the clock of that name, or the best for the device that this process uses.

    That is never CUPTI, which costs more than a recording may unasked.

    Raises:
        RecorderError: There is no clock of that name, or no such device.
    """
    if name is not None and name not in _TIMERS:
        raise RecorderError(f"{name!r} is no timer; use one of {', '.join(_TIMERS)}")
    there = [known for known in ("cuda", "npu") if _available(known)]
    if not there and name in {None, "cuda", "hip"} and _paddle_on_a_gpu():
        from bubblescope.record.integrations.paddle import PaddleTimer  # noqa: PLC0415  if it is there

        return PaddleTimer()
    there.append("cpu")
    device, make = _TIMERS[name or there[0]]
    if device not in there:
        raise RecorderError(f"there is no device for the timer {name!r} in this process")
    return make()


def _paddle_on_a_gpu() -> bool:
    """Say whether the job has loaded Paddle, and it uses a GPU."""
    device = getattr(sys.modules.get("paddle"), "device", None)
    return device is not None and str(device.get_device()).startswith("gpu")


def _available(device: str) -> bool:
    """Say whether the job has loaded PyTorch with such a device."""
    torch = sys.modules.get("torch")
    module = getattr(torch, device, None)
    return module is not None and bool(module.is_available())
