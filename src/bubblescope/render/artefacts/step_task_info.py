"""The table that MindStudio Insight draws its pipeline chart from, in an Ascend profiler database.

`StepTaskInfo(name TEXT, startNs INTEGER, endNs INTEGER, type INTEGER)` and the column
`COMMUNICATION_OP.opConnectionId`, as the `pp_chart` recipe of Ascend's msprof-analyze writes them.
Compared with it in `docs/ascend.md`.
"""

from __future__ import annotations

import signal
import sqlite3
import threading
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import polars.selectors as cs

from bubblescope.model.kinds import COMPUTE_KINDS, Kind, Lane
from bubblescope.model.plain_text import UNSEEN
from bubblescope.schedules import mindspeed_dualpipev as mindspeed
from bubblescope.schedules.dualpipe import PHASES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bubblescope.model.timeline import Timeline

_UNPLACED: Final = len(PHASES)
"""The type of a row of a DualPipeV whose place in the schedule is not certain."""
_COLUMNS: Final = '"name" TEXT, "startNs" INTEGER, "endNs" INTEGER, "type" INTEGER'
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

    Whenever the process ends, all databases have their chart or all are as they were: they are
    changed in one transaction, which SQLite rolls back in whatever opens one of them next. SQLite has
    no room for more than 11 in a transaction; of more, that holds for each 11, which are committed
    directly one after the other when all are written.

    Args:
        charts: Database -> its rows and links. What it held of both before is replaced.

    Raises:
        sqlite3.Error: A database is locked, read-only or damaged; none is changed then.
    """
    with ExitStack() as stack:
        together = [
            stack.enter_context(_Together(some)) for some in _batches(list(charts), _TOGETHER)
        ]
        for transaction in together:
            transaction.fill(charts)
        with _undisturbed():
            for transaction in together:
                transaction.commit()


_TOGETHER: Final = 11
"""Databases in a transaction: one, and what SQLite attaches to it unless it was built otherwise
(https://www.sqlite.org/limits.html, SQLITE_MAX_ATTACHED)."""


_PATIENCE_S: Final = 5.0
"""How long to wait for others to leave a database alone."""


class _Together:
    """A transaction over some databases.

    SQLite makes that atomic (https://www.sqlite.org/atomiccommit.html) by a journal of all of their
    journals, which databases with a write-ahead log do not have: they get their log back when all is
    done.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        first, *others = paths
        self._connection = sqlite3.connect(first, isolation_level=None, timeout=_PATIENCE_S)
        self._schemas = {first: "main"} | {path: f"other{n}" for n, path in enumerate(others)}
        self._logged: list[str] = []

    def __enter__(self) -> _Together:
        try:
            for path, schema in self._schemas.items():
                if schema != "main":
                    self._connection.execute(f"ATTACH ? AS {schema}", (str(path),))
                if self._journal(schema) == "wal":
                    self._journal(schema, "delete")
                    self._logged.append(schema)
            self._connection.execute("BEGIN EXCLUSIVE")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with closing(self._connection):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            for schema in self._logged:
                with suppress(sqlite3.Error):  # somebody else has it open by now; it works without
                    self._journal(schema, "wal")

    def fill(self, charts: Mapping[Path, Chart]) -> None:
        """Write the tables."""
        for path, schema in self._schemas.items():
            _fill(self._connection, schema, *charts[path])

    def commit(self) -> None:
        """Make it so."""
        self._connection.execute("COMMIT")

    def _journal(self, schema: str, mode: str | None = None) -> str:
        asked = f"PRAGMA {schema}.journal_mode" + (f" = {mode}" if mode else "")
        (found,) = self._connection.execute(asked).fetchone()
        return str(found)


def _batches(paths: list[Path], most: int) -> Iterator[list[Path]]:
    """Return the paths in lists of some."""
    return (paths[first : first + most] for first in range(0, len(paths), most))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let what would interrupt the process wait.

    Any thread may be interrupted, so all are asked to: by handlers, which only the main thread has.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP"))
        if number is not None  # no system but POSIX's has the last
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        for one in came:
            signal.raise_signal(one)


def _fill(
    connection: sqlite3.Connection, schema: str, named: pl.DataFrame, linked: pl.DataFrame
) -> None:
    chart, operations = f'{schema}."StepTaskInfo"', f"{schema}.COMMUNICATION_OP"
    connection.execute(f"DROP TABLE IF EXISTS {chart}")
    connection.execute(f"CREATE TABLE {chart} ({_COLUMNS})")
    connection.executemany(f"INSERT INTO {chart} VALUES (?, ?, ?, ?)", _tuples(named))  # noqa: S608  a name of ours
    columns = {
        row[1] for row in connection.execute(f"PRAGMA {schema}.table_info(COMMUNICATION_OP)")
    }
    if "opConnectionId" in columns:
        connection.execute(f"UPDATE {operations} SET opConnectionId = NULL")  # noqa: S608
    if not linked.height:
        return
    if "opConnectionId" not in columns:
        connection.execute(f"ALTER TABLE {operations} ADD COLUMN opConnectionId TEXT")
    connection.executemany(
        f"UPDATE {operations} SET opConnectionId = ? WHERE opId = ?",  # noqa: S608
        _tuples(linked.select("link", "op_id")),
    )


def _tuples(frame: pl.DataFrame) -> Iterable[tuple[Any, ...]]:
    """Return rows, of plain text; going by columns is several times as fast as `iter_rows`."""
    frame = frame.with_columns(cs.string().str.replace_all(UNSEEN, "\ufffd"))
    return zip(*(column.to_list() for column in frame), strict=True)
