"""What anybody would ask about a run, answered before it is asked.

A page has these answers ready. Each takes a replay or more of the run, so of large runs fewer are
asked, and of the largest only what would be saved without each cause.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from itertools import islice
from operator import methodcaller
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from bubblescope.analysis.predictions import asked_of
from bubblescope.analysis.whatif import WhatIf
from bubblescope.analysis.whatif_device import DeviceWhatIf
from bubblescope.analysis.without_one import WithoutOne
from bubblescope.model.errors import ScheduleError, TimelineError
from bubblescope.schedules import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bubblescope.analysis.combined_changes import Change
    from bubblescope.analysis.idle.measured_run import MeasuredRun
    from bubblescope.analysis.prediction import Prediction
    from bubblescope.analysis.study import Study
    from bubblescope.model.timeline import Timeline

_PLAYED: Final = 2_500_000
"""Tasks that are replayed for all questions, about: a second's work."""

_LEAST: Final = 6
"""Questions that are asked of a run however large it is; each costs a hundredth of writing its page."""

LARGE: Final = 500_000
"""Tasks beyond which devices and schedules are not taken apart, which costs as much as ten replays."""

_OPERATIONS: Final = 512
"""Micro-batches of a round, times devices, up to which all schedules are tried."""

_QUICK: Final = ("interleaved-1f1b", "zb-h1")
"""Schedules that are quickly made for any numbers; tried where not all are."""

_SCHEDULES: Final = 5
"""Schedules that are kept: those that save most."""

_SLOW: Final = 4
"""Slow ranks that are asked about."""

_FACTORS: Final = (0.9, 1.1)
"""How many times as long each stage takes in two of the questions."""


class Answer(NamedTuple):
    """What was asked, all at once, and what is said."""

    asked: tuple[Change, ...]
    prediction: Prediction


class Questions:
    """Answers questions about a run, and knows which are asked of any.

    Args:
        timeline: The run.
        known: What was worked out about it.
        layers: How many layers each stage has; None if nobody said. No trace tells.
    """

    def __init__(
        self, timeline: Timeline, known: Study, layers: Sequence[int] | None = None
    ) -> None:
        self._timeline = timeline
        self._known = known
        self.layers = layers

    @property
    def possible(self) -> bool:
        """Whether the run can be asked anything."""
        waits = self._known.ledger is not None and self._timeline.run.unplaced is None
        return bool(self._timeline.budget.height) or waits

    @cached_property
    def run(self) -> WhatIf | DeviceWhatIf:
        """What answers; of a pipeline, it takes as long to make as some ten answers.

        Raises:
            TimelineError: The run has neither pipeline tasks of ranks that share a clock nor device
                work.
        """
        return asked_of(self._timeline, self._known)

    @cached_property
    def simple(self) -> WhatIf | WithoutOne | DeviceWhatIf:
        """The same; of a large run, without what only other devices, layers and schedules need."""
        ledger = self._known.ledger
        if ledger is not None and self._known.pipelined and self._large:
            return WhatIf(None, ledger) if ledger.told is None else WithoutOne(ledger)
        return self.run

    @property
    def _large(self) -> bool:
        return len(self._timeline) > LARGE

    @cached_property
    def removable(self) -> list[str]:
        """Causes of idle time, or classes of what devices spend time on, that it could be without."""
        return [
            one.value for name, *some in self.simple.remedies() if name == "without" for one in some
        ]

    def operations(self, *asked: Change) -> int:
        """Return about how many operations a plan has that a question makes; 0 if it makes none."""
        recognition = self._known.recognition
        plan = recognition and recognition.plan
        given = {name: some for name, *some in asked}
        if not plan or not given.keys() & {"schedule", "microbatches"}:
            return 0
        count = given.get("microbatches", (plan.per_round,))[0]
        chunks = [one for one in given.get("schedule", ())[1:] if one]
        return int(plan.devices * plan.rounds * count * max(chunks, default=plan.chunks))

    def ask(self, *asked: Change) -> Answer:
        """Answer a question.

        Args:
            asked: The changes that it is about, all at once.

        Raises:
            ScheduleError: A change makes no sense for the run, or they do not go together.
            TimelineError: The run cannot be asked, or its traces do not tell what devices did.
        """
        return _answered(self.run, asked)

    def standard(self) -> list[Answer]:
        """Answer what anybody would ask of the run, by what it saves, most first.

        These are: without each cause of idle time, or class of what a device spends time on; the host
        never late; slow ranks healthy; twice the micro-batches; the schedules that save most within the
        memory of the run's own; a layer moved from the longest stage, where layers are known; each
        stage a tenth shorter and longer.
        """
        if not self.possible:
            return []
        run, count = self.simple, max(_LEAST, _PLAYED // max(1, len(self._timeline)))
        asked: Iterable[Change] = self._questions()
        if not isinstance(run, DeviceWhatIf) and self._large:
            asked = (("without", cause) for cause in self.removable)
        found = []
        for change in islice(asked, count):
            # What makes no sense for this run, such as a plan for another number of micro-batches,
            # nobody asked for.
            with suppress(ScheduleError, TimelineError):
                found.append(_answered(run, (change,)))
        return sorted(_best_schedules(found), key=lambda one: -one.prediction.saved_share)

    def _questions(self) -> Iterator[Change]:
        """Yield all of them, those that matter most first."""
        run = self.run
        slow = 0
        for change in run.remedies():
            slow += change[0] == "healthy"
            if slow <= _SLOW:
                yield change
        plan = self._known.recognition and self._known.recognition.plan
        if not isinstance(run, WhatIf) or self._known.ledger is None:
            return
        if plan:
            few = plan.devices * plan.per_round <= _OPERATIONS
            yield from run.plans(names=SCHEDULES if few else _QUICK)
        longest_first = _by_length(self._known.ledger.counterfactuals.run)
        if not longest_first:
            return
        yield from self._moves(longest_first)
        for stage in longest_first:
            for factor in _FACTORS:
                yield ("scaled", "stage", stage, factor)

    def _moves(self, longest_first: Sequence[int]) -> Iterator[Change]:
        """Yield a layer of the longest stage moved to its neighbours, and to the shortest stage."""
        if self.layers is None or len(self.layers) < 2:
            return
        longest, shortest = longest_first[0], longest_first[-1]
        for target in dict.fromkeys((shortest, longest - 1, longest + 1)):
            if 0 <= target < len(self.layers) and target != longest and self.layers[longest]:
                yield ("moved", 1, longest, target, list(self.layers))


def _answered(run: WhatIf | WithoutOne | DeviceWhatIf, asked: tuple[Change, ...]) -> Answer:
    return Answer(asked, run.ask(methodcaller("together", *asked)))


def _best_schedules(found: list[Answer]) -> list[Answer]:
    """Leave out answers about schedules but for those few that save most, and anything at all."""
    schedules = [one for one in found if one.asked[0][0] == "schedule"]
    saving = [one for one in schedules if one.prediction.saved_share > 0]
    best = sorted(saving, key=lambda one: -one.prediction.saved_share)[:_SCHEDULES]
    return [one for one in found if one not in schedules] + best


def _by_length(run: MeasuredRun) -> list[int]:
    """Return the stages, that whose tasks take longest in all first; equal ones in their order."""
    stages, which = np.unique(run.stage, return_inverse=True)
    length = np.bincount(which, run.duration_ns)
    order = stages[np.argsort(-length, kind="stable")]
    known: list[int] = order[order >= 0].tolist()
    return known
