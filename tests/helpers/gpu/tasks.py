"""A recorded loop of tasks whose kernels note when they run.

Arguments: the timer, the folder for the recording and `truth.npz`, and a file for torch.profiler's trace.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from noting import Noting
from torch.profiler import ProfilerActivity, profile

from bubblescope.record import Recorder
from bubblescope.record.timers import chosen_timer
from bubblescope.record.vendor_marks import chosen_marks

STEPS, MICROBATCHES = 20, 8

timer, folder, trace = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None
kernels, random = Noting(), np.random.default_rng(1)
side = torch.cuda.Stream()
tasks = []


def task(recorder, kind, microbatch, sleeps=0.0):
    tasks.append((step, kind, microbatch, sleeps > 0))
    with recorder.task(kind, microbatch=microbatch, peer=0 if kind == "send_forward" else None):
        count = 1 if kind == "send_forward" else 3
        for microseconds in random.integers(50, 900, count):
            time.sleep(sleeps)
            kernels.launch(int(microseconds), len(tasks) - 1, communicates=count == 1)


kernels.tie()
activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
marks = chosen_marks(["torch"]) if trace else None
with (
    profile(activities=activities) if trace else nullcontext() as profiler,
    Recorder(folder, rank=0, timer=chosen_timer(timer), marks=marks) as recorder,
):
    for step in range(STEPS):
        with recorder.step():
            for microbatch in range(MICROBATCHES):
                task(recorder, "forward", microbatch)
                if microbatch % 2:
                    time.sleep(random.uniform(0, 3e-3))
                with torch.cuda.stream(side):
                    side.wait_stream(torch.cuda.default_stream())
                    task(recorder, "send_forward", microbatch)
                task(recorder, "backward", microbatch, 1e-3 if microbatch % 3 == 0 else 0.0)
    torch.cuda.synchronize()
if trace:
    profiler.export_chrome_trace(trace)
kernels.tie()
np.savez(
    Path(folder) / "truth.npz",
    noted=kernels.noted(),
    owner=np.array(kernels.owner),
    ties=np.array(kernels.ties),
    step=np.array([one[0] for one in tasks]),
    kind=np.array([one[1] for one in tasks]),
    microbatch=np.array([one[2] for one in tasks]),
    sleeps=np.array([one[3] for one in tasks]),
)
