"""Which task of one run is which of another, and how to lay one run's steps on the other's.

Two runs have a task in common if the same rank, in the same step, does the same kind of work for the
same stage, model chunk and micro-batch. How long it took in each is then a fair difference; whether it
is more than the noise between steps only `bubblescope.analysis.compare` can tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.model import units
from bubblescope.model.kinds import COMPUTE_KINDS, Kind, Lane
from bubblescope.model.provenance import Notice
from bubblescope.model.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.compare import Comparison

_TIMES: Final = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")
_PLACED: Final = ("stage", "chunk", "pair_stage", "pair_chunk")
"""What a trace may not tell of any task; then it tells none of them apart."""

_KEY: Final = ("rank", "step", "kind", "microbatch", "pair_microbatch", "named")
_ON_DEVICE: Final = pl.col("lane") == Lane.COMPUTE.value
_PASS: Final = pl.col("kind").is_in([kind.value for kind in COMPUTE_KINDS])
_BEGIN: Final = pl.col("start_ns").min()

Step = int | None
"""The number of a step; None is all of a run that has no steps."""


class Pairing(NamedTuple):
    """The tasks that two runs have in common.

    Attributes:
        timeline: What the devices of B ran in the steps and on the ranks that A has as well, by A's
            numbers of both. Its times are B's, moved so that the first of these steps begins where it
            begins in A; for runs whose ranks share no clock, on each rank by itself.
        ranks: Frame with rank (A's number) and other (B's), for each rank of both.
        steps: Frame, for each step of both in the order of A's numbers: step (A's number), other (B's),
            and shift_ns, how much further `timeline` has to be moved for this step to begin where it
            begins in A.
        tasks: Frame with task and other, rows of A's tasks and of those of `timeline`: the same task
            in both runs. Each row is there once at most.
        notices: What could not be matched, and how the rest was.
    """

    timeline: Timeline
    ranks: pl.DataFrame
    steps: pl.DataFrame
    tasks: pl.DataFrame
    notices: tuple[Notice, ...]


def pairing(comparison: Comparison) -> Pairing:
    """Find the tasks that two runs have in common.

    Ranks are matched by their numbers or, where the runs share none and have as many, in order. Steps
    are matched by their numbers or, where the runs share none, in order; those that were not recorded
    whole are left out. A run without steps is one step, and is matched with a run of one. Tasks that
    nothing tells apart are matched in order where both runs have as many of them; where they do not, it
    is not known which is missing, and none is matched.

    Args:
        comparison: The runs.
    """
    before, after = comparison.runs
    ranks, notices = _ranks(before, after)
    steps, noted = _steps(
        _compared(before, comparison.before.left_out), _compared(after, comparison.after.left_out)
    )
    notices += noted
    mine = _within(before, ranks["rank"], steps["step"])
    its = _within(after, ranks["other"], steps["other"])
    its = _renumbered(_renumbered(its, "rank", ranks), "step", steps)
    if not (before.run.common_clock and after.run.common_clock):
        its = _by_own_clocks(mine, its)
        notices.append(_CLOCKLESS)
    steps = _laid(mine, its, steps)
    first = int(steps["shift_ns"][0]) if steps.height else 0
    its = its.join(steps.select("step"), on="step", how="semi", nulls_equal=True)
    timeline = Timeline(
        its.select(pl.exclude("task", *_TIMES), pl.col(_TIMES) + first),
        before.ranks.filter(pl.col("rank").is_in(ranks["rank"].implode())),
        after.run,
    )
    stages = comparison.before.stages, comparison.after.stages
    cut_alike = None in stages or stages[0] == stages[1]
    tasks, noted = _counterparts(mine, timeline.tasks.with_row_index("other"), cut_alike=cut_alike)
    return Pairing(
        timeline,
        ranks,
        steps.with_columns(pl.col("shift_ns") - first),
        tasks,
        (*notices, *noted),
    )


_CLOCKLESS: Final = Notice(
    "no-common-clock",
    "the ranks of a run share no clock, so each rank of B is moved by itself to where A's began",
)


def _ranks(before: Timeline, after: Timeline) -> tuple[pl.DataFrame, list[Notice]]:
    """Return which rank of A is which of B, as rank and other."""
    mine, its = (run.ranks["rank"].to_list() for run in (before, after))
    shared = sorted({*mine} & {*its})
    notices = []
    if not shared and len(mine) == len(its):
        pairs = list(zip(mine, its, strict=True))
        text = (
            f"the runs have no rank in common; in order, {units.listed('rank', its)} of B stand "
            f"against {units.listed('rank', mine)} of A"
        )
        notices.append(Notice("ranks-in-order", text))
    else:
        pairs = [(rank, rank) for rank in shared]
        notices += [
            *_alone("rank", "A", [rank for rank in mine if rank not in shared], len(mine)),
            *_alone("rank", "B", [rank for rank in its if rank not in shared], len(its)),
        ]
    return pl.DataFrame(pairs, {"rank": pl.Int32, "other": pl.Int32}, orient="row"), notices


def _compared(run: Timeline, left_out: Sequence[int]) -> list[Step]:
    """Return the steps of a run that were recorded whole; all of a run without is one."""
    steps = run.tasks["step"].drop_nulls().unique().sort().to_list()
    return [step for step in steps if step not in left_out] or steps or [None]


def _steps(mine: list[Step], its: list[Step]) -> tuple[pl.DataFrame, list[Notice]]:
    """Return which step of A is which of B, as step and other."""
    shared = [step for step in mine if step in {*its}]
    pairs: list[tuple[Step, Step]] = [(step, step) for step in shared]
    notices = []
    if not shared and (None not in (*mine, *its) or len(mine) == len(its)):
        pairs = list(zip(mine, its, strict=False))
        if None not in (*mine, *its):
            text = (
                "the runs have no step number in common, so their steps are matched in order: "
                f"{pairs[0][0]} of A with {pairs[0][1]} of B, and so on"
            )
            notices.append(Notice("steps-in-order", text))
    elif not shared:
        with_steps, without = ("A", "B") if None in its else ("B", "A")
        text = f"{with_steps} has steps and {without} has none, so none of their tasks are matched"
        notices.append(Notice("one-with-steps", text))
    for label, steps, matched in zip("AB", (mine, its), zip(*pairs, strict=True), strict=False):
        alone = [step for step in steps if step not in {*matched}]
        notices += _alone("step", label, alone, len(steps))
    schema = {"step": pl.Int32, "other": pl.Int32}
    return pl.DataFrame(pairs, schema, orient="row"), notices


def _alone(noun: str, label: str, alone: Sequence[Step], total: int) -> list[Notice]:
    """Note which ranks or steps are in one run only, if any."""
    if not alone:
        return []
    numbers = [one for one in alone if one is not None]
    what = f"{units.listed(noun, numbers)} {'is' if len(numbers) == 1 else 'are'} in {label} only"
    shown = "not compared" if label == "A" else "not shown"
    return [Notice(f"unmatched-{noun}s", f"{what}, and {shown}", len(numbers), total)]


def _within(run: Timeline, ranks: pl.Series, steps: pl.Series) -> pl.DataFrame:
    """Return what devices ran on some ranks in some steps, with `task`, the row of the run's tasks."""
    return (
        run.tasks.with_row_index("task")
        .filter(_ON_DEVICE, pl.col("rank").is_in(ranks.implode()))
        .join(
            steps.to_frame("step"), on="step", how="semi", nulls_equal=True, maintain_order="left"
        )
    )


def _renumbered(tasks: pl.DataFrame, column: str, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return B's tasks with A's numbers."""
    numbers = pairs.select(pl.col("other").alias(column), pl.col(column).alias("_mine"))
    return (
        tasks.join(numbers, on=column, nulls_equal=True, maintain_order="left")
        .with_columns(pl.col("_mine").alias(column))
        .drop("_mine")
    )


def _begun(mine: pl.DataFrame, its: pl.DataFrame) -> pl.DataFrame:
    """Return when each rank began each step in both runs, as rank, step, begin and other (ns)."""
    key = ("rank", "step")
    return (
        mine.group_by(key)
        .agg(begin=_BEGIN)
        .join(its.group_by(key).agg(other=_BEGIN), on=key, nulls_equal=True)
        .sort(key)
    )


def _by_own_clocks(mine: pl.DataFrame, its: pl.DataFrame) -> pl.DataFrame:
    """Move each rank of B by itself, so that its first step begins where it begins in A."""
    off = (
        _begun(mine, its)
        .group_by("rank", maintain_order=True)
        .agg(_off=(pl.col("begin") - pl.col("other")).first())
    )
    moved = its.join(off, on="rank", maintain_order="left")
    return moved.with_columns(pl.col(_TIMES) + pl.col("_off")).drop("_off")


def _laid(mine: pl.DataFrame, its: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that both runs have tasks of, with shift_ns from B's times to A's.

    A step begins with the first task of any rank that has tasks of it in both runs.
    """
    begun = (
        _begun(mine, its)
        .group_by("step")
        .agg(shift_ns=pl.col("begin").min() - pl.col("other").min())
    )
    return steps.join(begun, on="step", nulls_equal=True).sort("step")


def _counterparts(
    mine: pl.DataFrame, its: pl.DataFrame, *, cut_alike: bool
) -> tuple[pl.DataFrame, list[Notice]]:
    """Return which task is which, as rows of both, and what has no counterpart.

    Args:
        mine: Tasks of A, with their row as `task`.
        its: Those of B by A's numbers, with their row as `other`.
        cut_alike: Whether the runs have as many stages, so that a stage is the same layers in both.
    """
    total = mine.height, its.height
    notices = []
    if not cut_alike:
        mine, its = mine.filter(~_PASS), its.filter(~_PASS)
        text = "the runs cut the model into other stages, so no pass of A is one of B"
        notices.append(Notice("other-stages", text))
    key = [*_KEY, *(name for name in _PLACED if _told(mine, name) == _told(its, name))]
    pairs = (
        _numbered(mine, key, "task")
        .join(_numbered(its, key, "other"), on=[*key, "turn", "turns"], nulls_equal=True)
        .select("task", "other")
    )
    lost = [count - pairs.height for count in total]
    if any(lost):
        text = (
            f"{lost[0]:,} of {units.count(total[0], 'task')} on A's devices, and {lost[1]:,} of "
            f"{total[1]:,} on B's, have no counterpart in the other run: none of the same rank, step, "
            "kind, stage, chunk and micro-batch"
        )
        notices.append(Notice("unmatched-tasks", text, sum(lost), sum(total)))
    return pairs.sort("task"), notices


def _told(tasks: pl.DataFrame, column: str) -> bool:
    """Say whether a run tells something of any of its tasks."""
    return bool(tasks[column].is_not_null().any())


def _numbered(tasks: pl.DataFrame, key: list[str], row: str) -> pl.DataFrame:
    """Return the rows of tasks with what tells them apart: the key, and the turn of so many alike."""
    name = pl.when(pl.col("kind") == Kind.OTHER.value).then("name")
    told = tasks.with_columns(named=name).select(row, *key, "start_ns", "end_ns")
    alike = told.select(key).is_duplicated()
    one = pl.lit(1, pl.UInt32)
    single = told.filter(~alike).with_columns(turn=one, turns=one)
    several = (  # few, as a rule: counting them is what takes long
        told.filter(alike)
        .sort("start_ns", "end_ns", maintain_order=True)
        .with_columns(
            turn=pl.int_range(1, pl.len() + 1, dtype=pl.UInt32).over(key),
            turns=pl.len().over(key).cast(pl.UInt32),
        )
    )
    return pl.concat([single, several]).drop("start_ns", "end_ns")
