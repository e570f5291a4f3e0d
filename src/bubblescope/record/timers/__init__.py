"""Clocks that time a task on the device that runs it, and the choice of one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from bubblescope.model.errors import RecorderError
from bubblescope.record.timers.events import CudaTimer, NpuTimer, PaddleTimer
from bubblescope.record.timers.timer import CpuTimer

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.record.timers.timer import Timer


def _cupti() -> Timer:
    from bubblescope.record.timers.cupti import CuptiTimer  # noqa: PLC0415  only if asked for

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
        raise RecorderError(f"{name!r} is not a timer; use one of {', '.join(_TIMERS)}")
    there = [known for known in ("cuda", "npu") if _available(known)]
    if not there and name in {None, "cuda", "hip"} and _paddle_on_a_gpu():
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
