"""A pipeline of Megatron-LM core's schedules, on CPUs, that takes stamps of its own.

torchrun --nproc-per-node 2 megatron_job.py --chunks 2
"""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING, Any

import torch
from stamps import LENGTH, SAMPLES, WIDTH, Stage, StampedAdamW, Stamps, loss_of, now, tag, tokens
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Callable

# Megatron asks for CUDA by name.
_zeros, _tensor = torch.zeros, torch.tensor
torch.zeros = lambda *a, device=None, **k: _zeros(*a, **k)  # noqa: PLW0108  the device is left out
torch.tensor = lambda *a, device=None, **k: _tensor(*a, **k)  # noqa: PLW0108
torch.cuda.current_device = lambda: "cpu"

from megatron.core import parallel_state  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.optimizer.optimizer import FP32Optimizer  # noqa: E402
from megatron.core.optimizer.optimizer_config import OptimizerConfig  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func, schedules  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402


class Chunk(Stage):
    """A stage, as Megatron's schedules want it."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self, stamps: Stamps, stage: int, stages: int, config: Any, chunk: int) -> None:
        torch.manual_seed(stage)
        super().__init__(stamps, 1, first=stage == 0, last=stage == stages - 1)
        self.config, self.stage, self.vp_stage, self.given = config, stage, chunk, None

    def set_input_tensor(self, tensors: Any) -> None:
        self.given = tensors[0]

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        # Between Megatron's stages the sequence comes first.
        x = batch if self.embedding is not None else self.given.transpose(0, 1)
        y = super().forward(x)
        return y if self.head is not None else y.transpose(0, 1).contiguous()


def noted(stamps: Stamps, step: Callable[[], int | None]) -> None:
    """Note when Megatron's own functions ran, which do more than the model's forward and backward.

    Args:
        stamps: Takes it.
        step: Returns the step that runs; None if that is an evaluation.
    """
    replica = parallel_state.get_data_parallel_rank()
    for name in ("forward_step", "backward_step"):
        function = getattr(schedules, name)

        @functools.wraps(function)
        def call(*args: Any, _function: Any = function, **kwargs: Any) -> Any:
            start = now()
            result = _function(*args, **kwargs)
            if step() is not None:
                stamps.add("call", start, now(), step=step(), pipeline=replica)
            return result

        setattr(schedules, name, call)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--chunks", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--evaluate", action="store_true")
    return parser.parse_args()


def main() -> None:  # noqa: C901  as such loops are
    asked = arguments()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    stamps = Stamps(distributed.get_rank())
    ranks = distributed.get_world_size() // asked.replicas
    virtual = asked.chunks if asked.chunks > 1 else None
    parallel_state.initialize_model_parallel(1, ranks, virtual)
    config = TransformerConfig(
        num_layers=ranks * asked.chunks,
        hidden_size=WIDTH,
        num_attention_heads=4,
        use_cpu_initialization=True,
        pipeline_model_parallel_size=ranks,
        virtual_pipeline_model_parallel_size=virtual,
        pipeline_dtype=torch.float32,
        batch_p2p_comm=False,
    )
    place, stages = parallel_state.get_pipeline_model_parallel_rank(), ranks * asked.chunks
    seed = parallel_state.get_data_parallel_rank()
    model = [
        Chunk(stamps, chunk * ranks + place, stages, config, chunk) for chunk in range(asked.chunks)
    ]
    inner = StampedAdamW([one for chunk in model for one in chunk.parameters()], stamps)
    optimizer = FP32Optimizer(inner, OptimizerConfig(clip_grad=0.0), None)

    def forward_step(batches: Any, chunk: Chunk) -> Any:
        start = now()
        batch = next(batches)
        output = chunk(batch)
        number = stamps.last

        def loss(logits: torch.Tensor) -> Any:
            value = loss_of(logits, batch)
            stamped()
            value = value if evaluating else stamps.passed(value, number, chunk.stage)
            return value, {"loss": value.detach()}

        def stamped() -> None:
            if not evaluating:
                stamps.add("forward", start, now(), number, stage=chunk.stage)

        if chunk.head is None:
            stamped()
            output = output if evaluating else stamps.passed(output, number, chunk.stage)
        return output, loss

    def run(step: int) -> None:
        batches = [
            tokens(tag(step, i, evaluation=evaluating), seed) for i in range(asked.microbatches)
        ]
        said = get_forward_backward_func()(
            forward_step_func=forward_step,
            forward_only=evaluating,
            data_iterator=[iter(batches) for _ in model] if virtual else iter(batches),
            model=model if virtual else model[0],
            num_microbatches=asked.microbatches,
            seq_length=1 + LENGTH,
            micro_batch_size=SAMPLES,
        )
        for one in said:
            stamps.loss(one["loss"])

    step, evaluating = None, False
    noted(stamps, lambda: None if evaluating else step)
    for step in (None, *range(asked.steps)):  # before the first is only an evaluation
        evaluating = False
        if step is not None:
            run(step)
            optimizer.step()
            optimizer.zero_grad()
        if asked.evaluate:
            evaluating = True
            with stamps.around("evaluation", step=step):
                run(step or 0)
    stamps.results(*model)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
