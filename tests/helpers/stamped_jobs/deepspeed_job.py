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
from stamps import (
    SAMPLES,
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

    def __init__(self, stamps: Stamps, stages: int, checkpoint: int) -> None:
        layers = [Embedding(), *(Layer() for _ in range(stages)), Head()]
        self._number = -1
        super().__init__(
            layers,
            num_stages=stages,
            loss_fn=self._loss,
            partition_method="parameters",
            activation_checkpoint_interval=checkpoint,
        )
        self.__dict__["stamps"] = stamps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._number, start = int(x.flatten()[0]), now()
        result = super().forward(x)
        if torch.is_grad_enabled():
            self.stamps.add("forward", start, now(), self._number, stage=self.stage_id)
            if self.stage_id < self.num_stages - 1:
                result = self.stamps.passed(result, self._number, self.stage_id)
        return result

    def _loss(self, x: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
        loss = loss_of(x[:, 1:], batch)
        if not torch.is_grad_enabled():
            return loss
        return self.stamps.passed(loss, self._number, self.stage_id)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--zero", type=int, default=0)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--resume", action="store_true", help="save after step 1, and go on from it")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    stamps = Stamps(torch.distributed.get_rank())
    module = Stamped(stamps, asked.stages, 0)
    optimizer = StampedAdamW(module.parameters(), stamps)
    engine, *_ = deepspeed.initialize(
        model=module,
        optimizer=optimizer,
        config={
            "train_micro_batch_size_per_gpu": SAMPLES,
            "gradient_accumulation_steps": asked.microbatches,
            "zero_optimization": {"stage": asked.zero},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
        },
    )
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    saved = os.path.join(os.environ["STAMPS"], "saved")  # noqa: PTH118  DeepSpeed wants a string
    if again:
        engine.load_checkpoint(saved)
    seed = engine.grid.get_data_parallel_id()
    first = optimizer.done = engine.global_steps
    for step in range(first, asked.steps):
        batches = ((tokens(tag(step, i), seed),) * 2 for i in range(asked.microbatches))
        stamps.loss(engine.train_batch(batches))
        if asked.evaluate:
            batches = (
                (tokens(tag(step, i, evaluation=True), seed),) * 2
                for i in range(asked.microbatches)
            )
            with stamps.around("evaluation", step=step):
                stamps.loss(engine.eval_batch(batches))
        if asked.resume and not again and step == 1:
            engine.save_checkpoint(saved)
        if asked.resume and not again and step == 2:
            raise SystemExit(13)
    stamps.results(module)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
