"""What the replays of some steps of a job tell; that of all steps is put together of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from bubblescope.analysis.stragglers.slowness import computed_ns
from bubblescope.names.job_trace_operations import TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.analysis.stragglers.operations import Array, Operations, Pipeline
    from bubblescope.analysis.stragglers.replays import Replays
    from bubblescope.model.timeline import Timeline

_WORST_PERCENT: Final = 3
"""The share of workers that M_W is about."""


class Replayed(NamedTuple):
    """Lengths of steps, of a job of p places and r replicas, if only some operations keep their times.

    All are in nanoseconds; steps are ascending.

    Attributes:
        job_trace: As of `Operations`.
        steps: The steps.
        types: Names of operation types.
        base_ns: As of `Stragglers`.
        no_delay_ns: If all do, s long.
        ideal_ns: If none does, s long.
        last_ns: If all but those of the place of the last stage do, and if only these do, each s long;
            None if there is no other place.
        by_type_ns: If only those of one type do, k x s.
        by_place_ns: If only those of one place do, p x s.
        by_replica_ns: If only those of one replica do, r x s.
        alone_ns: If only those of one worker do, summed over the steps, p x r.
        computed_ns: How long each worker computed, p x r x s.
    """

    job_trace: bool
    steps: list[int | None]
    types: list[str]
    base_ns: Array | None
    no_delay_ns: Array
    ideal_ns: Array
    last_ns: tuple[Array, Array] | None
    by_type_ns: Array
    by_place_ns: Array
    by_replica_ns: Array
    alone_ns: Array
    computed_ns: Array

    @classmethod
    def of(cls, operations: Operations, replays: Replays, *, apart: bool) -> Self:
        """Replay some steps.

        Args:
            operations: Theirs.
            replays: As they are replayed.
            apart: Whether pipelines run their steps each for itself.
        """
        pipeline = operations.pipeline
        places = len(pipeline.rank)
        names = [TRANSFERS.get(name, name) for name in operations.types]
        types = list(dict.fromkeys(names))
        of_type = np.array([types.index(name) for name in names])[operations.type]
        tops = [max(stages) for stages in pipeline.stages]
        holders = [place for place, top in enumerate(tops) if top == max(tops)]
        last = np.isin(operations.place, holders)
        kept = [
            np.ones(len(operations), bool),
            np.zeros(len(operations), bool),
            ~last,
            last,
            *(of_type == index for index in range(len(types))),
            *(operations.place == place for place in range(places)),
        ]
        found = replays.keeping(np.array(kept)[:, :, None])
        no_delay, ideal, but_last, only_last = found[:4]
        alone = replays.alone(np.array(kept[-places:])).sum(axis=2)
        return cls(
            job_trace=operations.job_trace,
            steps=operations.steps,
            types=types,
            base_ns=_step_ns(operations, apart=apart) if operations.common_clock else None,
            no_delay_ns=no_delay,
            ideal_ns=ideal,
            last_ns=(but_last, only_last) if len(holders) < places else None,
            by_type_ns=found[4 : 4 + len(types)],
            by_place_ns=found[-places:],
            by_replica_ns=replays.alone(np.array(kept[:1]))[0],
            alone_ns=alone.reshape(pipeline.rank.shape),
            computed_ns=computed_ns(operations),
        )

    @classmethod
    def joined(cls, parts: Sequence[Replayed]) -> Self:
        """Return those of several parts of a run together, each of whole steps."""
        steps = [step for part in parts for step in part.steps]
        turn = order_of(steps)
        bases = [part.base_ns for part in parts if part.base_ns is not None]
        lasts = [part.last_ns for part in parts if part.last_ns is not None]

        def along(name: str) -> Array:
            every: Array = np.concatenate([getattr(part, name) for part in parts], axis=-1)
            return every[..., turn]

        return cls(
            job_trace=parts[0].job_trace,
            steps=[steps[at] for at in turn],
            types=parts[0].types,
            base_ns=np.concatenate(bases)[turn] if bases else None,
            no_delay_ns=along("no_delay_ns"),
            ideal_ns=along("ideal_ns"),
            last_ns=joined_pairs(lasts, turn) if lasts else None,
            by_type_ns=along("by_type_ns"),
            by_place_ns=along("by_place_ns"),
            by_replica_ns=along("by_replica_ns"),
            alone_ns=np.sum([part.alone_ns for part in parts], axis=0),
            computed_ns=along("computed_ns"),
        )

    def by_worker(self) -> Array:
        """Return S_w: the lesser of the slowdowns of a worker's place and replica, p x r."""
        place, replica = (
            overall(lengths.mean(axis=1), self.ideal_ns)
            for lengths in (self.by_place_ns, self.by_replica_ns)
        )
        return np.minimum(place[:, None], replica)

    def worst(self, rank: Array) -> Array:
        """Say which workers are the slowest 3 %, p x r, given the rank of each."""
        return _slowest(self.by_worker(), rank)


class Slowed(NamedTuple):
    """What `bubblescope.analysis.stragglers.Stragglers.told` puts together.

    Attributes:
        timeline: Ranks and run, without tasks.
        pipeline: Where the ranks stand.
        found: What the replays of all steps tell.
        worst: Those of the slowest workers.
        known: What else `Stragglers` holds.
    """

    timeline: Timeline
    pipeline: Pipeline
    found: Replayed
    worst: tuple[Array, Array]
    known: dict[str, Any]


def joined_pairs(parts: Sequence[tuple[Array, Array]], turn: Sequence[int]) -> tuple[Array, Array]:
    """Return two lengths of the steps of several parts as two of all of them, in this order."""
    one, other = zip(*parts, strict=True)
    return np.concatenate(one)[turn], np.concatenate(other)[turn]


def order_of(steps: Sequence[int | None]) -> list[int]:
    """Return the places of steps, ascending; there is one alone if it has no number."""
    return sorted(range(len(steps)), key=lambda at: steps[at] or 0)


def kept_and_not(operations: Operations, replays: Replays, workers: Array) -> tuple[Array, Array]:
    """Return how long steps take if all but some workers keep their times, and if only these do.

    Args:
        operations: Those of the steps.
        replays: As they are replayed.
        workers: Which, p x r.
    """
    chosen = workers[operations.place]
    removed, added = replays.keeping(np.array([~chosen, chosen]))
    return removed, added


def overall(means_ns: Array, ideal_ns: Array) -> Array:
    """Return mean lengths of steps over the mean ideal one; an ideal of nothing is no slowdown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = means_ns / ideal_ns.mean()
    return np.where(np.isfinite(ratio), ratio, 1.0)


def _step_ns(operations: Operations, *, apart: bool) -> Array:
    """Return how long each step was, from the first start to the last end; s long.

    Where pipelines run their steps each for itself, it is the longest of theirs.
    """
    starts = operations.start_ns
    if apart:
        each: Array = operations.end_ns.max(axis=0) - starts.min(axis=0)
        return np.array(each.max(axis=1))
    length: Array = operations.end_ns.max(axis=(0, 2)) - starts.min(axis=(0, 2))
    return length


def _slowest(by_worker: Array, rank: Array) -> Array:
    """Say which workers are the slowest 3 %, at least one; of equals, those of lower rank."""
    many = -(-by_worker.size * _WORST_PERCENT // 100)
    order = np.lexsort((rank.ravel(), -by_worker.ravel()))
    worst = np.zeros(by_worker.size, bool)
    worst[order[:many]] = True
    return worst.reshape(by_worker.shape)
