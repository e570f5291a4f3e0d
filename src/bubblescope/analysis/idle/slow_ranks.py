"""The ranks that are slow: one answer for all who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.finding import place
from bubblescope.analysis.idle.inside_passes import Inside, inside_passes
from bubblescope.analysis.idle.rank_noise import rank_errors
from bubblescope.analysis.idle.task_lengths import Durations, Medians, Typical, lengths
from bubblescope.model.kinds import Kind
from bubblescope.model.timing import on_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.analysis.finding import Shown
    from bubblescope.analysis.idle.measured_run import MeasuredRun
    from bubblescope.analysis.idle.task_lengths import Lengths
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline

_SLOW: Final = 0.05
"""By how much slower a rank must be to be spoken of whatever its share of the idle time."""

_SIGMAS: Final = 6.0
"""Standard errors that it must be slower by, which none of a thousand ranks is by chance."""

_OF_WORK: Final = 0.005
"""What it must take longer in a step, of what the busiest rank works in one: no step is shorter."""


class SlowRank(msgspec.Struct, frozen=True):
    """A rank that is slower than a healthy one.

    Attributes:
        rank: Which.
        waited_for: Whether others do what it does and wait for it in their passes, in which ranks
            communicate: then all of this goes by what they computed there.
        slow_share: By how much longer its tasks are than on a healthy rank at its stage.
        more: The same of those of each kind, by the kind's place in `Kind`.
        steps: Number of steps in which it was.
        of: Number of steps that there are.
        task: The first task that was longer.
        error: By how much it may seem slower than it is, as `rank_errors` has it.
        of_work: What its tasks take longer in a step, of what the busiest rank works in one.
        mixed: Whether it may be one that waits: as of `Work`, and others do what it does.
        passing_share: By how much longer its tasks are in the steps in which it was slower, if that is
            all: no other rank does what it does, and it is not slow as a rule. Else None.
    """

    rank: int
    waited_for: bool
    slow_share: float
    more: dict[int, float]
    steps: int
    of: int
    task: Shown
    error: float
    of_work: float
    mixed: bool
    passing_share: float | None

    @property
    def odd(self) -> bool:
        """Whether it is a twentieth slower, not by chance, and by enough to make steps longer.

        A rank is not that may be waiting.
        """
        if self.mixed:
            return False
        enough = self.slow_share >= _SLOW and self.of_work >= _OF_WORK
        return enough and self.slow_share > _SIGMAS * self.error

    @property
    def stands_out(self) -> bool:
        """Whether it is odd, and slower in most steps."""
        return self.odd and 2 * self.steps > self.of

    def __str__(self) -> str:
        slower = f"{100 * self.slow_share:.0f} % slower"
        return f"rank {self.rank} is {slower} than a healthy rank at its stage"


class Worked(msgspec.Struct, frozen=True):
    """What some ranks worked.

    Attributes:
        steps: Frame with rank, step and own, what it worked there.
        ranks: Frame as of `Work`, with first, the row of the rank's first task, and task, that of the
            first that was longer; null if none was.
        kinds: As of `Work`.
        own: As of `Work`.
        numbers: Of the steps, as the run has them.
    """

    steps: pl.DataFrame
    ranks: pl.DataFrame
    kinds: pl.DataFrame
    own: pl.DataFrame
    numbers: list[int | None]

    @classmethod
    def of(cls, run: Durations | MeasuredRun, parts: Lengths, inside: Inside) -> Self:
        """Look at tasks.

        Steps are told apart as the run tells them. Where it knows just how long tasks took, these are
        those of one number, which is that of other ranks' too.

        Args:
            run: The tasks.
            parts: Their lengths taken apart.
            inside: What devices did in the tasks of the timeline.
        """
        slow = pl.col("was") > pl.col("healthy")
        step = pl.Series(run.step)
        number = pl.Series(run.steps, dtype=pl.Int32).gather(step)
        if isinstance(run, Durations):
            step = number
        tasks = pl.DataFrame(
            {
                "rank": run.rank,
                "step": step,
                "number": number,
                "was": parts.rank_ns,
                "healthy": parts.stage_ns,
                "own": parts.own_ns,
                "task": run.task,
                "kind": run.kind,
                "stage": run.stage,
                "computed": inside.computed_ns[run.task],
                "waits": inside.waits_ns[run.task],
            }
        )
        # Where it is not known, it would be a row for each rank and step all the same. Whether ranks
        # wait at all, the steps together tell.
        known = tasks if inside.computed_ns.any() else tasks.clear()
        return cls(
            tasks.group_by("rank", "step").agg(pl.col("own").sum()),
            tasks.group_by("rank").agg(
                pl.col("was", "healthy").sum(),
                steps=pl.col("step").filter(slow).n_unique().cast(pl.Int64),
                task=pl.col("task").filter(slow).min(),
                first=pl.col("task").min(),
            ),
            tasks.group_by("rank", "kind").agg(pl.col("was", "healthy").sum()),
            known.group_by(*PLACE, step="number").agg(pl.col("computed", "waits").sum()),
            run.steps,
        )


PLACE: Final = ("rank", "stage", "kind")
"""Columns that tell apart what ranks do."""


def places_of(run: Durations | MeasuredRun) -> dict[str, Ints]:
    """Return these of tasks."""
    return {"rank": run.rank, "stage": run.stage, "kind": run.kind}


def work_by_place(run: Durations | MeasuredRun, inside: Inside) -> pl.DataFrame:
    """Return what tasks take in all, by what they do.

    Args:
        run: The tasks.
        inside: What devices did in the tasks of the timeline.

    Returns:
        Frame with rank, stage, kind and own: as measured, without waits.
    """
    own = np.maximum(run.duration_ns - inside.waits_ns[run.task], 0)
    return joined_by_place([pl.DataFrame({**places_of(run), "own": own})])


def joined_by_place(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return what `work_by_place` does of several parts of a run together."""
    return pl.concat(parts).group_by(PLACE).agg(pl.col("own").sum())


class Work(msgspec.Struct, frozen=True):
    """What ranks worked in some steps, and what they would have on healthy ones.

    Attributes:
        ranks: Frame with rank, was (as long as its tasks take on it as a rule), healthy (on a healthy
            one), and steps (how many it was slower in).
        kinds: Frame with rank, kind, was and healthy.
        own: Frame with rank, stage, kind, step (the number), computed and waits: as of `Inside`, of all
            such tasks of a step; empty where that is not known.
        shown: The first task of each rank that was longer, if any was.
        first: The first task of each rank of `own`.
        busiest_ns: What the busiest rank of each step worked, in all.
        of: Number of steps.
        mixed: Whether tasks may contain waiting for other ranks that is not known (`_mixed`).
    """

    ranks: pl.DataFrame
    kinds: pl.DataFrame
    own: pl.DataFrame
    shown: dict[int, Shown]
    first: dict[int, Shown]
    busiest_ns: int
    of: int
    mixed: bool

    @classmethod
    def of_steps(cls, run: Durations | MeasuredRun, parts: Lengths, timeline: Timeline) -> Self:
        """Look at some steps.

        Args:
            run: Their tasks.
            parts: The lengths of these, taken apart.
            timeline: That they are of.
        """
        return cls.of_ranks([Worked.of(run, parts, inside_passes(timeline))], timeline)

    @classmethod
    def of_ranks(cls, worked: Sequence[Worked], timeline: Timeline) -> Self:
        """Look at all steps, of which some ranks each are known.

        Args:
            worked: What they worked.
            timeline: Their tasks.
        """
        steps = pl.concat([one.steps for one in worked])
        numbers = {number for one in worked for number in one.numbers}
        ranks = pl.concat([one.ranks for one in worked])
        own = pl.concat([one.own for one in worked])

        def named(column: str) -> dict[int, Shown]:
            rows = ranks.drop_nulls(column).select("rank", column).iter_rows()
            return {rank: timeline.tasks.row(row, named=True) for rank, row in rows}

        return cls(
            ranks.drop("task", "first"),
            pl.concat([one.kinds for one in worked]),
            own,
            named("task"),
            named("first") if own.height else {},
            int(steps.group_by("step").agg(pl.col("own").max())["own"].sum()),
            len(numbers),
            _mixed(timeline),
        )

    @classmethod
    def joined(cls, parts: Sequence[Work]) -> Self:
        """Return that of several parts of a run together, each of whole steps."""
        ranks = pl.concat([part.ranks for part in parts])
        return cls(
            ranks.group_by("rank").agg(pl.col("was", "healthy", "steps").sum()),
            pl.concat([part.kinds for part in parts])
            .group_by("rank", "kind")
            .agg(pl.col("was", "healthy").sum()),
            pl.concat([part.own for part in parts]),
            _first_of([part.shown for part in parts]),
            _first_of([part.first for part in parts]),
            sum(part.busiest_ns for part in parts),
            sum(part.of for part in parts),
            all(part.mixed for part in parts),
        )

    @property
    def waits(self) -> bool:
        """Whether some rank spends a part of its passes on waiting that is worth a word."""
        ranks = self.own.group_by("rank").agg(pl.col("computed", "waits").sum())
        return bool((ranks["waits"] > _WAITS * (ranks["computed"] + ranks["waits"])).any())

    def without_waits(self) -> tuple[Work, Typical]:
        """Return what ranks computed, that of a step and place in one, and what it takes as a rule."""
        own = self.own.sort("step", "rank", "stage", "kind")
        steps = own["step"].unique(maintain_order=True).to_list()
        columns = {name: own[name].to_numpy() for name in PLACE}
        step = own["step"].rle_id().to_numpy().astype(np.int32)
        task = np.arange(own.height)
        computed_ns = own["computed"].to_numpy()
        run = Durations(task, step=step, duration_ns=computed_ns, steps=steps, **columns)
        typical = Typical.of(Medians.of(run))
        worked = Worked.of(run, lengths(run, typical), Inside(computed_ns, own["waits"].to_numpy()))
        work = msgspec.structs.replace(
            self,
            ranks=worked.ranks.drop("task", "first"),
            kinds=worked.kinds,
            shown=self.first,
            mixed=False,
        )
        return work, typical


def _first_of(parts: Sequence[dict[int, Shown]]) -> dict[int, Shown]:
    """Return the first task of each rank, of those of several parts of a run."""
    found: dict[int, list[Shown]] = {}
    for part in parts:
        for rank, task in part.items():
            found.setdefault(rank, []).append(task)
    return {rank: min(tasks, key=place) for rank, tasks in found.items()}


def _mixed(timeline: Timeline) -> bool:
    """Say whether tasks may contain waiting for other ranks that is not known.

    What devices did in them is not, and the ranks of a stage wait for each other in passes, for they
    share its tensors, sequences or experts; or the host was timed and no collective recorded, so that
    those within a pass, as FSDP's, are part of it.
    """
    if timeline.budget.height:
        return False
    if any(timeline.ranks[name].n_unique() > 1 for name in _WITHIN):
        return True
    recorded = (timeline.tasks["kind"] == Kind.COLLECTIVE.value).any()
    return on_host(timeline.ranks) is not None and not recorded


_WITHIN: Final = ("tp", "cp", "ep", "etp")
"""Coordinates of ranks that communicate in the passes of a stage."""

_WAITS: Final = 0.01
"""Share of its passes in which a rank communicates, from which on passes do not tell how fast it is."""


def slow_ranks(work: Work, typical: Typical) -> list[SlowRank]:
    """Return the ranks that are slower than healthy ones at their stage, slowest first.

    Args:
        work: What they worked in all steps.
        typical: What tasks of the run take.
    """
    waits = work.waits
    if waits:
        work, typical = work.without_waits()
    found = (
        work.ranks.with_columns(pl.col("rank").cast(pl.Int64))
        .join(rank_errors(typical.places, typical.medians.noise), on="rank", how="left")
        .with_columns(
            share=pl.col("was") / pl.col("healthy") - 1,
            of_work=(pl.col("was") - pl.col("healthy")) / work.busiest_ns,
        )
        .filter(pl.col("steps") > 0, pl.col("share") > 0)
        .join(_beside(typical), on="rank", how="left")
        .sort("share", "rank", descending=[True, False])
        .select("rank", "share", "steps", "error", "of_work", "alone", "passing")
    )
    more = _by_kind(work.kinds.filter(pl.col("rank").is_in(found["rank"].implode())))
    return [
        SlowRank(
            rank,
            waited_for=waits and not alone,
            slow_share=share,
            more=more[rank],
            steps=steps,
            of=work.of,
            task=work.shown[rank],
            error=error,
            of_work=of_work,
            mixed=work.mixed and not alone,
            passing_share=passing,
        )
        for rank, share, steps, error, of_work, alone, passing in found.iter_rows()
    ]


def _by_kind(kinds: pl.DataFrame) -> dict[int, dict[int, float]]:
    """Return `SlowRank.more` of each rank."""
    more: dict[int, dict[int, float]] = {}
    beyond = pl.col("was") / pl.col("healthy") - 1
    rows = kinds.filter(pl.col("healthy") > 0).sort("rank", "kind")
    for rank, kind, share in rows.select("rank", "kind", beyond).iter_rows():
        more.setdefault(rank, {})[kind] = share
    return more


def _beside(typical: Typical) -> pl.DataFrame:
    """Return rank, alone (whether no other does what it does) and `SlowRank.passing_share`."""
    as_a_rule = pl.col("own_rank") > pl.col("healthy_ns") + 1
    ranks = (
        typical.places.with_columns(alone=pl.len().over("kind", "stage") == 1)
        .group_by(pl.col("rank").cast(pl.Int64))
        .agg(pl.col("alone").all(), slow=as_a_rule.any())
    )
    times = typical.medians.passing.group_by(pl.col("rank").cast(pl.Int64)).agg(
        passing=pl.col("times").mean() - 1
    )
    passing = pl.when("alone", ~pl.col("slow")).then("passing")
    return ranks.join(times, on="rank", how="left").select("rank", "alone", passing)
