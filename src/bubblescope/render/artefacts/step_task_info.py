"""The table that MindStudio Insight draws its pipeline chart from, in an Ascend profiler database.

`StepTaskInfo(name TEXT, startNs INTEGER, endNs INTEGER, type INTEGER)` and the column
`COMMUNICATION_OP.opConnectionId`, as the `pp_chart` recipe of Ascend's msprof-analyze writes them.
Compared with it in `docs/ascend.md`.
"""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from bubblescope.model.kinds import COMPUTE_KINDS, Kind, Lane
from bubblescope.schedules import mindspeed_dualpipev as mindspeed
from bubblescope.schedules.dualpipe import PHASES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from bubblescope.model.timeline import Timeline

_UNPLACED: Final = len(PHASES)
"""The type of a row of a DualPipeV whose place in the schedule is not certain."""
_TABLE: Final = (
    'CREATE TABLE "StepTaskInfo" ("name" TEXT, "startNs" INTEGER, "endNs" INTEGER, "type" INTEGER)'
)
_SHORT: Final = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "B",
    Kind.BACKWARD_INPUT: "B",
    Kind.BACKWARD_WEIGHT: "W",
    Kind.FORWARD_BACKWARD: "F+B",
    Kind.RECOMPUTE: "R",
}
_TYPES: Final = {
    Kind.FORWARD: 0,
    Kind.BACKWARD: 1,
    Kind.BACKWARD_INPUT: 1,
    Kind.BACKWARD_WEIGHT: 2,
    Kind.FORWARD_BACKWARD: 3,
    Kind.RECOMPUTE: 4,
}
_FORWARDS: Final = [Kind.FORWARD.value, Kind.FORWARD_BACKWARD.value]

Chart = tuple[pl.DataFrame, pl.DataFrame]
"""What is written into one database: `rows` and `links`."""


def rows(timeline: Timeline, rank: int, *, detailed: bool = False) -> pl.DataFrame:
    """Return a rank's rows of StepTaskInfo: name, startNs, endNs and type, by start.

    Args:
        timeline: Of the run, as the Ascend source reads it.
        rank: Whose rows.
        detailed: On a classic pipeline, name micro-batches ("F3") and tell weight gradients (type
            2) from backwards, where the original writes FP (type 0) and BP (type 1).
    """
    tasks = timeline.tasks.filter(pl.col("lane") == Lane.COMPUTE.value, rank=rank).sort("start_ns")
    stages = timeline.ranks.filter(rank=rank)["stages"][0]
    if timeline.run.schedule == "dualpipev" and timeline.run.microbatches and stages is not None:
        named = _of_dualpipev(tasks, stages.to_list(), timeline.run.microbatches)
    else:
        passes = tasks.filter(pl.col("kind").is_in([kind.value for kind in COMPUTE_KINDS]))
        named = _detailed(passes) if detailed else _classic(passes)
    return named.select("name", "type", startNs="start_ns", endNs="end_ns").select(
        "name", "startNs", "endNs", pl.col("type").cast(pl.Int64)
    )


def _classic(tasks: pl.DataFrame) -> pl.DataFrame:
    forward = pl.col("kind").is_in(_FORWARDS)
    return tasks.with_columns(
        name=pl.when(forward).then(pl.lit("FP")).otherwise(pl.lit("BP")),
        type=pl.when(forward).then(0).otherwise(1),
    )


def _detailed(tasks: pl.DataFrame) -> pl.DataFrame:
    kinds = [kind.value for kind in _SHORT]
    short = pl.col("kind").cast(pl.String).replace_strict(kinds, list(_SHORT.values()))
    number = pl.col("microbatch").cast(pl.String).fill_null("")
    return tasks.with_columns(
        name=short + number,
        type=pl.col("kind")
        .cast(pl.String)
        .replace_strict(kinds, [_TYPES[kind] for kind in _SHORT]),
    )


def _of_dualpipev(tasks: pl.DataFrame, stages: list[int], microbatches: int) -> pl.DataFrame:
    """Name what is certain by its place in the schedule, and the rest by its kind alone."""
    key = ["kind", "chunk", "microbatch"]
    plan = pl.DataFrame(schema={"kind": pl.String, "chunk": pl.Int16, "microbatch": pl.Int32})
    plan = plan.with_columns(phase=pl.lit(None, pl.Int64))
    if len(stages) == 2:  # stages s and 2p - 1 - s
        planned = mindspeed.order((sum(stages) + 1) // 2, min(stages), microbatches)
        plan = pl.DataFrame(
            [(step.kind.value, step.chunk, step.microbatch, step.phase) for step in planned],
            schema=plan.schema,
            orient="row",
        )
    kinds = [kind.value for kind in _SHORT]
    short = pl.col("kind").replace_strict(kinds, list(_SHORT.values()), default=pl.col("name"))
    return (
        tasks.with_columns(pl.col("kind").cast(pl.String))
        .join(plan, on=key, how="left", maintain_order="left")
        .with_columns(
            name=pl.when(pl.col("phase").is_null()).then(short).otherwise("name"),
            type=pl.col("phase").fill_null(_UNPLACED),
        )
    )


def links(operations: pl.DataFrame) -> pl.DataFrame:
    """Return the connection of each send and receive: op_id and link.

    Both ends of a transfer have the same: "{domain}_{source}_{target}_{k}", with ranks within their
    group, and k counting the transfers from one to the other by their start.

    Args:
        operations: Frame with op_id, start_ns, way ("s" or "r"), domain, source (its own rank) and
            target (the other's).
    """
    sends = pl.col("way") == "s"
    return (
        operations.drop_nulls(["way", "domain", "source", "target"])
        .with_columns(
            sender=pl.when(sends).then("source").otherwise("target"),
            receiver=pl.when(sends).then("target").otherwise("source"),
        )
        .sort("start_ns", maintain_order=True)
        .with_columns(k=pl.int_range(pl.len()).over("sender", "receiver"))
        .select("op_id", link=pl.concat_str("domain", "sender", "receiver", "k", separator="_"))
    )


def write(charts: Mapping[Path, Chart]) -> None:
    """Write the tables of all databases, or none of them.

    Args:
        charts: Database -> its rows and links. What it held of both before is replaced.

    Raises:
        sqlite3.Error: A database is locked, read-only or damaged; none is changed then.
    """
    with ExitStack() as stack:
        connections = []
        for path, (named, linked) in charts.items():
            connection = stack.enter_context(
                closing(sqlite3.connect(path, isolation_level=None, timeout=5))
            )
            connections.append(connection)
            connection.execute("BEGIN IMMEDIATE")
            _fill(connection, named, linked)
        # Each database is consistent by itself; the last moment at which one can fail is before any
        # of them is committed.
        for connection in connections:
            connection.execute("COMMIT")


def _fill(connection: sqlite3.Connection, named: pl.DataFrame, linked: pl.DataFrame) -> None:
    connection.execute('DROP TABLE IF EXISTS "StepTaskInfo"')
    connection.execute(_TABLE)
    connection.executemany('INSERT INTO "StepTaskInfo" VALUES (?, ?, ?, ?)', _tuples(named))
    columns = {row[1] for row in connection.execute('PRAGMA table_info("COMMUNICATION_OP")')}
    if "opConnectionId" in columns:
        connection.execute("UPDATE COMMUNICATION_OP SET opConnectionId = NULL")
    if not linked.height:
        return
    if "opConnectionId" not in columns:
        connection.execute("ALTER TABLE COMMUNICATION_OP ADD COLUMN opConnectionId TEXT")
    connection.executemany(
        "UPDATE COMMUNICATION_OP SET opConnectionId = ? WHERE opId = ?",
        _tuples(linked.select("link", "op_id")),
    )


def _tuples(frame: pl.DataFrame) -> Iterable[tuple[Any, ...]]:
    """Return rows; going by columns is several times as fast as `iter_rows`."""
    return zip(*(column.to_list() for column in frame), strict=True)
