"""The columns of vendors' exports, by name: what type each is of, and between what its numbers lie.

Every reader of tables, in SQLite or in Parquet, holds what it reads to this, here and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model.bounds import DEVICES, RANKS, TIMES_NS
from bubblescope.model.column_types import UnfitError, typed

if TYPE_CHECKING:
    from collections.abc import Collection

TEXT: Final = frozenset({"text", "name", "value", "hostName", "hostUid", "jsonText"})
"""Columns that hold text wherever they occur in most vendors' tables."""
_NUMBERS: Final = {"GPU_METRICS": {"value"}}
"""Tables of Nsight's of which such columns hold numbers."""
BINARY: Final = frozenset({"binaryData"})
"""Columns that hold bytes; all that hold neither text nor bytes hold integers of 64 bits."""

_DEVICE: Final = (0, DEVICES - 1)
_RANK: Final = (-1, RANKS - 1)  # -1 and beyond 32 bits: none
_CLOCK: Final = (-TIMES_NS, TIMES_NS)
_BETWEEN: Final = {
    "deviceId": _DEVICE,
    "rankId": _RANK,
    "utcEpochNs": _CLOCK,
    "systemClockNs": _CLOCK,
}
"""Between what numbers lie that tables are made by, or that everything is shifted by. Times of events
may be anything: those that cannot be are dropped and counted."""


def texts_of(table: str) -> frozenset[str]:
    """Return the columns of one of Nsight's tables that hold text, those that it has of `TEXT`."""
    return TEXT - _NUMBERS.get(table, set())


def nothing(column: str, text: Collection[str] = TEXT) -> pl.Series:
    """Return a column without rows, of the type that columns of its name have."""
    return pl.Series(column, [], _type(column, text))


def fitting(column: pl.Series, text: Collection[str] = TEXT) -> pl.Series:
    """Return a column as the type that columns of its name have.

    Args:
        column: As it was read.
        text: Columns that hold text.

    Raises:
        UnfitError: It is of another type, or a number lies where none can.
    """
    found = typed(column, _type(column.name, text))
    if column.name in _BETWEEN and len(found):
        low, high = _BETWEEN[column.name]
        odd = (~found.is_between(low, high)).fill_null(value=False)
        if odd.any():
            row = int(odd.arg_true()[0])
            raise UnfitError(f"{column.name} is {found[row]}, where {low} to {high} may be", row)
    return found


def _type(column: str, text: Collection[str]) -> type[pl.DataType]:
    return pl.Binary if column in BINARY else pl.String if column in text else pl.Int64


def referred_to(table: pl.DataFrame, key: str = "id") -> pl.DataFrame:
    """Return rows that others refer to by a key: one for each.

    A damaged table may have rows without one, or two with the same, which would double what refers to
    it; the first is kept.
    """
    if table[key].null_count() or table[key].n_unique() < table.height:
        return table.drop_nulls(key).unique(key, keep="first", maintain_order=True)
    return table
