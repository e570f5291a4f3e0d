"""Training jobs that torch.profiler traces, with ranges of the truth to be taken out of the traces.

    python markless_job.py CASES.json

Each case is an `markless_runs.Case` as a JSON object with a "folder" for the ranks' traces. Whatever
runs in a range named `TRUTH:...` is what that name says; `markless_runs` takes the ranges out.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import sys
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleSingle,
    _PipelineSchedule,
    get_schedule_class,
)
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint

WARMUP = 2
"""Steps before those that are traced: the first allocates, and tells the stages their shapes."""

WIDTH, HEADS, LENGTH, WORDS = 96, 4, 24, 64


class Place(SimpleNamespace):
    """What this process does now: the step, and the action whose code runs."""

    step = -1
    action: tuple[str, int, int] | None = None

    def during(self, kind: str, stage: int, microbatch: int) -> Any:
        """Name a range of the trace after the action that runs in it."""
        return _during(self, (kind, stage, microbatch))


@contextlib.contextmanager
def _during(place: Place, action: tuple[str, int, int]) -> Any:
    before, place.action = place.action, action
    kind, stage, microbatch = action
    try:
        with record_function(f"TRUTH:{kind}:{place.step}:{stage}:{microbatch}"):
            yield
    finally:
        place.action = before


PLACE = Place()


class Block(nn.Module):
    """A layer: an MLP's, or a transformer's."""

    def __init__(self, *, attends: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        if attends:
            self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attends = attends
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        if self.attends:
            samples, length, _ = y.shape
            parts = self.mixed(y).view(samples, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            y = x + self.out(seen.transpose(1, 2).reshape(samples, length, WIDTH))
        return x + self.down(torch.relu(self.up(y)))


class Part(nn.Module):
    """A stage's layers, with the embedding before the first and the head after the last."""

    def __init__(self, case: Any, stage: int, stages: int) -> None:
        super().__init__()
        model = case.model
        layers = 1 + stage % 3 if model in ("uneven", "shared") else 2
        attends = model in ("transformer", "recomputed")
        same = Block(attends=attends) if model == "shared" else None
        self.layers = nn.ModuleList(same or Block(attends=attends) for _ in range(layers))
        self.recomputed, self.stage = model == "recomputed", stage
        embeds = attends
        self.first = nn.Embedding(WORDS, WIDTH) if embeds and stage == 0 else None
        self.last = nn.Linear(WIDTH, WORDS) if embeds and stage == stages - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.first is not None:
            x = self.first(x)
        for layer in self.layers:
            run = partial(checkpoint, self.noted, use_reentrant=False) if self.recomputed else _run
            x = run(layer, x)
        return x if self.last is None else self.last(x)

    def noted(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Run a layer, and note it where the backward runs it a second time."""
        action = PLACE.action
        if action is None or action[0] == "forward":
            return layer(x)
        with PLACE.during("recompute", *action[1:]):
            return layer(x)


def _run(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return layer(x)


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if output.shape[-1] == WORDS:
        return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())
    return nn.functional.mse_loss(output, target)


def note_actions() -> None:
    """Put ranges of the truth around what torch's stages and schedules do for an action."""
    forward, backward = _PipelineStageBase.forward_one_chunk, _PipelineStageBase.backward_one_chunk
    weight, loss = (
        _PipelineStageBase.backward_weight_one_chunk,
        _PipelineSchedule._maybe_compute_loss,
    )

    def noted_forward(self: Any, chunk: int, *args: Any, **kwargs: Any) -> Any:
        with PLACE.during("forward", self.stage_index, chunk):
            return forward(self, chunk, *args, **kwargs)

    def noted_backward(
        self: Any, chunk: int, loss: Any = None, full_backward: bool = True, **kwargs: Any
    ) -> Any:
        kind = "backward" if full_backward else "backward_input"
        with PLACE.during(kind, self.stage_index, chunk):
            return backward(self, chunk, loss=loss, full_backward=full_backward, **kwargs)

    def noted_weight(self: Any, chunk: int, *args: Any, **kwargs: Any) -> Any:
        with PLACE.during("backward_weight", self.stage_index, chunk):
            return weight(self, chunk, *args, **kwargs)

    def noted_loss(self: Any, stage: Any, output: Any, targets: Any, chunk: int, *rest: Any) -> Any:
        if not stage.is_last:
            return loss(self, stage, output, targets, chunk, *rest)
        with PLACE.during("loss", stage.stage_index, chunk):
            return loss(self, stage, output, targets, chunk, *rest)

    _PipelineStageBase.forward_one_chunk = noted_forward
    _PipelineStageBase.backward_one_chunk = noted_backward
    _PipelineStageBase.backward_weight_one_chunk = noted_weight
    _PipelineSchedule._maybe_compute_loss = noted_loss


def held(case: Any, rank: int) -> list[int]:
    """Return the stages of a rank: a V where the schedule folds, else each round through the ranks."""
    if case.schedule in ("ZBVZeroBubble", "DualPipeV"):
        return [rank, 2 * case.ranks - 1 - rank]
    return [rank + turn * case.ranks for turn in range(case.chunks)]


def batch(case: Any, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what goes in and what should come out, for so many samples."""
    if case.model in ("transformer", "recomputed"):
        words = torch.randint(WORDS, (samples, LENGTH))
        return words, words.roll(-1, 1)
    made = torch.randn(samples, LENGTH, WIDTH)
    return made, torch.tanh(made)


def pipeline(case: Any, rank: int) -> tuple[Any, Any]:
    """Return what trains a step in a pipeline, and its parameters."""
    note_actions()
    places, count = held(case, rank), case.ranks * case.chunks
    parts = [Part(case, place, count) for place in places]
    stages = [
        PipelineStage(part, place, count, torch.device("cpu"))
        for part, place in zip(parts, places, strict=True)
    ]
    kind = get_schedule_class(case.schedule)
    single = issubclass(kind, PipelineScheduleSingle)
    schedule = kind(stages[0] if single else stages, case.microbatches, loss_fn=loss_of)

    def step() -> None:
        inputs, wanted = batch(case, case.samples * case.microbatches)
        args = (inputs,) if 0 in places else ()
        schedule.step(*args, target=wanted if count - 1 in places else None)

    return step, [one for part in parts for one in part.parameters()]


def loop(case: Any, _rank: int) -> tuple[Any, Any]:
    """Return what trains a step without a pipeline, and its parameters."""
    model: nn.Module = nn.Sequential(Part(case, 0, 2), Part(case, 1, 2))
    if case.schedule == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for part in model:
            fully_shard(part)
        fully_shard(model)
    elif case.schedule == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif case.schedule == "tensor-parallel":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        mesh = init_device_mesh("cpu", (case.ranks,))
        for part in model:
            for layer in part.layers:
                parallelize_module(
                    layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}
                )

    def step() -> None:
        for number in range(case.microbatches):
            inputs, wanted = batch(case, case.samples)
            with PLACE.during("forward", 0, number):
                loss = loss_of(model(inputs), wanted) / case.microbatches
            with PLACE.during("backward", 0, number):
                loss.backward()

    return step, list(model.parameters())


def train(case: Any, rank: int, store: str) -> None:
    """Train this rank's part of a case, and write its trace."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    if case.ranks > 1:
        distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=case.ranks
        )
    if case.schedule.startswith("Megatron"):
        import markless_megatron

        step, parameters = markless_megatron.pipeline(
            case, rank, PLACE.during, Part, batch, loss_of
        )
    else:
        step, parameters = (pipeline if case.pipeline else loop)(case, rank)
    optimizer = (torch.optim.SGD if case.optimizer == "SGD" else torch.optim.AdamW)(
        parameters, lr=1e-3
    )

    def one(number: int) -> None:
        PLACE.step = number
        step()
        with PLACE.during("optimizer", 0, 0):
            optimizer.step()
        optimizer.zero_grad()

    profile = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        record_shapes=case.record_shapes,
        schedule=torch.profiler.schedule(wait=0, warmup=WARMUP, active=case.steps)
        if case.numbered
        else None,
    )
    if not case.numbered:
        for _ in range(WARMUP):
            one(-1)
    with profile:
        for number in range(-WARMUP if case.numbered else 0, case.steps):
            one(number)
            if case.numbered and number + 1 < case.steps:
                profile.step()
    profile.export_chrome_trace(str(case.folder / f"rank{rank}.json.gz"))
    if case.ranks > 1:
        distributed.barrier()
        distributed.destroy_process_group()


def main() -> None:
    """Run the cases one after the other, each in processes of its own, with torch imported once."""
    fork = multiprocessing.get_context("fork")
    for asked in json.loads(Path(sys.argv[1]).read_text()):
        case = SimpleNamespace(**{**asked, "folder": Path(asked["folder"])})
        with tempfile.TemporaryDirectory() as folder:
            ranks = [
                fork.Process(target=train, args=(case, rank, f"{folder}/store"))
                for rank in range(case.ranks)
            ]
            for each in ranks:
                each.start()
            for each in ranks:
                each.join()
            if any(each.exitcode for each in ranks):
                raise SystemExit(f"{case.schedule} in {case.folder} failed")


if __name__ == "__main__":
    main()
