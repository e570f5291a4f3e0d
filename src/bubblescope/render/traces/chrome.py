"""Chrome trace-event JSON, the "JSON Array Format" with metadata.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. One process
per rank, one thread per lane and row, and above them a process of the steps. Times in it are
microseconds as doubles, which cannot hold nanoseconds since the epoch, so they count from the
timeline's start; `otherData` says when that was. Kernels, if asked for, have a thread for each stream.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.model.counters import in_force
from bubblescope.model.files import replacing
from bubblescope.model.kinds import Lane
from bubblescope.render.layout import drawn_ns, duration_text, ordered_ranks, short_label, with_rows
from bubblescope.render.traces import colours
from bubblescope.render.traces.colours import STEPS
from bubblescope.render.traces.kernels import KERNEL_ARGUMENTS, kernel_slices
from bubblescope.render.traces.slices import (
    ARGUMENTS,
    LONGEST_DETAIL,
    LONGEST_TITLE,
    PHASES_TITLE,
    flows,
    phase_spans,
    plain,
    step_spans,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from bubblescope.model.timeline import Timeline

_BEYOND_DOUBLES: Final = {"kind", "host_start_ns", "host_end_ns"}
"""Arguments written as text: the kind, and times since the epoch, which JavaScript would round."""
_ROWS_PER_LANE: Final = 1_000_000
_PHASES_TID: Final = 1 + (len(Lane) + 1) * _ROWS_PER_LANE + pl.col("row")
"""Thread of a phase: below those of all lanes and kernels."""
_CHUNK: Final = 50_000
_TEXTS: Final = ("full", "module")
"""What is said of kernels in a trace's own words."""
_INSIDE_NS: Final = 100.0
"""How far within its slice an arrow begins and ends; half the slice where that is less."""


def write(timeline: Timeline, path: Path, *, kernels: bool = False) -> Path:
    """Write the timeline as Chrome trace-event JSON, with what its devices ran if that is asked for."""
    ran = _threaded(kernel_slices(timeline)) if kernels else None
    origin_ns = _origin_ns(timeline, ran)
    tasks = _placed(timeline, origin_ns)
    spans, phased = step_spans(timeline.tasks, per_rank=False), phase_spans(timeline)
    parts: list[Iterable[str]] = [
        _metadata(timeline, tasks, spans, phased, ran),
        _steps(timeline, spans, origin_ns),
        _phases(phased, origin_ns),
        _slices(tasks),
        _flows(timeline, tasks, origin_ns),
        _counters(timeline, origin_ns),
    ]
    warnings = pl.DataFrame(
        {"message": [notice.message for notice in timeline.run.warnings]},
        schema={"message": pl.String},
    )
    head = msgspec.json.encode(
        {
            "displayTimeUnit": "ns",
            "otherData": {
                "producer": "bubblescope",
                "start_ns": str(origin_ns),
                "warnings": warnings.select(plain(pl.col("message"), LONGEST_DETAIL))
                .to_series()
                .to_list(),
            },
        }
    ).decode()
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(head[:-1] + ',"traceEvents":[\n')
        before = ""
        for part in chain(parts, () if ran is None else _kernels(ran, origin_ns)):
            if text := ",\n".join(part):
                file.write(before + text)
                before = ",\n"
        file.write("\n]}\n")
    return path


def _origin_ns(timeline: Timeline, ran: pl.DataFrame | None) -> int:
    """Return the moment from which times count: the first of what is written."""
    if ran is None or not ran.height:
        return timeline.start_ns
    first: int = ran["start_ns"].to_numpy().min()
    return min(int(first), timeline.start_ns) if len(timeline) else int(first)


def _placed(timeline: Timeline, origin_ns: int) -> pl.DataFrame:
    """Give each task its thread and its times in microseconds."""
    lane = pl.col("lane").to_physical().cast(pl.Int32)
    return with_rows(timeline.tasks.with_row_index("index")).with_columns(
        plain(pl.col("name"), LONGEST_DETAIL),
        tid=1 + lane * _ROWS_PER_LANE + pl.col("row"),
        drawn_ns=drawn_ns(),
        ts=(drawn_ns() - origin_ns) / 1000,
        dur=(pl.col("end_ns") - drawn_ns()) / 1000,
    )


def _slices(tasks: pl.DataFrame) -> pl.Series:
    """Write each task as a complete event, with the arguments that any task at all has."""
    return _encode(
        tasks,
        name=pl.format("{} {}", short_label(), duration_text()),
        cat=pl.col("kind").cast(pl.String),
        cname=pl.col("kind").cast(pl.String).replace_strict(colours.catapult()),
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


def _threaded(ran: pl.DataFrame) -> pl.DataFrame:
    """Give each kernel the thread of its track, beyond those of all lanes."""
    return ran.with_columns(tid=1 + len(Lane) * _ROWS_PER_LANE + pl.col("track").cast(pl.Int64))


def _kernels(ran: pl.DataFrame, origin_ns: int) -> Iterator[pl.Series]:
    """Write each kernel as a complete event, a bounded number at a time.

    They have no colour of their own: viewers make one of the name.
    """
    known = [name for name in KERNEL_ARGUMENTS if ran[name].null_count() < ran.height]
    for chunk in ran.iter_slices(_CHUNK):
        yield _encode(
            chunk,
            name=plain(pl.col("name"), LONGEST_DETAIL),
            cat="use",
            ph=pl.lit("X"),
            pid="rank",
            tid="tid",
            ts=(pl.col("start_ns") - origin_ns) / 1000,
            dur=(pl.col("end_ns") - pl.col("start_ns")) / 1000,
            args=pl.struct(
                plain(pl.col(name), LONGEST_DETAIL) if name in _TEXTS else pl.col(name)
                for name in known
            ),
        )


def _flows(timeline: Timeline, tasks: pl.DataFrame, origin_ns: int) -> pl.Series:
    """Write both ends of each arrow, a little inside their slices.

    At the moment when one slice ends and the next begins, Catapult takes an arrow to be of the first.
    """
    start, end = tasks.sort("index")["drawn_ns"], timeline.tasks["end_ns"]
    arrows = flows(timeline)
    drawn = pl.max_horizontal("at_ns", start.gather(arrows["target"]))
    arrows = arrows.with_columns(at_ns=drawn)
    arrows = arrows.with_columns(
        leaves_ns=start.gather(arrows["source"]),
        inside_ns=pl.min_horizontal(
            pl.lit(_INSIDE_NS),
            (end - start).gather(arrows["source"]) / 2,
            (end.gather(arrows["target"]) - arrows["at_ns"]) / 2,
        ),
    )
    ends = []
    for phase, side, time in (("s", "source", "leaves_ns"), ("f", "target", "at_ns")):
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
                ts=(pl.col(time) - origin_ns + pl.col("inside_ns")) / 1000,
            )
        )
    return pl.concat(ends)


def _counters(timeline: Timeline, origin_ns: int) -> pl.Series:
    """Write each sample as an event of a counter of its rank."""
    unit = pl.when(pl.col("unit") != "").then(pl.format(" ({})", "unit")).otherwise(pl.lit(""))
    return _encode(
        in_force(timeline.counters, timeline.start_ns, None),
        name=plain(pl.concat_str("name", unit), LONGEST_TITLE),
        ph=pl.lit("C"),
        pid="rank",
        ts=(pl.col("time_ns") - origin_ns) / 1000,
        args=pl.struct("value"),
    )


def _steps(timeline: Timeline, spans: pl.DataFrame, origin_ns: int) -> pl.Series:
    """Mark each step on threads of the steps' own, over all ranks."""
    marks = spans.select(
        "start_ns",
        "end_ns",
        name=pl.format("step {}", "step"),
        cat=pl.lit(STEPS),
        pid=pl.lit(_steps_pid(timeline)),
        tid=1 + pl.col("row"),
    )
    return _marked(marks, origin_ns)


def _phases(spans: pl.DataFrame, origin_ns: int) -> pl.Series:
    """Mark the phases of each rank in each step, on threads below all others of the rank."""
    marks = spans.select("start_ns", "end_ns", "name", cat="name", pid="rank", tid=_PHASES_TID)
    return _marked(marks, origin_ns)


def _marked(spans: pl.DataFrame, origin_ns: int) -> pl.Series:
    """Write spans of time that are no tasks.

    They begin and end by events of their own, so that every complete event is a task. Those of one
    thread come in the order of time, because Catapult ends what began last. One without extent is
    an instant: readers take an end before a beginning of the same time.
    """
    lasting = pl.col("end_ns") > pl.col("start_ns")
    marks = spans.with_columns(
        mark=pl.when(lasting)
        .then(
            pl.concat_list(
                pl.struct(ph=pl.lit("B"), at_ns="start_ns"),
                pl.struct(ph=pl.lit("E"), at_ns="end_ns"),
            )
        )
        .otherwise(pl.concat_list(pl.struct(ph=pl.lit("i"), at_ns="start_ns")))
    )
    return _encode(
        marks.sort("pid", "tid", "start_ns", "end_ns").explode("mark").unnest("mark"),
        name="name",
        cat="cat",
        cname=pl.col("cat").replace_strict(colours.catapult(), return_dtype=pl.String),
        ph="ph",
        s=pl.lit("t"),
        pid="pid",
        tid="tid",
        ts=(pl.col("at_ns") - origin_ns) / 1000,
    )


def _steps_pid(timeline: Timeline) -> int:
    """Return a process of which there is no rank."""
    return 1 + max(timeline.ranks["rank"], default=0)


def _metadata(
    timeline: Timeline,
    tasks: pl.DataFrame,
    spans: pl.DataFrame,
    phased: pl.DataFrame,
    ran: pl.DataFrame | None,
) -> list[str]:
    events: list[dict[str, Any]] = []

    def name(what: str, pid: int, tid: int, **args: Any) -> None:
        events.append({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args})

    def thread(pid: int, tid: int, lane: str, row: int, order: int) -> None:
        name("thread_name", pid, tid, name=lane if row == 0 else f"{lane} {row + 1}")
        name("thread_sort_index", pid, tid, sort_index=order)

    ranks = ordered_ranks(timeline).select("rank", plain(pl.col("title"), LONGEST_TITLE))
    for position, (rank, title) in enumerate(ranks.iter_rows()):
        name("process_name", rank, 0, name=title)
        name("process_sort_index", rank, 0, sort_index=position)
    steps = _steps_pid(timeline)
    if spans.height:
        name("process_name", steps, 0, name=STEPS)
        name("process_sort_index", steps, 0, sort_index=-1)
    for row in range(spans["row"].n_unique()):
        thread(steps, 1 + row, STEPS, row, row)
    for rank, lane, row, tid in (
        tasks.select("rank", "lane", "row", "tid").unique().sort("rank", "tid").iter_rows()
    ):
        thread(rank, tid, lane, row, tid)
    if ran is not None:
        for rank, title, tid in ran.select("rank", "title", "tid").unique().sort("tid").iter_rows():
            thread(rank, tid, title, 0, tid)
    below = phased.select("rank", "row", tid=_PHASES_TID).unique().sort("rank", "tid")
    for rank, row, tid in below.iter_rows():
        thread(rank, tid, PHASES_TITLE, row, tid)
    return [msgspec.json.encode(event).decode() for event in events]


def _encode(frame: pl.DataFrame, **columns: Any) -> pl.Series:
    """Return each row as one JSON object, its keys being the arguments'."""
    return frame.select(pl.struct(**columns).struct.json_encode()).to_series()
