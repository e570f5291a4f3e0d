"""What a run would have taken, had something been different.

Two kinds of answers. Where the tasks stay the same, the measured run itself is replayed with other
lengths, lags or transfers (`bubblescope.analysis.idle.counterfactuals`). Where they do not, with
another schedule or another number of micro-batches, the measured lengths and transfers are put together
to the run as it is and as it would be (`bubblescope.analysis.cost_model`), and the measured step is
scaled by their ratio.

What is inside tasks counts as well: idle time of their devices, and single kernels, make tasks shorter.
Runs without a pipeline are answered for by `bubblescope.analysis.whatif_device`.

What is slow because of its device stays with the device, and what is long because of its layers moves
with them (`bubblescope.analysis.slow_devices`); where nobody tells which, answers are ranges.

Every answer comes with how far it may be off: how far the same method is from the measured step when
nothing is changed, and for other plans and devices what chance and guesses add. And it can be drawn:
`Prediction.timeline` returns the tasks of the replay that it was taken from.
"""

from __future__ import annotations

from functools import cached_property
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bubblescope.analysis.chained_steps import Chain
from bubblescope.analysis.combined_changes import Asked, moved
from bubblescope.analysis.cost_model import Model
from bubblescope.analysis.device_words import LABELS
from bubblescope.analysis.idle.causes import ADDED, Cause
from bubblescope.analysis.inside_tasks import FasterKernels, segments, spent_inside
from bubblescope.analysis.other_plans import (
    alternative,
    name_of,
    needs_of_plan,
    numbers_of,
    stepped,
    title_of,
)
from bubblescope.analysis.prediction import (
    AT_ONCE,
    CLOSE,
    EACH_ON,
    HOST_AHEAD,
    HOST_SOONER,
    IN_STEP,
    NOT_AHEAD,
    PIPELINE_PHASE,
    Prediction,
    all_of,
    ranked,
)
from bubblescope.analysis.remedies import Needs
from bubblescope.analysis.same_tasks import WITHOUT, of_same_tasks
from bubblescope.analysis.slow_devices import SlowDevices
from bubblescope.analysis.task_factors import TaskFactors
from bubblescope.analysis.whatif_device import class_of
from bubblescope.analysis.without_one import removed
from bubblescope.model import units
from bubblescope.model.budget import Use
from bubblescope.model.errors import ScheduleError, TimelineError
from bubblescope.schedules import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    import polars as pl

    from bubblescope.analysis.combined_changes import Change
    from bubblescope.analysis.idle.counterfactuals import Counterfactuals
    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.idle.measured_run import MeasuredRun, Replay
    from bubblescope.analysis.schedule.recognise import Recognition
    from bubblescope.analysis.slow_devices import Reading
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan


class WhatIf:
    """Answers questions about one run.

    Args:
        recognition: The schedule that the run followed; without it, only questions that leave the tasks
            as they are have answers.
        ledger: The run's ledger.
        timeline: The run, for questions about what is inside tasks.
        activities: What its devices ran, for questions about kernels; the run's own if left out. As in
            `bubblescope.analysis.inside_tasks.FasterKernels`.
        chained: Where the run does not show whether ranks wait for each other at the end of a step,
            they do not.

    Attributes:
        step_ns: The mean pipeline phase of a step, from its first forward to its last backward.
        span: What that is, in two words.
        open: Whether it is longer than what is known: never.
    """

    span = PIPELINE_PHASE
    open = False

    def __init__(
        self,
        recognition: Recognition | None,
        ledger: Ledger,
        timeline: Timeline | None = None,
        activities: pl.DataFrame | None = None,
        *,
        chained: bool = False,
    ) -> None:
        self._timeline = timeline
        known = timeline.activities if timeline is not None else None
        self._activities = known if activities is None else activities
        self._counterfactuals: Counterfactuals = ledger.counterfactuals
        self._ledger = ledger
        self.step_ns = self._counterfactuals.run.as_measured.step_ns
        self._recognition = recognition
        chain = Chain.of(self._counterfactuals.run, timeline) if timeline else None
        self._chain = chain if chain and (chain.sure or chained) else None
        self._unlike: WhatIf | None = None
        if chain is not None and self._chain is None:
            self._unlike = WhatIf(recognition, ledger, timeline, activities, chained=True)
        self._model = (
            Model.of(recognition, self._counterfactuals, self._devices, chain=self._chain)
            if recognition and recognition.plan
            else None
        )
        self._unchanged = self._model.length_ns(self._model.plan) if self._model else 0.0
        if not self._unchanged or not self.step_ns:  # tasks that take no time say nothing
            self._model = None
        measured = self._counterfactuals.run.as_measured.length_ns
        self._scatter = self._model.scatter(measured) if self._model else 0.0
        self._plans: dict[tuple[str | Plan, int | None], Plan] = {}

    @cached_property
    def _devices(self) -> SlowDevices:
        """Which devices are slow; not needed to say what a cause costs."""
        device = self._recognition.coordinates.device if self._recognition else None
        return SlowDevices.of(self._counterfactuals, device)

    @cached_property
    def _needs(self) -> Needs:
        """What it takes to be rid of classes of time inside of tasks."""
        return Needs(self._known())

    @cached_property
    def _factors(self) -> TaskFactors:
        """How many times as long tasks would take, had devices or layers been others."""
        stages = self._model.plan.stages if self._model else 0
        return TaskFactors(self._counterfactuals, self._devices, stages)

    def ask(self, question: Callable[[WhatIf], Prediction]) -> Prediction:
        """Answer a question; where the run does not show whether ranks wait between steps, for both."""
        said = question(self)
        if self._unlike is None:
            return said
        return said.or_else(question(self._unlike), IN_STEP, EACH_ON)

    def without(self, *what: Cause | Use | str) -> Prediction:
        """Answer what the run would have taken without some of what made it long.

        Args:
            what: Causes of idle time between tasks, or classes of what devices spend time on inside of
                tasks; members of `Cause` and `Use`, or what these are called.

        Raises:
            ScheduleError: It is neither, or it is unexplained and may be waiting for ranks without a
                trace.
            TimelineError: The traces do not tell what devices did.
        """
        causes = [Cause(one) for one in what if one in _CAUSES]
        uses = [class_of(one) for one in what if one not in _CAUSES]
        parts = [cause.value for cause in causes] + [f"{LABELS[use]} in tasks" for use in uses]
        needs = WITHOUT.get(causes[0], "") if causes else self._needs.of(uses[0])
        return self._without("without " + " and ".join(parts), needs, causes, uses)

    def host_never_late(self) -> Prediction:
        """Answer what it would have taken had the host always launched in time.

        Tasks are shorter by the time inside of them in which their device had nothing to do because of
        the host, and none waits for its launch or a pause of the host. The answer is between a latency
        of launches inside tasks as it was, and none: `bubblescope.analysis.prediction.NOT_AHEAD`.

        Raises:
            TimelineError: The traces do not tell what devices did.
        """
        change, causes = "the host never late", _HOST
        least = self._without(change, HOST_AHEAD, causes, NOT_AHEAD)
        most = self._without(change, HOST_AHEAD, causes, (*NOT_AHEAD, Use.LATENCY))
        return least.down_to(most.predicted_ns, AT_ONCE)

    def kernels(self, pattern: str, factor: float) -> Prediction:
        """Answer what it would have taken had kernels taken so many times as long.

        Each begins when it did and ends earlier; what no other activity of the device covers then is
        taken off the task.

        Args:
            pattern: A regular expression that their names match.
            factor: 0.5 for half as long; 1 at most.

        Raises:
            ScheduleError: No kernel matches, or kernels are not known.
        """
        timeline, run = self._known(), self._counterfactuals.run
        faster = FasterKernels(self._activities, pattern, factor, by=("rank",))
        windows = segments(timeline)
        saved = faster.saved(windows)
        most, least = (_in_run(run, _by_task(windows, one, timeline)) for one in saved)
        change = f"kernels of {pattern!r} take {factor:g} times as long"
        longest = self._lasting(change, HOST_AHEAD, run.duration_ns - least)
        shortest = self._length(self._replay(run.duration_ns - most))
        return longest.down_to(shortest, HOST_SOONER)

    def healthy(self, rank: int) -> Prediction:
        """Answer what it would have taken were a rank as fast as a healthy one at its stage.

        Raises:
            ScheduleError: The run has no such rank.
        """
        run = self._counterfactuals.run
        if not (run.rank == rank).any():
            raise ScheduleError(f"no rank {rank} ran pipeline tasks; there are {_some(run.rank)}")
        if (run.stage < 0).all():
            raise ScheduleError(
                "the traces do not show stages, so what a healthy rank would take at one is not known"
            )
        found = [
            (self._factors.healthy(rank, reading), reading.words)
            for reading in self._factors.readings()
        ]
        return self._read(f"rank {rank} healthy", "another device", found)

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
        present = {"stage": run.stage, "rank": run.rank}[what]
        own = present == number
        if not own.any():
            raise ScheduleError(f"the run has no {what} {number}; it has {_some(present)}")
        if not 0 <= factor < float("inf"):
            raise ScheduleError(f"a time cannot be {factor:g} times as long")
        scaled = np.where(own, np.round(run.duration_ns * factor), run.duration_ns)
        duration = scaled.astype(np.int64)
        change = f"{what} {number} takes {factor:g} times as long"
        return self._by_chance(self._lasting(change, "", duration)).widened()

    def moved(self, count: int, source: int, target: int, layers: Sequence[int]) -> Prediction:
        """Answer what it would have taken with layers of one stage at another.

        Args:
            count: How many layers move.
            source: The stage that they leave.
            target: The stage that they go to.
            layers: How many layers each stage has now; a stage's layers are taken to cost the same. On
                a slow device each takes as many times longer as the device's own.

        Raises:
            ScheduleError: The stages do not have so many layers, or some left no trace.
        """
        self._check_layers(layers)
        others = moved(layers, [(count, source, target)])
        change = f"{units.count(count, 'layer')} from stage {source} to stage {target}"
        return self._read(change, "another partition", self._partitioned(layers, others))

    def partitioned(self, others: Sequence[int], layers: Sequence[int]) -> Prediction:
        """Answer what it would have taken with other numbers of layers at its stages.

        Args:
            others: How many layers each stage has then.
            layers: How many each has now, as for `moved`.

        Raises:
            ScheduleError: These are not the same number of layers, or not for the run's stages, of
                which some may have left no trace.
        """
        self._check_layers(layers)
        self._check_layers(others)
        if sum(others) != sum(layers):
            raise ScheduleError(
                f"the run has {sum(layers)} layers, and the partition is of {sum(others)}"
            )
        change = f"{','.join(map(str, others))} layers at the stages"
        return self._read(change, "another partition", self._partitioned(layers, others))

    def microbatches(self, count: int) -> Prediction:
        """Answer what a step with another number of micro-batches, in each round, would take.

        Raises:
            ScheduleError: The schedule is not known, or cannot have so many.
        """
        plan = self._modelled().replanned(count)
        return self._made(numbers_of(plan), self._samples(plan), plan)

    def schedule(self, name: str | Plan, chunks: int | None = None) -> Prediction:
        """Answer what another schedule would have taken.

        Args:
            name: One of `bubblescope.schedules.SCHEDULES`, or what others call it; or a plan.
            chunks: Model chunks on each device, where the schedule leaves that open.

        Raises:
            ScheduleError: The run's schedule is not known, or the other is not for its numbers.
        """
        called, plan = name_of(name), self._alternative(name, chunks)
        return self._made(
            title_of(called, plan), needs_of_plan(called, plan, self._modelled().plan), plan
        )

    def _samples(self, plan: Plan) -> str:
        return f"{plan.microbatches / self._modelled().plan.microbatches:g} times the samples in a step"

    def together(self, *changes: Change) -> Prediction:
        """Answer what it would have taken with several changes at once.

        Another schedule and other micro-batches go with layers that move, healthy ranks, and stages and
        ranks that take so many times as long. What makes tasks shorter, and causes, go with these too,
        where the schedule stays.

        Args:
            changes: Each the name of a method of this class and its arguments, such as
                `("moved", 1, 1, 0, [8, 8, 8, 8])` and `("healthy", 6)`.

        Raises:
            ScheduleError: One of them makes no sense for the run, or they do not go together.
            TimelineError: The traces do not tell what devices did.
        """
        if len(changes) == 1:
            name, *arguments = changes[0]
            answer: Prediction = getattr(self, name)(*arguments)
            return answer
        asked = Asked.of(changes)
        plan = self._asked_plan(asked)
        said = [
            (one.change, one.needs)
            for one in (
                getattr(self, name)(*arguments)
                for name, *arguments in changes
                if name not in ("schedule", "microbatches")
            )
        ]
        if plan is not None and asked.schedules:
            name = name_of(asked.schedules[0][0])
            said.append((title_of(name, plan), needs_of_plan(name, plan, self._modelled().plan)))
        if plan is not None and asked.counts:
            said.append((numbers_of(plan), self._samples(plan)))
        change = " and ".join(one for one, _ in said)
        needs = ", ".join(dict.fromkeys(one for _, one in said if one))
        others = moved(asked.layers, asked.moves) if asked.moves else asked.partition
        if plan is None:
            return self._at_once(change, needs, asked, others)
        stages = self._modelled().plan.stages
        if others and plan.stages != stages:
            raise ScheduleError(
                f"layers are given for the {stages} stages of the run, and {plan.name} has "
                f"{plan.stages}; ask about them one at a time"
            )
        return self._made(change, needs, plan, asked, others)

    def advice(self, memory: float | None = None) -> list[Prediction]:
        """Return what would make the run faster, best first.

        Args:
            memory: Activations that a device may hold, in micro-batches of a p-th of the model; what
                the run's own schedule holds if left out.
        """
        found = self.tried(memory)
        if self._unlike is None:
            return ranked(list(found))
        both = zip(found, self._unlike.tried(memory), strict=True)
        return ranked([one.or_else(other, IN_STEP, EACH_ON) for one, other in both])

    def tried(self, memory: float | None = None) -> Iterator[Prediction]:
        """Yield everything that advice is chosen from; `memory` as there."""
        for change in (*self.remedies(), *self.plans(memory)):
            yield self.together(change)

    def remedies(self) -> Iterator[Change]:
        """Yield what advice asks of the tasks as they are: without causes, with slow ranks healthy."""
        yield from removed(self._counterfactuals.present)
        if self._timeline is not None and self._timeline.budget.height:
            yield ("host_never_late",)
        told = (
            slow for slow in self._counterfactuals.slow_ranks if not (slow.mixed or slow.waited_for)
        )
        for slow in islice(told, _SLOWEST):
            yield ("healthy", slow.rank)

    def plans(
        self, memory: float | None = None, names: Collection[str] = SCHEDULES
    ) -> Iterator[Change]:
        """Yield what advice asks of other plans: schedules that fit, and twice the micro-batches.

        Args:
            memory: As of `advice`.
            names: The schedules.
        """
        if self._model is None or self._recognised().partial:
            return
        limit = memory or float(self._model.plan.peak_memory().max())
        for name in names:
            for chunks in (2, 4) if SCHEDULES[name].any_chunks else (None,):
                try:
                    plan = self._alternative(name, chunks)
                except ScheduleError:  # not for these numbers
                    continue
                if plan.peak_memory().max() <= limit + 1e-9:
                    yield ("schedule", name, chunks)
        yield ("microbatches", 2 * self._model.plan.per_round)

    def _alternative(self, name: str | Plan, chunks: int | None) -> Plan:
        """Return `alternative` of the run, made once: some schedules take longer than their replay."""
        if (name, chunks) not in self._plans:
            self._plans[name, chunks] = alternative(self._modelled(), name, chunks)
        return self._plans[name, chunks]

    def _modelled(self) -> Model:
        if self._model is None:
            raise ScheduleError(
                "the run's schedule is not recognised, so it cannot be set beside another"
            )
        self._recognised().check_whole()
        return self._model

    def _check_layers(self, layers: Sequence[int]) -> None:
        """Refuse layers of other stages than the run's, and of stages without a trace."""
        if self._recognition is not None:
            self._recognition.check_whole()
        self._factors.check(layers)

    def _left(self, causes: Collection[Cause]) -> frozenset[Cause]:
        """Return the causes that are left without some, if it is known what these cost."""
        if Cause.UNEXPLAINED in causes and self._counterfactuals.unseen:
            raise ScheduleError(
                "what is unexplained may be waiting for ranks without a trace, so how long a step "
                "would be without it is not known; give the traces of all ranks"
            )
        return frozenset(self._counterfactuals.present) - {*causes}

    def _recognised(self) -> Recognition:
        if self._recognition is None:
            raise ScheduleError("the run's schedule is not recognised")
        return self._recognition

    def _known(self) -> Timeline:
        if self._timeline is None:
            raise TimelineError("questions about the inside of tasks need the timeline")
        return self._timeline

    def _without(
        self, change: str, needs: str, causes: Collection[Cause], uses: Collection[Use]
    ) -> Prediction:
        found, left = self._counterfactuals, self._left(causes)
        if not uses:
            return self._same(change, needs, lambda: found.with_causes(left), found.step_ns(left))
        shorter = _in_run(found.run, spent_inside(self._known(), uses))
        return self._same(change, needs, lambda: found.replay_with(left, shorter))

    def _same(
        self, change: str, needs: str, replay: Callable[[], Replay], predicted: int | None = None
    ) -> Prediction:
        """Return what a replay of the same tasks says, or is known to say."""
        if predicted is None:
            predicted = replay().step_ns
        return of_same_tasks(self._ledger, change, needs, (self.step_ns, predicted), replay)

    def _lasting(self, change: str, needs: str, duration_ns: Ints) -> Prediction:
        """Return what a replay of the same tasks says when they take so long, n long."""
        said = self._same(change, needs, lambda: self._replay(duration_ns))
        if self._chain is None:
            return said
        taken = self._length(self._replay(duration_ns))
        # Whether the first step had one before it that was not recorded, nobody knows.
        error = said.error + abs(said.predicted_ns / taken - 1) if taken else said.error
        saved = 1 - taken / self.step_ns if self.step_ns else 0.0
        return said._replace(predicted_ns=taken, saved_share=saved, error=error)

    def _replay(self, duration_ns: Ints) -> Replay:
        """Return the run with tasks that take so long, n long."""
        run = self._counterfactuals.run
        return self._chain.replay(run, duration_ns) if self._chain else run.replay(duration_ns)

    def _length(self, replay: Replay) -> int:
        """Return the mean step of a replay; in a chain, as those with one before."""
        if self._chain is None:
            return replay.step_ns
        measured = self._chain.step_ns(self._counterfactuals.run.as_measured)
        return round(self.step_ns * self._chain.step_ns(replay) / measured) if measured else 0

    def _made(
        self,
        change: str,
        needs: str,
        plan: Plan,
        asked: Asked | None = None,
        others: Sequence[int] = (),
    ) -> Prediction:
        """Return what another plan takes, of which tasks are as they were or as is asked."""
        model = self._modelled()
        run = self._counterfactuals.run
        found = []
        for reading in self._factors.readings(asked.layers if asked and others else ()):
            read = self._altered(asked, others, reading) if asked else model.read_as(reading)
            found.append((self._predicted(read, plan), read))
        ends = []
        for (_, read), end in ((max(found, key=_time), max), (min(found, key=_time), min)):
            guesses = [
                (self._predicted(guess, plan), guess, words) for guess, words in read.guesses(plan)
            ]
            ends.append(end(guesses, key=_time))
        (predicted, longest, _), (best, shortest, guess) = ends
        words = all_of(shortest.reading.words, guess)
        chance = longest.error(plan) + self._scatter
        if not shortest.reading.words and predicted - best <= CLOSE * predicted:
            chance, best = chance + 1 - best / predicted, predicted
        each = (predicted / plan.microbatches) / (self.step_ns / model.plan.microbatches)
        said = Prediction(
            change,
            needs,
            self.step_ns,
            predicted,
            1 - each,
            abs(self._unchanged / self.step_ns - 1) + chance,
            lambda timeline: stepped(timeline, run, longest.tasks(plan, run.opens_ns)),
            float(plan.peak_memory().max()),
            chance=chance,
        )
        return said.down_to(best, words).widened()

    def _predicted(self, model: Model, plan: Plan) -> int:
        """Return what a step of a plan takes, as a run taken apart in one way says."""
        scaled = round(self.step_ns * model.length_ns(plan) / self._unchanged)
        # No step is over before its slowest device has done what it has to.
        return max(scaled, ceil(model.busiest_ns(plan)))

    def _altered(self, asked: Asked, others: Sequence[int], reading: Reading) -> Model:
        """Return the run taken apart with other layers and devices, read in one way."""
        times = self._factors.resized(others, asked.layers, reading)
        run = self._counterfactuals.run
        for what, number, factor in asked.scaled:
            if what == "stage":
                times = np.where(run.stage == number, times * factor, times)
        model = Model.of(
            self._recognised(), self._counterfactuals, self._devices, times, self._chain
        )
        if model is None:
            raise ScheduleError("the run has no forwards or no backwards")
        read = model.read_as(reading).with_ranks(dict.fromkeys(asked.healthy, 1.0))
        for what, number, factor in asked.scaled:
            if what == "rank":
                own = read.seat == number
                read = read.altered(slow=np.where(own, read.slow * factor, read.slow))
        return read

    def _at_once(
        self,
        change: str,
        needs: str,
        asked: Asked,
        others: Sequence[int],
    ) -> Prediction:
        """Return what a replay of the same tasks says of several changes."""
        found, run = self._counterfactuals, self._counterfactuals.run
        causes = {Cause(one) for one in asked.without if one in _CAUSES}
        uses = [class_of(one) for one in asked.without if one not in _CAUSES]
        if causes & _OF_STAGES and (asked.healthy or asked.scaled or others):
            raise ScheduleError(
                "without stage imbalance or slow ranks, layers, stages and ranks have nothing left to "
                "change; ask about them one at a time"
            )
        insides: list[tuple[tuple[Use, ...], str]] = [(tuple(uses), "")]
        if asked.never_late:
            causes |= {*_HOST}
            always = (*dict.fromkeys((*uses, *NOT_AHEAD)),)
            insides = [(always, ""), (tuple({*always, Use.LATENCY}), AT_ONCE)]
        left = self._left(causes)
        resized = []
        for reading in self._factors.readings(asked.layers if others else ()):
            times = self._factors.resized(others, asked.layers, reading)
            for rank in asked.healthy:
                times = times * self._factors.healthy(rank, reading)
            for what, number, factor in asked.scaled:
                numbers = {"stage": run.stage, "rank": run.rank}[what]
                times = np.where(numbers == number, times * factor, times)
            resized.append((times, reading.words))
        if not causes and not uses and not asked.never_late:
            return self._read(change, needs, resized)
        played = []
        for inside, condition in insides:
            shorter = _in_run(run, spent_inside(self._known(), inside)) if inside else None
            for times, reading_words in resized:
                length = found.replay_with(left, shorter, times).step_ns
                words = all_of(condition, reading_words)
                played.append((length, (shorter, times), words))
        _, (shorter, times), _ = max(played, key=_time)
        best, _, words = min(played, key=_time)
        said = self._same(change, needs, lambda: found.replay_with(left, shorter, times))
        return self._by_chance(said).down_to(best, words).widened()

    def _asked_plan(self, asked: Asked) -> Plan | None:
        """Return the plan with the schedule and the micro-batches that are asked for, if any are."""
        if not asked.schedules and not asked.counts:
            return None
        if asked.without or asked.never_late:
            raise ScheduleError(
                "another schedule or number of micro-batches has other tasks, so it is not known what "
                "makes these wait; ask about them one at a time"
            )
        model = self._modelled()
        count = asked.counts[0] if asked.counts else None
        if asked.schedules:
            return alternative(model, *asked.schedules[0], microbatches=count)
        return model.replanned(asked.counts[0])

    def _partitioned(
        self, layers: Sequence[int], others: Sequence[int]
    ) -> list[tuple[np.ndarray, str]]:
        """Return how many times as long tasks take with other layers, for each way to read the run."""
        return [
            (self._factors.resized(others, layers, reading), reading.words)
            for reading in self._factors.readings(layers)
        ]

    def _read(self, change: str, needs: str, found: list[tuple[np.ndarray, str]]) -> Prediction:
        """Return what replays say of tasks so many times as long, for each way to read the run."""
        run = self._counterfactuals.run
        played = []
        for times, words in found:
            duration = np.round(run.duration_ns * times).astype(np.int64)
            played.append((self._length(self._replay(duration)), duration, words))
        _, longest, _ = max(played, key=_time)
        best, _, words = min(played, key=_time)
        said = self._lasting(change, needs, longest)
        return self._by_chance(said).down_to(best, words).widened()

    def _by_chance(self, said: Prediction) -> Prediction:
        """Add how far off what devices and stages are estimated to cost may be."""
        chance = self._model.error(self._model.plan) + self._scatter if self._model else 0.0
        return said._replace(error=said.error + chance, chance=chance)


def _time(found: tuple[Any, ...]) -> Any:
    return found[0]


_SLOWEST: Final = 8
"""Slow ranks that advice is given about."""

_HOST: Final = (Cause.LAUNCH, Cause.PAUSE, Cause.CODE)
"""What a host is late by."""

_OF_STAGES: Final = frozenset({Cause.IMBALANCE, Cause.SLOW_RANK})

_CAUSES: Final = [cause.value for cause in ADDED]


def _by_task(windows: pl.DataFrame, time_ns: Ints, timeline: Timeline) -> Ints:
    """Sum times of segments by task, one for each of the timeline's."""
    summed = np.zeros(len(timeline), np.int64)
    np.add.at(summed, windows["task"].to_numpy(), time_ns)
    return summed


def _in_run(run: MeasuredRun, time_ns: Ints) -> Ints:
    """Return times of a timeline's tasks for those of a run: with what lies within them, n long."""
    own = time_ns[run.task]
    whole, within = own.copy(), run.outer >= 0
    np.add.at(whole, run.outer[within], own[within])
    return np.minimum(whole, run.duration_ns)


def _some(numbers: np.ndarray) -> str:
    known = np.unique(numbers).tolist()
    return f"{known[0]} to {known[-1]}"
