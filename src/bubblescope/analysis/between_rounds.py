"""Time between the rounds of a step, in which a job accumulates gradients.

A step that calls its schedule several times has rounds, of as many micro-batches each as the run
says. Between two of them, when nobody is in either, a job loads data or computes what it likes: that is
a part of the whole step, and no bubble. So rates, causes and replays are those of the rounds, summed:
they are of the run with these stretches of time taken out, in which no pipeline task of the step runs
anywhere. Where a rank begins a round while others are in the one before, there is no such stretch: both
rounds are measured as one, from the first start to the last end, so that no time counts twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.pipeline_phase import of_phase, pipeline_phase, pipelines
from bubblescope.model import intervals
from bubblescope.model.cached_results import remembered
from bubblescope.model.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.model.arrays import Ints

_KEY: Final = ("step", "pipeline")
_EDGES: Final = ("start_ns", "end_ns")
_TIMES: Final = (*_EDGES, "host_start_ns", "host_end_ns")
_NOT_ONE: Final = -1
_BETWEEN: Final[dict[str, Any]] = {
    "step": pl.Int32,
    "pipeline": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}
_SPANS: Final[dict[str, Any]] = {
    "step": pl.Int32,
    "pipeline": pl.Int32,
    "opens": pl.Int64,
    "closes": pl.Int64,
}


def between_rounds(timeline: Timeline, apart: pl.DataFrame) -> pl.DataFrame:
    """Return when nobody was in a round, between the first and the last round of each step.

    Args:
        timeline: The run.
        apart: Frame with rank and pipeline, as `analysis.phase.pipelines` returns it.

    Returns:
        Frame with step, pipeline, start_ns and end_ns, ascending; none of a run whose ranks share no
        clock, or that does not say how many micro-batches its schedule has.
    """
    declared = timeline.run.microbatches
    if not declared or not timeline.run.common_clock:
        return pl.DataFrame(schema=_BETWEEN)
    highest: Any = timeline.tasks["microbatch"].max()
    if highest is None or highest < declared:  # as in most runs, and looking on takes time
        return pl.DataFrame(schema=_BETWEEN)
    tasks = timeline.tasks.select("rank", "step", "kind", "lane", "microbatch", *_EDGES)
    numbers = tasks.select("step", microbatch=pl.when(of_phase(tasks)).then("microbatch"))
    if not _of_rounds(numbers, declared).height:
        return pl.DataFrame(schema=_BETWEEN)
    phase = pipeline_phase(tasks).join(apart, on="rank", maintain_order="left")
    return outside_rounds(phase, declared)


def _of_rounds(tasks: pl.DataFrame, microbatches: int) -> pl.DataFrame:
    """Return the steps that may have rounds of so many, given step and micro-batch of tasks.

    These are some only: a step of rounds has a multiple of a schedule's micro-batches.
    """
    highest = tasks.group_by("step").agg(count=pl.col("microbatch").max() + 1).drop_nulls()
    several = pl.col("count") > microbatches, pl.col("count") % microbatches == 0
    return highest.filter(several).select("step")


def outside_rounds(phase: pl.DataFrame, microbatches: int) -> pl.DataFrame:
    """Return when no round was on, between the first and the last of each step.

    Args:
        phase: Frame with step, pipeline, microbatch, start_ns and end_ns: the pipeline tasks.
        microbatches: How many a round has.

    Returns:
        As `between_rounds`.
    """
    several = _of_rounds(phase, microbatches)
    if not several.height:
        return pl.DataFrame(schema=_BETWEEN)
    of = phase.join(several, on="step", how="semi").with_row_index("at")
    # A task without a micro-batch may be of any round: it is on its own.
    number = pl.col("microbatch") // microbatches
    rounds = (
        of.with_columns(number=pl.coalesce(number, _NOT_ONE - pl.col("at").cast(pl.Int64)))
        .group_by(*_KEY, "number")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort(*_KEY, "start_ns")
    )
    start_ns, _, group = intervals.columns(rounds, *_KEY)
    reached_ns = intervals.reached_ns(rounds["end_ns"].to_numpy(), group)
    free = (reached_ns != intervals.NEVER) & (reached_ns < start_ns)
    return (
        rounds.with_columns(end_ns="start_ns", start_ns=pl.Series(reached_ns))
        .filter(pl.Series(free))
        .select(pl.col(name).cast(kind) for name, kind in _BETWEEN.items())
    )


class Rounds(NamedTuple):
    """What is taken out of a run between the rounds of its steps.

    Attributes:
        between: Frame as of `between_rounds`.
        spans: Frame with step, pipeline, opens and closes: from when to when each of these steps is.
    """

    between: pl.DataFrame
    spans: pl.DataFrame

    @classmethod
    def joined(cls, parts: Sequence[Rounds]) -> Self:
        """Return it of several parts of a run together, each of whole steps."""
        between, spans = (pl.concat(frames) for frames in zip(*parts, strict=True))
        return cls(between.sort(*_KEY, "start_ns"), spans.sort("opens"))


@remembered
def rounds(timeline: Timeline) -> Rounds:
    """Return what is taken out of a run; of a part of a run, what is of the whole run."""
    apart = pipelines(timeline)
    between = between_rounds(timeline, apart)
    if not between.height:
        return Rounds(between, pl.DataFrame(schema=_SPANS))
    phase = pipeline_phase(timeline.tasks.select("rank", "step", "kind", "lane", *_EDGES))
    spans = (
        phase.join(apart, on="rank")
        .join(between, on=_KEY, how="semi", nulls_equal=True)
        .group_by(_KEY)
        .agg(pl.col("start_ns").min().alias("opens"), pl.col("end_ns").max().alias("closes"))
    )
    return Rounds(between, spans.sort("opens"))


def closed(timeline: Timeline) -> Timeline:
    """Return a run without the time between its rounds; the rows of tasks stay the same."""
    taken = rounds(timeline)
    return without(timeline, taken.between, pipelines(timeline), taken.spans)


def without(
    timeline: Timeline, between: pl.DataFrame, apart: pl.DataFrame, spans: pl.DataFrame
) -> Timeline:
    """Return a run with stretches of time taken out of its steps; the rows of tasks stay the same.

    What comes after a stretch in its step moves up. What runs in it, or on through it, is shorter by
    that.

    Args:
        timeline: The run.
        between: As `between_rounds` returns it.
        apart: Frame with rank and pipeline.
        spans: As of `Rounds`.
    """
    if not between.height:
        return timeline
    shorter = timeline.tasks.with_columns(**_moved(timeline.tasks, _TIMES, between, apart, spans))
    length = pl.col("end_ns") - pl.col("start_ns")
    busy = pl.when(pl.col("busy_ns").is_not_null()).then(pl.min_horizontal("busy_ns", length))
    shorter = shorter.with_columns(busy_ns=busy)
    closed = Timeline(shorter, timeline.ranks, timeline.run, **timeline.tables)
    closed.remembered = timeline.remembered  # of whom nothing else is known
    return closed


def closed_stretches(stretches: pl.DataFrame, timeline: Timeline) -> pl.DataFrame:
    """Return stretches of ranks' time as they are in what `closed` returns of a run.

    Args:
        stretches: Frame with rank, start_ns and end_ns.
        timeline: The run.
    """
    taken = rounds(timeline)
    if not stretches.height or not taken.between.height:
        return stretches
    by_time = stretches.with_columns(step=pl.lit(None, pl.Int32))
    return stretches.with_columns(
        **_moved(by_time, _EDGES, taken.between, pipelines(timeline), taken.spans)
    )


def _moved(
    rows: pl.DataFrame,
    times: Sequence[str],
    between: pl.DataFrame,
    apart: pl.DataFrame,
    spans: pl.DataFrame,
) -> dict[str, pl.Series]:
    """Return times of rows with rank, step and start_ns, without what is taken out; by their names."""
    placed = rows.join(apart, on="rank", how="left", maintain_order="left")
    placed = placed.with_columns(pl.col("pipeline").fill_null(0))
    cuts = between.select(_KEY).unique().sort(_KEY).with_row_index("group")
    placed = _placed(placed, spans).join(cuts, on=_KEY, how="left", maintain_order="left")
    group = placed["group"].cast(pl.Int64).fill_null(_NOT_ONE).to_numpy()
    stretches = _columns(between.join(cuts, on=_KEY, maintain_order="left"))
    return {
        name: pl.Series(_closed(placed[name], group, stretches), dtype=pl.Int64) for name in times
    }


def _placed(tasks: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Let tasks of no step move with the step in whose rounds they begin."""
    if not tasks["step"].has_nulls():
        return tasks
    spans = spans.rename({"step": "around"})
    found = (
        tasks.with_row_index("at")
        .sort("start_ns")
        .join_asof(
            spans, left_on="start_ns", right_on="opens", by="pipeline", check_sortedness=False
        )
        .sort("at")
    )
    inside = pl.col("start_ns") < pl.col("closes")
    return tasks.with_columns(
        step=found.select(pl.coalesce("step", pl.when(inside).then("around"))).to_series()
    )


def _closed(times: pl.Series, group: Ints, stretches: tuple[Ints, Ints, Ints]) -> pl.Series:
    """Return times less what was taken out before them in their group."""
    before = int(stretches[1].min()) - 1
    known = times.fill_null(before).to_numpy().astype(np.int64)
    out: Ints = intervals.covered_ns(stretches, (group, np.minimum(before, known), known))
    return times - pl.Series(out)


def laid_open(gaps: pl.DataFrame, between: pl.DataFrame, apart: pl.DataFrame) -> pl.DataFrame:
    """Return stretches of the run that is left as those of the run that was, which add up to the same.

    One that goes on through time that was taken out is in two parts, before and after it.

    Args:
        gaps: Frame with rank, step, start_ns and end_ns, of a run as `without` returns it.
        between: As given to that.
        apart: As given to that.
    """
    if not between.height:
        return gaps
    length = pl.col("end_ns") - pl.col("start_ns")
    cuts = between.with_columns(
        out=length.cum_sum().over(_KEY),
        cut=pl.col("start_ns") - (length.cum_sum().over(_KEY) - length),
    ).select(*_KEY, "out", "cut")
    columns = gaps.columns
    held = gaps.with_row_index("at").join(apart, on="rank", maintain_order="left")
    through = held.join(cuts, on=_KEY, how="inner", nulls_equal=True).filter(
        pl.col("start_ns") < pl.col("cut"), pl.col("cut") < pl.col("end_ns")
    )
    edges = pl.concat([held.select("at", "start_ns"), through.select("at", start_ns="cut")])
    edges = edges.sort("at", "start_ns").with_columns(until=pl.col("start_ns").shift(-1).over("at"))
    parts = (
        held.drop("start_ns")
        .join(edges, on="at", maintain_order="right")
        .with_columns(end_ns=pl.coalesce("until", "end_ns"))
    )
    group = cuts.select(_KEY).unique().sort(_KEY).with_row_index("group")
    number = parts.join(group, on=_KEY, how="left", nulls_equal=True, maintain_order="left")[
        "group"
    ]
    known = cuts.join(group, on=_KEY, maintain_order="left")

    def opened(times: pl.Series, *, begins: bool) -> pl.Series:
        """Return when these were: what begins at a cut did so after it, what ends there before."""
        frame = pl.DataFrame({"group": number, "time": times}).with_row_index("row")
        there = frame.join(known, on="group").filter(
            (pl.col("cut") <= pl.col("time")) if begins else (pl.col("cut") < pl.col("time"))
        )
        out = there.group_by("row").agg(pl.col("out").max())
        moved = frame.join(out, on="row", how="left", maintain_order="left")
        return moved.select(pl.col("time") + pl.col("out").fill_null(0)).to_series()

    return parts.with_columns(
        start_ns=opened(parts["start_ns"], begins=True),
        end_ns=opened(parts["end_ns"], begins=False),
    ).select(columns)


def _columns(frame: pl.DataFrame) -> tuple[Ints, Ints, Ints]:
    frame = frame.sort("group", "start_ns")
    group, start, end = (frame[name].to_numpy().astype(np.int64) for name in ("group", *_EDGES))
    return group, start, end
