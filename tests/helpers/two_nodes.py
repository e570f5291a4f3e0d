"""A job whose pipeline crosses two nodes, and which writes down how right its clock is.

Each stage sleeps where others work, so that the machine's load decides nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

FORWARD_S, BACKWARD_S = 0.002, 0.003
MICROBATCHES = 4
_CLOCK_GETTIME, _MONOTONIC = 228, 1  # of Linux on x86-64


class _Time(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


_LIBC = ctypes.CDLL(None)


def kernel_ns():
    """Return the monotonic time as the kernel has it: nothing stands between that could fake it."""
    now = _Time()
    if _LIBC.syscall(_CLOCK_GETTIME, _MONOTONIC, ctypes.byref(now)):
        raise OSError("clock_gettime failed")
    return now.s * 10**9 + now.ns


def reading():
    """Return what the monotonic clock showed, what it should have, and how far apart both were read."""
    readings = []
    for _ in range(10):
        before, shown, after = kernel_ns(), time.monotonic_ns(), kernel_ns()
        readings.append((after - before, shown, (before + after) // 2))
    apart, shown, true = min(readings)
    return shown, true, apart


class _Sleeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(BACKWARD_S)
        return gradient


class Stage(nn.Module):
    """Works for known times."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return _Sleeps.apply(self.linear(x))


def main(folder, steps):
    node = os.environ["GROUP_RANK"]
    socket.gethostname = lambda: (
        f"node{node}"
    )  # as containers of one machine have names of their own
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    stage = PipelineStage(Stage(), rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    inputs = torch.ones(MICROBATCHES, 4)
    readings = []
    for _ in range(steps):
        readings.append(reading())
        args = (inputs,) if rank == 0 else ()
        schedule.step(*args, target=inputs if rank == world - 1 else None)
    readings.append(reading())
    Path(folder, f"readings{rank}.json").write_text(json.dumps(readings))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
