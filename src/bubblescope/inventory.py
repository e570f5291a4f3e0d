"""Taking stock of what raw traces hold, before anything is made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from bubblescope.timeline import NameShape

if TYPE_CHECKING:
    from bubblescope.vocabulary import NameParser

__all__ = ["name_shapes"]


def name_shapes(names: pl.DataFrame, parser: NameParser) -> tuple[NameShape, ...]:
    """Group range names that differ in their numbers only, most frequent first.

    Args:
        names: Frame with the distinct names and the `count` of each.
        parser: What says which kind of task a name is taken for.
    """
    shapes = (
        names.with_columns(shape=pl.col("name").str.replace_all(r"\d+", "#"))
        .sort("name")
        .group_by("shape", maintain_order=True)
        .agg(example=pl.col("name").first(), count=pl.col("count").sum())
        .sort("count", "shape", descending=[True, False])
    )
    return tuple(
        NameShape(shape, example, count, _kind(parser, example))
        for shape, example, count in shapes.iter_rows()
    )


def _kind(parser: NameParser, example: str) -> str | None:
    parsed = parser.parse(example)
    if not parsed:
        return None
    return ", ".join(said.kind.value if said.kind else "step marker" for said in parsed)
