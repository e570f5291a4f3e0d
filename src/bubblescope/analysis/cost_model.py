"""A run taken apart into its operations, that can be played with other schedules and partitions."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.slow_devices import SlowDevices, even
from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind, Lane
from bubblescope.schedules import SCHEDULES, generate
from bubblescope.schedules.plan import FORWARD, FORWARD_BACKWARD, KINDS, Plan
from bubblescope.schedules.replay import Edges, Graph, edges_of
from bubblescope.schedules.zb_auto import Times

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bubblescope.analysis.idle.counterfactuals import Counterfactuals
    from bubblescope.analysis.idle.measured_run import MeasuredRun
    from bubblescope.analysis.schedule.recognise import Recognition
    from bubblescope.analysis.slow_devices import Reading, Shares
    from bubblescope.model.arrays import Ints

_KINDS: Final = (*KINDS, Kind.RECOMPUTE)
_FORWARD, _WHOLE, _INPUT, _WEIGHT, _PAIR, _AGAIN = range(6)

_SPLITS: Final = (0.4, 0.5, 2 / 3)
"""Which share of a whole backward its input gradient may be.

By the operations that Qi et al. count (arXiv 2401.10241, Table 1) it is (24 h + 8 s) / (48 h + 8 s) of
a layer of width h with sequences of s tokens: a half for short ones, two thirds for s = 3 h. Weight
gradients that are added up in single precision take longer.
"""

_DEVIATIONS: Final = 2.5
"""Standard errors that a prediction may be off by chance."""


class Model(NamedTuple):
    """What every operation of a run took, in every step of every replica, and every transfer.

    Attributes:
        plan: The run's own schedule.
        cost_ns: Of each forward, whole backward, input gradient, weight gradient and overlapped pair
            (by its forward) on a device that is not slow: runs x 5 x S x m. What was not observed is
            the median of its like; there are no pairs, and it is not a number, where none were.
        step: The step of each run, ascending.
        seat: The rank at each device in each run, runs x p; -1 where none was observed.
        delay_ns: Of a result from device to device, p x p; where none was measured, the median.
        times: The same as one number each, for a whole device.
        slow: How many times as long the device takes in each run, runs x p.
        reading: How much of what is beyond the usual is devices', and what of stages is no layer's.
        depth: Where stages begin and end along the depth of the model, S + 1 long.
        halved: Whether gradients are halves of whole backwards because none was measured.
        noise: Standard deviation of single operations, as a share of their mean length, beyond what
            all operations of a micro-batch have in common.
        measured: From which device to which results were sent, p x p.
        lag_ns: How long an operation starts after its device was free and, where it waited for a
            result, after that was there: the medians of both.
    """

    plan: Plan
    cost_ns: np.ndarray
    step: Ints
    seat: Ints
    delay_ns: Ints
    times: Times
    slow: Shares
    reading: Reading
    depth: Shares
    halved: bool
    noise: float
    measured: np.ndarray
    lag_ns: tuple[int, int]

    @classmethod
    def of(
        cls,
        recognition: Recognition,
        counterfactuals: Counterfactuals,
        devices: SlowDevices | None = None,
        times: Shares | None = None,
    ) -> Model | None:
        """Take a run apart; None if it has no forwards or no backwards.

        Each task may be given to be so many `times` as long as it was, n long.

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
        devices = devices or SlowDevices.of(counterfactuals, recognition.coordinates.device)
        factor = devices.factor
        healthy_ns = run.duration_ns / factor[run.rank, run.step]
        if times is not None:
            healthy_ns = healthy_ns * times
        table = _table(run, plan, number, healthy_ns, len(keys))
        noise = _noise(table)
        cost = _filled(table)
        halved = bool(np.isnan(cost[:, _INPUT] + cost[:, _WEIGHT]).any())
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
        delay, measured = _delays(run, recognition, plan.devices)
        near = [delay[one, one + 1] for one in range(plan.devices - 1)]
        share = plan.stages / plan.devices
        forward, given, weight = (
            int(np.median(cost[:, part]) * share) for part in (_FORWARD, _INPUT, _WEIGHT)
        )
        usual = Times(forward, given, weight, int(np.median(near)) if near else 0)
        seat = np.full((replicas, plan.devices), -1)
        for rank, device in recognition.coordinates.device.items():
            seat[recognition.coordinates.replica[rank], device] = rank
        step, copy = np.divmod(keys, replicas)
        seated = seat[copy]
        slow = np.where(seated >= 0, factor[np.minimum(seated, len(factor) - 1), step[:, None]], 1)
        depth = even(plan.stages)
        return cls(
            plan,
            cost[:, : _PAIR + 1],
            step,
            seated,
            delay,
            usual,
            slow,
            devices.readings(depth)[0],
            depth,
            halved,
            noise,
            measured,
            _lags(run),
        )

    def replanned(self, microbatches: int) -> Plan:
        """Return the run's own schedule for another number of micro-batches, in as many rounds.

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
        ).repeated(plan.rounds)

    def read_as(self, reading: Reading) -> Model:
        """Return the same run with other slowness of devices beyond what replicas tell."""
        slow = self.slow.copy()
        for device, stages in enumerate(self.plan.placement):
            slow[:, device] *= reading.slow[stages[0]] / self.reading.slow[stages[0]]
        share = (self.reading.slow / reading.slow)[None, None, :, None]
        return self._replace(cost_ns=self.cost_ns * share, slow=slow, reading=reading)

    def with_ranks(self, times: Mapping[int, float]) -> Model:
        """Return the same model with other slowness of some ranks, 1 for a healthy one."""
        slow = self.slow.copy()
        for rank, factor in times.items():
            slow[self.seat == rank] = factor
        return self._replace(slow=slow)

    def evened(self) -> Model:
        """Return the same model with every operation as long as the mean of its kind."""
        holder = self.plan.device[self.plan.table(FORWARD, FORWARD_BACKWARD)]
        cost = self.cost_ns * self.slow[:, None, holder]
        known = ~np.isnan(cost)
        count = known.sum(axis=(0, 2, 3), keepdims=True)
        total = np.where(known, cost, 0).sum(axis=(0, 2, 3), keepdims=True)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        cost = np.broadcast_to(mean, self.cost_ns.shape)
        reading = self.reading._replace(apart=np.zeros_like(self.reading.apart))
        return self._replace(cost_ns=cost, slow=np.ones_like(self.slow), reading=reading)

    def length_ns(self, plan: Plan) -> float:
        """Return the mean step of a plan, from its first start to the last end of any replica."""
        _, ends = self._played(plan)
        return self._mean_step(ends.max(axis=1))

    def busiest_ns(self, plan: Plan) -> float:
        """Return how long the device that has most to do computes in a step of a plan, the mean."""
        sums = np.add.reduceat(self._lengths(plan), plan.first[:-1], axis=1)
        return self._mean_step(sums.max(axis=1))

    def error(self, plan: Plan) -> float:
        """Return how far a plan's length may be off its mean in another run, as a share.

        That is the sum of what chance makes of it, at two and a half standard errors of the difference
        of two runs, of how lengths of single operations differ if the model is cut in another way, and
        of what comes of operations that start late, where a plan has more or fewer of them.
        """
        now = self.length_ns(plan)
        if not now:
            return 0.0
        ran, runs = (len(one) / plan.devices for one in (self.plan, plan))
        share = self.noise * np.sqrt((1 / ran + 1 / runs) / len(np.unique(self.step)))
        # The mean of one run differs from the other's, and estimates of costs from both.
        error = _DEVIATIONS * np.sqrt(2) * share
        if plan.stages != self.plan.stages and self.noise:
            error += abs(self._replace(cost_ns=_calm(self.cost_ns)).length_ns(plan) / now - 1)
        prompt = self._replace(lag_ns=(0, 0))
        if any(self.lag_ns) and (ran_ns := prompt.length_ns(self.plan)):
            times = prompt.length_ns(plan) / ran_ns
            error += abs(times * self.length_ns(self.plan) / now - 1)
        return float(error)

    def guesses(self, plan: Plan) -> list[tuple[Model, str]]:
        """Return the ways to take what a plan needs and nobody measured, and what each takes to be so.

        That is how a backward splits, and how long links take that the run did not use. There is one
        way, without words, where all was measured.
        """
        found = [(self, "")]
        if self.halved and plan.splits_backward:
            found = [
                (self._split(share), f"input gradients are {share:.0%} of a backward")
                for share in _SPLITS
            ]
        edges, _ = edges_of(plan)
        unknown = ~self.measured & (self.measured.sum() > 0)
        if unknown[plan.device[edges.source], plan.device[edges.target]].any():
            seen = self.delay_ns[self.measured]
            ends = (
                (int(seen.max()), ""),
                (int(seen.min()), "links that the run did not use are as fast as its fastest"),
            )
            found = [
                (
                    model._replace(delay_ns=np.where(unknown, delay, self.delay_ns)),
                    " and ".join(part for part in (words, link) if part),
                )
                for model, words in found
                for delay, link in (ends if seen.min() < seen.max() else ends[:1])
            ]
        return found

    def _split(self, share: float) -> Model:
        """Return the same model with another share of whole backwards in input gradients."""
        cost = self.cost_ns.copy()
        whole = 2 * self.cost_ns[:, _WEIGHT]
        cost[:, _INPUT] += (share - 0.5) * whole
        cost[:, _WEIGHT] = (1 - share) * whole
        return self._replace(cost_ns=cost)

    def _mean_step(self, length_ns: np.ndarray) -> float:
        """Return the mean over steps of the longest of their runs."""
        first = np.flatnonzero(np.diff(self.step, prepend=-1))
        return float(np.maximum.reduceat(length_ns, first).mean())

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
        into as many equal parts. What is slow because of its device stays there. A transfer is
        an operation between two others.
        """
        # An operation is as much longer as it starts late, and results are as much sooner there.
        free, fed = self.lag_ns
        lengths = self._lengths(plan) + free
        edges, _ = edges_of(plan)
        delay = self.delay_ns[plan.device[edges.source], plan.device[edges.target]] + fed - free
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
        return start[:, : len(plan)] + free, end[:, : len(plan)]

    def _lengths(self, plan: Plan) -> Ints:
        """Return how long a plan's operations take in each run, runs x n."""
        cost = self._cut(plan.stages)
        microbatch = plan.microbatch % cost.shape[3]
        lengths = cost[:, plan.kind, plan.stage, microbatch]
        pairs = np.flatnonzero(plan.kind == FORWARD_BACKWARD)
        halves = (
            cost[:, _FORWARD, plan.stage[pairs], microbatch[pairs]]
            + cost[:, _WHOLE, plan.pair_stage[pairs], plan.pair_microbatch[pairs] % cost.shape[3]]
        )
        lengths[:, pairs] = np.where(np.isnan(lengths[:, pairs]), halves, lengths[:, pairs])
        rounded: Ints = np.round(lengths * self.slow[:, plan.device]).astype(np.int64)
        return rounded

    def _cut(self, stages: int) -> np.ndarray:
        """Return what each operation costs with another number of stages, each as deep."""
        if stages == self.plan.stages:
            return self.cost_ns
        part = self.reading.moved(self.depth, even(stages))
        cut: np.ndarray = np.einsum("js,rksm->rkjm", part, self.cost_ns)
        return cut


def _table(
    run: MeasuredRun, plan: Plan, number: Ints, time_ns: np.ndarray, runs: int
) -> np.ndarray:
    """Return what each operation took, runs x 6 x S x m; not a number where it was not observed."""
    cost = np.full((runs, len(_KINDS), plan.stages, plan.microbatches), np.nan)
    inside = (run.stage >= 0) & (run.stage < plan.stages)
    inside &= (run.microbatch >= 0) & (run.microbatch < plan.microbatches)
    for index, kind in enumerate(_KINDS):
        own = inside & (run.kind == list(Kind).index(kind))
        cost[number[own], index, run.stage[own], run.microbatch[own]] = time_ns[own]
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


def _noise(cost: np.ndarray) -> float:
    """Return the standard deviation of single operations, runs x 6 x S x m, as a share of the mean.

    Deviations are times, not shares: short operations, which scatter most for their length, add
    little to a step.
    """
    if not np.nansum(cost):
        return 0.0
    known = (~np.isnan(cost)).sum(axis=(1, 2), keepdims=True)
    # Of n operations of a micro-batch n - 1 are free.
    rest = (cost - _calm(cost)) * np.sqrt(known / np.maximum(known - 1, 1))
    return float(np.sqrt(np.nanmean(rest**2)) / np.nanmean(cost))


def _calm(cost: np.ndarray) -> np.ndarray:
    """Return costs, runs x kinds x S x m, without what single operations have of their own.

    That is the median of each operation over the micro-batches, times what a micro-batch has in
    common in all its operations, as by the length of its sequences.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all of a kind may be unknown
        usual = np.nanmedian(cost, axis=3, keepdims=True)
    usual = np.where(np.isnan(cost), np.nan, usual)
    taken, due = (np.nansum(one, axis=(1, 2), keepdims=True) for one in (cost, usual))
    calm: np.ndarray = usual * np.divide(taken, due, out=np.ones_like(due), where=due > 0)
    return calm


def _lags(run: MeasuredRun) -> tuple[int, int]:
    """Return how late tasks start that waited for their device, and for a result: medians."""
    waited = run.feeder >= 0
    kinds = (run.lag_ns[~waited], run.lag_ns[waited])
    free, fed = (int(np.median(lag)) if len(lag) else 0 for lag in kinds)
    return free, fed


def _delays(run: MeasuredRun, recognition: Recognition, devices: int) -> tuple[Ints, np.ndarray]:
    """Return the median delay of results from device to device, and from where to where any were."""
    source, target = (run.rank[edge[run.links]] for edge in run.graph.edges)
    delay = np.maximum(run.delay_ns[run.links], 0)
    table = np.full((devices, devices), int(np.median(delay)) if len(delay) else 0, np.int64)
    seat = np.full(int(run.rank.max()) + 1, -1)
    seat[list(recognition.coordinates.device)] = list(recognition.coordinates.device.values())
    link = seat[source] * devices + seat[target]
    measured = np.zeros((devices, devices), bool)
    for number in np.unique(link).tolist():
        table[divmod(number, devices)] = int(np.median(delay[link == number]))
        measured[divmod(number, devices)] = True
    return table, measured
