"""What each cause costs a run, whatever order they are looked at in.

Two causes may cost more together than each by itself (both delay the same device) or less (each
hides the other). The Shapley value gives each cause the mean of what it adds over all orders in which
the causes could come; the values add up to what all of them cost together (Shapley, "A Value for
n-Person Games", 1953). The interaction of two is how much more the one adds beside the other, in the
same mean (Grabisch and Roubens, 1999).
"""

from __future__ import annotations

from itertools import combinations
from math import factorial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from bubblescope.analysis.idle.causes import ADDED, Cause
from bubblescope.analysis.idle.counterfactuals import mean_ns
from bubblescope.model.arrays import at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from bubblescope.analysis.idle.counterfactuals import Counterfactuals

_MOST: Final = 16_000_000
"""Tasks to replay at most, over the replays of all sets of causes."""


class Share(msgspec.Struct, frozen=True):
    """What one cause costs.

    Attributes:
        cause: The cause.
        cost_ns: Its Shapley value: time by which it makes a step longer.
        alone_ns: What it would cost were it the only one.
        last_ns: What would be saved were only it taken away; of all steps, as `bubblescope whatif` has
            it.
    """

    cause: Cause
    cost_ns: int
    alone_ns: int
    last_ns: int


class Interaction(NamedTuple):
    """How much two causes cost beyond each by itself; negative where each hides the other."""

    one: Cause
    other: Cause
    cost_ns: int


class Shares(msgspec.Struct, frozen=True):
    """What the causes of a run cost, as the mean over its steps.

    Attributes:
        step_ns: How long a step takes.
        replayed_ns: How long one of those takes that were replayed with every set of causes.
        bare_ns: How long it would take without any of them: the schedule with even stages; None if it
            is not known what one of them costs.
        shares: Of the causes of which it is known what they cost, largest first; if that is all, their
            costs and `bare_ns` add up to `replayed_ns`.
        interactions: Of each pair of these, largest first.
        steps: Number of steps that were replayed with every set of causes.
        of: Number of steps that there are.
        unknown: The causes of which it is not: what is unexplained, where it may be waiting for ranks
            without a trace.
    """

    step_ns: int
    replayed_ns: int
    bare_ns: int | None
    shares: tuple[Share, ...]
    interactions: tuple[Interaction, ...]
    steps: int
    of: int
    unknown: tuple[Cause, ...] = ()


class Lasting(msgspec.Struct, frozen=True):
    """How long the steps of a run are, and would be, all together; of several parts, it adds up.

    Attributes:
        steps: Which steps there are.
        tasks: How many tasks they have.
        windows: How many lengths are summed up: more than steps where pipelines run theirs each for
            itself.
        measured_ns: As measured.
        replayed_ns: Replayed with all causes.
        without_ns: Replayed without one cause, for each that makes any difference to them.
        unseen: As of `Counterfactuals`.
    """

    steps: frozenset[int | None]
    tasks: int
    windows: int
    measured_ns: int
    replayed_ns: int
    without_ns: dict[Cause, int]
    unseen: bool

    @classmethod
    def measured(cls, found: Counterfactuals) -> Self:
        """Look at some steps, and replay nothing."""
        length_ns = found.run.as_measured.length_ns
        total = int(length_ns.sum())
        steps, count = frozenset(found.run.steps), len(length_ns)
        return cls(steps, len(found.run), count, total, total, {}, found.unseen)

    @classmethod
    def of(cls, found: Counterfactuals) -> Self:
        """Look at some steps, and replay them with all of their causes, and without each."""
        causes = frozenset(found.present)
        return msgspec.structs.replace(
            cls.measured(found),
            replayed_ns=int(found.lengths_with(causes).sum()),
            without_ns={cause: int(found.lengths_with(causes - {cause}).sum()) for cause in causes},
        )

    @classmethod
    def joined(cls, parts: Sequence[Lasting]) -> Self:
        """Return it of several parts of a run together."""
        causes = frozenset().union(*(part.without_ns for part in parts))
        return cls(
            steps=frozenset().union(*(part.steps for part in parts)),
            tasks=sum(part.tasks for part in parts),
            windows=sum(part.windows for part in parts),
            measured_ns=sum(part.measured_ns for part in parts),
            replayed_ns=sum(part.replayed_ns for part in parts),
            without_ns={
                # Without what makes no difference to a part, it is as with all.
                cause: sum(part.without_ns.get(cause, part.replayed_ns) for part in parts)
                for cause in causes
            },
            unseen=any(part.unseen for part in parts),
        )

    def telling(self, causes: Sequence[Cause]) -> list[int | None]:
        """Return the steps to replay with every set of causes, from the first to the last, evenly."""
        steps = sorted(self.steps, key=lambda step: -1 if step is None else step)
        count = max(1, _MOST * len(steps) // max(1, self.tasks << len(causes)))
        if count >= len(steps):
            return steps
        last = len(steps) - 1
        places = [round(index * last / max(1, count - 1)) for index in range(count)]
        return [steps[place] for place in dict.fromkeys(places)]


class Sets(msgspec.Struct, frozen=True):
    """How long some steps would be with every set of causes; of several parts, it adds up.

    Attributes:
        steps, windows: As of `Lasting`.
        length_ns: All together, by the causes that there are; with all of them, as measured.
    """

    steps: frozenset[int | None]
    windows: int
    length_ns: dict[frozenset[Cause], int]

    @classmethod
    def of(cls, found: Counterfactuals, causes: Sequence[Cause]) -> Self:
        """Replay some steps.

        Args:
            found: The steps.
            causes: All that there are in the run.
        """
        everything, run = frozenset(causes), found.run
        sets = [
            frozenset(some) for size in range(len(causes)) for some in combinations(causes, size)
        ]
        totals = at_once(lambda some: int(found.lengths_with(some).sum()), sets)
        lengths = dict(zip(sets, totals, strict=True))
        lengths[everything] = int(run.as_measured.length_ns.sum())
        return cls(frozenset(run.steps), len(run.as_measured.length_ns), lengths)

    @classmethod
    def joined(cls, parts: Sequence[Sets]) -> Self:
        """Return it of several parts together."""
        return cls(
            frozenset().union(*(part.steps for part in parts)),
            sum(part.windows for part in parts),
            {some: sum(part.length_ns[some] for part in parts) for some in parts[0].length_ns},
        )


def shares(found: Counterfactuals) -> Shares:
    """Return what the causes of a run cost.

    Every set of causes is replayed. Of runs for which that is too much, steps are taken that lie
    evenly over the run; but for what each cause costs beside all others, which is of all steps.

    Args:
        found: What it would have been without its causes.
    """
    lasting = Lasting.measured(found)
    telling = lasting.telling(found.present)
    sets = Sets.of(found.only(telling), found.present)
    if len(telling) < len(lasting.steps):
        return shares_of(Lasting.of(found), sets)
    everything = frozenset(found.present)  # of all steps already
    without = {cause: sets.length_ns[everything - {cause}] for cause in everything}
    return shares_of(msgspec.structs.replace(lasting, without_ns=without), sets)


def shares_of(lasting: Lasting, sets: Sets) -> Shares:
    """Return what the causes of a run cost.

    Args:
        lasting: How long all of its steps are.
        sets: How long those of `lasting.telling` would be with every set of causes.
    """
    causes = tuple(cause for cause in ADDED if cause in lasting.without_ns)

    def part(some: frozenset[Cause]) -> int:
        return mean_ns(sets.length_ns[some], sets.windows)

    costs, interactions = shapley(causes, part)
    step = mean_ns(lasting.measured_ns, lasting.windows)
    unknown = tuple(one for one in causes if lasting.unseen and one is Cause.UNEXPLAINED)
    return Shares(
        step_ns=step,
        replayed_ns=part(frozenset(causes)),
        bare_ns=None if unknown else part(frozenset()),
        shares=tuple(
            msgspec.structs.replace(
                one, last_ns=step - mean_ns(lasting.without_ns[one.cause], lasting.windows)
            )
            for one in costs
            if one.cause not in unknown
        ),
        interactions=tuple(pair for pair in interactions if not {*pair[:2]} & {*unknown}),
        steps=len(sets.steps),
        of=len(lasting.steps),
        unknown=unknown,
    )


def shapley(
    causes: tuple[Cause, ...], length: Callable[[frozenset[Cause]], int]
) -> tuple[tuple[Share, ...], tuple[Interaction, ...]]:
    """Return the Shapley value of each cause and the interaction of each pair, largest first.

    Args:
        causes: The causes, n of them.
        length: Returns how long a step takes with some of the causes; called 2^n times.
    """
    count = len(causes)
    known = {
        frozenset(some): length(frozenset(some))
        for size in range(count + 1)
        for some in combinations(causes, size)
    }
    everything = frozenset(causes)
    by_cause, given = [], 0.0
    for cause in causes:
        value = sum(
            _weight(len(some), count - 1) * (known[some | {cause}] - known[some])
            for some in known
            if cause not in some
        )
        alone = known[frozenset({cause})] - known[frozenset()]
        last = known[everything] - known[everything - {cause}]
        cost = round(given + value) - round(given)  # so that they add up
        given += value
        by_cause.append(Share(cause, cost, alone, last))
    pairs = []
    for one, other in combinations(causes, 2):
        value = sum(
            _weight(len(some), count - 2)
            * (
                known[some | {one, other}]
                - known[some | {one}]
                - known[some | {other}]
                + known[some]
            )
            for some in known
            if one not in some and other not in some
        )
        pairs.append(Interaction(one, other, round(value)))
    by_cause.sort(key=lambda share: -share.cost_ns)
    pairs.sort(key=lambda pair: -abs(pair.cost_ns))
    return tuple(by_cause), tuple(pairs)


def _weight(size: int, others: int) -> float:
    """Return how likely it is that just these `size` of `others` come before, in a random order."""
    return factorial(size) * factorial(others - size) / factorial(others + 1)
