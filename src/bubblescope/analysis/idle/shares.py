"""What each cause costs a run, whatever order they are looked at in.

Two causes may cost more together than each by itself (both delay the same device) or less (each
hides the other). The Shapley value gives each cause the mean of what it adds over all orders in which
the causes could come; the values add up to what all of them cost together (Shapley, "A Value for
n-Person Games", 1953). The interaction of two is how much more the one adds beside the other, in the
same mean (Grabisch and Roubens, 1999).
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from math import factorial
from typing import TYPE_CHECKING, Final, NamedTuple

from bubblescope.analysis.idle.counterfactuals import Counterfactuals
from bubblescope.analysis.phase import evenly
from bubblescope.analysis.schedule.recognise import recognise

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.analysis.idle.causes import Cause
    from bubblescope.model.timeline import Timeline

_MOST: Final = 16_000_000
"""Tasks to replay at most, over the replays of all sets of causes."""


class Share(NamedTuple):
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


class Shares(NamedTuple):
    """What the causes of a run cost, as the mean over its steps.

    Attributes:
        step_ns: How long a step takes.
        replayed_ns: How long one of those takes that were replayed with every set of causes.
        bare_ns: How long it would take without any of them: the schedule with even stages.
        shares: Of the causes, largest first; their costs and `bare_ns` add up to `replayed_ns`.
        interactions: Of each pair, largest first.
        steps: Number of steps that were replayed with every set of causes.
        of: Number of steps that there are.
    """

    step_ns: int
    replayed_ns: int
    bare_ns: int
    shares: tuple[Share, ...]
    interactions: tuple[Interaction, ...]
    steps: int
    of: int


def shares(timeline: Timeline, counterfactuals: Counterfactuals) -> Shares:
    """Return what the causes of a run cost.

    Every set of causes is replayed. Of runs for which that is too much, steps are taken that lie
    evenly over the run; but for what each cause costs beside all others, which is of all steps.

    Args:
        timeline: The run.
        counterfactuals: What it would have been without its causes, such as its ledger was made of.
    """
    run, causes = counterfactuals.run, counterfactuals.present
    whole = part = cache(counterfactuals.step_ns)
    of = len(set(run.steps))
    fit = max(1, _MOST * of // max(1, len(run) << len(counterfactuals.present)))
    if fit < of:
        few = evenly(timeline, fit)
        # Its steps have tasks, so that there is a part to replay; the whole would only take longer.
        counterfactuals = Counterfactuals.of(few, recognise(few)) or counterfactuals
        there, step_ns = frozenset(counterfactuals.present), counterfactuals.step_ns
        part = cache(lambda some: step_ns(some & there))
    costs, interactions = shapley(causes, part)
    step = whole(frozenset(causes))
    return Shares(
        step_ns=step,
        replayed_ns=part(frozenset(causes)),
        bare_ns=part(frozenset()),
        shares=tuple(
            one._replace(last_ns=step - whole(frozenset(causes) - {one.cause})) for one in costs
        ),
        interactions=interactions,
        steps=len(set(counterfactuals.run.steps)),
        of=of,
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
