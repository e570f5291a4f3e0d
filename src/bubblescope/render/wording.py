"""What every output says of a run in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bubblescope.model import units

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline


_RECORDERS: Final = {
    "torch": "the schedules of torch.distributed.pipelining",
    "deepspeed": "the schedules of DeepSpeed",
    "dualpipe": "DualPipe",
    "megatron": "the schedules of Megatron-LM",
    "paddle": "the pipelines of PaddlePaddle",
    "loop": "following a training loop in PyTorch",
}


def recorder(recorded_by: str | None) -> str | None:
    """Return what a recording was made by, given `Origin.recorded_by`; None for marks set by hand."""
    return None if recorded_by is None else _RECORDERS.get(recorded_by, recorded_by)


def facts(timeline: Timeline) -> list[str]:
    """Return what a heading says of a timeline: schedule, ranks, steps, tasks and length."""
    hosts = timeline.ranks["host"].n_unique()
    counted = [
        units.count(timeline.ranks.height, "rank")
        + (f" on {units.count(hosts, 'host')}" if hosts > 1 else ""),
        units.count(len(timeline.steps), "step"),
        units.count(len(timeline), "task"),
        units.duration(timeline.duration_ns or timeline.extent_ns),
    ]
    return [timeline.run.schedule, *counted] if timeline.run.schedule else counted
