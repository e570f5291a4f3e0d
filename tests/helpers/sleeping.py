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

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping
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
        replicas: Copies of the pipeline.
        ranks, microbatches, steps: How many, ranks of each copy; a first step, in which nobody sleeps
            and which is not recorded, is not counted.
        times_ms: Of a usual layer's forward, input gradient and weight gradient.
        jitter: Standard deviation of single operations of a layer, as a share.
        seed: Of these.
    """

    schedule: str
    layers: tuple[float, ...] = (1.0,) * 8
    head: float = 0.0
    partition: tuple[int, ...] = ()
    slow: dict[int, float] = {}  # noqa: RUF012  never changed
    replicas: int = 1
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
        at = rank % self.ranks
        if self.schedule in SINGLE:
            return [at]
        return [at, self.stages - 1 - at if self.schedule in _V else at + self.ranks]

    def costs(self, stage: int) -> list[float]:
        """Return what each layer of a stage costs."""
        each = len(self.layers) // self.stages
        partition = self.partition or (each,) * self.stages
        first = sum(partition[:stage])
        costs = list(self.layers[first : first + partition[stage]])
        return [*costs, self.head] if self.head and stage == self.stages - 1 else costs


def run(jobs: Mapping[Path, Job], at_once: int = 1) -> None:
    """Run jobs to their ends, so many at a time, each recorded into its folder.

    Raises:
        RuntimeError: A process failed.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    fork = multiprocessing.get_context("forkserver")
    fork.set_forkserver_preload(["torch.distributed.pipelining.schedules"])  # once for all jobs
    waiting = list(jobs.items())
    running: dict[Path, list[Any]] = {}
    with tempfile.TemporaryDirectory() as stores:
        # Processes are waited for in one thread: two that ask for an exit code may both be told wrong.
        while waiting or running:
            while waiting and len(running) < at_once:
                folder, job = waiting.pop(0)
                store = f"{stores}/{len(waiting)}"
                running[folder] = [
                    fork.Process(target=_train, args=(job, rank, str(folder), store))
                    for rank in range(job.replicas * job.ranks)
                ]
                for process in running[folder]:
                    process.start()
            time.sleep(0.05)
            for folder in [one for one, ranks in running.items() if not _alive(ranks)]:
                ended = [process.exitcode for process in running.pop(folder)]
                if any(ended):
                    raise RuntimeError(f"{jobs[folder]}: ranks ended with {ended}")


def prompt() -> None:
    """Ask that this process be woken in time, where its user may ask for that."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _alive(ranks: list[Any]) -> bool:
    """Say whether a job goes on; where a rank failed the others wait for it, and are ended."""
    if any(process.exitcode for process in ranks):
        for process in ranks:
            process.kill()
            process.join()
    return any(process.is_alive() for process in ranks)


class _Sleep:
    """What a rank sleeps instead of working.

    Attributes:
        awake: Whether it sleeps at all.
    """

    def __init__(self, job: Job, rank: int) -> None:
        self.awake = False
        self._times = 1e-3 * job.slow.get(rank, 1.0)
        self._jitter = job.jitter
        self._random = np.random.default_rng([job.seed, rank])

    def work(self, length_ms: float) -> None:
        """Sleep so many milliseconds, more or less."""
        began = time.monotonic()
        varied = max(0.0, 1 + self._jitter * self._random.standard_normal())
        length = length_ms * self._times * varied if self.awake else 0.0
        time.sleep(max(0.0, began + length - time.monotonic()))


def _stage(sleep: _Sleep, job: Job, stage: int) -> Any:
    """Return the layers of a stage."""
    import torch
    from torch import nn

    class Pass(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, forward_ms: float, backward_ms: float) -> Any:
            ctx.backward_ms = backward_ms
            sleep.work(forward_ms)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            sleep.work(ctx.backward_ms)
            return gradient, None, None

    class Weight(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, weight: Any, backward_ms: float) -> Any:
            ctx.backward_ms = backward_ms
            return weight.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            sleep.work(ctx.backward_ms)
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

    return nn.Sequential(*[Embedding()] * (stage == 0), *map(Layer, job.costs(stage)))


def _train(job: Job, rank: int, folder: str, store: str) -> None:
    """Train a rank's stages."""
    import torch
    from torch import distributed, nn
    from torch.distributed import device_mesh
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    from bubblescope.record import instrument

    prompt()
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=job.replicas * job.ranks
    )
    instrument("torch", folder=folder, start=1)  # step 0 tells the stages their shapes
    mesh = device_mesh.init_device_mesh(
        "cpu", (job.replicas, job.ranks), mesh_dim_names=("dp", "pp")
    )
    sleep, held = _Sleep(job, rank), job.held(rank)
    stages = [
        PipelineStage(
            _stage(sleep, job, stage),
            stage,
            job.stages,
            torch.device("cpu"),
            group=mesh["pp"].get_group(),
        )
        for stage in held
    ]
    schedule = get_schedule_class(job.schedule)(
        stages[0] if job.schedule in SINGLE else stages,
        job.microbatches,
        loss_fn=nn.functional.mse_loss,
    )
    inputs = torch.ones(job.microbatches, _WIDTH)
    given = (inputs,) if 0 in held else ()
    for _ in range(job.steps + 1):
        schedule.step(*given, target=inputs if job.stages - 1 in held else None)
        for stage in stages:
            stage.submod.zero_grad()
        distributed.barrier()
        sleep.awake = True
    distributed.destroy_process_group()
