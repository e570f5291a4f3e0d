"""By how much ranks that do the same work differ anyhow, so that no rank is called slow by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from bubblescope.model.arrays import Floats, Ints

OF_MEDIAN: Final = 1.2533
"""Standard error of a median over that of a mean, for normal noise: the root of pi/2."""

OF_DEVIATION: Final = 1.4826
"""Standard deviation over median absolute deviation, for normal noise."""

_OF_PAIRS: Final = 2.2191
"""Standard deviation over the lower quartile of the differences of all pairs, for normal noise.

Rousseeuw and Croux, "Alternatives to the Median Absolute Deviation" (1993), section 3: their Q_n, which
half of the values may be far off from without moving it.
"""

_NEIGHBOURS: Final = 8
"""Ranks that each is compared with: a thousand have half a million pairs, and need not as many."""

_FEWEST: Final = 16
"""Pairs below which they tell nothing: it may be most of them of which one is far off."""


def rank_errors(places: pl.DataFrame, noise: pl.DataFrame) -> pl.DataFrame:
    """Return by how much each rank's work may seem longer than it is, as a share.

    That is the largest of three standard errors of the median that a rank's work is judged by: what
    its tasks tell by how they differ from each other, what its steps tell likewise, and what the ranks
    of a stage tell. How much tasks, or steps, differ is the median over the ranks of what each tells.

    Args:
        places: As of `bubblescope.analysis.idle.task_lengths.Typical`.
        noise: As of `bubblescope.analysis.idle.task_lengths.Medians`.

    Returns:
        Frame with rank and error, by rank.
    """
    work = pl.col("usual") * pl.col("size")
    shares = (
        places.sort("rank", "kind", "stage")
        .group_by("rank", maintain_order=True)
        .agg((work**2 / pl.col("size")).sum().sqrt() / work.sum())
    )
    by_tasks = OF_MEDIAN * _of_ranks(noise["by_tasks"]) * np.nan_to_num(shares["usual"].to_numpy())
    by_steps = OF_MEDIAN * _of_ranks(noise["by_steps"]) / np.sqrt(noise["steps"].to_numpy())
    error = np.maximum(np.maximum(by_tasks, by_steps), _between(places))
    return noise.select("rank", error=pl.Series(error))


def _between(places: pl.DataFrame) -> float:
    size = pl.col("size")
    ranks = (
        places.sort("rank", "kind", "stage")
        .group_by("rank", maintain_order=True)
        .agg(
            pl.col("stage").min(),
            usual=(pl.col("usual") * size).sum(),
            healthy=(pl.col("healthy_ns") * size).sum(),
        )
        .filter(pl.col("healthy") > 0)
    )
    return spread_between((ranks["usual"] / ranks["healthy"]).to_numpy(), ranks["stage"].to_numpy())


def spread_between(values: Floats, group: Ints) -> float:
    """Return the standard deviation of n values within groups, though some be far off; 0 if unknown.

    Args:
        values: Of which those of one group should be the same.
        group: Of each.
    """
    order = np.argsort(group, kind="stable")
    values, group = values[order], group[order]
    apart = [
        np.abs(values[by:] - values[:-by])[group[by:] == group[:-by]]
        for by in range(1, min(_NEIGHBOURS, len(values) - 1) + 1)
    ]
    pairs = np.concatenate([*apart, np.zeros(0)])
    if len(pairs) < _FEWEST:
        return 0.0
    return _OF_PAIRS * float(np.quantile(pairs, 0.25, method="lower"))


def scatter(residual: pl.Series, size: pl.Series) -> float:
    """Return the standard deviation of values about the means of groups of these sizes, 2 or more."""
    if not len(residual):
        return 0.0
    small = (size / (size - 1)).sqrt()
    return OF_DEVIATION * float((residual.abs() * small).median())  # type: ignore[arg-type]


def _of_ranks(beyond: pl.Series) -> float:
    """Return the standard deviation that is usual among ranks, by how far values of each are off."""
    middle: float | None = beyond.median()  # type: ignore[assignment]
    return 0.0 if middle is None else OF_DEVIATION * middle
