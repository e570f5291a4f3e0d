"""How far a difference between two runs may be chance, from the noise between their steps.

The steps of each run are drawn again with replacement, those of one run independently of those of the
other, and the interval lies between the 2.5th and the 97.5th percentile of what comes out (Efron &
Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 8 and 13).

Percentiles of few steps lie too close together, by the root of (n - 1) / n and by the normal quantile
over Student's (Hesterberg, "What Teachers Should Know about the Bootstrap", arXiv 1411.5279, on
narrowness bias). So they are moved apart by as much, with Welch's degrees of freedom (Biometrika 34,
1947).

Steps are taken to be independent of each other. The interval does not know the noise between one start
of a job and the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_DRAWS: Final = 2000
_BLOCK: Final = 512
"""Measures resampled at once, which bounds the memory."""

_SEED: Final = 1993
_PERCENTILES: Final = (0.025, 0.975)

_FREEDOM: Final = np.array([np.inf, 120, 60, 30, 20, 15, 10, 8, 6, 5, 4, 3, 2, 1])
_STUDENT: Final = np.array(
    [1.96, 1.98, 2.0, 2.042, 2.086, 2.131, 2.228, 2.306, 2.447, 2.571, 2.776, 3.182, 4.303, 12.706]
)
"""The 97.5th percentile of Student's t, by degrees of freedom. Between two of them it is nearly
linear in 1 / freedom."""


class Sums(NamedTuple):
    """The measures of a run: those of a step are part / whole, those of the run sum / sum.

    Attributes:
        part, whole: k measures x s steps. Whole numbers below 2**53 add up exactly.
    """

    part: Floats
    whole: Floats

    @property
    def steps(self) -> int:
        """Number of steps s."""
        return int(self.part.shape[1])

    def value(self) -> Floats:
        """Return the measures over all steps, NaN where unknown."""
        return ratio(self.part.sum(1), self.whole.sum(1))

    def block(self, at: int) -> Sums:
        """Return the measures from one on, as many as are resampled at once."""
        return Sums(self.part[at : at + _BLOCK], self.whole[at : at + _BLOCK])

    def drawn(self, random: np.random.Generator) -> Floats:
        """Return the measures of resampled steps, k x draws.

        They scatter as much about the measures as those of samples do about the truth.
        """
        count = random.multinomial(self.steps, np.full(self.steps, 1 / self.steps), _DRAWS).T
        value = self.value()[:, None]
        drawn = ratio(self.part @ count, self.whole @ count)
        scattered: Floats = value + (drawn - value) * np.sqrt(self.steps / (self.steps - 1))
        return scattered


class Intervals(NamedTuple):
    """95 % intervals of k measures, each 2 x k: lower and upper ends, NaN where unknown.

    Attributes:
        difference: Of after - before.
        after: Of the second run's own.
    """

    difference: Floats
    after: Floats


def intervals(before: Sums, after: Sums) -> Intervals | None:
    """Return how far the measures of two runs may be chance.

    Returns:
        None if either run has only one step, which says nothing of noise.
    """
    if min(before.steps, after.steps) < 2:
        return None
    blocks = [
        _intervals(before.block(at), after.block(at)) for at in range(0, len(before.part), _BLOCK)
    ]
    return Intervals(*(np.concatenate(parts, axis=1) for parts in zip(*blocks, strict=True)))


def ratio(part: Floats, whole: Floats) -> Floats:
    """Divide; what is over nothing is NaN."""
    shape = np.broadcast_shapes(part.shape, whole.shape)
    quotient: Floats = np.divide(part, whole, out=np.full(shape, np.nan), where=whole != 0)
    return quotient


def _intervals(before: Sums, after: Sums) -> Intervals:
    random = np.random.default_rng(_SEED)
    drawn_before, drawn_after = before.drawn(random), after.drawn(random)
    old, new = before.value(), after.value()
    rise = drawn_after - drawn_before
    spread_before, spread_after = drawn_before.var(axis=1), drawn_after.var(axis=1)
    freedom = ratio(
        (spread_before + spread_after) ** 2,
        spread_before**2 / (before.steps - 1) + spread_after**2 / (after.steps - 1),
    )
    return Intervals(
        _ends(rise, new - old, freedom),
        _ends(drawn_after, new, np.full(len(new), after.steps - 1.0)),
    )


def _ends(drawn: Floats, value: Floats, freedom: Floats) -> Floats:
    """Return the percentiles, farther from the value where there is little freedom."""
    inverse = 1 / np.where(np.isnan(freedom), np.inf, freedom)  # without scatter there is no doubt
    student = np.interp(inverse, 1 / _FREEDOM, _STUDENT)
    low_high = np.quantile(drawn, _PERCENTILES, axis=1)
    ends: Floats = value + student / _STUDENT[0] * (low_high - value)
    return ends
