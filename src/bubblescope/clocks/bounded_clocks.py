"""Which clocks a run has, and those among them that bound each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from bubblescope.clocks.solution import Clocks, Conflict, Moments, bounding, connected, solve
from bubblescope.model.clock_errors import UNKNOWN_HOST

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints
    from bubblescope.model.provenance import Run


class ClocksOf(NamedTuple):
    """Which clock each rank is by.

    Attributes:
        of: Rank -> number of its clock: of its host, or its own if that is not known.
        by_step: Whether each has a clock of its own in every step.
        of_unknown: Whether no rank's host is known. They may all be on one, until something
            contradicts.
    """

    of: dict[int, int]
    by_step: bool
    of_unknown: bool = False

    @property
    def what(self) -> str:
        """What has a clock."""
        return "ranks" if self.by_step or self.of_unknown else "hosts"

    @property
    def number(self) -> int:
        """How many clocks there are."""
        return len(set(self.of.values()))


def clocks_of(ranks: pl.DataFrame, run: Run) -> ClocksOf:
    """Return which clock each rank of a run is by."""
    ranks = ranks.sort("rank")
    if not (run.common_clock or run.host_clocks):
        return ClocksOf({rank: index for index, rank in enumerate(ranks["rank"].to_list())}, True)
    number: dict[str | int, int] = {}
    of = {
        rank: number.setdefault(rank if host == UNKNOWN_HOST else host, len(number))
        for rank, host in ranks.select("rank", "host").iter_rows()
    }
    return ClocksOf(of, by_step=False, of_unknown=all(isinstance(one, int) for one in number))


class Group(NamedTuple):
    """Clocks that bound each other from both sides.

    Attributes:
        step: Of a run in which each step has a zero of its own, else None.
        clocks: Their numbers.
        pairs: What was observed between them.
        found: What follows.
    """

    step: int | None
    clocks: Ints
    pairs: pl.DataFrame
    found: Clocks | Conflict


def extent_of(extent: pl.DataFrame, clocks: ClocksOf) -> tuple[Ints, Ints]:
    """Return the first and the last moment of the tasks on each clock."""
    count = max(clocks.of.values()) + 1
    latest = np.iinfo(np.int64).max
    known = extent.drop_nulls()
    first, last = np.full(count, latest), np.full(count, -latest)
    clock = np.array([clocks.of[rank] for rank in known["rank"].to_list()], np.int64)
    np.minimum.at(first, clock, known["first_ns"].to_numpy())
    np.maximum.at(last, clock, known["last_ns"].to_numpy())
    return first, last


def groups_of(
    pairs: pl.DataFrame, extent: tuple[Ints, Ints] | None
) -> tuple[list[Group], set[int]]:
    """Solve each group of clocks that bound each other, step by step if there is no extent.

    Returns:
        The groups, and the clocks that are bounded against a larger group from one side only.
    """
    parts = (
        [(key[0], part) for key, part in pairs.group_by("step", maintain_order=True)]
        if extent is None
        else [(None, pairs)]
    )
    groups, loose = [], set()
    for step, part in parts:
        a, b, before_ns, after_ns = (
            part[name].to_numpy() for name in ("clock_a", "clock_b", "before_ns", "after_ns")
        )
        count = int(max(a.max(), b.max())) + 1
        together = part["together"].to_numpy()
        anywhere = connected(a, b, count)
        whole: set[int] = set()
        bound = bounding(a[~together], b[~together], count)
        for clocks in sorted(bound, key=len, reverse=True):
            if (one := int(anywhere[clocks[0]])) in whole:
                loose.update(clocks.tolist())
            whole.add(one)
            if len(clocks) < 2:
                continue
            inside = np.isin(a, clocks) & np.isin(b, clocks)
            own = Moments(
                np.searchsorted(clocks, a[inside]),
                np.searchsorted(clocks, b[inside]),
                before_ns[inside],
                after_ns[inside],
                together[inside],
            )
            ends = None if extent is None else (extent[0][clocks], extent[1][clocks])
            found = solve(own, len(clocks), drift=extent is not None, extent=ends)
            groups.append(Group(step, clocks, part.filter(pl.Series(inside)), found))
    return groups, loose
