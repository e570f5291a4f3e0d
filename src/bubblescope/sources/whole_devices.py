"""Tasks of devices that nothing else tells tasks of: a step each, or else all that a device ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.device_time import NONE, busy_intervals, lookup
from bubblescope.model.kinds import Kind, Lane
from bubblescope.sources.projection import PLACES, TASK_COLUMNS, kernel_tasks, project

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bubblescope.model.arrays import Ints
    from bubblescope.names.parser import NameParser
    from bubblescope.sources.capture import Capture
    from bubblescope.sources.projection import Projection
    from bubblescope.sources.step_marks import Steps

ALL: Final = "all device work"
_BESIDE: Final = "work outside of steps"
_STEP: Final = "step {}"
_PLACE: Final = ["process", "device"]


def with_whole_devices(
    capture: Capture, projection: Projection, names: NameParser, steps: Mapping[int, Steps]
) -> tuple[Projection, bool]:
    """Add tasks of kind other for devices that have no task, so that all that worked are seen.

    Where optimizers are all that is told of a device, it ran other work as well.

    Args:
        capture: What a trace recorded.
        projection: The tasks made of it.
        names: What range names mean.
        steps: The steps of each process.

    Returns:
        The projection, and whether it has been added to. What ran on those devices is lost no more.
    """
    computes = pl.col("lane") == Lane.COMPUTE.value, pl.col("kind") != Kind.OPTIMIZER.value
    told = projection.tasks.filter(*computes).select(_PLACE).unique()
    places = capture.work.select(_PLACE).unique().join(told, on=_PLACE, how="anti").sort(_PLACE)
    if not places.height:
        return projection, False
    work = capture.work.join(told, on=_PLACE, how="semi")
    meaning = {**names.parse_all(capture.ranges["name"]), **capture.meaning}
    updates = [name for name, said in meaning.items() if said[0].kind is Kind.OPTIMIZER]
    elsewhere = ~pl.col("process").is_in(told["process"].unique().implode())
    ranges = capture.ranges.filter(~(elsewhere & pl.col("name").is_in(updates)))
    base = project(msgspec.structs.replace(capture, work=work, ranges=ranges, kernels=None), names)
    wholes = [
        _of_device(capture, process, device, steps.get(process))
        for process, device in places.iter_rows()
    ]
    tasks = pl.concat([base.tasks.select(TASK_COLUMNS), *(one.tasks for one in wholes)])
    owners = projection.owners
    if owners is not None:
        owned = pl.concat(one.owners for one in wholes)
        others = owners.with_row_index("row").join(owned, on="row", how="anti")
        owners = pl.concat([others.select(owned.columns), owned]).sort("row").drop("row")
    return msgspec.structs.replace(base, tasks=tasks, owners=owners), True


class _Whole(NamedTuple):
    """The tasks of one device, with the columns of `TASK_COLUMNS`, and the task of each row of work."""

    tasks: pl.DataFrame
    owners: pl.DataFrame  # row of the capture's work, host_start_ns and name


def _of_device(capture: Capture, process: int, device: int, steps: Steps | None) -> _Whole:
    """Return the tasks of one device."""
    rows = capture.work.with_row_index("row").filter(process=process, device=device)
    launches = capture.launches.filter(process=process)
    call = lookup(launches["correlation"].to_numpy(), rows["correlation"].to_numpy())
    launched = np.append(launches["start_ns"].to_numpy(), NONE)[call]
    order = np.lexsort((launched, rows["start_ns"].to_numpy()))
    rows, launched = rows[order], launched[order]
    work = rows.drop("row")
    named = _names(steps)
    owner = _owners(launched, None if steps is None else steps.ranges)
    comm = work["comm"].is_not_null().to_numpy()
    # A device that communicates alone is not idle for it.
    timed = np.flatnonzero(~comm) if not comm.all() else np.arange(len(comm))
    timed = timed[np.argsort(owner[timed], kind="stable")]
    intervals = busy_intervals(work, owner, timed, np.arange(named.height))
    owned = pl.DataFrame({"range": owner, "at": pl.Series(launched).replace(NONE, None)})
    ranges = (
        intervals.join(named, on="range")
        .join(owned.group_by("range").agg(host_start_ns=pl.col("at").min()), on="range")
        .with_columns(
            *(pl.lit(None, pl.Int64).alias(name) for name in _UNKNOWN),
            process=pl.lit(process, pl.Int64),
            kind=pl.lit(Kind.OTHER.value),
            lane=pl.lit(Lane.COMPUTE.value),
            certainty=pl.lit(None, pl.Float32),
            splits=pl.lit(value=False),
        )
    )
    kernels = work.with_columns(
        range=pl.Series(owner), host_start_ns=pl.Series(launched, dtype=pl.Int64)
    )
    beside = kernels.filter(pl.Series(comm)) if not comm.all() else kernels.clear()
    tasks = [ranges.select(TASK_COLUMNS), kernel_tasks(capture.comms, [beside], ranges)]
    owners = owned.join(
        ranges.select("range", "host_start_ns", "name"),
        on="range",
        how="left",
        maintain_order="left",
    )
    return _Whole(
        pl.concat(tasks), owners.select(row=rows["row"], host_start_ns="host_start_ns", name="name")
    )


_UNKNOWN: Final = [
    name
    for name in TASK_COLUMNS
    if name
    in {
        *PLACES,
        "peer",
        "pair_stage",
        "pair_microbatch",
        "graph",
        "received",
        "sent_to",
        "host_end_ns",
    }
    - {"step"}
]


def _names(steps: Steps | None) -> pl.DataFrame:
    """Return range, name and step of a device's tasks.

    Without steps there is one. Else what is outside of the steps is told apart: with steps counted by k
    from 0, what comes before the first is 0, the steps are 2k + 1, what comes after each is 2k + 2.
    """
    names: list[tuple[str, int | None]] = [(ALL, None)]
    if steps is not None and steps.ranges.height:
        names = [(_BESIDE, None)]
        for step in steps.ranges["step"]:
            names += [(_STEP.format(step), step), (_BESIDE, None)]
    return pl.DataFrame(names, schema={"name": pl.String, "step": pl.Int64}, orient="row").select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("range"), "name", "step"
    )


def _owners(launched: Ints, steps: pl.DataFrame | None) -> Ints:
    """Return the task of each row of a device's work, by start, as `_names` counts them.

    Args:
        launched: When each was launched, or `NONE`: that is of the same task as what started before it.
        steps: The steps' ranges, if any are known.
    """
    if steps is None or not steps.height:
        return np.zeros(len(launched), np.int64)
    begin, end = (steps[edge].to_numpy() for edge in ("start_ns", "end_ns"))
    last = np.searchsorted(begin, launched, side="right") - 1
    owner = np.where((last >= 0) & (launched < end[last]), 2 * last + 1, 2 * last + 2)
    known = np.maximum.accumulate(np.where(launched != NONE, np.arange(len(launched)), 0))
    return owner[known]
