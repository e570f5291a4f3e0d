"""The pipelines of Megatron-LM core, on CPUs, for `markless_job`. No trace names anything of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

# Megatron asks for CUDA by name.
_zeros, _tensor = torch.zeros, torch.tensor
torch.zeros = lambda *a, device=None, **k: _zeros(*a, **k)  # noqa: PLW0108  the device is left out
torch.tensor = lambda *a, device=None, **k: _tensor(*a, **k)  # noqa: PLW0108
torch.cuda.current_device = lambda: "cpu"

from megatron.core import parallel_state  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.pipeline_parallel import schedules  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402


class Chunk(nn.Module):
    """A stage as Megatron's schedules want it. Between stages the sequence comes first."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self, part: nn.Module, stage: int, last: int, config: Any, chunk: int) -> None:
        super().__init__()
        self.part, self.stage, self.last = part, stage, last
        self.config, self.vp_stage, self.given = config, chunk, None

    def set_input_tensor(self, tensors: Any) -> None:
        self.given = tensors[0]

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        made = self.part(batch if self.stage == 0 else self.given.transpose(0, 1))
        return made if self.stage == self.last else made.transpose(0, 1).contiguous()


def note_actions(during: Callable[..., Any]) -> None:
    """Put ranges of the truth around what Megatron's schedules do for a micro-batch."""
    forward, backward = schedules.forward_step, schedules.backward_step
    passes: dict[int, tuple[Any, int, int]] = {}

    def noted_forward(func: Any, data: Any, model: Chunk, *args: Any, **kwargs: Any) -> Any:
        place = (model.stage, kwargs["current_microbatch"])
        with during("forward", *place):
            output, tokens = forward(func, data, model, *args, **kwargs)
        made = output[0] if isinstance(output, list) else output
        passes[id(made)] = (made, *place)
        return output, tokens

    def noted_backward(given: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        made = output[0] if isinstance(output, list) else output
        _, *place = passes.pop(id(made))
        with during("backward", *place):
            return backward(given, output, *args, **kwargs)

    schedules.forward_step, schedules.backward_step = noted_forward, noted_backward


def pipeline(
    case: Any, rank: int, during: Callable[..., Any], part: Any, batch: Any, loss_of: Any
) -> tuple[Any, Any]:
    """Return what trains a step, and its parameters; the arguments are `markless_job`'s."""
    note_actions(during)
    virtual = case.chunks if case.chunks > 1 else None
    parallel_state.initialize_model_parallel(1, case.ranks, virtual)
    inputs, _ = batch(case, 1)
    length, last = inputs.shape[1], case.ranks * case.chunks - 1
    parts = [part(case, chunk * case.ranks + rank, last + 1) for chunk in range(case.chunks)]
    config = TransformerConfig(
        num_layers=last + 1,
        hidden_size=parts[0].layers[0].norm.normalized_shape[0],
        num_attention_heads=1,
        use_cpu_initialization=True,
        pipeline_model_parallel_size=case.ranks,
        virtual_pipeline_model_parallel_size=virtual,
        pipeline_dtype=torch.float32,
        batch_p2p_comm=False,
    )
    model = [
        Chunk(made, chunk * case.ranks + rank, last, config, chunk)
        for chunk, made in enumerate(parts)
    ]

    def forward_step(batches: Any, chunk: Chunk) -> Any:
        given, wanted = next(batches)
        output = chunk(given)

        def loss(made: torch.Tensor) -> Any:
            value = loss_of(made, wanted)
            return value, {"loss": value.detach()}

        return output, loss

    def step() -> None:
        batches = [batch(case, case.samples) for _ in range(case.microbatches)]
        schedules.get_forward_backward_func()(
            forward_step_func=forward_step,
            forward_only=False,
            data_iterator=[iter(batches) for _ in model] if virtual else iter(batches),
            model=model if virtual else model[0],
            num_microbatches=case.microbatches,
            seq_length=length,
            micro_batch_size=case.samples,
        )

    return step, [one for chunk in model for one in chunk.parameters()]
