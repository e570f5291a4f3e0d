"""Records a real run of torch.distributed.pipelining, one process per rank, on the CPU.

    pip install bubblescope torch
    python examples/torch-pipelining/record.py --schedule 1F1B -o recording
    bubblescope view recording

With `--profile`, torch.profiler traces the same steps, which bubblescope reads as well:

    bubblescope view recording/*.json.gz

All that it does to be recorded is one call of `instrument`. A job need not even do that:

    bubblescope record -- torchrun --nproc-per-node 4 train.py
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

from bubblescope.record import instrument

WIDTH, SAMPLES, LAYERS = 512, 128, 4


def profiler(rank: int, options: argparse.Namespace) -> Any:
    """Return torch's profiler for the recorded steps, or something that does nothing."""
    if not options.profile:
        return contextlib.nullcontext()
    return torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=options.steps),
        on_trace_ready=lambda done: done.export_chrome_trace(
            str(options.output / f"rank{rank}.json.gz")
        ),
    )


def train(rank: int, options: argparse.Namespace, store: str) -> None:
    """Train this rank's stages."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks
    )
    schedule_class = get_schedule_class(options.schedule)
    single = issubclass(schedule_class, PipelineScheduleSingle)
    count = options.ranks if single else 2 * options.ranks
    if single:
        places = [rank]
    elif "ZBV" in options.schedule or "DualPipeV" in options.schedule:
        places = [rank, count - 1 - rank]  # a V: down through the ranks and back up
    else:
        places = [rank, rank + options.ranks]
    # Step 0 allocates buffers and tells the stages their shapes.
    instrument("torch", folder=str(options.output), start=1)
    device = torch.device("cpu")
    modules = [
        nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)])
        for _ in places
    ]
    stages = [
        PipelineStage(module, place, count, device)
        for module, place in zip(modules, places, strict=True)
    ]
    schedule = schedule_class(
        stages[0] if single else stages, options.microbatches, loss_fn=nn.functional.mse_loss
    )
    optimizer = torch.optim.SGD([p for module in modules for p in module.parameters()], lr=0.1)
    inputs = torch.randn(SAMPLES * options.microbatches, WIDTH)
    targets = torch.tanh(inputs)
    with profiler(rank, options) as profile:
        for _ in range(options.steps + 1):
            args = (inputs,) if 0 in places else ()
            target = targets if count - 1 in places else None
            schedule.step(*args, target=target)
            optimizer.step()
            optimizer.zero_grad()
            if profile is not None:
                profile.step()
    distributed.destroy_process_group()


def main() -> None:
    """Start a process per rank."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--schedule", default="1F1B", help="any name torch knows: 1F1B, GPipe, ZBVZeroBubble"
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="trace with torch.profiler too")
    parser.add_argument("-o", "--output", type=Path, default=Path("recording"))
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (options, f"{folder}/store"), options.ranks)
    print(f"recorded {options.schedule} in {options.output}")


if __name__ == "__main__":
    main()
