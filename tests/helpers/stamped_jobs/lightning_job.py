"""A job of Lightning's Trainer that takes stamps of its own.

    python lightning_job.py --devices 2 --accumulate 2
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import lightning
import torch
from stamps import Stage, StampedAdamW, Stamps, loss_of, now, tag, tokens
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset):
    """A rank's own batches."""

    def __init__(self, asked: argparse.Namespace, rank: int, *, evaluation: bool = False) -> None:
        self.asked, self.rank, self.evaluation = asked, rank, evaluation

    def __len__(self) -> int:
        return 2 if self.evaluation else self.asked.steps * self.asked.accumulate

    def __getitem__(self, index: int) -> torch.Tensor:
        step, microbatch = divmod(index, self.asked.accumulate)
        return tokens(tag(step, microbatch, evaluation=self.evaluation), self.rank)


class Module(lightning.LightningModule):
    """What Lightning trains."""

    def __init__(self, asked: argparse.Namespace) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.asked = asked
        self.inner: Any = None
        self.__dict__["stamps"] = None
        self._start = self._number = 0

    def setup(self, stage: str) -> None:
        del stage
        if self.stamps is None:
            self.__dict__["stamps"] = Stamps(self.global_rank)

    def configure_model(self) -> None:
        if self.inner is None:
            self.inner = Stage(self.stamps, 2)

    def configure_optimizers(self) -> Any:
        return StampedAdamW(self.parameters(), self.stamps)

    def train_dataloader(self) -> Any:
        return DataLoader(Batches(self.asked, self.global_rank), batch_size=None)

    def val_dataloader(self) -> Any:
        return DataLoader(Batches(self.asked, self.global_rank, evaluation=True), batch_size=None)

    def on_train_start(self) -> None:
        self.trainer.optimizers[0].done = self.trainer.global_step

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        start, self._number = now(), int(batch[0, 0])
        loss = loss_of(self.inner(batch), batch)
        self.stamps.add("forward", start, now(), self._number, stage=0)
        self.stamps.loss(loss)
        return loss

    def on_before_backward(self, loss: torch.Tensor) -> None:
        del loss
        self._start = now()

    def on_after_backward(self) -> None:
        self.stamps.add("backward", self._start, now(), self.stamps.last_backward, stage=0)

    def on_validation_start(self) -> None:
        self._start = now()

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        self.stamps.loss(loss_of(self.inner(batch), batch))

    def on_validation_end(self) -> None:
        step = max(self.trainer.global_step - 1, 0)
        self.stamps.add("evaluation", self._start, now(), step=step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="train half, and go on from its file")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    module = Module(asked)
    common = {
        "accelerator": "cpu",
        "devices": asked.devices,
        "strategy": "ddp" if asked.devices > 1 else "auto",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accumulate_grad_batches": asked.accumulate,
        "gradient_clip_val": 1.0,
        "val_check_interval": 2 * asked.accumulate,
        "use_distributed_sampler": False,
        "default_root_dir": os.environ["STAMPS"],
    }
    trainer = lightning.Trainer(max_steps=asked.steps, max_epochs=1, **common)
    trainer.fit(module)
    module.stamps.results(module)


if __name__ == "__main__":
    main()
