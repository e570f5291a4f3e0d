"""All causes of a step's length together: inside tasks, between them and outside of the pipeline.

Two partitions of the same time meet here: the budget says what a device did in every nanosecond, the
ledger why a rank was in no task of the pipeline. What is in a task, or outside of the pipeline phase,
has a cause by what the device waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.device_budget import in_steps, with_ended
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.idle.gaps_apart import apart
from bubblescope.model.budget import HIDDEN, HOST, Use
from bubblescope.model.intervals import overlaps
from bubblescope.model.kinds import COMPUTE_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Self

    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.model.timeline import Timeline

INSIDE: Final = "inside tasks"
BETWEEN: Final = "between tasks"
OUTSIDE: Final = "outside the pipeline"
WHOLE: Final = "in the step"

CAUSE_OF: Final[dict[Use, Cause]] = {
    **dict.fromkeys(HOST, Cause.LAUNCH),
    Use.HOST_DATA: Cause.PAUSE,
    Use.HOST_GC: Cause.PAUSE,
    Use.HOST_CALL: Cause.PAUSE,
    Use.HOST_SYSTEM: Cause.PAUSE,
    Use.RANK_WAIT: Cause.SYNC,
    Use.LAUNCH_CALL: Cause.LAUNCH,
    Use.LATENCY: Cause.LAUNCH,
    Use.COMMUNICATION: Cause.SYNC,
    Use.COPY: Cause.TRANSFER,
    Use.EVENT_WAIT: Cause.SYNC,
    Use.PAGES: Cause.TRANSFER,
    Use.UNTRACED: Cause.UNEXPLAINED,
    Use.SILENT: Cause.UNEXPLAINED,
    Use.UNLINKED: Cause.UNEXPLAINED,
}
"""Why a device is idle that is not waiting for other stages."""

UNRECORDED: Final = "not recorded"
"""Stands for the class of time in which a rank's device had not begun, or had already ended."""


class Losses(msgspec.Struct, frozen=True):
    """What makes the steps of a run long.

    Attributes:
        table: Frame with place (`INSIDE`, `BETWEEN`, `OUTSIDE` or `WHOLE`), use, cause (null for
            compute) and spent_ns: all time of the devices, and bubbles beyond it. In a run without a
            pipeline only what `in_steps` chooses.
        devices: Number of pairs of a rank and a step that it is about; of ranks if there are no steps.
    """

    table: pl.DataFrame
    devices: int

    def named(self) -> pl.DataFrame:
        """Return the same by place and name: the cause of bubbles, the use of other time."""
        bubble = pl.col("place") == BETWEEN
        return (
            self.ranked()
            .with_columns(name=pl.when(bubble).then("cause").otherwise("use"))
            .group_by("place", "name")
            .agg(pl.col("spent_ns", "share").sum())
            .with_columns(per_step_ns=pl.col("spent_ns") // max(1, self.devices))
            .sort("spent_ns", "place", "name", descending=[True, False, False])
        )

    def ranked(self) -> pl.DataFrame:
        """Return what is not compute, most first, with per_step_ns and share of all time."""
        return (
            self.table.with_columns(
                per_step_ns=pl.col("spent_ns") // max(1, self.devices),
                share=pl.col("spent_ns") / max(1, int(self.table["spent_ns"].sum())),
            )
            .filter(pl.col("use") != Use.COMPUTE.value)
            .sort("spent_ns", "place", "use", "cause", descending=[True, False, False, False])
        )


class Lost(NamedTuple):
    """What time of devices goes to, of some steps; of several parts of a run, it adds up.

    Attributes:
        table: Frame as `Losses.table`, and ended: of what is inside tasks, which all counts; in runs
            without a pipeline of all time, with ended as `with_ended` has it.
        bubbles: Frame with use, cause and spent_ns: what devices did in bubbles.
        gaps: Frame with cause and spent_ns: the bubbles themselves.
        aside: Frame with use and spent_ns: what they did in no task of the pipeline.
        devices: Frame with rank, step and ended of all that was spent.
    """

    table: pl.DataFrame
    bubbles: pl.DataFrame
    gaps: pl.DataFrame
    aside: pl.DataFrame
    devices: pl.DataFrame

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        gaps: Iterable[pl.DataFrame] | None,
        around: Timeline | None = None,
    ) -> Self:
        """Lay the budget of some steps and their bubbles over each other.

        Args:
            timeline: The run, or a part of it.
            gaps: Those of its ledger, some at a time; None if it has no pipeline. A moment that is
                in gaps of several steps counts once (`bubblescope.analysis.idle.gaps_apart`).
            around: What ranks and devices did meanwhile that is of other parts.
        """
        budget = _counted(timeline.budget)
        bubbles, idle, none = (pl.DataFrame(schema=_SCHEMA).select(names) for names in _SUMS)
        if gaps is None:
            stepped = with_ended(budget, timeline)
            table = _with_causes(stepped, WHOLE).with_columns(stepped["ended"])
            devices = stepped.select("rank", "step", "ended").unique()
            return cls(_sums(table, "ended"), bubbles, idle, none, devices)
        inside = _inside(budget)
        aside = budget.filter(~inside)
        met = aside
        if around is not None:
            met = pl.concat([aside, _outside_tasks(_counted(around.budget))])
        met = met.sort("start_ns")
        for part in apart(gaps, timeline, around):
            held = part.with_columns(pl.col("cause").cast(pl.String))
            spent = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("spent_ns")
            idle = _added("cause", idle, held.group_by("cause").agg(spent))
            bubbles = _added(("use", "cause"), bubbles, _met(met, held))
        own = aside.select(pl.col("use").cast(pl.String), "spent_ns")
        counts = pl.lit(value=True).alias("ended")
        return cls(
            _sums(_with_causes(budget.filter(inside), INSIDE)).with_columns(counts),
            bubbles,
            idle,
            own.group_by("use").agg(pl.col("spent_ns").sum()),
            budget.select("rank", "step").unique().with_columns(counts),
        )

    @classmethod
    def joined(cls, parts: Sequence[Lost]) -> Self:
        """Return it of several parts of a run together."""
        table, bubbles, gaps, aside, devices = zip(*parts, strict=True)
        return cls(
            _sums(pl.concat(table), "ended"),
            _added(("use", "cause"), *bubbles),
            _added("cause", *gaps),
            _added("use", *aside),
            pl.concat(devices).unique(),
        )


_SUMS: Final = (("use", "cause", "spent_ns"), ("cause", "spent_ns"), ("use", "spent_ns"))


def _added(by: str | tuple[str, ...], *frames: pl.DataFrame) -> pl.DataFrame:
    rows = pl.concat(frames, how="diagonal")
    return rows.group_by(by).agg(pl.col("spent_ns").sum())


def _counted(budget: pl.DataFrame) -> pl.DataFrame:
    return budget.filter(~pl.col("use").is_in([use.value for use in HIDDEN]))


def _inside(budget: pl.DataFrame) -> pl.Series:
    """Say which rows are inside tasks of the pipeline."""
    passes = pl.col("inside").is_in([kind.value for kind in COMPUTE_KINDS])
    return budget.select(passes.fill_null(value=False)).to_series()


def _outside_tasks(budget: pl.DataFrame) -> pl.DataFrame:
    return budget.filter(~_inside(budget))


def losses(timeline: Timeline, ledger: Ledger | None) -> Losses | None:
    """Lay the budget of a run's devices and the ledger of its bubbles over each other.

    Args:
        timeline: The run.
        ledger: Why it had bubbles; None if it has no pipeline.

    Returns:
        None if the traces do not tell what the devices did.
    """
    if not timeline.budget.height:
        return None
    return losses_of(Lost.of(timeline, None if ledger is None else ledger.gaps_by_part()))


def losses_of(lost: Lost) -> Losses | None:
    """Return what makes the steps of a run long; None as of `losses`.

    Args:
        lost: What time of its devices goes to.
    """
    if not lost.devices.height:
        return None
    spent = pl.col("spent_ns")
    known = lost.bubbles.group_by("cause").agg(known=spent.sum())
    # What devices did in no task, and in no bubble either.
    met = lost.bubbles.group_by("use").agg(known=spent.sum())
    left = spent - pl.col("known").fill_null(0)
    devices = in_steps(lost.devices)
    table = pl.concat(
        [
            in_steps(lost.table).drop("ended"),
            lost.bubbles.select(pl.lit(BETWEEN).alias("place"), "use", "cause", "spent_ns"),
            lost.gaps.join(known, on="cause", how="left").select(
                pl.lit(BETWEEN).alias("place"), pl.lit(UNRECORDED).alias("use"), "cause", left
            ),
            _with_causes(
                lost.aside.join(met, on="use", how="full", coalesce=True).select(
                    "use", spent.fill_null(0) - pl.col("known").fill_null(0)
                ),
                OUTSIDE,
            ),
        ]
    )
    ordered = _sums(table).filter(spent != 0).sort("place", "use", "cause")
    return Losses(ordered, devices.drop_nulls("step").height or devices["rank"].n_unique())


def _sums(table: pl.DataFrame, *also: str) -> pl.DataFrame:
    return table.group_by("place", "use", "cause", *also).agg(pl.col("spent_ns").sum())


def _with_causes(rows: pl.DataFrame, place: str) -> pl.DataFrame:
    names = {use.value: cause.value for use, cause in CAUSE_OF.items()}
    use = pl.col("use").cast(pl.String)
    return rows.select(
        place=pl.lit(place),
        use=use,
        cause=use.replace_strict(names, default=None, return_dtype=pl.String),
        spent_ns="spent_ns",
    )


def _met(budget: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return what devices did in bubbles, by their causes, as use, cause and spent_ns.

    Args:
        budget: Rows outside of the pipeline's tasks, each as long as its time, by start.
        gaps: Rows of a ledger.
    """
    window = gaps.select(pl.col("start_ns").min(), pl.col("end_ns").max())
    low, high = window.row(0) if gaps.height else (0, 0)
    budget = budget.filter(pl.col("end_ns") > low, pl.col("start_ns") < high)
    near = gaps.filter(pl.col("rank").is_in(budget["rank"].unique().implode()))
    within = near.sort("start_ns").partition_by("rank", as_dict=True)
    covered = [pl.DataFrame(schema=_SCHEMA).select(_SUMS[0])]
    for (rank, _), rows in budget.group_by("rank", "device"):
        held = within.get((rank,))
        if held is None:
            continue
        left, right = overlaps(
            np.searchsorted(held["end_ns"], rows["start_ns"], side="right"),
            np.searchsorted(held["start_ns"], rows["end_ns"], side="left"),
        )
        start = np.maximum(rows["start_ns"].to_numpy()[left], held["start_ns"].to_numpy()[right])
        end = np.minimum(rows["end_ns"].to_numpy()[left], held["end_ns"].to_numpy()[right])
        shared = {
            "use": rows["use"].gather(left).cast(pl.String),
            "cause": held["cause"].gather(right),
            "spent_ns": end - start,
        }
        covered.append(pl.DataFrame(shared))
    return pl.concat(covered)


_SCHEMA: Final = {
    "place": pl.String,
    "use": pl.String,
    "cause": pl.String,
    "spent_ns": pl.Int64,
}
