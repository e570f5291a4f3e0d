"""What do a dataset and the questions about it cost, from a thousand ranks to a hundred thousand?

    python benchmarks/scale.py make FOLDER --replicas 160 --steps 50
    python benchmarks/scale.py run FOLDER --workers 2 [--mode dask]
    python benchmarks/scale.py ask FOLDER.dataset --workers 2
    python benchmarks/scale.py serve FOLDER.dataset

The run is made: 1F1B of 64 stages in many replicas, one saved timeline a rank, as recorders leave them.
Eight ranks share a host, whose clock is off by some milliseconds. One device is slow, one link between
two hosts is slow, and one host launches its work late; TRUTH.json says which. `run` takes every command
as a whole process and prints its wall time, the CPU time of it and all its workers, and the peak memory
of the process that was asked: the client; `formats` says how much of that is loading libraries.
`ask` does so with a dataset that is there. `serve` opens a dataset whose levels have been made
(`dataset --levels`), and asks as the page does: first all of it from afar, then single steps of eight
ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlencode
from urllib.request import urlopen

import msgspec
import numpy as np
import polars as pl

from bubblescope import Timeline
from bubblescope.engine import engine
from bubblescope.render.html.schema import Condition, Search, SearchWord
from bubblescope.schedules import generate
from bubblescope.schedules.replay import Graph, edges_of

if TYPE_CHECKING:
    from collections.abc import Callable

STAGES, A_HOST = 64, 8
FORWARD_NS, LINK_NS = 1_000_000, 20_000
SLOW_DEVICE, SLOW_LINK_NS, LATE_NS = 1.3, 600_000, 300_000
CLOCK_NS = 2_000_000
_MIB = 2**20


class Truth(NamedTuple):
    """What is wrong with the run.

    Attributes:
        slow_rank: Its device takes 1.3 times as long.
        slow_link: From the first rank to the second and back, results take 0.6 ms longer.
        late_host: The ranks of the host that launches its work late.
    """

    slow_rank: int
    slow_link: tuple[int, int]
    late_host: tuple[int, ...]


class Job(NamedTuple):
    """One replica to be made."""

    folder: Path
    replica: int
    replicas: int
    steps: int
    microbatches: int
    period_ns: int
    offsets_ns: tuple[int, ...]
    truth: Truth


def rank_of(stage: int, replica: int, replicas: int) -> int:
    """Return the rank: replicas vary faster than stages, as in Megatron-LM."""
    return stage * replicas + replica


def truth_of(replicas: int) -> Truth:
    """Return what is wrong, each in another replica."""
    slow, link, late = (replicas * share // 8 for share in (1, 3, 6))
    host = rank_of(40, late, replicas) // A_HOST * A_HOST
    return Truth(
        rank_of(20, slow, replicas),
        (rank_of(30, link, replicas), rank_of(31, link, replicas)),
        tuple(range(host, host + A_HOST)),
    )


def replay(job: Job) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return the plan, and the start and end of every operation: steps x n each."""
    plan = generate("1f1b", devices=STAGES, microbatches=job.microbatches)
    edges, _ = edges_of(plan)
    graph = Graph(len(plan), edges)
    random = np.random.default_rng([job.replica, job.steps])
    rank = rank_of(plan.device, job.replica, job.replicas)
    base = np.where(plan.kind == 0, FORWARD_NS, 2 * FORWARD_NS)
    length = base * random.uniform(0.98, 1.02, (job.steps, len(plan)))
    length[:, rank == job.truth.slow_rank] *= SLOW_DEVICE
    duration = length.astype(np.int64)
    late = random.exponential(5_000, duration.shape).astype(np.int64)
    late[:, np.isin(rank, job.truth.late_host)] += LATE_NS
    one, other = rank[edges.source], rank[edges.target]
    delay = np.where(one != other, LINK_NS, 0)
    delay[
        np.isin(one, job.truth.slow_link) & np.isin(other, job.truth.slow_link) & (one != other)
    ] += SLOW_LINK_NS
    ends = np.stack([graph.run(late[step] + duration[step], delay)[1] for step in range(job.steps)])
    return plan, ends - duration, ends


def make_replica(job: Job) -> int:
    """Write the ranks of one replica, and return the length of its longest step."""
    plan, begin, end = replay(job)
    longest = int(end.max())
    if not job.period_ns:
        return longest
    opens = (np.arange(job.steps) * job.period_ns)[:, None]
    begin, end = begin + opens, end + opens
    kinds = np.where(plan.kind == 0, "forward", "backward")
    for stage in range(STAGES):
        rank = rank_of(stage, job.replica, job.replicas)
        mine = plan.device == stage
        host = rank // A_HOST
        start = begin[:, mine].ravel() + job.offsets_ns[host]
        launched_late = rank in job.truth.late_host
        launch = start - (2_000 if launched_late else FORWARD_NS)
        tasks = pl.DataFrame(
            {
                "rank": pl.repeat(rank, len(start), dtype=pl.Int32, eager=True),
                "step": np.repeat(np.arange(job.steps), mine.sum()),
                "kind": np.tile(kinds[mine], job.steps),
                "stage": np.tile(plan.stage[mine], job.steps),
                "microbatch": np.tile(plan.microbatch[mine], job.steps),
                "start_ns": start,
                "end_ns": end[:, mine].ravel() + job.offsets_ns[host],
                "host_start_ns": launch,
                "host_end_ns": launch + 1_000,
            }
        ).with_columns(lane=pl.lit("compute"), name=pl.lit("task"))
        ranks = pl.DataFrame(
            {"rank": [rank], "host": [f"node{host}"], "stages": [[stage]], "dp": [job.replica]}
        )
        Timeline(tasks, ranks).save(job.folder / f"rank{rank:06}.parquet")
    return longest


def make(folder: Path, replicas: int, steps: int, microbatches: int) -> None:
    """Write the traces of a run."""
    folder.mkdir(parents=True)
    truth = truth_of(replicas)
    hosts = -(-replicas * STAGES // A_HOST)
    random = np.random.default_rng(0)
    offsets = (0, *random.normal(0, CLOCK_NS, hosts - 1).astype(int).tolist())
    first = Job(folder, 0, replicas, steps, microbatches, 0, offsets, truth)
    worst = [first._replace(replica=replicas * share // 8) for share in (0, 1, 3, 6)]
    period = round(1.01 * max(make_replica(job) for job in worst))
    jobs = [first._replace(replica=replica, period_ns=period) for replica in range(replicas)]
    with engine() as workers:
        for done, _ in enumerate(workers.run(make_replica, jobs), 1):
            print(f"\r{done} of {replicas} replicas", end="", file=sys.stderr, flush=True)
    said = {**truth._asdict(), "tasks": replicas * STAGES * steps * microbatches * 2}
    _truth(folder).write_text(json.dumps(said))
    print(file=sys.stderr)


_MEASURE = """
import json, os, resource, subprocess, sys, time
begin, peak = time.perf_counter(), 0
done = subprocess.Popen(sys.argv[2:])
while done.poll() is None:
    try:
        with open(f"/proc/{done.pid}/status") as lines:
            peak = max([peak, *(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))])
    except OSError:
        pass
    time.sleep(0.01)
wall = time.perf_counter() - begin
of_all = resource.getrusage(resource.RUSAGE_CHILDREN)
said = [done.returncode, wall, of_all.ru_utime + of_all.ru_stime, peak * 1024, of_all.ru_maxrss * 1024]
open(sys.argv[1], "w").write(json.dumps(said))
"""
"""Runs a command from a process that is small, and looks at the command's own peak while it runs: what
the system says of it once it has ended is the greatest of it and of all its workers."""


def measured(arguments: list[str], output: Path) -> tuple[float, float, float, float]:
    """Run a command.

    Returns:
        Wall and CPU seconds of all its processes, its own peak in bytes, and the greatest of any.
    """
    with tempfile.NamedTemporaryFile() as said, output.open("w") as out:
        command = [sys.executable, "-m", "bubblescope", *arguments]
        subprocess.run(
            [sys.executable, "-S", "-c", _MEASURE, said.name, *command],
            env={
                key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"
            },
            stdout=out,
            check=True,
        )
        status, wall, cpu, peak, of_any = json.loads(Path(said.name).read_text())
    if status:
        sys.exit(f"{' '.join(arguments)} ended with {status}")
    return wall, cpu, peak, of_any


def run(folder: Path, how: list[str], commands: list[str]) -> None:
    """Make a dataset of the traces, ask what there is to ask, and print what each took."""
    root = folder.with_name(f"{folder.name}.dataset")
    shutil.rmtree(root, ignore_errors=True)
    ranks = sum(1 for _ in folder.iterdir())
    _heading(ranks, json.loads(_truth(folder).read_text())["tasks"])
    _row("dataset", ["dataset", str(folder), "-o", str(root), "--levels", *how], root)
    ask(root, how, commands, headed=True)


def ask(root: Path, how: list[str], commands: list[str], *, headed: bool = False) -> None:
    """Ask a dataset what there is to ask, and print what each took; first, what no work takes."""
    if not headed:
        parts = json.loads((root / "dataset.json").read_text())["parts"]
        of_blocks = (block["rows"] for part in parts for block in part["blocks"].values())
        _heading(
            sum(len(part["ranks"]) for part in parts), sum(rows["tasks"] for rows in of_blocks)
        )
    _row("formats", ["formats"], root)
    for command in commands:
        _row(command, [*command.split(), str(root), *how], root)


def _truth(folder: Path) -> Path:
    return folder.parent / f"{folder.name}.TRUTH.json"


def _heading(ranks: int, tasks: int) -> None:
    print(f"{ranks:,} ranks, {tasks:,} tasks; load {os.getloadavg()[0]:.1f}")
    print("| command | wall | CPU | peak of the client | of any process |\n|---|---|---|---|---|")


def _row(said: str, arguments: list[str], root: Path) -> None:
    name = said.split(maxsplit=1)[0].strip("-")
    wall, cpu, *peaks = measured(arguments, root.with_name(f"{root.stem}.{name}.txt"))
    held = " | ".join(f"{peak / _MIB:.0f} MiB" for peak in peaks)
    print(f"| `{said}` | {wall:.1f} s | {cpu:.1f} s | {held} |", flush=True)


def search(what: Literal["task", "gap"], *conditions: Condition) -> str:
    """Return a search of conditions that all must hold, as a viewer sends it."""
    sets = [[SearchWord(any=[[one]], negated=False) for one in conditions]]
    return msgspec.json.encode(Search(what=what, sets=sets)).decode()


def serve(root: Path, steps: int = 20) -> None:
    """Open a dataset in the server, ask it as a page does, and print what each took."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "bubblescope", "serve", str(root), "--no-open", "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            took = {"address": [time.perf_counter() - begin]}

            def ask(what: str, name: str, **asked: object) -> bytes:
                start = time.perf_counter()
                with urlopen(f"{url}{name}?{urlencode(asked)}") as answer:
                    content: bytes = answer.read()
                took.setdefault(what, []).append(time.perf_counter() - start)
                return content

            page = ask("page", "").decode()
            _, _, rest = page.partition('<script id="head" type="application/json">')
            head = json.loads(rest.partition("</script>")[0])
            ranks = len(head["ranks"])
            lanes = ",".join(dict.fromkeys(row["lane"] for row in head["rows"]))
            columns = max(100, min(1200, 300_000 // ranks))
            seen = {"columns": columns, "perpixel": head["end"] / columns, "lanes": lanes}
            every = f"0-{ranks - 1}"
            ask("all that ran, from afar", "window", start=0, ranks=every, idle="", **seen)
            opening = head["steps"][head["opening"] or 0]
            for what, low, high in (
                (
                    "the opening step of all ranks, two of them one by one",
                    opening["start"],
                    opening["end"],
                ),
                ("all steps of them", 0, head["end"]),
            ):
                # Half a screen more on both sides, as the page does.
                per_pixel, wide = (high - low) / 1200, {"columns": 2400, "lanes": lanes}
                begins = low - 600 * per_pixel
                asked = {"start": begins, "perpixel": per_pixel, "ranks": every, "idle": "0-1"}
                ask(what, "window", **asked, **wide)
            random = np.random.default_rng(1)
            for _ in range(steps):
                step = head["steps"][random.integers(len(head["steps"]))]
                first = int(random.integers(ranks - 7))
                near = {"columns": 1200, "perpixel": (step["end"] - step["start"]) / 1200}
                asked = {**near, "start": step["start"], "ranks": f"{first}-{first + 7}"}
                for what in ("a step of 8 ranks", "the same once more"):
                    ask(what, "window", lanes=lanes, **asked)
            _explained(ask, head["steps"], lanes)
            rank_3 = search("task", Condition(column="rank", least=3, most=3))
            ask("a search: rank:3", "find", search=rank_3)
            long = search("gap", Condition(column="length", least=1e8, open=True))
            ask("a search: idle>100ms", "find", search=long)
            ask("totals of all", "totals", start=0, end=head["end"], ranks=every)
            held = Path(f"/proc/{server.pid}/status").read_text()
        finally:
            server.terminate()
    print(f"load {os.getloadavg()[0]:.1f}\n| | median | most |\n|---|---|---|")
    for what, times in took.items():
        print(f"| {what} | {np.median(times):.2f} s | {max(times):.2f} s |")
    peak = next(line.split()[1] for line in held.splitlines() if line.startswith("VmHWM"))
    print(f"peak of the server: {int(peak) // 1024} MiB")


def _explained(ask: Callable[..., bytes], steps: list[dict[str, int]], lanes: str) -> None:
    """Ask why ranks are idle in steps, evenly from the first to the last, where nobody did."""
    for step in steps[:: max(1, len(steps) // 6)]:
        seen = {"start": step["start"], "perpixel": (step["end"] - step["start"]) / 1200}
        shown = ask("a step", "window", columns=1200, lanes=lanes, ranks="0-7", **seen)
        size = int.from_bytes(shown[:4], "little")
        left = json.loads(shown[4 : 4 + size])["unexplained"]
        if left:
            asked = {"start": step["start"], "end": step["end"], "parts": ",".join(map(str, left))}
            ask("why ranks are idle in a step", "explain", **asked)


def main() -> None:
    """Make a run, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ways = parser.add_subparsers(dest="way", required=True)
    making = ways.add_parser("make")
    making.add_argument("folder", type=Path)
    making.add_argument("--replicas", type=int, default=16)
    making.add_argument("--steps", type=int, default=50)
    making.add_argument("--microbatches", type=int, default=100)
    for way in ("run", "ask"):
        running = ways.add_parser(way)
        running.add_argument("folder", type=Path)
        running.add_argument("--commands", nargs="*", default=["report", "why", "stragglers"])
    ways.add_parser("serve").add_argument("folder", type=Path)
    asked, how = parser.parse_known_args()
    if asked.way == "make":
        make(asked.folder, asked.replicas, asked.steps, asked.microbatches)
    elif asked.way == "serve":
        serve(asked.folder)
    elif asked.way == "ask":
        ask(asked.folder, how, asked.commands)
    else:
        run(asked.folder, how, asked.commands)


if __name__ == "__main__":
    main()
