"""What `serve` does among 200 clients, half of them slow, and `watch` with 1,024 files that grow."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from test_watch import SECOND, header, tasks

import bubblescope
from bubblescope.recording.file import Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

DEVICES, MICROBATCHES = 64, 512
SEARCHES = (
    ("task", {"column": "rank", "least": 7, "most": 7}, {"column": "length", "least": 1e6}),
    ("task", {"column": "step", "least": 0, "most": 0}, {"column": "stage", "least": 1, "most": 9}),
    ("task", {"column": "name", "text": "7"}),
    ("gap", {"column": "length", "least": 1e5, "open": True}),
)
"""What viewers search: of tasks or gaps, and the conditions that all must hold."""
PATIENCE_S = 60.0
RANKS, TASKS_A_STEP = 1024, 64


def search(what: str, *conditions: dict[str, Any]) -> str:
    """Return a search as a viewer sends it."""
    sets = [[{"any": [[one]], "negated": False} for one in conditions]]
    return json.dumps({"what": what, "sets": sets})


class Watched:
    """A process of bubblescope's, and what it takes.

    Args:
        arguments: Of the command line.
    """

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bubblescope", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def line(self) -> str:
        """Return the next line that it prints."""
        return self.process.stdout.readline()  # type: ignore[union-attr]

    def mib(self, what: str) -> float:
        """Return its memory: VmRSS that is in use now, VmHWM at most."""
        said = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{what}:\s+(\d+) kB", said)[1]) / 1024  # type: ignore[index]

    def cpu_s(self) -> float:
        """Return the time that it has had on processors."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def threads(self) -> int:
        """Return how many threads it has."""
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))


class Clients:
    """Clients of a server, each with connections of its own.

    Attributes:
        took_s: What was asked -> how long each answer took.
        outcomes: Status or error -> how often.
    """

    def __init__(self, url: str, end_ns: float) -> None:
        self._at, self._end_ns = urlsplit(url), end_ns
        self.took_s: defaultdict[str, list[float]] = defaultdict(list)
        self.outcomes: Counter[str] = Counter()

    def request(self, dice: random.Random) -> tuple[str, bytes]:
        """Return what somebody may ask who looks around: mostly what is in sight."""
        span = self._end_ns * dice.random() ** 3
        start = dice.random() * (self._end_ns - span)
        first = dice.randrange(DEVICES - 16)
        ranks = f"{first}-{first + dice.randrange(16)}"
        what, asked = dice.choices(
            [
                (
                    "window",
                    {"perpixel": max(span, 1) / 1600, "columns": 1600, "lanes": "compute,comm"},
                ),
                ("totals", {"end": start + span}),
                ("find", {"search": search(*dice.choice(SEARCHES))}),
                ("", {}),
                ("whatif", {"ask": f"--stage {first}={dice.uniform(0.5, 1.5):.3f}"}),
            ],
            [90, 4, 4, 1, 1],
        )[0]
        said = urlencode({"start": start, "ranks": ranks, **asked})
        text = f"GET {self._at.path}{what}?{said} HTTP/1.1\r\nHost: {self._at.netloc}\r\n\r\n"
        return what or "page", text.encode()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._at.hostname, self._at.port, limit=2**26)

    async def prompt(self, dice: random.Random, pause_s: float) -> None:
        """Ask, read, look at it, ask again."""
        reader, writer = await self._connected()
        with contextlib.closing(writer):
            while True:
                what, request = self.request(dice)
                began = time.perf_counter()
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(re.search(rb"Content-Length: (\d+)", head)[1])  # type: ignore[index]
                await reader.readexactly(length)
                self.took_s[what].append(time.perf_counter() - began)
                self.outcomes[head.split()[1].decode()] += 1
                await asyncio.sleep(dice.expovariate(1 / pause_s))

    async def unread(self, dice: random.Random) -> None:
        """Ask for the page and read some bytes of it a second."""
        reader, writer = await self._connected()
        with contextlib.closing(writer):
            writer.write(self.request(dice)[1])
            while await reader.read(100):  # noqa: ASYNC110  it reads as slowly as that
                await asyncio.sleep(1)

    async def dripping(self, dice: random.Random) -> None:
        """Send some bytes of a request a second."""
        _, writer = await self._connected()
        with contextlib.closing(writer):
            for byte in self.request(dice)[1]:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(1)

    async def silent(self, _: random.Random) -> None:
        """Only connect."""
        reader, writer = await self._connected()
        with contextlib.closing(writer):
            await reader.read(1)

    async def again(self, act: Callable[[], Coroutine[None, None, None]]) -> None:
        """Do something for ever; a connection that is closed on us is made anew."""
        while True:
            try:
                await act()
            except (OSError, asyncio.IncompleteReadError) as error:
                self.outcomes[type(error).__name__] += 1
            await asyncio.sleep(0.1)

    async def crowd(self, count: int, seconds: float, pause_s: float) -> None:
        """Be so many clients for some seconds, half of them slow, if there are several."""
        acts: list[Callable[[], Coroutine[None, None, None]]] = []
        for number in range(count):
            dice = random.Random(number)
            slow = (self.unread, self.dripping, self.silent)[number // 2 % 3]
            acts.append(
                (lambda dice=dice, slow=slow: slow(dice))
                if number % 2
                else (lambda dice=dice: self.prompt(dice, pause_s))
            )
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*map(self.again, acts)), seconds)

    def told(self) -> str:
        """Say how long answers took."""
        lines = []
        for what, took in sorted(self.took_s.items()):
            middle, late, most = np.percentile(took, [50, 99, 100]) * 1000
            lines.append(
                f"  {what:7} {len(took):6,} answers  median {middle:6.0f} ms  "
                f"99 % {late:6.0f} ms  most {most:6.0f} ms"
            )
        return "\n".join([*lines, f"  {dict(self.outcomes)}"])


def serving(count: int, seconds: float, steps: int, pause_s: float) -> None:
    """Print what a server does for one client, then for many."""
    run = bubblescope.simulate("1f1b", devices=DEVICES, microbatches=MICROBATCHES, steps=steps)
    timeline = run.timeline
    with tempfile.TemporaryDirectory() as folder:
        trace = run.save(Path(folder) / "run.bubbles.parquet")
        server = Watched("serve", str(trace), "--no-open", "-q")
        try:
            url = server.line().strip()
            print(
                f"serve, {len(timeline):,} tasks; {server.mib('VmRSS'):,.0f} MiB before any request"
            )
            for clients in (1, count):
                known = Clients(url, timeline.end_ns - timeline.start_ns)
                cpu_s = server.cpu_s()
                asyncio.run(known.crowd(clients, seconds, pause_s))
                print(
                    f"{clients} clients for {seconds:.0f} s: {server.mib('VmRSS'):,.0f} MiB, "
                    f"{server.mib('VmHWM'):,.0f} at most, {server.threads()} threads, "
                    f"{(server.cpu_s() - cpu_s) / seconds:.2f} processors, "
                    f"{(server.cpu_s() - cpu_s) / known.outcomes['200'] * 1000:.0f} ms of one an answer"
                )
                print(known.told())
        finally:
            server.process.terminate()
            server.process.wait(PATIENCE_S)


def watching(seconds: float) -> None:
    """Print what `watch` takes, and how late it is, while files grow by a step a second."""
    written_s: dict[int, float] = {}
    late_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        files = [
            Sink(Path(folder, f"rank{rank:05d}.bubbles"), header(rank)) for rank in range(RANKS)
        ]
        watch = Watched("watch", folder, "--interval", "0.5")

        def reading() -> None:
            while line := watch.line():
                if found := re.search(r"step (\d+)", line):
                    late_s.append(time.monotonic() - written_s[int(found[1])])

        reader = threading.Thread(target=reading, daemon=True)
        reader.start()
        began = time.monotonic()
        for number in range(round(seconds)):
            starts = range(number * SECOND, (number + 1) * SECOND, SECOND // TASKS_A_STEP)
            rows = tasks(*((number, at, at + SECOND // 80) for at in starts))
            for file in files:
                file.write(rows)
            written_s[number] = time.monotonic()
            time.sleep(max(0.0, began + number + 1 - time.monotonic()))
        took = time.monotonic() - began
        size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
        print(
            f"watch, {RANKS:,} files that grow to {size:,.0f} MB in {took:.0f} s: "
            f"{len(late_s)} of {len(written_s)} steps told, median {np.median(late_s):.2f} s after "
            f"the last file had it, most {max(late_s):.2f} s; {watch.mib('VmHWM'):,.0f} MiB at most, "
            f"{watch.cpu_s() / took:.2f} processors, {watch.cpu_s() / len(late_s):.2f} s of one "
            "a step told"
        )
        watch.process.terminate()
        watch.process.wait(PATIENCE_S)
        for file in files:
            file.close(complete=True)


def share(seconds: float = 3.0) -> float:
    """Return how much of a processor who needs one gets now."""
    began, spent = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        pass
    return (time.process_time() - spent) / (time.perf_counter() - began)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["serve", "watch"])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--steps", type=int, default=8, help="of 65,536 tasks")
    parser.add_argument("--pause", type=float, default=2.0, help="s between what one asks")
    options = parser.parse_args()
    print(
        f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.0f}: "
        f"who counts in a loop has {share():.2f} of one"
    )
    if options.what == "serve":
        serving(options.clients, options.seconds, options.steps, options.pause)
    else:
        watching(options.seconds)


if __name__ == "__main__":
    main()
