"""Model FLOPs utilization (MFU): how much of what its devices could compute a job made use of.

With F the model FLOPs of a step (`conventions`), T its wall time, P the peak of a device (`peaks`) and
D devices:

    MFU = F / (T * P * D)
        = (C / (T * D)) * (F / (C * P))

where C is the time that the devices spent computing, summed over them. The first factor is the share of
the step in which devices compute, which bubbles, communication and waiting lower; the second is how
well they compute meanwhile, which kernels, shapes and recomputation lower. Korthikanti et al. (arXiv
2205.05198, section 5) call F / (T * P * D) with the executed FLOPs in place of F the hardware FLOPs
utilization (HFU); it counts what is recomputed too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.analysis.mfu.architectures import Model, ModelError
from bubblescope.analysis.mfu.conventions import CONVENTIONS, flops_per_token
from bubblescope.analysis.mfu.huggingface import from_huggingface
from bubblescope.analysis.mfu.megatron_arguments import from_megatron
from bubblescope.analysis.mfu.peaks import Peak, peak_flops

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "CONVENTIONS",
    "Model",
    "ModelError",
    "Peak",
    "Utilization",
    "flops_per_token",
    "from_huggingface",
    "from_megatron",
    "mfu",
    "peak_flops",
    "read_model",
]


class Utilization(msgspec.Struct, frozen=True, kw_only=True):
    """MFU of a step and what it is made of; null where something is not known.

    Attributes:
        convention: How model FLOPs were counted, or None if the user gave them.
        model_flops: Model FLOPs of the step, over all devices.
        executed_flops: FLOPs that the devices executed in it, over all devices.
        step_ns: Wall time of the step.
        devices: How many devices worked on it.
        peak: FLOPs per second of one device at best, dense.
        compute_ns: Time that devices spent computing, summed over them.
        mfu: model_flops / (step_ns * peak * devices) = compute_share * compute_utilization. Above 1
            something given is wrong: the peak, the model, or the number of tokens or devices.
        hfu: The same of executed_flops.
        compute_share: compute_ns / (step_ns * devices).
        compute_utilization: model_flops / (compute_ns * peak).
        executed_ratio: executed_flops / model_flops: above 1 where forwards are recomputed.
        flops_per_second: model_flops of a device and second of the step.
    """

    convention: str | None
    model_flops: float | None
    executed_flops: float | None
    step_ns: int
    devices: int
    peak: float | None
    compute_ns: int | None
    mfu: float | None
    hfu: float | None
    compute_share: float | None
    compute_utilization: float | None
    executed_ratio: float | None
    flops_per_second: float | None


def mfu(
    *,
    step_ns: int,
    devices: int,
    model_flops: float | None = None,
    convention: str | None = None,
    executed_flops: float | None = None,
    peak: float | None = None,
    compute_ns: int | None = None,
) -> Utilization:
    """Work out MFU and its factors from what is known.

    Args:
        step_ns: Wall time of a step.
        devices: Devices that worked on it.
        model_flops: Model FLOPs of the step over all devices: `flops_per_token` times its tokens.
        convention: How they were counted.
        executed_flops: FLOPs executed in the step over all devices, recomputation included.
        peak: Dense FLOPs per second of one device, in the precision of the job.
        compute_ns: Time that the devices spent computing in the step, summed over them.

    Raises:
        ModelError: A number is not positive.
    """
    given = {
        "the step's time": step_ns,
        "the number of devices": devices,
        "the number of model FLOPs": model_flops,
        "the number of executed FLOPs": executed_flops,
        "the peak": peak,
        "the time spent computing": compute_ns,
    }
    for what, value in given.items():
        if value is not None and not value > 0:
            raise ModelError(f"{what} is {value}, which is not above 0")
    seconds = step_ns * devices / 1e9
    computing = None if compute_ns is None else compute_ns / 1e9
    capacity = None if peak is None else seconds * peak
    return Utilization(
        convention=convention,
        model_flops=model_flops,
        executed_flops=executed_flops,
        step_ns=step_ns,
        devices=devices,
        peak=peak,
        compute_ns=compute_ns,
        mfu=_ratio(model_flops, capacity),
        hfu=_ratio(executed_flops, capacity),
        compute_share=_ratio(computing, seconds),
        compute_utilization=_ratio(
            model_flops, None if computing is None or peak is None else computing * peak
        ),
        executed_ratio=_ratio(executed_flops, model_flops),
        flops_per_second=_ratio(model_flops, seconds),
    )


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or whole is None else part / whole


def read_model(path: Path) -> Model:
    """Read a model from a JSON file: a Hugging Face config.json, or Megatron's arguments.

    Raises:
        ModelError: The file cannot be read, or is neither.
    """
    try:
        found: Any = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise ModelError(f"{path}: this cannot be read as JSON ({why}); {_GIVE}") from None
    megatron = (
        isinstance(found, dict) and "model_type" not in found and "padded_vocab_size" in found
    )
    try:
        return (from_megatron if megatron else from_huggingface)(found, str(path))
    except ModelError as error:
        raise ModelError(f"{error}; {_GIVE}") from None


_GIVE: Final = "give the model's config.json of Hugging Face, or Megatron's arguments as JSON"
