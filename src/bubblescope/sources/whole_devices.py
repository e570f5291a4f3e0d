"""Tasks of devices that nothing else tells tasks of: a step each, or else all that a device ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.device_time import NONE, busy_intervals, lookup
from bubblescope.model.kinds import Kind, Lane
from bubblescope.sources.projection import PLACES, TASK_COLUMNS, kernel_tasks, project

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    Args:
        capture: What a trace recorded.
        projection: The tasks made of it.
        names: What range names mean.
        steps: The steps of each process.

    Returns:
        The projection, and whether it has been added to. What ran on those devices is lost no more.
    """
    told = projection.tasks.filter(pl.col("lane") == Lane.COMPUTE.value).select(_PLACE).unique()
    places = capture.work.select(_PLACE).unique().join(told, on=_PLACE, how="anti").sort(_PLACE)
    if not places.height:
        return projection, False
    left = msgspec.structs.replace(capture, work=capture.work.join(told, on=_PLACE, how="semi"))
    base = project(left, names)
    added = [
        _of_device(capture, process, device, steps.get(process))
        for process, device in places.iter_rows()
    ]
    tasks = pl.concat([base.tasks.select(TASK_COLUMNS), *added])
    return msgspec.structs.replace(base, tasks=tasks), True


def _of_device(capture: Capture, process: int, device: int, steps: Steps | None) -> pl.DataFrame:
    """Return the tasks of one device, with the columns of `TASK_COLUMNS`."""
    work = capture.work.filter(process=process, device=device).rechunk()
    launches = capture.launches.filter(process=process)
    call = lookup(launches["correlation"].to_numpy(), work["correlation"].to_numpy())
    launched = np.append(launches["start_ns"].to_numpy(), NONE)[call]
    order = np.lexsort((launched, work["start_ns"].to_numpy()))
    work, launched = work[order], launched[order]
    marks = None if steps is None or not steps.ranges.height else steps.ranges
    if marks is None:
        owner = np.zeros(work.height, np.int64)
        named = pl.DataFrame({"name": [ALL], "step": [None]}, schema_overrides={"step": pl.Int64})
    else:
        # Of steps numbered k, what is before the first is 0, in each 2k + 1, after each 2k + 2.
        begin, end = (marks[edge].to_numpy() for edge in ("start_ns", "end_ns"))
        last = np.searchsorted(begin, launched, side="right") - 1
        inside = (last >= 0) & (launched < end[last])
        owner = np.where(inside, 2 * last + 1, 2 * last + 2)
        # What has no launch belongs to what started before it.
        known = np.maximum.accumulate(np.where(launched != NONE, np.arange(len(launched)), 0))
        owner = owner[known]
        number = marks["step"].to_list()
        named = pl.DataFrame(
            {
                "name": [_BESIDE, *(one for k in number for one in (_STEP.format(k), _BESIDE))],
                "step": [None, *(one for k in number for one in (k, None))],
            },
            schema_overrides={"step": pl.Int64},
        )
    comm = work["comm"].is_not_null().to_numpy()
    timed = np.flatnonzero(~comm) if not comm.all() else np.arange(len(comm))
    timed = timed[np.argsort(owner[timed], kind="stable")]
    intervals = busy_intervals(work, owner, timed, np.arange(named.height))
    known_launch = np.where(launched == NONE, np.iinfo(np.int64).max, launched)
    first = (
        pl.DataFrame({"range": owner, "at": known_launch})
        .group_by("range")
        .agg(host_start_ns=pl.col("at").min())
        .with_columns(pl.col("host_start_ns").replace(np.iinfo(np.int64).max, None))
    )
    nothing = {name: pl.lit(None, pl.Int64) for name in (*PLACES, "peer", "pair_stage")}
    ranges = (
        intervals.join(named.with_row_index("range").cast({"range": pl.Int64}), on="range")
        .join(first, on="range", how="left")
        .with_columns(
            process=pl.lit(process, pl.Int64),
            kind=pl.lit(Kind.OTHER.value),
            lane=pl.lit(Lane.COMPUTE.value),
            splits=pl.lit(value=False),
            host_end_ns=pl.lit(None, pl.Int64),
            pair_microbatch=pl.lit(None, pl.Int64),
            **{name: value for name, value in nothing.items() if name != "step"},
        )
    )
    kernels = work.with_columns(
        range=pl.Series(owner), host_start_ns=pl.Series(launched, dtype=pl.Int64)
    )
    beside = kernels.filter(pl.Series(comm)) if not comm.all() else kernels.clear()
    of_kernels = kernel_tasks(capture.comms, [beside], ranges)
    return pl.concat([ranges.select(TASK_COLUMNS), of_kernels.select(TASK_COLUMNS)])
