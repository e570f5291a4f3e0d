"""Chrome trace-event JSON, the "JSON Array Format" with metadata.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. One process
per rank, one thread per lane and row. Times in it are microseconds as doubles, which cannot hold
nanoseconds since the epoch, so they count from the timeline's start; `otherData` says when that was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.exports.files import replacing
from bubblescope.exports.layout import (
    LANE_ORDER,
    duration_text,
    ordered_ranks,
    short_label,
    with_rows,
)
from bubblescope.exports.slices import ARGUMENTS, flows, step_spans
from bubblescope.vocabulary import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bubblescope.timeline import Timeline

__all__ = ["write"]

_BEYOND_DOUBLES: Final = {"kind", "host_start_ns", "host_end_ns"}
"""Arguments written as text: the kind, and times since the epoch, which JavaScript would round."""
_COLOURS: Final = {
    Kind.FORWARD: "rail_response",
    Kind.BACKWARD: "rail_idle",
    Kind.BACKWARD_INPUT: "rail_idle",
    Kind.BACKWARD_WEIGHT: "startup",
    Kind.FORWARD_BACKWARD: "rail_load",
    Kind.RECOMPUTE: "background_memory_dump",
    Kind.OPTIMIZER: "rail_animation",
    Kind.SEND_FORWARD: "thread_state_runnable",
    Kind.RECV_FORWARD: "thread_state_runnable",
    Kind.SEND_BACKWARD: "thread_state_unknown",
    Kind.RECV_BACKWARD: "thread_state_unknown",
    Kind.COLLECTIVE: "thread_state_uninterruptible",
    Kind.DATA: "generic_work",
    Kind.GC: "generic_work",
    Kind.OTHER: "grey",
}
"""Of the colour names that Catapult's viewer knows, the nearest to our palette's."""
_ROWS_PER_LANE: Final = 1_000_000
_STEPS_TID: Final = 1 + len(LANE_ORDER) * _ROWS_PER_LANE


def write(timeline: Timeline, path: Path) -> Path:
    """Write the timeline as Chrome trace-event JSON."""
    tasks = _placed(timeline)
    spans = step_spans(timeline.tasks, per_rank=True)
    parts: list[Iterable[str]] = [
        _metadata(timeline, tasks, spans),
        _steps(timeline, spans),
        _slices(tasks),
        _flows(timeline, tasks),
    ]
    head = msgspec.json.encode(
        {
            "displayTimeUnit": "ns",
            "otherData": {
                "producer": "bubblescope",
                "start_ns": str(timeline.start_ns),
                "warnings": [notice.message for notice in timeline.run.warnings],
            },
        }
    ).decode()
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(head[:-1] + ',"traceEvents":[\n')
        file.write(",\n".join(line for part in parts for line in part))
        file.write("\n]}\n")
    return path


def _placed(timeline: Timeline) -> pl.DataFrame:
    """Give each task its thread and its times in microseconds."""
    lane = (
        pl.col("lane")
        .cast(pl.String)
        .replace_strict(
            {name: index for index, name in enumerate(LANE_ORDER)}, return_dtype=pl.Int32
        )
    )
    return with_rows(timeline.tasks.with_row_index("index")).with_columns(
        tid=1 + lane * _ROWS_PER_LANE + pl.col("row"),
        ts=(pl.col("start_ns") - timeline.start_ns) / 1000,
        dur=(pl.col("end_ns") - pl.col("start_ns")) / 1000,
    )


def _slices(tasks: pl.DataFrame) -> pl.Series:
    """Write each task as a complete event, with the arguments that any task at all has."""
    return _encode(
        tasks,
        name=pl.format("{} {}", short_label(), duration_text()),
        cat=pl.col("kind").cast(pl.String),
        cname=pl.col("kind")
        .cast(pl.String)
        .replace_strict({kind.value: name for kind, name in _COLOURS.items()}),
        ph=pl.lit("X"),
        pid="rank",
        tid="tid",
        ts="ts",
        dur="dur",
        args=pl.struct(
            pl.col(name).cast(pl.String) if name in _BEYOND_DOUBLES else pl.col(name)
            for name in ARGUMENTS
            if tasks[name].null_count() < tasks.height or not tasks.height
        ),
    )


def _flows(timeline: Timeline, tasks: pl.DataFrame) -> pl.Series:
    arrows = flows(timeline)
    at = (pl.col("at_ns") - timeline.start_ns) / 1000
    ends = []
    for phase, side, time in (("s", "source", pl.col("ts")), ("f", "target", at)):
        places = arrows.join(tasks, left_on=side, right_on="index", maintain_order="left")
        ends.append(
            _encode(
                places,
                name=pl.lit("micro-batch"),
                cat=pl.lit("dataflow"),
                ph=pl.lit(phase),
                bp=pl.lit("e"),
                id="flow",
                pid="rank",
                tid="tid",
                ts=time,
            )
        )
    return pl.concat(ends)


def _steps(timeline: Timeline, spans: pl.DataFrame) -> pl.Series:
    """Mark each step on threads of its own, once per rank.

    They begin and end by events of their own, so that every complete event is a task. One without
    extent is an instant: readers take an end before a beginning of the same time.
    """
    lasting = pl.col("end_ns") > pl.col("start_ns")
    marks = {
        "B": (spans.filter(lasting), "start_ns"),
        "E": (spans.filter(lasting), "end_ns"),
        "i": (spans.filter(~lasting), "start_ns"),
    }
    return pl.concat(
        _encode(
            held,
            name=pl.format("step {}", "step"),
            cat=pl.lit("step"),
            ph=pl.lit(phase),
            s=pl.lit("t"),
            pid="rank",
            tid=_STEPS_TID + pl.col("row"),
            ts=(pl.col(time) - timeline.start_ns) / 1000,
        )
        for phase, (held, time) in marks.items()
    )


def _metadata(timeline: Timeline, tasks: pl.DataFrame, spans: pl.DataFrame) -> list[str]:
    events: list[dict[str, Any]] = []

    def name(what: str, pid: int, tid: int, **args: Any) -> None:
        events.append({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args})

    def thread(pid: int, tid: int, lane: str, row: int, order: int) -> None:
        name("thread_name", pid, tid, name=lane if row == 0 else f"{lane} {row + 1}")
        name("thread_sort_index", pid, tid, sort_index=order)

    for position, rank in enumerate(ordered_ranks(timeline).iter_rows(named=True)):
        name("process_name", rank["rank"], 0, name=rank["title"])
        name("process_sort_index", rank["rank"], 0, sort_index=position)
    for rank, row in spans.select("rank", "row").unique().sort("rank", "row").iter_rows():
        thread(rank, _STEPS_TID + row, "steps", row, row - _ROWS_PER_LANE)
    for rank, lane, row, tid in (
        tasks.select("rank", "lane", "row", "tid").unique().sort("rank", "tid").iter_rows()
    ):
        thread(rank, tid, lane, row, tid)
    return [msgspec.json.encode(event).decode() for event in events]


def _encode(frame: pl.DataFrame, **columns: Any) -> pl.Series:
    """Return each row as one JSON object, its keys being the arguments'."""
    return frame.select(pl.struct(**columns).struct.json_encode()).to_series()
