"""Gaps of known classes and lengths between kernels that note when they run, under torch.profiler.

Argument: a file for the trace; the gaps are written beside it, as `.json` of class and nanoseconds.
"""

from __future__ import annotations

import gc
import json
import sys
import time

import cupy
import numpy as np
import torch
from noting import Noting
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset

ROUNDS = 6

random, kernels = np.random.default_rng(7), Noting()
stream, other = torch.cuda.Stream(), torch.cuda.Stream()
torch.set_num_threads(1)
matrix = torch.randn(1500, 1500)
junk = [{i: [i]} for i in range(100_000)]
parameters = [
    torch.nn.Parameter(torch.randn(10, 10)) for _ in range(300)
]  # on the host: only its time
for parameter in parameters:
    parameter.grad = torch.randn(10, 10)
optimizer = torch.optim.Adam(parameters, foreach=False)
kept = []


def some_ms():
    return random.uniform(1e-3, 5e-3)


class Slow(Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        time.sleep(some_ms())
        return torch.zeros(4)


loader = iter(DataLoader(Slow(), batch_size=1))


def host_function(where):
    """Let a stream wait for a function on the host: work that no trace shows."""
    length = some_ms()
    kept.append(lambda _: time.sleep(length))
    cupy.cuda.ExternalStream(where.cuda_stream).launch_host_func(kept[-1], None)


def count_in_python():
    until = time.perf_counter() + some_ms()
    while time.perf_counter() < until:
        pass


def wait_for_other():
    kernels.launch(10)
    host_function(other)
    event = torch.cuda.Event()
    event.record(other)
    stream.wait_event(event)


CASES = {
    "host_python": count_in_python,
    "host_data": lambda: next(loader),
    "host_optimizer": optimizer.step,
    "host_operator": lambda: matrix @ matrix,
    "host_gc": gc.collect,
    "untraced": lambda: host_function(stream),
    "event_wait": wait_for_other,
}


def gap(what):
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        before = kernels.launch(200)
        CASES[what]()
        before = len(kernels.owner) - 1 if what == "event_wait" else before
        return what, before, kernels.launch(100)


for what in CASES:
    gap(what)
config = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
with profile(
    activities=activities, with_stack=True, record_shapes=True, experimental_config=config
) as profiler:
    gaps = [gap(list(CASES)[k]) for _ in range(ROUNDS) for k in random.permutation(len(CASES))]
    torch.cuda.synchronize()
profiler.export_chrome_trace(sys.argv[1])
noted = kernels.noted()
with open(sys.argv[1].replace(".json", ".truth"), "w", encoding="utf-8") as file:
    json.dump([(what, int(noted[b, 0] - noted[a, 1])) for what, a, b in gaps], file)
