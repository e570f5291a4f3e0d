"""A training loop written by hand, that takes stamps of its own.

torchrun --nproc-per-node 2 loops.py --wrap ddp --accumulate 3
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from stamps import (
    LENGTH,
    SAMPLES,
    START,
    WIDTH,
    Stage,
    StampedAdamW,
    Stamps,
    join,
    loss_of,
    now,
    tag,
    tokens,
)
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Iterator


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--wrap", choices=["ddp", "fsdp", "fsdp1", "hsdp", "zero"])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--recompute", choices=["reentrant", "plain"])
    for flag in ("no-sync", "evaluate", "compile", "scaler", "bad", "pipeline", "save", "closure"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--again", action="store_true", help="rank 1 runs some forwards twice")
    parser.add_argument("--in-place", action="store_true", help="compile by the model's own method")
    parser.add_argument("--workers", choices=["fork", "spawn"])
    parser.add_argument("--spawn", type=int, help="start so many processes by mp.spawn")
    parser.add_argument("--fail", type=int, help="leave in this step with code 13, the first time")
    return parser.parse_args()


class Batches(Dataset):
    """What a rank trains on."""

    def __init__(self, asked: argparse.Namespace, rank: int) -> None:
        self.asked, self.rank = asked, rank

    def __len__(self) -> int:
        return self.asked.steps * self.asked.accumulate

    def __getitem__(self, index: int) -> torch.Tensor:
        return tokens(tag(*divmod(index, self.asked.accumulate)), self.rank)


def train(rank: int, asked: argparse.Namespace, port: int | None = None) -> None:
    """Train as one process."""
    torch.set_num_threads(1)
    if port is not None:
        store = f"tcp://127.0.0.1:{port}"
        distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=asked.spawn)
    elif "RANK" in os.environ:
        join()
        rank = distributed.get_rank()
    Loop(asked, rank).train()
    if distributed.is_initialized():
        distributed.destroy_process_group()


class Loop:
    """One process of the job."""

    def __init__(self, asked: argparse.Namespace, rank: int) -> None:
        self.asked, self.rank, self.stamps = asked, rank, Stamps(rank)
        torch.manual_seed(0)
        self.plain = Stage(self.stamps, 2)
        if asked.recompute:
            blocks = self.plain.through
            self.plain.blocks_run = lambda x: torch.utils.checkpoint.checkpoint(
                blocks, x, use_reentrant=asked.recompute == "reentrant"
            )
        self.engine: Any = None
        self.model = self._wrapped(self.plain)
        self.optimizer = None if self.engine else StampedAdamW(self.model.parameters(), self.stamps)
        if asked.in_place:
            self.model.compile(backend="aot_eager")
        elif asked.compile:
            self.model = torch.compile(self.model, backend="aot_eager")
        self.scaler = (
            torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=100)
            if asked.scaler
            else None
        )

    def _wrapped(self, model: nn.Module) -> Any:
        wrap = self.asked.wrap
        if wrap == "ddp":
            return nn.parallel.DistributedDataParallel(model)
        if wrap == "fsdp1":
            from torch.distributed.fsdp import FullyShardedDataParallel

            return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        if wrap in {"fsdp", "hsdp"}:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            ranks = distributed.get_world_size()
            mesh = (
                init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp_shard",))
                if wrap == "fsdp"
                else init_device_mesh(
                    "cpu", (2, ranks // 2), mesh_dim_names=("dp_replicate", "dp_shard")
                )
            )
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            return fully_shard(model, mesh=mesh)
        if wrap == "zero":
            import deepspeed

            self.engine, *_ = deepspeed.initialize(
                model=model,
                optimizer=StampedAdamW(model.parameters(), self.stamps),
                config={
                    "train_micro_batch_size_per_gpu": SAMPLES,
                    "gradient_accumulation_steps": self.asked.accumulate,
                    "zero_optimization": {"stage": 1},
                    "zero_allow_untested_optimizer": True,
                },
            )
            return self.engine
        return model

    def train(self) -> None:
        asked, stamps = self.asked, self.stamps
        workers = {"num_workers": 1, "multiprocessing_context": asked.workers}
        data = iter(
            DataLoader(
                Batches(asked, self.rank), batch_size=None, **(workers if asked.workers else {})
            )
        )
        if asked.evaluate:
            self._evaluate(None)
        for step in range(asked.steps):
            if asked.bad and step == 1:
                self._try_bad()
            if asked.closure:
                self.optimizer.step(lambda: self._pass(next(data), last=True))
            else:
                self._accumulate(step, data)
                self._update()
            if asked.evaluate:
                self._evaluate(step)
            if asked.save:
                with stamps.around("checkpoint", step=step):
                    torch.save(
                        self.plain.state_dict(), Path(os.environ["STAMPS"], f"{self.rank}.pt")
                    )
            if asked.fail == step and not START:
                stamps.fail()
        if asked.compile:
            # Graphs made, and what broke them: as many as without anybody who looks on.
            found = torch._dynamo.utils.counters
            stamps.loss(found["stats"]["unique_graphs"])
            stamps.loss(sum(found["graph_break"].values()))
        stamps.results(self.model)

    def _accumulate(self, step: int, data: Iterator[torch.Tensor]) -> None:
        for i in range(self.asked.accumulate):
            batch = next(data)
            if self.asked.again and self.rank and step % 2 and i == 1:
                self._try(batch, step)
            self._pass(batch, last=i == self.asked.accumulate - 1)

    def _pass(self, batch: torch.Tensor, *, last: bool) -> torch.Tensor:
        """Run a micro-batch forwards and backwards."""
        stamps, number = self.stamps, int(batch[0, 0])
        waits = (
            self.model.no_sync() if self.asked.no_sync and not last else contextlib.nullcontext()
        )
        with waits:
            start = now()
            logits = self.model(batch)
            stamps.add("forward", start, now(), number, stage=0)
            loss = loss_of(logits, batch) / self.asked.accumulate
            stamps.loss(loss)
            stamps.last_backward = -1
            if self.engine is not None:
                # It reduces gradients after autograd, which is no part of the backward.
                self.engine.backward(stamps.passed(loss, number, 0))
                self.engine.step()
                return loss
            if self.asked.wrap == "ddp":
                # It waits for gradients after autograd, too.
                stamps.passed(loss, number, 0).backward()
                return loss
            scaled = loss if self.scaler is None else self.scaler.scale(loss)
            start = now()
            scaled.backward()
            stamps.add("backward", start, now(), number, stage=0)
            assert stamps.last_backward in {-1, number}
        return loss

    def _try(self, batch: torch.Tensor, step: int) -> None:
        """Run a micro-batch forwards, and leave it at that."""
        with self.stamps.around("forward without backward", step=step), self.model.no_sync():
            self.model(batch)

    def _update(self) -> None:
        if self.engine is not None:
            return
        if self.scaler is None:
            self.optimizer.step()
        else:
            before = self.optimizer.done
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.done = before + 1  # a step that overflows is one as well
        self.optimizer.zero_grad()

    def _evaluate(self, after: int | None) -> None:
        """Evaluate after a step, or before the first."""
        self.model.eval()
        with self.stamps.around("evaluation", step=after), torch.no_grad():
            for i in range(2):
                batch = tokens(tag(after or 0, i, evaluation=True), self.rank)
                self.stamps.loss(loss_of(self.model(batch), batch))
        self.model.train()

    def _try_bad(self) -> None:
        try:
            self.model(torch.full((SAMPLES, LENGTH), -5))
        except IndexError:
            return
        raise AssertionError("a bad batch was taken")


def pipeline(asked: argparse.Namespace, microbatches: int = 4) -> None:  # noqa: C901  as such loops are
    """Train a pipeline, one stage a rank, in 1F1B by hand."""
    torch.set_num_threads(1)
    join()
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    first, last, stamps = rank == 0, rank == ranks - 1, Stamps(rank)
    torch.manual_seed(rank)
    model = Stage(stamps, 1, first=first, last=last)
    optimizer = StampedAdamW(model.parameters(), stamps)
    sending: list[Any] = []

    def received(peer: int) -> torch.Tensor:
        made = torch.empty(SAMPLES, 1 + LENGTH, WIDTH)
        distributed.irecv(made, peer).wait()
        return made

    for step in range(asked.steps):
        flying: list[Any] = []

        def forward(i: int, step: int = step, flying: list[Any] = flying) -> None:
            batch = tokens(tag(step, i))
            x = batch if first else received(rank - 1).requires_grad_()
            start = now()
            y = model(x)
            stamps.add("forward", start, now(), stamps.last, stage=rank)
            if last:
                y = loss_of(y, batch) / microbatches
                stamps.loss(y)
            else:
                sending.append(distributed.isend(y, rank + 1))
            flying.append((x, y))

        def backward(flying: list[Any] = flying) -> None:
            x, y = flying.pop(0)
            gradient = None if last else received(rank + 1)
            start = now()
            y.backward(gradient)
            stamps.add("backward", start, now(), stamps.last_backward, stage=rank)
            if not first:
                sending.append(distributed.isend(x.grad, rank - 1))

        ahead = min(ranks - 1 - rank, microbatches)
        for i in range(ahead):
            forward(i)
        for i in range(ahead, microbatches):
            forward(i)
            backward()
        for _ in range(ahead):
            backward()
        for work in sending:
            work.wait()
        sending.clear()
        optimizer.step()
        optimizer.zero_grad()
    stamps.results(model)
    distributed.destroy_process_group()


if __name__ == "__main__":
    asked = arguments()
    if asked.pipeline:
        pipeline(asked)
    elif asked.spawn:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.spawn(train, (asked, port), nprocs=asked.spawn)
    else:
        train(0, asked)
