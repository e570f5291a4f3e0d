"""The ideal of a measured run: its own schedule with its own tasks, and nobody waits.

Every operation takes as long as it was measured to take, devices keep to the order of the recognised
schedule, and results reach other devices in no time. What is left is the bubble that the schedule
cannot do without, for tasks of these lengths; what was measured beyond it is waiting of other kinds.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.pipeline_phase import of_phase
from bubblescope.analysis.rates import NO_IDEAL, UNTRACED
from bubblescope.model.arrays import blocks_of_ranks
from bubblescope.model.ordering import in_order
from bubblescope.model.timeline import Timeline
from bubblescope.schedules.plan import BACKWARD_WEIGHT
from bubblescope.schedules.replay import Graph, edges_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from typing_extensions import Self

    from bubblescope.analysis.schedule.recognise import Recognition
    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.schedules.plan import Plan

_FAR: Final = 1 << 62
_MOVED: Final = ("task", "run", "position", "start_ns")
"""Columns that tell where tasks would have been."""

_TIMES: Final = ("start_ns", "end_ns", "busy_ns", "host_start_ns", "host_end_ns")

_WHOLE: Final = 0.9
"""Share of a step's operations that must have been observed: less is a step cut short."""


class Ideal:
    """A perfect execution of a run's schedule.

    Args:
        steps, own, imputed: The attributes.
        moved: Returns `timeline`.

    Attributes:
        steps: Frame with step and ideal_ns, how long the step takes from its first forward to its
            last backward, the slowest replica's if there are several. Steps that were cut short
            are not in it.
        own: Frame with rank, step and ideal_ns, the same of each rank's own replica.
        imputed: Operations whose length is that of their like, because they were not observed.
    """

    def __init__(
        self,
        steps: pl.DataFrame,
        own: pl.DataFrame,
        imputed: int,
        moved: Callable[[], Timeline] | None,
    ) -> None:
        self.steps = steps
        self.own = own
        self.imputed = imputed
        self._moved = moved

    @cached_property
    def timeline(self) -> Timeline | None:
        """The run's pipeline tasks where they would have been.

        Every step begins when the measured one did. None if the ranks share no clock.
        """
        moved, self._moved = self._moved, None  # what it was made of is as large
        return moved() if moved else None


class Done(NamedTuple):
    """Which operations of a plan with n of them a run ever did.

    Attributes:
        ever: Those that were observed in any step, n long.
        fused: Weight gradients that whole backwards made where the plan splits them, n long.
    """

    ever: Mask
    fused: Mask

    @classmethod
    def of(cls, timeline: Timeline, recognition: Recognition) -> Self | None:
        """Look at some steps; None if the schedule was not recognised."""
        plan = recognition.plan
        if plan is None:
            return None
        return cls.by((tasks["home"] for tasks in _tasks(timeline, recognition)), recognition, plan)

    @classmethod
    def by(cls, homes: Iterable[pl.Series], recognition: Recognition, plan: Plan) -> Self:
        """Look at where tasks are in a plan."""
        ever, fused = np.zeros((2, len(plan)), bool)
        for home in homes:
            ever[home.to_numpy()] = True
        fused[_fused_weights(plan, recognition)] = True
        return cls(ever, fused)

    @classmethod
    def joined(cls, parts: Sequence[Done]) -> Self:
        """Return what was done in any of several parts of a run."""
        return cls(*(np.logical_or.reduce(each) for each in zip(*parts, strict=True)))


def no_ideal(recognition: Recognition | None) -> str:
    """Say why a run has no ideal, if it has none."""
    return UNTRACED if recognition is not None and recognition.partial else NO_IDEAL


def ideal(
    timeline: Timeline,
    recognition: Recognition,
    done: Done | None = None,
    *,
    placed: bool = True,
) -> Ideal | None:
    """Return the ideal of a run; None if its schedule was not recognised, or devices left no trace.

    Operations that were not observed take as long as their like in the same step: the median. Of a
    device that left no trace in any replica there are no such: nobody knows what its stages take.

    Args:
        timeline: The run, or whole steps of it.
        recognition: The schedule, with what was observed in these steps.
        done: What the whole run ever did; these steps if left out.
        placed: Whether it is to have a timeline, which takes memory until that is made.
    """
    plan = recognition.plan
    if plan is None or recognition.partial:
        return None
    columns = ("replica", "step", "home", "length_ns", *(_MOVED if placed else ()))
    seats, parts = [], []
    for tasks in _tasks(timeline, recognition):
        seats.append(tasks.select("rank", "replica").unique())
        parts.append(tasks.select(name for name in columns if name != "run"))
    done = done or Done.by((part["home"] for part in parts), recognition, plan)
    keys = pl.concat([part.select("replica", "step").unique() for part in parts])
    keys = keys.unique().sort("replica", "step")
    runs = keys.with_row_index("run")
    for at, part in enumerate(parts):
        told = part.join(runs, on=["replica", "step"], nulls_equal=True, maintain_order="left")
        parts[at] = told.drop("replica", "step")
    step = keys.select(pl.col("step").rank("dense").fill_null(0)).to_series().to_numpy()
    lengths, seen = _lengths(plan, parts, step, done)
    whole = _is_whole(plan, seen, done)
    start, end = Graph(len(plan), edges_of(plan)[0]).run_many(lengths[whole])
    spans = end.max(axis=1, initial=0) - start.min(axis=1, initial=_FAR)
    found = keys.filter(whole).with_columns(ideal_ns=spans)
    steps = found.group_by("step").agg(pl.col("ideal_ns").max()).sort("step")
    own = found.join(pl.concat(seats), on="replica").select("rank", "step", "ideal_ns")
    moved = None
    if placed and timeline.run.common_clock:
        tasks = pl.concat([part.select(_MOVED) for part in parts])
        place = np.full(len(keys), -1)
        place[whole] = np.arange(whole.sum())
        moved = partial(_moved, timeline, tasks, place, start, end)
    return Ideal(steps, own, int((~seen[whole] & (lengths[whole] > 0)).sum()), moved)


def _tasks(timeline: Timeline, recognition: Recognition) -> Iterator[pl.DataFrame]:
    """Yield a row for each half of each pipeline task, some ranks at a time.

    They have rank, replica, step, task, start_ns, length_ns, position in the plan (null for one that it
    does not have), and home: the position of what it goes with.
    """
    observed = recognition.observed
    seats = pl.DataFrame(
        {
            "rank": list(recognition.coordinates.device),
            "replica": [
                recognition.coordinates.replica[rank] for rank in recognition.coordinates.device
            ],
        },
        schema_overrides={"rank": pl.Int32, "replica": pl.Int32},
    )
    tasks = timeline.tasks.select("rank", "step", "kind", "lane", "start_ns", "end_ns")
    tasks = tasks.with_columns(task=pl.Series(np.arange(tasks.height, dtype=np.int32)))
    wanted = of_phase(tasks)
    position = recognition.position.astype(np.int32)
    paired = bool((np.diff(observed.task) == 0).any())
    place = np.full(len(timeline), -1, np.int32)
    place[observed.task] = position
    halves = pl.DataFrame({"task": observed.task, "position": position}) if paired else None
    for block in blocks_of_ranks(tasks):
        some = block.filter(wanted).select("task", "rank", "step", "start_ns", "end_ns")
        if halves is not None:
            some = some.join(halves, on="task", how="left", maintain_order="left_right")
        else:
            some = some.with_columns(position=pl.Series(place[some["task"].to_numpy()]))
        some = some.join(seats, on="rank", maintain_order="left")
        yield _at_home(in_order(some, "rank", "step", "start_ns", "end_ns", "task"), paired=paired)


def _at_home(found: pl.DataFrame, *, paired: bool) -> pl.DataFrame:
    """Say where in the plan tasks of some ranks belong, and how long each half of them takes."""
    found = found.with_columns(pl.when(pl.col("position") >= 0).then("position").alias("position"))
    length, home = pl.col("end_ns") - pl.col("start_ns"), pl.col("position")
    if found["position"].has_nulls():
        # What the plan does not have (recomputation) goes with what follows it.
        home = home.backward_fill().forward_fill().over("rank", "step")
    if paired:
        # A pair's halves share its length; the first takes what does not divide.
        share = pl.len().over("task")
        length = (length + share - 1 - pl.int_range(pl.len()).over("task")) // share
    return found.with_columns(home=home, length_ns=length).drop_nulls("home").drop("end_ns")


def _lengths(
    plan: Plan, parts: Sequence[pl.DataFrame], step: Ints, done: Done
) -> tuple[Ints, Mask]:
    """Return how long operations take in each replica and step, and which of them were observed.

    Args:
        plan: The plan.
        parts: As `_tasks` yields them, with the number of their replica and step as run.
        step: A number for the step of each run.
        done: What the run ever did.
    """
    lengths = np.zeros((len(step), len(plan)), np.int64)
    seen = np.zeros((len(step), len(plan)), bool)
    for tasks in parts:
        at = (tasks["run"].to_numpy(), tasks["home"].to_numpy())
        np.add.at(lengths, at, tasks["length_ns"].to_numpy())
        seen[at] = True
    if seen.all():
        return lengths, seen
    key = _kind_and_stage(plan)
    # What no device was ever seen at is nothing that it has to do.
    lacking = ~seen & ~done.fused & _of_any(key, done.ever)
    for number in np.unique(step[lacking.any(axis=1)]).tolist():
        runs = np.flatnonzero(step == number)
        own, known, missing = lengths[runs], seen[runs], lacking[runs]
        typical: dict[int, int | None] = {}
        filled = own.copy()
        for same in _classes(key):
            if not missing[:, same].any():
                continue
            fill = _median(own[:, same], known[:, same])
            if fill is None:
                kind = int(plan.kind[same[0]])
                if kind not in typical:
                    alike = plan.kind == kind
                    typical[kind] = _median(own[:, alike], known[:, alike])
                fill = typical[kind]
            filled[:, same] = np.where(missing[:, same], fill or 0, own[:, same])
        lengths[runs] = filled
    return lengths, seen


def _of_any(key: Ints, marked: Mask) -> Mask:
    """Say of each operation whether any with its key is marked."""
    found: Mask = (np.bincount(key, marked) > 0)[key]
    return found


def _kind_and_stage(plan: Plan) -> Ints:
    """Return a number for each operation, the same for operations of one kind and stage."""
    number: Ints = plan.kind * plan.stages + plan.stage
    return number


def _classes(key: Ints) -> list[Ints]:
    """Return the indices of the operations of each key."""
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


def _median(lengths: Ints, seen: Mask) -> int | None:
    return int(np.median(lengths[seen])) if seen.any() else None


def _fused_weights(plan: Plan, recognition: Recognition) -> Ints:
    """Return the weight gradients that a whole backward made where the plan splits it."""
    observed = recognition.observed
    whole = observed.fused & (recognition.position >= 0)
    weights = plan.table(BACKWARD_WEIGHT)
    at = recognition.position[whole]
    found_there = weights[plan.stage[at], plan.microbatch[at]]
    return np.unique(found_there[found_there >= 0])


def _is_whole(plan: Plan, seen: Mask, done: Done) -> Mask:
    """Say of which replicas and steps enough was observed of all that is ever done."""
    ever = _of_any(_kind_and_stage(plan), done.ever)
    whole: Mask = seen[:, ever].mean(axis=1) >= _WHOLE
    return whole


def _moved(
    timeline: Timeline, tasks: pl.DataFrame, place: Ints, start: Ints, end: Ints
) -> Timeline:
    """Return the tasks where the replay has them."""
    first = pl.col("start_ns").min().over("run")
    kept = tasks.with_columns(zero_ns=first, at=pl.Series(place[tasks["run"].to_numpy()]))
    kept = kept.filter(pl.col("at") >= 0, pl.col("position").is_not_null())
    if np.bincount(kept["task"].to_numpy()).max(initial=0) > 1:  # two halves of one
        kept = kept.unique("task", keep="first", maintain_order=True)
    where = (kept["at"].to_numpy(), kept["position"].to_numpy())
    zero = kept["zero_ns"].to_numpy().astype(np.int64)
    rows = timeline.tasks.drop(_TIMES)[kept["task"].to_numpy()].with_columns(
        start_ns=pl.Series(zero + start[where]),
        end_ns=pl.Series(zero + end[where]),
        busy_ns=pl.lit(None, pl.Int64),
        host_start_ns=pl.lit(None, pl.Int64),
        host_end_ns=pl.lit(None, pl.Int64),
    )
    return Timeline.of_checked(rows, timeline.ranks, timeline.run)
