"""The tables of a timeline beside its tasks: what they hold and how they are kept."""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec
import polars as pl

from bubblescope.model.budget import ACTIVITY_SCHEMA, BUDGET_SCHEMA, OPERATION_SCHEMA, STEP_SCHEMA
from bubblescope.model.counters import COUNTER_KEY, COUNTER_SCHEMA
from bubblescope.model.flops import FLOPS_SCHEMA
from bubblescope.model.groups import GROUP_SCHEMA
from bubblescope.model.timing import TIMED_DTYPE

RANK_SCHEMA: Final[dict[str, pl.DataType]] = {
    "rank": pl.Int32(),
    "host": pl.String(),
    "process": pl.Int64(),
    "device": pl.Int32(),
    "device_name": pl.String(),
    "timed": TIMED_DTYPE,
    "stages": pl.List(pl.Int32()),
    "dp": pl.Int32(),
    "tp": pl.Int32(),
    "cp": pl.Int32(),
    "pp": pl.Int32(),
    "ep": pl.Int32(),
    "etp": pl.Int32(),
    "edp": pl.Int32(),
    "clock_offset_ns": pl.Int64(),
    "clock_error_ns": pl.Int64(),
}
"""Columns of `Timeline.ranks`, in order."""

PIPELINE: Final = ("dp", "tp", "cp")
"""Of these, the coordinates that the ranks of one pipeline have in common; others differ along it."""


class Table(msgspec.Struct, frozen=True):
    """One of the tables.

    Attributes:
        schema: Its columns, in order.
        order: What its rows are sorted by.
        required: Columns that must be there, and never null.
        moments: Columns of times on the run's clock, as against lengths of time.
    """

    schema: dict[str, pl.DataType]
    order: tuple[str, ...]
    required: tuple[str, ...]
    moments: tuple[str, ...] = ("start_ns", "end_ns")

    def empty(self) -> pl.DataFrame:
        """Return the table without rows."""
        return _empty(*self.schema.items()).clone()


@cache
def _empty(*columns: tuple[str, pl.DataType]) -> pl.DataFrame:
    """Return a frame without rows, which takes a third of a millisecond to make."""
    return pl.DataFrame(schema=dict(columns))


TABLES: Final[dict[str, Table]] = {
    "counters": Table(
        COUNTER_SCHEMA, (*COUNTER_KEY, "time_ns"), tuple(COUNTER_SCHEMA), ("time_ns",)
    ),
    "step_times": Table(
        STEP_SCHEMA, ("rank", "step", "start_ns"), ("rank", "step", "start_ns", "end_ns")
    ),
    "budget": Table(
        BUDGET_SCHEMA,
        ("rank", "device", "start_ns", "end_ns", "use", "detail", "role"),
        ("rank", "start_ns", "end_ns", "use", "spent_ns"),
    ),
    "operations": Table(
        OPERATION_SCHEMA,
        ("rank", "device", "start_ns", "end_ns", "name"),
        ("rank", "start_ns", "end_ns", "exposed_ns", "hidden_ns"),
    ),
    "flops": Table(
        FLOPS_SCHEMA,
        ("rank", "step", "name", "precision"),
        ("rank", "name", "operators", "unknown"),
        (),
    ),
    "activities": Table(
        ACTIVITY_SCHEMA,
        ("rank", "device", "start_ns", "end_ns", "name"),
        ("rank", "use", "name", "start_ns", "end_ns"),
        ("start_ns", "end_ns", "launch_ns"),
    ),
    "groups": Table(GROUP_SCHEMA, ("name",), (), ()),
}
"""Attributes of a timeline that are such tables."""
