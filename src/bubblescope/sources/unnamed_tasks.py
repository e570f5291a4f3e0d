"""Tasks of traces that name no passes: their phases and steps, or at least what each device ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.model.kinds import Kind
from bubblescope.sources.phase_evidence import COMMUNICATION
from bubblescope.sources.phases import Phases, phase_ranges, step_markers, tell_phases
from bubblescope.sources.projection import project
from bubblescope.sources.step_marks import (
    Steps,
    guessed_steps,
    in_line,
    recorded_apart,
    step_ranges,
)
from bubblescope.sources.structure.unmarked import Unmarked, tell_pipeline
from bubblescope.sources.whole_devices import with_whole_devices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.names.parsed import ParsedName
    from bubblescope.names.parser import NameParser
    from bubblescope.sources.capture import Capture
    from bubblescope.sources.phase_evidence import Traced
    from bubblescope.sources.projection import Projection

_HOW_DEVICE: Final = "nothing tells what a device did when: one task is {}"


class Untold(msgspec.Struct, frozen=True):
    """The tasks of a trace that names no passes.

    Attributes:
        capture: The trace, with a range for each phase in place of what named optimizers alone, and
            what the ranges mean.
        projection: Its tasks.
        how: How they were told, by what was told: `kind`, `stage` and `step` as in `Run.inferred`.
        blank: Whether some device shows no more than steps, or one task.
        counted: Whether the numbers of its steps are a count of those in this trace.
    """

    capture: Capture
    projection: Projection
    how: dict[str, str]
    blank: bool
    counted: bool = False


def tell(
    parts: Sequence[tuple[int, Traced]],
    capture: Capture,
    names: NameParser,
    *,
    on_device: bool = True,
    world: int = 1,
) -> Untold:
    """Tell the tasks of a trace that names no passes.

    Args:
        parts: Each process that used devices, or part of one, and what it recorded.
        capture: All that the trace recorded.
        names: What range names mean.
        on_device: Whether it holds work of devices, not operators of the host in their place.
        world: Number of ranks of the job, as far as the trace says.

    Returns:
        The tasks; none only if the trace holds no work of a device.
    """
    pipelines = [
        tell_pipeline(
            trace,
            names,
            on_host=not on_device,
            alone=world == 1 or _communicates(trace),
        )
        for _, trace in parts
    ]
    steps = in_line(
        [
            _steps(trace, names) if pipeline is None else step_ranges(trace, names)
            for (_, trace), pipeline in zip(parts, pipelines, strict=True)
        ]
    )
    of_process: dict[int, Steps] = {}
    ranges, ways = [capture.ranges.clear()], dict[str, dict[str, None]]()
    meaning: dict[str, Sequence[ParsedName]] = {}
    for (process, trace), known, pipeline in zip(parts, steps, pipelines, strict=True):
        phases = None
        if pipeline is None or pipeline.alone:
            phases = tell_phases(trace, known, names)
        found = known
        if phases is None and pipeline is None and not known.ranges.height:
            found = recorded_apart(trace)
        of_process.setdefault(process, found)
        if phases is not None and pipeline is not None:
            phases = _with_passes(phases, pipeline)
        if phases is not None:
            ranges.append(phases.capture.ranges)
            meaning |= phases.capture.meaning
            how = phases.how
        else:
            held = trace.capture if pipeline is None else pipeline.capture
            ranges.append(held.ranges)
            meaning |= held.meaning
            how = {} if pipeline is None else dict(pipeline.how)
            if marks := step_markers(found):
                ranges.append(marks.ranges)
                meaning |= marks.meaning
                how |= {"step": found.how} if found.how else {}
        for field, way in how.items():
            ways.setdefault(field, {})[way] = None
    told = msgspec.structs.replace(capture, ranges=pl.concat(ranges).unique(), meaning=meaning)
    projection, blank = project(told, names), False
    if on_device:
        projection, blank = with_whole_devices(told, projection, names, of_process)
    if blank:
        placed = projection.tasks["step"].is_not_null().any()
        what = "a step" if placed else "all that it did"
        ways.setdefault("kind", {})[_HOW_DEVICE.format(what)] = None
    said = {field: "; ".join(how) for field, how in ways.items()}
    counted = any(found.counted for found in of_process.values())
    return Untold(told, projection, said, blank, counted)


def _with_passes(phases: Phases, passes: Unmarked) -> Phases:
    """Return phases with the passes that autograd's graphs tell in place of their own.

    Args:
        phases: What order told, such as optimizers and evaluations.
        passes: What graphs told of the same trace.
    """
    own = [
        name
        for name, said in phases.capture.meaning.items()
        if said[0].kind in {Kind.FORWARD, Kind.BACKWARD}
    ]
    told = passes.capture.ranges.filter(pl.col("name").is_in(list(passes.capture.meaning)))
    others = phases.capture.ranges.filter(~pl.col("name").is_in(own))
    capture = msgspec.structs.replace(
        phases.capture,
        ranges=pl.concat([others, told]),
        meaning={**phases.capture.meaning, **passes.capture.meaning},
    )
    return msgspec.structs.replace(phases, capture=capture, how={**phases.how, **passes.how})


def _communicates(trace: Traced) -> bool:
    """Say whether a trace shows any communication with other ranks."""
    moves = (trace.operators["role"] >= COMMUNICATION).any()
    return bool(trace.capture.comms) or bool(moves)


def _steps(trace: Traced, names: NameParser) -> Steps:
    """Return the steps of a process; what kernels tell only if no pass is longer than such a step."""
    steps = step_ranges(trace, names)
    if steps.ranges.height:
        return steps
    guessed = guessed_steps(trace)
    if not guessed.guessed:
        return steps
    phases = phase_ranges(trace, steps, names).ranges
    passes = phases.filter(pl.col("kind").is_in([Kind.FORWARD.value, Kind.BACKWARD.value]))
    begun = guessed.ranges["start_ns"].search_sorted(passes["start_ns"], side="right")
    # The capture may begin and end within a step.
    held = set(begun.to_list()) >= set(range(2, guessed.ranges.height))
    return guessed if held or not passes.height else steps
