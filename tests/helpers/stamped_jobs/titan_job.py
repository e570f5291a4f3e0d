"""A pipeline of torchtitan's trainer, on CPUs, that takes stamps of its own.

    torchrun --nproc-per-node 2 titan_job.py

torchtitan looks for an accelerator and asks it for its memory: here it is told that there is a CPU. The
trainer says which step runs; after the first stage, the data say no more whose they are.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch
from pipelines import StampedStage
from stamps import Stamps, now, tag

torch._utils._get_available_device_type = lambda: "cpu"
for _name in ("reset_peak_memory_stats", "empty_cache"):
    setattr(torch.cpu, _name, lambda *_: None)
torch.cpu.current_device = lambda: 0
torch.cpu.get_device_name = lambda *_: "CPU"
torch.cpu.get_device_properties = lambda *_: SimpleNamespace(total_memory=1 << 30)
torch.cpu.memory_stats = lambda *_: {}

from torchtitan.config import JobConfig  # noqa: E402
from torchtitan.distributed import pipeline_parallel  # noqa: E402
from torchtitan.models.llama3 import get_train_spec, llama3_args  # noqa: E402
from torchtitan.protocols.train_spec import register_train_spec  # noqa: E402
from torchtitan.train import Trainer  # noqa: E402

STEPS, BATCH, LENGTH = 4, 4, 64


class Stage(StampedStage):
    """A stage that notes its passes, of the trainer's step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.numbers = {}

    @property
    def stamps(self) -> Any:
        return _Job.stamps

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.stamps.last = tag(_Job.trainer.step - 1, fwd_chunk_id)
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)


class _Job:
    stamps: Any
    trainer: Any


class Loader:
    """What torchtitan trains on."""

    def __init__(self, **_: Any) -> None:
        self.made = torch.Generator().manual_seed(0)

    def __iter__(self) -> Any:
        while True:
            drawn = torch.randint(2048, (BATCH, LENGTH + 1), generator=self.made)
            yield {"input": drawn[:, :-1]}, drawn[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, _: Any) -> None:
        pass


def main() -> None:
    torch.set_num_threads(1)
    _Job.stamps = stamps = Stamps(int(os.environ["RANK"]))
    os.environ["LOCAL_RANK"] = "0"  # there is one CPU
    pipeline_parallel.PipelineStage = Stage
    spec = get_train_spec()
    spec.build_tokenizer_fn, spec.build_dataloader_fn = None, Loader
    register_train_spec("stamped", spec)
    llama3_args["debugmodel"].max_seq_len = LENGTH
    config = JobConfig()
    config.model.name, config.model.flavor = "stamped", "debugmodel"
    config.training.steps, config.training.seq_len = STEPS, LENGTH
    config.training.local_batch_size = BATCH
    config.parallelism.pipeline_parallel_degree = int(os.environ["WORLD_SIZE"])
    config.parallelism.pipeline_parallel_schedule = "Interleaved1F1B"
    config.parallelism.data_parallel_shard_degree = 1
    config.activation_checkpoint.mode = "none"
    config.job.dump_folder = os.environ["STAMPS"]
    config.debug.seed = 1
    if switch := os.environ.get("PROFILE"):  # one that a patch adds (contrib/torchtitan)
        setattr(config.profiling, switch, True)
    trainer = _Job.trainer = Trainer(config)
    theirs = trainer.optimizers.step
    losses = trainer.forward_backward_step

    def step(*args: Any, **kwargs: Any) -> None:
        start = now()
        theirs(*args, **kwargs)
        stamps.add("optimizer", start, now(), step=trainer.step - 1)

    def forward_backward_step(**kwargs: Any) -> Any:
        loss = losses(**kwargs)
        stamps.loss(loss)
        return loss

    trainer.optimizers.step = step
    trainer.forward_backward_step = forward_backward_step
    trainer.train()
    stamps.results(*trainer.model_parts)
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
