"""Files for other programs: read back with those programs' own readers, nothing is lost."""

from __future__ import annotations

import csv
import itertools
import json
import re
import xml.etree.ElementTree as ET

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from bubblescope import Timeline, sources
from bubblescope.analysis.picture_data import pictured
from bubblescope.facade import Trace, write
from bubblescope.model import units
from bubblescope.model.kinds import Kind
from bubblescope.render.formats import FORMATS
from bubblescope.render.layout import duration_text, ordered_ranks, short_label, with_rows
from bubblescope.render.palette import COLOURS
from bubblescope.render.picture import svg
from bubblescope.render.traces.slices import flows
from synthetic import empty, hostile, one_f_one_b
from trace_processor import AROUND, opened


def intervals(timeline: Timeline) -> list[tuple]:
    return sorted(
        timeline.tasks.select("rank", pl.col("lane").cast(pl.String), "start_ns", "end_ns").rows()
    )


def parsed(path) -> tuple[dict[int, proto.TrackDescriptor], list[proto.TracePacket]]:
    trace = proto.Trace.FromString(path.read_bytes())
    tracks = {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in trace.packet
        if packet.HasField("track_descriptor")
    }
    return tracks, list(trace.packet)


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("make", [one_f_one_b, hostile, empty])
def test_every_format_takes_every_timeline_and_leaves_one_file(tmp_path, name, make):
    path = tmp_path / f"run{FORMATS[name].suffix}"
    assert write(make(), path, to=name) == path
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_size > 0


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "run.csv"
    path.write_text("precious")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_csv", fail)
    with pytest.raises(OSError, match="No space left"):
        write(one_f_one_b(), path, to="csv")
    assert path.read_text() == "precious"
    assert len(list(tmp_path.iterdir())) == 1


def test_perfetto_slices_are_the_tasks_by_the_official_classes(tmp_path):
    timeline = one_f_one_b()
    tracks, packets = parsed(write(timeline, tmp_path / "run.pftrace", to="perfetto"))
    titles = dict(ordered_ranks(timeline).select("title", "rank").rows())
    found, open_at, names = [], {}, []
    for packet in packets:
        event = packet.track_event
        track = tracks.get(event.track_uuid)
        if not packet.HasField("track_event") or track.name in ("steps", "phases"):
            continue
        below_root = not tracks[track.parent_uuid].parent_uuid
        if event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in open_at  # rows never overlap
            open_at[event.track_uuid] = packet.timestamp
            names.append(event.name)
        else:
            # A rank's own track carries its compute tasks, so that they show without expanding it.
            parent = track if below_root else tracks[track.parent_uuid]
            lane = "compute" if below_root else track.name.split()[0]
            found.append(
                (titles[parent.name], lane, open_at.pop(event.track_uuid), packet.timestamp)
            )
    assert sorted(found) == intervals(timeline)
    assert not open_at
    assert {"F3 1.000 ms", "B3 2.000 ms", "SF3 1.600 ms", "Opt 400.0 µs"} <= set(names)


def test_perfetto_tracks_follow_the_pipeline(tmp_path):
    timeline = one_f_one_b()
    shuffled = Timeline(
        timeline.tasks,
        timeline.ranks.with_columns(stages=pl.Series([[3], [2], [1], [0]]), host=pl.lit("h")),
    )
    tracks, _ = parsed(write(shuffled, tmp_path / "run.pftrace", to="perfetto"))
    [root] = (track for track in tracks.values() if not track.parent_uuid)
    assert root.child_ordering == proto.TrackDescriptor.EXPLICIT
    top = sorted(
        (track for track in tracks.values() if track.parent_uuid == root.uuid),
        key=lambda track: track.sibling_order_rank,
    )
    assert [track.name for track in top] == ["steps"] + [
        f"rank {rank} · stage {stage} · h" for stage, rank in enumerate([3, 2, 1, 0])
    ]


def test_perfetto_arguments_say_what_is_known(tmp_path):
    timeline = one_f_one_b()
    _, packets = parsed(write(timeline, tmp_path / "run.pftrace", to="perfetto"))
    interned = packets[0].interned_data
    arguments = {entry.iid: entry.name for entry in interned.debug_annotation_names}
    first = next(p.track_event for p in packets if p.track_event.name.startswith("F0"))
    said = {
        arguments[one.name_iid]: one.int_value or one.string_value
        for one in first.debug_annotations
    }
    assert said["name"] == "forward 0"
    assert said["busy_ns"] == 1_000_003 * 9 // 10
    assert "chunk" not in said  # unknown is left out, not 0


def slices(query) -> list[tuple]:
    return sorted(query(f"select name, dur, category from slice where category not in {AROUND}"))


@pytest.mark.parametrize("name", ["perfetto", "chrome"])
def test_perfettos_trace_processor_sees_the_same_slices_and_flows(tmp_path, name):
    timeline = one_f_one_b()
    path = write(timeline, tmp_path / "run", to=name)
    tasks = timeline.tasks.with_columns(
        label=pl.format("{} {}", short_label(), duration_text()),
        length=pl.col("end_ns") - pl.col("start_ns"),
    )
    expected = sorted(tasks.select("label", "length", pl.col("kind").cast(pl.String)).rows())
    with opened(path) as query:
        assert slices(query) == expected
        [(start, end)] = query(
            f"select min(ts), max(ts + dur) from slice where category not in {AROUND}"
        )
        assert end - start == timeline.duration_ns
        if name == "perfetto":
            assert start == timeline.start_ns
        [(flows,)] = query("select count(*) from flow")
        assert (
            flows == 2 * 3 * 8 * 3
        )  # forward and backward, over 3 edges, 8 micro-batches, 3 steps
        assert query("select name from stats where severity = 'error' and value > 0") == []


def test_chrome_times_are_exact_to_the_nanosecond(tmp_path):
    timeline = one_f_one_b()
    data = json.loads(write(timeline, tmp_path / "run.json", to="chrome").read_text())
    origin = int(data["otherData"]["start_ns"])
    events = [event for event in data["traceEvents"] if event["ph"] == "X"]
    lanes = {
        (event["pid"], event["tid"]): event["args"]["name"].split()[0]
        for event in data["traceEvents"]
        if event["name"] == "thread_name"
    }
    found = [
        (
            event["pid"],
            lanes[event["pid"], event["tid"]],
            origin + round(event["ts"] * 1000),
            origin + round(event["ts"] * 1000) + round(event["dur"] * 1000),
        )
        for event in events
    ]
    assert sorted(found) == intervals(timeline)


def test_chrome_slices_of_one_thread_never_overlap(tmp_path):
    data = json.loads(write(one_f_one_b(), tmp_path / "run.json", to="chrome").read_text())
    by_thread: dict[tuple, list[tuple]] = {}
    for event in data["traceEvents"]:
        if event["ph"] == "X":
            by_thread.setdefault((event["pid"], event["tid"]), []).append(
                (event["ts"], event["dur"])
            )
    for thread in by_thread.values():
        thread.sort()
        for (start, length), (following, _) in itertools.pairwise(thread):
            assert start + length <= following + 1e-6
    assert max(tid for _, tid in by_thread) % 1000 == 2  # overlapping sends took a second row


def test_csv_and_json_hold_every_column(tmp_path):
    timeline = one_f_one_b()
    write(timeline, tmp_path / "run.csv", to="csv")
    with (tmp_path / "run.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(timeline)
    assert rows[0]["kind"] == "forward"
    assert int(rows[0]["start_ns"]) == timeline.start_ns
    write(timeline, tmp_path / "run.json", to="json")
    data = json.loads((tmp_path / "run.json").read_text())
    assert data["schema"] == "bubblescope.timeline/1"
    assert data["tasks"] == timeline.tasks.to_dicts()
    assert data["ranks"] == timeline.ranks.to_dicts()
    assert data["run"]["warnings"][0]["code"] == "test"


def test_parquet_is_read_back_identical(tmp_path):
    timeline = one_f_one_b()
    path = write(timeline, tmp_path / "run.parquet", to="parquet")
    assert sources.load(path, clock="raw") == timeline


def blocks(text: str) -> list[ET.Element]:
    root = ET.fromstring(text)
    return [rect for rect in root.iter("{http://www.w3.org/2000/svg}rect") if len(rect)]


def test_svg_blocks_lie_where_their_tasks_are():
    timeline = one_f_one_b(comm=False)
    found = blocks(svg.render(pictured(timeline), width=1600))
    plot = 1600 - 150 - 70
    scale = plot / timeline.duration_ns
    expected = sorted(
        (round(150 + (start - timeline.start_ns) * scale, 2), round((end - start) * scale, 2))
        for start, end in timeline.tasks.select("start_ns", "end_ns").rows()
    )
    drawn = sorted((float(b.get("x")), float(b.get("width"))) for b in found)
    assert [x for x, _ in drawn] == pytest.approx([x for x, _ in expected], abs=0.011)
    assert [wide for _, wide in drawn] == pytest.approx([wide for _, wide in expected], abs=0.011)
    assert found[0][0].text == "F0 · 1.000 ms"


def test_svg_of_a_hostile_timeline_is_valid_and_carries_no_markup():
    text = svg.render(pictured(hostile()))
    ET.fromstring(text)
    assert "<img" not in text


def test_svg_says_the_rates_that_the_analysis_found():
    timeline = one_f_one_b()
    text = svg.render(pictured(timeline))
    assert f"bubble rate {units.percent(3 / 11)} of the makespan" in text
    assert text.count(units.percent(3 / 11)) >= 1 + 4 + 3  # overall, ranks, steps


def test_svg_with_more_tasks_than_pixels_shows_true_shares():
    timeline = one_f_one_b(ranks=4, microbatches=600, steps=2, comm=False)
    text = svg.render(pictured(timeline), width=900)
    assert "at each pixel's centre" in text.replace("&#x27;", "'")
    assert len(text) < 200_000
    plot = 900 - 150 - 70
    covered = {COLOURS[Kind.FORWARD]: 0, COLOURS[Kind.BACKWARD]: 0}
    for colour, drawn in re.findall(r'<path stroke="(#\w+)" stroke-width="18" d="([^"]*)"', text):
        if colour in covered:
            covered[colour] += sum(int(run) for run in re.findall(r"h(\d+)", drawn))
    lengths = timeline.tasks.group_by("kind").agg((pl.col("end_ns") - pl.col("start_ns")).sum())
    for kind, length in lengths.rows():
        if kind != "optimizer":
            share = length / timeline.duration_ns / 4
            colour = COLOURS[Kind(kind)]
            assert covered[colour] / plot / 4 == pytest.approx(share, abs=0.03)


def test_notebooks_get_a_picture_and_the_rates():
    shown = Trace(one_f_one_b())._repr_html_()
    assert shown.startswith("<svg")
    assert units.percent(3 / 11) in shown
    assert "<img" not in Trace(hostile())._repr_html_()


@example([(0, 1), (0, 1), (0, 10), (8, 5), (8, 5), (9, 0)])
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=15))
def test_rows_of_a_lane_never_overlap_and_are_as_few_as_can_be(pairs):
    frame = pl.DataFrame(
        {
            "rank": [0] * len(pairs),
            "lane": ["comm"] * len(pairs),
            "start_ns": [start for start, _ in pairs],
            "end_ns": [start + length for start, length in pairs],
        },
        schema={"rank": pl.Int32, "lane": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64},
    )
    placed = with_rows(frame)
    assert placed.height == len(pairs)
    for _, row in placed.group_by("row"):
        ordered = row.sort("start_ns", "end_ns").rows(named=True)
        for one, following in itertools.pairwise(ordered):
            assert one["end_ns"] <= following["start_ns"] + following["cut_ns"]
            assert (
                following["cut_ns"] < following["end_ns"] - following["start_ns"]
                or not following["cut_ns"]
            )
    deepest = max(
        (sum(1 for s, n in pairs if s <= at < s + n) for at, _ in pairs),
        default=0,
    )
    rows = placed["row"].n_unique()
    assert rows <= max(1, deepest) + sum(1 for _, length in pairs if length == 0)


def test_durations_are_written_alike_everywhere():
    lengths = [0, 999, 1000, 1_234_567, 12_345_678, 999_999_999, 1_500_000_000, 5_432_000_000_000]
    frame = pl.DataFrame({"start_ns": [0] * len(lengths), "end_ns": lengths})
    written = frame.select(duration_text()).to_series().to_list()
    assert written == [units.duration(length) for length in lengths]


def test_arrows_follow_each_micro_batch_through_the_stages():
    timeline = one_f_one_b(ranks=3, microbatches=2, steps=1)
    rows = timeline.tasks.with_row_index("index").rows_by_key("index", named=True, unique=True)
    arrows = flows(timeline)
    for source, target in arrows.select("source", "target").iter_rows():
        one, other = rows[source], rows[target]
        assert one["microbatch"] == other["microbatch"]
        assert other["stage"] - one["stage"] == (1 if one["kind"] == "forward" else -1)
        assert one["end_ns"] <= other["start_ns"]
    assert arrows.height == 2 * 2 * 2


def test_arrows_stay_within_a_replica_and_never_point_back():
    one = one_f_one_b(ranks=3, microbatches=2, steps=1, comm=False)
    tasks = pl.concat([one.tasks, one.tasks.with_columns(rank=pl.col("rank") + 3)])
    ranks = pl.concat([one.ranks, one.ranks.with_columns(rank=pl.col("rank") + 3)])
    both = Timeline(tasks, ranks.with_columns(dp=(pl.col("rank") // 3).cast(pl.Int32)))
    arrows = flows(both)
    assert arrows.height == 2 * flows(one).height
    replica = both.tasks["rank"] // 3
    assert replica.gather(arrows["source"]).equals(replica.gather(arrows["target"]))
    # By its own clock, the last rank does everything before the others begin.
    early = pl.when(pl.col("rank") == 2).then(-(10**10)).otherwise(0)
    torn = one.tasks.with_columns(pl.col("start_ns", "end_ns") + early)
    assert flows(Timeline(torn, one.ranks)).height == 2 * 2 + 2  # none of the forwards into it
