"""What collectives tell of how clocks differ.

No rank is done with a collective before every rank has begun it. That bounds the difference of two
clocks from both sides, most closely where a rank comes last and the data moves quickly. Besides, all
are done at about the same moment, which says where between the bounds the clocks are; but nobody
promises how far apart ends may be, so they bound nothing.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.clocks.causality import NO_CLOCK
from bubblescope.model.met_collectives import Kernels, matched

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bubblescope.model.arrays import Ints
    from bubblescope.model.met_collectives import Met
    from bubblescope.model.timeline import Timeline

MET_SCHEMA: Final[dict[str, pl.DataType]] = {
    "step": pl.Int32(),
    "a": pl.Int32(),
    "b": pl.Int32(),
    "before_ns": pl.Int64(),
    "after_ns": pl.Int64(),
    "cause": pl.String(),
    "effect": pl.String(),
    "together": pl.Boolean(),
}
"""Columns of pairs of moments on two ranks, a and b.

before_ns: When a began a collective, which must not come after after_ns, when b was done with it; or,
    where together, when a and b were done with it, at about the same moment.
cause, effect: What happened then, in words.
"""

_BEGIN: Final = "the start of a collective"
_END: Final = "its end"
_SHOWS: Final = 9
"""How many collectives show which ones are the same."""
_CLOSER: Final = 2
"""How many times as close as were they taken for others nearby, ends have to be."""
_SHIFTS: Final = 4096
"""By how many collectives ranks may be apart, as far as it is looked at."""
_SAMPLE: Final = 256
"""Of how many collectives the ends are compared."""


def meetings(timeline: Timeline, clock: Ints) -> pl.DataFrame:
    """Return what the collectives tell of clocks, of those that can be told from all others nearby.

    Args:
        timeline: The run.
        clock: The number of each rank's clock, by rank, or `NO_CLOCK`.

    Returns:
        Frame with the columns of `MET_SCHEMA`.
    """
    found = [pl.DataFrame(schema=MET_SCHEMA)]
    of_ranks = sorted(matched(timeline, whole=False), key=lambda one: one.ranks.tolist())
    for _, same in groupby(of_ranks, key=lambda one: one.ranks.tolist()):
        steps = [known for one in same if (known := _of_clocks(one, clock)) is not None]
        if steps and _unmistakable(steps, clock):
            found += [pairs for one in steps for pairs in _pairs(one, clock)]
    return pl.concat(found)


def _of_clocks(one: Met, clock: Ints) -> Met | None:
    """Return collectives by the clocks of their ranks, as recorded; None if they tell nothing."""
    rows = np.flatnonzero(clock[one.ranks] != NO_CLOCK)
    if len(np.unique(clock[one.ranks[rows]])) < 2:
        return None
    own = Kernels(*(column[rows] for column in one.kernels))
    start, end = (times + one.clock_ns[rows, None] for times in own[:2])
    return one._replace(ranks=one.ranks[rows], kernels=own._replace(start_ns=start, end_ns=end))


def _unmistakable(steps: Sequence[Met], clock: Ints) -> bool:
    """Say whether ends show which collectives are the same: were they others, ends would not fit.

    Ranks that repeat the same in even steps could be a whole step apart: where clocks may differ, no
    time tells.

    Args:
        steps: The collectives of a group.
        clock: As of `meetings`.
    """
    ends = np.concatenate([one.kernels.end_ns for one in steps], axis=1)
    ends = ends[:, ends[0].argsort()]
    _, first = np.unique(clock[steps[0].ranks], return_index=True)
    if ends.shape[1] < _SHOWS:
        return False
    shifts = min(_SHIFTS, ends.shape[1] - _SHOWS)
    return all(
        _CLOSER * _apart(ends[0], ends[row], 0)
        <= min(
            (_apart(*both, by) for by in range(1, shifts + 1) for both in _orders(ends, row)),
            default=0.0,
        )
        for row in first[1:].tolist()
    )


def _orders(ends: Ints, row: int) -> Iterator[tuple[Ints, Ints]]:
    yield ends[0], ends[row]
    yield ends[row], ends[0]


def _apart(one: Ints, other: Ints, by: int) -> float:
    """Return how far ends are apart, but for clocks, if the other is some collectives ahead."""
    count = len(one) - by
    at = np.arange(count) if count <= _SAMPLE else np.linspace(0, count - 1, _SAMPLE).astype(int)
    between = other[at + by] - one[at]
    return float(np.median(np.abs(between - np.median(between))))


def _pairs(one: Met, clock: Ints) -> Iterator[pl.DataFrame]:
    """Yield pairs of moments of a group's collectives in a step: as few as say all that they tell.

    What the rank tells that comes last bounds the others most closely.
    """
    start, end = one.kernels[:2]
    aligned = end - np.rint(np.median(end - end[0], axis=1)).astype(np.int64)[:, None]
    ahead = (end - aligned)[:, :1]
    # Where rows are missing, some may be taken for the one beside it, which began after its end.
    same = (start - ahead).max(axis=0) <= aligned.min(axis=0)
    start, end, apart = start[:, same], end[:, same], np.ptp(aligned, axis=0)[same]
    last = (start - ahead).argmax(axis=0)
    every = np.arange(len(last))
    close = apart <= np.median(apart) if len(apart) else every > 0
    for row in range(len(one.ranks)):
        other = clock[one.ranks[row]] != clock[one.ranks[last]]
        mine, theirs = np.full(len(every), row), last
        for a, b in ((mine, theirs), (theirs, mine)):
            yield _told(one, a[other], b[other], start[a, every][other], end[b, every][other])
        if clock[one.ranks[row]] != clock[one.ranks[0]]:
            first = np.zeros(len(every), np.int64)
            for a, b in ((first, mine), (mine, first)):
                times = end[a, every][close], end[b, every][close]
                yield _told(one, a[close], b[close], *times, together=True)


def _told(
    one: Met, a: Ints, b: Ints, before_ns: Ints, after_ns: Ints, *, together: bool = False
) -> pl.DataFrame:
    """Return pairs with the columns of `MET_SCHEMA`, of ranks by their rows."""
    columns = {"a": one.ranks[a], "b": one.ranks[b], "before_ns": before_ns, "after_ns": after_ns}
    return pl.DataFrame(columns).select(
        pl.lit(one.step, pl.Int32).alias("step"),
        pl.col("a", "b").cast(pl.Int32),
        "before_ns",
        "after_ns",
        cause=pl.lit(_END if together else _BEGIN),
        effect=pl.lit(_END),
        together=pl.lit(together),
    )
