"""What a run would have taken, had something been different.

Two kinds of answers. Where the tasks stay the same, the measured run itself is replayed with other
lengths, lags or transfers (`bubblescope.analysis.idle.counterfactuals`). Where they do not, with
another schedule or another number of micro-batches, the measured lengths and transfers are put together
to the run as it is and as it would be (`bubblescope.analysis.cost_model`), and the measured step is
scaled by their ratio.

Every answer comes with how far the same method is from the measured step when nothing is changed:
that is as much as it can be trusted. And it can be drawn: `Prediction.timeline` returns the tasks of
the replay that it was taken from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.cost_model import Model
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.pictured import pictured
from bubblescope.analysis.study import ledger_of, study
from bubblescope.model.errors import ScheduleError
from bubblescope.model.timeline import Timeline
from bubblescope.schedules import SCHEDULES, generate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

    from bubblescope.analysis.idle.counterfactuals import Counterfactuals
    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.idle.measured_run import MeasuredRun, Replay
    from bubblescope.analysis.pictured import Pictured
    from bubblescope.analysis.schedule.recognise import Recognition
    from bubblescope.schedules.plan import Plan

SCHEMA: Final = "bubblescope.whatif/1"
"""Name and version of the JSON, described in docs/why.md. Keys are only ever added."""

_WORTH: Final = 0.002
"""Share of a step below which advice is not worth its line."""

_TWICE: Final = ("chimera", "dualpipe", "dualpipev")
"""Schedules that hold every parameter twice."""


class Prediction(NamedTuple):
    """What a step would take.

    Attributes:
        change: What is different.
        needs: What that takes; empty if it is clear from the change.
        step_ns: The mean pipeline phase of a step, from its first forward to its last backward, as
            measured.
        predicted_ns: The same with the change.
        saved_share: How much less a micro-batch takes, as a share; negative if it takes more.
        error: How far the method is from the measured step when nothing is changed, as a share.
        timeline: Given the run that was asked about, returns its pipeline tasks where the change puts
            them; every step begins when the measured one did. Where the tasks are others, they are as
            long as the model has them, and its mean step is longer or shorter than `predicted_ns` by
            as much as the method is off.
        memory: Most activations that a device holds, in micro-batches of a p-th of the model; None
            where the schedule stays the same.
    """

    change: str
    needs: str
    step_ns: int
    predicted_ns: int
    saved_share: float
    error: float
    timeline: Callable[[Timeline], Timeline]
    memory: float | None = None

    @property
    def saved_ns(self) -> int:
        """By how much a step would be shorter."""
        return self.step_ns - self.predicted_ns

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers and words of it as plain values."""
        said = {name: value for name, value in self._asdict().items() if name != "timeline"}
        return {**said, "saved_ns": self.saved_ns}


class WhatIf:
    """Answers questions about one run.

    Args:
        recognition: The schedule that the run followed; without it, only questions that leave the tasks
            as they are have answers.
        ledger: The run's ledger.
    """

    def __init__(self, recognition: Recognition | None, ledger: Ledger) -> None:
        self._counterfactuals: Counterfactuals = ledger.counterfactuals
        self._error = ledger.replay_error
        self.step_ns = int(self._counterfactuals.run.as_measured.length_ns.mean())
        self._model = (
            Model.of(recognition, self._counterfactuals)
            if recognition and recognition.plan
            else None
        )
        self._unchanged = self._model.length_ns(self._model.plan) if self._model else 0.0
        if not self._unchanged or not self.step_ns:  # tasks that take no time say nothing
            self._model = None

    def without(self, *causes: Cause) -> Prediction:
        """Answer what the run would have taken without some causes of idle time."""
        names = " and ".join(cause.value for cause in causes)
        left = frozenset(self._counterfactuals.present) - set(causes)
        needs = _NEEDS.get(causes[0], "")
        return self._same(
            f"without {names}", needs, lambda: self._counterfactuals.with_causes(left)
        )

    def healthy(self, rank: int) -> Prediction:
        """Answer what it would have taken were a rank as fast as a healthy one at its stage.

        Raises:
            ScheduleError: The run has no such rank.
        """
        run, length = self._counterfactuals.run, self._counterfactuals.lengths
        own = run.rank == rank
        if not own.any():
            raise ScheduleError(f"no rank {rank} ran pipeline tasks; there are {_some(run.rank)}")
        slower = np.where(own, length.rank_ns - length.stage_ns, 0)
        duration = np.maximum(length.own_ns - slower, 0)
        return self._same(f"rank {rank} healthy", "another device", lambda: run.replay(duration))

    def scaled(self, what: str, number: int, factor: float) -> Prediction:
        """Answer what it would have taken had the tasks of a stage or rank taken so many times as long.

        Args:
            what: "stage" or "rank".
            number: Which.
            factor: 0.5 for half as long.

        Raises:
            ScheduleError: There is no such stage or rank, or the factor is negative.
        """
        run = self._counterfactuals.run
        numbers = {"stage": run.stage, "rank": run.rank}[what]
        own = numbers == number
        if not own.any():
            raise ScheduleError(f"no task is of {what} {number}; there are {_some(numbers)}")
        if not 0 <= factor < float("inf"):
            raise ScheduleError(f"a time cannot be {factor:g} times as long")
        scaled = np.where(own, np.round(run.duration_ns * factor), run.duration_ns)
        duration = scaled.astype(np.int64)
        change = f"{what} {number} takes {factor:g} times as long"
        return self._same(change, "", lambda: run.replay(duration))

    def moved(self, count: int, source: int, target: int, layers: Sequence[int]) -> Prediction:
        """Answer what it would have taken with layers of one stage at another.

        Args:
            count: How many layers move.
            source: The stage that they leave.
            target: The stage that they go to.
            layers: How many layers each stage has now; a stage's layers are taken to cost the same.

        Raises:
            ScheduleError: The stages do not have so many layers.
        """
        run = self._counterfactuals.run
        stages = int(run.stage.max()) + 1
        if len(layers) != stages:
            raise ScheduleError(
                f"the run has {stages} stages, but layers are given for {len(layers)}"
            )
        if not (0 <= source < stages and 0 <= target < stages and source != target):
            raise ScheduleError(f"layers move between two of the stages 0 to {stages - 1}")
        if not 0 < count <= layers[source]:
            raise ScheduleError(f"stage {source} has {layers[source]} layers, not {count} to give")
        moved = run.duration_ns.astype(np.float64)
        giving, taking = run.stage == source, run.stage == target
        for kind in np.unique(run.kind[giving]):
            same = run.kind == kind
            layer = np.median(moved[giving & same]) / layers[source]
            moved[taking & same] += count * layer
        moved[giving] *= 1 - count / layers[source]
        duration = np.round(moved).astype(np.int64)
        change = f"{count} layers from stage {source} to stage {target}"
        return self._same(change, "another partition", lambda: run.replay(duration))

    def microbatches(self, count: int) -> Prediction:
        """Answer what a step with another number of micro-batches would take.

        Raises:
            ScheduleError: The schedule is not known, or cannot have so many.
        """
        model = self._modelled()
        plan = model.replanned(count)
        needs = f"{count / model.plan.microbatches:g} times the samples in a step"
        return self._made(f"{count} micro-batches", needs, plan)

    def schedule(self, name: str, chunks: int | None = None) -> Prediction:
        """Answer what another schedule would have taken.

        Args:
            name: One of `bubblescope.schedules.SCHEDULES`.
            chunks: Model chunks on each device, where the schedule leaves that open.

        Raises:
            ScheduleError: The run's schedule is not known, or the other is not for its numbers.
        """
        model = self._modelled()
        now, plan = model.plan, alternative(model, name, chunks)
        needs = []
        if plan.chunks != now.chunks:
            needs.append(f"{plan.chunks} chunks on each device")
        if plan.splits_backward and not now.splits_backward:
            needs.append("a backward that can be split (taken to be half and half)")
        if name in _TWICE:
            needs.append("every parameter twice")
        more = float(plan.peak_memory().max() / now.peak_memory().max())
        if more > 1:
            needs.append(f"{more:.2f} times the activations")
        title = f"{name}, {plan.chunks} chunks" if SCHEDULES[name].any_chunks else name
        return self._made(title, ", ".join(needs), plan)

    def advice(self, memory: float | None = None) -> list[Prediction]:
        """Return what would make the run faster, best first.

        Args:
            memory: Activations that a device may hold, in micro-batches of a p-th of the model; what
                the run's own schedule holds if left out.
        """
        found = [one for one in self._every(memory) if one.saved_share >= _WORTH]
        return sorted(found, key=lambda one: -one.saved_share)

    def _every(self, memory: float | None) -> Iterator[Prediction]:
        for cause in self._counterfactuals.present:
            if cause not in (Cause.CLOCK, Cause.UNEXPLAINED):
                yield self.without(cause)
        run, length = self._counterfactuals.run, self._counterfactuals.lengths
        for rank in np.unique(run.rank[length.rank_ns > length.stage_ns]).tolist()[:_SLOWEST]:
            yield self.healthy(rank)
        if self._model is None:
            return
        limit = memory or float(self._model.plan.peak_memory().max())
        for name in SCHEDULES:
            for chunks in (2, 4) if SCHEDULES[name].any_chunks else (None,):
                try:
                    one = self.schedule(name, chunks)
                except ScheduleError:  # not for these numbers
                    continue
                if one.memory is not None and one.memory <= limit + 1e-9:
                    yield one
        yield self.microbatches(2 * self._model.plan.microbatches)

    def _modelled(self) -> Model:
        if self._model is None:
            raise ScheduleError(
                "the run's schedule is not recognised, so it cannot be set beside another"
            )
        return self._model

    def _same(self, change: str, needs: str, replay: Callable[[], Replay]) -> Prediction:
        """Return what a replay of the same tasks says.

        It is played again to be drawn: of the many that advice is made of, none is kept.
        """
        run = self._counterfactuals.run
        predicted = int(replay().length_ns.mean())
        saved = 1 - predicted / self.step_ns if self.step_ns else 0.0
        return Prediction(
            change,
            needs,
            self.step_ns,
            predicted,
            saved,
            self._error,
            lambda timeline: _moved(timeline, run, replay()),
        )

    def _made(self, change: str, needs: str, plan: Plan) -> Prediction:
        model = self._modelled()
        run = self._counterfactuals.run
        predicted = round(self.step_ns * model.length_ns(plan) / self._unchanged)
        each = (predicted / plan.microbatches) / (self.step_ns / model.plan.microbatches)
        return Prediction(
            change,
            needs,
            self.step_ns,
            predicted,
            1 - each,
            abs(self._unchanged / self.step_ns - 1),
            lambda timeline: stepped(timeline, run, model.tasks(plan, run.opens_ns)),
            float(plan.peak_memory().max()),
        )


_SLOWEST: Final = 8
"""Slow ranks that advice is given about."""

_NEEDS: Final = {
    Cause.IMBALANCE: "layers spread so that stages cost the same",
    Cause.SLOW_RANK: "other devices",
    Cause.VARIATION: "micro-batches of equal cost",
    Cause.ORDER: "tasks in the order of the schedule",
    Cause.TRANSFER: "transfers that nothing waits for",
    Cause.PAUSE: "garbage collection, data and checkpoints in the background",
    Cause.LAUNCH: "a host that keeps ahead of its device",
    Cause.SYNC: "collectives that nothing waits for",
    Cause.CLOCK: "clocks that agree",
}


def _some(numbers: np.ndarray) -> str:
    known = np.unique(numbers).tolist()
    return f"{known[0]} to {known[-1]}"


def _moved(timeline: Timeline, run: MeasuredRun, replay: Replay) -> Timeline:
    """Return a run's pipeline tasks when a replay has them."""
    opens = run.opens_ns[run.step]
    unknown = pl.lit(None, pl.Int64)
    tasks = timeline.tasks[run.task].with_columns(
        start_ns=pl.Series(opens + replay.start_ns),
        end_ns=pl.Series(opens + replay.end_ns),
        busy_ns=unknown,
        host_start_ns=unknown,
        host_end_ns=unknown,
    )
    return Timeline(tasks, timeline.ranks, timeline.run)


def alternative(model: Model, name: str, chunks: int | None = None) -> Plan:
    """Return another schedule for a run's devices and micro-batches.

    Args:
        model: The run.
        name: One of `bubblescope.schedules.SCHEDULES`.
        chunks: Model chunks on each device, where the schedule leaves that open; 2 if left out.

    Raises:
        ScheduleError: It is not for these numbers.
    """
    now = model.plan
    return generate(
        name,
        now.devices,
        now.microbatches,
        chunks=(chunks or 2) if SCHEDULES[name].any_chunks else None,
        times=model.times,
        memory=now.peak_memory().max() if name == "zb-auto" else None,
    )


def stepped(timeline: Timeline, run: MeasuredRun, tasks: pl.DataFrame) -> Timeline:
    """Return tasks whose steps are numbered from 0 as those of a run."""
    step = pl.Series(run.steps, dtype=pl.Int32).gather(tasks["step"])
    return Timeline(tasks.with_columns(step=step), timeline.ranks, timeline.run)


Question: TypeAlias = Callable[[WhatIf], Prediction]
"""What is asked about a run, such as `lambda run: run.schedule("zb-v")`."""


class Predictions(msgspec.Struct, frozen=True, eq=False):
    """What a run would have taken, had something been different.

    Attributes:
        timeline: The run.
        step_ns: The mean pipeline phase of a step as measured.
        predictions: The answers, in the order of the questions; advice is best first.
    """

    timeline: Timeline
    step_ns: int
    predictions: tuple[Prediction, ...]

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        questions: Sequence[Question] = (),
        *,
        memory: float | None = None,
        also: Sequence[Plan] = (),
    ) -> Self:
        """Answer questions about a run; without any, say what would make it faster.

        Args:
            timeline: The run.
            questions: What is asked.
            memory: For advice: activations that a device may hold, in micro-batches of a p-th of the
                model; what the run's own schedule holds if left out.
            also: Schedules to recognise besides the known ones.

        Raises:
            TimelineError: It has no pipeline tasks, or its ranks share no clock.
            ScheduleError: A question makes no sense for the run.
        """
        known = study(timeline, also)
        run = WhatIf(known.recognition, ledger_of(known, timeline))
        answers = [question(run) for question in questions] or run.advice(memory)
        return cls(timeline, run.step_ns, tuple(answers))

    def pictured(self) -> list[Pictured]:
        """Return what its picture shows: the first step as measured, and as the first answer has it."""
        shown = [self.timeline, *(one.timeline(self.timeline) for one in self.predictions[:1])]
        return [pictured(timeline, max_steps=1) for timeline in shown]

    def to_dict(self) -> dict[str, Any]:
        """Return the answers as plain values, following the schema `SCHEMA`."""
        return {
            "schema": SCHEMA,
            "step_ns": self.step_ns,
            "predictions": [one.to_dict() for one in self.predictions],
        }
