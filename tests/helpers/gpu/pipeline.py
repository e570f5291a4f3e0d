"""A pipeline of two processes that share a GPU: 1F1B written by hand, results sent through the host.

Argument: a folder, for torch.profiler's trace of each process, and for the nanoseconds that its host
took to receive, in the steps that are traced. Where there is no GPU, it runs on CPUs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

STEPS, WARM, MICROBATCHES, WIDTH, ROWS = 8, 3, 6, 2048, 4096

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
last = rank == ranks - 1
on_gpu = torch.cuda.is_available()
device = "cuda" if on_gpu else "cpu"
torch.manual_seed(rank)
layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6 + 6 * rank)]
model = nn.Sequential(*layers).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
waiting, sending, received_ns = [], [], []


def received(source):
    there = torch.empty(ROWS, WIDTH)
    begin = time.monotonic_ns()
    dist.recv(there, source)
    received_ns.append(time.monotonic_ns() - begin)
    return there.to(device)


def sent(tensor, target):
    sending.append(dist.isend(tensor.cpu(), target))


def forward():
    given = received(rank - 1).requires_grad_() if rank else torch.randn(ROWS, WIDTH, device=device)
    made = model(given)
    if last:
        made = made.square().mean()
    else:
        sent(made.detach(), rank + 1)
    waiting.append((given, made))


def backward():
    given, made = waiting.pop(0)
    made.backward(None if last else received(rank + 1))
    if rank:
        sent(given.grad, rank - 1)


def step():
    ahead = ranks - rank - 1
    for microbatch in range(MICROBATCHES):
        forward()
        if microbatch >= ahead:
            backward()
    while waiting:
        backward()
    while sending:
        sending.pop().wait()
    optimizer.step()
    optimizer.zero_grad()


activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
file = Path(sys.argv[1]) / f"rank{rank}.json"
with profile(
    activities=activities,
    schedule=schedule(wait=WARM - 1, warmup=1, active=STEPS - WARM),
    on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)),
) as profiler:
    for _ in range(STEPS):
        step()
        profiler.step()
traced_ns = sum(received_ns[WARM * MICROBATCHES :])
file.with_suffix(".received").write_text(str(traced_ns))
dist.destroy_process_group()
