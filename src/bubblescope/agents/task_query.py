"""Questions about single tasks: some of them, or sums of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bubblescope.model.errors import BubblescopeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bubblescope.model.timeline import Timeline

SCHEMA: Final = "bubblescope.tasks/1"
"""Name and version of the JSON, described in docs/agents.md."""

GROUPING: Final = ("rank", "step", "kind", "stage", "chunk", "microbatch", "lane", "peer", "name")
"""What tasks can be told apart by."""
SORTING: Final = {
    "tasks": ("start_ns", "length_ns", "busy_ns"),
    "groups": ("total_ns", "mean_ns", "median_ns", "max_ns", "count"),
}
"""What rows can be sorted by."""

_LENGTH: Final = pl.col("end_ns") - pl.col("start_ns")


def query(
    timeline: Timeline,
    where: Mapping[str, Sequence[Any]],
    *,
    group_by: Sequence[str] = (),
    sort_by: str | None = None,
    at_least_ns: int | None = None,
    rows: int = 20,
) -> dict[str, Any]:
    """Return tasks, or what groups of them took.

    Args:
        timeline: The run.
        where: Column of `GROUPING` -> values, of which each task is to have one.
        group_by: Columns of `GROUPING`; without any, single tasks are returned.
        sort_by: One of `SORTING`, the largest first, but for start_ns, the earliest first.
        at_least_ns: How long tasks are to be at least.
        rows: How many rows are returned.

    Raises:
        BubblescopeError: There is no such column.
    """
    _known("group_by", group_by, GROUPING)
    _known("where", where, GROUPING)
    sorting = SORTING["groups" if group_by else "tasks"]
    sort_by = sort_by or sorting[0]
    _known("sort_by", [sort_by], sorting)
    tasks = timeline.tasks.with_columns(length_ns=_LENGTH)
    for column, values in where.items():
        tasks = tasks.filter(pl.col(column).cast(pl.String).is_in([str(value) for value in values]))
    if at_least_ns is not None:
        tasks = tasks.filter(pl.col("length_ns") >= at_least_ns)
    found = _grouped(tasks, group_by) if group_by else tasks
    ordered = found.sort(sort_by, descending=sort_by != "start_ns", maintain_order=True)
    return {
        "schema": SCHEMA,
        "tasks": tasks.height,
        "rows": ordered.head(rows).to_dicts(),
        "of": ordered.height,
    }


def _grouped(tasks: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    return tasks.group_by(by, maintain_order=True).agg(
        count=pl.len(),
        total_ns=pl.col("length_ns").sum(),
        mean_ns=pl.col("length_ns").mean(),
        median_ns=pl.col("length_ns").median(),
        min_ns=pl.col("length_ns").min(),
        max_ns=pl.col("length_ns").max(),
    )


def _known(what: str, names: Iterable[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise BubblescopeError(f"{what}: {name!r} is none of {', '.join(known)}")
