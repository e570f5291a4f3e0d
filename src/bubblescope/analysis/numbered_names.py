"""Names of what hosts do that differ in their numbers only, such as those of iterations, as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model.budget import HOST, Use

if TYPE_CHECKING:
    from collections.abc import Sequence

NUMBERS: Final = r"(^|[^A-Za-z0-9(])\d+(?:[_.:/\- ]\d+)*($|[^A-Za-z0-9])"
"""Numbers that stand by themselves: not those of `conv2d`, nor a line's of a file, `(12)`."""
_NAMED: Final = [use.value for use in HOST if use is not Use.HOST_CALL]
"""Classes of time that are named by what a job calls its ranges; not by a library's functions."""


def summed_up(details: pl.DataFrame, *by: str, counted: bool = True) -> pl.DataFrame:
    """Give details of which several differ in their numbers only one name.

    Args:
        details: Frame with use, detail and the columns of `by`.
        by: What tells details apart besides.
        counted: Whether the name says how many there are: `iter_* × 12`.
    """
    shape = pl.when(pl.col("use").is_in(_NAMED)).then(
        pl.col("detail").str.replace_all(NUMBERS, "${1}*${2}")
    )
    alike: Sequence[str] = ("use", "shape", *by)
    names = pl.col("detail").n_unique().over(alike)
    name = pl.format("{} × {}", "shape", names) if counted else pl.col("shape")
    shaped = details.with_columns(shape=shape)
    several = pl.col("shape").is_not_null() & (names > 1)
    return shaped.with_columns(detail=pl.when(several).then(name).otherwise("detail")).drop("shape")
