"""Runs whose ranks do not wait for each other between steps, played one operation after the other.

Nothing here is shared with what predicts them but the order of the schedules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import Run
from bubblescope.model.timeline import TASK_SCHEMA, Timeline
from bubblescope.schedules import generate

if TYPE_CHECKING:
    from bubblescope.schedules.plan import Operation

_NS = {Kind.FORWARD: 10, Kind.BACKWARD: 20, Kind.BACKWARD_INPUT: 10, Kind.BACKWARD_WEIGHT: 10}
_UNIT = 1_000_000
_BACK = (Kind.BACKWARD, Kind.BACKWARD_INPUT)


class Pipeline(NamedTuple):
    """A pipeline with one stage on each rank.

    Attributes:
        schedule: Its schedule.
        work: How many times as long each stage takes.
        microbatches, steps: How many.
        rest: Of a rank between its steps, in the unit of a tenth of a forward.
        barrier: Whether all wait for each other at the end of a step.
    """

    schedule: str
    work: tuple[float, ...]
    microbatches: int = 8
    steps: int = 5
    rest: float = 2.0
    barrier: bool = False

    def play(self, *, skip: int = 0, receives: bool = True) -> Timeline:
        """Return what is recorded from some step on.

        Args:
            skip: Steps that are not recorded.
            receives: Whether receives are.
        """
        p = len(self.work)
        plan = generate(self.schedule, p, self.microbatches)
        free = [0.0] * p
        rows = []
        for step in range(self.steps):
            ended: dict[tuple[bool, bool, int, int], float] = {}
            left = [list(plan.order(device)) for device in range(p)]
            while any(left):
                for rank in range(p):
                    while left[rank] and (needs := _needs(left[rank][0], p, ended)) is not None:
                        one = left[rank].pop(0)
                        peer, ready = needs
                        start = max(free[rank], ready)
                        same = {"rank": rank, "step": step, "microbatch": one.microbatch}
                        if peer != rank and receives:
                            kind = "recv_forward" if one.kind is Kind.FORWARD else "recv_backward"
                            rows.append((same, kind, "comm", peer, free[rank], start))
                        free[rank] = start + _NS[one.kind] * self.work[rank]
                        rows.append((same, one.kind.value, "compute", None, start, free[rank]))
                        weight = one.kind is Kind.BACKWARD_WEIGHT
                        back = one.kind in _BACK
                        ended[back, weight, rank, one.microbatch] = free[rank]
            if self.barrier:
                free = [max(free)] * p
            free = [one + self.rest for one in free]
        return _timeline([row for row in rows if row[0]["step"] >= skip])

    def step_ns(self, *, skip: int = 0) -> float:
        """Return the mean of the steps recorded, from first start to last end."""
        tasks = self.play(skip=skip).tasks.filter(lane="compute")
        lasted = tasks.group_by("step").agg(pl.col("end_ns").max() - pl.col("start_ns").min())
        return float(lasted["end_ns"].mean())


def _needs(
    one: Operation, stages: int, ended: dict[tuple[bool, bool, int, int], float]
) -> tuple[int, float] | None:
    """Return whose result an operation needs and when that is there; None if it is not made yet."""
    at, m = one.stage, one.microbatch
    if one.kind is Kind.FORWARD:
        return (at, 0.0) if at == 0 else _made(at - 1, ended.get((False, False, at - 1, m)))
    if one.kind is Kind.BACKWARD_WEIGHT:
        return _made(at, ended.get((True, False, at, m)))
    if at == stages - 1:
        return _made(at, ended.get((False, False, at, m)))
    return _made(at + 1, ended.get((True, False, at + 1, m)))


def _made(rank: int, end: float | None) -> tuple[int, float] | None:
    return None if end is None else (rank, end)


def _timeline(rows: list[tuple[dict[str, int], str, str, int | None, float, float]]) -> Timeline:
    tasks = pl.DataFrame(
        [
            {
                **same,
                "stage": same["rank"],
                "kind": kind,
                "lane": lane,
                "peer": peer,
                "start_ns": round(start * _UNIT),
                "end_ns": round(end * _UNIT),
                "name": kind,
            }
            for same, kind, lane, peer, start, end in rows
        ],
        schema_overrides={
            name: TASK_SCHEMA[name]
            for name in (
                *("rank", "step", "microbatch", "stage", "kind", "lane", "peer"),
                *("start_ns", "end_ns", "name"),
            )
        },
    )
    return Timeline(tasks, None, Run())
