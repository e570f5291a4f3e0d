"""All causes of a step's length together: inside tasks, between them and outside of the pipeline.

Two partitions of the same time meet here: the budget says what a device did in every nanosecond, the
ledger why a rank was in no task of the pipeline. What is in a task, or outside of the pipeline phase,
has a cause by what the device waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.idle.causes import Cause
from bubblescope.model.budget import HIDDEN, HOST, Use, overlaps
from bubblescope.model.kinds import COMPUTE_KINDS

if TYPE_CHECKING:
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
    Use.LAUNCH_CALL: Cause.LAUNCH,
    Use.LATENCY: Cause.LAUNCH,
    Use.COMMUNICATION: Cause.SYNC,
    Use.COPY: Cause.TRANSFER,
    Use.EVENT_WAIT: Cause.SYNC,
    Use.UNTRACED: Cause.UNEXPLAINED,
    Use.UNLINKED: Cause.UNEXPLAINED,
}
"""Why a device is idle that is not waiting for other stages."""

UNRECORDED: Final = "not recorded"
"""Stands for the class of time in which a rank's device had not begun, or had already ended."""


class Losses(msgspec.Struct, frozen=True):
    """What makes the steps of a run long.

    Attributes:
        table: Frame with place (`INSIDE`, `BETWEEN`, `OUTSIDE` or `WHOLE`), use, cause (null for
            compute) and spent_ns: all time of the devices, and bubbles beyond it.
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


def losses(timeline: Timeline, ledger: Ledger | None) -> Losses | None:
    """Lay the budget of a run's devices and the ledger of its bubbles over each other.

    Args:
        timeline: The run.
        ledger: Why it had bubbles; None if it has no pipeline.

    Returns:
        None if the traces do not tell what the devices did.
    """
    hidden = [use.value for use in HIDDEN]
    budget = timeline.budget.filter(~pl.col("use").is_in(hidden))
    if not budget.height:
        return None
    ranks = budget.select("rank", "step").unique()
    steps = ranks.drop_nulls("step")
    if ledger is None:
        parts = [_with_causes(budget, WHOLE)]
    else:
        passes = pl.col("inside").is_in([kind.value for kind in COMPUTE_KINDS])
        inside = passes.fill_null(value=False)
        parts = [_with_causes(budget.filter(inside), INSIDE)]
        gaps = ledger.gaps.with_columns(pl.col("cause").cast(pl.String))
        parts += _bubbles(budget.filter(~inside), gaps)
    table = (
        pl.concat(parts)
        .group_by("place", "use", "cause")
        .agg(pl.col("spent_ns").sum())
        .filter(pl.col("spent_ns") != 0)
        .sort("place", "use", "cause")
    )
    return Losses(table, steps.height or ranks["rank"].n_unique())


def _with_causes(rows: pl.DataFrame, place: str) -> pl.DataFrame:
    names = {use.value: cause.value for use, cause in CAUSE_OF.items()}
    use = pl.col("use").cast(pl.String)
    return rows.select(
        place=pl.lit(place),
        use=use,
        cause=use.replace_strict(names, default=None, return_dtype=pl.String),
        spent_ns="spent_ns",
    )


def _bubbles(budget: pl.DataFrame, gaps: pl.DataFrame) -> list[pl.DataFrame]:
    """Return what devices did in bubbles, by their causes, and what they did in neither.

    Args:
        budget: Rows outside of the pipeline's tasks, each as long as its time.
        gaps: Those of the ledger.
    """
    parts = []
    met = np.zeros(budget.height, np.int64)
    budget = budget.with_row_index("row").sort("start_ns")
    within = gaps.sort("start_ns").partition_by("rank", as_dict=True)
    covered = []
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
        np.add.at(met, rows["row"].to_numpy()[left], end - start)
        shared = {"use": rows["use"].gather(left).cast(pl.String), "spent_ns": end - start}
        covered.append(
            pl.DataFrame({**shared, "cause": held["cause"].gather(right)}).select(
                pl.lit(BETWEEN).alias("place"), "use", "cause", "spent_ns"
            )
        )
    parts += covered
    whole = gaps.group_by("cause").agg(whole=(pl.col("end_ns") - pl.col("start_ns")).sum())
    known = pl.concat([pl.DataFrame(schema=_SCHEMA), *covered])
    seen = known.group_by("cause").agg(pl.col("spent_ns").sum())
    parts.append(
        whole.join(seen, on="cause", how="left").select(
            place=pl.lit(BETWEEN),
            use=pl.lit(UNRECORDED),
            cause="cause",
            spent_ns=pl.col("whole") - pl.col("spent_ns").fill_null(0),
        )
    )
    left_over = budget.with_columns(
        spent_ns=pl.col("spent_ns") - pl.Series(met).gather(pl.Series(budget["row"]))
    )
    parts.append(_with_causes(left_over, OUTSIDE))
    return parts


_SCHEMA: Final = {
    "place": pl.String,
    "use": pl.String,
    "cause": pl.String,
    "spent_ns": pl.Int64,
}
