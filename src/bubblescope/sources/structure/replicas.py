"""Stages of inferred passes where pipelines ran side by side: data and tensor parallel replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.sources.structure.stage_credibility import with_believable_stages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CERTAINTY: Final = 0.9
"""Factor of certainty of stages that rest on how the ranks may be parted into pipelines."""

_HOW: Final = "order in which micro-batch 0 passed through the ranks of each of {} pipelines"


def with_stages_of_replicas(
    tasks: pl.DataFrame, number_stages: Callable[[pl.DataFrame], tuple[pl.DataFrame, str | None]]
) -> tuple[pl.DataFrame, str | None]:
    """Part the ranks into pipelines in which every micro-batch passes through the ranks one by one.

    Launchers give neighbouring ranks to one pipeline, or each of so many ranks to another. The stages
    are believed if all of these ways that agree with when the passes ran give each rank the same.

    Args:
        tasks: Frame with the task columns, graph and received, without stages.
        number_stages: Numbers the stages of one pipeline; see
            `bubblescope.sources.numbering.number_stages`.

    Returns:
        The tasks, and how stages were found: None if no passes were inferred, no way is possible, or
        several that differ.
    """
    told = "graph" not in tasks.columns or tasks["stage"].is_not_null().any()
    if told or tasks["graph"].null_count() == tasks.height:
        return tasks, None
    fits = [
        (len(pipelines), numbered)
        for pipelines in _ways(tasks["rank"].unique().sort().to_list())
        if (numbered := _numbered(tasks, pipelines, number_stages)) is not None
    ]
    held = [
        numbered.drop_nulls("stage").select("rank", "chunk", "stage").unique().sort(pl.all()).rows()
        for _, numbered in fits
    ]
    if not fits or any(one != held[0] for one in held):
        return tasks, None
    count, found = fits[0]
    sure = (pl.col("certainty") * _CERTAINTY).cast(pl.Float32)
    return found.with_columns(certainty=sure), _HOW.format(count)


def _ways(ranks: list[int]) -> Iterator[list[list[int]]]:
    """Return the ways to part ranks into pipelines of one length."""
    for length in range(2, len(ranks) // 2 + 1):
        if len(ranks) % length == 0:
            count = len(ranks) // length
            yield [ranks[first::count] for first in range(count)]
            if count > 1:
                yield [ranks[first : first + length] for first in range(0, len(ranks), length)]


def _numbered(
    tasks: pl.DataFrame,
    pipelines: list[list[int]],
    number_stages: Callable[[pl.DataFrame], tuple[pl.DataFrame, str | None]],
) -> pl.DataFrame | None:
    """Return the tasks with stages; None if one of the pipelines cannot be one."""
    parts = []
    for ranks in pipelines:
        numbered, how = number_stages(tasks.filter(pl.col("rank").is_in(ranks)))
        if how is None:
            return None
        believed, why = with_believable_stages(numbered)
        if why is not None:
            return None
        parts.append(believed)
    return pl.concat(parts)
