"""Switching a vendor's profiler, which runs at the same time, on and off at the window's edges.

`nsys profile --capture-range=cudaProfilerApi` traces nothing until the job calls `cudaProfilerStart`,
and stops at `cudaProfilerStop`. Ascend's profiler has no such pair: it is an object of
`torch_npu.profiler`, so one is made, and its trace lies beside the recording.
"""

from __future__ import annotations

import ctypes
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from bubblescope.model.errors import RecorderError
from bubblescope.record.job_log import warn

if TYPE_CHECKING:
    from collections.abc import Callable

_LOADED: Final = re.compile(r"(/\S*/libcudart[\w.-]*\.so[.\d]*)$", re.MULTILINE)
_NAMES: Final = ("libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")


class Profiler(Protocol):
    """A profiler that can be switched on and off."""

    def start(self) -> None:
        """Begin to trace."""

    def stop(self) -> None:
        """Stop tracing, once the device has done what it was given so far."""


class CudaProfiler:
    """`cudaProfilerStart` and `cudaProfilerStop`, of the CUDA runtime that the job itself has loaded.

    Not through the job's framework, so that it works for each of them.

    Raises:
        RecorderError: There is no CUDA runtime.
    """

    def __init__(self) -> None:
        self._runtime = _cuda_runtime()

    def start(self) -> None:
        """Begin to trace."""
        self._call("cudaProfilerStart")

    def stop(self) -> None:
        """Wait for the device, and stop tracing: a kernel that still runs would not be in the trace."""
        self._call("cudaDeviceSynchronize")
        self._call("cudaProfilerStop")

    def _call(self, name: str) -> None:
        code = getattr(self._runtime, name)()
        if code:
            raise RecorderError(f"{name} returned error {code}")


class NpuProfiler:
    """A profile by `torch_npu.profiler`, as a pipeline's chart needs it: marks, Level1, a database.

    Args:
        folder: Where it makes a folder `*_ascend_pt` for each rank.

    Raises:
        ImportError: `torch_npu` is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        from torch_npu import profiler  # noqa: PLC0415  the job's, not a dependency

        self._folder = str(folder)
        self._vendor: Any = profiler
        self._profile: Any = None

    def start(self) -> None:
        """Begin to trace."""
        vendor = self._vendor
        self._profile = vendor.profile(
            on_trace_ready=vendor.tensorboard_trace_handler(self._folder),
            experimental_config=vendor._ExperimentalConfig(  # noqa: SLF001  Ascend's guide names it
                export_type=vendor.ExportType.Db,
                profiler_level=vendor.ProfilerLevel.Level1,
                mstx=True,
            ),
        )
        self._profile.start()

    def stop(self) -> None:
        """Stop tracing. The profile waits for the device itself, and is then written."""
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.stop()


class Switch:
    """Has a profiler on during a window of steps. If it fails, that is one warning and it stays off.

    Args:
        make: Makes the profiler when the window begins: only then has the job loaded its device's
            library.
    """

    def __init__(self, make: Callable[[], Profiler]) -> None:
        self._make: Callable[[], Profiler] | None = make
        self._on: Profiler | None = None

    def on(self) -> None:
        """Switch it on, unless it is or has been."""
        make, self._make = self._make, None
        if make is None:
            return
        try:
            profiler = make()
            profiler.start()
            self._on = profiler
        except Exception as error:  # noqa: BLE001  the job goes on
            _unswitched(error)

    def off(self) -> None:
        """Switch it off, if it is on. It is not switched on again."""
        profiler, self._on, self._make = self._on, None, None
        try:
            if profiler is not None:
                profiler.stop()
        except Exception as error:  # noqa: BLE001  the job goes on
            _unswitched(error)


def switch(folder: str | Path) -> Switch:
    """Return the switch of the profiler of the device that the job uses.

    Args:
        folder: Where the recording is written; Ascend's profiler writes beside it.
    """

    def make() -> Profiler:
        return NpuProfiler(folder) if hasattr(sys.modules.get("torch"), "npu") else CudaProfiler()

    return Switch(make)


def _cuda_runtime() -> ctypes.CDLL:
    """Return the CUDA runtime that is loaded; else the one that the loader finds."""
    loaded = _LOADED.findall(Path("/proc/self/maps").read_text("utf-8", "replace"))
    for name in (*loaded, *_NAMES):
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise RecorderError("no CUDA runtime (libcudart.so) is loaded or can be found")


def _unswitched(error: Exception) -> None:
    warn(
        f"bubblescope cannot switch the device's profiler ({error}); recording goes on",
        stacklevel=4,
    )
