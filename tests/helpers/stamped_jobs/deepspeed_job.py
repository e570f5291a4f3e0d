"""A pipeline of DeepSpeed's PipelineModule, on CPUs, that takes stamps of its own.

torchrun --nproc-per-node 2 deepspeed_job.py
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from stamps import (
    SAMPLES,
    START,
    VOCABULARY,
    WIDTH,
    Block,
    StampedAdamW,
    Stamps,
    loss_of,
    now,
    tag,
    tokens,
)
from torch import nn


class Embedding(nn.Module):
    """Embeds tokens; the tag goes before them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        marks = x[:, :1].float()[..., None].expand(-1, -1, WIDTH)
        return torch.cat([marks, self.inner(x[:, 1:])], 1)


class Layer(Block):
    """A layer, of what comes after the tag."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:, :1], super().forward(x[:, 1:])], 1)


class Head(nn.Linear):
    """The last layer; the tag stays."""

    def __init__(self) -> None:
        super().__init__(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[:, :1, :VOCABULARY], super().forward(x[:, 1:])], 1)


class Stamped(PipelineModule):
    """A stage that notes its passes."""

    def __init__(self, stamps: Stamps, stages: int) -> None:
        layers = [Embedding(), *(Layer() for _ in range(stages)), Head()]
        super().__init__(
            layers,
            num_stages=stages,
            loss_fn=self._loss,
            partition_method="parameters",
        )
        self.stamps = stamps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stamps.last = number = int(x.flatten()[0])
        result = super().forward(x)
        passes = torch.is_grad_enabled() and self.stage_id < self.num_stages - 1
        return self.stamps.passed(result, number) if passes else result

    def _loss(self, x: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        loss = loss_of(x[:, 1:], batch)
        grows = torch.is_grad_enabled()
        return self.stamps.passed(loss, self.stamps.last) if grows else loss


def stamped(instruction: Any, kind: str) -> None:
    """Let the engine's function for an instruction note itself, by the tags that the module reads."""
    functions = PipelineEngine._INSTRUCTION_MAP
    theirs = functions[instruction]

    def run(engine: Any, *args: Any, **kwargs: Any) -> None:
        start = now()
        theirs(engine, *args, **kwargs)
        end, stamps = now(), engine.module.stamps
        if torch.is_grad_enabled():
            number = stamps.last if kind == "forward" else stamps.last_backward
            stamps.add(kind, start, end, number, stage=engine.stage_id)

    functions[instruction] = run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--zero", type=int, default=0)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument(
        "--resume", action="store_true", help="save after step 1, and go on from it"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    stamped(schedule.ForwardPass, "forward")
    stamped(schedule.BackwardPass, "backward")
    torch.manual_seed(0)
    stamps = Stamps(torch.distributed.get_rank())
    module = Stamped(stamps, asked.stages)
    optimizer = StampedAdamW(module.parameters(), stamps)
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": SAMPLES,
            "gradient_accumulation_steps": asked.microbatches,
            "zero_optimization": {"stage": asked.zero},
            "zero_allow_untested_optimizer": True,
        },
    )
    saved = os.path.join(os.environ["STAMPS"], "saved")  # noqa: PTH118  DeepSpeed wants a string
    if START:
        engine.load_checkpoint(saved)
    seed = engine.grid.get_data_parallel_id()
    first = optimizer.done = engine.global_steps

    def evaluate(after: int | None) -> None:
        numbers = (tag(after or 0, i, evaluation=True) for i in range(asked.microbatches))
        with stamps.around("evaluation", step=after):
            stamps.loss(engine.eval_batch((tokens(one, seed),) * 2 for one in numbers))

    if asked.evaluate:
        evaluate(None)
    for step in range(first, asked.steps):
        batches = ((tokens(tag(step, i), seed),) * 2 for i in range(asked.microbatches))
        stamps.loss(engine.train_batch(batches))
        if asked.evaluate:
            evaluate(step)
        if asked.resume and not START and step == 1:
            with stamps.around("checkpoint", step=step):
                engine.save_checkpoint(saved)
        if asked.resume and not START and step == 2:
            stamps.fail()
    stamps.results(module)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
