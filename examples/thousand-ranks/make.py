"""Makes a run of 1,024 ranks, of which one is slow: 128 replicas of a pipeline of eight stages.

    python make.py job.bubbles.parquet [--healthy]

Every replica plays 1F1B with 16 micro-batches by itself, its tasks within 1 % of their usual length.
All wait for each other at the end of a step, where gradients are reduced. Rank 301 takes a quarter
longer for everything, unless `--healthy` is given.
"""

from __future__ import annotations

import argparse
from typing import Final

import numpy as np
import polars as pl

import bubblescope
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate

STAGES: Final = 8
REPLICAS: Final = 128
MICROBATCHES: Final = 16
STEPS: Final = 3
SLOW: Final = divmod(301, STAGES)
"""Replica and stage of the slow rank."""
REDUCE_NS: Final = 5_000_000


def step_of(replica: int, step: int, *, healthy: bool) -> pl.DataFrame:
    """Return what the ranks of a replica run in a step, from 0 on."""
    noise = np.random.default_rng([replica, step]).normal(1, 0.01, (2, STAGES, MICROBATCHES))
    if replica == SLOW[0] and not healthy:
        noise[:, SLOW[1]] *= 1.25
    forward, backward = (noise * [[[4e6]], [[8e6]]]).astype(np.int64)
    plan = generate("1f1b", STAGES, MICROBATCHES)
    tasks = simulate(plan, Costs(forward, 0, 0, backward, comm_ns=100_000)).tasks
    return tasks.filter(lane="compute").with_columns(
        pl.col("rank") + replica * STAGES, step=pl.lit(step, pl.Int32)
    )


def main() -> None:
    """Write the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--healthy", action="store_true", help="no rank is slow")
    given = parser.parse_args()
    parts, opens = [], 0
    for step in range(STEPS):
        replicas = [step_of(one, step, healthy=given.healthy) for one in range(REPLICAS)]
        parts.append(pl.concat(replicas).with_columns(pl.col("start_ns", "end_ns") + opens))
        opens = parts[-1]["end_ns"].max() + REDUCE_NS
    number = np.arange(STAGES * REPLICAS)
    ranks = pl.DataFrame(
        {
            "rank": number,
            "host": [f"node{replica:03}" for replica in number // STAGES],
            "device": number % STAGES,
            "stages": [[stage] for stage in number % STAGES],
            "dp": number // STAGES,
            "pp": number % STAGES,
        }
    )
    run = bubblescope.Trace(bubblescope.Timeline(pl.concat(parts), ranks))
    run.export(given.file)
    print(f"wrote {given.file}: {len(run):,} tasks of {len(ranks):,} ranks")


if __name__ == "__main__":
    main()
