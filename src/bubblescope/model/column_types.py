"""Columns that others wrote as the types that they should be, exactly, or one sentence why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model.errors import quoted, reason

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

_TEXTS: Final = (pl.String, pl.Categorical, pl.Enum)
_UNCAST: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException)


class UnfitError(ValueError):
    """A column holds what is not of its type.

    Attributes:
        problem: What is wrong, beginning with the column's name.
        row: The first row that it is wrong in; None if all of the column is.
    """

    def __init__(self, problem: str, row: int | None = None) -> None:
        super().__init__(f"column {problem}" if row is None else f"row {row}: {problem}")
        self.problem = problem
        self.row = row


def typed(column: pl.Series, dtype: PolarsDataType) -> pl.Series:
    """Return a column as a type, every value of it unchanged.

    Whole numbers may come in any width, as decimals or as floats without a fraction, which is how
    tables with nulls are often written; texts in any encoding.

    Raises:
        UnfitError: A value is none of that type.
    """
    if column.dtype == dtype:
        return column
    must = f"{column.name} must be {named(dtype)}"
    if not _akin(column.dtype, dtype):
        raise UnfitError(f"{must}, not {named(column.dtype)}")
    try:
        found = column.cast(dtype, strict=False)
        if column.dtype.is_float() and not found.dtype.is_float():
            kept = (found.cast(column.dtype) == column).fill_null(value=False)
            found = found.zip_with(kept, pl.Series([None], dtype=found.dtype))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise UnfitError(f"{must}: {reason(error)}") from None
    lost = found.is_null() & column.is_not_null()
    if lost.any():
        row = int(lost.arg_true()[0])
        raise UnfitError(f"{must}, not {quoted(repr(column[row]))}", row)
    if isinstance(found.dtype, pl.List) and _inner_nulls(found) > _inner_nulls(column):
        raise UnfitError(f"{must}, and a list in it holds something else")
    return found


def named(dtype: PolarsDataType) -> str:
    """Return what a type is called in a message."""
    if isinstance(dtype, pl.Enum):
        return quoted(f"one of {', '.join(dtype.categories)}")
    return quoted(str(dtype))


def _akin(given: PolarsDataType, wanted: PolarsDataType) -> bool:
    """Say whether values of one type can be values of another at all."""
    if given == pl.Null:
        return True
    if wanted == pl.List:
        return given == pl.List
    if wanted in _TEXTS:
        return given in (*_TEXTS, pl.Binary) if wanted == pl.String else given in _TEXTS
    if wanted == pl.Binary:
        return given in (pl.Binary, pl.String)
    return given.is_numeric() or given == pl.String


def _inner_nulls(lists: pl.Series) -> int:
    return lists.explode().null_count()
