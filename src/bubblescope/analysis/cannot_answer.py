"""What cannot be known of a run, why, and what would tell: the one form in which programs are told so.

An answer that is missing is not zero, and no error either. Whoever reads answers for people must
say so in place of guessing, and can say what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from bubblescope.analysis.step_lengths import is_one_step
from bubblescope.analysis.untold_time import unknowable
from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import ONE_STEP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.model.timeline import Timeline

_PASSES: Final = [kind.value for kind in (Kind.FORWARD, Kind.FORWARD_BACKWARD)]
_MODEL: Final = "`bubblescope report --model` with --tokens"
_MODEL_OR_SHAPES: Final = (
    "`bubblescope report --model` with --tokens, or torch.profiler with record_shapes=True"
)
_UNSURE_CLOCKS: Final = {
    "refused": "no clocks of the hosts satisfy what was observed: times of different hosts contradict",
    "unbounded": "what was observed bounds the hosts' clocks from one side only",
}


class CannotAnswer(msgspec.Struct, frozen=True):
    """Something that cannot be known.

    Attributes:
        about: What it is about, one of `ABOUT`.
        reason: Why, in a sentence.
        would_tell: What trace or option would tell; None if nothing is known to.
    """

    about: str
    reason: str
    would_tell: str | None = None


ABOUT: Final[dict[str, str]] = {
    "pipeline": "bubbles, their causes, what-ifs and stragglers of a pipeline",
    "clocks": "which of two ranks did something first, and what waited for what between ranks",
    "ranks": "ranks that have no trace",
    "devices": "whether a device is slow or its stage has more work than others",
    "steps": "single training steps",
    "noise": "whether a difference between two runs is more than chance",
    "device": "what the devices did inside tasks",
    "kernels": "single kernels",
    "mfu": "floating-point operations that the traces state",
}
"""What may be unknown of a run, and which questions that concerns."""


def unanswered(timeline: Timeline, *, steps: int | None = None) -> list[CannotAnswer]:
    """Return what cannot be known of a run, in the order of `ABOUT`.

    Args:
        timeline: The run, or some tasks of each of its ranks.
        steps: How many steps it has, if it has more than the timeline.
    """
    many = len(timeline.steps) if steps is None else steps
    return [*_structure(timeline, many), *_devices(timeline)]


def _structure(timeline: Timeline, steps: int) -> Iterator[CannotAnswer]:
    """Tell what is not known of the pipeline, its clocks, ranks and steps."""
    run = timeline.run
    if not timeline.tasks["kind"].is_in(_PASSES).any():
        yield CannotAnswer(
            "pipeline",
            "no task is known to be a pass of a pipeline",
            "--names with a pattern for the job's own range names, which `bubblescope names` lists, or "
            "a recording of the job by `bubblescope record`",
        )
    if not run.common_clock:
        yield CannotAnswer(
            "clocks",
            "the ranks share no clock: each counts from a zero of its own",
            "--clock solve, if the traces hold sends and receives or collectives; else traces with "
            "absolute times",
        )
    elif run.clock is not None and run.clock.method in _UNSURE_CLOCKS:
        yield CannotAnswer(
            "clocks",
            _UNSURE_CLOCKS[run.clock.method],
            "a trace in which ranks of both hosts send to each other or are of one group, or hosts "
            "that PTP keeps together",
        )
    if run.world is not None and run.world > timeline.ranks.height:
        yield CannotAnswer(
            "ranks",
            f"{run.world - timeline.ranks.height} of {run.world} ranks have no trace here",
            "the traces of all ranks",
        )
    stages = timeline.ranks["stages"].drop_nulls()
    if len(stages) > 1 and stages.n_unique() == len(stages):
        yield CannotAnswer(
            "devices",
            "each stage has one rank only, so a slow device cannot be told from a stage with more work",
            "traces of several data-parallel replicas",
        )
    if is_one_step(run):
        yield CannotAnswer("steps", ONE_STEP, "ranges or profiler steps around each training step")
    if steps < 2:
        yield CannotAnswer(
            "noise", "there is one step at most, so nothing varies", "a recording of more steps"
        )


def _devices(timeline: Timeline) -> Iterator[CannotAnswer]:
    """Tell what is not known of what ran on the devices."""
    if (sentence := unknowable(timeline)) is not None:
        reason, _, would_tell = sentence.rpartition("; ")
        yield CannotAnswer("device", reason, would_tell)
    if not timeline.activities.height:
        yield CannotAnswer(
            "kernels",
            "single kernels are kept only if asked for, and only traces of devices have them",
            "a trace of torch.profiler, Nsight Systems, rocpd or Ascend, read with its kernels",
        )
    if not timeline.flops.height:
        yield CannotAnswer(
            "mfu",
            "the traces do not say what operators computed",
            _MODEL if "record_shapes" in timeline.run.options else _MODEL_OR_SHAPES,
        )
