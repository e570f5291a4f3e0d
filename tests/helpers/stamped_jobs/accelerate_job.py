"""A loop with Accelerate that takes stamps of its own.

accelerate launch --cpu --num-processes 2 accelerate_job.py
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from stamps import SAMPLES, Stage, StampedAdamW, Stamps, loss_of, now, tag, tokens
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=asked.accumulate)
    ranks = accelerator.num_processes
    stamps = Stamps(accelerator.process_index)
    samples = []
    for batch in range(asked.steps * asked.accumulate):
        number = tag(*divmod(batch, asked.accumulate))
        samples += [sample for rank in range(ranks) for sample in tokens(number, rank)]
    other = [sample for i in range(2 * ranks) for sample in tokens(tag(0, i, evaluation=True))]
    torch.manual_seed(0)
    model = Stage(stamps, 2)
    model, optimizer, data, held_out = accelerator.prepare(
        model,
        StampedAdamW(model.parameters(), stamps),
        DataLoader(samples, batch_size=SAMPLES),
        DataLoader(other, batch_size=SAMPLES),
    )
    step = 0
    for batch in data:
        with accelerator.accumulate(model):
            start = now()
            logits = model(batch)
            stamps.add("forward", start, now(), stamps.last, stage=0)
            loss = loss_of(logits, batch)
            stamps.loss(loss)
            accelerator.backward(stamps.passed(loss, stamps.last, 0))
            if accelerator.sync_gradients:
                with stamps.around("gradient clipping", step=step):
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            model.eval()
            with stamps.around("evaluation", step=step), torch.no_grad():
                for one in held_out:
                    loss = loss_of(model(one), one)
                    stamps.loss(accelerator.gather(loss).mean())
            model.train()
            step += 1
    stamps.results(model)
    accelerator.end_training()


if __name__ == "__main__":
    main()
