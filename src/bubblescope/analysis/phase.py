"""The part of a run that analyses are about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.model.dependencies import passes
from bubblescope.model.kinds import COMPUTE_KINDS, Kind, Lane
from bubblescope.model.remembered import remembered

if TYPE_CHECKING:
    from collections.abc import Collection

    from bubblescope.model.timeline import Timeline

_FORWARDS: Final = [Kind.FORWARD.value, Kind.FORWARD_BACKWARD.value]
_BACKWARDS: Final = [kind.value for kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT)] + _FORWARDS[1:]


def pipeline_phase(
    tasks: pl.DataFrame, kinds: Collection[str | Kind] = COMPUTE_KINDS
) -> pl.DataFrame:
    """Return the tasks of some kinds on the compute lane.

    Tasks that belong to no step are left out if any belongs to one: they would otherwise stretch over
    the whole run.
    """
    wanted = [Kind(kind).value for kind in kinds]
    phase = tasks.filter(pl.col("kind").is_in(wanted), pl.col("lane") == Lane.COMPUTE.value)
    if phase["step"].is_not_null().any():
        phase = phase.filter(pl.col("step").is_not_null())
    return phase


def partial_steps(timeline: Timeline) -> list[int]:
    """Return the steps of which something is missing: some ranks (`lacking_ranks`), or some passes."""
    return sorted({*lacking_ranks(timeline.tasks), *cut_steps_of(timeline)})


@remembered
def cut_steps_of(timeline: Timeline) -> list[int]:
    """Return the steps of a run that lack passes, as `cut_steps` does."""
    return cut_steps(timeline.tasks)


def cut_steps(tasks: pl.DataFrame) -> list[int]:
    """Return the steps that lack forwards or backwards that the others have.

    A recording cut them, or it lost tasks. What is counted is how many of a step's micro-batches, as
    many as any rank has in it, went forwards, backwards and through weight gradients on each stage of
    each rank: where that is all of them in half of the steps or more, it should be in each. So steps
    may have more or fewer micro-batches than others, as where batches grow. Tasks without a
    micro-batch, and ranks that have only a part of the micro-batches in most steps, tell nothing.

    Args:
        tasks: As in `Timeline.tasks`.
    """
    of = ("rank", "step", "kind", "lane", "stage", "microbatch", "pair_stage", "pair_microbatch")
    phase = pipeline_phase(tasks.select(of)).drop_nulls(["step", "microbatch"])
    if _alike(phase):
        return []
    return cut_of(went_through(phase))


def went_through(phase: pl.DataFrame) -> pl.DataFrame:
    """Count how many micro-batches went each way through each stage of each rank, in each step.

    Args:
        phase: Pipeline tasks of steps and micro-batches; columns as in `Timeline.tasks`.

    Returns:
        Frame with rank, step, stage, way, count, and size: the highest micro-batch's number, plus one.
    """
    place = ("rank", "step", "stage", "microbatch")
    kind = pl.col("kind").cast(pl.String)
    pair = phase.filter(kind == Kind.FORWARD_BACKWARD.value).select(
        "rank", "step", stage="pair_stage", microbatch="pair_microbatch"
    )
    passes = {
        "forward": phase.filter(kind.is_in(_FORWARDS)).select(place),
        "backward": pl.concat(
            [phase.filter(kind.is_in(_BACKWARDS[:2])).select(place), pair.drop_nulls("microbatch")]
        ),
        "weights": phase.filter(kind == Kind.BACKWARD_WEIGHT.value).select(place),
    }
    each = pl.concat([part.with_columns(way=pl.lit(way)) for way, part in passes.items()])
    number = pl.col("microbatch")
    return each.group_by("rank", "step", "stage", "way").agg(
        count=number.n_unique(), size=number.max() + 1
    )


def cut_of(counts: pl.DataFrame) -> list[int]:
    """Return the steps that lack forwards or backwards, as `cut_steps`.

    Args:
        counts: As `went_through` returns it, of all steps.
    """
    if not counts.height:
        return []
    size = counts.group_by("step").agg(pl.col("size").max())
    key = ["rank", "stage", "way"]
    whole = (
        counts.select(key)
        .unique()
        .join(size, how="cross")
        .join(counts.drop("size"), on=[*key, "step"], how="left", nulls_equal=True)
        .with_columns(whole=pl.col("count").fill_null(0) == pl.col("size"))
    )
    usual = whole.filter(pl.col("whole").mean().over(key) >= _USUAL, ~pl.col("whole"))
    return usual["step"].unique().sort().to_list()


def _alike(phase: pl.DataFrame) -> bool:
    """Say whether all steps have the same passes for each of their micro-batches, by their number."""
    size = phase.group_by("step").agg(size=pl.col("microbatch").max() + 1)
    counts = (
        phase.group_by("rank", "stage", "kind", "step")
        .len()
        .join(size, on="step")
        .group_by("rank", "stage", "kind")
        .agg(steps=pl.len(), shares=(pl.col("len") / pl.col("size")).n_unique())
    )
    return bool(((counts["steps"] == size.height) & (counts["shares"] == 1)).all())


_USUAL: Final = 0.5
"""Share of the steps in which a rank has all micro-batches, from which on it should in each."""


def lacking_ranks(tasks: pl.DataFrame) -> list[int]:
    """Return the steps in which only some of the ranks that ever ran pipeline tasks ran any.

    Args:
        tasks: As in `Timeline.tasks`.
    """
    phase = pipeline_phase(tasks.select("rank", "step", "kind", "lane"))
    ranks = phase["rank"].n_unique()
    held = phase.drop_nulls("step").group_by("step").agg(pl.col("rank").n_unique())
    return held.filter(pl.col("rank") < ranks)["step"].sort().to_list()


def torn_steps(tasks: pl.DataFrame) -> list[int]:
    """Return the first and the last step, where they have fewer tasks than usual: they were cut.

    A recording that begins or ends in the middle of a step has only a part of it, which is shorter than
    a step. Where ranks do not wait for each other, it may cut the next one as well, which overlaps.
    Usual is the median number of tasks of the pipeline phase.

    Args:
        tasks: As in `Timeline.tasks`.
    """
    start, end = pl.col("start_ns").min(), pl.col("end_ns").max()
    steps = (
        pipeline_phase(tasks).drop_nulls("step").group_by("step").agg(start, end, tasks=pl.len())
    )
    if steps.height < 2:
        return []
    rows = steps.sort("step").with_columns(few=pl.col("tasks") < pl.col("tasks").median())
    numbers, starts, ends, few = (rows[name].to_list() for name in ("step", *_SPAN, "few"))
    torn = {at for at in (0, len(few) - 1) if few[at]}
    if 0 in torn and few[1] and starts[1] < ends[0]:
        torn.add(1)
    if len(few) - 1 in torn and few[-2] and starts[-1] < ends[-2]:
        torn.add(len(few) - 2)
    return [numbers[at] for at in sorted(torn)]


_SPAN: Final = ("start_ns", "end_ns")


def compared(timeline: Timeline, *columns: str) -> pl.DataFrame:
    """Return the pipeline phase without the steps that are not compared across ranks.

    Those are the ones of which something is missing (`partial_steps`), unless there are no others.

    Args:
        timeline: The run.
        columns: Those of its tasks to return, or `task` for their rows.
    """
    wanted = dict.fromkeys((*columns, "kind", "lane", "step"))
    phase = pipeline_phase(timeline.tasks.with_row_index("task").select(*wanted))
    partial = partial_steps(timeline)
    if not partial or len(partial) == phase["step"].n_unique():
        return phase
    return phase.filter(~pl.col("step").is_in(partial))


@remembered
def pipelines(timeline: Timeline) -> pl.DataFrame:
    """Return which pipeline each rank is of, where pipelines run their steps each for itself.

    The ranks of one pass micro-batches to each other. Where replicas wait for each other at the end of
    a step, its steps do not overlap, and a step is one of all ranks: all are of pipeline 0. Where they
    do not wait, each drifts away from the others, and the window from the first start to the last end
    of a step anywhere says nothing: then a step of a pipeline is between its own first start and last
    end. Pipelines are told apart only if, in the middle one of the steps by that, a step overlaps the
    next by more than a hundredth of its length.

    Returns:
        Frame with rank and pipeline, numbered by their lowest ranks.
    """
    phase = pipeline_phase(timeline.tasks.select("rank", "step", "kind", "lane", *_SPAN))
    ranks = phase.select(pl.col("rank").unique().sort())
    together = ranks.with_columns(pipeline=pl.lit(0, pl.Int32))
    start, end = pl.col("start_ns").min(), pl.col("end_ns").max()
    spans = phase.group_by("step").agg(start, end, ranks=pl.col("rank").n_unique())
    spans = spans.sort("start_ns")
    if spans.height < 2:
        return together
    begin, until = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    overlap, length = until[:-1] - begin[1:], until - begin
    if np.median(overlap / np.maximum(length[:-1], 1)) <= _OVERLAP:
        return together
    [step] = spans.sort("ranks", "step", descending=[True, False]).select("step").head(1)
    one = timeline.tasks.filter(pl.col("step") == step.item())
    number = _components(timeline, one, ranks["rank"].to_numpy())
    if np.bincount(number).min() < 2:  # what some ranks pass on is not known
        return together
    return ranks.with_columns(pipeline=pl.Series(number, dtype=pl.Int32))


_OVERLAP: Final = 0.01
"""Share of a step by which it overlaps the next where pipelines do not wait for each other."""


def _components(timeline: Timeline, tasks: pl.DataFrame, ranks: np.ndarray) -> np.ndarray:
    """Number the ranks that pass micro-batches to each other, directly or not, alike."""
    links = passes(type(timeline)(tasks, timeline.ranks, timeline.run))
    rank = tasks["rank"].to_numpy()
    pairs = np.unique(rank[links.select("source", "target").to_numpy()], axis=0)
    one, other = np.searchsorted(ranks, pairs).T
    lowest = np.arange(len(ranks))
    while True:
        before = lowest.copy()
        np.minimum.at(lowest, one, lowest[other])
        np.minimum.at(lowest, other, lowest[one])
        if (lowest == before).all():
            number: np.ndarray = np.unique(lowest, return_inverse=True)[1]
            return number


def phases(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return when each rank was warming up, steady and cooling down in each step.

    Over a rank's pipeline tasks i of a step, with F the forwards and B the backwards (an overlapped
    pair is both):

    * warm-up is [start, steady): start = min start_i, steady = min start_b over b in B;
    * steady is [steady, cool);
    * cool-down is [cool, end): cool = max(steady, max end_f over f in F), end = max end_i.

    So they add up to the rank's span. Without a backward all of it is warm-up (steady = cool = end);
    without a forward, or where every forward has ended before the first backward begins, nothing is
    steady (cool = steady).

    Args:
        tasks: As in `Timeline.tasks`.

    Returns:
        Frame with rank, step, start_ns, steady_ns, cool_ns and end_ns, by rank and step.
    """
    start, end, kind = pl.col("start_ns"), pl.col("end_ns"), pl.col("kind")
    return (
        pipeline_phase(tasks.select("rank", "step", "kind", "lane", *_SPAN))
        .group_by("rank", "step")
        .agg(
            start.min(),
            steady_ns=start.filter(kind.is_in(_BACKWARDS)).min().fill_null(end.max()),
            cool_ns=end.filter(kind.is_in(_FORWARDS)).max(),
            end_ns=end.max(),
        )
        .with_columns(cool_ns=pl.max_horizontal("steady_ns", "cool_ns"))
        .sort("rank", "step")
    )


def evenly(timeline: Timeline, count: int) -> Timeline:
    """Return so many of a run's steps, from the first to the last as evenly as can be."""
    steps = timeline.steps
    if count >= len(steps):
        return timeline
    last = len(steps) - 1
    places = [round(index * last / max(1, count - 1)) for index in range(count)]
    return timeline.slice(steps=[steps[place] for place in dict.fromkeys(places)])
