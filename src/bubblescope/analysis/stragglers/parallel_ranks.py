"""What the ranks that hold the same stages are to each other."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.model.timeline import Timeline


class Beside(Enum):
    """What ranks of the same stages are to each other, one and many of them.

    Replicas are what they are where nothing says otherwise.
    """

    REPLICA = ("replica", "replicas")
    TENSOR = ("tensor-parallel rank", "tensor-parallel ranks")
    CONTEXT = ("context-parallel rank", "context-parallel ranks")
    EXPERT = ("expert-parallel rank", "expert-parallel ranks")
    SHARD = ("data-parallel rank", "data-parallel ranks")
    """Of sharded parameters."""
    SEVERAL = ("parallel rank", "parallel ranks")
    """Some replicas, and some tensor- or context-parallel ranks of each."""

    @property
    def noun(self) -> str:
        """What one of them is called."""
        return self.value[0]

    @property
    def nouns(self) -> str:
        """What several of them are called."""
        return self.value[1]

    @property
    def waits(self) -> bool:
        """Whether such ranks communicate in each pass."""
        return self is not Beside.REPLICA


_AXES: Final = {"dp": Beside.REPLICA, "tp": Beside.TENSOR, "cp": Beside.CONTEXT}
"""Coordinates by which ranks of a stage differ."""

_ROLES: Final = {
    "tp": Beside.TENSOR,
    "cp": Beside.CONTEXT,
    "sp": Beside.CONTEXT,
    "ep": Beside.EXPERT,
    "fsdp": Beside.SHARD,
}
"""Roles of groups that communicate in passes, the first that a run has naming its ranks."""


def beside(timeline: Timeline, ranks: Sequence[int]) -> Beside:
    """Return what some ranks of a timeline, which hold the same stages, are to each other.

    Their coordinates tell, or else what the groups are for that all of them are in.
    """
    known = timeline.ranks.filter(pl.col("rank").is_in(ranks))
    differ = [what for axis, what in _AXES.items() if known[axis].n_unique() > 1]
    if differ:
        return differ[0] if len(differ) == 1 else Beside.SEVERAL
    held = timeline.groups.filter(
        pl.lit(len(ranks) > 1),
        pl.col("ranks").list.set_intersection(pl.lit(list(ranks), pl.List(pl.Int32))).list.len()
        == len(set(ranks)),
    )
    roles = set(held["role"].drop_nulls())
    return next((what for role, what in _ROLES.items() if role in roles), Beside.REPLICA)
