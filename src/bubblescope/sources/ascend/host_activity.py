"""What the host did, by one Ascend profiler database: the calls that launched work, and all besides.

torch_npu hands operators to a thread of their own, which launches them, unless told not to
(TASK_QUEUE_ENABLE). PYTORCH_API has a row for both ends of that queue.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.names.host_ranges import collects_garbage
from bubblescope.sources.ascend.mstx_messages import parse_message
from bubblescope.sources.ascend.profile import FUNCTIONS, OPERATORS, QUEUE, RANGE_TYPES
from bubblescope.sources.capture import (
    ANNOTATED,
    BLOCKED,
    GC,
    HOST,
    LAUNCHES,
    OPERATOR,
    PYTHON,
    RUNTIME,
    about,
    telling_calls,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.names.parser import NameParser
    from bubblescope.sources.sqlite import SqliteTables

_ENQUEUE, _DEQUEUE = "Enqueue", "Dequeue@"
_THREAD: Final = 0xFFFFFFFF
"""The low half of a global thread id; the high one is the process."""
_CALL: Final = ["startNs", "endNs", "globalTid", "name"]


class Calls(NamedTuple):
    """Calls of CANN, the NPU's runtime.

    Attributes:
        launches: Frame with the columns of `LAUNCHES`; the thread is the one that launching waited for.
        telling: Frame with thread, start_ns, end_ns, name (a number) and doing of those that tell what
            the host did.
        queue: Frame with thread, start_ns, end_ns and name of what a thread took out of the queue.
    """

    launches: pl.DataFrame
    telling: pl.DataFrame
    queue: pl.DataFrame


def read_framework(tables: SqliteTables) -> pl.DataFrame:
    """Read what PyTorch did: thread, start_ns, end_ns, name, type and connectionId."""
    types = [OPERATORS, QUEUE, FUNCTIONS]
    return _timed(
        tables.read(
            "PYTORCH_API",
            [*_CALL, "type", "connectionId"],
            lambda piece: piece.filter(pl.col("type").is_in(types)),
        )
    )


def read_calls(
    tables: SqliteTables, strings: pl.DataFrame, framework: pl.DataFrame, linked: pl.Series
) -> Calls:
    """Read the calls of CANN that matter.

    Args:
        tables: The database.
        strings: Frame with id and value.
        framework: As `read_framework` returns it.
        linked: Connections of device work.
    """
    named = strings.filter(pl.col("value").str.starts_with("aclrt"))
    telling = telling_calls(named, "name", "startNs", "endNs")
    launching = pl.col("connectionId").is_in(linked.implode())
    told: list[pl.DataFrame] = []

    def matter(piece: pl.DataFrame) -> pl.DataFrame:
        told.append(telling(piece))
        return piece.filter(launching)

    launches = _timed(tables.read("CANN_API", [*_CALL, "connectionId"], matter))
    queue = _queue(tables, strings, framework.filter(type=QUEUE))
    launches = launches.rename({"connectionId": "correlation"})
    launches = _waited_for(launches.unique("correlation", keep="first"), queue)
    kept = ["thread", "start_ns", "end_ns", "name"]
    return Calls(
        launches.with_columns(process=pl.lit(0, pl.Int64)).select(*LAUNCHES),
        _timed(pl.concat(told)).select(*kept, "doing"),
        queue.select(kept),
    )


def _timed(calls: pl.DataFrame) -> pl.DataFrame:
    """Return calls by start, in the terms of all sources, without those of no time or thread."""
    return (
        calls.rename({"startNs": "start_ns", "endNs": "end_ns", "globalTid": "thread"})
        .drop_nulls(["start_ns", "end_ns", "thread"])
        .with_columns(pl.col("thread") & _THREAD)
        .sort("start_ns")
    )


def _queue(tables: SqliteTables, strings: pl.DataFrame, ends: pl.DataFrame) -> pl.DataFrame:
    """Return what threads took out of the queue of operators.

    Returns:
        Frame with thread, start_ns, end_ns, name, and origin: the thread that put it there, if the one
        that took it out had nothing left to do before; otherwise itself.
    """
    words = strings.filter(pl.col("value").str.contains(f"^(?:{_ENQUEUE}|{_DEQUEUE})"))
    events = ends.join(words, left_on="name", right_on="id", maintain_order="left")
    met = tables.read(
        "CONNECTION_IDS",
        ["id", "connectionId"],
        lambda piece: piece.filter(pl.col("id").is_in(events["connectionId"].implode())),
    ).rename({"id": "connectionId", "connectionId": "item"})
    ends = events.join(met, on="connectionId", maintain_order="left")
    given = ends.filter(value=_ENQUEUE).unique("item", keep="first")
    taken = ends.filter(pl.col("value").str.starts_with(_DEQUEUE)).unique("item", keep="first")
    free = pl.col("end_ns").cum_max().shift(1).over("thread")
    return (
        taken.sort("start_ns")
        .with_columns(free_ns=free)
        .join(given.select("item", giver="thread", given_ns="end_ns"), on="item", how="left")
        .sort("start_ns")
        .select(
            "thread",
            "start_ns",
            "end_ns",
            "name",
            origin=pl.when(pl.col("given_ns") >= pl.col("free_ns").fill_null(0))
            .then("giver")
            .otherwise("thread"),
        )
    )


def _waited_for(launches: pl.DataFrame, queue: pl.DataFrame) -> pl.DataFrame:
    """Give launches the thread that they waited for, where they were made out of the queue."""
    if not queue.height:
        return launches
    inside = pl.col("start_ns") < pl.col("until_ns")
    return (
        launches.sort("start_ns")
        .join_asof(
            queue.select("thread", "start_ns", "origin", until_ns="end_ns"),
            on="start_ns",
            by="thread",
            check_sortedness=False,
        )
        .with_columns(thread=pl.when(inside).then("origin").otherwise("thread"))
    )


def read_activity(
    tables: SqliteTables,
    strings: pl.DataFrame,
    framework: pl.DataFrame,
    calls: Calls,
    names: NameParser,
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Read what threads of the host did.

    Returns:
        Frame with the columns of `HOST`, and the names in it.
    """
    marks = _timed(
        tables.read(
            "MSTX_EVENTS",
            [*(name for name in _CALL if name != "name"), "message", "eventType"],
            lambda piece: piece.filter(pl.col("eventType").is_in(RANGE_TYPES)),
        ).rename({"message": "name"})
    )
    told: dict[int, tuple[pl.DataFrame, Callable[[str], tuple[int, str]]]] = {
        OPERATORS: (framework.filter(type=OPERATORS), _operator),
        FUNCTIONS: (framework.filter(type=FUNCTIONS), _function),
        QUEUE: (calls.queue, lambda name: (OPERATOR, name.removeprefix(_DEQUEUE))),
        **{
            code: (calls.telling.filter(doing=code), partial(_called, code))
            for code in (BLOCKED, RUNTIME)
        },
        ANNOTATED: (marks, lambda name: (about(name), parse_message(name, names).name)),
    }
    numbers: dict[str, int] = {}
    parts = [pl.DataFrame(schema=HOST)]
    for events, understand in told.values():
        used = events.select(id=pl.col("name").unique()).join(strings, on="id")
        meanings = [(number, *understand(text)) for number, text in used.sort("id").iter_rows()]
        # HCCL's own marks are JSON about one operator each, and no name.
        meant = pl.DataFrame(
            [
                (number, code, numbers.setdefault(text, len(numbers)))
                for number, code, text in meanings
                if not text.startswith("{")
            ],
            schema={"name": pl.Int64, "doing": pl.Int8, "number": pl.Int32},
            orient="row",
        )
        parts.append(
            events.join(meant, on="name")
            .with_columns(process=pl.lit(0, pl.Int64), name="number")
            .select(*HOST)
        )
    return pl.concat(parts), tuple(numbers)


def _called(code: int, name: str) -> tuple[int, str]:
    return code, name


def _operator(name: str) -> tuple[int, str]:
    """Tell operators from what a job annotated: both are rows of one type."""
    code = about(name)
    known = code == ANNOTATED and ("::" in name or name.startswith("aclnn"))
    return (OPERATOR if known else code), name


def _function(name: str) -> tuple[int, str]:
    return (GC if collects_garbage(name) else PYTHON), name
