"""A job of Hugging Face's Trainer that takes stamps of its own.

torchrun --nproc-per-node 2 trainer_job.py --accumulate 2
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from stamps import SAMPLES, START, Stage, StampedAdamW, Stamps, loss_of, now, tag, tokens
from torch import nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer, TrainingArguments


class Samples(Dataset):
    """Single samples, such that each rank's batches carry their tags: batch b is rank b % ranks'."""

    def __init__(self, asked: argparse.Namespace, ranks: int, *, evaluation: bool = False) -> None:
        self.asked, self.ranks, self.evaluation = asked, ranks, evaluation

    def __len__(self) -> int:
        batches = 2 if self.evaluation else self.asked.steps * self.asked.accumulate
        return batches * SAMPLES * self.ranks

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        batch, sample = divmod(index, SAMPLES)
        of_rank, rank = divmod(batch, self.ranks)
        number = tag(*divmod(of_rank, self.asked.accumulate), evaluation=self.evaluation)
        return {"x": tokens(number, rank)[sample]}


class Model(nn.Module):
    """What the trainer trains: it returns its loss."""

    def __init__(self, stamps: Stamps) -> None:
        super().__init__()
        self.inner = Stage(stamps, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": loss_of(self.inner(x), x)}


class Stamped(Trainer):
    """A trainer that notes its passes and evaluations."""

    stamps: Stamps
    asked: argparse.Namespace

    def _get_train_sampler(self, *_: Any) -> Any:
        return SequentialSampler(self.train_dataset)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        start = now()
        loss = model(**inputs)["loss"]
        self.stamps.add("forward", start, now(), self.stamps.last, stage=0)
        self.stamps.loss(loss)
        return self.stamps.passed(loss / self.asked.accumulate, self.stamps.last, 0)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with self.stamps.around("checkpoint", step=self.state.global_step - 1):
            super()._save_checkpoint(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with self.stamps.around("evaluation", step=self.state.global_step - 1):
            return super().evaluate(*args, **kwargs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--resume", action="store_true", help="fail after the first checkpoint")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(os.environ["STAMPS"], "saved")
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=SAMPLES,
        per_device_eval_batch_size=SAMPLES,
        gradient_accumulation_steps=asked.accumulate,
        max_steps=asked.steps,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        eval_strategy="steps" if asked.evaluate else "no",
        eval_steps=2,
        save_strategy="steps" if asked.resume else "no",
        save_steps=2,
        logging_strategy="no",
        remove_unused_columns=False,
        label_names=[],
    )
    stamps = Stamps(arguments.process_index)
    torch.manual_seed(0)
    model = Model(stamps)
    optimizer = StampedAdamW(model.parameters(), stamps)
    ranks = arguments.world_size
    trainer = Stamped(
        model=model,
        args=arguments,
        train_dataset=Samples(asked, ranks),
        eval_dataset=Samples(asked, ranks, evaluation=True),
        optimizers=(optimizer, None),
    )
    trainer.stamps, trainer.asked = stamps, asked
    clip = trainer.accelerator.clip_grad_norm_

    def clipped(*args: Any, **kwargs: Any) -> Any:
        with stamps.around("gradient clipping", step=optimizer.done):
            return clip(*args, **kwargs)

    trainer.accelerator.clip_grad_norm_ = clipped
    if asked.resume and not START:
        trainer.add_callback(_Fails(3, stamps))
    if START:
        optimizer.done = 2
    trainer.train(resume_from_checkpoint=START > 0 or None)
    stamps.results(model)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _Fails(step: int, stamps: Stamps) -> Any:  # noqa: N802  makes one of a class that is made here
    from transformers import TrainerCallback

    class Fails(TrainerCallback):
        """Leaves the job after so many steps."""

        def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            if state.global_step == step:
                stamps.fail()

    return Fails()


if __name__ == "__main__":
    main()
