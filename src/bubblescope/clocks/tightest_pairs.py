"""What a run, or a part of it, tells of how clocks differ: as little as says all of it.

There is about one pair of moments a task, and few matter. Let x be when a cause was on clock a, and n
by how much its effect seems to precede it on clock b. If both corrections are straight lines over the
clocks' own time, with rates r and values c at time 0, the pair asks for

    n (1 + r_b) <= c_b - c_a + (r_b - r_a) x:

a line over x that is nowhere below the points (x, n). It is above all of them if it is above the
vertices of their upper convex hull, and the hull of several parts is that of their hulls: so parts of a
run can be looked at each by itself, and what is solved for in the end is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.clocks.causality import NO_CLOCK, constraints
from bubblescope.clocks.collectives import meetings
from bubblescope.clocks.solution import ROUNDING_NS
from bubblescope.model.extents import extents, extremes
from bubblescope.model.met_collectives import ranks_of_groups
from bubblescope.model.ordering import numbered, stretches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.model.timeline import Timeline

TIMES: Final = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")
"""Columns of tasks that are by the clock of their rank."""
_CLOCKS: Final = ("clock_a", "clock_b")
_PAIRS: Final = ("step", "a", "b", *_CLOCKS, "before_ns", "after_ns", "cause", "effect", "together")
_FEW: Final = 1 << 12
"""Pairs that are sorted sooner than thinned out."""
_STRETCH: Final = 16
"""Rows of which the highest point is taken for all."""
_SURE: Final = 1e-9
"""Products that differ by a greater share of them do so however they are rounded."""


class Evidence(NamedTuple):
    """What tells of how clocks differ.

    Attributes:
        pairs: Frame with step, a and b (ranks), clock_a and clock_b, before_ns (on a) and after_ns (on
            b), of which the one must not come after the other, cause and effect, the names of the
            tasks, and together, whether the two are about the same moment instead: those that imply
            all others.
        ways: Frame with step (null unless each step has a zero of its own), clock_a, clock_b, count and
            violated: how many pairs there are of which one moment must not come after the other, and
            in how many it does.
        extent: Frame with rank, first_ns and last_ns: of all times of its tasks and operations.
        held: Frame with rank and step, unique: which rank has which step.
        meet: Frame with clock_a and clock_b, unique: whose ranks took part in collectives of one group,
            known to be the same ones or not.
    """

    pairs: pl.DataFrame
    ways: pl.DataFrame
    extent: pl.DataFrame
    held: pl.DataFrame
    meet: pl.DataFrame

    @classmethod
    def of(cls, timeline: Timeline, clock_of: dict[int, int], *, by_step: bool) -> Self:
        """Look at all tasks of some steps.

        Args:
            timeline: The steps.
            clock_of: Rank -> number of its clock; ranks without one tell nothing.
            by_step: Whether each step has a zero of its own.
        """
        tasks = timeline.tasks
        times = tasks.select(
            "rank", "step", start_ns=pl.min_horizontal(TIMES), end_ns=pl.max_horizontal(TIMES)
        )
        operations = timeline.operations.select("rank", "step", "start_ns", "end_ns")
        of_steps = pl.concat(extents(one, "rank", "step") for one in (times, operations))
        extent = of_steps.group_by("rank").agg(
            first_ns=pl.col("start_ns").min(), last_ns=pl.col("end_ns").max()
        )
        held = of_steps.select("rank", "step").drop_nulls().unique()
        rank = tasks["rank"].to_numpy()
        number = np.full(1 + max([int(rank.max(initial=0)), *clock_of]), NO_CLOCK, np.int32)
        number[list(clock_of)] = list(clock_of.values())
        clock = number[rank]
        pairs = constraints(timeline, clock)
        if by_step:
            pairs = pairs.filter(tasks["step"].gather(pairs["cause"]).is_not_null())
        ends = zip(_CLOCKS, ("cause", "effect"), strict=True)
        pairs = pairs.with_columns(pl.Series(name, clock[pairs[of]]) for name, of in ends)
        step = tasks["step"].gather(pairs["cause"]) if by_step else pl.lit(None, pl.Int32)
        pairs = pairs.with_columns(step.alias("step"), pl.lit(value=False).alias("together"))
        ways, pairs = _ways(pairs)
        few = _implying(pairs, by_step=by_step)
        cause, effect = tasks[few["cause"]], tasks[few["effect"]]
        named = few.with_columns(
            step=cause["step"],
            a=cause["rank"],
            b=effect["rank"],
            cause=cause["name"],
            effect=effect["name"],
        )
        meet = _meeting(timeline, number)
        of_tasks = cls(_ordered(named.select(_PAIRS)), ways, extent, held, meet)
        met = meetings(timeline, number)
        if not met.height:
            return of_tasks
        if by_step:
            met = met.drop_nulls("step")
        sides = zip(_CLOCKS, ("a", "b"), strict=True)
        met = met.with_columns(pl.Series(name, number[met[of]]) for name, of in sides)
        step = pl.col("step") if by_step else pl.lit(None, pl.Int32).alias("step")
        ways, _ = _ways(met.filter(~pl.col("together")).with_columns(step))
        of_met = cls(met.select(_PAIRS), ways, extent, held, meet)
        return cls.joined([of_tasks, of_met], by_step=by_step)

    @classmethod
    def joined(cls, parts: Sequence[Evidence], *, by_step: bool) -> Self:
        """Return what several parts of a run tell together, each of whole steps."""
        pairs, ways, extent, held, meet = (pl.concat(frames) for frames in zip(*parts, strict=True))
        return cls(
            _ordered(_implying(_ordered(pairs), by_step=by_step)),
            ways.group_by("step", *_CLOCKS).agg(pl.col("count", "violated").sum()),
            extent.group_by("rank").agg(pl.col("first_ns").min(), pl.col("last_ns").max()),
            held.unique(),
            meet.unique(),
        )

    @property
    def known(self) -> int:
        """How many pairs there are."""
        return int(self.ways["count"].sum())

    @property
    def violated(self) -> int:
        """In how many of them the effect precedes its cause."""
        return int(self.ways["violated"].sum())


def _meeting(timeline: Timeline, clock: Ints) -> pl.DataFrame:
    """Return the frame `Evidence.meet`; of more than two clocks of a group, each with the first."""
    pairs: set[tuple[int, int]] = set()
    for ranks in ranks_of_groups(timeline):
        known = [one for one in np.unique(clock[ranks]).tolist() if one != NO_CLOCK]
        pairs.update((known[0], other) for other in known[1:])
    return pl.DataFrame(sorted(pairs), dict.fromkeys(_CLOCKS, pl.Int32), orient="row")


def _ways(pairs: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return how many pairs of moments there are of each way, and those that may imply the others.

    They are looked at in stretches of pairs of one way, of which there are a few to each rank.

    Args:
        pairs: Frame with step, clock_a, clock_b, before_ns and after_ns.

    Returns:
        A frame as of `Evidence.ways`; and some of the pairs.
    """
    of = ("step", *_CLOCKS)
    before, after = (pairs[name].to_numpy() for name in ("before_ns", "after_ns"))
    early = (after < before - ROUNDING_NS).astype(np.int64)
    ways = extremes(pairs.select(of), sums={"violated": early})
    if pairs.height > _FEW:
        begins = stretches(pairs, *of)
        sizes = np.diff(begins, append=pairs.height)
        stretch = np.repeat(np.arange(len(begins), dtype=np.int32), sizes)
        pairs = pairs.filter(pl.Series(~_low(stretch, before, before - after)))
    return ways, pairs


def _ordered(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return pairs in an order that does not depend on how a run was split."""
    return pairs.sort(
        "together", *_CLOCKS, "before_ns", "after_ns", "a", "b", "step", "cause", "effect"
    )


def _implying(pairs: pl.DataFrame, *, by_step: bool) -> pl.DataFrame:
    """Return the pairs that imply all others: the vertices of the upper hull of each way."""
    if not pairs.height:
        return pairs
    of = ("together", *_CLOCKS, *(("step",) if by_step else ()))
    way, _ = numbered(*(pairs[name].to_numpy().astype(np.int64) for name in of))
    before, after = (pairs[name].to_numpy() for name in ("before_ns", "after_ns"))
    need = before - after
    row = _likely(way, before, need)
    row = row[np.lexsort((-need[row], before[row], way[row]))]
    alike = np.diff(way[row], prepend=-1) == 0
    alike &= np.diff(before[row], prepend=before[row[:1]]) == 0
    row = row[~alike]  # of moments of one time, the one that asks for most
    while True:
        implied = _below(way[row], before[row], need[row])
        if not implied.any():
            return pairs[np.sort(row)]
        row = row[~implied]


def _likely(way: Ints, x: Ints, y: Ints) -> Ints:
    """Return rows among which the vertices of the hull of each way are, ascending: few of many.

    Pairs of a way come mostly in the order of time, one rank's after another's: there they can be told
    from their neighbours, and need not be sorted.
    """
    narrow = way.astype(np.uint16) if way.max(initial=0) < 1 << 16 else way
    row = np.argsort(narrow, kind="stable")
    if len(row) > _FEW:
        row = row[~_low(way[row], x[row], y[row])]
    while len(row) > _FEW:
        implied = _below(way[row], x[row], y[row])
        row = row[~implied]
        if 8 * implied.sum() < len(implied):
            break
    return np.sort(row)


def _low(way: Ints, x: Ints, y: Ints) -> Mask:
    """Mark points that are no higher than the highest of the few rows before, and of the few after.

    Both must be of the same way, the one at an earlier time and the other at a later. So the points are
    not above the line between the two: no vertex is among them. That is less work than `_below` is.
    """
    count = len(way) // _STRETCH
    low = np.zeros(len(way), bool)
    if count < 3:
        return low
    ways, xs, ys = (of[: count * _STRETCH].reshape(count, _STRETCH) for of in (way, x, y))
    top = np.arange(count), ys.argmax(axis=1)
    of_top, x_top, y_top = ways[top], xs[top], ys[top]
    between = (of_top[:-2] == of_top[2:]) & (x_top[:-2] < x_top[2:])
    least = np.minimum(y_top[:-2], y_top[2:])
    inner = slice(1, -1)
    marked = (ys[inner] <= least[:, None]) & between[:, None]
    marked &= (ways[inner] == of_top[:-2, None]) & (xs[inner] > x_top[:-2, None])
    marked &= xs[inner] < x_top[2:, None]
    low[_STRETCH : (count - 1) * _STRETCH] = marked.ravel()
    return low


def _below(way: Ints, x: Ints, y: Ints) -> Mask:
    """Mark the points that are not above the line between their neighbours, of the same way.

    Those of which one neighbour is not before them, or the other not after, are not marked.
    All of them can go at once: no vertex of the hull is below a line between two other points.
    """
    below = np.zeros(len(way), bool)
    between = (way[1:-1] == way[:-2]) & (way[1:-1] == way[2:])
    between &= (x[1:-1] > x[:-2]) & (x[1:-1] < x[2:])
    inner = np.flatnonzero(between) + 1
    here, there = (x[inner + side] - x[inner - 1] for side in (0, 1))
    up, over = (y[inner + side] - y[inner - 1] for side in (0, 1))
    one, other = up.astype(float) * there, over.astype(float) * here
    found = one <= other
    close = np.abs(one - other) <= _SURE * (np.abs(one) + np.abs(other))
    close &= (up != 0) | (over != 0)
    for at in np.flatnonzero(close).tolist():  # by whole numbers of any size
        found[at] = int(up[at]) * int(there[at]) <= int(over[at]) * int(here[at])
    below[inner] = found
    return below
