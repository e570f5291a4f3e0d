"""Perfetto's own format: a protobuf of track events, which opens at any size in its UI.

Format: https://perfetto.dev/docs/reference/synthetic-track-event. One track per rank, ordered along
the pipeline, with its compute tasks; under it one per other lane, and more where tasks of a lane
overlap. Times are the timeline's own nanoseconds, declared to be UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from bubblescope.exports.files import replacing
from bubblescope.exports.layout import (
    LANE_ORDER,
    duration_text,
    ordered_ranks,
    short_label,
    with_rows,
)
from bubblescope.exports.slices import ARGUMENTS, flows, step_spans
from bubblescope.vocabulary import Lane

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bubblescope.timeline import Timeline

__all__ = ["write"]

_SEQUENCE: Final = 1
_TEXTS: Final = {"kind", "name"}
"""Arguments that are text; the others are whole numbers."""
_KIND: Final = ARGUMENTS.index("kind")
_STEPS: Final = "steps"
_CHUNK: Final = 10_000


def write(timeline: Timeline, path: Path) -> Path:
    """Write the timeline as a Perfetto trace."""
    tasks = _labelled(timeline)
    tracks = _Tracks(timeline, tasks)
    with replacing(path) as partial, partial.open("wb") as file:
        file.write(tracks.packets(timeline).SerializeToString())
        for events in _events(tasks, tracks):
            file.write(events.SerializeToString())
    return path


def _labelled(timeline: Timeline) -> pl.DataFrame:
    """Add to each task its row, label and the flows it sends and receives."""
    tasks = with_rows(timeline.tasks.with_row_index("index"))
    arrows = flows(timeline)
    sent = arrows.group_by(index="source").agg(sends="flow")
    ends = arrows.join(
        tasks.select("index", "start_ns"), left_on="target", right_on="index", maintain_order="left"
    ).with_columns(waited=pl.col("at_ns") > pl.col("start_ns"))
    received = ends.group_by(index="target").agg(
        receives=pl.col("flow").filter(~pl.col("waited")),
        receives_at_end=pl.col("flow").filter("waited"),
    )
    return (
        tasks.with_columns(label=pl.format("{} {}", short_label(), duration_text()))
        .join(sent, on="index", how="left")
        .join(received, on="index", how="left")
        .sort("rank", "lane", "row", "start_ns", "end_ns")
    )


class _Tracks:
    """Track ids, and the packets that describe tracks, clocks and interned strings."""

    def __init__(self, timeline: Timeline, tasks: pl.DataFrame) -> None:
        self.ids: dict[tuple[Any, ...], int] = {}
        self._described: list[tuple[int, int | None, str, int]] = []
        self.categories = {
            kind: index
            for index, kind in enumerate(
                [_STEPS, *tasks["kind"].cast(pl.String).unique().sort()], start=1
            )
        }
        self.arguments = {name: index for index, name in enumerate(ARGUMENTS, start=1)}
        self.steps = step_spans(timeline.tasks, per_rank=False)
        step_rows = max(1, self.steps["row"].n_unique())
        for row in range(step_rows):
            self._add((_STEPS, row), None, _STEPS if row == 0 else f"{_STEPS} {row + 1}", row)
        rows = (
            tasks.select("rank", pl.col("lane").cast(pl.String), "row")
            .unique()
            .sort(
                "rank",
                pl.col("lane").replace_strict(
                    {lane: index for index, lane in enumerate(LANE_ORDER)}
                ),
                "row",
            )
        )
        lanes = rows.partition_by("rank", as_dict=True)
        for position, rank in enumerate(
            ordered_ranks(timeline).iter_rows(named=True), start=step_rows
        ):
            parent = self._add((rank["rank"],), None, rank["title"], position)
            held = lanes.get((rank["rank"],), rows.clear())
            for order, (_, lane, row) in enumerate(held.iter_rows()):
                if (lane, row) == (Lane.COMPUTE.value, 0):  # visible without expanding the rank
                    self.ids[rank["rank"], lane, row] = parent
                    continue
                title = lane if row == 0 else f"{lane} {row + 1}"
                self._add((rank["rank"], lane, row), parent, title, order)

    def _add(self, key: tuple[Any, ...], parent: int | None, title: str, order: int) -> int:
        self.ids[key] = len(self._described) + 1
        self._described.append((self.ids[key], parent, title, order))
        return self.ids[key]

    def packets(self, timeline: Timeline) -> Any:
        trace = proto.Trace()
        first = trace.packet.add()
        first.trusted_packet_sequence_id = _SEQUENCE
        first.sequence_flags = proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        for category, iid in self.categories.items():
            first.interned_data.event_categories.add(iid=iid, name=category)
        for name, iid in self.arguments.items():
            first.interned_data.debug_annotation_names.add(iid=iid, name=name)
        # Event times are on the trace's default clock; this says that it reads the same as UTC.
        for clock in (proto.BUILTIN_CLOCK_BOOTTIME, proto.BUILTIN_CLOCK_REALTIME):
            first.clock_snapshot.clocks.add(clock_id=clock, timestamp=timeline.start_ns)
        for uuid, parent, title, order in self._described:
            packet = trace.packet.add()
            packet.trusted_packet_sequence_id = _SEQUENCE
            track = packet.track_descriptor
            track.uuid, track.name, track.sibling_order_rank = uuid, title, order
            track.child_ordering = proto.TrackDescriptor.EXPLICIT
            if parent is not None:
                track.parent_uuid = parent
        for _, step, start, end, row in self.steps.iter_rows():
            track = self.ids[_STEPS, row]
            _slice(trace, track, start, end, f"step {step}", self.categories[_STEPS])
        return trace


def _events(tasks: pl.DataFrame, tracks: _Tracks) -> Iterator[Any]:
    """Yield the slices of all tasks, a bounded number at a time."""
    place = ("rank", "lane", "row", "start_ns", "end_ns", "label")
    arrows = ("sends", "receives", "receives_at_end")
    for chunk in tasks.select(*place, *arrows, *ARGUMENTS).iter_slices(_CHUNK):
        trace = proto.Trace()
        for rank, lane, row, start, end, label, sends, receives, late, *values in chunk.iter_rows():
            track, category = tracks.ids[rank, lane, row], tracks.categories[values[_KIND]]
            begin, finish = _slice(trace, track, start, end, label, category)
            begin.flow_ids.extend(sends or ())
            begin.terminating_flow_ids.extend(receives or ())
            finish.terminating_flow_ids.extend(late or ())
            for (argument, iid), value in zip(tracks.arguments.items(), values, strict=True):
                if value is None:
                    continue
                if argument in _TEXTS:
                    begin.debug_annotations.add(name_iid=iid, string_value=value)
                else:
                    begin.debug_annotations.add(name_iid=iid, int_value=value)
        yield trace


def _slice(
    trace: Any, track: int, start: int, end: int, name: str, category: int
) -> tuple[Any, Any]:
    """Add a slice; return its beginning, which carries what is said about it, and its end."""
    begin = trace.packet.add()
    begin.timestamp = start
    begin.trusted_packet_sequence_id = _SEQUENCE
    begin.sequence_flags = proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
    event = begin.track_event
    event.type = proto.TrackEvent.TYPE_SLICE_BEGIN
    event.track_uuid = track
    event.name = name
    event.category_iids.append(category)
    finish = trace.packet.add()
    finish.timestamp = end
    finish.trusted_packet_sequence_id = _SEQUENCE
    finish.track_event.type = proto.TrackEvent.TYPE_SLICE_END
    finish.track_event.track_uuid = track
    return event, finish.track_event
