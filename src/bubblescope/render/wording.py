"""What every output says of a run in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bubblescope.analysis import words
from bubblescope.model import units
from bubblescope.model.timing import DEVICE, HOST, on_host, timed

if TYPE_CHECKING:
    from bubblescope.analysis.overview import Overview
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
    """Return what a heading says of a timeline: schedule, ranks, steps, tasks, length, host times."""
    length_ns = timeline.duration_ns or timeline.extent_ns
    return _counted(timeline, len(timeline.steps), len(timeline), length_ns)


def counted(timeline: Timeline, overview: Overview, *, of_devices: bool) -> list[str]:
    """Return the same of a run of which the timeline may be but a part.

    Args:
        timeline: The part.
        overview: How much there is of the run.
        of_devices: Whether its steps are those of devices, as of `Overview.spans`.
    """
    steps = overview.steps.height or overview.device_steps.height
    length_ns = overview.length_ns(of_devices=of_devices)
    return _counted(timeline, steps, overview.tasks, length_ns)


def _counted(timeline: Timeline, steps: int, tasks: int, length_ns: int) -> list[str]:
    hosts = timeline.ranks["host"].n_unique()
    said = [
        f"{units.count(timeline.ranks.height, 'rank')} on {units.count(hosts, 'host')}"
        if hosts > 1
        else units.count(timeline.ranks.height, "rank"),
        units.count(steps, "step"),
        units.count(tasks, "task"),
        units.duration(length_ns),
    ]
    if _has_times(timeline):
        said += filter(None, [on_host(timeline.ranks)])
    return [timeline.run.schedule, *said] if timeline.run.schedule else said


def whose_times(timeline: Timeline, language: str = "en") -> str | None:
    """Say in a sentence that times are the host's, or may be; None if they are those of devices.

    Args:
        timeline: The run. Of one that no trace was read for, or that has no times, nothing is said.
        language: "en" or "zh".
    """
    formats = {origin.format for origin in timeline.run.origins}
    whose = timed(timeline.ranks)
    if not _has_times(timeline):
        return None
    if whose == DEVICE or not formats or "simulation" in formats:
        return None
    of = {
        key: units.listed("rank", ranks["rank"].to_list())
        for (key,), ranks in timeline.ranks.group_by("timed", maintain_order=True)
    }
    if whose == HOST:
        return words.note("host_times", language)
    if HOST in of:
        return words.note("mixed_times", language, ranks=of[HOST])
    return words.note("unknown_times", language, ranks=of[None])


def _has_times(timeline: Timeline) -> bool:
    """Say whether a run has tasks, or device work, that take time."""
    return len(timeline) > 0 or timeline.budget.height > 0
