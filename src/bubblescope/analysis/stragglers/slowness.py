"""Slowness of workers: whether it stays with some of them, and whether it comes with the data.

A worker is compared with its peers: those that hold the same stages in the other replicas, in the
same step. So stages that are long on all replicas are no slowness of a worker.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
import numpy as np

from bubblescope.model.kinds import COMPUTE_KINDS
from bubblescope.names.job_trace_operations import BACKWARD, COMPUTATIONS, FORWARD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.stragglers.operations import Array, Operations

_SLOW: Final = 1.05
"""A worker is slow in a step if it computed this many times as long as its peers' median."""

_PERSISTENT: Final = 0.5
"""A worker is slow persistently if it is in this share of the steps or more, and chance is not why."""

_COMPUTE: Final = frozenset({*COMPUTATIONS, *(kind.value for kind in COMPUTE_KINDS)})
_FORWARD: Final = (FORWARD, "forward")
_BACKWARD: Final = (BACKWARD, "backward", "backward_input")
_DEVIATIONS: Final = 3.0
_NORMAL: Final = 1.4826
"""Standard deviations of a normal distribution in its median absolute deviation."""


class Correlation(NamedTuple):
    """How far two quantities go together.

    Attributes:
        value: Pearson's correlation, from -1 to 1.
        low, high: Between which it is with a certainty of 99.7 %: three standard errors of its Fisher
            transform (`_interval`).
    """

    value: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        """Whether they go together, and not by chance: zero is below the interval."""
        return self.low > 0


class Slowness(msgspec.Struct, frozen=True, eq=False):
    """Whose computation is slow, in p places, r replicas and s steps.

    Attributes:
        ratio: How long each worker computed in a step over its peers' median, p x r x s; null if
            there is one replica only.
        share: Share of the steps in which a worker is `_SLOW`, p x r; null likewise.
        persistent: Whether a worker is slow in most steps and not by chance, p x r; null likewise.
            That is, its share is `_PERSISTENT` or more, and above the mean share q of all workers by
            more than three standard deviations of a share of s steps, sqrt(q (1 - q) / s). Null too
            where not even a share of 1 would be, because steps or workers are too few.
        persistence: Share of the variance of log `ratio` that is between workers and not between
            the steps of one: the intraclass correlation ICC(1) of Shrout and Fleiss, "Intraclass
            Correlations" (1979), not below 0. It is 1 if the same workers are as slow in every
            step, and 0 if who is slow is a matter of chance. Null with one replica or step, or
            where nothing varies.
        correlation: That between the forward and the backward of a micro-batch, in how much longer they
            are than the mean of their stage, worker and step; for each place, null where it is unknown.
            Near 1, micro-batches differ in their data (such as in the length of their sequences).
    """

    ratio: Array | None
    share: Array | None
    persistent: Array | None
    persistence: float | None
    correlation: list[Correlation | None]

    def pattern(self, place: int, replica: int) -> Literal["persistent", "random", "none"] | None:
        """Say how a worker is slow: persistently, in some steps, or never; None if that is unknown."""
        if self.share is None:
            return None
        share = self.share[place, replica]
        if self.persistent is None and share >= _PERSISTENT:
            return None
        if self.persistent is not None and self.persistent[place, replica]:
            return "persistent"
        return "random" if share > 0 else "none"


def computed_ns(operations: Operations) -> Array:
    """Return how long each worker computed in each step, p x r x s."""
    computes = np.array([name in _COMPUTE for name in operations.types])[operations.type]
    taken = [
        operations.length_ns[computes & (operations.place == place)].sum(axis=0)
        for place in range(len(operations.pipeline.stages))
    ]
    return np.array(taken).transpose(0, 2, 1)


def slowness(taken: Array, correlation: list[Correlation | None]) -> Slowness:
    """Compare the computation of each worker with that of its peers.

    Args:
        taken: As `computed_ns` returns it, of all steps.
        correlation: As of `Slowness`.
    """
    if taken.shape[1] < 2:
        return Slowness(None, None, None, None, correlation)
    peers = _others_median(taken)
    ratio = np.divide(taken, peers, out=np.ones(taken.shape), where=peers > 0)
    share = (ratio >= _SLOW).mean(axis=-1)
    usual = share.mean()
    chance = usual + _DEVIATIONS * np.sqrt(usual * (1 - usual) / ratio.shape[-1])
    persistent = (share >= _PERSISTENT) & (share > chance) if chance < 1 else None
    return Slowness(ratio, share, persistent, _persistence(ratio), correlation)


def outliers(values: Array, least: float) -> Array:
    """Say which values are far above the others.

    That is, `least` or more, and above the median by more than three standard deviations, as the
    median absolute deviation has them.
    """
    middle = np.median(values)
    spread = _NORMAL * np.median(np.abs(values - middle))
    found: Array = (values >= least) & (values > middle + _DEVIATIONS * spread)
    return found


def _others_median(times: Array) -> Array:
    """Return the median of the other replicas for each; p x r x s, two replicas or more."""
    replicas = times.shape[1]
    order = np.argsort(times, axis=1, kind="stable")
    turn = np.argsort(order, axis=1, kind="stable")
    ordered = np.take_along_axis(times, order, axis=1)
    # Without its own value, those from its turn on move up by one.
    low, high = (
        np.take_along_axis(ordered, at + (turn <= at), axis=1)
        for at in ((replicas - 2) // 2, (replicas - 1) // 2)
    )
    middle: Array = (low + high) / 2
    return middle


def _persistence(ratio: Array) -> float | None:
    """Return the intraclass correlation of log ratios, p x r x s, workers being the classes."""
    steps = ratio.shape[-1]
    logs = np.log(np.maximum(ratio, np.finfo(float).tiny)).reshape(-1, steps)
    if steps < 2:
        return None
    means = logs.mean(axis=1)
    between = steps * means.var(ddof=1)
    within = logs.var(axis=1, ddof=1).mean()
    total = between + (steps - 1) * within
    return max(0.0, float((between - within) / total)) if total > 0 else None


def correlations(operations: Operations) -> list[Array | None]:
    """Return what tells how alike forwards and backwards are in length, of each place.

    Returns:
        Sums over the micro-batches and replicas of each step, s x 4: of the products of the one and
        the other, of the squares of each, and how many of them are independent; None of a place whose
        micro-batches are not known.
    """
    return [_products(operations, place) for place in range(len(operations.pipeline.stages))]


def correlated(parts: Sequence[list[Array | None]]) -> list[Correlation | None]:
    """Return `Slowness.correlation`.

    Args:
        parts: What `correlations` returns of each part of a run.
    """
    found: list[Correlation | None] = []
    for places in zip(*parts, strict=True):
        known = [one for one in places if one is not None]
        # Exactly rounded, whatever the steps are split into.
        sums = [math.fsum(column) for column in np.concatenate(known).T] if known else (0, 0, 0, 0)
        size = math.sqrt(sums[1] * sums[2])
        value = max(-1.0, min(1.0, sums[0] / size)) if size > 0 else None
        found.append(None if value is None else Correlation(value, *_interval(value, sums[3])))
    return found


def _interval(value: float, freedom: float) -> tuple[float, float]:
    """Return between which a correlation is, three standard errors below and above.

    The inverse hyperbolic tangent of a correlation of n pairs is normal about that of the truth, with a
    standard error of 1 / sqrt(n - 3): Fisher, "On the 'Probable Error' of a Coefficient of Correlation
    Deduced from a Small Sample" (1921). Of pairs from which means of groups were taken, each but the
    first mean costs one: Fisher, "The Distribution of the Partial Correlation Coefficient" (1924).

    Args:
        value: The correlation.
        freedom: Number of pairs less that of the means; n - 1.
    """
    if freedom <= 2:
        return -1.0, 1.0
    if abs(value) >= 1:
        return value, value
    middle, error = math.atanh(value), _DEVIATIONS / math.sqrt(freedom - 2)
    return math.tanh(middle - error), math.tanh(middle + error)


def _products(operations: Operations, place: int) -> Array | None:
    """Return that of `correlations` of one place."""
    forward, backward = (
        {
            (int(operations.stage[index]), int(operations.microbatch[index])): index
            for index in operations.at(place, *names).tolist()
            if operations.microbatch[index] >= 0
        }
        for names in (_FORWARD, _BACKWARD)
    )
    both = [(forward[key], backward[key]) for key in forward.keys() & backward.keys()]
    if not both:
        return None
    lengths = operations.length_ns[np.array(both).T].astype(float)
    stages = operations.stage[[pair[0] for pair in both]]
    one, other = lengths
    # A slow stage, worker or step makes both longer; that is not what is asked for.
    for stage in np.unique(stages):
        for side in (one, other):
            side[stages == stage] -= side[stages == stage].mean(axis=0)
    # Micro-batches of other replicas are others; ranks that are not known to be such may run the same.
    replicas = lengths.shape[-1] if operations.pipeline.dp else 1
    free = replicas * (len(stages) - len(np.unique(stages)))
    return np.array(
        [
            [*(float((first * second).sum()) for first, second in ((x, y), (x, x), (y, y))), free]
            for x, y in zip(one.swapaxes(0, 1).copy(), other.swapaxes(0, 1).copy(), strict=True)
        ]
    )
