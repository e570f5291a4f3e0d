"""The tables of a timeline beside its tasks and ranks: what they hold and how they are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from bubblescope.model.budget import ACTIVITY_SCHEMA, BUDGET_SCHEMA, OPERATION_SCHEMA, STEP_SCHEMA
from bubblescope.model.counters import COUNTER_KEY, COUNTER_SCHEMA
from bubblescope.model.flops import FLOPS_SCHEMA
from bubblescope.model.groups import GROUP_SCHEMA

if TYPE_CHECKING:
    import polars as pl


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
        ("rank", "step", "name"),
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
