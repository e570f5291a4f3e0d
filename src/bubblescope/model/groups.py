"""Communication groups: sets of ranks that carry out collectives, or send to each other, together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable

GROUP_SCHEMA: Final[dict[str, pl.DataType]] = {
    "name": pl.String(),
    "ranks": pl.List(pl.Int32()),
    "size": pl.Int32(),
    "role": pl.String(),
    "how": pl.String(),
    "description": pl.String(),
    "backend": pl.String(),
}
"""Columns of a table of groups, in order; null is unknown.

name: What the job's library calls it: a number or a hash. Several groups may have the same ranks, and
    groups of different ranks the same name.
ranks: Global ranks, in the group's own order: its k-th rank is the k-th of them.
size: Number of ranks.
role: What it is for, in the vocabulary of `bubblescope.names.group_roles`.
how: Where the role, or else the group, is known from: one of `HOW`.
description: The framework's own words for it.
backend: The library, or libraries by kind of device, as "cuda:nccl".
"""

HOW: Final = (
    *(
        "framework",
        "mesh",
        "description",
        "use",
        "parallel_group_info",
        "annotation",
        "communicator",
    ),
    *("inferred from operations", "coordinates"),
)
"""Where a group's role may be known from, the surest first. Others come after these. A mesh names its
dimensions; of use is what a pipeline's stage or a wrapper for replicas and shards is given. An
annotation is what the host says around the calls that launch the group's operations."""

_KEY: Final = ("name", "ranks", "size")


class Group(msgspec.Struct, frozen=True):
    """One row of such a table; see `GROUP_SCHEMA`."""

    name: str | None = None
    ranks: tuple[int, ...] | None = None
    size: int | None = None
    role: str | None = None
    how: str | None = None
    description: str | None = None
    backend: str | None = None


def tabled(groups: Iterable[Group]) -> pl.DataFrame:
    """Return groups as a frame with the columns of `GROUP_SCHEMA`."""
    rows = list(groups)
    return pl.DataFrame(
        {column: [getattr(group, column) for group in rows] for column in GROUP_SCHEMA},
        schema=GROUP_SCHEMA,
    )


def merged(groups: pl.DataFrame) -> pl.DataFrame:
    """Make one row of what several ranks say about the same group.

    The same are those of equal ranks and name. Where ranks are unknown, one row stands for all groups
    of that name and size that nobody gives the ranks of.

    Args:
        groups: Frame with the columns of `GROUP_SCHEMA`, in any order of rows.

    Returns:
        Such a frame, the largest groups first, then by ranks and name. The role is the one that is
        surest, and null where equally sure ones contradict each other.
    """
    trust = pl.col("how").replace_strict(
        HOW, range(len(HOW)), default=len(HOW), return_dtype=pl.Int32
    )
    size = pl.coalesce(pl.col("ranks").list.len(), "size").cast(pl.Int32)
    # A row without a role says less than any with one.
    ordered = groups.select(*GROUP_SCHEMA).with_columns(
        size=size, trust=pl.when(pl.col("role").is_null()).then(len(HOW) + 1).otherwise(trust)
    )
    ordered = ordered.sort(
        "trust", "role", "how", "description", "backend", nulls_last=True, maintain_order=True
    )
    roles = pl.col("role").filter(pl.col("trust") == pl.col("trust").min())
    one = roles.n_unique() == 1
    return (
        ordered.group_by(_KEY, maintain_order=True)
        .agg(
            role=pl.when(one).then(roles.first()),
            how=pl.col("how").first(),
            description=pl.col("description").drop_nulls().first(),
            backend=pl.col("backend").drop_nulls().first(),
        )
        .with_columns(
            first=pl.col("ranks").list.first(),
            text=pl.col("ranks").cast(pl.List(pl.String)).list.join(","),
            digits=pl.col("name").str.len_chars(),
        )
        .sort(
            "size",
            "first",
            "text",
            "digits",
            "name",
            descending=[True, False, False, False, False],
            nulls_last=True,
        )
        .select(*GROUP_SCHEMA)
        .cast(dict(GROUP_SCHEMA))  # type: ignore[arg-type]  # names, which the stubs leave out
    )
