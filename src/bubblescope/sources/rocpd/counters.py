"""The memory that a process holds of each GPU, out of the allocations in a rocpd file."""

from __future__ import annotations

from typing import Final

import polars as pl

_PLACE: Final = ("process", "device")


def held_memory(events: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """Return what each process allocated of each GPU less what it freed of that.

    What it held before the capture began is not known. A release says its address only, so it is that
    of the latest allocation there; one of nothing that was seen to be allocated is left out.

    Args:
        events: Frame with process, agent, start_ns, end_ns, type, level, address and size, in bytes.
        gpus: Frame with agent and device.

    Returns:
        Frame with process, device, name, unit, time_ns and value.
    """
    real = events.filter(level="REAL")
    taken = (
        real.filter(type="ALLOC")
        .join(gpus, on="agent")
        .select(*_PLACE, "address", time_ns="start_ns", change="size")
        .sort("time_ns")
        .with_row_index("allocation")
    )
    freed = (
        real.filter(type="FREE")
        .select("process", "address", time_ns="start_ns")
        .sort("time_ns")
        .join_asof(taken, on="time_ns", by=["process", "address"], check_sortedness=False)
        .drop_nulls("allocation")
        .unique("allocation", keep="first", maintain_order=True)
    )
    columns = [*_PLACE, "time_ns", "change"]
    return (
        pl.concat([taken.select(columns), freed.select(columns).with_columns(-pl.col("change"))])
        .sort(*_PLACE, "time_ns", maintain_order=True)
        .select(
            *_PLACE,
            "time_ns",
            name=pl.lit("device memory"),
            unit=pl.lit("bytes"),
            value=pl.col("change").cum_sum().over(_PLACE).cast(pl.Float64),
        )
        .select(*_PLACE, "name", "unit", "time_ns", "value")
    )
