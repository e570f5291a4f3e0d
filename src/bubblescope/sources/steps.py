"""The steps that people pay for: where each begins and ends on each rank, and what was spent in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model.budget import ACTIVITY_SCHEMA, STEP_SCHEMA
from bubblescope.model.flops import FLOPS_SCHEMA
from bubblescope.model.kinds import Lane

if TYPE_CHECKING:
    from bubblescope.sources.device_spending import Spent


def in_steps(
    spent: Spent, tasks: pl.DataFrame, executed: pl.DataFrame | None = None
) -> dict[str, pl.DataFrame]:
    """Return the tables of a timeline that say what was spent on what, in which step.

    Args:
        spent: With rank instead of process in its frames.
        tasks: The tasks of all ranks, numbered: they tell the steps of ranks without markers.
        executed: Operators that multiply matrices: rank, start_ns in host time, name, precision and
            flops, null where unknown.
    """
    marked = spent.windows
    told = _from_tasks(spent, tasks.filter(~pl.col("rank").is_in(marked["rank"].implode())))
    windows = pl.concat([marked.select(told.columns), told])
    steps = (
        windows.group_by("rank", "step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max(), pl.col("open").any())
        .sort("rank", "start_ns")
    )
    return {
        "step_times": steps.select(*STEP_SCHEMA),
        "budget": _placed(spent.table, windows),
        "operations": _placed(spent.operations, windows),
        **({} if executed is None else {"flops": _summed(executed, windows)}),
        "activities": _in_tasks(_placed(spent.activities, windows), tasks),
    }


def _in_tasks(activities: pl.DataFrame, tasks: pl.DataFrame) -> pl.DataFrame:
    """Give each kernel what is known of the task in whose range it was launched.

    A kernel is of its task's step, also where it runs when the next step has begun.
    """
    if not activities.height:
        return pl.DataFrame(schema=ACTIVITY_SCHEMA)
    of = ["rank", "host_start_ns", "range"]
    known = (
        tasks.rename({"name": "range"})
        .select(*of, "kind", "stage", "microbatch", of_task=pl.col("step").cast(pl.Int32))
        .drop_nulls("host_start_ns")
        .unique(of, keep="first", maintain_order=True)  # one range may name several operations
    )
    return (
        activities.join(known, on=of, how="left")
        .with_columns(step=pl.coalesce("of_task", "step"))
        .select(*ACTIVITY_SCHEMA)
    )


def _from_tasks(spent: Spent, tasks: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of ranks by their tasks: each from its first to the first of the next.

    The last of a rank ends with whatever it ran last, and is open.
    """
    last = spent.table.group_by("rank").agg(last_ns=pl.col("end_ns").max())
    following = pl.col("start_ns").shift(-1).over("rank")
    return (
        tasks.drop_nulls("step")
        .filter(pl.col("lane") == Lane.COMPUTE.value)
        .group_by("rank", "step")
        .agg(
            pl.col("start_ns").min(),
            done_ns=pl.col("end_ns").max(),
            host_ns=pl.col("host_start_ns").min(),
        )
        .sort("rank", "start_ns")
        .join(last, on="rank", how="left", maintain_order="left")
        .select(
            pl.col("rank").cast(pl.Int32),
            pl.lit(None, pl.Int32).alias("device"),
            pl.col("step").cast(pl.Int64),
            "start_ns",
            end_ns=pl.coalesce(following, pl.max_horizontal("done_ns", "last_ns")),
            open=following.is_null(),
            host_ns="host_ns",
        )
    )


def _placed(frame: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Give each row the step in whose time it begins; none if it is in none."""
    parts = []
    for place in (["rank", "device"], ["rank"]):
        of = windows.filter(pl.col("device").is_null() == (place == ["rank"]))
        begun = of.select(*place, "start_ns", "step", until_ns="end_ns").sort("start_ns")
        mine = frame.join(of.select(place).unique(), on=place, how="semi")
        parts.append(
            mine.sort("start_ns").join_asof(begun, on="start_ns", by=place, check_sortedness=False)
        )
    known = pl.concat(parts).with_columns(
        step=pl.when(pl.col("start_ns") < pl.col("until_ns")).then("step").cast(pl.Int32)
    )
    others = frame.join(windows.select("rank").unique(), on="rank", how="anti")
    return pl.concat([known.drop("until_ns"), others.with_columns(step=pl.lit(None, pl.Int32))])


def _summed(executed: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Return what was executed in each step, with the columns of `FLOPS_SCHEMA`.

    What the host calls from a step's beginning to the next one's is the step's: its work runs in the
    step's time on the device. What it called before the first is in none.
    """
    begun = (
        windows.drop_nulls("host_ns")
        .group_by("rank", "step")
        .agg(start_ns=pl.col("host_ns").min())
        .sort("start_ns")
    )
    flops = pl.col("flops")
    # Sizes that no device has been given add up to more than 64 bits hold.
    sound = flops.cast(pl.Float64).sum() < _MOST
    return (
        executed.sort("start_ns")
        .join_asof(begun, on="start_ns", by="rank", check_sortedness=False)
        .group_by("rank", "step", "name", "precision")
        .agg(
            flops=pl.when(sound & flops.is_not_null().any()).then(flops.sum()),
            operators=flops.count(),
            unknown=flops.null_count(),
        )
        .cast(FLOPS_SCHEMA)  # type: ignore[arg-type]  # columns by name
        .select(*FLOPS_SCHEMA)
    )


_MOST: Final = 2.0**62
