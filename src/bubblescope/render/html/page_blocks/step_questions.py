"""What-ifs about a dataset of which only blocks are read: one of its steps is replayed."""

from __future__ import annotations

import shlex
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from bubblescope.analysis.idle.causes import ADDED, Cause
from bubblescope.analysis.standard_questions import Questions
from bubblescope.analysis.study import study
from bubblescope.model.errors import ScheduleError
from bubblescope.render.html.schema import Asked, WhatIf
from bubblescope.render.html.serve.whatifs import questioned
from bubblescope.render.html.whatif_answers import ASK, said
from bubblescope.sources import load
from bubblescope.sources.dataset.catalogue import TASKS

if TYPE_CHECKING:
    from bubblescope.render.html.schema import Step, Told
    from bubblescope.sources.dataset.catalogue import Catalogue
    from bubblescope.sources.dataset.store import Store

_REPLAYED: Final = 500_000
"""Tasks of a step that is replayed here: some seconds' work, and half a GiB."""
_NEVER: Final = frozenset({Cause.CLOCK, Cause.UNEXPLAINED})
"""Causes that no run can be without."""


class StepQuestions:
    """Answers questions about the steps of a dataset, of which that in sight is read.

    What the whole run would be asked takes all of its tasks at once, so a step stands for it, and the
    answer says which. It has no lanes: they would stand on the clock of that step alone.

    Args:
        store: Where the dataset lies.
        catalogue: It.
        told: What its page tells of it.
    """

    def __init__(self, store: Store, catalogue: Catalogue, told: Told) -> None:
        self._store, self._catalogue, self._told = store, catalogue, told
        self._read: tuple[int, Questions] | None = None

    def head(self) -> WhatIf | None:
        """Return what the page tells of what can be asked; None of a run without steps or pipeline."""
        told = self._told
        if not told.steps or not told.causes:
            return None
        opening = told.steps[told.opening or 0]
        removable = [cause.value for cause in ADDED if cause not in _NEVER]
        return WhatIf(
            command=shlex.join((*ASK, str(self._store))),
            step=opening.end - opening.start,
            span="step",
            moves=True,
            causes=[one.name for one in told.causes if one.name in removable and one.idle],
            stages=sorted({one.stage for one in told.spread if one.stage is not None}),
            layers=None,
            answers=[],
        )

    def answer(self, question: str, at_ns: int | None = None) -> Asked:
        """Return what is said of the step that runs at a time since the run's first start.

        Args:
            question: As of `serve.whatifs.Asking.answer`.
            at_ns: The time; if left out, that of the step with which the page opens.

        Raises:
            ScheduleError: As `serve.whatifs.Asking.answer`; or the step has too many tasks.
            BubblescopeError: The dataset cannot be read any more.
        """
        if not self._told.steps:
            raise ScheduleError("the run has no steps, so there is none to be replayed")
        told = self._told
        at = (told.opening or 0) if at_ns is None else _at(told.steps, at_ns)
        step = told.steps[at].step
        answer = questioned(self._questions_of(step), question)
        spoken = said(answer)
        return Asked(
            answer=replace(spoken, change=f"{spoken.change}, of step {step}"), rows=[], names=[]
        )

    def windows(self, question: str) -> None:
        """Return nothing: answers have no lanes."""

    def known(self, question: str) -> None:
        """Return nothing, at once."""

    def _questions_of(self, step: int) -> Questions:
        if self._read is None or self._read[0] != step:
            tasks = self._tasks(step)
            if tasks > _REPLAYED:
                raise ScheduleError(
                    f"step {step} has about {tasks:,} tasks, which takes too long here: ask "
                    f"`bubblescope whatif {self._store} --steps {step}`"
                )
            run = load(str(self._store), steps=[range(step, step + 1)])
            self._read = step, Questions(run, study(run))
        return self._read[1]

    def _tasks(self, step: int) -> int:
        """Return about how many tasks a step has: as many as others of its blocks."""
        having = [
            held
            for part in self._catalogue.parts
            for held in part.blocks.values()
            if any(span.step == step for span in held.steps)
        ]
        return sum(held.rows.get(TASKS, 0) // max(1, len(held.steps)) for held in having)


def _at(steps: list[Step], at_ns: int) -> int:
    """Return which is the last step that has begun at a time, of steps in the order of time."""
    return max(0, bisect_right(steps, at_ns, key=lambda one: one.start) - 1)
