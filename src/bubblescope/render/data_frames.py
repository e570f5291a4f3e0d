"""Tables as pandas has them.

Polars' own `to_pandas` makes floats of whole numbers where one is missing, and a time in nanoseconds
has more digits than a float. Here no whole number ever is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from bubblescope.model.errors import BubblescopeError

if TYPE_CHECKING:
    from collections.abc import Collection

    import pandas as pd

_KINDS = (pl.Enum, pl.Categorical, pl.String)


def to_pandas(frame: pl.DataFrame, never_missing: Collection[str] = ()) -> pd.DataFrame:
    """Return a frame as pandas'. A column's type does not depend on what happens to be in it.

    Args:
        frame: The frame.
        never_missing: Columns that never lack a value. Their whole numbers are NumPy's, such as int64;
            those of others are pandas' own, such as Int64, where what is missing is `pandas.NA`.

    Returns:
        A column for each: texts and words from a list (`Enum`, `Categorical`) are of the type `string`,
        and lists are Python's. Only what is a fraction is a float, with NaN for what is missing.

    Raises:
        BubblescopeError: pandas is not installed.
    """
    try:
        import pandas as pd  # noqa: PLC0415  an extra, and slow
    except ImportError:
        raise BubblescopeError(
            "pandas is not installed: pip install 'bubblescope[notebook]'"
        ) from None
    columns = {
        column.name: _column(pd, column, always=column.name in never_missing) for column in frame
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(frame.height), copy=False)


def _column(pandas: Any, column: pl.Series, *, always: bool) -> Any:
    dtype = column.dtype
    if dtype in _KINDS:
        return pandas.array(_texts(column), dtype="string")
    if dtype.is_nested():
        values = np.empty(len(column), dtype=object)
        values[:] = column.to_list()
        return values
    if always or not (dtype.is_integer() or dtype == pl.Boolean):
        return _own(column)
    whole = dtype.is_integer()
    array = pandas.arrays.IntegerArray if whole else pandas.arrays.BooleanArray
    filled = column.fill_null(0 if whole else False)
    return array(_own(filled), _own(column.is_null()))


def _own(column: pl.Series) -> Any:
    """Return values that can be written to without a change to the column."""
    # Of a column with an empty chunk, what Polars gives as writable is the column itself.
    return np.array(column.to_numpy())


def _texts(column: pl.Series) -> Any:
    """Return the texts of a column, of which equal ones are one object; None where there is none."""
    words = column.dtype
    if not isinstance(words, pl.Enum):
        texts = column.cast(pl.String)
        words = pl.Enum(texts.drop_nulls().unique())
        column = texts.cast(words)
    known: Any = np.asarray([*words.categories, None], dtype="O")
    return known[column.to_physical().cast(pl.Int64).fill_null(len(known) - 1).to_numpy()]
