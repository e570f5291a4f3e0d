"""A run made of the measured medians, that can be played with other schedules and partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from bubblescope.errors import ScheduleError
from bubblescope.schedules import SCHEDULES, Plan, Times, generate
from bubblescope.simulate import Costs, run
from bubblescope.vocabulary import Kind

if TYPE_CHECKING:
    from bubblescope.analysis.causes import Worlds
    from bubblescope.analysis.measured import Measured
    from bubblescope.analysis.recognition import Recognition
    from bubblescope.schedules.plan import Ints

__all__ = ["Model"]

_KINDS: Final = (
    Kind.FORWARD,
    Kind.BACKWARD,
    Kind.BACKWARD_INPUT,
    Kind.BACKWARD_WEIGHT,
    Kind.FORWARD_BACKWARD,
)


class Model(NamedTuple):
    """What tasks and transfers of a run take, as medians.

    Attributes:
        plan: The run's own schedule.
        cost_ns: Of a forward, a whole backward, an input and a weight gradient at each stage, 4 x S.
        pair_ns: Of an overlapped pair at each stage of its forward, S long; 0 if there are none.
        delay_ns: Of a result from device to device, p x p; where none was measured, the median.
        times: The same as one number each, for a whole device.
    """

    plan: Plan
    cost_ns: np.ndarray
    pair_ns: np.ndarray
    delay_ns: Ints
    times: Times

    @classmethod
    def of(cls, found: Recognition, worlds: Worlds) -> Model | None:
        """Take the medians of a run; None if it has no forwards or no backwards.

        Where whole backwards were measured only, either gradient is taken to be half of them; where
        none were, a whole one is both.
        """
        plan, measured = found.plan, worlds.run
        if plan is None:
            return None
        forward, whole, given, weight, pair = (
            _medians(measured, kind, plan.stages) for kind in _KINDS
        )
        recomputed = _medians(measured, Kind.RECOMPUTE, plan.stages)
        split = np.where(np.isnan(given + weight), whole / 2, given)
        rest = np.where(np.isnan(given + weight), whole / 2, weight)
        whole = np.where(np.isnan(whole), given + weight, whole)
        cost = np.stack([forward, whole, split, rest])
        if np.isnan(pair).all() and np.isnan(cost).all(axis=1).any():
            return None
        cost = _filled(cost)
        cost[1:3] += np.nan_to_num(recomputed)
        delay = _delays(measured, found, plan.devices)
        near = [delay[one, one + 1] for one in range(plan.devices - 1)]
        share = plan.stages / plan.devices
        forward_ns, input_ns, weight_ns = (
            int(np.median(row) * share) for row in (cost[0], cost[2], cost[3])
        )
        times = Times(forward_ns, input_ns, weight_ns, int(np.median(near)) if near else 0)
        return cls(plan, cost, np.nan_to_num(pair), delay, times)

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

    def length_ns(self, plan: Plan) -> int:
        """Return how long a step of a plan takes, from its first start to its last end."""
        stages = plan.stages
        forward, whole, given, weight = (
            np.round(row).astype(np.int64)[:, None].repeat(plan.microbatches, axis=1)
            for row in _repartitioned(self.cost_ns, stages)
        )
        pair = None
        if self.pair_ns.any():
            pair = np.round(_repartitioned(self.pair_ns[None], stages)[0]).astype(np.int64)
            pair = pair[:, None].repeat(plan.microbatches, axis=1)
        costs = Costs(forward, given, weight, whole, pair, comm_ns=self.delay_ns)
        played = run(plan, costs)
        return int(played.end_ns.max() - played.start_ns.min())


def _medians(run: Measured, kind: Kind, stages: int) -> np.ndarray:
    """Return the median length of a kind at each stage; not a number where there is none."""
    own = run.kind == list(Kind).index(kind)
    medians = np.full(stages, np.nan)
    for stage in np.unique(run.stage[own & (run.stage >= 0) & (run.stage < stages)]).tolist():
        medians[stage] = np.median(run.duration_ns[own & (run.stage == stage)])
    return medians


def _filled(cost: np.ndarray) -> np.ndarray:
    """Give stages without a measurement the mean of the others."""
    known = ~np.isnan(cost)
    sums, counts = np.where(known, cost, 0).sum(axis=1), np.maximum(known.sum(axis=1), 1)
    return np.where(known, cost, (sums / counts)[:, None])


def _repartitioned(cost: np.ndarray, stages: int) -> np.ndarray:
    """Cut the model into another number of stages, each as deep, and return what these cost.

    A stage's cost is taken to lie evenly over its depth.
    """
    now = cost.shape[1]
    if now == stages:
        return cost
    deep = np.concatenate([np.zeros((len(cost), 1)), np.cumsum(cost, axis=1)], axis=1)
    at = np.linspace(0, now, stages + 1)
    return np.diff([np.interp(at, np.arange(now + 1), row) for row in deep], axis=1)


def _delays(run: Measured, found: Recognition, devices: int) -> Ints:
    """Return the median delay of results from device to device."""
    source, target = (run.rank[edge[run.within :]] for edge in run.graph.edges)
    delay = np.maximum(run.delay_ns[run.within :], 0)
    table = np.full((devices, devices), int(np.median(delay)) if len(delay) else 0, np.int64)
    seat = np.full(int(run.rank.max()) + 1, -1)
    seat[list(found.places.device)] = list(found.places.device.values())
    link = seat[source] * devices + seat[target]
    for number in np.unique(link).tolist():
        table[divmod(number, devices)] = int(np.median(delay[link == number]))
    return table
