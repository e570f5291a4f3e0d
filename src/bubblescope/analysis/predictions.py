"""Answers to questions about what a run would have taken, had something been different."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from bubblescope.analysis.picture_data import pictured
from bubblescope.analysis.prediction import PIPELINE_PHASE, Prediction
from bubblescope.analysis.study import ledger_of, study
from bubblescope.analysis.whatif import WhatIf
from bubblescope.analysis.whatif_device import DeviceWhatIf
from bubblescope.model import units
from bubblescope.model.progress import SILENT
from bubblescope.model.provenance import Notice
from bubblescope.model.timing import timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl
    from typing_extensions import Self

    from bubblescope.analysis.picture_data import Pictured
    from bubblescope.analysis.schedule.recognise import Recognition
    from bubblescope.analysis.study import Study
    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan

SCHEMA: Final = "bubblescope.whatif/1"
"""Name and version of the JSON, described in docs/why.md. Keys are only ever added."""


def _untraced(recognition: Recognition | None) -> tuple[Notice, ...]:
    """Say what answers rest on where devices left no trace, and what is not answered."""
    if recognition is None or not recognition.partial:
        return ()
    text = (
        f"{units.listed('device', recognition.missing_devices)} of {recognition.devices} left no "
        "trace: what others wait for there is taken to keep them as long as it did, and other "
        "schedules, partitions and numbers of micro-batches are not predicted"
    )
    return (
        Notice("untraced-devices", text, len(recognition.missing_devices), recognition.devices),
    )


Question: TypeAlias = Callable[[Any], Prediction]
"""What is asked about a run, such as `lambda run: run.schedule("zb-v")`.

The run is a `WhatIf`; without a pipeline, it is a `DeviceWhatIf`.
"""


def asked_of(
    timeline: Timeline, known: Study, activities: pl.DataFrame | None = None
) -> WhatIf | DeviceWhatIf:
    """Return what answers questions about a run.

    Args:
        timeline: The run.
        known: What was worked out about it.
        activities: What its devices ran, for questions about kernels; the run's own if left out.

    Raises:
        TimelineError: It has neither pipeline tasks of ranks that share a clock nor device work.
    """
    if timeline.budget.height and not known.pipelined:
        return DeviceWhatIf(timeline, activities)
    return WhatIf(known.recognition, ledger_of(known, timeline), timeline, activities)


class Predictions(msgspec.Struct, frozen=True, eq=False):
    """What a run would have taken, had something been different.

    Attributes:
        timeline: The run.
        step_ns: How long it is as measured.
        predictions: The answers, in the order of the questions; advice is best first.
        span: What that is and what is predicted: "pipeline phase", the mean one of a step; without a
            pipeline "step", a mean one from its start to the next one's, or "capture", a device's time
            from its first operation to its last.
        open: Whether the ends of all steps are missing, so that they are longer than what is known.
        notices: Which steps are left out, and why.
    """

    timeline: Timeline
    step_ns: int
    predictions: tuple[Prediction, ...]
    span: str = PIPELINE_PHASE
    open: bool = False
    notices: tuple[Notice, ...] = ()

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        questions: Sequence[Question] = (),
        *,
        memory: float | None = None,
        also: Sequence[Plan] = (),
        activities: pl.DataFrame | None = None,
        progress: Progress = SILENT,
    ) -> Self:
        """Answer questions about a run; without any, say what would make it faster.

        Args:
            timeline: The run.
            questions: What is asked.
            memory: For advice: activations that a device may hold, in micro-batches of a p-th of the
                model; what the run's own schedule holds if left out.
            also: Schedules to recognise besides the known ones.
            activities: What its devices ran, for questions about kernels.
            progress: Is told what is being worked out.

        Raises:
            TimelineError: It has neither pipeline tasks of ranks that share a clock nor device work.
            ScheduleError: A question makes no sense for the run.
        """
        known = study(timeline, also, progress, placed=False)
        progress.begin("answering what-ifs")
        run = asked_of(timeline, known, activities)
        notices = (*known.bubbles.notices, *_untraced(known.recognition))
        if isinstance(run, DeviceWhatIf):
            notices = run.notices
        answers = [run.ask(question) for question in questions] or run.advice(memory)
        return cls(timeline, run.step_ns, tuple(answers), run.span, run.open, notices)

    def pictured(self) -> list[Pictured]:
        """Return what its picture shows: the first step as measured, and as the first answer has it."""
        if not len(self.timeline):
            return []
        drawn = [one.timeline(self.timeline) for one in self.predictions[:1] if one.timeline]
        return [pictured(timeline, max_steps=1) for timeline in (self.timeline, *drawn)]

    def to_dict(self) -> dict[str, Any]:
        """Return the answers as plain values, following the schema `SCHEMA`."""
        return {
            "schema": SCHEMA,
            "timed": timed(self.timeline.ranks),
            "step_ns": self.step_ns,
            "span": self.span,
            "open": self.open,
            "predictions": [one.to_dict() for one in self.predictions],
            "warnings": [
                msgspec.to_builtins(notice)
                for notice in (*self.timeline.run.warnings, *self.notices)
            ],
        }
