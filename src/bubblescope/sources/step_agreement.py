"""Steps that the ranks of a pipeline number alike.

Each process counts its own steps, and a rank that leaves out a batch, tries one again or misses the
first counts otherwise than the others. But whatever the schedule, a rank works on a step between the
first stage's forwards and backwards of its micro-batches: the times of any two stages in one step
overlap. Where those of one number do not, ranks do not mean the same step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.model import units
from bubblescope.model.extents import extremes
from bubblescope.model.kinds import COMPUTE_KINDS, Kind, Lane
from bubblescope.model.provenance import STEPS_DISAGREE, Notice
from bubblescope.model.timeline import Timeline
from bubblescope.model.timeline_tables import PIPELINE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.model.arrays import Ints

_FORWARDS: Final = [Kind.FORWARD.value, Kind.FORWARD_BACKWARD.value]
_BACKWARDS: Final = [Kind.BACKWARD.value, Kind.BACKWARD_INPUT.value, Kind.FORWARD_BACKWARD.value]
_NO_STAGE: Final = np.iinfo(np.int32).max
_SURE: Final = 0.5
"""Share of the shorter of two steps by which they must overlap to be one."""
_CLOCK: Final = 0.1
"""Share of a step that clocks may be off, for overlaps to tell anything."""


def agreed(timeline: Timeline) -> Timeline:
    """Return a run whose ranks number steps alike, as far as their times tell.

    Ranks are compared within a pipeline, where one clock tells when all of them ran. Steps are matched
    by when they were; the number that most ranks have for one is the number of all. What overlaps no
    step of the others, and has the number of one, is of no step. Where ranks surely do not agree and
    cannot be matched, or tables beside the tasks have steps too, all stays, but ranks are not compared.

    Returns:
        The run itself where nothing contradicts its numbers; else one with a warning.
    """
    answers = _answers(timeline.ranks, windows(timeline.tasks))
    doubtful = sorted({rank for answer in answers for rank in answer.doubtful})
    changed = [answer.numbers for answer in answers if answer.numbers.height]
    if changed and (timeline.budget.height or timeline.step_times.height):
        doubtful = sorted({*doubtful, *pl.concat(changed)["rank"].to_list()})
        changed = []
    if doubtful:
        text = (
            f"steps of {units.listed('rank', doubtful)} do not overlap those of the same number of "
            "other ranks of their pipeline: either clocks or numbers are wrong, so ranks are not "
            "compared"
        )
        run = timeline.run.warned(Notice(STEPS_DISAGREE, text, len(doubtful)))
        timeline = timeline.with_run(msgspec.structs.replace(run, common_clock=False))
    if not changed:
        return timeline
    numbers = pl.concat(changed)
    lost = numbers["number"].null_count()
    moved = len(numbers) - lost
    parts = [f"{moved} of their steps were given the numbers of the others'"] * (moved > 0)
    parts += [f"{lost} that match none are of no step"] * (lost > 0)
    of = units.listed("rank", numbers["rank"].unique().sort().to_list())
    text = f"{of} did not number steps as the rest of the pipeline: {' and '.join(parts)}"
    tasks = (
        timeline.tasks.join(
            numbers.with_columns(pl.lit(value=True).alias("changed")),
            on=["rank", "step"],
            how="left",
            maintain_order="left",
        )
        .with_columns(step=pl.when("changed").then("number").otherwise("step"))
        .drop("number", "changed")
    )
    run = timeline.run.warned(Notice("steps-renumbered", text, len(numbers)))
    return Timeline(tasks, timeline.ranks, run, **timeline.tables)


def disagreeing(ranks: pl.DataFrame, windows: pl.DataFrame) -> list[int]:
    """Return the ranks whose steps `agreed` would give other numbers, or cannot match; ascending.

    Args:
        ranks: The ranks, as in `Timeline.ranks`.
        windows: As `windows` returns it, of all steps.
    """
    odd: set[int] = set()
    for answer in _answers(ranks, windows.sort("rank", "start_ns")):
        odd.update(answer.doubtful, answer.numbers["rank"].to_list())
    return sorted(odd)


def _answers(ranks: pl.DataFrame, windows: pl.DataFrame) -> list[_Answer]:
    return [
        _renumbered(own, contradicted=contradicted)
        for own, contradicted in _pipelines(ranks, windows)
    ]


def windows(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return from when to when each rank ran forwards and backwards of a step.

    Returns:
        Frame with rank, step, start_ns, end_ns, stage (the lowest) and both: whether it ran forwards
        and backwards.
    """
    marks = _MARKS[tasks["kind"].to_physical().to_numpy()]
    wanted = (marks != 0) & (tasks["lane"] == Lane.COMPUTE.value).to_numpy()
    wanted &= tasks["step"].is_not_null().to_numpy()
    rows = tasks.select("rank", "step", pl.col("stage").fill_null(_NO_STAGE), "start_ns", "end_ns")
    if not wanted.all():
        rows, marks = rows.filter(pl.Series(wanted)), marks[wanted]
    start, end, stage = (rows[name].to_numpy() for name in ("start_ns", "end_ns", "stage"))
    found = extremes(
        rows.select("rank", "step"),
        least={"start_ns": start, "stage": stage},
        most={"end_ns": end, "ahead": marks & _AHEAD, "back": marks & _BACK},
    )
    return found.select(
        *("rank", "step", "start_ns", "end_ns"),
        stage=pl.when(pl.col("stage") < _NO_STAGE).then("stage"),
        both=(pl.col("ahead") > 0) & (pl.col("back") > 0),
    ).sort("rank", "start_ns")


_OTHER, _AHEAD, _BACK = (np.uint8(1 << bit) for bit in range(3))
_MARKS: Final = np.array(
    [
        (kind in COMPUTE_KINDS) * _OTHER
        | (kind.value in _FORWARDS) * _AHEAD
        | (kind.value in _BACKWARDS) * _BACK
        for kind in Kind
    ],
    np.uint8,
)
"""Of each kind of task, by its number, whether it is a pass, and which way or ways it goes."""


def _pipelines(table: pl.DataFrame, windows: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, bool]]:
    """Yield the windows of each pipeline whose ranks may not agree, and whether they surely do not.

    They surely do not where some of one number do not overlap; they may not where some ranks lack
    steps that others have.
    """
    ranks = table.select("rank", "host", "clock_error_ns", *PIPELINE)
    apart = windows.join(ranks, on="rank", maintain_order="left")
    for _, own in apart.group_by(PIPELINE, maintain_order=True):
        held = own.drop_nulls("stage").group_by("rank").agg(pl.col("stage").min())
        if held.height < 2 or held["stage"].n_unique() < held.height:
            continue  # no pipeline, or several that nothing tells apart
        error = 0 if own["host"].n_unique() == 1 else own["clock_error_ns"].max()
        span = float((own["end_ns"] - own["start_ns"]).median() or 0)  # type: ignore[arg-type]
        if error is None or error > _CLOCK * span:  # type: ignore[operator]
            continue
        whole = own.filter("both")
        start, end = pl.col("start_ns"), pl.col("end_ns")
        spread = whole.group_by("step").agg(apart=(start.max() - end.min()), ranks=pl.len())
        contradicted = (spread["apart"] > 2 * error).any()  # type: ignore[operator]
        if contradicted or (spread["ranks"] < own["rank"].n_unique()).any():
            yield own, contradicted


class _Answer(msgspec.Struct, frozen=True):
    """What becomes of the steps of a pipeline's ranks.

    Attributes:
        numbers: Frame with rank, step and number, for steps that get another one; null for none.
        doubtful: Ranks that surely do not agree with the others, and cannot be matched.
    """

    numbers: pl.DataFrame
    doubtful: list[int]


def _renumbered(own: pl.DataFrame, *, contradicted: bool) -> _Answer:
    """Return which steps of a pipeline's ranks get which numbers.

    Ranks that cannot be matched keep theirs, and are doubtful if something contradicts them.
    """
    # Forwards alone, as of an evaluation, or of a batch that failed, need not overlap.
    whole = own.filter("both")
    ranks = whole.partition_by("rank", as_dict=True, maintain_order=True)
    begun = dict(own.group_by("rank").len().iter_rows())
    fewest = min(ranks, key=lambda rank: (begun[rank[0]], rank))
    reference = ranks[fewest]
    found = {rank: matched(one, reference) for rank, one in ranks.items()}
    matches = {rank: match for rank, match in found.items() if match is not None}
    if len(matches) < len(found):
        unmatched = [int(rank[0]) for rank in found if rank not in matches]
        return _Answer(pl.DataFrame(schema=_NUMBERS), unmatched if contradicted else [])
    # Which numbers the ranks have for each step of the reference; its own first, where it is a draw.
    votes: list[list[int]] = [[number] for number in reference["step"].to_list()]
    for rank, match in matches.items():
        if rank == fewest:
            continue
        for step, at in zip(ranks[rank]["step"].to_list(), match.tolist(), strict=True):
            if at >= 0:
                votes[at].append(step)
    numbers = [max(said, key=said.count) for said in votes]
    if len(set(numbers)) < len(numbers):
        numbers = reference["step"].to_list()
    parts = []
    for rank, match in matches.items():
        one = ranks[rank].select("rank", "step")
        number = [
            numbers[at] if at >= 0 else (None if step in numbers else step)
            for step, at in zip(one["step"].to_list(), match.tolist(), strict=True)
        ]
        parts.append(one.with_columns(number=pl.Series(number, dtype=pl.Int32)))
    changed = pl.concat(parts).filter(~pl.col("step").eq_missing(pl.col("number")))
    taken = changed.select("rank", step="number").drop_nulls()
    beside = own.filter(~pl.col("both")).join(taken, on=["rank", "step"], how="semi")
    nameless = beside.select("rank", "step", number=pl.lit(None, pl.Int32))
    return _Answer(pl.concat([changed, nameless]), [])


_NUMBERS: Final = {"rank": pl.Int32(), "step": pl.Int32(), "number": pl.Int32()}


def matched(one: pl.DataFrame, reference: pl.DataFrame) -> Ints | None:
    """Return the row of the reference's step that each step of a rank is, by time; -1 for none.

    Returns:
        None if that is not sure: a step that is begun overlaps two, or less than half of one; or less
        than half of the steps that there could be are matched.
    """
    start, end = (one[name].to_numpy()[:, None] for name in ("start_ns", "end_ns"))
    begin, until = (reference[name].to_numpy() for name in ("start_ns", "end_ns"))
    # Steps of a rank come one after the other: only those around the middle of this one can be it.
    around = np.searchsorted(begin, (start + end) // 2) + np.arange(-2, 2)
    near = np.clip(around, 0, len(begin) - 1)
    overlap = np.minimum(end, until[near]) - np.maximum(start, begin[near])
    overlap[around != near] = 0
    overlap = np.maximum(overlap, 0)
    column, row = overlap.argmax(axis=1), np.arange(one.height)
    best, most = near[row, column], overlap[row, column]
    second = np.sort(overlap, axis=1)[:, -2]
    shorter = np.minimum((end - start)[:, 0], (until - begin)[best])
    found: Ints = np.where(most > 0, best, -1)
    sure = (most == 0) | ((most >= _SURE * shorter) & (second <= _SURE * most))
    known = found[found >= 0]
    few = 2 * len(known) < min(one.height, reference.height)
    if few or not sure.all() or (np.diff(known) <= 0).any():
        return None
    return found
