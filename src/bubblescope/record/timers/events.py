"""Clocks that time tasks by events in the device's streams, on NVIDIA and AMD GPUs and Ascend NPUs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bubblescope.record.timers.timer import Timer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_ANCHORS: Final = 5
"""Readings of both clocks of which the best is taken."""


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
        """Let the device run empty, record an event, and bound the moment it was reached.

        The tightest of a few: a host that is held up meanwhile would shift a whole step.
        """
        self._cuda.synchronize()
        tried = [self._bounded() for _ in range(_ANCHORS)]
        best = min(tried, key=lambda anchor: anchor.error_ns)
        self._free += [anchor.event for anchor in tried if anchor is not best]
        return best

    def _bounded(self) -> Anchor:
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


class PaddleTimer(CudaTimer):
    """CUDA events of Paddle, on its current stream.

    Args:
        device: Something with the `Event` and `synchronize` of `paddle.device`, which is the default.
    """

    def __init__(self, device: Any = None) -> None:
        super().__init__(device or sys.modules["paddle"].device)
