"""A job of Lightning's Trainer that takes stamps of its own.

python lightning_job.py --devices 2 --accumulate 2
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
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
        self._start = 0

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
        start = now()
        logits = self.inner(batch)
        if self.asked.devices == 1:
            self.stamps.add("forward", start, now(), self.stamps.last, stage=0)
        loss = loss_of(logits, batch)
        self.stamps.loss(loss)
        return self.stamps.passed(loss, self.stamps.last, 0)

    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        with self.stamps.around("gradient clipping", step=self.trainer.global_step):
            super().configure_gradient_clipping(*args, **kwargs)

    def on_validation_start(self) -> None:
        self._start = now()

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        self.stamps.loss(loss_of(self.inner(batch), batch))

    def on_validation_end(self) -> None:
        done = self.trainer.global_step
        step = done - 1 if done else None  # before the first
        self.stamps.add("evaluation", self._start, now(), step=step)


class Replicas(DDPStrategy):
    """Several processes. A forward is one of the replicated model: it calls `training_step`."""

    def _setup_model(self, model: Any) -> Any:
        made, stamps = super()._setup_model(model), self.lightning_module.stamps
        theirs = made.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            start = now()
            result = theirs(*args, **kwargs)
            if torch.is_grad_enabled():
                stamps.add("forward", start, now(), stamps.last, stage=0)
            return result

        made.forward = forward
        return made


class Checkpoint(ModelCheckpoint):
    """Writes checkpoints, and notes when."""

    def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
        start = now()
        super()._save_checkpoint(trainer, filepath)
        if trainer.is_global_zero:
            step = trainer.global_step - 1
            trainer.lightning_module.stamps.add("checkpoint", start, now(), step=step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    module = Module(asked)
    common = {
        "accelerator": "cpu",
        "devices": asked.devices,
        "strategy": Replicas() if asked.devices > 1 else "auto",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accumulate_grad_batches": asked.accumulate,
        "gradient_clip_val": 1.0,
        "val_check_interval": 2 * asked.accumulate,
        "use_distributed_sampler": False,
        "default_root_dir": os.environ["STAMPS"],
    }
    saves = Checkpoint(os.environ["STAMPS"], every_n_train_steps=2, save_top_k=-1)
    trainer = lightning.Trainer(max_steps=asked.steps, max_epochs=1, callbacks=[saves], **common)
    trainer.fit(module)
    module.stamps.results(module)


if __name__ == "__main__":
    main()
