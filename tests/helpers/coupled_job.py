"""A simulated job whose ranks wait for each other, which shares no code with what is tested."""

from __future__ import annotations

import random
from typing import Any

import polars as pl

from bubblescope import Timeline
from bubblescope.model.groups import Group, tabled
from bubblescope.model.provenance import Run
from bubblescope.model.timeline import TASK_SCHEMA

US = 1_000
MS = 1_000_000
Row = dict[str, Any]


class Job:
    """A job whose ranks compute, start a collective, compute beneath it, and wait for it.

    Args:
        ranks: How many.
        layers: Collectives of each group in a step.
        tensor: Ranks of a tensor-parallel group, which reduces after each layer; all of them then
            reduce once at the end of the step, if it is not all of them.
        jitter: Standard deviation of how long ranks compute, as a share.
        beneath: How long they compute beneath each collective.
        slow: Rank -> how many times as long it computes.
        late: How often a host is late by 100 to 600 us, of all launches of collectives.
        gemm: How many times as long half of what they compute takes, before and beneath collectives.
        hosts: A run of the job: as long after a step's begin as there, hosts that are late launch here.
            If left out, they launch as long after what comes before as by chance.
    """

    def __init__(
        self,
        ranks: int,
        *,
        layers: int = 12,
        tensor: int | None = None,
        jitter: float = 0.0,
        beneath: int = 0,
        slow: dict[int, float] | None = None,
        late: float = 0.0,
        gemm: float = 1.0,
        hosts: Job | None = None,
    ) -> None:
        self.ranks, self.layers, self.tensor = ranks, layers, tensor or ranks
        self.jitter, self.beneath, self.slow, self.late = jitter, beneath, slow or {}, late
        self.idle: list[tuple[int, int, int, int]] = []
        """Rank, step, start and end of each time that a device is idle, for its host is late."""
        self.gemm, self.hosts = gemm, hosts
        self.begun: dict[tuple[int, int], int] = {}
        """When each rank began each step."""
        self.ran: list[Row] = []
        """What devices ran: each kernel with its rank, name, use, start, end and launch."""

    def groups(self) -> list[list[int]]:
        return [
            list(range(first, first + self.tensor)) for first in range(0, self.ranks, self.tensor)
        ]

    def steps(self, count: int, seed: int) -> tuple[list[Row], list[dict[int, tuple[int, int]]]]:
        """Run it: return a row for each kernel of a collective, and when each rank was in each step."""
        chance = random.Random(seed)
        rows: list[Row] = []
        windows: list[dict[int, tuple[int, int]]] = []
        free = dict.fromkeys(range(self.ranks), 0)
        for step in range(count):
            begun = dict(free)
            self.begun |= {(rank, step): at for rank, at in free.items()}
            for layer in range(self.layers):
                usual = 400 * US + 50 * US * (layer % 3)
                for group in self.groups():
                    self._reduce(chance, free, group, usual, 60 * US, step, rows)
            if self.tensor < self.ranks:
                self._reduce(chance, free, list(range(self.ranks)), 200 * US, MS, step, rows)
            windows.append({rank: (begun[rank], free[rank]) for rank in free})
        return rows, windows

    def _reduce(
        self,
        chance: random.Random,
        free: dict[int, int],
        group: list[int],
        usual: int,
        transfer: int,
        step: int,
        rows: list[Row],
    ) -> None:
        start, launched = {}, dict.fromkeys(group, 0)
        for rank in group:
            longer = self.slow.get(rank, 1.0) * max(0.0, chance.gauss(1, self.jitter))
            start[rank] = self._compute(rank, free[rank], round(usual * longer))
            hosts = random.Random(f"{rank} {step} {len(rows)}")  # the same, if late or not
            if hosts.random() < self.late:
                until = start[rank] + hosts.randrange(100 * US, 600 * US)
                if self.hosts is not None:
                    there = self.hosts.idle[len(self.idle)][-1] - self.hosts.begun[rank, step]
                    until = max(start[rank], self.begun[rank, step] + there)
                self.idle.append((rank, step, start[rank], until))
                start[rank] = until
                launched[rank] = until - 5 * US
        end = max(start.values()) + transfer
        for rank in group:
            done = self._compute(rank, start[rank], self.beneath, launched[rank])
            busy = min(end, done)
            free[rank] = max(end, done)
            self._run(rank, "nccl", "communication", start[rank], end, launched[rank])
            rows.append(
                {
                    "rank": rank,
                    "step": step,
                    "start_ns": start[rank],
                    "end_ns": end,
                    "hidden_ns": busy - start[rank],
                    "exposed_ns": end - busy,
                    "group": "tp" if len(group) < self.ranks else "all",
                }
            )

    def _compute(self, rank: int, begin: int, length: int, launched: int = 0) -> int:
        """Run half of it in a kernel that may be faster, the rest in another; return when it ends."""
        half = begin + round(self.gemm * (length // 2))
        end = half + length - length // 2
        self._run(rank, "gemm", "compute", begin, half, launched)
        self._run(rank, "norm", "compute", half, end, launched)
        return end

    def _run(self, rank: int, name: str, use: str, begin: int, end: int, launched: int = 0) -> None:
        times = {"start_ns": begin, "end_ns": end, "launch_ns": launched}
        if end > begin:
            self.ran.append({"rank": rank, "device": 0, "name": name, "use": use, **times})


def traced(job: Job, count: int = 3, seed: int = 0, *, sums: bool = False) -> Timeline:
    """Return the run of a job as its traces tell it.

    Args:
        job: The job.
        count: Steps.
        seed: Of chance.
        sums: Whether how long a device idled in a step is told as a sum.
    """
    rows, windows = job.steps(count, seed)
    times = [
        (rank, step, *window, False)
        for step, of_ranks in enumerate(windows)
        for rank, window in of_ranks.items()
    ]
    spent = []
    for rank, step, begin, end, _ in times:
        own = [row for row in rows if (row["rank"], row["step"]) == (rank, step)]
        exposed = sum(row["exposed_ns"] for row in own)
        spent.append((rank, step, begin, end, "communication", exposed))
        gaps = [(start, until) for *place, start, until in job.idle if place == [rank, step]]
        idle = sum(until - start for start, until in gaps)
        spent.append((rank, step, begin, end, "compute", end - begin - exposed - idle))
        if sums:
            spent.append((rank, step, begin, end, "host_operator", idle))
        else:
            spent += [(rank, step, *gap, "host_operator", gap[1] - gap[0]) for gap in gaps]
    names = ["rank", "step", "start_ns", "end_ns", "use", "spent_ns"]
    operations = pl.DataFrame(rows).with_columns(
        name=pl.lit("n"), operation=pl.lit("allreduce"), device=pl.lit(0, pl.Int32)
    )
    groups = [Group("tp", tuple(ranks)) for ranks in job.groups() if len(ranks) < job.ranks]
    return Timeline(
        pl.DataFrame(schema=TASK_SCHEMA),
        pl.DataFrame({"rank": range(job.ranks), "host": "h"}, schema_overrides={"rank": pl.Int32}),
        Run(),
        operations=operations,
        groups=tabled([*groups, Group("all", tuple(range(job.ranks)))]),
        activities=pl.DataFrame(job.ran),
        budget=pl.DataFrame(spent, schema=names, orient="row").with_columns(device=0),
        step_times=pl.DataFrame(times, schema=[*names[:4], "open"], orient="row"),
    )


def mean(windows: list[dict[int, tuple[int, int]]]) -> float:
    """Return how long a step takes, on the rank that takes longest."""
    longest = [max(end - begin for begin, end in one.values()) for one in windows]
    return sum(longest) / len(longest)
