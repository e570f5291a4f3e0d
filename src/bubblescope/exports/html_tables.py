"""What the page shows, as tables in the order of the page, packed into little space."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.causes import Cause
from bubblescope.dependencies import messages, passes
from bubblescope.exports.layout import LANE_ORDER, with_rows

if TYPE_CHECKING:
    from bubblescope.analysis.ledger import Ledger
    from bubblescope.schedules.plan import Ints
    from bubblescope.timeline import Timeline

__all__ = ["Packed", "arranged", "gap_columns", "gaps_of", "link_columns", "packed", "task_columns"]

_GAP_COLUMNS: Final = ("gap", "length", "step", "cause", "task_step", "root")
_IDEAL: Final = "ideal"
_UNKNOWN: Final = -1
_TYPES: Final[dict[str, type[np.integer[Any]]]] = {
    "u8": np.uint8,
    "i16": np.int16,
    "i32": np.int32,
    "u32": np.uint32,
}


class Packed(NamedTuple):
    """A table as text, and what is needed to read it.

    Attributes:
        text: All columns one after the other, each padded to eight bytes; compressed, in base64.
        columns: Name, type and length of each.
    """

    text: str
    columns: list[dict[str, Any]]


def packed(frame: pl.DataFrame) -> Packed:
    """Pack columns of whole numbers, each in the smallest type that holds it."""
    data = bytearray()
    columns = []
    for column in frame.iter_columns():
        values = column.to_numpy()
        code, dtype = _smallest(values)
        part = np.ascontiguousarray(values.astype(dtype)).tobytes()
        data += part + bytes(-len(part) % 8)
        columns.append({"name": column.name, "type": code, "length": len(values)})
    return Packed(base64.b64encode(zlib.compress(bytes(data), 6)).decode(), columns)


def _smallest(values: Ints) -> tuple[str, type[np.number[Any]]]:
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for code, dtype in _TYPES.items():
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return code, dtype
    return "f64", np.float64


def arranged(timeline: Timeline, ideal: Timeline | None, ranks: pl.DataFrame) -> pl.DataFrame:
    """Sort tasks by their place on the page, top to bottom and left to right.

    The tasks of the ideal have a lane of their own, below those that were measured.

    Returns:
        The tasks with position (of the rank in `ranks`), row, and task: the row in the timeline's
        tasks, null for the ideal.
    """
    lanes = {lane: index for index, lane in enumerate((LANE_ORDER[0], _IDEAL, *LANE_ORDER[1:]))}
    own = timeline.tasks.with_row_index("task").with_columns(pl.col("lane").cast(pl.String))
    parts = [own]
    if ideal is not None:
        parts.append(
            ideal.tasks.select(
                pl.lit(None, own.schema["task"]).alias("task"),
                pl.exclude("lane"),
                lane=pl.lit(_IDEAL),
            ).select(own.columns)
        )
    return (
        with_rows(pl.concat(parts))
        .join(ranks.select("rank", "position"), on="rank")
        .sort(
            "position",
            pl.col("lane").replace_strict(lanes, return_dtype=pl.Int32),
            "row",
            "start_ns",
            "end_ns",
        )
    )


def task_columns(tasks: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of the arranged tasks.

    Starts are differences within a row of the page: small numbers, which compress well.
    """
    place = ("position", "lane", "row")
    return tasks.select(
        gap=_steps("start_ns", place, _origin(tasks)),
        length=pl.col("end_ns") - pl.col("start_ns"),
        busy=pl.col("busy_ns").fill_null(_UNKNOWN),
        lead=(pl.col("start_ns") - pl.col("host_start_ns"))
        .clip(lower_bound=_UNKNOWN)
        .fill_null(_UNKNOWN),
        kind=pl.col("kind").to_physical(),
        microbatch=pl.col("microbatch").fill_null(_UNKNOWN),
        chunk=pl.col("chunk").fill_null(_UNKNOWN),
        stage=pl.col("stage").fill_null(_UNKNOWN),
        step=pl.col("step").fill_null(_UNKNOWN),
        peer=pl.col("peer").fill_null(_UNKNOWN),
        name=_codes(tasks["name"]),
    )


def gaps_of(ledger: Ledger | None, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps by rank, top to bottom and left to right, with the rank's position.

    Where steps overlap, a moment that is idle in both stays with the gap that began first.
    """
    if ledger is None:
        return pl.DataFrame()
    reached = pl.col("end_ns").cum_max().shift(1).over("position")
    return (
        ledger.gaps.join(ranks.select("rank", "position"), on="rank")
        .sort("position", "start_ns", "end_ns")
        .with_columns(start_ns=pl.max_horizontal("start_ns", reached))
        .filter(pl.col("start_ns") < pl.col("end_ns"))
    )


def gap_columns(gaps: pl.DataFrame, tasks: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of the gaps; `task` and `root` are rows of the arranged tasks."""
    if gaps.is_empty():
        return pl.DataFrame(schema=dict.fromkeys(_GAP_COLUMNS, pl.Int64))
    at = _at(tasks)
    codes = {cause.value: code for code, cause in enumerate(Cause)}
    before = gaps["task"].fill_null(_UNKNOWN).to_numpy()
    task = np.where(before == _UNKNOWN, _UNKNOWN, at[before])
    return gaps.select(
        gap=_steps("start_ns", "position", _origin(tasks)),
        length=pl.col("end_ns") - pl.col("start_ns"),
        step=pl.col("step").fill_null(_UNKNOWN),
        cause=pl.col("cause").replace_strict(codes, return_dtype=pl.UInt8),
        task_step=pl.Series(np.diff(task, prepend=0)),
        root=pl.Series(at[gaps["root"].to_numpy()]),
    )


def link_columns(timeline: Timeline, tasks: pl.DataFrame) -> pl.DataFrame:
    """Return what feeds what and which send meets which receive, as rows of the arranged tasks."""
    at = _at(tasks)
    fed, met = passes(timeline), messages(timeline)
    source = at[np.concatenate([fed["source"].to_numpy(), met["send"].to_numpy()])]
    target = at[np.concatenate([fed["target"].to_numpy(), met["receive"].to_numpy()])]
    order = np.lexsort((target, source))
    source, target = source[order], target[order]
    return pl.DataFrame({"source_step": np.diff(source, prepend=0), "reach": target - source})


def _at(tasks: pl.DataFrame) -> Ints:
    """Return where each row of the timeline's tasks is on the page."""
    own = tasks["task"].drop_nulls().to_numpy()
    at = np.empty(len(own), np.int64)
    at[own] = np.flatnonzero(tasks["task"].is_not_null().to_numpy())
    return at


def _origin(tasks: pl.DataFrame) -> int:
    return int(tasks["start_ns"].min() or 0)  # type: ignore[arg-type]


def _steps(column: str, within: str | tuple[str, ...], first: int) -> pl.Expr:
    """Return the differences of a column, from `first` on."""
    return pl.col(column) - pl.col(column).shift(1).over(within).fill_null(first)


def _codes(names: pl.Series) -> pl.Series:
    """Number names in the order of their first appearance."""
    unique = names.unique(maintain_order=True)
    return names.to_frame("name").join(
        pl.DataFrame({"name": unique}).with_row_index("code"),
        on="name",
        how="left",
        maintain_order="left",
    )["code"]
