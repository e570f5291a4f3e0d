"""What runs at given moments: the one way to draw more tasks than there is room for.

To widen short tasks until they can be seen, or to let the last one drawn win, would show shares of
time that are not so. Samples do not: each kind has as many of them as it has of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.model import intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

IDLE: Final = -1
"""What stands for no task among the kinds of `apportioned`."""

_NOTHING: Final = 1e-9
"""Share of a part of the time that is but a rounding error."""


def moments(start_ns: int, end_ns: int, count: int) -> NDArray[np.int64]:
    """Return the middles of `count` equal parts of a span of time."""
    step = (end_ns - start_ns) / max(1, count)
    return start_ns + ((np.arange(count) + 0.5) * step).astype(np.int64)


def running(tasks: pl.DataFrame, at_ns: NDArray[np.int64], what: str) -> pl.DataFrame:
    """Return what runs on each rank at each of some moments.

    Args:
        tasks: Frame with rank, start_ns, end_ns and the column named by `what`.
        at_ns: The moments, ascending.
        what: Name of the column that says what a task is.

    Returns:
        Frame with rank, `what`, sample (an index into `at_ns`), and slot and slots: which of how
        many tasks that run there it is, in the order in which they started.
    """
    return (
        tasks.select(
            "rank",
            "start_ns",
            what,
            first=np.searchsorted(at_ns, tasks["start_ns"].to_numpy()),
            last=np.searchsorted(at_ns, tasks["end_ns"].to_numpy()),
        )
        .filter(pl.col("first") < pl.col("last"))
        .select("rank", what, "start_ns", sample=pl.int_ranges("first", "last"))
        .explode("sample")
        .sort("rank", "sample", "start_ns", maintain_order=True)
        .select(
            "rank",
            what,
            "sample",
            slot=pl.int_range(pl.len()).over("rank", "sample"),
            slots=pl.len().over("rank", "sample"),
        )
    )


def apportioned(tasks: pl.DataFrame, start_ns: int, end_ns: int, count: int) -> NDArray[np.int64]:
    """Choose for each of `count` equal parts of the time one of the kinds that a rank runs in it.

    Samples at regular moments have a flaw: pipelines are as regular. Where both have the same beat, a
    stretch of forwards and backwards by turns looks like forwards alone. Here the kind that is
    furthest behind its share of the time so far comes next, so shares are right along the whole lane.

    Args:
        tasks: Tasks of one rank, with kind (a number), start_ns and end_ns.
        start_ns: Where the first part starts.
        end_ns: Where the last part ends.
        count: How many parts.

    Returns:
        A kind, or `IDLE`, for each part. Tasks that overlap have equal parts of the time they share.
    """
    edges = np.linspace(0, end_ns - start_ns, count + 1)
    tasks = tasks.select("kind", pl.col("start_ns") - start_ns, pl.col("end_ns") - start_ns).sort(
        "start_ns"
    )
    fresh_ns = intervals.fresh_start_ns(*intervals.columns(tasks))
    alone = tasks.with_columns(start_ns=pl.Series(fresh_ns)).filter(
        pl.col("start_ns") < pl.col("end_ns")
    )
    busy = _spent(alone, edges)
    kinds = tasks["kind"].unique().sort().to_list()
    spent = np.array([_spent(tasks.filter(kind=kind), edges) for kind in kinds])
    spent = spent.reshape(len(kinds), count)
    together = spent.sum(axis=0)
    spent *= np.divide(busy, together, out=np.zeros_like(busy), where=together > 0)
    shares = np.vstack([spent, np.diff(edges) - busy]) / (edges[1] - edges[0])
    due = np.zeros(len(shares))
    chosen = np.empty(count, np.int64)
    for part, share in enumerate(shares.T):
        due += share
        chosen[part] = np.where(share > _NOTHING, due, -np.inf).argmax()
        due[chosen[part]] -= 1
    return np.array([*kinds, IDLE], np.int64)[chosen]


def _spent(tasks: pl.DataFrame, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how long tasks take between each edge and the next."""
    total = np.zeros(len(edges))
    for name, sign in (("start_ns", 1.0), ("end_ns", -1.0)):
        times = np.sort(tasks[name].to_numpy()).astype(np.float64)
        passed = np.searchsorted(times, edges)
        total += sign * (edges * passed - np.concatenate([[0.0], np.cumsum(times)])[passed])
    return np.diff(total)
