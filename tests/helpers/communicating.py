"""A run in whose tasks groups of known roles communicate, for as long as is put in."""

from __future__ import annotations

import polars as pl

from bubblescope import Timeline
from bubblescope.model.groups import Group, tabled

PARTS = (
    ("tp", "allreduce", "communication", 0.10),
    ("tp", "allreduce", "communication_hidden", 0.05),
    ("tp", "allgather", "communication", 0.02),
    ("cp", "sendrecv", "communication_hidden", 0.20),
    (None, "alltoall", "communication", 0.01),
)
"""Role, operation, use, and what it takes of each forward and backward."""

GROUPS = (("tp", (0, 1)), ("tp", (2, 3)), ("cp", (0, 2)), ("cp", (1, 3)))


def communicating(timeline: Timeline) -> Timeline:
    """Return a run of ranks 0 to 3 whose forwards and backwards communicate as `PARTS` says."""
    length = pl.col("end_ns") - pl.col("start_ns")
    tasks = timeline.tasks.filter(
        pl.col("kind").is_in(["forward", "backward"]), pl.col("lane") == "compute"
    )
    base = {
        "rank": "rank",
        "device": pl.lit(0, pl.Int32),
        "step": "step",
        "inside": pl.col("kind").cast(pl.String),
        "start_ns": "start_ns",
        "end_ns": "end_ns",
    }
    parts = [("compute", None, None, 1.0)]
    parts += [(use, detail, role, share) for role, detail, use, share in PARTS]
    rows = [
        tasks.select(
            **base,
            use=pl.lit(use),
            detail=pl.lit(detail, pl.String),
            role=pl.lit(role, pl.String),
            spent_ns=(length * (share if use != "compute" else 0.87)).cast(pl.Int64),
            then=pl.lit(None, pl.String),
        )
        for use, detail, role, share in parts
    ]
    schema = timeline.budget.schema
    groups = tabled(Group(name=f"{role}{ranks}", ranks=ranks, role=role) for role, ranks in GROUPS)
    tables = {**timeline.tables, "budget": pl.concat(rows).cast(dict(schema)), "groups": groups}
    return Timeline(timeline.tasks, timeline.ranks, timeline.run, **tables)


def collectives(run: Timeline, *, matched: bool = True) -> Timeline:
    """The run with 12 all-reduces of all its ranks, to which rank 2 comes 300 us late."""
    ranks = run.ranks["rank"].sort().to_list()
    rows = [
        {
            "rank": rank,
            "start_ns": (start := run.start_ns + at * (2_000_000 + 9_000 * at)) + late,
            "end_ns": start + 350_000 + rank,
        }
        for at in range(12)
        for rank in ranks
        for late in [300_000 if rank == 2 else 10_000 * rank]
    ]
    rows = rows if matched else rows[:20] + rows[21:]
    made = pl.DataFrame(rows).with_columns(pl.col("rank").cast(pl.Int32))
    step = pl.lit(None, pl.Int32).alias("step")
    tasks = made.with_columns(
        step, kind=pl.lit("collective"), lane=pl.lit("comm"), name=pl.lit("nccl")
    )
    kernels = made.with_columns(
        step,
        device=pl.lit(0, pl.Int32),
        operation=pl.lit("allreduce"),
        group=pl.lit("tp"),
        exposed_ns=pl.lit(0, pl.Int64),
        hidden_ns=pl.lit(0, pl.Int64),
    )
    tables = {
        **run.tables,
        "operations": kernels,
        "groups": tabled([Group(name="tp", ranks=tuple(ranks))]),
    }
    both = pl.concat(
        [run.tasks, tasks.cast({"kind": run.tasks.schema["kind"]})], how="diagonal_relaxed"
    )
    return Timeline(both, run.ranks, run.run, **tables)
