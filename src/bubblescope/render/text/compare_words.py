"""What changed between two runs, in words: for the terminal and for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bubblescope.analysis.device_measures import PARTS
from bubblescope.model import language, units
from bubblescope.model.kinds import COMPUTE_KINDS

if TYPE_CHECKING:
    from bubblescope.analysis.changes import Change
    from bubblescope.analysis.compare import Comparison
    from bubblescope.analysis.step_measures import Side

TITLES: Final = {
    "overall": ("Overall", "of a step, busy and idle of a rank"),
    "cause": ("Idle by cause", "of a rank in a step"),
    "kind": ("Tasks by kind", "of a rank in a step"),
    "stage": ("Busy by stage", "in a step, of each rank that holds it"),
    "rank": ("Idle by rank", "in a step"),
}
"""Of each group of measures its title, and what a number is of."""

_COMPUTE: Final = frozenset(kind.value for kind in COMPUTE_KINDS)
NOISE: Final = "±: half of the 95 % interval; noise: the interval includes no change"


def headline(comparison: Comparison) -> str:
    """Return in one sentence by how much B is slower or faster, and what changed most."""
    step = comparison.find("overall", "step")
    if step is None or step.difference is None or step.relative is None:
        return "Which run is faster is not known: the steps of at least one cannot be timed."
    if not comparison.same_times:
        return (
            "Which run is faster is not known: the times of one are the host's, which may be done "
            "with a step long before its devices are."
        )
    what = "the capture" if comparison.captures else "a step"
    times = f"{what} takes {units.duration(_ns(step.after))}"
    if not step.difference:
        return f"B is as fast as A: {times} in both."
    if not comparison.comparable:
        return _of_captures(comparison, step, times)
    change = units.change(step.relative)
    if step.interval is None:
        noise = "no noise known"
    else:
        low, high = (units.change(end / (step.before or 1)) for end in step.interval)
        noise = f"95 % interval {low.removesuffix(' %')} to {high}"
    if step.certain is False:
        return (
            f"Whether B is slower or faster than A is not certain: {times} instead of "
            f"{units.duration(_ns(step.before))}, {change} ({noise})."
        )
    slower = "slower" if step.difference > 0 else "faster"
    return (
        f"B is {100 * abs(step.relative):.2f} % {slower} than A ({noise}): {times} instead of "
        f"{units.duration(_ns(step.before))}{_because(comparison, step.difference)}."
    )


def _of_captures(comparison: Comparison, step: Change, times: str) -> str:
    """Say that captures of different work do not tell which run is faster."""
    because = _because(comparison, step.difference or 0)
    if units.duration(_ns(step.before)) == units.duration(_ns(step.after)):
        return (
            "Which run is faster is not known: without steps, captures are compared as a whole, and "
            f"these hold different amounts of work; {times} in both{because}."
        )
    return (
        "Which run is faster is not known: without steps, captures are compared as a whole, and "
        f"these hold different amounts of work; {times} instead of "
        f"{units.duration(_ns(step.before))}{because}."
    )


def said_of(side: Side) -> str:
    """Return in a few words what a run is."""
    steps = units.count(len(side.steps), "step")
    if not side.pipelined and side.steps in ((), (None,)):
        steps = "whole capture"
    counted = [units.count(len(side.ranks), "rank"), steps]
    if side.microbatches:
        counted.append(units.count(side.microbatches, "micro-batch", "micro-batches"))
    named = "unknown schedule" if side.pipelined else "no pipeline"
    return " · ".join([side.schedule or named, *counted])


def difference(what: str, mine: object, its: object) -> str:
    """Return how two runs differ in something, in the language that is spoken."""
    words = tuple(language.translated(str(one)) for one in (what, mine, its))
    return language.template("{what}: A {mine}, B {its}", language.current()).format(
        what=words[0], mine=words[1], its=words[2]
    )


def parts(comparison: Comparison) -> list[Change]:
    """Return what the change of a step is made of: causes of idle time and kinds of busy time.

    Without a pipeline, it is what devices spent time on.
    """
    if not comparison.pipelined:
        return [one for one in comparison.group("device") if one.name in PARTS]
    overall = {one.name: one for one in comparison.group("overall")}
    idle = comparison.group("cause") or [overall[name] for name in ("idle",) if name in overall]
    busy = [one for one in comparison.group("kind") if one.name in _COMPUTE]
    if not all(one.before and one.after for one in busy):
        busy = [overall["busy"]]  # a backward that is now split is no reason, only its length
    return idle + busy


def name_of(part: Change) -> str:
    """Return what a part of a step is called where it stands alone,."""
    if part.group == "overall":
        return f"{part.name} time"
    return part.name


def _because(comparison: Comparison, difference: float) -> str:
    """Name what added most to the change of a step."""
    most = max(parts(comparison), key=lambda one: _toward(one, difference), default=None)
    if most is None or _toward(most, difference) <= 0:
        return ""
    if not comparison.pipelined:
        return f", the largest change: {most.name} ({units.signed(most.difference or 0)} a rank)"
    what = "busy" if most.group == "kind" or most.name == "busy" else "idle"
    said = f", the largest change: {name_of(most)} ({units.signed(most.difference or 0)} {what} a rank)"
    stage = next(iter(comparison.group("stage")), None)
    if stage is not None and _toward(stage, difference) > 0:
        longer = "longer" if difference > 0 else "shorter"
        said += f"; stage {stage.name} works {units.duration(abs(_ns(stage.difference)))} {longer}"
    return said


def _toward(change: Change, difference: float) -> float:
    """Return by how much a measure changed the same way, 0 if noise may be why."""
    if change.certain is False or change.difference is None:
        return 0
    return change.difference if difference > 0 else -change.difference


def _ns(time_ns: float | None) -> int:
    return round(time_ns or 0)
