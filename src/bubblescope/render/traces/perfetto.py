"""Perfetto's own format: a protobuf of track events, which opens at any size in its UI.

Format: https://perfetto.dev/docs/reference/synthetic-track-event. One track per rank, ordered along
the pipeline, with its compute tasks; under it one per other lane, and more where tasks of a lane
overlap, one for each stream of kernels (if asked for), and one of the phases of the rank's steps. All
are children of one track, because the UI orders what has no parent by name, and unfolds it for the
reader where it is alone: a snapshot of clocks would be a second one. So there is none, and times are
the timeline's own nanoseconds since the epoch, in UTC.

No field says what colour a slice has. The UI takes it from a hash of the slice's correlation id, or
else of its name, where lengths and their units would make one kind many colours. So slices of a kind
have a correlation id in common, with which that hash comes out near our palette's colour.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from bubblescope.model.counters import in_force
from bubblescope.model.files import replacing
from bubblescope.model.kinds import Lane
from bubblescope.render.layout import drawn_ns, duration_text, ordered_ranks, short_label, with_rows
from bubblescope.render.traces import colours
from bubblescope.render.traces.colours import STEPS
from bubblescope.render.traces.kernels import KERNEL_ARGUMENTS, kernel_slices, kernel_tracks
from bubblescope.render.traces.perfetto_kernels import KernelPackets
from bubblescope.render.traces.protobuf import encoded
from bubblescope.render.traces.slices import (
    ARGUMENTS,
    LONGEST_DETAIL,
    LONGEST_TITLE,
    PHASES,
    PHASES_TITLE,
    flows,
    phase_spans,
    plain,
    step_spans,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bubblescope.model.timeline import Timeline

_SEQUENCE: Final = 1
_TEXTS: Final = {"kind", "name"}
"""Arguments that are text; the others are whole numbers."""
_KIND: Final = ARGUMENTS.index("kind")
_ROOT: Final = "pipeline"
_STREAM: Final = "stream"
_BYTES: Final = "bytes"
_CHUNK: Final = 10_000
_COLOUR_ID: Final = 54
_COLOUR_TEXTS: Final = 43
"""`TrackEvent.correlation_id_str_iid` and `InternedData.correlation_id_str`, by their numbers: the
oldest classes that we work with do not know them, and keep what they do not know."""


def write(timeline: Timeline, path: Path, *, kernels: bool = False) -> Path:
    """Write the timeline as a Perfetto trace, with what its devices ran if that is asked for."""
    tasks = _labelled(timeline)
    ran = kernel_slices(timeline) if kernels else None
    tracks = _Tracks(timeline, tasks, ran)
    packets = tracks.packets()
    work = None if ran is None else tracks.kernels(ran)
    if work is not None:
        packets.packet[0].interned_data.MergeFromString(work.interned())
    with replacing(path) as partial, partial.open("wb") as file:
        file.write(packets.SerializeToString())
        for events in chain(_events(tasks, tracks), _phases(tracks), _samples(timeline, tracks)):
            file.write(events.SerializeToString())
        if work is not None:
            file.writelines(work.chunks())
    return path


def _labelled(timeline: Timeline) -> pl.DataFrame:
    """Add to each task its row, label and the flows it sends and receives."""
    tasks = with_rows(timeline.tasks.with_row_index("index"))
    arrows = flows(timeline)
    sent = arrows.group_by(index="source").agg(sends="flow")
    start = timeline.tasks["start_ns"]
    # The reader drops an arrow whose end it reads before its beginning. Events of one moment it
    # reads in the order of this file.
    ends = arrows.with_columns(
        waited=start.gather(arrows["source"]) >= start.gather(arrows["target"])
    )
    received = ends.group_by(index="target").agg(
        receives=pl.col("flow").filter(~pl.col("waited")),
        receives_at_end=pl.col("flow").filter("waited"),
    )
    return (
        tasks.with_columns(
            plain(pl.col("name"), LONGEST_DETAIL),
            label=pl.format("{} {}", short_label(), duration_text()),
        )
        .join(sent, on="index", how="left")
        .join(received, on="index", how="left")
        .with_columns(start_ns=drawn_ns())
        .sort("rank", "lane", "row", "start_ns", "end_ns")
    )


class _Tracks:
    """Track ids, and the packets that describe tracks and interned strings."""

    def __init__(self, timeline: Timeline, tasks: pl.DataFrame, ran: pl.DataFrame | None) -> None:
        self.ids: dict[tuple[Any, ...], int] = {}
        self.units: dict[int, str] = {}
        self._described: list[tuple[int, int | None, str, int]] = []
        streams = {}
        self.phases = phase_spans(timeline)
        named = [STEPS, *tasks["kind"].cast(pl.String).unique().sort(), *PHASES]
        arguments: tuple[str, ...] = ARGUMENTS
        if ran is not None:
            streams = kernel_tracks(ran).partition_by("rank", as_dict=True)
            named += ran["use"].unique().sort().to_list()
            arguments += tuple(name for name in KERNEL_ARGUMENTS if name not in ARGUMENTS)
        self.categories = {category: index for index, category in enumerate(named, start=1)}
        self.arguments = {name: index for index, name in enumerate(arguments, start=1)}
        self.steps = step_spans(timeline.tasks, per_rank=False)
        step_rows = self.steps["row"].n_unique()
        root = self._add((_ROOT,), None, _ROOT, 0)
        for row in range(step_rows):
            self._add((STEPS, row), root, STEPS if row == 0 else f"{STEPS} {row + 1}", row)
        rows = tasks.select("rank", "lane", "row").unique().sort("rank", "lane", "row")
        lanes = rows.partition_by("rank", as_dict=True)
        phased = dict(self.phases.group_by("rank").agg(pl.col("row").max() + 1).iter_rows())
        counted = timeline.counters.select(
            "rank",
            "name",
            "unit",
            title=plain(pl.col("name"), LONGEST_TITLE),
            said=plain(pl.col("unit"), LONGEST_TITLE),
        ).unique(maintain_order=True)
        counters = counted.partition_by("rank", as_dict=True)
        ranks = ordered_ranks(timeline).select("rank", plain(pl.col("title"), LONGEST_TITLE))
        for position, (rank, named) in enumerate(ranks.iter_rows(), start=step_rows):
            parent = self._add((rank,), root, named, position)
            held = lanes.get((rank,), rows.clear())
            for order, (_, lane, row) in enumerate(held.iter_rows()):
                if (lane, row) == (Lane.COMPUTE.value, 0):  # visible without expanding the rank
                    self.ids[rank, lane, row] = parent
                    continue
                title = lane if row == 0 else f"{lane} {row + 1}"
                self._add((rank, lane, row), parent, title, order)
            below = held.height
            if (rank,) in streams:
                for track, _, title in streams[rank,].iter_rows():
                    self._add((_STREAM, track), parent, title, below)
                    below += 1
            for row in range(phased.get(rank, 0)):
                title = PHASES_TITLE if row == 0 else f"{PHASES_TITLE} {row + 1}"
                self._add((PHASES_TITLE, rank, row), parent, title, below)
                below += 1
            measured = counters.get((rank,), counted.clear())
            for order, (*key, title, unit) in enumerate(measured.iter_rows(), start=below):
                self.units[self._add(tuple(key), parent, title, order)] = unit

    def _add(self, key: tuple[Any, ...], parent: int | None, title: str, order: int) -> int:
        self.ids[key] = len(self._described) + 1
        self._described.append((self.ids[key], parent, title, order))
        return self.ids[key]

    def kernels(self, ran: pl.DataFrame) -> KernelPackets:
        """Return the packets of what the devices ran, on the tracks of their streams."""
        ids = [self.ids[_STREAM, track] for track in kernel_tracks(ran)["track"]]
        return KernelPackets(ran, _SEQUENCE, ids, self.categories, self.arguments)

    def packets(self) -> Any:
        trace = proto.Trace()
        first = trace.packet.add(trusted_packet_sequence_id=_SEQUENCE)
        first.sequence_flags = proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        coloured = colours.perfetto()
        for category, iid in self.categories.items():
            first.interned_data.event_categories.add(iid=iid, name=category)
            if category not in coloured:  # kernels have the colours of their names
                continue
            text = coloured[category].encode()
            first.interned_data.MergeFromString(
                encoded(_COLOUR_TEXTS, encoded(1, iid) + encoded(2, text))
            )
        for name, iid in self.arguments.items():
            first.interned_data.debug_annotation_names.add(iid=iid, name=name)
        for uuid, parent, title, order in self._described:
            track = trace.packet.add(trusted_packet_sequence_id=_SEQUENCE).track_descriptor
            track.uuid, track.name, track.sibling_order_rank = uuid, title, order
            track.child_ordering = proto.TrackDescriptor.EXPLICIT
            if parent is not None:
                track.parent_uuid = parent
            if self.units.get(uuid) == _BYTES:
                track.counter.unit = proto.CounterDescriptor.UNIT_SIZE_BYTES
            elif uuid in self.units:
                track.counter.unit_name = self.units[uuid]
        for _, step, start, end, row in self.steps.iter_rows():
            track = self.ids[STEPS, row]
            _slice(trace, track, start, end, f"step {step}", self.categories[STEPS])
        return trace


def _events(tasks: pl.DataFrame, tracks: _Tracks) -> Iterator[Any]:
    """Yield the slices of all tasks, a bounded number at a time."""
    place = ("rank", "lane", "row", "start_ns", "end_ns", "label")
    arrows = ("sends", "receives", "receives_at_end")
    named = [(argument, tracks.arguments[argument]) for argument in ARGUMENTS]
    for chunk in tasks.select(*place, *arrows, *ARGUMENTS).iter_slices(_CHUNK):
        trace = proto.Trace()
        for rank, lane, row, start, end, label, sends, receives, late, *values in chunk.iter_rows():
            track, category = tracks.ids[rank, lane, row], tracks.categories[values[_KIND]]
            begin, finish = _slice(trace, track, start, end, label, category)
            begin.flow_ids.extend(sends or ())
            begin.terminating_flow_ids.extend(receives or ())
            finish.terminating_flow_ids.extend(late or ())
            for (argument, iid), value in zip(named, values, strict=True):
                if value is None:
                    continue
                if argument in _TEXTS:
                    begin.debug_annotations.add(name_iid=iid, string_value=value)
                elif type(value) is float:
                    begin.debug_annotations.add(name_iid=iid, double_value=value)
                else:
                    begin.debug_annotations.add(name_iid=iid, int_value=value)
        yield trace


def _phases(tracks: _Tracks) -> Iterator[Any]:
    """Yield the slices of the phases of all ranks, a bounded number at a time."""
    for chunk in tracks.phases.iter_slices(_CHUNK):
        trace = proto.Trace()
        for rank, name, start, end, row in chunk.iter_rows():
            track = tracks.ids[PHASES_TITLE, rank, row]
            _slice(trace, track, start, end, name, tracks.categories[name])
        yield trace


def _samples(timeline: Timeline, tracks: _Tracks) -> Iterator[Any]:
    """Yield the samples of all counters, a bounded number at a time."""
    held = in_force(timeline.counters, timeline.start_ns, None)
    for chunk in held.iter_slices(_CHUNK):
        trace = proto.Trace()
        for rank, name, unit, time, value in chunk.iter_rows():
            event = _event(trace, time)
            event.type = proto.TrackEvent.TYPE_COUNTER
            event.track_uuid = tracks.ids[rank, name, unit]
            event.double_counter_value = value
        yield trace


def _slice(
    trace: Any, track: int, start: int, end: int, name: str, category: int
) -> tuple[Any, Any]:
    """Add a slice; return its beginning, which carries what is said about it, and its end."""
    event = _event(trace, start, sequence_flags=proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE)
    event.type = proto.TrackEvent.TYPE_SLICE_BEGIN
    event.track_uuid = track
    event.name = name
    event.category_iids.append(category)
    event.MergeFromString(encoded(_COLOUR_ID, category))
    finish = _event(trace, end)
    finish.type = proto.TrackEvent.TYPE_SLICE_END
    finish.track_uuid = track
    return event, finish


def _event(trace: Any, time: int, **how: int) -> Any:
    """Add a packet with an event, and return that."""
    packet = trace.packet.add(timestamp=time, trusted_packet_sequence_id=_SEQUENCE, **how)
    return packet.track_event
