"""A prediction: what a step would take, had something been different."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bubblescope.model.budget import HOST, Use

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.model.timeline import Timeline

WORTH: Final = 0.002
"""Share of a step below which advice is not worth its line."""

_UNSURE: Final = 0.1
"""± beyond which chance is said as a range."""

PIPELINE_PHASE: Final = "pipeline phase"
"""What is predicted of a run with a pipeline: a step from its first forward to its last backward."""

CLOSE: Final = 0.01
"""Ends of a range of guesses that are no further apart, as a share, are one number, and less sure."""

BY_CHANCE: Final = (
    "operations, which scatter much, happen to be short (more steps would make it more certain)"
)

HOST_AHEAD: Final = "a host that keeps ahead of its device"
HOST_SOONER: Final = "hosts that launch late launch as much sooner as kernels are faster"
AT_ONCE: Final = "launched work begins the moment the device is free, as in a CUDA graph"
LOADED: Final = "kernels that are loaded before the step"
WARMED: Final = (
    "code that is loaded and compiled before the step, and operators that do not compute on the CPU"
)
COMPILED_AHEAD: Final = "code that is compiled before the step"
AS_GRAPHS: Final = "compiled code that is launched as CUDA graphs"
NOT_HELD_UP: Final = "launch calls that wait for nothing: no lock, no full queue of launches"
IN_STEP: Final = "ranks wait for each other at the end of every step"
EACH_ON: Final = "ranks begin the next step without waiting for each other"
IN_TIME: Final = "as much to do between collectives as other ranks have"
AS_QUICKEST: Final = "it is as the quickest of the others"
GAPS_IN_LINE: Final = "short gaps, which are known as sums only, were never at the same time"
MORE_HIDDEN: Final = "computation hides more of communication than it had to"
NO_WAITING: Final = "no rank has to wait for another any more"

NOT_AHEAD: Final = (*HOST, Use.LAUNCH_CALL)
"""Idle time that a host which keeps ahead is rid of: its calls return before the device is free.

How long operations that are launched ahead wait for each other, the trace does not tell. It is less
than the latency of those that were launched late, and more than nothing.
"""

NEEDS: Final[dict[Use, str]] = {
    Use.COMMUNICATION: "collectives beneath computation, ranks that are ready together",
    Use.COPY: "copies beneath computation",
    Use.HOST_AFTER_SYNC: "no calls that wait for the device, such as .item()",
    Use.HOST_DATA: "batches that are loaded ahead",
    Use.HOST_OPTIMIZER: "a fused optimizer",
    Use.HOST_GC: "garbage collection between steps",
    Use.HOST_OPERATOR: "CUDA graphs or compiled code",
    Use.HOST_PYTHON: "CUDA graphs or compiled code",
    Use.HOST_CALL: "memory that is kept, and code that is loaded ahead",
    Use.HOST_SYSTEM: "a host that does not wait for input, locks or other threads",
    Use.HOST_UNKNOWN: HOST_AHEAD,
    Use.RANK_WAIT: "ranks that are ready together, and transfers beneath computation",
    Use.LAUNCH_CALL: "fewer launches, as with CUDA or HIP graphs",
    Use.LATENCY: "fewer kernels, and CUDA or HIP graphs for those that are launched one by one",
    Use.EVENT_WAIT: "streams that do not wait for each other",
    Use.PAGES: "memory that is on the device before it is used",
}
"""What it takes to be rid of a class of the device's time."""


def all_of(*conditions: str) -> str:
    """Return conditions that must all hold, as one; empty ones are left out."""
    return "; ".join(filter(None, conditions))


class Prediction(NamedTuple):
    """What a step would take.

    Attributes:
        change: What is different.
        needs: What that takes; empty if it is clear from the change.
        step_ns: What is predicted, as measured: the mean pipeline phase of a step, from its first
            forward to its last backward; of a run without a pipeline, what `DeviceWhatIf.span` says.
        predicted_ns: The same with the change; of a range, the longer end.
        saved_share: How much less a micro-batch takes, as a share; negative if it takes more. Without
            a pipeline: how much less a step takes.
        error: How far either end may be off, as a share: how far the method is from the measured step
            when nothing is changed, and `chance`.
        timeline: Given the run that was asked about, returns its pipeline tasks where the change puts
            them; every step begins when the measured one did. Where the tasks are others, they are as
            long as the model has them, and its mean step is longer or shorter than `predicted_ns` by
            as much as the method is off, which is `error` without `chance`; of a range by chance it is
            the middle. None where no tasks are moved, as without a pipeline.
        memory: Most activations that a device holds, in micro-batches of a p-th of the model; None
            where the schedule stays the same.
        best_ns: The shorter end, where only a range is known; None where it is one number.
        best_if: What has to be so for the shorter end; empty where it is one number.
        chance: What chance and what was not measured may add for other plans and devices, as a share
            (`bubblescope.analysis.cost_model.Model.error`); 0 elsewhere.
    """

    change: str
    needs: str
    step_ns: int
    predicted_ns: int
    saved_share: float
    error: float
    timeline: Callable[[Timeline], Timeline] | None = None
    memory: float | None = None
    best_ns: int | None = None
    best_if: str = ""
    chance: float = 0.0

    def down_to(self, best_ns: int, best_if: str) -> Prediction:
        """Return the same as a range, if its shorter end is any shorter."""
        if best_ns >= self.predicted_ns:
            return self
        return self._replace(best_ns=best_ns, best_if=best_if)

    def widened(self) -> Prediction:
        """Return the same as a range of what chance makes of it, where it is not sure to a tenth."""
        if self.error <= _UNSURE:
            return self
        best = self.predicted_ns if self.best_ns is None else self.best_ns
        return self._replace(
            predicted_ns=round(self.predicted_ns * (1 + self.chance)),
            saved_share=1 - (1 - self.saved_share) * (1 + self.chance),
            error=self.error - self.chance,
            chance=0.0,
            best_ns=round(best * max(0.0, 1 - self.chance)),
            best_if=all_of(self.best_if, BY_CHANCE),
        )

    def or_else(self, other: Prediction, condition: str, otherwise: str) -> Prediction:
        """Return what is said where another prediction may hold instead, nobody knows which.

        Ends that are close are one, and less sure. Elsewhere it is a range over both.

        Args:
            other: The other prediction of the same change.
            condition: What has to be so for this one.
            otherwise: What has to be so for the other.
        """
        ends = [(one.predicted_ns if one.best_ns is None else one.best_ns) for one in (self, other)]
        longest = max(self, other, key=lambda one: one.predicted_ns)
        apart = longest.predicted_ns / max(1, min(self.predicted_ns, other.predicted_ns)) - 1
        apart = max(apart, max(ends) / max(1, min(ends)) - 1)
        error = max(self.error, other.error)
        if apart <= CLOSE:
            return longest._replace(error=error + apart, chance=longest.chance + apart)
        shortest = self if ends[0] <= ends[1] else other
        words = [shortest.best_if]
        if shortest is not longest:
            words.append(condition if shortest is self else otherwise)
        said = longest._replace(error=error, best_ns=None, best_if="")
        return said.down_to(min(ends), all_of(*words))

    @property
    def saved_ns(self) -> int:
        """By how much a step would be shorter; of a range, at the longer end."""
        return self.step_ns - self.predicted_ns

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers and words of it as plain values."""
        said = {name: value for name, value in self._asdict().items() if name != "timeline"}
        return {**said, "saved_ns": self.saved_ns}


def ranked(found: list[Prediction]) -> list[Prediction]:
    """Return those that are worth a line, by what they save at least, most first.

    What may be off by more than it saves is no advice.
    """
    worth = (one for one in found if one.saved_share >= max(WORTH, one.error))
    return sorted(worth, key=lambda one: -one.saved_share)
