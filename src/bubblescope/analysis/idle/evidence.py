"""What shows the causes of idle time: of steps of a run, and put together of all of them.

Tasks are named by what their timeline has of them. Of several that show the same, it is the first: by
rank, lane and time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.idle.causes import Cause

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from typing_extensions import Self

    from bubblescope.analysis.idle.counterfactuals import Counterfactuals
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline

LATE: Final = (
    *(Cause.PAUSE, Cause.LAUNCH, Cause.SEND, Cause.CODE, Cause.SYNC),
    Cause.UNEXPLAINED,
)
"""Causes that hold up tasks on their own rank."""

_MOST_TIMES: Final = 1000
"""How many times its usual length a task counts at most in a deviation, so that no sum is too large."""


class _Kind(msgspec.Struct, frozen=True):
    """How the evidence of a cause is put together.

    Attributes:
        by: Columns that tell its rows apart.
        sums: Columns that add up.
        most: Column of which the largest value is kept, with the task that has it; the first task if
            None.
    """

    by: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    most: str | None = None


_KINDS: Final[dict[Cause, _Kind]] = {
    Cause.IMBALANCE: _Kind(("stage",)),
    Cause.VARIATION: _Kind((), ("sum_ns", "expected_ns", "square_ns"), "beyond_ns"),
    Cause.TRANSFER: _Kind(("from", "to"), ("ns", "count")),
    Cause.CLOCK: _Kind((), ("count",), "early_ns"),
    **dict.fromkeys(LATE, _Kind(("rank",), ("ns", "count"), "longest_ns")),
}


class Evidence(msgspec.Struct, frozen=True):
    """What shows causes.

    Attributes:
        of: A frame for each cause that needs one, with these columns, and shown, a task as a struct.
            Imbalance: stage. Variation: sum_ns, expected_ns and square_ns (the lengths of all tasks,
            what they would take as a rule, and their lengths times how many times as long they took),
            and beyond_ns, longest_ns and usual_ns of the task that takes longest beyond that. Transfer:
            from, to, ns and count. Clock: count and early_ns. Those that hold up tasks: rank, ns, count
            and longest_ns.
        recorded: Number of transfers that were recorded.
        pauses_ns: How long hosts paused, by what they did.
    """

    of: dict[Cause, pl.DataFrame]
    recorded: int
    pauses_ns: dict[str, int]

    @classmethod
    def of_steps(
        cls, timeline: Timeline, found: Counterfactuals, causes: Collection[Cause]
    ) -> Self:
        """Look at the steps of a run.

        Args:
            timeline: The run, or some of its steps.
            found: What it would have been without its causes.
            causes: Those to look for.
        """
        frames = {}
        for cause, kind in _KINDS.items():
            if cause in causes:
                rows = _rows(found, cause)
                rows = _merged(rows, kind, ("task",))
                shown = timeline.tasks[rows["task"]].to_struct("shown")
                frames[cause] = rows.drop("task").with_columns(shown)
        return cls(frames, found.run.recorded, dict(found.pauses_ns))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return what several parts of a run show together, each of whole steps."""
        frames = {}
        for cause, kind in _KINDS.items():
            found = [part.of[cause] for part in parts if cause in part.of]
            if found:
                rows = pl.concat(found).with_columns(
                    pl.col("shown").struct.field(name).alias(f"_{name}") for name in _PLACE
                )
                place = tuple(f"_{name}" for name in _PLACE)
                frames[cause] = _merged(rows, kind, place).drop(place)
        pauses: dict[str, int] = {}
        for part in parts:
            for name, ns in part.pauses_ns.items():
                pauses[name] = pauses.get(name, 0) + ns
        return cls(frames, sum(part.recorded for part in parts), pauses)


_PLACE: Final = ("rank", "lane", "start_ns", "end_ns")


def _merged(rows: pl.DataFrame, kind: _Kind, place: tuple[str, ...]) -> pl.DataFrame:
    """Return one row for each of what tells rows apart, by that.

    Only those rows are sorted that can be the one whose task is kept: there may be millions.
    """
    if not rows.height:
        return rows
    by, sums = list(kind.by), list(kind.sums)

    def within(value: pl.Expr) -> pl.Expr:
        return value.over(by) if by else value

    first = rows.drop(sums)
    if kind.most is not None:
        first = first.filter(pl.col(kind.most) == within(pl.col(kind.most).max()))
    if len(place) == 1:
        first = first.filter(pl.col(place) == within(pl.col(place).min()))
    first = first.sort(*by, *place)
    values = [name for name in rows.columns if name not in by]
    if not by:
        return pl.concat([first.head(1), rows.select(pl.col(sums).sum())], how="horizontal").select(
            values
        )
    first = first.group_by(by, maintain_order=True).first()
    added = rows.group_by(by).agg(pl.col(sums).sum())
    return first.join(added, on=by, maintain_order="left").select(*by, *values)


def _rows(found: Counterfactuals, cause: Cause) -> pl.DataFrame:
    """Return what shows a cause, before it is put together, with rows of tasks in place of these."""
    run, length = found.run, found.lengths
    columns: dict[str, Ints]
    if cause is Cause.IMBALANCE:
        columns = {"stage": run.stage, "task": run.task}
    elif cause is Cause.VARIATION:
        usual = np.maximum(length.rank_ns, 1)
        times = np.minimum(length.own_ns / usual, _MOST_TIMES)
        columns = {
            "sum_ns": np.round(times * usual).astype(np.int64),
            "expected_ns": usual,
            "square_ns": np.round(times * times * usual).astype(np.int64),
            "beyond_ns": length.own_ns - length.rank_ns,
            "longest_ns": length.own_ns,
            "usual_ns": length.rank_ns,
            "task": run.task,
        }
    elif cause is Cause.TRANSFER:
        source, target = (edge[run.links] for edge in run.graph.edges)
        columns = {
            "from": run.rank[source],
            "to": run.rank[target],
            "ns": run.delay_ns[run.links],
            "count": np.ones(len(source), np.int64),
            "task": run.task[target],
        }
    elif cause is Cause.CLOCK:
        target = run.graph.edges.target[run.links]
        columns = {
            "count": (run.early_ns < 0).astype(np.int64),
            "early_ns": -run.early_ns,
            "task": run.task[target],
        }
    else:
        late = found.late_ns(cause)
        held = np.flatnonzero(late > 0)
        columns = {
            "rank": run.rank[held],
            "ns": late[held],
            "count": np.ones(len(held), np.int64),
            "longest_ns": late[held],
            "task": run.task[held],
        }
    return pl.DataFrame(columns)


def deviation(shares: dict[str, Any]) -> float:
    """Return the standard deviation of what a row of `Cause.VARIATION` sums up, as a share.

    It is that of how many times as long as usual tasks take, each weighted by what is usual: that a
    short one takes many times as long says little.
    """
    mean = shares["sum_ns"] / shares["expected_ns"]
    return float(np.sqrt(max(shares["square_ns"] / shares["expected_ns"] - mean * mean, 0.0)))
