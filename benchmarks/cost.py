"""What do the questions cost on runs of up to 10 million tasks, beside another version?

    python benchmarks/cost.py --steps 1 8 80 --runs 3 --beside OTHER_SRC

The run is made: 1F1B of 64 stages and 64 micro-batches in 16 replicas, 1,024 ranks and 131,072 tasks a
step, whose lengths and launches vary and whose hosts collect garbage. Every command is a whole process,
those of all versions in turn, so that a busy machine is the same for all. Printed are the least wall
time, the CPU time and the peak memory, what a task costs, and the ratios to the other version.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from bubblescope import Timeline
from bubblescope.facade import write
from bubblescope.schedules import generate
from bubblescope.schedules.replay import Graph, edges_of

STAGES, MICROBATCHES, REPLICAS = 64, 64, 16
COMMANDS = {
    "report": ["report"],
    "why": ["why"],
    "whatif": ["whatif"],
    "stragglers": ["stragglers"],
    "view": ["view", "--no-open", "-o"],
}
_MIB = 2**20
# The benchmarks of a package that is being worked on often run without compiled modules.
_SETTINGS = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


class Cost(NamedTuple):
    """What a process took."""

    wall_s: float
    cpu_s: float
    peak: int


def make(steps: int, *, seed: int = 0) -> Timeline:
    """Return a run of 131,072 tasks a step and one garbage collection in 64 ranks."""
    random = np.random.default_rng(seed)
    plan = generate("1f1b", devices=STAGES, microbatches=MICROBATCHES)
    edges, _ = edges_of(plan)
    graph = Graph(len(plan), edges)
    forward = plan.kind == 0
    base = np.where(forward, 10_000_000, 20_000_000)
    replays = steps * REPLICAS
    length = (base * random.uniform(0.95, 1.05, (replays, len(plan)))).astype(np.int64)
    late = random.exponential(100_000, length.shape).astype(np.int64)
    paused = random.integers(0, len(plan), (replays, REPLICAS))
    late[np.arange(replays)[:, None], paused] += 8_000_000
    begin, end = graph.run_many(late + length)
    # Steps follow each other; those of all replicas begin together.
    spans = end.reshape(steps, -1).max(axis=1) + 1_000_000
    opens = np.repeat(np.cumsum(spans) - spans, REPLICAS)[:, None]
    step, replica = np.divmod(np.arange(replays), REPLICAS)
    rank = plan.device + replica[:, None] * STAGES
    tasks = pl.DataFrame(
        {
            "rank": rank.ravel(),
            "step": np.repeat(step, len(plan)),
            "kind": np.tile(np.where(forward, "forward", "backward"), replays),
            "stage": np.tile(plan.stage, replays),
            "microbatch": np.tile(plan.microbatch, replays),
            "start_ns": (opens + begin + late).ravel(),
            "end_ns": (opens + end).ravel(),
            "host_start_ns": (opens + begin + late - 1_000).ravel(),
            "host_end_ns": (opens + begin + late).ravel(),
        }
    ).with_columns(lane=pl.lit("compute"), name=pl.lit("task"))
    row = np.arange(replays)[:, None], paused
    pauses = pl.DataFrame(
        {
            "rank": rank[row].ravel(),
            "step": np.repeat(step, REPLICAS),
            "start_ns": (opens + begin[row]).ravel(),
            "end_ns": (opens + begin[row] + 8_000_000).ravel(),
        }
    ).with_columns(kind=pl.lit("gc"), lane=pl.lit("host"), name=pl.lit("gc"))
    ranks = pl.DataFrame(
        {
            "rank": np.arange(STAGES * REPLICAS),
            "host": [f"node{rank // 8}" for rank in range(STAGES * REPLICAS)],
            "stages": [[rank % STAGES] for rank in range(STAGES * REPLICAS)],
            "dp": np.arange(STAGES * REPLICAS) // STAGES,
        }
    )
    return Timeline(pl.concat([tasks, pauses], how="diagonal"), ranks)


def _made(steps: int, trace: Path) -> int:
    """Write a run, and return how many tasks it has.

    A process of its own makes it: the peak of one that is started here counts from what is held here.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_write, steps, trace).result()


def _write(steps: int, trace: Path) -> int:
    run = make(steps)
    write(run, trace, to="parquet")
    _without_empty_columns(trace)
    return len(run.tasks)


def _without_empty_columns(trace: Path) -> None:
    """Leave out what no task has: other versions may not know all columns."""
    tasks, metadata = pl.read_parquet(trace), pl.read_parquet_metadata(trace)
    known = [column.name for column in tasks if column.null_count() < len(column)]
    own = {name: text for name, text in metadata.items() if name.startswith("bubblescope.")}
    tasks.select(known).write_parquet(trace, metadata=own)


def cost(source: Path, arguments: list[str], answer: Path) -> Cost:
    """Run the command of a source folder, and return what its process took."""
    begin = time.perf_counter()
    child = os.fork()
    if not child:
        out = os.open(answer, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.execve(
            sys.executable,
            [sys.executable, "-m", "bubblescope", *arguments],
            _SETTINGS | {"PYTHONPATH": str(source)},
        )
    _, status, usage = os.wait4(child, 0)
    if status:
        sys.exit(
            f"{' '.join(arguments)} of {source} ended with {os.waitstatus_to_exitcode(status)}"
        )
    wall = time.perf_counter() - begin
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--beside", type=Path, metavar="SRC", help="folder of the other version")
    asked = parser.parse_args()
    sources = [Path(__file__).parents[1] / "src", *filter(None, [asked.beside])]
    ratios = " wall, ratio | CPU, ratio | peak, ratio |" if asked.beside else ""
    print(f"| command | tasks | wall | CPU | peak | wall a task | peak a task |{ratios}")
    print("|---|---|---|---|---|---|---|" + "---|" * ratios.count("|"))
    with tempfile.TemporaryDirectory() as folder:
        trace, page, answer = (
            Path(folder, "run.parquet"),
            Path(folder, "run.html"),
            Path(folder, "out"),
        )
        for steps in asked.steps:
            count = _made(steps, trace)
            for command in asked.only:
                arguments = [
                    *COMMANDS[command],
                    *([str(page)] if command == "view" else []),
                    str(trace),
                ]
                least = [Cost(np.inf, np.inf, 2**62)] * len(sources)
                for _ in range(asked.runs):
                    for index, source in enumerate(sources):
                        page.unlink(missing_ok=True)
                        taken = cost(source, arguments, answer)
                        least[index] = Cost(*map(min, least[index], taken))
                one = least[0]
                row = (
                    f"| `{command}` | {count:,} | {one.wall_s:.2f} s | {one.cpu_s:.2f} s | "
                    f"{one.peak / _MIB:.0f} MiB | {one.wall_s / count * 1e6:.2f} µs | "
                    f"{one.peak / count:.0f} B |"
                )
                if asked.beside:
                    row += "".join(f" {a / b:.2f} |" for a, b in zip(one, least[1], strict=True))
                print(row, flush=True)


if __name__ == "__main__":
    main()
