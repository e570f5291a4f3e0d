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
    dependencies,
    duration_text,
    ordered_ranks,
    short_label,
    with_rows,
)
from bubblescope.vocabulary import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bubblescope.timeline import Timeline

__all__ = ["write"]

_ARGS: Final = ("step", "stage", "chunk", "microbatch", "peer", "busy_ns", "name")
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
_ROWS_PER_LANE: Final = 1000
_STEPS_TID: Final = 0


def write(timeline: Timeline, path: Path) -> Path:
    """Write the timeline as Chrome trace-event JSON."""
    tasks = _placed(timeline)
    parts: list[Iterable[str]] = [
        _metadata(timeline, tasks),
        _steps(timeline),
        _slices(tasks),
        _flows(tasks),
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
    return (
        with_rows(timeline.tasks)
        .with_row_index("index")
        .with_columns(
            tid=1 + lane * _ROWS_PER_LANE + pl.col("row"),
            ts=(pl.col("start_ns") - timeline.start_ns) / 1000,
            dur=(pl.col("end_ns") - pl.col("start_ns")) / 1000,
        )
    )


def _slices(tasks: pl.DataFrame) -> pl.Series:
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
        args=pl.struct(pl.col("kind").cast(pl.String), *_ARGS),
    )


def _flows(tasks: pl.DataFrame) -> pl.Series:
    pairs = dependencies(tasks).with_row_index("id")
    ends = []
    for phase, side in (("s", "source"), ("f", "target")):
        places = pairs.join(tasks, left_on=side, right_on="index")
        ends.append(
            _encode(
                places,
                name=pl.lit("micro-batch"),
                cat=pl.lit("dataflow"),
                ph=pl.lit(phase),
                bp=pl.lit("e"),
                id="id",
                pid="rank",
                tid="tid",
                ts="ts",
            )
        )
    return pl.concat(ends)


def _steps(timeline: Timeline) -> list[str]:
    """Mark each step on a thread of its own, once per rank."""
    spans = (
        timeline.tasks.filter(pl.col("step").is_not_null())
        .group_by("rank", "step")
        .agg(start_ns=pl.col("start_ns").min(), end_ns=pl.col("end_ns").max())
        .sort("rank", "step")
    )
    return [
        line
        for phase, time in (("b", "start_ns"), ("e", "end_ns"))
        for line in _encode(
            spans,
            name=pl.format("step {}", "step"),
            cat=pl.lit("step"),
            ph=pl.lit(phase),
            id="step",
            pid="rank",
            tid=pl.lit(_STEPS_TID),
            ts=(pl.col(time) - timeline.start_ns) / 1000,
        )
    ]


def _metadata(timeline: Timeline, tasks: pl.DataFrame) -> list[str]:
    events: list[dict[str, Any]] = []

    def name(what: str, pid: int, tid: int, **args: Any) -> None:
        events.append({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args})

    for position, rank in enumerate(ordered_ranks(timeline).iter_rows(named=True)):
        name("process_name", rank["rank"], 0, name=rank["title"])
        name("process_sort_index", rank["rank"], 0, sort_index=position)
    for rank, lane, row, tid in (
        tasks.select("rank", "lane", "row", "tid").unique().sort("rank", "tid").iter_rows()
    ):
        name("thread_name", rank, tid, name=lane if row == 0 else f"{lane} {row + 1}")
        name("thread_sort_index", rank, tid, sort_index=tid)
    return [msgspec.json.encode(event).decode() for event in events]


def _encode(frame: pl.DataFrame, **columns: Any) -> pl.Series:
    """Return each row as one JSON object, its keys being the arguments'."""
    return frame.select(pl.struct(**columns).struct.json_encode()).to_series()
