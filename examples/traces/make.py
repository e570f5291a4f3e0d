"""Makes the traces of this folder: small files, as profilers write them, of runs with known faults.

    python examples/traces/make.py

A schedule is played on four devices, and what ran is written in the format of each profiler, by the
makers that the tests use. No GPU or NPU was involved.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "helpers"))

from ascend_maker import Profile, declared, sizes
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from nsight_maker import UTC, Export
from paddle_maker import line, window

MS: Final = 1_000_000
FORWARD_NS: Final = 4 * MS
BACKWARD_NS: Final = 8 * MS
OPTIMIZER_NS: Final = 3 * MS
AHEAD_NS: Final = 20 * MS
"""How far the hosts of the NPUs are ahead of them."""
LETTERS: Final = {"forward": "F", "backward": "B"}


def played(
    microbatches: int,
    *,
    heavy: dict[int, float] | None = None,
    link_ns: dict[int, int] | None = None,
) -> pl.DataFrame:
    """Return three steps of 1F1B on four devices, every task within 1 % of its usual length.

    Args:
        microbatches: Of a step.
        heavy: Stage -> how many times as long as the others it takes.
        link_ns: Device -> how long a result takes from it to the next and back; 0.1 ms elsewhere.
    """
    plan = generate("1f1b", 4, microbatches)
    slow = np.array([(heavy or {}).get(stage, 1.0) for stage in range(4)])[:, None]
    links = np.full((4, 4), MS // 10)
    for device, time in (link_ns or {}).items():
        links[device, device + 1] = links[device + 1, device] = time
    steps, opens = [], 0
    for step in range(3):
        noise = slow * np.random.default_rng(step).normal(1, 0.01, (2, 4, microbatches))
        costs = Costs(
            (FORWARD_NS * noise[0]).astype(np.int64),
            0,
            0,
            (BACKWARD_NS * noise[1]).astype(np.int64),
            comm_ns=links,
            sync_ns=MS,
            optimizer_ns=OPTIMIZER_NS,
        )
        tasks = simulate(plan, costs).tasks.with_columns(
            pl.col("start_ns", "end_ns") + opens, step=pl.lit(step, pl.Int32)
        )
        steps.append(tasks)
        opens = tasks["end_ns"].max() + 2 * MS
    return pl.concat(steps).sort("rank", "start_ns")


def nsight(folder: Path) -> None:
    """Two nodes with two GPUs each: the last stage has too much to do, node1's clock is 60 ms ahead."""
    tasks = played(8, heavy={3: 1.35}).filter(pl.col("lane") == "compute")
    for node in range(2):
        export = Export(f"node{node}", UTC + 60 * MS * node)
        for rank in (2 * node, 2 * node + 1):
            process = export.process(4000 + rank, rank % 2)
            for row in tasks.filter(rank=rank).to_dicts():
                _kernels(process, row)
        export.write(folder / f"node{node}.sqlite")


def _kernels(process: Any, row: dict[str, Any]) -> None:
    """Write a task as a range on the host, 2 ms ahead, and four kernels that it launches."""
    start, end = row["start_ns"] + 10 * MS, row["end_ns"] + 10 * MS
    host = start - 2 * MS
    letter = LETTERS.get(row["kind"])
    name = f"{letter}{row['microbatch']}.0.0" if letter else "Optimizer"
    process.range(name, host, host + MS)
    names = {
        "F": ("rms_norm", "gemm_qkv", "flash_fwd", "gemm_mlp"),
        "B": ("gemm_mlp_dgrad", "flash_bwd", "gemm_qkv_dgrad", "gemm_wgrad"),
    }.get(letter or "", ("multi_tensor_adam",))
    edges = np.linspace(start, end, len(names) + 1).astype(int).tolist()
    for index, kernel in enumerate(names):
        last = edges[index + 1] - (2_000 if index + 1 < len(names) else 0)
        process.kernel(edges[index], last, at=host + 1_000 * (index + 1), name=kernel)


def paddle(folder: Path) -> None:
    """Four workers, and only four micro-batches: most of the bubble is the schedule's."""
    tasks = played(4).filter(pl.col("lane") == "compute")
    for rank in range(4):
        lines = [window(10, 13)]
        lines += [
            line(row["kind"], row["microbatch"] or 0, row["start_ns"] / MS, row["end_ns"] / MS)
            for row in tasks.filter(rank=rank).to_dicts()
        ]
        (folder / f"workerlog.{rank}").write_text("".join(lines), "latin-1")


def ascend(folder: Path) -> None:
    """Four NPUs: the link between ranks 1 and 2 takes 6 ms where others take 0.1 ms."""
    tasks = played(8, link_ns={1: 6 * MS})
    for rank in range(4):
        profile = Profile(rank, metadata={**sizes(4), **declared("1f1b", 8)}, device=rank)
        own = tasks.filter(rank=rank)
        starts = (
            own.group_by("step").agg(pl.col("start_ns").min()).sort("step")["start_ns"] - AHEAD_NS
        )
        ends = [*(starts[1:] - 1), own["end_ns"].max()]
        for step, (start, end) in enumerate(zip(starts, ends, strict=True)):
            profile.step(step + 10, start, end)
        for row in own.to_dicts():
            start, end, kind = row["start_ns"], row["end_ns"], row["kind"]
            if kind in LETTERS:
                profile.range(
                    f"{kind}_step", start, end, host=(start - AHEAD_NS, start - AHEAD_NS // 2)
                )
            elif row["peer"] is not None:
                way = "send" if kind.startswith("send") else "receive"
                number = len(profile.rows.get("COMMUNICATION_OP", []))
                name = f"hcom_{way}__046_{number}_1"
                ends = rank, row["peer"]
                profile.operation(name, start, end, ends, issued=start - AHEAD_NS)
        profile.write(folder)


def main() -> None:
    """Make them all."""
    for make in (nsight, paddle, ascend):
        folder = HERE / make.__name__
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make(folder)


if __name__ == "__main__":
    main()
