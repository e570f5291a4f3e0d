"""Communication groups of a job whose ranks say where they stand: a grid with an axis for each role."""

from __future__ import annotations

from math import prod
from typing import Final

import polars as pl

from bubblescope.model.groups import Group, tabled

_AXES: Final = {"tp": "tp", "cp": "cp", "dp": "dp", "stages": "pp"}
"""Columns of the ranks' table, and the roles of the groups along them."""


def groups_of_grid(ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the groups along each axis of a grid of ranks, with the columns of `GROUP_SCHEMA`.

    None are returned unless the grid is whole: its ranks are 0, 1, 2, ... without a gap, each at a
    place of its own, and every place is taken. Else ranks are missing, and groups with them.

    Args:
        ranks: Frame with the columns of `RANK_SCHEMA`.
    """
    nothing = tabled([])
    numbers = ranks["rank"].sort().to_list()
    axes = [axis for axis in _AXES if ranks[axis].null_count() == 0]
    if not axes or not numbers or numbers != list(range(len(numbers))):
        return nothing
    places = ranks.sort("rank").select(
        "rank", *(axis for axis in axes if axis != "stages"), *_joined_stages(axes)
    )
    sizes = [places[axis].n_unique() for axis in axes]
    if places.select(axes).n_unique() != places.height or prod(sizes) != places.height:
        return nothing
    found = []
    for axis, size in zip(axes, sizes, strict=True):
        others = [other for other in axes if other != axis]
        along = places.sort(axis, "rank")
        lines = along.group_by(others, maintain_order=True) if others else [((), along)]
        found += [
            Group(
                ranks=tuple(line["rank"].to_list()), size=size, role=_AXES[axis], how="coordinates"
            )
            for _, line in lines
            if size > 1
        ]
    return tabled(sorted(found, key=lambda group: (group.role or "", group.ranks or ())))


def _joined_stages(axes: list[str]) -> list[pl.Expr]:
    """Return a rank's stages as one value, so that they are compared and sorted by the first."""
    if "stages" not in axes:
        return []
    return [pl.col("stages").list.eval(pl.element().cast(pl.String).str.zfill(10)).list.join(" ")]
