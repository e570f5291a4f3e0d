"""Counters in an Nsight Systems export: memory held of each device, and sampled GPU metrics.

Tables of `nsys profile --cuda-memory-usage=true` and `--gpu-metrics-devices=...`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model.counters import changes

if TYPE_CHECKING:
    from bubblescope.sources.nsight.tables import Tables

_ON_DEVICE: Final = (2, 3, 5)  # ENUM_CUDA_MEM_KIND: device, array, device static
_ALLOCATION, _RELEASE = 0, 1  # ENUM_CUDA_DEV_MEM_EVENT_OPER
_PLACE: Final = ("process", "device")
_COLUMNS: Final = (*_PLACE, "name", "unit", "time_ns", "value")
_PROCESS_ID: Final = 0xFFFFFF
_GPU: Final = 0xFF
"""The low byte of a metric's type is the GPU that it was sampled on."""
_METRIC: Final = r"^(?<name>.+) \[(?:Throughput (?<share>%)|(?<rate>MHz))\]$"
"""Metrics in units that mean something without the GPU's data sheet. Others say the same in cycles or
warps."""
_MHZ: Final = 1e6


def memory(tables: Tables) -> pl.DataFrame:
    """Return the memory that each process holds of each device: what it allocated less what it freed.

    What it held before the capture began is not known, so the sum is the least that can be: it is
    never below zero.

    Returns:
        Frame with process, device, name, unit, time_ns and value.
    """
    events = tables.read(
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        ["start", "globalPid", "deviceId", "bytes", "memKind", "memoryOperationType"],
        lambda piece: (
            piece.drop_nulls()
            .filter(
                pl.col("memKind").is_in(_ON_DEVICE)
                & pl.col("memoryOperationType").is_in([_ALLOCATION, _RELEASE])
            )
            .select(
                process=pl.col("globalPid") // (1 << 24),
                device=pl.col("deviceId").cast(pl.Int32),
                time_ns="start",
                change=pl.when(memoryOperationType=_ALLOCATION)
                .then("bytes")
                .otherwise(-pl.col("bytes")),
            )
        ),
    )
    held = pl.col("change").cum_sum().over(_PLACE)
    least = pl.col("held").min().over(_PLACE).clip(upper_bound=0)
    return (
        events.sort(*_PLACE, "time_ns", maintain_order=True)
        .with_columns(held=held)
        .with_columns(
            name=pl.lit("device memory"),
            unit=pl.lit("bytes"),
            value=(pl.col("held") - least).cast(pl.Float64),
        )
        .select(_COLUMNS)
    )


def gpu_metrics(tables: Tables, places: pl.DataFrame) -> tuple[pl.DataFrame, bool]:
    """Return what was sampled on the GPU of each place.

    Args:
        tables: The export's.
        places: Frame with process and device of all that ran something.

    Returns:
        Frame with process, device, name, unit, time_ns and value; and whether there are metrics of
        which the export does not say whose GPU they are of.
    """
    named = _metrics(tables)
    if named.is_empty():
        return pl.DataFrame(schema=_schema()), False
    samples = tables.read(
        "GPU_METRICS",
        ["timestamp", "typeId", "metricId", "value"],
        lambda piece: (
            piece.drop_nulls()
            .select(
                gpu=pl.col("typeId") & _GPU,
                metric="metricId",
                time_ns="timestamp",
                value=pl.col("value").cast(pl.Float64, strict=False),
            )
            .drop_nulls()
            .join(named, on=["gpu", "metric"])
            .drop("metric")
        ),
    )
    placed = _gpus(tables, places, samples["gpu"].unique())
    lost = samples.height > 0 and placed.height < places.height
    # Versions write megahertz as such, or as hertz under the same name.
    in_hertz = pl.col("value").max().over("name") > _MHZ / 10
    samples = samples.with_columns(
        value=pl.when((pl.col("unit") == "MHz") & in_hertz)
        .then(pl.col("value") / _MHZ)
        .otherwise("value")
    )
    parts = [
        changes(samples.filter(gpu=gpu).drop("gpu"))
        .with_columns(process=pl.lit(process, pl.Int64), device=pl.lit(device, pl.Int32))
        .select(_COLUMNS)
        for process, device, gpu in placed.iter_rows()
    ]
    return pl.concat([pl.DataFrame(schema=_schema()), *parts]), lost


def _metrics(tables: Tables) -> pl.DataFrame:
    """Return gpu, metric (its id), name and unit of the metrics that are understood."""
    table = tables.texts("TARGET_INFO_GPU_METRICS", ["typeId", "metricId", "metricName"])
    found = pl.col("metricName").str.extract_groups(_METRIC)
    return (
        table.select(
            gpu=pl.col("typeId").cast(pl.Int64, strict=False) & _GPU,
            metric=pl.col("metricId").cast(pl.Int64, strict=False),
            name=found.struct.field("name"),
            unit=pl.coalesce(found.struct.field("share"), found.struct.field("rate")),
        )
        .drop_nulls()
        .unique(["gpu", "metric"], maintain_order=True)
    )


def _gpus(tables: Tables, places: pl.DataFrame, sampled: pl.Series) -> pl.DataFrame:
    """Return process, device and gpu (as metrics number them) of the places whose GPU is known.

    Device ordinals are each process's own; only newer versions say which GPU they stand for.
    """
    used = tables.read("TARGET_INFO_CUDA_DEVICE", ["pid", "cudaId", "gpuId"]).drop_nulls()
    numbers = tables.read("TARGET_INFO_GPU", ["id", "pwGpuId"]).drop_nulls()
    if used.is_empty() and len(sampled) == len(places) == 1:
        return places.select(*_PLACE, gpu=pl.lit(sampled[0], pl.Int64))
    return (
        places.with_columns(
            pid=pl.col("process") & _PROCESS_ID, cudaId=pl.col("device").cast(pl.Int64)
        )
        .join(used.unique(["pid", "cudaId"]), on=["pid", "cudaId"])
        .join(numbers.unique("id"), left_on="gpuId", right_on="id", how="left")
        .select(*_PLACE, gpu=pl.coalesce("pwGpuId", "gpuId"))
    )


def _schema() -> dict[str, pl.DataType]:
    return {
        "process": pl.Int64(),
        "device": pl.Int32(),
        "name": pl.String(),
        "unit": pl.String(),
        "time_ns": pl.Int64(),
        "value": pl.Float64(),
    }
