"""A training job of torch.distributed.pipelining that takes stamps of its own.

    torchrun --nproc-per-node 4 pipelines.py --schedule 1F1B

Args after that put into it what jobs have beside a schedule.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from stamps import LENGTH, SAMPLES, START, Stage, Stamps, join, loss_of, now, tag, tokens
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleSingle,
    _PipelineScheduleRuntime,
    get_schedule_class,
)
from torch.utils.data import DataLoader, Dataset

FOLDED = ("ZBVZeroBubble", "DualPipeV")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", default="1F1B", help='"csv": one that is read from a file')
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1, help="of gradient accumulation")
    parser.add_argument("--replicate", type=int, default=1)
    parser.add_argument("--shard", type=int, default=1)
    parser.add_argument("--tensor", type=int, default=1)
    for flag in ("evaluate", "recompute", "bad", "compile", "clip", "nan"):
        parser.add_argument(f"--{flag}", action="store_true")
    parser.add_argument("--save", choices=["torch", "dcp"])
    parser.add_argument("--workers", choices=["fork", "spawn"])
    parser.add_argument("--fail", type=int, help="raise in this step, at the first start only")
    return parser.parse_args()


class StampedStage(PipelineStage):
    """A stage that notes its passes, by the tags that its module reads."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        start = now()
        try:
            result = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        except Exception:  # it belongs to no step
            place = {"stage": self.stage_index, "microbatch": fwd_chunk_id}
            self.stamps.add("forward", start, now(), **place)
            raise
        self.numbers[fwd_chunk_id] = self.stamps.last
        if self.has_backward:
            self.stamps.add("forward", start, now(), self.stamps.last, stage=self.stage_index)
        return result

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, **kwargs: Any
    ) -> Any:
        self._stamped(
            "backward" if full_backward else "backward_input",
            bwd_chunk_id,
            lambda: super(StampedStage, self).backward_one_chunk(
                bwd_chunk_id, loss=loss, full_backward=full_backward, **kwargs
            ),
        )

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._stamped(
            "backward_weight",
            bwd_chunk_id,
            lambda: super(StampedStage, self).backward_weight_one_chunk(
                bwd_chunk_id, *args, **kwargs
            ),
        )

    def _stamped(self, kind: str, chunk: int, run: Any) -> None:
        if not self.has_backward:
            run()
            return
        self.stamps.last_backward = -1
        start = now()
        run()
        end = now()
        # A part of a backward that does not come by the module's output tells nothing itself.
        number = self.stamps.last_backward
        number = self.numbers[chunk] if number < 0 else number
        self.stamps.add(kind, start, end, number, stage=self.stage_index)


class Job:
    """One process of the job."""

    def __init__(self, asked: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        join()
        self.asked = asked
        self.rank = distributed.get_rank()
        self.stamps = Stamps(self.rank)
        shape = {"dp_replicate": asked.replicate, "dp_shard": asked.shard, "tp": asked.tensor}
        shape = {name: size for name, size in shape.items() if size > 1}
        across = distributed.get_world_size()
        for size in shape.values():
            across //= size
        names = [name for name in shape if name != "tp"]
        sizes = {**shape, "pp": across}
        order = [*names, "pp", *("tp" for _ in range("tp" in shape))]
        self.mesh = init_device_mesh("cpu", [sizes[one] for one in order], mesh_dim_names=order)
        self.across, self.place = across, self.mesh["pp"].get_local_rank()
        self.kind = (
            _PipelineScheduleRuntime
            if asked.schedule == "csv"
            else get_schedule_class(asked.schedule)
        )
        self.single = issubclass(self.kind, PipelineScheduleSingle)
        self.stages = [self._stage(one) for one in self._held()]
        self.schedule = self._schedule()
        self.seed = 0
        for name in names:
            self.seed = self.seed * 8 + self.mesh[name].get_local_rank()

    def _held(self) -> list[int]:
        if self.single:
            return [self.place]
        if self.asked.schedule in FOLDED:
            return [self.place, 2 * self.across - 1 - self.place]
        return [self.place, self.place + self.across]

    def _stage(self, index: int) -> StampedStage:
        count = self.across * (1 if self.single else 2)
        torch.manual_seed(index)
        module: Any = Stage(self.stamps, 1, first=index == 0, last=index == count - 1)
        if self.asked.recompute:
            blocks = module.through
            module.blocks_run = lambda x: torch.utils.checkpoint.checkpoint(
                blocks, x, use_reentrant=False
            )
        if self.asked.compile:
            module.blocks_run = torch.compile(module.through, backend="aot_eager")
        module = self._spread(module)
        stage = StampedStage(
            module, index, count, torch.device("cpu"), group=self.mesh["pp"].get_group()
        )
        stage.stamps, stage.numbers = self.stamps, {}
        return stage

    def _spread(self, module: Any) -> Any:
        """Spread a stage over the other dimensions of the mesh."""
        if self.asked.tensor > 1:
            from torch.distributed.tensor.parallel import (
                ColwiseParallel,
                RowwiseParallel,
                parallelize_module,
            )

            ways = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
            ways |= dict.fromkeys(("out", "down"), RowwiseParallel())
            for block in module.blocks:
                parallelize_module(block, self.mesh["tp"], ways)
        if self.asked.shard > 1:
            from torch.distributed.fsdp import fully_shard

            names = ("dp_replicate", "dp_shard") if self.asked.replicate > 1 else ("dp_shard",)
            return fully_shard(module, mesh=self.mesh[names])
        if self.asked.replicate > 1:
            group = self.mesh["dp_replicate"].get_group()
            return nn.parallel.DistributedDataParallel(module, process_group=group)
        return module

    def _schedule(self) -> Any:
        schedule = self.kind(
            self.stages[0] if self.single else self.stages,
            self.asked.microbatches,
            loss_fn=loss_of,
        )
        if self.asked.schedule == "csv":
            with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
                numbers = range(self.asked.microbatches)
                for rank in range(self.across):
                    held = (rank, rank + self.across)
                    row = [f"{stage}F{i}" for stage in held for i in numbers]
                    row += [f"{stage}B{i}" for stage in reversed(held) for i in numbers]
                    file.write(",".join(row) + "\n")
                file.flush()
                schedule._load_csv(file.name)
        return schedule

    def batch(self, step: int, round_: int, *, evaluation: bool = False) -> torch.Tensor:
        first = round_ * self.asked.microbatches
        return torch.cat(
            [
                tokens(tag(step, first + i, evaluation=evaluation), self.seed)
                for i in range(self.asked.microbatches)
            ]
        )

    def run(self, batch: torch.Tensor, *, evaluate: bool = False) -> None:
        """Call the schedule."""
        held = self._held()
        last = self.across * (1 if self.single else 2) - 1
        losses: list[Any] | None = [] if last in held else None
        step = self.schedule.eval if evaluate else self.schedule.step
        step(
            *((batch,) if 0 in held else ()),
            target=batch if last in held else None,
            losses=losses,
        )
        for loss in losses or ():
            self.stamps.loss(loss)

    def train(self) -> None:
        asked, stamps = self.asked, self.stamps
        weights = [one for stage in self.stages for one in stage.submod.parameters()]
        optimizer = torch.optim.AdamW(weights, lr=1e-3)
        data = iter(Batches(self).loader(asked.workers)) if asked.workers else None
        if asked.evaluate:
            self._evaluate(None)
        for step in range(asked.steps):
            if asked.bad and step == 1 and self.place == 0:
                self._try_bad()
            for round_ in range(asked.rounds):
                self.run(self.batch(step, round_) if data is None else next(data)[0])
            if asked.fail == step and not START:
                stamps.fail()
            if asked.clip:
                with stamps.around("gradient clipping", step=step):
                    torch.nn.utils.clip_grad_norm_(weights, 1.0)
            if not (asked.nan and step == 2):
                with stamps.around("optimizer", step=step):
                    optimizer.step()
            optimizer.zero_grad()
            if asked.evaluate:
                self._evaluate(step)
            if asked.save:
                with stamps.around("checkpoint", step=step):
                    self._save(step)
        stamps.results(*(stage.submod for stage in self.stages))
        distributed.barrier()
        distributed.destroy_process_group()

    def _evaluate(self, after: int | None) -> None:
        """Evaluate after a step, or before the first."""
        with self.stamps.around("evaluation", step=after):
            self.run(self.batch(after or 0, 0, evaluation=True), evaluate=True)

    def _try_bad(self) -> None:
        """Try a batch that the first stage cannot take, and go on without it."""
        bad = torch.full((SAMPLES * self.asked.microbatches, LENGTH), -5)
        try:
            self.schedule.step(bad)
        except (IndexError, RuntimeError, ValueError):
            return
        raise AssertionError("a bad batch was taken")

    def _save(self, step: int) -> None:
        folder = Path(os.environ["STAMPS"], "checkpoints", str(step))
        folder.mkdir(parents=True, exist_ok=True)
        states = {f"stage{one.stage_index}": one.submod.state_dict() for one in self.stages}
        if self.asked.save == "torch":
            torch.save(states, folder / f"{self.rank}.pt")
        else:
            import torch.distributed.checkpoint as dcp

            dcp.save(states, checkpoint_id=folder / "dcp")


class Batches(Dataset):
    """What the job trains on, for a loader whose workers are processes."""

    def __init__(self, job: Job) -> None:
        asked = job.asked
        self.made = [
            job.batch(step, round_) for step in range(asked.steps) for round_ in range(asked.rounds)
        ]

    def __len__(self) -> int:
        return len(self.made)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.made[index]

    def loader(self, context: str) -> DataLoader:
        return DataLoader(self, batch_size=1, num_workers=1, multiprocessing_context=context)


if __name__ == "__main__":
    Job(arguments()).train()
