"""The kernels, copies and fills of one trace, each with its name, its task's range and its module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from bubblescope.model.budget import ACTIVITY_SCHEMA, Use
from bubblescope.model.device_time import NONE, lookup
from bubblescope.names.kernel_names import short_name
from bubblescope.sources.modules import modules_at

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints
    from bubblescope.sources.capture import Capture

_OF_TRACE: Final = ("device", "stream", "use", "name", "full", "module")
ACTIVITIES: Final = {
    "process": pl.Int64(),
    **{name: ACTIVITY_SCHEMA[name] for name in _OF_TRACE},
    "host_start_ns": pl.Int64(),
    "range": pl.String(),
    **dict.fromkeys(("start_ns", "end_ns", "launch_ns"), pl.Int64()),
}
"""Columns of activities before ranks and tasks are known: `host_start_ns` and `range` are start and
name of the range of the task in which one was launched."""

NO_ACTIVITIES: Final = pl.DataFrame(schema=ACTIVITIES)
"""Those of a trace of which they were not asked for."""

COPY_PREFIX: Final = "Memcpy "
"""What the names of copies begin with, before their sort."""


def activities(capture: Capture, owners: pl.DataFrame | None) -> pl.DataFrame:
    """Return what ran on a trace's devices, with the columns of `ACTIVITIES`.

    Args:
        capture: What the trace recorded; without `kernels`, nothing is returned.
        owners: The range of each row of its work, as in `Projection`; without, nothing is returned.
    """
    if capture.kernels is None or owners is None or not capture.work.height:
        return NO_ACTIVITIES
    work = capture.work
    launched, thread = _launches(capture)
    use = (
        pl.when(pl.col("comm").is_not_null())
        .then(pl.lit(Use.COMMUNICATION.value))
        .when(pl.col("copy").is_not_null())
        .then(pl.lit(Use.COPY.value))
        .otherwise(pl.lit(Use.COMPUTE.value))
    )
    name, full = _names(capture, capture.kernels)
    return work.select(
        "process",
        "device",
        "stream",
        "start_ns",
        # As in the device's budget: what ends before it begins takes no time.
        end_ns=pl.max_horizontal("start_ns", "end_ns"),
        use=use.cast(ACTIVITY_SCHEMA["use"]),
        name=name,
        full=full,
        module=modules_at(capture, work["process"].to_numpy(), thread, launched),
        host_start_ns=owners["host_start_ns"],
        range=owners["name"],
        launch_ns=pl.Series(launched).replace(NONE, None),
    ).select(*ACTIVITIES)


def _launches(capture: Capture) -> tuple[Ints, Ints]:
    """Return when each row of the work was launched, or `NONE`, and by which thread."""
    launched = np.full(capture.work.height, NONE, np.int64)
    thread = np.full(capture.work.height, NONE, np.int64)
    process_of = capture.work["process"].to_numpy()
    correlation = capture.work["correlation"].to_numpy()
    for process in np.unique(process_of):
        rows = np.flatnonzero(process_of == process)
        calls = capture.launches.filter(process=int(process))
        call = lookup(calls["correlation"].to_numpy(), correlation[rows])
        launched[rows] = np.append(calls["start_ns"].to_numpy(), NONE)[call]
        thread[rows] = np.append(calls["thread"].to_numpy(), NONE)[call]
    return launched, thread


def _names(capture: Capture, kernels: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Return short and full names of the work; copies are named by their sort."""
    full = pl.Series(capture.kernel_names, dtype=pl.String)
    short = pl.Series(map(short_name, capture.kernel_names), dtype=pl.String)
    sorts = pl.Series([COPY_PREFIX + sort for sort in capture.copies], dtype=pl.String)
    of, copy = kernels.cast(pl.UInt32), capture.work["copy"].cast(pl.UInt32)
    table = pl.DataFrame(
        {"short": short.gather(of), "full": full.gather(of), "copy": sorts.gather(copy)}
    )
    names = table.select(
        # ROCm's kernels that copy have no other sort than their name.
        name=pl.when(pl.col("copy").str.ends_with(pl.col("full")))
        .then("full")
        .otherwise(pl.coalesce("copy", "short", pl.lit("unknown"))),
        full=pl.coalesce("full", "copy", pl.lit("unknown")),
    )
    return names["name"], names["full"]
