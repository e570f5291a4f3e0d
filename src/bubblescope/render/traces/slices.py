"""What trace viewers are told beside the tasks themselves, the same in Perfetto and Chrome."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.pipeline_phase import phases
from bubblescope.model.dependencies import messages, passes
from bubblescope.model.extents import BEGAN
from bubblescope.model.plain_text import UNSEEN_IN_LINE
from bubblescope.render.layout import with_rows

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline

ARGUMENTS: Final = (
    "kind",
    "step",
    "stage",
    "chunk",
    "microbatch",
    "pair_stage",
    "pair_chunk",
    "pair_microbatch",
    "peer",
    "certainty",
    "busy_ns",
    "host_start_ns",
    "host_end_ns",
    "name",
)
"""Columns of the tasks that a slice carries as arguments: all that its place does not show."""

PHASES: Final = ("warm-up", "steady", "cool-down")
"""The phases of a rank's pipeline work in a step, in order."""
PHASES_TITLE: Final = "phases"
"""What their tracks are called."""

LONGEST_TITLE: Final = 120
"""Characters that are shown beside a track."""
LONGEST_DETAIL: Final = 10_000
"""Characters that are shown of a text among what is known of a task."""


def plain(text: pl.Expr, most: int) -> pl.Expr:
    """Return text of a trace as a viewer can show it.

    What has no picture of its own but changes that of others becomes U+FFFD: viewers cut text at a
    NUL, and a mark of direction turns what comes after it. Longer than `most` characters it is cut,
    and says how many there were.
    """
    length = text.str.len_chars()
    shown = text.str.slice(0, most).str.replace_all(UNSEEN_IN_LINE, "\ufffd")
    return (
        pl.when(length > most)
        .then(pl.format("{}… ({} characters)", shown, length))
        .otherwise(shown)
    )


def flows(timeline: Timeline) -> pl.DataFrame:
    """Return the arrows between slices: what feeds what, and which send meets which receive.

    Only pairs that are beyond doubt: a send and a receive are each the only one that can be meant. A
    pass does not start before the one that feeds it. A receive may start first, because it waits;
    one that ends before its send starts is not its.

    Returns:
        Frame with `flow` (a number from 1), `source` and `target` (row numbers in the timeline's
        tasks), and `at_ns`, a moment within the target at which the arrow can arrive: the target's
        start, or the source's where the target was already waiting for it.
    """
    start, end = timeline.tasks["start_ns"], timeline.tasks["end_ns"]
    fed = passes(timeline).select("source", "target")
    fed = fed.filter(start.gather(fed["target"]) >= start.gather(fed["source"]))
    met = messages(timeline).filter(pl.col("count") == 1)
    met = met.select(source="send", target="receive").sort("source")
    met = met.filter(end.gather(met["target"]) > start.gather(met["source"]))
    arrows = pl.concat([fed, met])
    began = [start.gather(arrows[side]) for side in ("source", "target")]
    return arrows.with_columns(at_ns=pl.max_horizontal(*began)).with_row_index("flow", offset=1)


def step_spans(tasks: pl.DataFrame, *, per_rank: bool) -> pl.DataFrame:
    """Return the extent of each step, over all ranks or of each rank, which begin as `BEGAN` has it.

    Returns:
        Frame with rank (0 where it is over all), step, start_ns, end_ns and row. Steps overlap
        where the next one begins on some rank before this one ends on the last; like tasks, they
        then take several rows.
    """
    spans = (
        tasks.filter(pl.col("step").is_not_null())
        .group_by("step", "rank")
        .agg(BEGAN, pl.col("end_ns").max())
        .group_by("step", rank=pl.col("rank") if per_rank else pl.lit(0, pl.Int32))
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("step")
        .with_columns(lane=pl.lit("steps"))
    )
    return with_rows(spans, exact=True).select("rank", "step", "start_ns", "end_ns", "row")


def phase_spans(timeline: Timeline) -> pl.DataFrame:
    """Return when each rank was warming up, steady and cooling down in each step.

    Nothing is, where the run is not known to be a pipeline of several stages.

    Returns:
        Frame with rank, name (one of `PHASES`), start_ns, end_ns and row: phases of steps that overlap
        take several rows. None is without length. By rank, row and start.
    """
    found = phases(timeline.tasks)
    if timeline.tasks["stage"].drop_nulls().n_unique() < 2:
        found = found.clear()
    edges = pairwise(("start_ns", "steady_ns", "cool_ns", "end_ns"))
    spans = pl.concat(
        found.select("rank", name=pl.lit(name), start_ns=pl.col(start), end_ns=pl.col(end))
        for name, (start, end) in zip(PHASES, edges, strict=True)
    )
    placed = with_rows(spans.filter(pl.col("end_ns") > pl.col("start_ns")), "rank", exact=True)
    return placed.select("rank", "name", "start_ns", "end_ns", "row").sort(
        "rank", "row", "start_ns"
    )
