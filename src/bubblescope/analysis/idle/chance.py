"""By how much ranks that do the same work differ anyhow, so that no rank is called slow by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.model.ordering import numbered

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


def rank_errors(tasks: pl.DataFrame) -> Floats:
    """Return by how much each rank's work may seem longer than it is, as a share, ranks ascending.

    That is the largest of three standard errors of the median that a rank's work is judged by: what
    its tasks tell by how they differ from each other, what its steps tell likewise, and what the ranks
    of a stage tell.

    Args:
        tasks: Frame with rank, step, kind and stage as integers, own: how long each took, in ns, and
            healthy: how long it takes on a healthy rank.
    """
    place, _ = numbered(*(tasks[name].to_numpy() for name in ("rank", "kind", "stage")))
    tasks = tasks.with_columns(place=place)
    own = pl.col("own")
    cells = (
        tasks.group_by("place")
        .agg(pl.col("rank").first(), usual=own.median(), mean=own.mean(), size=pl.len())
        .sort("place")
    )
    at = tasks["place"]
    tasks = tasks.with_columns(
        usual=cells["usual"].gather(at),
        mean=cells["mean"].gather(at),
        size=cells["size"].gather(at),
    )
    each = np.maximum(_by_tasks(tasks, cells), _by_steps(tasks))
    errors: Floats = np.maximum(each, _between(tasks))
    return errors


def _by_tasks(tasks: pl.DataFrame, cells: pl.DataFrame) -> Floats:
    several = tasks.filter(pl.col("size") > 1, pl.col("mean") > 0)
    noise = scatter(several["own"] / several["mean"] - 1, several["size"])
    work = pl.col("usual") * pl.col("size")
    square = (work**2 / pl.col("size")).sum()
    shares = cells.group_by("rank").agg(square.sqrt() / work.sum()).sort("rank")
    errors: Floats = OF_MEDIAN * noise * np.nan_to_num(shares["usual"].to_numpy())
    return errors


def _by_steps(tasks: pl.DataFrame) -> Floats:
    each = tasks.group_by("rank", "step").agg(pl.col("own", "usual").sum())
    each = each.with_columns(steps=pl.len().over("rank"))
    several = each.filter(pl.col("steps") > 1, pl.col("usual") > 0)
    noise = scatter(several["own"] / several["usual"] - 1, several["steps"])
    steps = each.group_by("rank").agg(pl.col("steps").first()).sort("rank")["steps"].to_numpy()
    errors: Floats = OF_MEDIAN * noise / np.sqrt(steps)
    return errors


def _between(tasks: pl.DataFrame) -> float:
    ranks = (
        tasks.group_by("rank")
        .agg(pl.col("stage").min(), pl.col("usual", "healthy").sum())
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
