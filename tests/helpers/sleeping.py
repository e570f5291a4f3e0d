"""Training jobs of torch.distributed.pipelining whose layers sleep, so that no load decides how long.

Every layer's forward, input gradient and weight gradient are operations of autograd of their own, so
that torch splits backwards as it splits those of real layers: what the first stage has to do for its
inputs is done with its weights. Ranks wait for each other at the end of every step, as for the norm of
all gradients.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

SCHEDULES: Final = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved-1f1b",
    "LoopedBFS": "looped-bfs",
    "InterleavedZeroBubble": "interleaved-zb",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipev",
}
"""What torch 2.13 calls its schedules, and what `bubblescope.schedules` does."""

SINGLE: Final = ("GPipe", "1F1B")
"""Those of one stage on each rank; all others have two here."""

_V: Final = ("ZBVZeroBubble", "DualPipeV")
_WIDTH: Final = 4


class Job(NamedTuple):
    """A training job.

    Attributes:
        schedule: One of `SCHEDULES`.
        layers: What each layer of the model costs, those of the usual being 1.
        head: What the loss costs the last stage besides, in layers.
        partition: Layers of each stage; the same number if empty.
        slow: How many times as long everything takes on some ranks.
        ranks, microbatches, steps: How many; a first step, in which nobody sleeps and which is not
            recorded, is not counted.
        times_ms: Of a usual layer's forward, input gradient and weight gradient.
        jitter: Standard deviation of single operations of a layer, as a share.
        seed: Of these.
    """

    schedule: str
    layers: tuple[float, ...] = (1.0,) * 8
    head: float = 0.0
    partition: tuple[int, ...] = ()
    slow: dict[int, float] = {}  # noqa: RUF012  never changed
    ranks: int = 4
    microbatches: int = 8
    steps: int = 3
    times_ms: tuple[float, float, float] = (5.0, 6.0, 4.0)
    jitter: float = 0.0
    seed: int = 0

    @property
    def stages(self) -> int:
        """Return how many stages all ranks have."""
        return self.ranks if self.schedule in SINGLE else 2 * self.ranks

    def held(self, rank: int) -> list[int]:
        """Return the stages of a rank."""
        if self.schedule in SINGLE:
            return [rank]
        return [rank, self.stages - 1 - rank if self.schedule in _V else rank + self.ranks]

    def costs(self, stage: int) -> list[float]:
        """Return what each layer of a stage costs."""
        each = len(self.layers) // self.stages
        partition = self.partition or (each,) * self.stages
        first = sum(partition[:stage])
        costs = list(self.layers[first : first + partition[stage]])
        return [*costs, self.head] if self.head and stage == self.stages - 1 else costs


def run(job: Job, folder: Path) -> None:
    """Run a job to its end, recorded into a folder.

    Raises:
        RuntimeError: A process failed.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    fork = multiprocessing.get_context("forkserver")
    fork.set_forkserver_preload(["torch.distributed.pipelining.schedules"])  # once for all jobs
    with tempfile.TemporaryDirectory() as store:
        ranks = [
            fork.Process(target=_train, args=(job, rank, str(folder), f"{store}/store"))
            for rank in range(job.ranks)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    failed = [rank for rank, process in enumerate(ranks) if process.exitcode]
    if failed:
        raise RuntimeError(f"{job}: ranks {failed} failed")


def _train(job: Job, rank: int, folder: str, store: str) -> None:
    """Train a rank's stages."""
    import numpy as np
    import torch
    from torch import distributed, nn
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    from bubblescope.record import instrument

    with suppress(PermissionError):  # who sleeps is woken in time, where a user may ask for it
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    random = np.random.default_rng([job.seed, rank])
    times = job.slow.get(rank, 1.0)

    def work(length_ms: float) -> None:
        began = time.monotonic()
        length = length_ms * 1e-3 * times * max(0.0, 1 + job.jitter * random.standard_normal())
        length *= awake
        time.sleep(max(0.0, began + length - time.monotonic()))

    class Pass(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, forward_ms: float, backward_ms: float) -> Any:
            ctx.backward_ms = backward_ms
            work(forward_ms)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            work(ctx.backward_ms)
            return gradient, None, None

    class Weight(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Any, backward_ms: float) -> Any:
            ctx.backward_ms = backward_ms
            return weight.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            work(ctx.backward_ms)
            return gradient, None

    class Layer(nn.Module):
        def __init__(self, cost: float) -> None:
            super().__init__()
            self.times = [cost * each for each in job.times_ms]
            self.weight = nn.Parameter(torch.zeros(_WIDTH))

        def forward(self, x: Any) -> Any:
            forward, backward, weight = self.times
            return Pass.apply(x, forward, backward) + Weight.apply(self.weight, weight)

    class Embedding(nn.Module):
        """Something to learn before the first layer, for which that computes its input gradient."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(_WIDTH))

        def forward(self, x: Any) -> Any:
            return x + self.weight

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=job.ranks
    )
    instrument("torch", folder=folder, start=1)  # step 0 tells the stages their shapes
    held = job.held(rank)
    modules = [
        nn.Sequential(*[Embedding()] * (stage == 0), *map(Layer, job.costs(stage)))
        for stage in held
    ]
    stages = [
        PipelineStage(module, stage, job.stages, torch.device("cpu"))
        for module, stage in zip(modules, held, strict=True)
    ]
    schedule = get_schedule_class(job.schedule)(
        stages[0] if job.schedule in SINGLE else stages,
        job.microbatches,
        loss_fn=nn.functional.mse_loss,
    )
    inputs = torch.ones(job.microbatches, _WIDTH)
    awake = 0
    for _ in range(job.steps + 1):
        given = (inputs,) if 0 in held else ()
        schedule.step(*given, target=inputs if job.stages - 1 in held else None)
        for module in modules:
            module.zero_grad()
        distributed.barrier()
        awake = 1
    distributed.destroy_process_group()
