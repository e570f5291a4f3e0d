"""Runs in which more goes on than passes, and what they are dealt out to."""

from __future__ import annotations

import numpy as np
import polars as pl

from bubblescope import Timeline
from bubblescope.analysis.pieces.run_in_pieces import Split
from bubblescope.model.budget import BUDGET_SCHEMA
from bubblescope.model.kinds import COMPUTE_KINDS
from bubblescope.model.provenance import Run

KINDS = ("gc", "data", "other", "optimizer", "collective")
DETAILS = ("gloo:recv", "gloo:barrier", "HtoD pageable", "x")


def disturbed(timeline, seed):
    """Let more go on in a run than its passes, in and beside its steps; and damage it further."""
    random = np.random.default_rng([seed, 1])
    tasks = timeline.tasks
    if (
        random.random() < 0.3
        and tasks["step"].n_unique() > 2
        and tasks["microbatch"].has_nulls() is False
    ):
        tasks, per = in_rounds(tasks)
        run = Run(microbatches=per)
    else:
        run = Run()
    if random.random() < 0.5:
        tasks = tasks.filter(pl.Series(random.random(tasks.height) > 0.01))
    if random.random() < 0.2:
        tasks = tasks.with_columns(
            certainty=pl.Series(random.random(tasks.height), dtype=pl.Float32)
        )
    beside = [tasks, *(more(tasks, random) for _ in range(1) if random.random() < 0.8)]
    tasks = pl.concat(beside, how="diagonal_relaxed").with_columns(
        pl.col("kind").cast(timeline.tasks.schema["kind"]),
        pl.col("lane").cast(timeline.tasks.schema["lane"]),
    )
    ranks = timeline.ranks
    if random.random() < 0.4:
        clock = pl.col("rank") % 2
        ranks = ranks.with_columns(
            host=pl.format("host{}", clock),
            clock_offset_ns=clock.cast(pl.Int64) * 1_000,
            clock_error_ns=clock.cast(pl.Int64) * int(random.integers(0, 500_000)),
        )
    if random.random() < 0.2:
        ranks = ranks.with_columns(timed=pl.lit("host"))
    budget = spent(tasks, random) if random.random() < 0.3 else None
    return Timeline(tasks, ranks, run, budget=budget)


def in_rounds(tasks):
    """Make rounds of a step of each two steps."""
    per = int(tasks["microbatch"].max()) + 1
    turn = pl.col("step") % 2
    number = pl.col("microbatch") + per * turn
    return tasks.with_columns(microbatch=number, step=pl.col("step") // 2), per


def more(tasks, random):
    """Return what hosts and devices do beside passes, some of it of no step."""
    low, high = int(tasks["start_ns"].min()), int(tasks["end_ns"].max())
    count = int(random.integers(5, 60))
    start = random.integers(low, high, count)
    kind = [str(one) for one in random.choice(KINDS, count)]
    opens = tasks.drop_nulls("step").group_by("step").agg(pl.col("start_ns").min()).sort("start_ns")
    at = np.searchsorted(opens["start_ns"].to_numpy(), start, "right") - 1
    steps = [
        None if not opens.height or random.random() < 0.3 else opens["step"][max(int(one), 0)]
        for one in at
    ]
    lanes = [
        "compute"
        if one == "optimizer"
        else "comm"
        if one == "collective"
        else str(random.choice(["host", "comm"]))
        if one == "other"
        else "host"
        for one in kind
    ]
    return pl.DataFrame(
        {
            "rank": random.choice(tasks["rank"].unique().to_numpy(), count),
            "step": pl.Series(steps, dtype=pl.Int32),
            "kind": kind,
            "lane": lanes,
            "start_ns": start,
            "end_ns": start + random.integers(0, max(2, (high - low) // 8), count),
            "name": [f"{one} {int(random.integers(10))}" for one in kind],
        }
    ).with_columns(pl.col("rank").cast(pl.Int32))


def spent(tasks, random):
    """Return a budget: what devices did in and between tasks."""
    uses = (
        "compute",
        "communication",
        "host_gc",
        "latency",
        "communication_hidden",
        "rank_wait",
        "copy",
    )
    rows = tasks.filter(pl.col("lane") == "compute").sort("rank", "start_ns")
    passes = rows.filter(pl.col("kind").is_in([kind.value for kind in COMPUTE_KINDS]))
    inside = passes.select(
        "rank",
        "step",
        pl.col("kind").cast(pl.String).alias("inside"),
        "start_ns",
        "end_ns",
        use=pl.Series([str(one) for one in random.choice(uses[:2], passes.height)]),
    )
    gaps = (
        rows.select(
            "rank",
            "step",
            pl.lit(None, pl.String).alias("inside"),
            pl.col("end_ns").alias("start_ns"),
            end_ns=pl.col("start_ns").shift(-1).over("rank"),
            use=pl.Series([str(one) for one in random.choice(uses, rows.height)]),
        )
        .drop_nulls("end_ns")
        .filter(pl.col("end_ns") > pl.col("start_ns"))
    )
    both = pl.concat([inside, gaps])
    both = both.with_columns(
        device=0,
        detail=pl.Series([str(one) for one in random.choice(DETAILS, both.height)]),
        spent_ns=pl.col("end_ns") - pl.col("start_ns"),
    )
    return both.with_columns(
        pl.col("inside").cast(BUDGET_SCHEMA["inside"]), pl.col("use").cast(BUDGET_SCHEMA["use"])
    )


def split(timeline, seed):
    """Deal the steps and the ranks of a run out at random, or one by one without a seed."""
    if seed is None:
        return Split(
            timeline,
            [[step] for step in timeline.steps],
            [[rank] for rank in timeline.ranks["rank"].to_list()],
        )
    random = np.random.default_rng(seed)
    ranks = timeline.ranks["rank"].to_list()
    return Split(
        timeline,
        dealt(random, timeline.tasks["step"].drop_nulls().unique().to_list()),
        dealt(random, ranks),
    )


def dealt(random, numbers):
    if not numbers:
        return [[]]
    count = int(random.integers(1, len(numbers) + 1))
    into = random.integers(0, count, len(numbers))
    parts = [
        [one for one, part in zip(numbers, into, strict=True) if part == at] for at in range(count)
    ]
    return [part for part in parts if part]
