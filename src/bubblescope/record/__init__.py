"""Recording the tasks of a running job, cheaply enough to leave on.

>>> from bubblescope.record import Recorder
>>> with Recorder("recording", rank=0, stages=[0]) as recorder:    # doctest: +SKIP
...     for step in range(steps):
...         with recorder.step():
...             with recorder.task("forward", microbatch=0):
...                 ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubblescope.model.errors import RecorderError
from bubblescope.record import hooks, session
from bubblescope.record.recorder import Recorder
from bubblescope.record.settings import Settings, megabytes
from bubblescope.record.settings import folder as named
from bubblescope.record.step_times import StepTimes, WholeStep
from bubblescope.record.timers.events import CudaTimer, NpuTimer
from bubblescope.record.timers.timer import CpuTimer, Timer
from bubblescope.record.vendor_marks import (
    AllMarks,
    Marks,
    MstxMarks,
    NvtxMarks,
    RecordFunctionMarks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "AllMarks",
    "CpuTimer",
    "CudaTimer",
    "Marks",
    "MstxMarks",
    "NpuTimer",
    "NvtxMarks",
    "RecordFunctionMarks",
    "Recorder",
    "StepTimes",
    "Timer",
    "WholeStep",
    "instrument",
]


def instrument(
    *frameworks: str,
    folder: str = "recording",
    start: int = 0,
    stop: int | None = None,
    exit_after: bool = False,
    timer: str | None = None,
    marks: Sequence[str] = (),
    max_mb: float | None = None,
    profiler_api: bool = False,
    on_step: Callable[[StepTimes], None] | None = None,
) -> None:
    """Record this process by hand, as `bubblescope record` does from outside.

    Call it before the first training step.

    Args:
        frameworks: What to record: names of `hooks.INTEGRATIONS`; all that are used, if none is given.
        folder: Where to write; one file per rank.
        start: First step to record.
        stop: First step not to record any more; None for all.
        exit_after: Leave the process after the last recorded step.
        timer: cuda, hip, npu, cupti or cpu; by default that of the device that the job uses.
        marks: Vendor's marks to emit around tasks: nvtx, mstx, torch.
        max_mb: Most megabytes that a rank may have on disk.
        profiler_api: Switch the device's profiler on for the recorded steps; see `Recorder`.
        on_step: Called after each recorded step; see `Recorder.on_step`.

    Raises:
        RecorderError: A framework is not known, no folder is named, or `max_mb` is too small.
    """
    unknown = [name for name in frameworks if name not in hooks.INTEGRATIONS]
    if unknown:
        raise RecorderError(
            f"{unknown[0]!r} is not a framework that bubblescope records; it records "
            f"{', '.join(hooks.INTEGRATIONS)}"
        )
    try:
        named(folder)
        if max_mb is not None:
            megabytes(str(max_mb))
    except ValueError as error:
        raise RecorderError(str(error)) from None
    begun = session.begin(
        Settings(
            out=folder,
            start=start,
            stop=stop,
            exit_after=exit_after,
            timer=timer,
            marks=tuple(marks),
            max_mb=max_mb,
            profiler_api=profiler_api,
        )
    )
    if on_step is not None:
        begun.on_step(on_step)
    hooks.install(*frameworks)
