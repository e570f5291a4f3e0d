"""Counters in a PyTorch profiler trace: memory in use, and what others have added to it.

With `profile_memory=True` PyTorch writes an instant event for every allocation and release, with what
is then in use. Chrome's counter events are what tools add to a trace (HolisticTraceAnalysis: lengths of
queues, bandwidth of copies).
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints

MEMORY: Final = "[memory]"
"""Name of PyTorch's events about memory."""

_SAMPLES: Final = {
    "name": pl.String,
    "unit": pl.String,
    "time_ns": pl.Int64,
    "value": pl.Float64,
}
_CPU: Final = 0  # c10::DeviceType
_SIZES: Final = ("allocated", "reserved", "sort", "device")
_UNITS: Final = {"Memcpy BW": "GB/s"}
"""Series whose unit is known though no trace states it."""


class Counters:
    """Takes batches of events that count something and keeps their columns."""

    def __init__(self) -> None:
        self._memory: list[pl.DataFrame] = []
        self._counts: list[pl.DataFrame] = []

    def take_memory(self, time_ns: Ints, events: list[Any]) -> None:
        """Take events of PyTorch's memory, all of them with `Memory` as arguments."""
        sizes = list(map(attrgetter("args"), events))
        columns = {
            name: np.array(list(map(attrgetter(name), sizes)), np.float64) for name in _SIZES
        }
        self._memory.append(pl.DataFrame({"time_ns": time_ns, **columns}))

    def take(self, time_ns: Ints, events: list[Any]) -> None:
        """Take counter events, all of them with series as arguments."""
        series = [event.args for event in events]
        event = np.repeat(np.arange(len(events)), list(map(len, series)))
        values = list(chain.from_iterable(map(dict.values, series)))
        if not set(map(type, values)) <= {float}:
            values = list(map(_number, values))
        self._counts.append(
            pl.DataFrame(
                {
                    "time_ns": time_ns,
                    "counter": [one.name for one in events],
                    "id": _texts([one.id for one in events]),
                    "process": _texts([one.pid for one in events]),
                },
                schema_overrides={"counter": pl.String},
            )[event].with_columns(
                series=pl.Series(list(chain.from_iterable(series)), dtype=pl.String),
                value=pl.Series(np.array(values, np.float64)),
            )
        )

    def finish(self) -> pl.DataFrame:
        """Return all samples: name, unit, time_ns and value."""
        parts = [pl.DataFrame(schema=_SAMPLES)]
        if self._memory:
            parts += _memory(pl.concat(self._memory).fill_nan(None))
        if self._counts:
            parts.append(_counts(pl.concat(self._counts)))
        samples = pl.concat(part.select(*_SAMPLES) for part in parts)
        return samples.filter(pl.col("value").is_finite())


def _number(value: Any) -> float | None:
    """Return a number as one with a point; None of what is none, or too large to be one."""
    if type(value) not in {int, float}:
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _texts(values: list[Any]) -> pl.Series:
    return pl.Series([None if value is None else str(value) for value in values], dtype=pl.String)


def _memory(events: pl.DataFrame) -> list[pl.DataFrame]:
    """Return what is allocated and reserved on each device, and what is allocated on the host.

    An allocator that does not know how much is in use says -1. The host's reserves nothing.
    """
    on_host = pl.coalesce(pl.col("sort") == _CPU, pl.col("device") < 0).fill_null(value=False)
    host, devices = events.filter(on_host), events.filter(~on_host)
    which = pl.lit("")
    if devices["device"].drop_nulls().n_unique() > 1:
        which = pl.format(" (device {})", pl.col("device").cast(pl.Int64).fill_null(-1))
    sizes = [
        (host, "allocated", pl.lit("host memory allocated")),
        (devices, "allocated", pl.concat_str(pl.lit("memory allocated"), which)),
        (devices, "reserved", pl.concat_str(pl.lit("memory reserved"), which)),
    ]
    return [
        found.filter(pl.col(size) >= 0).select(
            "time_ns", name=name, unit=pl.lit("bytes"), value=size
        )
        for found, size, name in sizes
    ]


def _counts(samples: pl.DataFrame) -> pl.DataFrame:
    """Name the counters: as they are called, with what else tells them apart."""
    several = pl.col("series").n_unique().over("counter") > 1
    called = pl.concat_str(
        "counter",
        "id",
        pl.when(several | (pl.col("counter") == "")).then("series"),
        separator=" ",
        ignore_nulls=True,
    ).str.strip_chars()
    named = samples.with_columns(name=called)
    shared = pl.col("process").n_unique().over("name") > 1
    process = pl.format(" (process {})", pl.col("process").fill_null("unknown"))
    return named.with_columns(
        name=pl.when(shared).then(pl.concat_str("name", process)).otherwise("name"),
        unit=pl.col("series").replace_strict(_UNITS, default="", return_dtype=pl.String),
    )
