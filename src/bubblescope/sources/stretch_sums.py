"""What a device's time was spent on, summed over the stretches that its tasks and steps cut it into.

There may be as many pieces of time as a device ran kernels. Most only count in sums, and are never
looked at one by one: how much lies before a moment is told by a running sum. Only those that have a row
or a name of their own are cut at the edges of stretches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.budget import IDLE, Pieces, Use, cut_at, spent_before
from bubblescope.model.device_time import NONE
from bubblescope.model.intervals import overlaps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bubblescope.model.arrays import Ints, Mask

LONG_NS: Final = 100_000
"""Idle time from which on a gap has a row of its own, and so can be pointed at."""

CODE: Final = {use: code for code, use in enumerate(Use)}
_IDLE: Final = np.array([use in IDLE for use in Use])


class Stretches(NamedTuple):
    """A device's time from first to last, cut where tasks and steps begin and end.

    Attributes:
        edges: n + 1 times, ascending.
        kind: For each stretch that of the task that it lies in, index into the members of `Kind`;
            `NONE` outside of all.
        summed: Whether its time is summed by use; in others every piece has a row of its own.
    """

    edges: Ints
    kind: Ints
    summed: Mask


class Parts(NamedTuple):
    """Disjoint pieces of a device's time, ascending, each with what it was spent on.

    Attributes:
        start_ns, end_ns: Their edges; none is empty.
        use: What each is spent on: index into the members of `Use`.
        detail: Number of what names it, or `NONE`.
        role: Number of the role of what communicates, or `NONE`.
        then: What the host did once a blocking call had returned, as `use`; `NONE` of all else.
    """

    start_ns: Ints
    end_ns: Ints
    use: Ints
    detail: Ints
    role: Ints
    then: Ints


class Bulk(NamedTuple):
    """Disjoint pieces of a device's time, ascending; when they are says what they were spent on.

    Attributes:
        start_ns, end_ns: Their edges; some may be empty. None lies across one of the moments.
        since_ns: Moments, ascending, the first before all pieces.
        use, detail: What the pieces from each moment to the next are spent on, as in `Parts`.
    """

    start_ns: Ints
    end_ns: Ints
    since_ns: Ints
    use: Ints
    detail: Ints

    @classmethod
    def of(cls, use: Use, start: Ints, end: Ints) -> Bulk:
        """Return pieces that are all spent on one use."""
        return cls(start, end, _EVER, np.array([CODE[use]]), _EVER_UNNAMED)


_EVER: Final = np.array([-(1 << 62)])
_EVER_UNNAMED: Final = np.array([NONE])


class _Rows(NamedTuple):
    """Rows of the table, or parts of sums."""

    stretch: Ints
    start_ns: Ints
    end_ns: Ints
    use: Ints
    detail: Ints
    role: Ints
    then: Ints
    spent_ns: Ints


_NOTHING: Final = _Rows(*(np.empty(0, np.int64) for _ in _Rows._fields))


def spent_in(stretches: Stretches, pieces: Iterable[Bulk | Parts]) -> pl.DataFrame:
    """Return what the time of stretches was spent on.

    Long gaps, and all pieces in stretches that are not summed, have rows of their own.

    Args:
        stretches: The stretches.
        pieces: What was spent on what; taken one by one, and not kept.

    Returns:
        Frame with inside (as in `Stretches.kind`), start_ns, end_ns, use, detail, role, then and
        spent_ns.
    """
    own, rest = [], []
    for some in pieces:
        found = _of_bulk(some, stretches) if isinstance(some, Bulk) else _of_parts(some, stretches)
        own.append(found[0])
        rest.append(found[1])
    table = pl.concat([_framed(own), _summed(_framed(rest), stretches)])
    inside = pl.Series(stretches.kind[table["stretch"].to_numpy()], dtype=pl.Int64)
    return table.drop("stretch").with_columns(inside=inside)


def _framed(rows: list[_Rows]) -> pl.DataFrame:
    columns = map(np.concatenate, zip(_NOTHING, *rows, strict=True))
    return pl.DataFrame(dict(zip(_Rows._fields, columns, strict=True)))


def _of_bulk(of: Bulk, stretches: Stretches) -> tuple[_Rows, _Rows]:
    """Return the rows of pieces that have some of their own, and the sums of all others."""
    if not len(of.start_ns):
        return _NOTHING, _NOTHING
    before, near = _around(of, stretches)
    first, last = near.edges[0], near.edges[-1]
    low, high = np.searchsorted(of.since_ns, [first, last])
    cuts = np.unique(np.concatenate([near.edges, of.since_ns[low:high]]))
    stretch = np.searchsorted(near.edges, cuts[:-1], side="right") - 1
    about = np.searchsorted(of.since_ns, cuts[:-1], side="right") - 1
    spent = np.diff(spent_before(of.start_ns, of.end_ns, cuts))
    rows = _candidates(of, near)
    pieces, cell = cut_at(of.start_ns[rows], of.end_ns[rows], cuts)
    own = np.flatnonzero(_own(of.use[about[cell]], pieces, stretch[cell], near))
    start, end, cell = pieces.start_ns[own], pieces.end_ns[own], cell[own]
    np.subtract.at(spent, cell, end - start)
    left = np.flatnonzero(spent)

    def at(cell: Ints, start: Ints, end: Ints, spent: Ints) -> _Rows:
        use, detail = of.use[about[cell]], of.detail[about[cell]]
        none = np.full(len(cell), NONE)
        return _Rows(before + stretch[cell], start, end, use, detail, none, none, spent)

    return at(cell, start, end, end - start), at(left, cuts[left], cuts[left + 1], spent[left])


def _around(of: Bulk, stretches: Stretches) -> tuple[int, Stretches]:
    """Return the stretches that pieces lie in, and how many are before them."""
    low = int(np.searchsorted(stretches.edges, of.start_ns[0], side="right")) - 1
    high = int(np.searchsorted(stretches.edges, of.end_ns[-1]))
    low = min(low, len(stretches.kind) - 1)  # where a last piece is empty
    high = max(high, low + 1)
    near = slice(low, high)
    edges = stretches.edges[low : high + 1]
    return low, Stretches(edges, stretches.kind[near], stretches.summed[near])


def _candidates(of: Bulk, stretches: Stretches) -> Ints:
    """Return the pieces that may have rows of their own: those not in sums, and long ones."""
    apart = np.flatnonzero(~stretches.summed)
    low = np.searchsorted(of.end_ns, stretches.edges[apart], side="right")
    high = np.searchsorted(of.start_ns, stretches.edges[apart + 1], side="left")
    _, rows = overlaps(low, high)
    if _IDLE[of.use].any():
        rows = np.append(rows, np.flatnonzero(of.end_ns - of.start_ns >= LONG_NS))
    rows = np.unique(rows)
    return rows[of.start_ns[rows] < of.end_ns[rows]]


def _own(use: Ints, pieces: Pieces, stretch: Ints, stretches: Stretches) -> Mask:
    """Say which pieces have a row of their own: those in stretches without sums, and long gaps."""
    own: Mask = ~stretches.summed[stretch]
    own |= _IDLE[use] & (pieces.end_ns - pieces.start_ns >= LONG_NS)
    return own


def _of_parts(of: Parts, stretches: Stretches) -> tuple[_Rows, _Rows]:
    """Return the rows of pieces that have some of their own, and what the others add to sums."""
    pieces, stretch = cut_at(of.start_ns, of.end_ns, stretches.edges)
    start, end, piece = pieces
    use, detail, role, then = (column[piece] for column in of[2:])
    rows = _Rows(stretch, start, end, use, detail, role, then, end - start)
    own = _own(rows.use, pieces, stretch, stretches)
    alone, summed = (_Rows(*(column[kept] for column in rows)) for kept in (own, ~own))
    return alone, summed


_BY: Final = ("stretch", "use", "detail", "role", "then")


def _summed(parts: pl.DataFrame, stretches: Stretches) -> pl.DataFrame:
    """Sum spent_ns by stretch, use, detail, role and then.

    They are numbers that fit into one, and grouping by one is several times as fast.
    """
    sizes = {name: int(parts[name].max() or 0) + 2 for name in _BY}  # type: ignore[arg-type]
    key: pl.Expr = pl.lit(0, pl.Int64)
    for name in _BY:
        key = key * sizes[name] + (pl.col(name) - NONE)
    sums = parts.group_by(key.alias("key")).agg(pl.col("spent_ns").sum()).sort("key")
    for name in reversed(_BY):
        value = (pl.col("key") % sizes[name] + NONE).alias(name)
        sums = sums.with_columns(value, key=pl.col("key") // sizes[name])
    stretch, edges = sums["stretch"].to_numpy(), stretches.edges
    return sums.with_columns(
        start_ns=pl.Series(edges[stretch]), end_ns=pl.Series(edges[stretch + 1])
    ).select(parts.columns)
