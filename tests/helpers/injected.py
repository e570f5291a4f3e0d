"""Runs whose idle time has known causes: a pipeline is played with faults put into it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import polars as pl

from bubblescope.analysis.idle.causes import Cause
from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind
from bubblescope.model.provenance import Run
from bubblescope.model.timeline import TASK_SCHEMA, Timeline
from bubblescope.model.timeline_tables import RANK_SCHEMA
from bubblescope.schedules import generate
from bubblescope.schedules.plan import KINDS, Plan
from bubblescope.schedules.replay import Graph, edges_of

CAUSES = (
    Cause.SLOW_RANK,
    Cause.IMBALANCE,
    Cause.ORDER,
    Cause.TRANSFER,
    Cause.PAUSE,
    Cause.LAUNCH,
    Cause.CLOCK,
)
"""The causes that `fault` can put into a run."""

LENGTHS_NS = np.array([10_000_000, 20_000_000, 11_000_000, 9_000_000])
"""Of a forward, a whole backward, an input gradient and a weight gradient."""


@dataclass
class Fault:
    """What is put into a run.

    Attributes:
        cause: What the ledger is to call it.
        slow: (replica, device) -> factor of its durations.
        heavy: Stage -> factor of its durations.
        link_ns: (from, to) -> how long results are on their way between these devices.
        late_ns: (step, replica, operation) -> how late the host launches it.
        pause_ns: The same for pauses of the host.
        swap: (step, replica) -> device and place of an operation that goes after the next.
        skew_ns: By how much the clock of the second half of the devices is ahead.
    """

    cause: Cause
    slow: dict[tuple[int, int], float] = field(default_factory=dict)
    heavy: dict[int, float] = field(default_factory=dict)
    link_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    late_ns: dict[tuple[int, int, int], int] = field(default_factory=dict)
    pause_ns: dict[tuple[int, int, int], int] = field(default_factory=dict)
    swap: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    skew_ns: int = 0


@dataclass
class Job:
    """A pipeline to be played: `replicas` copies of a schedule, `steps` times."""

    plan: Plan
    replicas: int = 2
    steps: int = 4
    jitter: float = 0.0
    seed: int = 0

    def play(self, *faults: Fault) -> Timeline:
        """Return the timeline of the run with faults."""
        rows = []
        opens = 0
        for step in range(self.steps):
            parts = [self._replica(step, copy, faults) for copy in range(self.replicas)]
            for frames in parts:
                rows += [
                    frame.with_columns(
                        pl.col("start_ns", "end_ns", "host_start_ns", "host_end_ns") + opens,
                        step=pl.lit(step, pl.Int32),
                    )
                    for frame in frames
                ]
            opens += max(int(frame["end_ns"].max()) for frames in parts for frame in frames) + 10**6
        tasks = pl.concat(rows)
        p = self.plan.devices
        skew = sum(fault.skew_ns for fault in faults)
        late = (pl.col("rank") % p) >= p // 2
        times = pl.col("start_ns", "end_ns", "host_start_ns", "host_end_ns")
        tasks = tasks.with_columns(pl.when(late).then(times + skew).otherwise(times))
        numbers = np.arange(p * self.replicas)
        ranks = pl.DataFrame(
            {
                "rank": numbers,
                "host": [f"host{int(number % p >= p // 2)}" for number in numbers],
                "stages": [list(self.plan.placement[number % p]) for number in numbers],
                "dp": numbers // p,
            },
            schema_overrides={name: RANK_SCHEMA[name] for name in ("rank", "stages", "dp")},
        )
        return Timeline(tasks, ranks, Run())

    def _replica(self, step: int, copy: int, faults: tuple[Fault, ...]) -> list[pl.DataFrame]:
        """Return the tasks of one replica in one step, from 0 on, and the pauses of its hosts."""
        plan = self.plan
        for one in faults:
            if (step, copy) in one.swap:
                plan = swapped(plan, *one.swap[step, copy])
        edges, data = edges_of(plan)
        delay = np.zeros(len(edges.source), np.int64)
        across = np.arange(len(delay)) >= len(delay) - len(data.source)
        for one in faults:
            for (sends, receives), time in one.link_ns.items():
                meant = (plan.device[edges.source] == sends) & across
                delay[meant & (plan.device[edges.target] == receives)] += time
        duration = self._durations(plan, step, copy, faults)
        late, pause = (
            _times(len(plan), step, copy, [getattr(one, name) for one in faults])
            for name in ("late_ns", "pause_ns")
        )
        _, end = Graph(len(plan), edges).run(duration + late + pause, delay)
        start = end - duration
        ready = start - late - pause
        free = np.concatenate([[0], end[:-1]])
        free[plan.first[:-1]] = 0
        rank = plan.device + copy * plan.devices
        tasks = {
            "rank": rank,
            "kind": [KINDS[kind].value for kind in plan.kind.tolist()],
            "stage": plan.stage,
            "chunk": plan.chunk_of(plan.device, plan.stage),
            "microbatch": plan.microbatch,
            "lane": "compute",
            "start_ns": start,
            "end_ns": end,
            # The host is one task ahead of its device, but for those that it launches late.
            "host_start_ns": np.where(late > 0, start, free) - 1000,
            "host_end_ns": np.where(late > 0, start, free),
            "name": "task",
        }
        held = {
            "rank": rank[pause > 0],
            "kind": Kind.GC.value,
            "lane": "host",
            "start_ns": (ready + late)[pause > 0],
            "end_ns": start[pause > 0],
            "name": "gc",
        }
        unknown = dict.fromkeys(tasks.keys() - held.keys())
        frames = [pl.DataFrame(tasks), pl.DataFrame({**held, **unknown}).select(list(tasks))]
        types = {name: TASK_SCHEMA[name] for name in tasks}
        return [frame.cast(types) for frame in frames if len(frame)]

    def _durations(self, plan: Plan, step: int, copy: int, faults: tuple[Fault, ...]) -> np.ndarray:
        random = np.random.default_rng([self.seed, step, copy])
        # Noise goes with the operation, whatever the order.
        noise = random.uniform(
            1 - self.jitter, 1 + self.jitter, (4, plan.stages, plan.microbatches)
        )
        duration = LENGTHS_NS[plan.kind] * plan.devices / plan.stages
        duration *= noise[plan.kind, plan.stage, plan.microbatch]
        for one in faults:
            for stage, factor in one.heavy.items():
                duration[plan.stage == stage] *= factor
            for (where, device), factor in one.slow.items():
                if where == copy:
                    duration[plan.device == device] *= factor
        return duration.astype(np.int64)


def _times(
    count: int, step: int, copy: int, given: list[dict[tuple[int, int, int], int]]
) -> np.ndarray:
    """Return the times that are given for the operations of one replica in one step."""
    times = np.zeros(count, np.int64)
    for one in given:
        for (when, where, index), time in one.items():
            if (when, where) == (step, copy):
                times[index] += time
    return times


def swapped(plan: Plan, device: int, place: int) -> Plan:
    """Let a device run an operation and the one after it the other way round."""
    orders = [plan.order(one) for one in range(plan.devices)]
    order = orders[device]
    order[place], order[place + 1] = order[place + 1], order[place]
    return Plan.of(plan.name, plan.placement, orders)


def job(random: np.random.Generator, *, jitter: float = 0.0) -> Job:
    """Return a job of random size and schedule."""
    name = str(random.choice(["1f1b", "zb-h1", "interleaved-1f1b", "gpipe"]))
    p = int(random.integers(3, 7))
    m = p * int(random.integers(2, 5))
    return Job(generate(name, p, m), seed=int(random.integers(2**31)), jitter=jitter)


def fault(cause: Cause, random: np.random.Generator, job: Job) -> Fault:
    """Return a fault of one cause, large enough to matter."""
    plan = job.plan
    p, stages, count = plan.devices, plan.stages, len(plan)
    if cause is Cause.SLOW_RANK:
        where = (int(random.integers(job.replicas)), int(random.integers(p)))
        return Fault(cause, slow={where: random.uniform(1.2, 1.6)})
    if cause is Cause.IMBALANCE:
        heavy = int(random.integers(stages))
        more = random.uniform(0.2, 0.5)
        less = 1 - more / (stages - 1)
        factors = dict.fromkeys(range(stages), less) | {heavy: 1 + more}
        return Fault(cause, heavy=factors)
    if cause is Cause.TRANSFER:
        one = int(random.integers(p - 1))
        return Fault(cause, link_ns={(one, one + 1): int(random.integers(2, 9)) * 10**6})
    if cause in (Cause.LAUNCH, Cause.PAUSE):
        times = {
            (step, copy, int(index)): int(random.integers(5, 30)) * 10**6
            for step in range(job.steps)
            for copy in range(job.replicas)
            for index in random.choice(count, 4, replace=False)
        }
        return Fault(cause, **{"late_ns" if cause is Cause.LAUNCH else "pause_ns": times})
    if cause is Cause.CLOCK:
        return Fault(cause, skew_ns=int(random.integers(3, 12)) * 10**6)
    if cause is Cause.ORDER:
        return _swap(random, job)
    raise ValueError(cause)


def _swap(random: np.random.Generator, job: Job) -> Fault:
    """Swap two neighbours in every step, where that costs time."""
    plan = job.plan
    whole = span(plan)
    places = [
        (device, place)
        for device in range(plan.devices)
        for place in range(int(plan.first[device + 1] - plan.first[device]) - 1)
    ]
    for index in random.permutation(len(places)):
        with suppress(ScheduleError):  # these two cannot be swapped
            if span(swapped(plan, *places[index])) > whole:
                everywhere = product(range(job.steps), range(job.replicas))
                return Fault(Cause.ORDER, swap=dict.fromkeys(everywhere, places[index]))
    raise ScheduleError("no swap costs anything")


def span(plan: Plan) -> int:
    """Return how long a plan takes without faults."""
    edges, _ = edges_of(plan)
    return int(Graph(len(plan), edges).run(LENGTHS_NS[plan.kind])[1].max())


def grown(without: Timeline, with_it: Timeline, cause: Cause) -> int:
    """Return by how much idle time grew, summed over ranks and steps where it did.

    Clocks that differ move idle time instead: for them it is summed over the gaps.
    """
    before, after = (idle(timeline, gaps=cause is Cause.CLOCK) for timeline in (without, with_it))
    return int(np.maximum(after - before, 0).sum())


def idle(timeline: Timeline, *, gaps: bool = False) -> np.ndarray:
    """Return the idle time of each rank in each step, or each gap, worked out task by task."""
    found = []
    for _, tasks in timeline.tasks.filter(lane="compute").group_by("step", maintain_order=True):
        first, last = tasks["start_ns"].min(), tasks["end_ns"].max()
        for _, own in tasks.sort("rank", "start_ns").group_by("rank", maintain_order=True):
            starts, ends = own["start_ns"].to_list(), own["end_ns"].to_list()
            between = [b - a for a, b in zip([first, *ends], [*starts, last], strict=True)]
            found += between if gaps else [sum(between)]
    return np.array(found)
