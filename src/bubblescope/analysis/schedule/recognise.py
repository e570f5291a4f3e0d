"""Recognising the schedule of a measured run, by the order in which its ranks worked.

Timing plays no part: what tells schedules apart is how stages are placed on devices, whether the
backward is split, and the order of operations on each device. Every schedule that the placement
allows is generated for the run's number of devices and micro-batches, and the one whose order has to
be broken least often to get what was observed is the answer; if all have to be broken too often, the
answer is that it is none of them.

An operation departs from a plan if it is not part of the longest sequence that the observed and the
planned order have in common (the longest increasing subsequence of the planned positions).
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from bubblescope.analysis.pipeline_phase import step_facts
from bubblescope.analysis.schedule.candidates import (
    Candidate,
    known,
    measured_times,
    own_order,
    searched,
    turn,
)
from bubblescope.analysis.schedule.observe import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Coordinates,
    Observed,
    Shape,
    coordinates,
    observe,
    seen,
    shapes,
)
from bubblescope.model import units
from bubblescope.model.cached_results import told
from bubblescope.model.errors import ScheduleError
from bubblescope.model.ordering import stretches_of
from bubblescope.model.timeline_tables import PIPELINE
from bubblescope.schedules import plan as codes
from bubblescope.schedules.naming import meant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from bubblescope.analysis.pipeline_phase import StepFacts
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan

_UNLIKE: Final = 0.1
"""A run of which more operations than this share depart from a plan did not follow it."""

_SLIP: Final = 0.02
"""Prior probability that an operation departs from the schedule that a run follows."""

_FEW: Final = 2
"""Departures that a run of any size may have."""

_LONG: Final = 12
"""Micro-batches for each device from which on a step is long."""

_SHORT: Final = 6
"""Micro-batches for each device that are enough to see how a step begins."""

_LARGE: Final = 1 << 16
"""Operations from which on the first steps are looked at first."""

_EARLY: Final = 1 / 16
"""Share of the steps that are."""

_SMALL: Final = 512
"""Devices times micro-batches up to which a search is made even if another schedule fits."""

_TELLING: Final = 1 << 20
"""Passes of the steps that a plan is chosen by, about."""

_LETTERS: Final = "FBW"


class Departure(msgspec.Struct, frozen=True):
    """An operation that did not run where its schedule has it.

    Attributes:
        step: Training step; None in a run without steps.
        rank: Global rank.
        stage: Virtual stage of the operation.
        operation: What ran, such as "B7".
        other: The operation that it should have followed or preceded; None if the schedule does
            not have `operation` at all on this device.
        early: It ran before `other` and should have run after it; else the other way round.
    """

    step: int | None
    rank: int
    stage: int
    operation: str
    other: str | None
    early: bool

    def __str__(self) -> str:
        where = f"stage {self.stage} (rank {self.rank})"
        if self.step is not None:
            where = f"step {self.step}, {where}"
        if self.other is None:
            return f"{where}: {self.operation} ran, which the schedule does not have here"
        ran, expected = ("before", "after") if self.early else ("after", "before")
        return f"{where}: {self.operation} ran {ran} {self.other}, expected {expected}"


class Recognition(msgspec.Struct, frozen=True):
    """Which schedule a run followed.

    Attributes:
        schedule: Name of the schedule, or None if it follows none that is known, or one device holds
            all stages, which is no pipeline.
        variant: What tells it from the form in `SCHEDULES`; empty if nothing does.
        equals: Other schedules of which the run can tell no difference.
        equal_devices: How many devices each of them has: others where not all devices were observed.
        placement: "linear", "looped", "zigzag" (a V), or "mirrored" (two opposite pipelines).
        devices, microbatches, chunks: p, m and v.
        rounds: How often a step runs the schedule, each time for m micro-batches; more than once where
            it accumulates gradients.
        replicas: Copies of the pipeline: data and tensor parallel.
        splits_backward: Whether weight gradients are operations of their own.
        fused_ranks: Ranks with whole backwards in a run that splits them elsewhere.
        overlaps: Whether forwards and backwards overlap in pairs.
        confidence: Probability of this schedule and its equals among all that were tried, if an
            operation departs from the schedule that a run follows with a probability of 2 %, times
            the share of operations that are in its order, times the mean certainty of the passes
            where those were inferred, one without a stage or a micro-batch counting nothing.
        operations: Operations that were compared.
        missing: Operations of the plan that were not observed on the observed ranks and steps.
        missing_devices: Pipeline devices of which no rank was observed.
        departed: How many are out of order.
        departures: These, by rank and step; of more than `LISTED`, the first.
        chosen_on: Number of steps that the schedule was chosen by, which lie evenly over those that are
            compared; all steps are then held against it.
        order: Pipeline device -> its operations in one step, as observed.
        plan: The plan of the schedule; None if there is none.
        coordinates: Where each rank stands.
        observed: What was compared with the plan.
        position: For each observed operation its index in the plan, -1 if the plan has no such.
    """

    schedule: str | None
    variant: str
    equals: tuple[str, ...]
    equal_devices: tuple[int, ...]
    placement: str
    devices: int
    microbatches: int
    rounds: int
    chunks: int
    replicas: int
    splits_backward: bool
    fused_ranks: tuple[int, ...]
    overlaps: bool
    confidence: float
    operations: int
    missing: int
    missing_devices: tuple[int, ...]
    departed: int
    departures: tuple[Departure, ...]
    order: dict[int, str]
    chosen_on: int
    plan: Plan | None
    coordinates: Coordinates
    observed: Observed
    position: Any

    @property
    def partial(self) -> bool:
        """Whether devices of the pipeline left no trace: what others waited for there is not known."""
        return bool(self.missing_devices)

    def check_whole(self) -> None:
        """Refuse what needs to know how long the stages of every device take.

        Raises:
            ScheduleError: Devices left no trace.
        """
        if self.partial:
            raise ScheduleError(
                f"{units.listed('device', self.missing_devices)} of {self.devices} left no trace, so "
                "how long stages take there is not known; give the traces of all devices"
            )

    def without_evidence(self) -> Recognition:
        """Return what was recognised, without what was observed of each task, which is large."""
        none = np.zeros(len(self.position), bool)
        observed = self.observed.only(none)
        return msgspec.structs.replace(self, observed=observed, position=self.position[none])

    def to_dict(self) -> dict[str, Any]:
        """Return what was recognised, without the evidence, as plain values."""
        evidence = ("plan", "coordinates", "observed", "position")
        said = {
            name: getattr(self, name) for name in self.__struct_fields__ if name not in evidence
        }
        departures = [
            {**msgspec.to_builtins(departure), "text": str(departure)}
            for departure in self.departures
        ]
        return {**msgspec.to_builtins(said), "departures": departures}


class _Fit(msgspec.Struct, frozen=True):
    """A plan beside what was observed.

    Attributes:
        name, variant: Of the plan, as in `Match`.
        plan, shape, seats: The plan, and how the ranks take its devices.
        position: Each observed operation's index in the plan, -1 if the plan has none such.
        owed: Operations that the plan has for the observed ranks and steps, less those found.
        least: A number of departures below which it cannot be.
    """

    name: str
    variant: str
    plan: Plan
    shape: Shape
    seats: Coordinates
    position: Any
    owed: int
    least: int

    @property
    def missing(self) -> int:
        """Operations that the plan has and the observed ranks and steps have not."""
        return max(self.owed, 0)


class _Best(msgspec.Struct, frozen=True):
    fit: _Fit
    kept: Any

    @property
    def departures(self) -> int:
        return int((~self.kept).sum())

    @property
    def cost(self) -> float:
        """Departures; what is missing counts half, for it may just have been lost."""
        return self.departures + self.fit.missing / 2

    @property
    def is_whole(self) -> bool:
        """Whether nothing departs, and all devices were observed.

        Where some were not, another schedule of more devices may look the same on the others.
        """
        seen = {*self.fit.seats.device.values()}
        return not self.departures and len(seen) == self.fit.shape.devices


class Choice(msgspec.Struct, frozen=True):
    """The plan that some steps fit best.

    Attributes:
        name, variant, plan, shape, seats: Of the plan, and how the ranks take its devices.
        equals: Other schedules that fit as well, and how many devices they have.
        odds: Probability of this schedule and its equals among all that were tried.
        order: As of `Recognition`.
        steps: How many steps it was chosen by.
    """

    name: str
    variant: str
    plan: Plan
    shape: Shape
    seats: Coordinates
    equals: dict[str, int]
    odds: float
    order: dict[int, str]
    steps: int


class Followed(msgspec.Struct, frozen=True):
    """How steps of a run followed a plan; of several parts of a run, it adds up.

    Attributes:
        operations: Operations that were compared.
        departed: How many of them are out of order.
        owed: How many the plan has for these ranks and steps, less those that were found.
        whole: Whole backwards in the plan's order.
        departures: What is out of order, by rank and step, the first so many.
        fused_ranks: Ranks with whole backwards.
        splits: Whether there are weight gradients.
        overlaps: Whether forwards and backwards overlap in pairs.
    """

    operations: int
    departed: int
    owed: int
    whole: int
    departures: tuple[Departure, ...]
    fused_ranks: frozenset[int]
    splits: bool
    overlaps: bool

    @classmethod
    def joined(cls, parts: Sequence[Followed]) -> Followed:
        """Return what holds of parts together."""
        listed = sorted(
            (one for part in parts for one in part.departures),
            key=lambda one: (one.rank, -1 if one.step is None else one.step),
        )
        return cls(
            operations=sum(part.operations for part in parts),
            departed=sum(part.departed for part in parts),
            owed=sum(part.owed for part in parts),
            whole=sum(part.whole for part in parts),
            departures=tuple(listed[:LISTED]),
            fused_ranks=frozenset().union(*(part.fused_ranks for part in parts)),
            splits=any(part.splits for part in parts),
            overlaps=any(part.overlaps for part in parts),
        )


LISTED: Final = 10_000
"""Departures that are listed; of more, the first."""


def recognise(timeline: Timeline, also: Sequence[Plan] = ()) -> Recognition | None:
    """Return which schedule a run followed, or None if it has no operations with known numbers.

    The plan is chosen by steps that lie evenly over the run, all of them if they have no more than some
    operations; then the whole run is held against it.

    Args:
        timeline: The run; all its ranks are taken to follow one schedule.
        also: Plans to try besides those of `SCHEDULES`, such as one of the user's own.
    """
    steps = telling_steps(step_facts(timeline), seen(timeline).passes)
    few = timeline
    if steps is not None:
        few = told(timeline.slice(steps=steps), {seen: seen(timeline)})
    observed = observe(few)
    choice = choose(few, also, observed)
    if choice is None:
        return None
    return followed(timeline, choice, observed=observed if few is timeline else None)


def telling_steps(facts: StepFacts, passes: int) -> list[int] | None:
    """Return the steps to choose a plan by, evenly over the run; None for all of it.

    Args:
        facts: What the run's steps tell.
        passes: How many forwards, backwards and the like the run has.
    """
    steps = [step for step in facts.compared if step is not None]
    count = max(1, _TELLING * facts.spans.height // max(1, passes))
    if count >= facts.spans.height or count >= len(steps):
        return None
    return [steps[(2 * at + 1) * len(steps) // (2 * count)] for at in range(count)]


def followed(
    timeline: Timeline,
    choice: Choice,
    whole: Followed | None = None,
    observed: Observed | None = None,
) -> Recognition:
    """Return how a run followed the plan that was chosen.

    Args:
        timeline: The run, or a part of it.
        choice: The plan.
        whole: How all parts of the run did, if it is a part.
        observed: What its ranks did, if that is known already.
    """
    observed = observe(timeline) if observed is None else observed
    fit = _fit(observed, choice.shape, choice.seats, choice.name, choice.variant, choice.plan)
    found = whole or follows(observed, fit)
    shape, plan = choice.shape, choice.plan
    # One device alone is no pipeline: whatever its order, there is nobody to keep a schedule with.
    known = found.departed <= _UNLIKE * found.operations and shape.devices > 1
    in_order = 1 - found.departed / max(1, found.operations)
    mixed = found.splits and not plan.overlaps
    whole_backwards = found.whole if plan.splits_backward else 0
    return Recognition(
        schedule=choice.name if known else None,
        variant=choice.variant if known else "",
        equals=(*choice.equals,) if known else (),
        equal_devices=(*choice.equals.values(),) if known else (),
        placement=shape.name,
        devices=shape.devices,
        microbatches=observed.microbatches // plan.rounds,
        rounds=plan.rounds,
        chunks=shape.chunks,
        replicas=1 + max(choice.seats.replica.values()),
        splits_backward=found.splits,
        fused_ranks=tuple(sorted(found.fused_ranks)) if mixed else (),
        overlaps=found.overlaps,
        confidence=choice.odds * in_order * seen(timeline).certainty if known else 0.0,
        operations=found.operations,
        missing=max(max(found.owed, 0) - whole_backwards, 0),
        missing_devices=tuple(sorted(set(range(shape.devices)) - {*choice.seats.device.values()})),
        departed=found.departed if known else 0,
        departures=found.departures if known else (),
        order={} if known else choice.order,
        chosen_on=choice.steps,
        plan=plan if known else None,
        coordinates=choice.seats,
        observed=observed,
        position=fit.position,
    )


def how_followed(timeline: Timeline, choice: Choice) -> Followed:
    """Return how some steps of a run followed a plan."""
    observed = observe(timeline)
    fit = _fit(observed, choice.shape, choice.seats, choice.name, choice.variant, choice.plan)
    return follows(observed, fit)


def follows(observed: Observed, fit: _Fit) -> Followed:
    """Return how what was observed follows a plan in which it was found."""
    best = _Best(fit, _kept(fit.position, observed.group))
    back = observed.work == BACKWARD
    return Followed(
        operations=len(best.kept),
        departed=best.departures,
        owed=fit.owed,
        whole=int((back & observed.fused & best.kept).sum()),
        departures=tuple(islice(_departures(observed, best), LISTED)),
        fused_ranks=frozenset(np.unique(observed.rank[back & observed.fused]).tolist()),
        splits=bool((observed.work == WEIGHT).any()),
        overlaps=bool((np.diff(observed.task) == 0).any()),
    )


def choose(
    timeline: Timeline, also: Sequence[Plan] = (), observed: Observed | None = None
) -> Choice | None:
    """Return the plan that some steps of a run fit best, or None if no forward has known numbers.

    Args:
        timeline: The steps, of all ranks.
        also: As of `recognise`.
        observed: What their ranks did, if that is known already.
    """
    observed = observe(timeline) if observed is None else observed
    if not (observed.work == FORWARD).any():
        return None
    rounds = _rounds(timeline, observed)
    order = timeline.ranks.sort(*PIPELINE, "rank", nulls_last=True)["rank"].to_list()
    tried: list[_Best] = []
    looked_at = []
    for shape in shapes(observed):
        if any(best.is_whole for best in tried):
            break  # a device more would need a reason
        seats = coordinates(observed, shape, order)
        looked_at.append((shape, seats))
        candidates = known(shape, also)
        if rounds > 1:
            repeated = [one.in_rounds(rounds) for one in candidates]
            count = observed.microbatches
            found = _exact(observed, _likely(observed, shape, seats, repeated, count))
            tried += found
            if any(not best.departures for best in found):
                continue
        tried += _tried(observed, shape, seats, candidates)
    if not tried:
        return None
    if rounds == 1 and looked_at[0][0].name == "linear" and (observed.work == WEIGHT).any():
        tried += _searched(timeline, observed, looked_at, tried)
    return _chosen(timeline, observed, tried)


def _rounds(timeline: Timeline, observed: Observed) -> int:
    """Return how often a step ran the schedule, by how many micro-batches the run says that has."""
    declared = timeline.run.microbatches
    if not declared or observed.microbatches % declared:
        return 1
    return observed.microbatches // declared


def _tried(
    observed: Observed,
    shape: Shape,
    seats: Coordinates,
    candidates: list[Candidate],
    within: float = 1.0,
) -> list[_Best]:
    """Hold the candidates against what was observed, and return those that may be the best.

    Of long steps the beginning is looked at first: it is the same however many micro-batches follow,
    where those do not come in rounds that depend on their number. What does not fit there is not
    tried on the rest; nor is that of which more than the share `within` does not.
    """
    count = observed.microbatches
    if shape.name in ("linear", "zigzag") and count > _LONG * shape.devices:
        first = observed.first(2 * shape.devices)
        if not len(first.work):
            return []
        fits = _fits(first, shape, seats, candidates, _SHORT * shape.devices)
        least = min((fit.least for fit in fits), default=0) + _SLIP * len(first.work)
        most = min(least, within * len(first.work))
        near = {(fit.name, fit.variant) for fit in fits if fit.least <= most}
        candidates = [one for one in candidates if (one.name, one.variant) in near]
    return _exact(observed, _likely(observed, shape, seats, candidates, count))


def _searched(
    timeline: Timeline,
    observed: Observed,
    seen: Sequence[tuple[Shape, Coordinates]],
    tried: Sequence[_Best],
) -> list[_Best]:
    """Search for what no known schedule explains; in small steps also for what one does.

    `seen` are the ways to see the run as a pipeline, likeliest first, and `tried` says how well the
    known schedules fit.
    """
    found: list[_Best] = []
    fit = [best.fit.shape for best in tried if not best.departures]
    settled = [one for one in seen if one[0] in fit][:1]
    if settled and settled[0][0].devices * observed.microbatches > _SMALL:
        return found
    times = measured_times(timeline)
    # An order that is read from the run must explain more than the slips of any run. What the search
    # finds is but a guess at the plan: several departures from it say that it was another.
    unknown = _least(tried) > _SLIP * len(observed.work) + _FEW
    for shape, seats in settled or seen:
        found += _tried(observed, shape, seats, searched(shape, times), _UNLIKE)
        if unknown and _least(found) > _FEW:
            order = own_order(observed, shape, seats, times)
            found += _tried(observed, shape, seats, [order] if order else [])
        if any(not best.departures for best in found):
            break
    return found


def _least(tried: Sequence[_Best]) -> float:
    return min((best.cost for best in tried), default=inf)


def _fits(
    observed: Observed, shape: Shape, seats: Coordinates, candidates: list[Candidate], count: int
) -> list[_Fit]:
    """Find what was observed in the plans of some candidates."""
    return [_fit(observed, shape, seats, *plan) for plan in _plans(candidates, count)]


def _plans(candidates: list[Candidate], count: int) -> list[tuple[str, str, Plan]]:
    plans = []
    for name, variant, make in candidates:
        with suppress(ScheduleError):  # not for these numbers, so it was not this one
            plans.append((name, variant, make(count)))
    return plans


def _likely(
    observed: Observed, shape: Shape, seats: Coordinates, candidates: list[Candidate], count: int
) -> list[_Fit]:
    """Find what was observed in the plans of those candidates that may be the best.

    Of a long run the first steps are looked at first: once a plan explains all of the run, those from
    which already these depart by more than that one lacks are not the best.
    """
    if len(observed.work) < _LARGE:
        return _fits(observed, shape, seats, candidates, count)
    plans = _plans(candidates, count)
    early = observed.early(_EARLY)
    first = [_fit(early, shape, seats, *plan).least for plan in plans]
    fits: dict[int, _Fit] = {}
    enough = inf
    for index in sorted(range(len(plans)), key=lambda index: first[index]):
        if first[index] > enough:
            break
        fit = fits[index] = _fit(observed, shape, seats, *plans[index])
        if not fit.least:
            enough = min(enough, fit.missing / 2)
    return [fits[index] for index in sorted(fits)]


def _fit(
    observed: Observed, shape: Shape, seats: Coordinates, name: str, variant: str, plan: Plan
) -> _Fit:
    """Find what was observed in a plan."""
    tables = np.stack(
        [
            plan.table(codes.FORWARD),
            plan.table(codes.BACKWARD, codes.BACKWARD_INPUT),
            plan.table(codes.BACKWARD_WEIGHT),
        ]
    ).astype(np.int32)
    inside = (observed.stage < plan.stages) & (observed.microbatch < plan.microbatches)
    cell = (
        observed.work,
        np.where(inside, observed.stage, 0),
        np.where(inside, observed.microbatch, 0),
    )
    position = np.where(inside, tables[cell], -1)
    device_of = np.full(1 + max(seats.device), -1, np.int32)
    device_of[list(seats.device)] = list(seats.device.values())
    device = device_of[observed.rank]
    position = np.where(plan.device[position] == device, position, -1)
    there = position >= 0
    # A group's first operation tells whose it is; a plan's halves tell what a device owes a step.
    first = stretches_of(observed.group)
    owed = np.bincount(plan.device[plan.halves.operation], minlength=plan.devices)
    lacking = int(owed[device[first]].sum() - there.sum())
    # Two neighbours that are the wrong way round cost at least one of them a place in the order,
    # and one operation can be in two such pairs.
    descents = int(_descents(position[there], observed.group[there]).sum())
    least = int((~there).sum()) + (descents + 1) // 2
    return _Fit(name, variant, plan, shape, seats, position, lacking, least)


def _descents(position: Ints, group: Ints) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (np.diff(position) < 0) & (np.diff(group) == 0)
    return found


def _exact(observed: Observed, fits: Sequence[_Fit]) -> list[_Best]:
    """Count the departures of those plans that may be the best."""
    found: list[_Best] = []
    for fit in sorted(fits, key=lambda fit: fit.least + fit.missing / 2):
        if found and fit.least + fit.missing / 2 > _least(found):
            break
        found.append(_Best(fit, _kept(fit.position, observed.group)))
    return found


def _kept(position: Ints, group: Ints) -> NDArray[np.bool_]:
    """Return which operations are in the longest sequence that is in the plan's order, by group."""
    kept = position >= 0
    there = np.flatnonzero(kept)
    astray = np.unique(group[there[:-1]][_descents(position[there], group[there])])
    begins = np.searchsorted(group[there], astray)
    ends = np.searchsorted(group[there], astray, side="right")
    known: dict[bytes, list[bool]] = {}  # one step is often like another
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        part = there[begin:end]
        order = position[part].tobytes()
        if order not in known:
            known[order] = _longest_increasing(position[part].tolist())
        kept[part] = known[order]
    return kept


def _longest_increasing(values: Sequence[int]) -> list[bool]:
    """Mark a longest sequence that does not decrease (Fredman, 1975): n log n."""
    tails: list[int] = []  # the least end of a sequence of each length
    at: list[int] = []  # where it is
    before: list[int] = []
    for index, value in enumerate(values):
        length = bisect_right(tails, value)
        before.append(at[length - 1] if length else -1)
        if length == len(tails):
            tails.append(value)
            at.append(index)
        else:
            tails[length], at[length] = value, index
    marked = [False] * len(values)
    index = at[-1] if at else -1
    while index >= 0:
        marked[index] = True
        index = before[index]
    return marked


def _chosen(timeline: Timeline, observed: Observed, tried: Sequence[_Best]) -> Choice:
    least = _least(tried)
    equals = [best.fit for best in tried if best.cost == least]
    equals.sort(key=lambda fit: turn(fit.name, fit.variant))
    # Where order cannot tell, believe what the run says of itself.
    declared = timeline.run.schedule or ""
    names = dict.fromkeys(fit.name for fit in equals)
    said = meant(declared, names) or _begun(declared, names)
    fit = next((fit for fit in equals if fit.name == said), equals[0])
    others = {one.name: one.shape.devices for one in reversed(equals) if one.name != fit.name}
    weights = [_SLIP ** (best.cost - least) for best in tried]
    sure = sum(weight for best, weight in zip(tried, weights, strict=True) if best.cost == least)
    return Choice(
        name=fit.name,
        variant=fit.variant,
        plan=fit.plan,
        shape=fit.shape,
        seats=fit.seats,
        equals={name: others[name] for name in names if name in others},
        odds=sure / sum(weights),
        order=_orders(observed, fit.seats, fit.shape),
        steps=len(np.unique(observed.step)),
    )


def _begun(declared: str, names: Iterable[str]) -> str | None:
    """Return which of some schedules what a run declares begins with, such as "1F1B, overlapped"."""
    plain = _plain(declared)
    return next((name for name in names if plain.startswith(_plain(name))), None)


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower())).removeprefix("schedule")


def _departures(observed: Observed, best: _Best) -> Iterator[Departure]:
    """Say of each operation that is out of order what it should have followed or preceded."""
    position = best.fit.position
    for index in np.flatnonzero(~best.kept).tolist():
        early, other = True, None
        if position[index] >= 0:
            begin, end = np.searchsorted(observed.group, observed.group[index] + np.array([0, 1]))
            same = np.arange(begin, end)[best.kept[begin:end]]
            later = same[(same > index) & (position[same] < position[index])]
            sooner = same[(same < index) & (position[same] > position[index])]
            early = bool(len(later))
            other = later[-1] if early else sooner[0]
        step = int(observed.step[index])
        yield Departure(
            step=step if step >= 0 else None,
            rank=int(observed.rank[index]),
            stage=int(observed.stage[index]),
            operation=_operation(observed, index),
            other=None if other is None else _operation(observed, int(other), index),
            early=early,
        )


def _operation(observed: Observed, index: int, beside: int | None = None) -> str:
    said = f"{_LETTERS[observed.work[index]]}{observed.microbatch[index]}"
    if beside is not None and observed.stage[index] != observed.stage[beside]:
        said += f" of stage {observed.stage[index]}"
    return said


def _orders(observed: Observed, seats: Coordinates, shape: Shape) -> dict[int, str]:
    """Return each device's operations in the fullest step of its first replica."""
    orders: dict[int, str] = {}
    for rank, device in seats.device.items():
        if device in orders:
            continue
        own = np.flatnonzero(observed.rank == rank)
        groups, sizes = np.unique(observed.group[own], return_counts=True)
        step = own[observed.group[own] == groups[sizes.argmax()]]
        held = shape.placement[device]
        said = []
        for index in step.tolist():
            chunk = f".{held.index(observed.stage[index])}" if len(held) > 1 else ""
            said.append(_operation(observed, index) + chunk)
        orders[device] = " ".join(said)
    return dict(sorted(orders.items()))
