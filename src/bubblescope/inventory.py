"""Taking stock of what raw traces hold, before anything is made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from bubblescope.timeline import NameShape

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.vocabulary import ParsedName

__all__ = ["name_shapes"]


def name_shapes(
    names: pl.DataFrame, parse: Callable[[str], list[ParsedName]]
) -> tuple[NameShape, ...]:
    """Group range names that differ in their numbers only, most frequent first.

    Args:
        names: Frame with the distinct names and the `count` of each.
        parse: Says what a name is taken for.
    """
    shapes = (
        names.with_columns(shape=pl.col("name").str.replace_all(r"\d+", "#"))
        .sort("name")
        .group_by("shape", maintain_order=True)
        .agg(example=pl.col("name").first(), count=pl.col("count").sum())
        .sort("count", "shape", descending=[True, False])
    )
    return tuple(
        NameShape(shape, example, count, _kind(parse(example)))
        for shape, example, count in shapes.iter_rows()
    )


def _kind(parsed: list[ParsedName]) -> str | None:
    if not parsed:
        return None
    return ", ".join(said.kind.value if said.kind else "step marker" for said in parsed)
