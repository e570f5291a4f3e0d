"""What the GPUs of an Nsight Systems export call themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from bubblescope.sources.process_exports import DEVICE_NAMES, pid

if TYPE_CHECKING:
    from bubblescope.sources.nsight.tables import Tables


def device_names(tables: Tables, places: pl.DataFrame) -> pl.DataFrame:
    """Return the names of the devices of processes, with the columns of `DEVICE_NAMES`.

    Device ordinals are each process's own, and only newer versions say which GPU they stand for. That
    does not matter where all GPUs of the host have one name; otherwise it is not known.

    Args:
        tables: The export's.
        places: Frame with process and device of all that ran something.
    """
    gpus = tables.read("TARGET_INFO_GPU", ["id", "name"]).filter(pl.col("name") != "")
    names = gpus["name"].unique()
    if len(names) <= 1:
        name = pl.lit(names[0] if len(names) else None, pl.String)
        return places.with_columns(device_name=name).select(*DEVICE_NAMES)
    used = tables.read("TARGET_INFO_CUDA_DEVICE", ["pid", "cudaId", "gpuId"]).drop_nulls()
    numbers = [pid(process) for process in places["process"]]
    return (
        places.with_columns(
            pid=pl.Series(numbers, dtype=pl.Int64), cudaId=pl.col("device").cast(pl.Int64)
        )
        .join(used.unique(["pid", "cudaId"]), on=["pid", "cudaId"], how="left")
        .join(gpus.unique("id"), left_on="gpuId", right_on="id", how="left")
        .rename({"name": "device_name"})
        .select(*DEVICE_NAMES)
    )
