"""What of a run's slowness is its devices', which stays with them, and what its layers', which moves.

Ranks that hold the same layers in other replicas tell: what one of them takes longer is its device's.
Where a stage has one data-parallel replica only, a slow device and heavy layers look alike. Tensor- and
context-parallel ranks wait for each other in every layer, so they do not tell either. Then there are
several readings of the same run: none of the stages that take long has a slow device, or some have.

The first and the last stage also hold what is no layer: embeddings, head and loss. What they take
beyond the others may lie evenly over their depth, or all at the end.
"""

from __future__ import annotations

from itertools import chain, combinations
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.prediction import all_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bubblescope.analysis.idle.counterfactuals import Counterfactuals
    from bubblescope.analysis.idle.measured_run import MeasuredRun
    from bubblescope.model.arrays import Ints

    Shares = NDArray[np.float64]

_LEAST: Final = 1.02
"""Stages that take longer than this many times the others are read in more than one way."""

_MOST: Final = 3
"""Stages, the longest, of which every choice of slow devices is read; the others are slow together."""


class Reading(NamedTuple):
    """One way to read what makes the stages of a run differ.

    Attributes:
        slow: How many times as long each of S stages takes because its device is slow, beyond what
            replicas tell.
        apart: Which share of the rest is no layer's: of the first stage's before them, of the last
            one's after; S long.
        words: What is taken to be so; empty where there is no other way.
    """

    slow: Shares
    apart: Shares
    words: str = ""

    def moved(self, now: Shares, then: Shares) -> Shares:
        """Return which share of each stage's cost, its device's slowness apart, goes where: J x S.

        Args:
            now: Where stages begin and end along the depth of the model, from 0 to 1; S + 1 long.
            then: The same for the new ones, J + 1 long.
        """
        part = overlap(now, then)
        first, last = np.zeros(part.shape[0]), np.zeros(part.shape[0])
        first[0], last[-1] = 1, 1
        spread = part * (1 - self.apart)
        spread[:, 0] += first * self.apart[0]
        if part.shape[1] > 1:
            spread[:, -1] += last * self.apart[-1]
        return spread


class SlowDevices(NamedTuple):
    """How slow devices are as far as others tell, and how the rest can be read.

    Attributes:
        factor: How many times as long each rank takes in each step as a healthy one would for the
            same layers; ranks x steps, 1 where nobody tells.
        cost_ns: Of each kind and stage on a healthy device, as the first reading has it.
        holders: Stages of which one group of ranks holds all of some, with no replica to tell.
        ranks: The ranks of each stage.
    """

    factor: Shares
    cost_ns: dict[tuple[int, int], float]
    holders: tuple[tuple[int, ...], ...]
    ranks: dict[int, tuple[int, ...]]

    @classmethod
    def of(
        cls, counterfactuals: Counterfactuals, device: Mapping[int, int] | None = None
    ) -> SlowDevices:
        """Compare ranks with those that hold the same stages.

        Args:
            counterfactuals: The run.
            device: Pipeline device of each rank, where known.
        """
        run, length = counterfactuals.run, counterfactuals.lengths
        ranks = _held(run, counterfactuals.timeline.ranks, device or {})
        stages = {
            (number,): tuple(part["rank"].sort().to_list())
            for (number,), part in ranks.group_by("stage", maintain_order=True)
        }
        by_stage = {int(stage): held for (stage,), held in stages.items()}
        telling = ranks.group_by("stage").agg(pl.col("group").n_unique(), pl.col("rank").n_unique())
        untold = set(telling.filter(pl.col("group") < 2)["stage"].to_list())
        single = set(telling.filter(pl.col("rank") < 2)["stage"].to_list())
        taken, healthy = (_sums(run, time) for time in (length.rank_ns, length.stage_ns))
        factor = np.divide(taken, healthy, out=np.ones_like(taken), where=healthy > 0)
        for stage in single:
            for rank in by_stage[stage]:
                ran = healthy[rank] > 0
                # Slow in one step and not in others is the device; slow always may be its layers.
                factor[rank, ran] /= np.median(factor[rank, ran])
        cost = {
            (int(kind), int(stage)): float(
                np.median((run.duration_ns if stage in single else length.stage_ns)[own])
            )
            for kind, stage, own in _cells(run)
        }
        holders = {
            tuple(sorted(part["stage"].to_list()))
            for _, part in ranks.group_by("rank", maintain_order=True)
        }
        alone = tuple(sorted(held for held in holders if untold.issuperset(held)))
        return cls(factor, cost, alone, by_stage)

    def told(self, rank: int) -> bool:
        """Say whether other replicas tell how slow a rank's device is."""
        return not any(rank in self.ranks[stage] for held in self.holders for stage in held)

    def readings(self, depth: Shares) -> list[Reading]:
        """Return the ways to read the run; the first takes all that nobody tells to be layers'.

        Args:
            depth: Where stages begin and end along the depth of the model, S + 1 long.
        """
        stages = len(depth) - 1
        cost = np.zeros(stages)
        for (_, stage), time in self.cost_ns.items():
            if 0 <= stage < stages:
                cost[stage] += time
        wide = np.diff(depth) > 0
        dense = np.divide(cost, np.diff(depth), out=np.zeros(stages), where=wide)
        beyond = {held: self._beyond(dense, wide, held) for held in self.holders}
        suspects = sorted(
            (held for held, times in beyond.items() if times > _LEAST),
            key=lambda held: -beyond[held],
        )
        found = []
        for chosen in _choices(suspects):
            slow = np.ones(stages)
            for held in chosen:
                slow[list(held)] = beyond[held]
            words = self._words(chosen) if suspects else ""
            apart = _apart(dense / slow, wide)
            if apart.any():
                even = "the layers of the first and last stage take longer than others"
                end = "the first and last stage take longer for what is no layer, such as a loss"
                found.append(Reading(slow, np.zeros(stages), all_of(words, even)))
                found.append(Reading(slow, apart, all_of(words, end)))
            else:
                found.append(Reading(slow, apart, words))
        return found

    def _beyond(self, dense: Shares, wide: NDArray[np.bool_], held: Sequence[int]) -> float:
        """Return how many times as long all stages of a device take as the usual one elsewhere."""
        own = np.zeros(len(dense), bool)
        own[[stage for stage in held if 0 <= stage < len(dense)]] = True
        others = dense[~own & wide & (dense > 0)]
        if not len(others) or not (own & wide).any():
            return 1.0
        return float(dense[own & wide].min() / _usual(others))

    def _words(self, chosen: Sequence[tuple[int, ...]]) -> str:
        if not chosen:
            return "slow stages have more to compute; no device is slow"
        ranks = sorted({rank for held in chosen for stage in held for rank in self.ranks[stage]})
        if len(ranks) == 1:
            return f"rank {ranks[0]} is a slow device"
        return f"ranks {', '.join(map(str, ranks))} are slow devices"


def overlap(now: Shares, then: Shares) -> Shares:
    """Return which share of each part of the depth now is in each part then: J x S.

    A part without depth, as of a stage without layers, goes to where it begins.
    """
    shared = np.minimum(then[1:, None], now[1:]) - np.maximum(then[:-1, None], now[:-1])
    width = np.diff(now)
    part: Shares = np.maximum(shared, 0) / np.where(width > 0, width, 1)
    for stage in np.flatnonzero(width <= 0):
        last = len(then) - 2
        at = int(np.clip(np.searchsorted(then, now[stage], "right") - 1, 0, last))
        part[:, stage] = 0
        part[at, stage] = 1
    return part


def even(stages: int) -> Shares:
    """Return where stages of the same depth begin and end, from 0 to 1."""
    ends: Shares = np.arange(stages + 1) / stages
    return ends


def depth_of(layers: Sequence[int]) -> Shares:
    """Return where stages of so many layers begin and end, from 0 to 1."""
    ends: Shares = np.concatenate([[0.0], np.cumsum(np.array(layers, np.float64))])
    share: Shares = ends / ends[-1]
    return share


def _held(run: MeasuredRun, ranks: pl.DataFrame, device: Mapping[int, int]) -> pl.DataFrame:
    """Return the stages that each rank holds, and a number for the ranks that tell no difference.

    Those of one data-parallel replica at one device wait for each other. Where the replica is not
    known, ranks of the same tensor- and context-parallel number are of different ones.
    """
    held = (
        pl.DataFrame({"rank": run.rank, "stage": run.stage})
        .filter(pl.col("stage") >= 0)
        .unique()
        .sort("rank", "stage")
    )
    known = ranks.select(pl.col("rank", "dp", "tp", "cp").cast(pl.Int64))
    seats = held.group_by("rank", maintain_order=True).agg(first=pl.col("stage").min())
    seats = seats.join(known, on="rank", how="left", maintain_order="left").with_columns(
        seat=pl.Series([device.get(rank, -1) for rank in seats["rank"].to_list()], dtype=pl.Int64)
    )
    turn = pl.int_range(pl.len()).over("seat", "first", "tp", "cp")
    seats = seats.with_columns(copy=pl.coalesce("dp", turn), told=pl.col("dp").is_not_null())
    group = pl.struct("seat", "first", "copy", "told").rank("dense")
    return held.join(seats.select("rank", group=group), on="rank", maintain_order="left")


def _sums(run: MeasuredRun, time_ns: Ints) -> Shares:
    """Return the sum of tasks' times for each rank in each step."""
    total = np.zeros((int(run.rank.max()) + 1, len(run.steps)))
    np.add.at(total, (run.rank, run.step), time_ns.astype(np.float64))
    return total


def _cells(run: MeasuredRun) -> Iterator[tuple[int, int, Ints]]:
    """Return the tasks of each kind and stage."""
    keys = run.kind * (int(run.stage.max()) + 2) + run.stage + 1
    order = np.argsort(keys, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
        yield int(run.kind[part[0]]), int(run.stage[part[0]]), part


def _choices(suspects: Sequence[tuple[int, ...]]) -> list[tuple[tuple[int, ...], ...]]:
    """Return the sets of suspects that may be slow: none, any of the slowest, all."""
    slowest = suspects[:_MOST]
    some = chain.from_iterable(combinations(slowest, size) for size in range(len(slowest) + 1))
    return [*some, tuple(suspects)] if len(suspects) > _MOST else list(some)


def _apart(dense: Shares, wide: NDArray[np.bool_]) -> Shares:
    """Return which share of the first and last stage is beyond the usual cost of so deep a stage."""
    share = np.zeros(len(dense))
    for stage in {0, len(dense) - 1}:
        others = wide & (dense > 0)
        others[stage] = False
        if others.any() and wide[stage]:
            usual = _usual(dense[others])
            if dense[stage] > _LEAST * usual:
                share[stage] = 1 - usual / dense[stage]
    return share


def _usual(dense: Shares) -> float:
    """Return the lower median, which one stage in two that takes long does not lift."""
    return float(np.quantile(dense, 0.5, method="lower"))
