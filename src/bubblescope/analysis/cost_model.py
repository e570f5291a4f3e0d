"""A run taken apart into its operations, that can be played with other schedules and partitions."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import polars as pl

from bubblescope.analysis.chained_steps import settled
from bubblescope.analysis.plan_replays import Costs, replays_of
from bubblescope.analysis.prediction import all_of
from bubblescope.analysis.slow_devices import SlowDevices, even
from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind, Lane
from bubblescope.model.ordering import stretches_of
from bubblescope.schedules import SCHEDULES, generate
from bubblescope.schedules.plan import FORWARD, FORWARD_BACKWARD, KINDS, Plan
from bubblescope.schedules.zb_auto import Times

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from bubblescope.analysis.chained_steps import Chain
    from bubblescope.analysis.idle.counterfactuals import Counterfactuals
    from bubblescope.analysis.idle.measured_run import MeasuredRun
    from bubblescope.analysis.plan_replays import Played, Playing
    from bubblescope.analysis.schedule.recognise import Recognition
    from bubblescope.analysis.slow_devices import Reading, Shares
    from bubblescope.model.arrays import Ints

_Made = TypeVar("_Made")

_KINDS: Final = (*KINDS, Kind.RECOMPUTE)
_FORWARD, _WHOLE, _INPUT, _WEIGHT, _PAIR, _AGAIN = range(6)

_SPLITS: Final = (0.4, 0.5, 2 / 3)
"""Which share of a whole backward its input gradient may be.

By the operations that Qi et al. count (arXiv 2401.10241, Table 1) it is (24 h + 8 s) / (48 h + 8 s) of
a layer of width h with sequences of s tokens: a half for short ones, two thirds for s = 3 h. Weight
gradients that are added up in single precision take longer.
"""

_APART: Final = 0.005
"""Share of a step by which runs of the same job differ, however regular one of them was.

What other programs do on the machine in another run, a few quiet steps do not tell.
"""

_EXACT: Final = 1e-6
"""Share of a step by which playing one is off that was made by playing it."""

_DEVIATIONS: Final = 2.5
"""Standard errors that a prediction may be off by chance."""


class Model(NamedTuple):
    """What every operation of a run took, in every step of every replica, and every transfer.

    Attributes:
        plan: The run's own schedule.
        cost_ns: Of each forward, whole backward, input gradient, weight gradient and overlapped pair
            (by its forward) on a device that is not slow: 5 x S x m x runs. What was not observed is
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
        before: Where steps follow one another without ranks waiting for each other: the run of the
            same replica before each, itself for a first one, or -1 if nothing ran before that. None
            where each step is by itself.
        rest_ns: How long after its last operation there each device could begin, runs x p; empty
            without `before`.
        known: What was worked out before of this very model: other models, and lengths of plans.
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
    before: Ints | None
    rest_ns: Ints
    known: dict[Any, Any]

    @classmethod
    def of(
        cls,
        recognition: Recognition,
        counterfactuals: Counterfactuals,
        devices: SlowDevices | None = None,
        times: Shares | None = None,
        chain: Chain | None = None,
    ) -> Model | None:
        """Take a run apart; None if it has no forwards or no backwards.

        Each task may be given to be so many `times` as long as it was, n long. With a chain, steps
        follow one another as in it; without, each is by itself.

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
        halved = bool(np.isnan(cost[_INPUT] + cost[_WEIGHT]).any())
        split = np.where(np.isnan(cost[_INPUT] + cost[_WEIGHT]), 0.5 * cost[_WHOLE], 0)
        for part in (_INPUT, _WEIGHT):
            cost[part] = np.where(split > 0, split, cost[part])
        both = cost[_INPUT] + cost[_WEIGHT]
        cost[_WHOLE] = np.where(np.isnan(cost[_WHOLE]), both, cost[_WHOLE])
        again = np.nan_to_num(cost[_AGAIN])
        cost[_WHOLE] += again
        cost[_INPUT] += again
        if np.isnan(cost[: _WEIGHT + 1]).any():
            return None
        delay, measured = _delays(run, recognition, plan.devices)
        near = [delay[one, one + 1] for one in range(plan.devices - 1)]
        share = plan.stages / plan.devices
        forward, given, weight = (
            int(np.median(cost[part]) * share) for part in (_FORWARD, _INPUT, _WEIGHT)
        )
        usual = Times(forward, given, weight, int(np.median(near)) if near else 0)
        seat = np.full((replicas, plan.devices), -1)
        for rank, device in recognition.coordinates.device.items():
            seat[recognition.coordinates.replica[rank], device] = rank
        step, copy = np.divmod(keys, replicas)
        seated = seat[copy]
        slow = np.where(seated >= 0, factor[np.minimum(seated, len(factor) - 1), step[:, None]], 1)
        depth = even(plan.stages)
        before, rest = _followed(chain, keys, replicas, seated)
        return cls(
            plan,
            cost[: _PAIR + 1],
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
            before,
            rest,
            {},
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

    def altered(self, **changes: Any) -> Model:
        """Return the same model with other values of its attributes."""
        return self._replace(**changes, known={})

    def read_as(self, reading: Reading) -> Model:
        """Return the same run with other slowness of devices beyond what replicas tell."""

        def read() -> Model:
            slow = self.slow.copy()
            for device, stages in enumerate(self.plan.placement):
                slow[:, device] *= reading.slow[stages[0]] / self.reading.slow[stages[0]]
            share = (self.reading.slow / reading.slow)[None, :, None, None]
            cost = self.cost_ns if (share == 1).all() else self.cost_ns * share
            return self.altered(cost_ns=cost, slow=slow, reading=reading)

        return self._once(("read", reading.slow.tobytes(), reading.apart.tobytes()), read)

    def with_ranks(self, times: Mapping[int, float]) -> Model:
        """Return the same model with other slowness of some ranks, 1 for a healthy one."""
        slow = self.slow.copy()
        for rank, factor in times.items():
            slow[self.seat == rank] = factor
        return self.altered(slow=slow)

    def evened(self) -> Model:
        """Return the same model with every operation as long as the mean of its kind."""
        holder = self.plan.device[self.plan.table(FORWARD, FORWARD_BACKWARD)]
        cost = self.cost_ns * self.slow.T[holder]
        known = ~np.isnan(cost)
        count = known.sum(axis=(1, 2, 3), keepdims=True)
        total = np.where(known, cost, 0).sum(axis=(1, 2, 3), keepdims=True)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        cost = np.ascontiguousarray(np.broadcast_to(mean, self.cost_ns.shape))
        reading = self.reading._replace(apart=np.zeros_like(self.reading.apart))
        return self.altered(cost_ns=cost, slow=np.ones_like(self.slow), reading=reading)

    def _once(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Return what was made of this model under the same key, or make it."""
        if key not in self.known:
            self.known[key] = make()
        found: _Made = self.known[key]
        return found

    def length_ns(self, plan: Plan) -> float:
        """Return the mean step of a plan, from its first start to the last end of any replica."""
        return float(self.lasting_ns(plan).mean())

    def scatter(self, length_ns: Ints) -> float:
        """Return how far off a mean of measured steps may be by what makes single ones longer, a share.

        That is what is not the lengths of their operations, such as operations that start late: two
        and a half standard errors of the difference of two runs of as many steps, and at least what
        runs of the same job differ by. A run that is played to the nanosecond was not measured.

        Args:
            length_ns: How long each step was, of as many as the run has; s long.
        """
        ways = (self,) if self.before is None else (self, self._first())
        played = [one.lasting_ns(self.plan) for one in ways]
        beyond = min((length_ns - one for one in played), key=lambda one: float(np.abs(one).sum()))
        beyond = beyond / max(1.0, float(length_ns.mean()))
        if np.abs(beyond).max() <= _EXACT:
            return 0.0
        if len(beyond) == 1:
            return _APART
        return max(_APART, _DEVIATIONS * float(np.sqrt(2 / len(beyond)) * beyond.std(ddof=1)))

    def busiest_ns(self, plan: Plan) -> float:
        """Return how long the device that has most to do computes in a step of a plan, the mean."""
        return float(self._lasting(plan)[1].mean())

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
            calm = self._once("calm", lambda: self.altered(cost_ns=_calm(self.cost_ns)))
            error += abs(calm.length_ns(plan) / now - 1)
        prompt = self._once("prompt", lambda: self.altered(lag_ns=(0, 0)))
        if any(self.lag_ns) and (ran_ns := prompt.length_ns(self.plan)):
            times = prompt.length_ns(plan) / ran_ns
            error += abs(times * self.length_ns(self.plan) / now - 1)
        return float(error + self._begun(plan) / now)

    def _first(self) -> Model:
        """Return the same run with nothing before its first step."""
        if self.before is None:
            return self
        number = np.arange(len(self.before))
        before = np.where(self.before == number, -1, self.before)
        return self._once("first", lambda: self.altered(before=before))

    def _begun(self, plan: Plan) -> float:
        """Return how much longer or shorter a step of a plan is if nothing ran before the first.

        Whether anything did, the run need not tell: that step was as long either way, maybe, and is
        not with another plan.
        """
        if self.before is None:
            return 0.0
        cold = self._first()
        same = self.length_ns(self.plan) / cold.length_ns(self.plan)
        return abs(cold.length_ns(plan) * same - self.length_ns(plan))

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
        if self._unknown[replays_of(plan).links()].any():
            seen = self.delay_ns[self.measured]
            ends = (
                (int(seen.max()), ""),
                (int(seen.min()), "links that the run did not use are as fast as its fastest"),
            )
            found = [
                (
                    model.linked(delay),
                    all_of(words, link),
                )
                for model, words in found
                for delay, link in (ends if seen.min() < seen.max() else ends[:1])
            ]
        return found

    @property
    def _unknown(self) -> np.ndarray:
        """From which device to which nothing was measured, p x p; nowhere if nothing was at all."""
        unknown: np.ndarray = ~self.measured & self.measured.any()
        return unknown

    def linked(self, delay_ns: int) -> Model:
        """Return the same model with this delay of all links of which none was measured."""
        delay = np.where(self._unknown, delay_ns, self.delay_ns)
        return self._once(("linked", delay_ns), lambda: self.altered(delay_ns=delay))

    def _split(self, share: float) -> Model:
        """Return the same model with another share of whole backwards in input gradients."""

        def split() -> Model:
            cost = self.cost_ns.copy()
            whole = 2 * self.cost_ns[_WEIGHT]
            cost[_INPUT] += (share - 0.5) * whole
            cost[_WEIGHT] = (1 - share) * whole
            return self.altered(cost_ns=cost)

        return self._once(("split", share), split)

    def lasting_ns(self, plan: Plan) -> np.ndarray:
        """Return how long each step of a plan takes, s long."""
        return self._lasting(plan)[0]

    def _lasting(self, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
        """Return how long each step of a plan takes, and how long its busiest device computes."""

        def played() -> tuple[np.ndarray, np.ndarray]:
            found = self._played(plan)
            length = found.last_ns - found.first_ns
            return self._by_step(length), self._by_step(found.busy_ns.max(axis=0))

        return self._once(plan, played)

    def _by_step(self, length_ns: np.ndarray) -> np.ndarray:
        """Return the longest of the runs of each step, s long."""
        longest: np.ndarray = np.maximum.reduceat(length_ns, stretches_of(self.step))
        return longest

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
        playing = self._playing(plan)
        start, end = (times[shown] for times in playing.times(self._settled(playing)[0]))
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

    def _played(self, plan: Plan) -> Played:
        """Return when a plan runs in each run.

        A plan for more micro-batches has the same ones again; one with other stages cuts the model
        into as many equal parts. What is slow because of its device stays there.
        """
        return self._settled(self._playing(plan))[1]

    def _playing(self, plan: Plan) -> Playing:
        return replays_of(plan).of(self._costs(plan), self._links_ns())

    def _settled(self, playing: Playing) -> tuple[Ints | None, Played]:
        """Return when devices are free for each run, if not from the start; and when the plan ran.

        What is free when is p x runs.
        """
        if self.before is None:
            return None, playing.play()
        before, follows = self.before, self.before >= 0
        rest = np.maximum(self.rest_ns - self.lag_ns[0], 0).T

        def left(free: Ints) -> tuple[Ints, tuple[Ints, Played]]:
            played = playing.play(free)
            after = played.left_ns[:, before] + rest
            return np.where(follows, after - after.min(axis=0), 0), (free, played)

        return settled(left, np.zeros(rest.shape, np.int64))

    def _links_ns(self) -> Ints:
        """Return how long results are on their way, p x p.

        An operation is as much longer as it starts late, and results are as much sooner there.
        """
        free, fed = self.lag_ns
        return self.delay_ns + fed - free

    def _costs(self, plan: Plan) -> Costs:
        """Return what a plan's operations take in each run."""
        _, stages, count, runs = self.cost_ns.shape
        part = None
        if plan.stages != stages:
            part = self.reading.moved(self.depth, even(plan.stages))
        microbatch = plan.microbatch % count
        terms = _terms(part, plan.kind, plan.stage, microbatch, (stages, count))
        pairs = plan.kind == FORWARD_BACKWARD
        if pairs.any() and np.isnan(self.cost_ns[_PAIR]).any():
            # Where no pair was measured, it takes as long as its halves.
            kind = np.where(pairs, FORWARD, plan.kind)
            terms = _terms(part, kind, plan.stage, microbatch, (stages, count))
            back = plan.pair_microbatch % count
            whole = _terms(part, np.full(len(plan), _WHOLE), plan.pair_stage, back, (stages, count))
            terms += [(row, np.where(pairs, weight, 0)) for row, weight in whole]
        rows, weights = (np.stack(each) for each in zip(*terms, strict=True))
        table = self.cost_ns.reshape(-1, runs)
        slow = None if (self.slow == 1).all() else np.ascontiguousarray(self.slow.T)
        alone = len(rows) == 1 and bool((weights == 1).all())
        return Costs(table, rows, None if alone else weights, slow, self.lag_ns[0])


def _terms(
    part: Shares | None, kind: Ints, stage: Ints, microbatch: Ints, shape: tuple[int, int]
) -> list[tuple[Ints, Shares]]:
    """Return what operations cost as sums of costs of others: rows and weights, each n long.

    Args:
        part: Which share of the stages there were is in those that there are, J x S; None where these
            are the same.
        kind: Of each operation.
        stage: Of each, of the stages that there are.
        microbatch: Of each.
        shape: Stages that there were, and micro-batches.
    """
    stages, count = shape
    if part is None:
        return [((kind * stages + stage) * count + microbatch, np.ones(len(kind)))]
    # The stages of which each new one has a share, in their order, and then any without one.
    of = np.argsort(part == 0, axis=1, kind="stable")
    share = np.take_along_axis(part, of, axis=1)
    most = int((part != 0).sum(axis=1).max())
    return [
        ((kind * stages + of[stage, term]) * count + microbatch, share[stage, term])
        for term in range(most)
    ]


def _table(
    run: MeasuredRun, plan: Plan, number: Ints, time_ns: np.ndarray, runs: int
) -> np.ndarray:
    """Return what each operation took, 6 x S x m x runs; not a number where it was not observed."""
    cost = np.full((len(_KINDS), plan.stages, plan.microbatches, runs), np.nan)
    inside = (run.stage >= 0) & (run.stage < plan.stages)
    inside &= (run.microbatch >= 0) & (run.microbatch < plan.microbatches)
    for index, kind in enumerate(_KINDS):
        own = inside & (run.kind == list(Kind).index(kind))
        cost[index, run.stage[own], run.microbatch[own], number[own]] = time_ns[own]
    return cost


def _filled(cost: np.ndarray) -> np.ndarray:
    """Give operations without a measurement the median of their stage, or else the mean of stages."""
    for kind in cost:
        known = ~np.isnan(kind)
        if known.all() or not known.any():
            continue
        usual = np.full(len(kind), np.nan)
        for stage in np.flatnonzero(known.any(axis=(1, 2))):
            usual[stage] = np.median(kind[stage][known[stage]])
        usual[np.isnan(usual)] = np.nanmean(usual)
        kind[:] = np.where(known, kind, usual[:, None, None])
    return cost


def _noise(cost: np.ndarray) -> float:
    """Return the standard deviation of single operations, 6 x S x m x runs, as a share of the mean.

    Deviations are times, not shares: short operations, which scatter most for their length, add
    little to a step.
    """
    if not np.nansum(cost):
        return 0.0
    known = (~np.isnan(cost)).sum(axis=(0, 1), keepdims=True)
    # Of n operations of a micro-batch n - 1 are free.
    rest = (cost - _calm(cost)) * np.sqrt(known / np.maximum(known - 1, 1))
    return float(np.sqrt(np.nanmean(rest**2)) / np.nanmean(cost))


def _calm(cost: np.ndarray) -> np.ndarray:
    """Return costs, kinds x S x m x runs, without what single operations have of their own.

    That is the median of each operation over the micro-batches, times what a micro-batch has in
    common in all its operations, as by the length of its sequences.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all of a kind may be unknown
        usual = np.nanmedian(cost, axis=2, keepdims=True)
    usual = np.where(np.isnan(cost), np.nan, usual)
    taken, due = (np.nansum(one, axis=(0, 1), keepdims=True) for one in (cost, usual))
    calm: np.ndarray = usual * np.divide(taken, due, out=np.ones_like(due), where=due > 0)
    return calm


def _followed(
    chain: Chain | None, keys: Ints, replicas: int, seated: Ints
) -> tuple[Ints | None, Ints]:
    """Return the run before each, and how long after it each device could begin: as in `Model`.

    Args:
        chain: How steps follow one another.
        keys: Number of the step times `replicas`, and of the replica, of each run; ascending.
        replicas: How many there are.
        seated: The rank at each device in each run, runs x p; -1 where none was observed.
    """
    if chain is None:
        return None, np.zeros((len(keys), 0), np.int64)
    step, copy = np.divmod(keys, replicas)
    before = np.arange(len(keys))
    wanted = chain.before[step] * replicas + copy
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    there = (chain.before[step] >= 0) & (keys[at] == wanted)
    before[there] = at[there]
    rest = chain.rest_ns[np.maximum(seated, 0), step[:, None]]
    known = seated >= 0
    usual = int(np.median(rest[known])) if known.any() else 0
    return before, np.where(known, rest, usual)


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
