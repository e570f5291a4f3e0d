"""A small GPT trained by hand, as anybody would: four micro-batches a step, a loader, AdamW.

`--ahead FILE` measures instead what a step takes whose host keeps ahead: queued behind a long kernel, and
as a CUDA graph; and writes both, in milliseconds, with torch.profiler's trace of the steps as they are.
"""

from __future__ import annotations

import argparse
import json
from functools import partial

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--profile")
parser.add_argument("--ahead")
parser.add_argument("--flops", action="store_true")
for name, value in {"steps": 6, "width": 512, "layers": 4, "length": 256, "batch": 4}.items():
    parser.add_argument(f"--{name}", type=int, default=value)
options = parser.parse_args()
WORDS, MICROBATCHES = 32_000, 4
ACTIVITIES = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, length, 3, 8, width // 8)
        y = nn.functional.scaled_dot_product_attention(
            *heads.permute(2, 0, 3, 1, 4), is_causal=True
        )
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Text(Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, WORDS, (options.length + 1,), generator=generator)


width = options.width
blocks = [Block(width) for _ in range(options.layers)]
model = nn.Sequential(
    nn.Embedding(WORDS, width), *blocks, nn.Linear(width, WORDS, bias=False)
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
batches = iter(DataLoader(Text(), batch_size=options.batch, pin_memory=True))


def passed(text):
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()


def step():
    for _ in range(MICROBATCHES):
        passed(next(batches).cuda(non_blocking=True))
    optimizer.step()
    optimizer.zero_grad()


def milliseconds(run, *, queued=False):
    """Return the median of what something takes on the device."""
    times = []
    for _ in range(11):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        if queued:
            torch.cuda._sleep(1_000_000_000)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[5]


def ahead():
    text = next(batches).cuda()

    def one():
        optimizer.zero_grad()
        passed(text)
        optimizer.step()

    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(5):
            one()
    found = {"queued": milliseconds(one, queued=True)}
    with profile(activities=ACTIVITIES) as profiler:
        for _ in range(5):
            one()
            profiler.step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(options.ahead)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one()
    graph.replay()
    found["graph"] = milliseconds(graph.replay)
    print(json.dumps(found))


def train():
    if options.flops:
        from torch.utils.flop_counter import FlopCounterMode

        with FlopCounterMode(display=False) as counter:
            step()
        print(json.dumps({str(of): n for of, n in counter.get_flop_counts()["Global"].items()}))
        return
    when = schedule(wait=1, warmup=1, active=max(1, options.steps - 2))
    write = partial(profile.export_chrome_trace, path=options.profile)
    traced = options.profile and profile(
        activities=ACTIVITIES, record_shapes=True, schedule=when, on_trace_ready=write
    )
    if traced:
        traced.start()
    for _ in range(options.steps):
        step()
        if traced:
            traced.step()
    if traced:
        traced.stop()
    torch.cuda.synchronize()


if options.ahead:
    ahead()
else:
    train()
