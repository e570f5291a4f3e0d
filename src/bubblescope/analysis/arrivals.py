"""Which ranks come last in collectives, and how long the others wait for them.

The kernel of a collective runs from when its rank gets there until all ranks have come and the data
has moved, so it ends on all of them at about the same time. Its time up to the last rank's start is
waiting, min(length, last start - own start); the rest is the transfer.

Which collectives are the same is told by when they end (`bubblescope.model.met_collectives`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.met_collectives import met

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.model.met_collectives import Kernels, Met
    from bubblescope.model.timeline import Timeline

ARRIVAL_SCHEMA: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "collectives": pl.UInt32(),
    "last": pl.UInt32(),
    "waits_ns": pl.Int64(),
    "exposed_ns": pl.Int64(),
    "exposed_waits_ns": pl.Int64(),
    "late_ns": pl.Int64(),
    "clock_ns": pl.Int64(),
}
"""Columns of what is known of each rank in each step, of the collectives that could be matched.

collectives: How many it took part in.
last: In how many of them it alone came last, by more than clocks may be off.
waits_ns: How long its kernels waited for ranks that came later.
exposed_ns: How long its kernels ran while nothing computed on its device.
exposed_waits_ns: How long they waited meanwhile, at least: all but what the transfers take, and clocks
    may be off.
late_ns: How much later it came than half of the ranks, at least.
clock_ns: By how much its clock is ahead of that of its group's first rank, where ends of collectives
    show clocks to differ; the median of all of them.

Clocks may be off by as much as the ends of a collective are apart, and those of most.
"""

WAITS_SCHEMA: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "waits_ns": pl.Int64(),
    "awaited": pl.Int32(),
    "off_ns": pl.Int64(),
}
"""Columns of what is known of each kernel of the collectives that could be matched.

waits_ns: How long it ran before the last rank began; 0 where that is no more than clocks may be off.
awaited: The rank that alone came last, by more than that; null if none did.
off_ns: By how much clocks may be off.
"""

_OFF: Final = 0.95
"""Share of collectives whose ends are no further apart than clocks may be off."""

_NOBODY: Final = -1


def arrivals(timeline: Timeline) -> pl.DataFrame:
    """Return who waited for whom in the collectives of a run.

    Returns:
        Frame with the columns of `ARRIVAL_SCHEMA`, by rank and step: of those in `met`.
    """
    found = [pl.DataFrame(schema=ARRIVAL_SCHEMA), *map(_waiting, met(timeline))]
    return _summed(pl.concat(found), "rank", "step")


def kernels_waited(timeline: Timeline) -> pl.DataFrame:
    """Return how long each kernel of the collectives in `met` waited, and for which rank.

    Returns:
        Frame with the columns of `WAITS_SCHEMA`; start_ns and end_ns are as in `Timeline.operations`.
    """
    return pl.concat([pl.DataFrame(schema=WAITS_SCHEMA), *map(_waits, met(timeline))])


class Came(NamedTuple):
    """When the ranks of collectives came.

    Attributes:
        order_ns: When the first rank began, the second one, and so on: m x k.
        off_ns: By how much clocks may be off; k long.
        waits_ns: How long kernels ran before the last rank began: m x k.
        last: Whether a rank alone came last, by more than clocks may be off: m x k.
    """

    order_ns: Ints
    off_ns: Ints
    waits_ns: Ints
    last: Mask

    @classmethod
    def of(cls, kernels: Kernels) -> Came:
        """Compare when kernels of the same collectives begin and end: those of `Met.kernels`."""
        start, end = kernels[:2]
        apart = end.max(0) - end.min(0)
        off = np.maximum(apart, np.quantile(apart, _OFF, method="higher"))
        order = np.sort(start, axis=0)
        waits = np.minimum(end - start, order[-1] - start)
        return cls(order, off, waits, (start == order[-1]) & (order[-1] - order[-2] > off))


def _waits(one: Met) -> pl.DataFrame:
    """Return how long kernels of collectives waited, with the columns of `WAITS_SCHEMA`."""
    came = Came.of(one.kernels)
    start, end = (times + one.clock_ns[:, None] for times in one.kernels[:2])
    last = np.where(came.last.any(0), one.ranks[came.last.argmax(0)], _NOBODY)
    columns = {
        "rank": one.ranks[:, None],
        "start_ns": start,
        "end_ns": end,
        "waits_ns": np.where(came.waits_ns > came.off_ns, came.waits_ns, 0),
        "awaited": last,
        "off_ns": came.off_ns,
    }
    every = {name: np.broadcast_to(each, start.shape).ravel() for name, each in columns.items()}
    frame = pl.DataFrame(every).cast(pl.Schema(WAITS_SCHEMA))
    return frame.with_columns(pl.col("awaited").replace(_NOBODY, None))


def _waiting(one: Met) -> pl.DataFrame:
    """Return who waited for whom in collectives, with the columns of `ARRIVAL_SCHEMA`."""
    start, end, exposed, _ = one.kernels
    order, off, waits, last = Came.of(one.kernels)
    length = end - start
    transfer = length - np.maximum(waits - off, 0)
    sums = {
        "collectives": np.ones_like(length),
        "last": last,
        "waits_ns": waits,
        "exposed_ns": exposed,
        "exposed_waits_ns": np.maximum(exposed - transfer, 0),
        "late_ns": np.maximum(start - order[(len(order) - 1) // 2] - off, 0),
    }
    columns = {name: each.sum(1) for name, each in sums.items()} | {"clock_ns": one.clock_ns}
    steps = [one.step] * len(one.ranks)
    return pl.DataFrame({"rank": one.ranks, "step": steps, **columns}, schema=ARRIVAL_SCHEMA)


class Late(NamedTuple):
    """A rank that comes late.

    Attributes:
        rank: The rank.
        last: In how many collectives it alone came last.
        collectives: In how many it took part.
        share: How much later it came than half of the ranks, as a share of the time.
    """

    rank: int
    last: int
    collectives: int
    share: float


_LEAST: Final = 0.01
"""Share of the time by which a rank has to be late to be spoken of."""
_STANDS_OUT: Final = 2.0
"""How many times as late as most a rank has to be."""


def late(arrivals: pl.DataFrame, time_ns: float) -> list[Late]:
    """Return the ranks that come to collectives much later than most, the latest first.

    Args:
        arrivals: Frame with rank, unique, and other columns of `ARRIVAL_SCHEMA`.
        time_ns: How long it was.
    """
    usual = arrivals["late_ns"].quantile(0.5, "lower") or 0
    share = pl.col("late_ns") / max(1, time_ns)
    found = arrivals.filter(share >= _LEAST, pl.col("late_ns") >= _STANDS_OUT * usual)
    rows = found.sort("late_ns", "rank", descending=[True, False])
    return [Late(*row) for row in rows.select("rank", "last", "collectives", share).iter_rows()]


def over_steps(arrivals: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return who waited for whom in some steps together, by rank.

    Args:
        arrivals: Frame with the columns of `ARRIVAL_SCHEMA`.
        steps: Frame with rank and step.

    Returns:
        Frame with its columns but step.
    """
    place = ["rank", "step"]
    held = arrivals.join(steps.select(place).unique(), on=place, how="semi", nulls_equal=True)
    return _summed(held.drop("step"), "rank")


def _summed(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    clock = pl.col("clock_ns").median().cast(pl.Int64)
    sums = rows.group_by(by).agg(pl.all().exclude("clock_ns").sum(), clock)
    return sums.select(name for name in ARRIVAL_SCHEMA if name in rows.columns).sort(by)
