"""Which collectives of different ranks are the same.

The k-th collective of a group on one rank is the k-th on all, in each step. As recordings begin and end
in the middle of others, ranks may be some apart: by how many tells when their kernels end. Where these
do not end together, or begin after the others have ended, what belongs together is not known, and
nothing is said. Where clocks differ, all ends are apart by as much, which tells by how much.
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

APART_NS: Final = 1_000_000
"""How far apart the ends of one collective on different ranks are at most: 49 us among the 84 of eight
ranks of one host, and 108 us among the 120 of four recordings whose clocks were fitted."""

_POSSIBLE: Final = 0.95
"""Share of a group's collectives in a step that must be of one kind, and begin on all ranks before they
end on any, or else none is matched."""
_SHOWS: Final = 8
"""How many collectives have to follow a first one to show how far clocks are apart."""
_COMMON: Final = 0.5
"""Share of a rank's collectives in a step that the others have too, at least."""
_SURER: Final = 4
"""How many times as close as were they taken for any others, those of recordings apart have to end."""
_NEARBY: Final = 64
"""By how many collectives recordings are looked at to begin or end apart, where clocks differ."""
_LOOKED_AT: Final = 4096
"""How many are looked at to tell which these are: of long recordings that would take minutes."""
_TOGETHER: Final = 0.75
"""Share that must end together: of an all-to-all with little for some ranks, these may end early."""
_CLOSER: Final = 10
"""How many times as close as they begin, those of a group without a name have to end."""
_ALL_END_TOGETHER: Final = ("allreduce", "allgather", "reducescatter", "alltoall")
"""Of others, some ranks may leave before all have come."""


class Kernels(NamedTuple):
    """The kernels of some collectives, by start; of several ranks, all of the same shape.

    Attributes:
        start_ns, end_ns, exposed_ns: As in `Timeline.operations`.
        sort: A number for what each does.
    """

    start_ns: Ints
    end_ns: Ints
    exposed_ns: Ints
    sort: Ints

    def of(self, rows: slice | Ints | Mask) -> Kernels:
        """Return some of them, the same of each rank."""
        return Kernels(*(column[..., rows] for column in self))


class Met(NamedTuple):
    """The collectives of a group in a step that are known to be the same on all its ranks.

    Attributes:
        step: The step; None if the trace has none.
        ranks: The m ranks, ascending.
        kernels: Theirs in k collectives, in order, on one clock: m x k.
        clock_ns: By how much each rank's clock is ahead of that one; m long. Zero where nothing shows
            clocks to differ.
    """

    step: int | None
    ranks: Ints
    kernels: Kernels
    clock_ns: Ints


@remembered
def met(timeline: Timeline) -> list[Met]:
    """Return the collectives of a run that can be matched, by group and step.

    None are where the traces do not hold all ranks of any group.
    """
    return matched(timeline)


def matched(timeline: Timeline, *, whole: bool = True) -> list[Met]:
    """Return what `met` does, or also those of groups some of whose ranks have no trace.

    Args:
        timeline: The run.
        whole: Whether all ranks of a group must have some.
    """
    common = timeline.run.common_clock
    groups = _groups(timeline, whole=whole)
    return [one for group in groups for one in _of_group(group, common=common)]


def ranks_of_groups(timeline: Timeline) -> Iterator[Ints]:
    """Yield the ranks of each group that took part in its collectives, matched or not."""
    for group in _groups(timeline, whole=False):
        yield group["rank"].unique().to_numpy()


def _groups(timeline: Timeline, *, whole: bool) -> Iterator[pl.DataFrame]:
    """Yield the collectives of each group whose ranks have some, by step, rank and start.

    Of a rank that drives several devices, it is not known which of them each is of.
    """
    found = timeline.operations.filter(pl.col("operation").is_in(_ALL_END_TOGETHER))
    known, sizes = _members(timeline.groups)
    # Of a group without a name all ranks may be; whether they are shows in when its kernels end.
    world, here = timeline.run.world, timeline.ranks.height
    sizes.append(here if world in (None, here) else 0)
    held = found.select("rank", "group").unique()
    of = [
        len(sizes) - 1 if name is None else known.get((rank, name), -1)
        for rank, name in held.iter_rows()
    ]
    rows = found.join(
        held.with_columns(of=pl.Series(of, dtype=pl.Int64)), on=["rank", "group"], nulls_equal=True
    )
    rows = rows.sort("step", "rank", "start_ns")
    for (number,), group in rows.filter(pl.col("of") >= 0).group_by("of", maintain_order=True):
        ranks, devices = group["rank"].n_unique(), group.select("rank", "device").n_unique()
        least = sizes[number] if whole else 2
        if 1 < least <= ranks == devices <= sizes[number]:
            yield group


def _members(groups: pl.DataFrame) -> tuple[dict[tuple[int, str], int], list[int]]:
    """Return which group a name stands for on a rank, -1 if it is several; and how large groups are."""
    known: dict[tuple[int, str], int] = {}
    sizes = []
    for number, (name, ranks) in enumerate(groups.select("name", "ranks").drop_nulls().iter_rows()):
        sizes.append(len(ranks))
        for rank in ranks:
            known[rank, name] = -1 if (rank, name) in known else number
    return known, sizes


def _of_group(group: pl.DataFrame, *, common: bool) -> Iterator[Met]:
    """Yield the collectives of a group that can be matched, by step.

    Args:
        group: Its rows of `Timeline.operations`, by step, rank and start.
        common: Whether its ranks share a clock, as far as is known.
    """
    sort = group["operation"].rank("dense").cast(pl.Int64)
    named = group["group"].null_count() == 0
    times = group.select("start_ns", "end_ns", "exposed_ns", sort)
    kernels = Kernels(*(column.to_numpy() for column in times))
    cells = group.group_by("step", "rank", maintain_order=True).agg(count=pl.len())
    until = np.cumsum(cells["count"].to_numpy())
    begin = until - cells["count"].to_numpy()
    ranks, size = cells["rank"].to_numpy(), group["rank"].n_unique()
    for rows in np.split(np.arange(len(cells)), _changes(cells["step"])):
        if len(rows) < size:
            continue
        own = [kernels.of(slice(*both)) for both in zip(begin[rows], until[rows], strict=True)]
        found = _matched(own, common=common)
        if found is not None and (named or _waits_show(found[0])):
            yield Met(cells["step"][int(rows[0])], ranks[rows], *found)


def _waits_show(kernels: Kernels) -> bool:
    """Say whether ranks wait for each other: however far apart they begin, they end together.

    Groups that do the same at about the same time begin and end about equally far apart.
    """
    clock = _clocks(list(kernels.end_ns))
    begun, ended = (np.ptp(times - clock[:, None], 0) for times in kernels[:2])
    return bool(np.median(ended) <= begun.mean() / _CLOSER)


def _changes(column: pl.Series) -> Ints:
    """Return where another value begins, of a column in which equal ones stand together."""
    return np.flatnonzero(np.diff(column.rle_id().to_numpy())) + 1


def _matched(of_ranks: list[Kernels], *, common: bool) -> tuple[Kernels, Ints] | None:
    """Return the collectives that some ranks took part in, and by how much their clocks are ahead.

    Args:
        of_ranks: Those of a step on each rank.
        common: As of `_of_group`.

    Returns:
        A row for each rank; None if it is not known which collectives are the same.
    """
    on_time = np.zeros(len(of_ranks), np.int64)
    if common and (found := _together(of_ranks)) is not None:  # as in most
        return found, on_time
    clock = _clocks([one.end_ns for one in of_ranks])
    choices = [(_together(of_ranks, clock), clock)]
    if common:
        choices.append((_together(_in_common(of_ranks)), on_time))
    known = [(kernels, clock) for kernels, clock in choices if kernels is not None]
    if not known and (shared := _shared_on_other_clocks(of_ranks)) is not None:
        clock = _clocks([one.end_ns for one in shared])
        if (found := _together(shared, clock)) is not None:
            known = [(found, clock)]
    return min(known, key=lambda one: np.median(np.ptp(one[0].end_ns, 0)), default=None)


def _in_common(of_ranks: list[Kernels]) -> list[Kernels]:
    """Return those that all ranks have, whose recordings begin and end apart; none if few."""
    most = max(of_ranks, key=lambda one: len(one.end_ns)).end_ns
    ahead = [_ahead(most, one.end_ns) for one in of_ranks]
    first = max(ahead)
    last = min(by + len(one.end_ns) for by, one in zip(ahead, of_ranks, strict=True))
    if last - first < _COMMON * min(len(one.end_ns) for one in of_ranks):
        last = first
    both = zip(ahead, of_ranks, strict=True)
    return [one.of(slice(first - by, last - by)) for by, one in both]


def _shared_on_other_clocks(of_ranks: list[Kernels]) -> list[Kernels] | None:
    """Return those that all ranks have, whose recordings begin and end apart, on clocks that differ.

    Returns:
        None where ends do not show which these are.
    """
    most = max(of_ranks, key=lambda one: len(one.end_ns))
    ahead = [0 if one is most else _ahead_on_other_clocks(most, one) for one in of_ranks]
    known = [by for by in ahead if by is not None]
    if len(known) < len(ahead):
        return None
    first = max(known)
    last = min(by + len(one.end_ns) for by, one in zip(known, of_ranks, strict=True))
    if last - first < _COMMON * min(len(one.end_ns) for one in of_ranks):
        return None
    return [one.of(slice(first - by, last - by)) for by, one in zip(known, of_ranks, strict=True)]


def _ahead_on_other_clocks(most: Kernels, own: Kernels) -> int | None:
    """Return what `_ahead` does, where clocks may differ; None if ends do not show it.

    As taken, collectives must be of one kind, and how far their ends are apart must vary by less than
    a quarter of what it does were the rank's taken for any others nearby.
    """
    spare = len(most.end_ns) - len(own.end_ns) + _NEARBY
    least = max(2 * _SHOWS, int(_COMMON * len(own.end_ns)))
    vary: dict[int, float] = {}
    for by in range(-_NEARBY, spare + 1):
        other, mine = (one.of(slice(max(at, 0), None)) for one, at in ((most, by), (own, -by)))
        both = min(len(other.end_ns), len(mine.end_ns))
        if both < least:
            continue
        some = slice(min(both, _LOOKED_AT))
        other, mine = other.of(some), mine.of(some)
        if (other.sort == mine.sort).mean() >= _POSSIBLE:
            apart = mine.end_ns - other.end_ns
            vary[by] = float(np.median(np.abs(apart - np.median(apart))))
    if not vary:
        return None
    best = min(vary, key=lambda by: vary[by])
    others = (spread for by, spread in vary.items() if by != best)
    return best if _SURER * vary[best] <= min(others, default=np.inf) else None


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


def _clocks(ends: list[Ints]) -> Ints:
    """Return by how much clocks are ahead of the first rank's, if ranks did equally many collectives.

    These end together, so the median of how far their ends are apart is how far clocks are. That it is
    the same collectives shows where the rest is little: they are not evenly spaced.

    Args:
        ends: When those of each rank end.
    """
    if len({len(one) for one in ends}) > 1:
        return np.zeros(len(ends), np.int64)
    return np.rint([np.median(one - ends[0]) for one in ends]).astype(np.int64)


def _together(of_ranks: list[Kernels], clock_ns: Ints | None = None) -> Kernels | None:
    """Return those of equally many kernels that are of the same collectives; None if most are not.

    Args:
        of_ranks: Those of each rank.
        clock_ns: By how much each rank's clock is ahead, if they differ: then there have to be enough
            collectives to show it.
    """
    counts = {len(one.end_ns) for one in of_ranks}
    if len(counts) > 1 or 0 in counts:
        return None
    met = Kernels(*(np.stack(column) for column in zip(*of_ranks, strict=True)))
    if clock_ns is not None:
        start, end = (times - clock_ns[:, None] for times in met[:2])
        met = met._replace(start_ns=start, end_ns=end)
    ended, begun = met.end_ns.min(0), met.start_ns.max(0)
    apart = met.end_ns.max(0) - ended
    usual = float(np.median(apart))
    spacing = np.diff(np.sort(ended))
    if len(spacing) and usual > np.median(spacing) / 2:
        return None  # as near to the next one
    if clock_ns is not None and (len(spacing) < _SHOWS or usual >= _uneven(spacing) / 2):
        return None  # as near to the next one, on other clocks
    possible = (met.sort == met.sort[0]).all(0) & (begun <= ended + usual)
    together = possible & (apart <= APART_NS)
    if possible.mean() < _POSSIBLE or together.mean() < _TOGETHER:
        return None
    return met.of(together)


def _uneven(spacing_ns: Ints) -> float:
    """Return how far ends would be apart, on other clocks, were each taken for the next one."""
    return float(np.median(np.abs(spacing_ns - np.median(spacing_ns))))
