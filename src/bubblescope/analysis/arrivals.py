"""Which ranks come last in collectives, and how long the others wait for them.

The kernel of a collective runs from when its rank gets there until all ranks have come and the data
has moved, so it ends on all of them at about the same time. Its time up to the last rank's start is
waiting, min(length, last start - own start); the rest is the transfer.

The k-th collective of a group on one rank is the k-th on all, in each step. As recordings begin and end
in the middle of others, ranks may be some apart: by how many tells when their kernels end. Where these
do not end together, or begin after the others have ended, what belongs together is not known, and
nothing is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.cached_results import remembered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.model.timeline import Timeline

ARRIVAL_SCHEMA: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "step": pl.Int32(),
    "collectives": pl.UInt32(),
    "last": pl.UInt32(),
    "waits_ns": pl.Int64(),
    "exposed_ns": pl.Int64(),
    "exposed_waits_ns": pl.Int64(),
    "alone_ns": pl.Int64(),
}
"""Columns of what is known of each rank in each step, of the collectives that could be matched.

collectives: How many it took part in.
last: In how many of them it came last, by more than clocks may be off, and as the only one.
waits_ns: How long its kernels waited for ranks that came later.
exposed_ns: How long its kernels ran while nothing computed on its device.
exposed_waits_ns: How long they waited meanwhile, at least: all but what the transfers take, and clocks
    may be off.
alone_ns: How long the others waited for it alone there, at least, when all of them had come.

Clocks may be off by as much as the ends of a collective are apart, and those of most.
"""

APART_NS: Final = 1_000_000
"""How far apart the ends of one collective on different ranks are at most: 49 us among the 84 of eight
ranks of one host, and 108 us among the 120 of four recordings whose clocks were fitted."""

_MATCHED: Final = 0.95
"""Share of a group's collectives in a step that are most of them: that many must end together, or else
none is matched."""

_ALL_END_TOGETHER: Final = ("allreduce", "allgather", "reducescatter", "alltoall")
"""Of others, some ranks may leave before all have come."""


@remembered
def arrivals(timeline: Timeline) -> pl.DataFrame:
    """Return who waited for whom in the collectives of a run.

    Returns:
        Frame with the columns of `ARRIVAL_SCHEMA`, by rank and step. Empty where the traces do not hold
        all ranks of any group, or the ranks share no clock.
    """
    found = [pl.DataFrame(schema=ARRIVAL_SCHEMA)]
    if timeline.ranks.height > 1 and timeline.run.common_clock:
        found += map(_of_group, _groups(timeline))
    sums = pl.concat(found).group_by("rank", "step").agg(pl.all().sum())
    return sums.select(*ARRIVAL_SCHEMA).sort("rank", "step")


def _groups(timeline: Timeline) -> Iterator[pl.DataFrame]:
    """Yield the collectives of each group all of whose ranks have some, by step, rank and start."""
    found = timeline.operations.filter(pl.col("operation").is_in(_ALL_END_TOGETHER))
    ranks, world = tuple(timeline.ranks["rank"]), timeline.run.world
    everyone = ranks if world in (None, len(ranks)) else ()
    members = _members(timeline.groups)
    held = found.select("rank", "group").unique()
    # Of a group without a name all ranks may be; whether they are shows in when its kernels end.
    own = [
        everyone if name is None else members.get((rank, name), ())
        for rank, name in held.iter_rows()
    ]
    held = held.with_columns(members=pl.Series(own, dtype=pl.List(pl.Int32)))
    rows = found.join(held, on=["rank", "group"], nulls_equal=True)
    rows = rows.sort("step", "rank", "start_ns")
    for (of, _), group in rows.group_by("members", "group", maintain_order=True):
        if 1 < len(of) == group["rank"].n_unique():
            yield group


def _members(groups: pl.DataFrame) -> dict[tuple[int, str], tuple[int, ...]]:
    """Return the ranks of the group that a name stands for on a rank; none if it is of several."""
    known: dict[tuple[int, str], tuple[int, ...]] = {}
    for name, ranks in groups.select("name", "ranks").drop_nulls().iter_rows():
        for rank in ranks:
            known[rank, name] = () if (rank, name) in known else tuple(sorted(ranks))
    return known


class _Kernels(NamedTuple):
    """The kernels of some collectives, by start; of several ranks, all of the same shape.

    Attributes:
        start_ns, end_ns, exposed_ns: As in `Timeline.operations`.
        sort: A number for what each does.
    """

    start_ns: Ints
    end_ns: Ints
    exposed_ns: Ints
    sort: Ints

    def of(self, rows: slice | Ints | Mask) -> _Kernels:
        """Return some of them, the same of each rank."""
        return _Kernels(*(column[..., rows] for column in self))


def _of_group(group: pl.DataFrame) -> pl.DataFrame:
    """Return what is known of the ranks of a group, with the columns of `ARRIVAL_SCHEMA`.

    Args:
        group: Its rows of `Timeline.operations`, by step, rank and start.
    """
    sort = group["operation"].rank("dense").cast(pl.Int64)
    times = group.select("start_ns", "end_ns", "exposed_ns", sort)
    kernels = _Kernels(*(column.to_numpy() for column in times))
    cells = group.group_by("rank", "step", maintain_order=True).agg(count=pl.len())
    until = np.cumsum(cells["count"].to_numpy())
    size, told, found = group["rank"].n_unique(), [], []
    for rows in np.split(np.arange(len(cells)), _changes(cells["step"])):
        if len(rows) < size:
            continue
        begin = until[rows] - cells["count"].to_numpy()[rows]
        met = _matched([kernels.of(slice(*both)) for both in zip(begin, until[rows], strict=True)])
        if met is not None:
            told.append(rows)
            found.append(_waiting(met))
    if not found:
        return pl.DataFrame(schema=ARRIVAL_SCHEMA)
    ranks = cells.select("rank", "step")[np.concatenate(told)]
    sums = pl.DataFrame(np.vstack(found), schema=list(ARRIVAL_SCHEMA)[ranks.width :])
    return pl.concat([ranks, sums], how="horizontal").cast(dict(ARRIVAL_SCHEMA))  # type: ignore[arg-type]


def _changes(column: pl.Series) -> Ints:
    """Return where another value begins, of a column in which equal ones stand together."""
    return np.flatnonzero(np.diff(column.rle_id().to_numpy())) + 1


def _matched(of_ranks: list[_Kernels]) -> _Kernels | None:
    """Return the collectives that some ranks took part in: a row for each; None if it is not known.

    Args:
        of_ranks: Those of a step on each rank.
    """
    if len({len(one.end_ns) for one in of_ranks}) == 1:  # as in most
        met = _together(of_ranks)
        if met is not None:
            return met
    most = max(of_ranks, key=lambda one: len(one.end_ns)).end_ns
    ahead = [_ahead(most, one.end_ns) for one in of_ranks]
    first = max(ahead)
    last = min(by + len(one.end_ns) for by, one in zip(ahead, of_ranks, strict=True))
    if last <= first:
        return None
    both = zip(ahead, of_ranks, strict=True)
    return _together([one.of(slice(first - by, last - by)) for by, one in both])


def _ahead(most: Ints, ends: Ints) -> int:
    """Return by how many collectives one rank's first comes after another's, as far as ends tell.

    Args:
        most: When those of the other end.
        ends: When its own do.
    """
    later = int(np.searchsorted(most, ends[0]))
    earlier = -int(np.searchsorted(ends, most[0]))
    choices = {later - 1, later, earlier, earlier + 1}

    def apart(by: int) -> float:
        other, own = most[max(by, 0) :], ends[max(-by, 0) :]
        both = min(len(other), len(own))
        return float(np.median(np.abs(other[:both] - own[:both]))) if both else np.inf

    return min(sorted(choices, key=abs), key=apart)


def _together(of_ranks: list[_Kernels]) -> _Kernels | None:
    """Return those of equally many kernels that are of the same collectives; None if most are not."""
    met = _Kernels(*(np.stack(column) for column in zip(*of_ranks, strict=True)))
    ended, begun = met.end_ns.min(0), met.start_ns.max(0)
    apart = met.end_ns.max(0) - ended
    usual = float(np.median(apart))
    spacing = np.diff(np.sort(ended))
    if len(spacing) and usual > np.median(spacing) / 2:
        return None  # as near to the next one
    alike = (met.sort == met.sort[0]).all(0)
    together = alike & (apart <= APART_NS) & (begun <= ended + usual)
    return met.of(together) if together.mean() >= _MATCHED else None


def _waiting(met: _Kernels) -> Ints:
    """Return who waited for whom in collectives: a row for each rank, as `ARRIVAL_SCHEMA` has it.

    Args:
        met: Those of a step; a row for each rank.
    """
    length = met.end_ns - met.start_ns
    apart = met.end_ns.max(0) - met.end_ns.min(0)
    off = np.maximum(apart, np.quantile(apart, _MATCHED, method="higher"))
    order = np.sort(met.start_ns, axis=0)
    waits = np.minimum(length, order[-1] - met.start_ns)
    transfer = length - np.maximum(waits - off, 0)
    lead = np.maximum(order[-1] - order[-2] - off, 0)
    alone = np.where(met.start_ns == order[-1], lead, 0)
    sums = (
        np.ones_like(length),
        alone > 0,
        waits,
        met.exposed_ns,
        np.maximum(met.exposed_ns - transfer, 0),
        alone,
    )
    return np.stack([each.sum(1) for each in sums], axis=1)
