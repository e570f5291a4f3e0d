"""Recording the tasks of a running job, cheaply enough to leave on.

>>> from bubblescope.record import Recorder
>>> with Recorder("recording", rank=0, stages=[0]) as recorder:    # doctest: +SKIP
...     for step in range(steps):
...         with recorder.step():
...             with recorder.task("forward", microbatch=0):
...                 ...
"""

from __future__ import annotations

from bubblescope.record.marks import Marks, NvtxMarks
from bubblescope.record.recorder import Recorder
from bubblescope.record.timers import CpuTimer, CudaTimer, Timer

__all__ = ["CpuTimer", "CudaTimer", "Marks", "NvtxMarks", "Recorder", "Timer"]
