"""What a job did in a trace without a backward, such as an inference: by its ranges or modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.model.device_time import innermost
from bubblescope.sources.nesting import outermost
from bubblescope.sources.phase_evidence import MODULE
from bubblescope.sources.step_marks import REPEATED

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.model.arrays import Ints
    from bubblescope.sources.phase_evidence import Traced
    from bubblescope.sources.step_marks import Steps

_LIBRARIES: Final = (
    r"^(?:(?:nccl|gloo|mpi|ucc|c10d):|(?:p?nccl|MPI_|PMPI_|rccl|cublas|cudnn|cusparse|cusolver|cufft)[A-Z]"
    r"|FSDP::)"
)
"""Ranges of calls of libraries, of communication above all, which say nothing of what the job did."""
_MOST: Final = 0.5
"""Share of the launches above which ranges are believed to be the job's regions."""


def regions(
    trace: Traced, steps: Steps, launched: Ints, main: int, known: Collection[str]
) -> pl.DataFrame:
    """Return the job's outermost ranges, or else its outermost modules, or else its steps.

    That is the first of these in which most launches were made, or else the one with the most.

    Args:
        trace: The trace.
        steps: Its steps.
        launched: When its main thread launched device work, ascending.
        main: That thread.
        known: Names of ranges that are no regions.

    Returns:
        Frame with start_ns, end_ns and name, without overlaps; something was launched in each.
    """
    annotated = trace.capture.ranges.drop_nulls("end_ns").filter(
        ~pl.col("name").str.contains(_LIBRARIES) & ~pl.col("name").is_in(list(known))
    )
    modules = trace.frames.filter(pl.col("name").str.starts_with(MODULE))
    marked = steps.ranges if steps.marked and not steps.guessed else steps.ranges.clear()
    tried = []
    for spans in (annotated, modules, marked):
        mine = spans.filter(pl.col("thread") == main).select("thread", "start_ns", "end_ns", "name")
        found, share = _segments(mine, launched)
        tried.append((share, found))
        if share >= _MOST:
            break
    return max(tried, key=lambda one: one[0])[1]


def _steps(spans: pl.DataFrame) -> int:
    """Return how many spans are named as steps."""
    return int(spans["name"].str.contains(REPEATED).sum())


def _segments(spans: pl.DataFrame, launched: Ints) -> tuple[pl.DataFrame, float]:
    """Cut a thread into the outermost of nested spans that launched something.

    A span that encloses all others is cut up by those, level by level, unless it is a step: it keeps
    what is launched before, between and after them.

    Returns:
        Frame with start_ns, end_ns and name, without overlaps; the share of launches inside.
    """

    def launching(spans: pl.DataFrame) -> pl.DataFrame:
        begin = np.searchsorted(launched, spans["start_ns"].to_numpy())
        return spans.filter(
            pl.Series(begin < np.searchsorted(launched, spans["end_ns"].to_numpy()))
        )

    spans = launching(spans)
    level = outermost(spans)
    taken = [level]
    while level.height == 1 and not (_steps(level) and _steps(spans) == 1):
        [(start, end)] = level.select("start_ns", "end_ns").rows()
        inner = spans.filter(pl.col("start_ns") >= start, pl.col("end_ns") <= end)
        spans = inner.filter((pl.col("start_ns") > start) | (pl.col("end_ns") < end))
        level = outermost(spans)
        if level.height:
            taken.append(level)
    chosen = pl.concat(taken).sort("start_ns", "end_ns", descending=[False, True])
    if not chosen.height:
        return chosen.select("start_ns", "end_ns", "name"), 0.0
    edges, owners = innermost(chosen["start_ns"].to_numpy(), chosen["end_ns"].to_numpy())
    segments = pl.DataFrame(
        {"start_ns": edges[:-1], "end_ns": edges[1:], "owner": owners[:-1]}
    ).filter(pl.col("owner") >= 0)
    named = segments.with_columns(name=chosen["name"].gather(segments["owner"])).drop("owner")
    inside = np.searchsorted(launched, taken[0]["end_ns"].to_numpy()) - np.searchsorted(
        launched, taken[0]["start_ns"].to_numpy()
    )
    return launching(named), float(inside.sum()) / len(launched)
