"""Pairs of runs of which it is known what changed."""

from __future__ import annotations

import numpy as np
import polars as pl

from bubblescope import Timeline
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate

MS = 1_000_000


def made(forward=10 * MS, *, schedule="1f1b", ranks=4, microbatches=8, comm=MS, steps=3, **more):
    plan = generate(schedule, ranks, microbatches, **more)
    costs = Costs(forward, 10 * MS, 10 * MS, comm_ns=comm, optimizer_ns=3 * MS)
    return simulate(plan, costs, steps=steps)


def noisy(seed, forward=10 * MS, *, steps=8, ranks=2, microbatches=2, noise=0.02):
    """Steps in which every task is slower or faster by the same chance."""
    random = np.random.default_rng(seed)
    parts, at = [], 0
    for step, factor in enumerate(1 + noise * random.standard_normal(steps)):
        plan = generate("1f1b", ranks, microbatches)
        costs = Costs(round(forward * factor), round(10 * MS * factor), round(10 * MS * factor))
        one = simulate(plan, costs)
        moved = [pl.col(name) + at for name in ("start_ns", "end_ns")]
        parts.append(one.tasks.with_columns(*moved, step=pl.lit(step, pl.Int32)))
        at += one.duration_ns
    return Timeline(pl.concat(parts), one.ranks, one.run)


def injected(run: Timeline, seed: int) -> tuple[Timeline, dict[tuple, int]]:
    """Return the run with every task on the devices longer or shorter, and by how much each is.

    The clock is another one as well, and every step a little later.
    """
    random = np.random.default_rng(seed)
    off = random.integers(-MS, MS, run.tasks.height)
    later = pl.col("step") * 7_654_321 + 123_456_789_012
    tasks = run.tasks.with_columns(
        pl.col("start_ns") + later, end_ns=pl.col("end_ns") + later + pl.Series(off), busy_ns=None
    )
    key = ("rank", "step", "kind", "stage", "microbatch")
    own = run.tasks.select(key).rows()
    return Timeline(tasks, run.ranks, run.run), dict(zip(own, off.tolist(), strict=True))
