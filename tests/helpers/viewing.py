"""The page in a real browser: what its tests share."""

from __future__ import annotations

import base64
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from bubblescope.analysis.compare import Comparison
from bubblescope.analysis.view import View
from bubblescope.model.kinds import Kind
from bubblescope.render.html import page as html
from bubblescope.render.palette import BUBBLE, COLOURS, outline_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from bubblescope import Timeline

GROUNDS = [(251, 251, 249), (242, 247, 252), (253, 245, 238)]
"""Colours of an idle lane: in the steady phase, in warm-up and in cool-down."""

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a headless browser; skip where there is none."""
    if CHROMIUM is None:
        if os.environ.get("BUBBLESCOPE_REQUIRE_BROWSER"):
            pytest.fail("no Chromium on the PATH, and BUBBLESCOPE_REQUIRE_BROWSER is set")
        pytest.skip("no Chromium on the PATH")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


PLAIN = """(address) => {
    const { app } = window.bubblescope;
    const given = new URLSearchParams(address.replace(/^#/, ""));
    const own = app.state.arranged.extras;
    const overlays = app.head.above || app.head.against ? [] : ["ideal", "whatif"];
    const extras = new Set([...own, ...overlays]);
    app.change({ legend: false });
    app.arranging.arrange({
        ...(given.has("lanes") ? {} : { extras }),
        ...(given.has("size") ? {} : { size: "large" }),
    });
    app.resize();
    if (!given.has("t")) app.view.fit();
    app.journey.start();
    app.draw();
}"""
"""All of the run and every lane, in tall rows over the whole width: what most tests look at."""

WRITTEN = """() => {
    const texts = [];
    const draw = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        texts.push(text);
        draw.call(this, text, ...rest);
    };
    const { app } = window.bubblescope;
    app.draw(Infinity);
    CanvasRenderingContext2D.prototype.fillText = draw;
    return texts;
}"""
"""What is written on the canvases."""

PATIENCE_MS = 180_000
"""How long a page may take for what takes a moment: the machine may be busy with much else."""


def context_of(browser, **how):
    """Return a new context of a browser, whose pages are given time."""
    context = browser.new_context(**how)
    context.set_default_timeout(PATIENCE_MS)
    return context


@pytest.fixture(scope="module")
def browser():
    with chromium() as launched:
        yield launched


@pytest.fixture
def opened(browser, tmp_path):
    """Open a timeline's page; fail on any error, warning or request that it makes."""
    complaints: list[str] = []
    contexts = []

    def show(
        timeline: Timeline,
        width: int = 1280,
        height: int = 720,
        *,
        address: str = "",
        whatif=None,
        above: str | None = None,
        against: Timeline | None = None,
        as_it_opens: bool = False,
        **how,
    ):
        other = None if against is None else Comparison.of(timeline, against, labels=("A", "B"))
        view = View.of(timeline, whatif=whatif, against=other)
        view = msgspec.structs.replace(view, above=above)
        path = html.write(view, tmp_path / "view.html")
        context = context_of(browser, viewport={"width": width, "height": height}, **how)
        contexts.append(context)
        page = context.new_page()
        # Reading pixels back is what the tests do, not the page.
        page.on(
            "console",
            lambda message: (
                None if "willReadFrequently" in message.text else complaints.append(message.text)
            ),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.partition("#")[0] == path.as_uri()
                or request.url.startswith(("data:", "blob:"))
                else complaints.append(request.url)
            ),
        )
        page.goto(path.as_uri() + address)
        until(page, "!!window.bubblescope")
        if not as_it_opens:
            page.evaluate(PLAIN, address)
        return page

    yield show
    for context in contexts:
        context.close()
    assert complaints == []


PIXELS = """(selector) => {
    const canvas = document.querySelector(selector);
    const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    let text = "";
    for (let i = 0; i < image.data.length; i += 32768)
        text += String.fromCharCode(...image.data.subarray(i, i + 32768));
    return [canvas.width, canvas.height, btoa(text)];
}"""
"""Width, height and RGBA of a canvas."""


def screen(page, selector: str = "canvas.lanes") -> np.ndarray:
    """The pixels of a canvas, height by width by RGBA."""
    return decoded(*page.evaluate(PIXELS, selector))


def decoded(width: int, height: int, data: str) -> np.ndarray:
    """What `PIXELS` returns, as an array."""
    return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)


def rgb(kind: Kind | str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(COLOURS[Kind(kind)][1:]))


READ = """() => {
    const words = (one) => {
        const clip = one.getBoundingClientRect();
        const seen = ({ top, bottom, left, right, width }) =>
            width > 0
            && top >= Math.max(0, clip.top) - 2 && bottom <= Math.min(innerHeight, clip.bottom) + 2
            && left >= Math.max(0, clip.left) - 2 && right <= Math.min(innerWidth, clip.right) + 2;
        const range = document.createRange();
        const walker = document.createTreeWalker(one, NodeFilter.SHOW_TEXT);
        const found = [];
        let hidden = false;
        for (let node; (node = walker.nextNode());)
            for (const { index, 0: word } of node.data.matchAll(/\\S+/g)) {
                range.setStart(node, index);
                range.setEnd(node, index + word.length);
                const boxes = [...range.getClientRects()];
                if (boxes.length && boxes.every(seen) && !hidden) found.push(word);
                else hidden = true;
            }
        if (hidden) found.splice(-2); // which the dots may stand for
        return found.join(" ");
    };
    const parts = document.querySelectorAll("header :is(strong, p, .gain, .said)");
    return [...parts].map(words);
}"""


def in_sight(page) -> str:
    """What can be read of the verdict without a click: in the window, not cut off, and in the tree.

    That is the accessibility tree: what a screen reader has.
    """
    texts = page.evaluate(READ)
    tree = " ".join(page.locator("header").aria_snapshot().split()).replace('\\"', '"')
    for text in texts:
        assert text in tree, text
    return " ".join(texts)


AXE = Path(__file__).parents[2] / "viewer" / "node_modules" / "axe-core" / "axe.min.js"


def barriers(page) -> list[tuple[str, str]]:
    """What axe-core finds serious or worse: which rule, and its first element.

    The page has to be opened with `bypass_csp`, for its policy forbids other scripts.
    """
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci in viewer/")
    page.add_script_tag(path=AXE)
    found = page.evaluate("axe.run().then(({ violations }) => violations)")
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    return [(one["id"], one["nodes"][0]["html"]) for one in serious]


def state(page, what: str):
    return page.evaluate(f"window.bubblescope.{what}")


def app(page, what: str):
    return page.evaluate(f"window.bubblescope.app.{what}")


def until(page, expression: str) -> None:
    """Wait; Playwright's own way evaluates text, which the page's policy forbids."""
    for _ in range(500):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(20)
    pytest.fail(f"never: {expression}")


def settled(page) -> None:
    """Wait until the page has taken a place it rests at for one that was come to."""
    page.wait_for_timeout(400)


def where(page, task: int) -> tuple[float, float]:
    """The middle of a task on the screen, by its row among the page's tasks."""
    return tuple(
        page.evaluate(
            """(task) => {
                const { app, places, gutter } = window.bubblescope;
                const { start, end } = app.data.tasks;
                const place = places.find(({ row }) => row.from <= task && task < row.to);
                const box = app.canvas.getBoundingClientRect();
                const x = box.left + gutter + app.view.x((start[task] + end[task]) / 2);
                return [x, box.top + place.top - app.scroll.scrollTop + Math.min(place.height / 2, 5)];
            }""",
            task,
        )
    )


def task_at(page, **wanted) -> int:
    """The row of the first measured task with these numbers, among the page's tasks."""
    return page.evaluate(
        """(wanted) => {
            const { app } = window.bubblescope;
            const { tasks } = app.data;
            for (const row of app.head.rows) {
                if (row.lane === "ideal" || row.lane === "whatif") continue;
                if ("rank" in wanted && app.head.ranks[row.rank].rank !== wanted.rank) continue;
                for (let task = row.from; task < row.to; task++) {
                    const kind = app.head.kinds[tasks.kind[task]].name;
                    if ("kind" in wanted && kind !== wanted.kind) continue;
                    if ("step" in wanted && tasks.step[task] !== wanted.step) continue;
                    const microbatch = tasks.microbatch[task];
                    if ("microbatch" in wanted && microbatch !== wanted.microbatch) continue;
                    return task;
                }
            }
            return -1;
        }""",
        wanted,
    )


def choose(page, label: str, value: str) -> None:
    """Choose something in the menu that says how the run is shown."""
    menu = page.locator("details.menu", has_text="view").first
    menu.locator("summary").click()
    menu.get_by_label(label).select_option(value)
    menu.locator("summary").click()


def ground_of(page) -> tuple[float, float]:
    """A point of the plot with nothing in it: below the last lane."""
    box = page.locator("canvas.lanes").bounding_box()
    return box["x"] + box["width"] * 0.6, box["y"] + box["height"] - 12


def light(colours: np.ndarray) -> np.ndarray:
    """Return the linear light of values from 0 to 255 (sRGB, IEC 61966-2-1)."""
    share = np.asarray(colours, np.float64) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def channels(colour: str) -> list[int]:
    return list(bytes.fromhex(colour[1:]))


def shares(pixels: np.ndarray) -> np.ndarray:
    """Return of each pixel the shares of forward, backward and other time that mix to its colour.

    The page must be light, and show neither causes nor phases.
    """
    fills = (COLOURS[Kind.FORWARD], COLOURS[Kind.BACKWARD], BUBBLE)
    basis = light([channels(fill) for fill in fills])
    # A line at the start of a block is all of that block.
    whole = [(pixels == channels(outline_of(fill))).all(-1) for fill in fills[:2]]
    mixed = (light(pixels) - basis[2]) @ np.linalg.pinv(basis[:2] - basis[2])
    for at, own in enumerate(whole):
        mixed[own] = np.eye(2)[at]
    optimizer = COLOURS[Kind.OPTIMIZER]
    for colour in (optimizer, outline_of(optimizer)):  # is neither, and mixes with little
        mixed[(pixels == channels(colour)).all(-1)] = 0
    return np.concatenate([mixed, 1 - mixed.sum(-1, keepdims=True)], axis=-1)


def spent_until(tasks: pl.DataFrame, times: np.ndarray) -> np.ndarray:
    """Return for how long tasks, which do not overlap, ran until each of some times."""
    start, end = tasks.sort("start_ns").select("start_ns", "end_ns").to_numpy().T
    before = np.concatenate([[0], np.cumsum(end - start)])
    at = np.searchsorted(start, times, side="right")
    ended = before[np.maximum(at - 1, 0)]
    running = np.clip(times - start[np.maximum(at - 1, 0)], 0, (end - start)[np.maximum(at - 1, 0)])
    return np.where(at > 0, ended + running, 0)
