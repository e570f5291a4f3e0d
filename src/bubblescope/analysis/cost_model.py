"""A run taken apart into its operations, that can be played with other schedules and partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind, Lane
from bubblescope.schedules import SCHEDULES, generate
from bubblescope.schedules.plan import FORWARD_BACKWARD, KINDS, Plan
from bubblescope.schedules.replay import Edges, Graph, edges_of
from bubblescope.schedules.zb_auto import Times

if TYPE_CHECKING:
    from bubblescope.analysis.idle.counterfactuals import Counterfactuals
    from bubblescope.analysis.idle.measured_run import MeasuredRun
    from bubblescope.analysis.schedule.recognise import Recognition
    from bubblescope.model.arrays import Ints

_KINDS: Final = (*KINDS, Kind.RECOMPUTE)
_FORWARD, _WHOLE, _INPUT, _WEIGHT, _PAIR, _AGAIN = range(6)


class Model(NamedTuple):
    """What every operation of a run took, in every step of every replica, and every transfer.

    Attributes:
        plan: The run's own schedule.
        cost_ns: Of each forward, whole backward, input gradient, weight gradient and overlapped pair
            (by its forward): runs x 5 x S x m. What was not observed is the median of its like; there
            are no pairs, and it is not a number, where none were.
        step: The step of each run, ascending.
        seat: The rank at each device in each run, runs x p; -1 where none was observed.
        delay_ns: Of a result from device to device, p x p; where none was measured, the median.
        times: The same as one number each, for a whole device.
    """

    plan: Plan
    cost_ns: np.ndarray
    step: Ints
    seat: Ints
    delay_ns: Ints
    times: Times

    @classmethod
    def of(cls, recognition: Recognition, counterfactuals: Counterfactuals) -> Model | None:
        """Take a run apart; None if it has no forwards or no backwards.

        Where whole backwards were measured only, either gradient is taken to be half of them; where
        none were, a whole one is both.
        """
        plan, run = recognition.plan, counterfactuals.run
        if plan is None:
            return None
        replicas = 1 + max(recognition.coordinates.replica.values())
        replica = np.zeros(int(run.rank.max()) + 1, np.int64)
        replica[list(recognition.coordinates.replica)] = list(
            recognition.coordinates.replica.values()
        )
        keys, number = np.unique(run.step * replicas + replica[run.rank], return_inverse=True)
        cost = _filled(_table(run, plan, number, len(keys)))
        split = np.where(np.isnan(cost[:, _INPUT] + cost[:, _WEIGHT]), 0.5 * cost[:, _WHOLE], 0)
        for part in (_INPUT, _WEIGHT):
            cost[:, part] = np.where(split > 0, split, cost[:, part])
        both = cost[:, _INPUT] + cost[:, _WEIGHT]
        cost[:, _WHOLE] = np.where(np.isnan(cost[:, _WHOLE]), both, cost[:, _WHOLE])
        again = np.nan_to_num(cost[:, _AGAIN])
        cost[:, _WHOLE] += again
        cost[:, _INPUT] += again
        if np.isnan(cost[:, : _WEIGHT + 1]).any():
            return None
        delay = _delays(run, recognition, plan.devices)
        near = [delay[one, one + 1] for one in range(plan.devices - 1)]
        share = plan.stages / plan.devices
        forward, given, weight = (
            int(np.median(cost[:, part]) * share) for part in (_FORWARD, _INPUT, _WEIGHT)
        )
        times = Times(forward, given, weight, int(np.median(near)) if near else 0)
        seat = np.full((replicas, plan.devices), -1)
        for rank, device in recognition.coordinates.device.items():
            seat[recognition.coordinates.replica[rank], device] = rank
        step, copy = np.divmod(keys, replicas)
        return cls(plan, cost[:, : _PAIR + 1], step, seat[copy], delay, times)

    def replanned(self, microbatches: int) -> Plan:
        """Return the run's own schedule for another number of micro-batches.

        Raises:
            ScheduleError: The schedule is not one of `SCHEDULES`, or not for that number.
        """
        plan = self.plan
        if plan.name not in SCHEDULES:
            raise ScheduleError(f"{plan.name} is a plan for {plan.microbatches} micro-batches only")
        chunks = plan.chunks if SCHEDULES[plan.name].any_chunks else None
        memory = float(plan.peak_memory().max()) if plan.name == "zb-auto" else None
        return generate(
            plan.name, plan.devices, microbatches, chunks=chunks, times=self.times, memory=memory
        )

    def evened(self) -> Model:
        """Return the same model with every operation as long as the mean of its kind."""
        known = ~np.isnan(self.cost_ns)
        count = known.sum(axis=(0, 2, 3), keepdims=True)
        total = np.where(known, self.cost_ns, 0).sum(axis=(0, 2, 3), keepdims=True)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        return self._replace(cost_ns=np.broadcast_to(mean, self.cost_ns.shape))

    def length_ns(self, plan: Plan) -> float:
        """Return the mean step of a plan, from its first start to the last end of any replica."""
        _, ends = self._played(plan)
        first = np.flatnonzero(np.diff(self.step, prepend=-1))
        return float(np.maximum.reduceat(ends.max(axis=1), first).mean())

    def tasks(self, plan: Plan, opens_ns: Ints) -> pl.DataFrame:
        """Return a plan's operations as tasks of the ranks that were observed.

        Args:
            plan: What runs in every step of every replica.
            opens_ns: When the first task of each step starts.

        Returns:
            Columns as in `Timeline.tasks`; but `step` is the index into `opens_ns`.
        """
        rank = self.seat[:, plan.device]
        shown = rank >= 0
        run, at = np.nonzero(shown)
        step = self.step[run]
        start, end = (times[shown] for times in self._played(plan))
        first = np.full(len(opens_ns), np.iinfo(np.int64).max)
        np.minimum.at(first, step, start)
        zero = opens_ns[step] - first[step]
        return plan.operations()[at].with_columns(
            rank=rank[shown],
            step=step,
            lane=pl.lit(Lane.COMPUTE.value),
            start_ns=start + zero,
            end_ns=end + zero,
            name=pl.lit(plan.name),
        )

    def _played(self, plan: Plan) -> tuple[Ints, Ints]:
        """Return when a plan's operations start and end in each run, runs x n.

        A plan for more micro-batches has the same ones again; one with other stages cuts the model
        into as many equal parts. A transfer is an operation between two others.
        """
        lengths = self._lengths(plan)
        edges, _ = edges_of(plan)
        delay = self.delay_ns[plan.device[edges.source], plan.device[edges.target]]
        crosses = np.flatnonzero(
            (plan.device[edges.source] != plan.device[edges.target]) & (delay > 0)
        )
        sends = len(plan) + np.arange(len(crosses))
        target = edges.target.copy()
        target[crosses] = sends
        graph = Graph(
            len(plan) + len(sends),
            Edges(
                np.concatenate([edges.source, sends]),
                np.concatenate([target, edges.target[crosses]]),
            ),
        )
        moves = np.broadcast_to(delay[crosses], (len(lengths), len(crosses)))
        start, end = graph.run_many(np.concatenate([lengths, moves], axis=1))
        return start[:, : len(plan)], end[:, : len(plan)]

    def _lengths(self, plan: Plan) -> Ints:
        """Return how long a plan's operations take in each run, runs x n."""
        cost = _repartitioned(self.cost_ns, plan.stages)
        microbatch = plan.microbatch % cost.shape[3]
        lengths = cost[:, plan.kind, plan.stage, microbatch]
        pairs = np.flatnonzero(plan.kind == FORWARD_BACKWARD)
        halves = (
            cost[:, _FORWARD, plan.stage[pairs], microbatch[pairs]]
            + cost[:, _WHOLE, plan.pair_stage[pairs], plan.pair_microbatch[pairs] % cost.shape[3]]
        )
        lengths[:, pairs] = np.where(np.isnan(lengths[:, pairs]), halves, lengths[:, pairs])
        rounded: Ints = np.round(lengths).astype(np.int64)
        return rounded


def _table(run: MeasuredRun, plan: Plan, number: Ints, runs: int) -> np.ndarray:
    """Return what each operation took, runs x 6 x S x m; not a number where it was not observed."""
    cost = np.full((runs, len(_KINDS), plan.stages, plan.microbatches), np.nan)
    inside = (run.stage >= 0) & (run.stage < plan.stages)
    inside &= (run.microbatch >= 0) & (run.microbatch < plan.microbatches)
    for index, kind in enumerate(_KINDS):
        own = inside & (run.kind == list(Kind).index(kind))
        cost[number[own], index, run.stage[own], run.microbatch[own]] = run.duration_ns[own]
    return cost


def _filled(cost: np.ndarray) -> np.ndarray:
    """Give operations without a measurement the median of their stage, or else the mean of stages."""
    for kind in range(cost.shape[1]):
        known = ~np.isnan(cost[:, kind])
        if known.all() or not known.any():
            continue
        usual = np.full(cost.shape[2], np.nan)
        for stage in np.flatnonzero(known.any(axis=(0, 2))):
            usual[stage] = np.median(cost[:, kind, stage][known[:, stage]])
        usual[np.isnan(usual)] = np.nanmean(usual)
        cost[:, kind] = np.where(known, cost[:, kind], usual[None, :, None])
    return cost


def _repartitioned(cost: np.ndarray, stages: int) -> np.ndarray:
    """Cut the model into another number of stages, each as deep, and return what these cost.

    A stage's cost is taken to lie evenly over its depth.
    """
    now = cost.shape[2]
    if now == stages:
        return cost
    begin, end = np.arange(stages) / stages, (np.arange(stages) + 1) / stages
    old_begin, old_end = np.arange(now) / now, (np.arange(now) + 1) / now
    shared = np.minimum(end[:, None], old_end) - np.maximum(begin[:, None], old_begin)
    part = np.maximum(shared, 0) * now
    cut: np.ndarray = np.einsum("js,rksm->rkjm", part, cost)
    return cut


def _delays(run: MeasuredRun, recognition: Recognition, devices: int) -> Ints:
    """Return the median delay of results from device to device."""
    source, target = (run.rank[edge[run.within :]] for edge in run.graph.edges)
    delay = np.maximum(run.delay_ns[run.within :], 0)
    table = np.full((devices, devices), int(np.median(delay)) if len(delay) else 0, np.int64)
    seat = np.full(int(run.rank.max()) + 1, -1)
    seat[list(recognition.coordinates.device)] = list(recognition.coordinates.device.values())
    link = seat[source] * devices + seat[target]
    for number in np.unique(link).tolist():
        table[divmod(number, devices)] = int(np.median(delay[link == number]))
    return table
