"""Stragglers: what slow operations, stages and workers cost a job, by replaying it without them.

The questions and measures are those of Lin et al., "Understanding Stragglers in Large Model
Training Using What-if Analysis" (OSDI 2025, arXiv 2505.05713); docs/stragglers.md has the formulas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy as np

from bubblescope.analysis.between_rounds import closed
from bubblescope.analysis.idle.inside_passes import inside_passes, knows_waits
from bubblescope.analysis.picture_data import pictured
from bubblescope.analysis.pipeline_phase import pipelines
from bubblescope.analysis.rank_standing import Alike, alike
from bubblescope.analysis.stragglers.operations import Pipeline, tabulate
from bubblescope.analysis.stragglers.parallel_ranks import Beside, beside
from bubblescope.analysis.stragglers.replayed import Replayed, kept_and_not, overall
from bubblescope.analysis.stragglers.replays import Replays
from bubblescope.analysis.stragglers.slowness import (
    Slowness,
    correlated,
    correlations,
    outliers,
    slowness,
)
from bubblescope.model.memory import give_back
from bubblescope.model.progress import SILENT
from bubblescope.model.timing import timed

if TYPE_CHECKING:
    from typing_extensions import Self

    from bubblescope.analysis.idle.slow_ranks import SlowRank
    from bubblescope.analysis.picture_data import Pictured
    from bubblescope.analysis.stragglers.operations import Array
    from bubblescope.analysis.stragglers.replayed import Slowed
    from bubblescope.model.progress import Progress
    from bubblescope.model.provenance import Notice
    from bubblescope.model.timeline import Timeline

SCHEMA: Final = "bubblescope.stragglers/1"
"""Name and version of the JSON, described in docs/stragglers.md. Keys are only ever added."""

NEGLIGIBLE: Final = 1.03
"""A slowdown below this is not worth explaining, as the paper has it."""

_IN_COLLECTIVES: Final = (
    *("span", "step_ns", "late_ranks", "late_together", "late_together_unknown", "collectives"),
)
"""Keys of the schema that are null of a pipeline: they tell who is late in a run without one."""


class Slowdown(msgspec.Struct, frozen=True, eq=False):
    """How many times as long steps are as ideal ones, if only some operations keep their times.

    Attributes:
        overall: Mean length over mean ideal length, for each thing that was kept; k long.
        per_step: The same of each step; k x s.
    """

    overall: Array
    per_step: Array


_LEAST_NS: Final = 1.0
"""What steps have to be slower by for anything to explain it: less is what rounding leaves."""


class Explained(msgspec.Struct, frozen=True):
    """How much of the slowdown some operations explain, judged in two ways.

    Times are means over the steps, in nanoseconds; a share is null where nothing is slow.

    Attributes:
        original_ns: With the times that all operations had.
        ideal_ns: With ideal times.
        removed_ns: With the original times, but for these operations.
        added_ns: With ideal times, but for these operations.
        removed: (original - removed) / (original - ideal): the paper's M_S and M_W.
        added: (added - ideal) / (original - ideal).
    """

    original_ns: int
    ideal_ns: int
    removed_ns: int
    added_ns: int
    removed: float | None
    added: float | None

    @classmethod
    def of(cls, original: Array, ideal: Array, removed: Array, added: Array) -> Explained:
        """Compare the lengths of steps, each array s long."""
        means = [float(lengths.mean()) for lengths in (original, ideal, removed, added)]
        whole = means[0] - means[1]
        explained = (means[0] - means[2], means[3] - means[1])
        shares = [share / whole if abs(whole) >= _LEAST_NS else None for share in explained]
        return cls(*map(round, means), *shares)


class Stragglers(msgspec.Struct, frozen=True, eq=False):
    """What slow operations cost a job of p places, r replicas and s steps.

    Attributes:
        timeline: The run.
        model: What is known of communication: "job-trace" (all of it), or "compute" (only that
            stages need each other's results).
        own_work: Whether operations are taken without the time in which their rank communicated and
            computed nothing, as the traces tell it; else that is part of their lengths.
        beside: What ranks of a place are to each other.
        steps: The steps, ascending; [None] if the trace knows none.
        base_ns: How long each step was, from its first operation to its last, s long; null if the
            ranks share no clock.
        apart: Whether pipelines run their steps each for itself; then `base_ns` is that of the one
            which took longest.
        no_delay_ns: How long without the time that nothing recorded accounts for, s long.
        ideal_ns: How long if no operation took longer than is usual for its type, s long.
        slowdown: The mean of `no_delay_ns` over that of `ideal_ns`, the paper's S; and per step.
        launch_slowdown: The mean of `base_ns` over that of `no_delay_ns`; and per step.
        types: Names of operation types.
        by_type: S_t, in the order of `types`.
        stages: The stages of each place.
        by_place: The slowdown if only a place keeps its times.
        dp: Data-parallel rank of each replica, if known.
        by_replica: The slowdown if only a replica keeps its times; null if there is one only.
        rank: Rank of each worker, p x r.
        by_worker: S_w: the lesser of its place's and its replica's slowdown, p x r.
        alone: The slowdown if only the worker keeps its times, replayed, p x r.
        last_stage: What the place of the last stage explains; null if there is no other. `removed`
            is M_S.
        worst: Ranks of the slowest 3 % of the workers.
        worst_workers: What they explain. `removed` is M_W.
        odd_steps: Steps that are outliers by their slowdown, indices.
        odd_workers: Workers that are outliers by `by_worker`: index pairs of place and replica. Where
            several are slow, so it seems of those that share the place of one and the replica of
            another; they are left out, for `alone` they cost nothing.
        alike: Which ranks are odd, wait for those, or do as most, and the slowest, as `report` and
            `why` have it; of a trace of tasks that are not forwards and backwards on a device, none is
            told apart.
        slowness: Whose computation is slow, when, and whether together with its micro-batch.
        notices: What was left out.
    """

    timeline: Timeline
    model: Literal["job-trace", "compute"]
    own_work: bool
    beside: Beside
    steps: list[int | None]
    base_ns: Array | None
    apart: bool
    no_delay_ns: Array
    ideal_ns: Array
    slowdown: Slowdown
    launch_slowdown: Slowdown | None
    types: list[str]
    by_type: Slowdown
    stages: list[tuple[int, ...]]
    by_place: Slowdown
    dp: list[int] | None
    by_replica: Slowdown | None
    rank: Array
    by_worker: Array
    alone: Array
    last_stage: Explained | None
    worst: list[int]
    worst_workers: Explained
    odd_steps: list[int]
    odd_workers: list[tuple[int, int]]
    alike: Alike
    slowness: Slowness
    notices: tuple[Notice, ...]

    @classmethod
    def of(cls, timeline: Timeline, *, progress: Progress = SILENT) -> Self:
        """Find out what slow operations cost a job.

        Args:
            timeline: The run.
            progress: Is told what is being worked out.

        Raises:
            TimelineError: No step can be replayed; the message says why.
            ScheduleError: Operations wait for each other in a circle.
        """
        progress.begin("ordering operations")
        give_back()  # what reading has left
        several = pipelines(timeline)["pipeline"].n_unique() > 1
        operations = tabulate(closed(timeline), inside_passes(timeline).waits_ns)
        replays = Replays(operations)
        progress.begin("replaying steps without stragglers")
        found = Replayed.of(operations, replays, apart=several)
        pipeline, notices = operations.pipeline, operations.notices
        worst = kept_and_not(operations, replays, found.worst(pipeline.rank))
        correlation = correlated([correlations(operations)])
        del replays, operations  # they are large, and so is what follows
        give_back()
        return cls.told(
            timeline,
            pipeline,
            found,
            worst,
            own_work=knows_waits(timeline),
            apart=several,
            alike=alike(timeline),
            correlation=correlation,
            notices=notices,
        )

    @classmethod
    def told(
        cls,
        timeline: Timeline,
        pipeline: Pipeline,
        found: Replayed,
        worst: tuple[Array, Array],
        **known: Any,
    ) -> Self:
        """Put together what is known of a job.

        Args:
            timeline: Of which ranks and run are looked at.
            pipeline: Where the ranks stand.
            found: What the replays of all of its steps tell.
            worst: As `kept_and_not` returns it for the slowest workers, of all steps.
            known: What `Stragglers` holds that is not worked out here.
        """
        ideal, no_delay = found.ideal_ns, found.no_delay_ns
        by_type, by_place, by_replica = (
            _slowdown(lengths, ideal)
            for lengths in (found.by_type_ns, found.by_place_ns, found.by_replica_ns)
        )
        by_worker = found.by_worker()
        alone = overall(found.alone_ns / len(ideal), ideal)
        of_all = _slowdown(no_delay[None], ideal)
        base, rank = found.base_ns, pipeline.rank
        chosen = found.worst(rank)
        correlation = known.pop("correlation")
        return cls(
            timeline=timeline,
            model="job-trace" if found.job_trace else "compute",
            beside=beside(timeline, rank[0].tolist()),
            steps=found.steps,
            base_ns=base,
            no_delay_ns=no_delay,
            ideal_ns=ideal,
            slowdown=of_all,
            launch_slowdown=None if base is None else _slowdown(base[None], no_delay),
            types=found.types,
            by_type=by_type,
            stages=pipeline.stages,
            by_place=by_place,
            dp=pipeline.dp,
            by_replica=by_replica if rank.shape[1] > 1 else None,
            rank=rank,
            by_worker=by_worker,
            alone=alone,
            last_stage=(
                None
                if found.last_ns is None
                else Explained.of(no_delay, ideal, found.last_ns[0], found.last_ns[1])
            ),
            worst=sorted(rank[chosen].tolist()),
            worst_workers=Explained.of(no_delay, ideal, *worst),
            odd_steps=np.flatnonzero(outliers(of_all.per_step[0], NEGLIGIBLE)).tolist(),
            odd_workers=[
                (place, replica)
                for place, replica in np.argwhere(
                    outliers(by_worker, NEGLIGIBLE) & (alone >= NEGLIGIBLE)
                ).tolist()
            ],
            slowness=slowness(found.computed_ns, correlation),
            **known,
        )

    @classmethod
    def of_pieces(cls, found: Slowed) -> Self:
        """Return what is said of a run that was looked at in parts."""
        return cls.told(found.timeline, found.pipeline, found.found, found.worst, **found.known)

    @property
    def warnings(self) -> tuple[Notice, ...]:
        """What the reader must know: what was left out here, and what reading the traces warned of."""
        return (*self.notices, *self.timeline.run.warnings)

    def pictured(self) -> list[Pictured]:
        """Return what its picture shows: the first step."""
        return [pictured(self.timeline, max_steps=1)]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, following the schema `SCHEMA`."""
        replicas = range(self.rank.shape[1])
        launch, slow = self.launch_slowdown, self.slowness
        standing = {rank: row for rank, *row in self.alike.ranks.iter_rows()}
        return {
            "schema": SCHEMA,
            "timed": timed(self.timeline.ranks),
            "model": self.model,
            "own_work": self.own_work,
            "beside": self.beside.noun,
            "slowdown": float(self.slowdown.overall[0]),
            "launch_slowdown": None if launch is None else float(launch.overall[0]),
            "base_ns": _mean(self.base_ns),
            "no_delay_ns": _mean(self.no_delay_ns),
            "ideal_ns": _mean(self.ideal_ns),
            "operations": [
                {"type": name, "slowdown": value}
                for name, value in zip(self.types, self.by_type.overall.tolist(), strict=True)
            ],
            "stages": [
                {
                    "place": place,
                    "stages": list(stages),
                    "slowdown": float(self.by_place.overall[place]),
                    "forward_backward_correlation": alike and alike.value,
                    "forward_backward_interval": alike and [alike.low, alike.high],
                    "sequence_length_correlation": None,
                }
                for place, (stages, alike) in enumerate(
                    zip(self.stages, slow.correlation, strict=True)
                )
            ],
            "replicas": [
                {
                    "replica": replica,
                    "dp": self.dp[replica] if self.dp else None,
                    "slowdown": float(self.by_replica.overall[replica]),
                }
                for replica in replicas
                if self.by_replica
            ],
            "workers": [
                {
                    "rank": int(self.rank[place, replica]),
                    "place": place,
                    "replica": replica,
                    "slowdown": float(self.by_worker[place, replica]),
                    "alone": float(self.alone[place, replica]),
                    "outlier": (place, replica) in self.odd_workers,
                    "slow_share": _at(slow.share, place, replica),
                    "pattern": slow.pattern(place, replica),
                    "standing": standing[int(self.rank[place, replica])][0],
                    "reason": standing[int(self.rank[place, replica])][1],
                }
                for place in range(len(self.stages))
                for replica in replicas
            ],
            "slow_rank": self._slow_rank(),
            "persistence": slow.persistence,
            "last_stage": msgspec.to_builtins(self.last_stage),
            "worst_workers": {"ranks": self.worst, **msgspec.to_builtins(self.worst_workers)},
            "steps": [self._step(index) for index in range(len(self.steps))],
            **dict.fromkeys(_IN_COLLECTIVES),
            "notices": [msgspec.to_builtins(notice) for notice in self.notices],
            "warnings": msgspec.to_builtins(self.timeline.run.warnings),
        }

    @property
    def slow_rank(self) -> SlowRank | None:
        """The slowest rank, if it stands out."""
        return self.alike.slowest

    def _slow_rank(self) -> dict[str, Any] | None:
        """Return what is known of the slowest rank, if it stands out."""
        slow = self.slow_rank
        if slow is None:
            return None
        return {name: getattr(slow, name) for name in ("rank", "slow_share", "steps", "of")}

    def _step(self, index: int) -> dict[str, Any]:
        """Return what is known of a step, lists in the order of the whole run's."""
        launch, by_replica = self.launch_slowdown, self.by_replica
        return {
            "step": self.steps[index],
            "base_ns": _at(self.base_ns, index),
            "no_delay_ns": int(self.no_delay_ns[index]),
            "ideal_ns": int(self.ideal_ns[index]),
            "slowdown": float(self.slowdown.per_step[0, index]),
            "launch_slowdown": None if launch is None else float(launch.per_step[0, index]),
            "outlier": index in self.odd_steps,
            "operations": self.by_type.per_step[:, index].tolist(),
            "stages": self.by_place.per_step[:, index].tolist(),
            "replicas": by_replica.per_step[:, index].tolist() if by_replica else None,
        }


def _slowdown(lengths: Array, ideal: Array) -> Slowdown:
    """Compare the lengths of steps, k x s, with the ideal ones. An ideal of nothing is no slowdown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = lengths / ideal
    ratios = overall(lengths.mean(axis=1), ideal)
    return Slowdown(ratios, np.where(np.isfinite(ratio), ratio, 1.0))


def _mean(times: Array | None) -> int | None:
    return None if times is None else round(float(times.mean()))


def _at(values: Array | None, *place: int) -> Any:
    """Return one value as a plain number, or None if it is unknown."""
    return None if values is None else values[place].item()
