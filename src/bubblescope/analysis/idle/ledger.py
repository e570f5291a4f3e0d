"""The ledger: every idle nanosecond of every rank has exactly one cause.

A step is replayed with ever more of its causes, first none, then the stages' own costs, the slowness
of ranks, and so on in the order of `bubblescope.analysis.idle.causes.ADDED`; with the last one that
makes any difference to it, it is the measured step itself. What a rank's idle time in a step grows by
when a cause is added is that cause's. Where it shrinks instead (a rank that works longer waits less),
the causes before it get as much less, the latest first, so that nothing is negative and the sum is what
was measured.

How each gap of a rank is shared out is in `bubblescope.analysis.idle.explained_gaps`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.between_rounds import laid_open
from bubblescope.analysis.idle.causes import ADDED, Cause
from bubblescope.analysis.idle.counterfactuals import Counterfactuals
from bubblescope.analysis.idle.explained_gaps import Explained, rows_of
from bubblescope.analysis.idle.outside_phase import outside_phase
from bubblescope.analysis.idle.slow_ranks import Work, slow_ranks
from bubblescope.model.arrays import at_once
from bubblescope.model.errors import TimelineError
from bubblescope.model.memory import give_back
from bubblescope.model.timeline import TASK_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

    from bubblescope.analysis.idle.evidence import Evidence
    from bubblescope.analysis.idle.explained_gaps import Stretches
    from bubblescope.analysis.idle.shares import Shares
    from bubblescope.analysis.idle.slow_ranks import SlowRank
    from bubblescope.analysis.idle.task_lengths import Typical
    from bubblescope.analysis.schedule.recognise import Recognition
    from bubblescope.model.timeline import Timeline

_TOTALS = {"cause": pl.String, "idle_ns": pl.Int64}


class Replays(msgspec.Struct, frozen=True):
    """What a ledger was made of.

    Attributes:
        counterfactuals: The run, and what it would have been without causes.
        stretches: What the gaps of the run are made of, part by part.
    """

    counterfactuals: Counterfactuals
    stretches: tuple[Stretches, ...]


class Told(msgspec.Struct, frozen=True):
    """What replays said of their causes before they were let go of.

    Attributes:
        shares: What each cause costs.
        evidence: What shows it.
        slow_ranks: As of `Counterfactuals`.
        work: What tasks of each rank, stage and kind took, as `work_by_place` returns it.
        gaps: The rows of `Ledger.gaps`, some steps at a time.
    """

    shares: Shares
    evidence: Evidence
    slow_ranks: list[SlowRank]
    work: pl.DataFrame
    gaps: tuple[pl.DataFrame, ...]


class Entries(msgspec.Struct, frozen=True):
    """What steps enter into the ledger of their run.

    Attributes:
        table, outside, left_out: As of `Ledger`.
        errors: Frame with step, pipeline and error: how far each replayed step is from the measured
            one, as a share of this.
        present: The causes that made any difference.
        phases: Frame with step, pipeline, start_ns and end_ns: when the pipeline phase of each step
            was, without what `between` takes out.
        between: As of `Counterfactuals`.
        work: What ranks worked.
        unseen: As of `Counterfactuals`.
    """

    table: pl.DataFrame
    outside: pl.DataFrame
    left_out: int
    errors: pl.DataFrame
    present: frozenset[Cause]
    phases: pl.DataFrame
    between: pl.DataFrame
    work: Work
    unseen: bool

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Those of `present`, in the order in which they are added."""
        return tuple(cause for cause in ADDED if cause in self.present)

    @classmethod
    def of(cls, found: Counterfactuals) -> tuple[Self, tuple[Stretches, ...]]:
        """Look at some steps.

        Args:
            found: What they would have been without causes.

        Returns:
            What they enter, and what their gaps are made of, part by part.
        """
        run = found.run
        made = at_once(Explained.of, list(found.parts()))
        steps = {
            "step": pl.Series(run.steps, dtype=TASK_SCHEMA["step"]),
            "pipeline": pl.Series(run.pipeline, dtype=pl.Int32),
        }
        errors = pl.DataFrame({**steps, "error": np.concatenate([one.error for one in made])})
        closes = run.opens_ns + run.as_measured.length_ns
        entries = cls(
            # Steps of pipelines that run theirs each for itself are the same step.
            table=_summed([one.table for one in made]),
            outside=outside_phase(found.timeline, run, found.between),
            left_out=run.left_out,
            errors=errors,
            present=frozenset(found.present),
            phases=pl.DataFrame({**steps, "start_ns": run.opens_ns, "end_ns": closes}),
            between=found.between,
            work=Work.of_steps(run, found.lengths, found.timeline),
            unseen=found.unseen,
        )
        return entries, tuple(one.stretches for one in made)

    @classmethod
    def joined(cls, parts: Sequence[Entries]) -> Self:
        """Return what several parts of a run enter together, each of whole steps."""
        outside, errors, phases, between = (
            pl.concat([getattr(part, name) for part in parts])
            for name in ("outside", "errors", "phases", "between")
        )
        return cls(
            table=_summed([part.table for part in parts]),
            outside=outside.sort("step", "rank"),
            left_out=sum(part.left_out for part in parts),
            errors=errors.sort("step", "pipeline"),
            present=frozenset().union(*(part.present for part in parts)),
            phases=phases.sort("step", "pipeline"),
            between=between.sort("step", "pipeline", "start_ns"),
            work=Work.joined([part.work for part in parts]),
            unseen=any(part.unseen for part in parts),
        )


def _summed(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    key = ["step", "rank", "cause"]
    return pl.concat(tables).group_by(key).agg(pl.col("idle_ns").sum()).sort(key)


class Ledger(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Why each rank was idle.

    Attributes:
        table: Frame with step, rank, cause and idle_ns, the sums of `gaps`; only where not 0.
        outside: The same for what is idle before and after the pipeline phase and between its rounds,
            from the first start to the last end of anything in the step: all of it is synchronisation.
        replay_error: How far the replayed steps are from the measured ones, as a share of these; the
            mean over the steps.
        worst_error: The same of the worst step.
        steps: Number of steps that it is about; all that are compared across ranks.
        left_out: Number of results that no replay waits for, as of `MeasuredRun`.
        present: The causes that made any difference to the run.
        typical: What its tasks take, as a rule.
        slow_ranks: The ranks that are slower than healthy ones, slowest first, if any idle time is
            because of such, or ranks wait for each other inside of passes.
        phases, between, unseen: As of `Entries`.
        replays: What it was made of; None where none of that was kept.
        again: Makes that again, of a run that is here but was replayed some steps at a time; else None.
        told: What such replays said of causes, if they were asked.
    """

    table: pl.DataFrame
    outside: pl.DataFrame
    replay_error: float
    worst_error: float
    steps: int
    left_out: int
    present: tuple[Cause, ...]
    typical: Typical
    slow_ranks: tuple[SlowRank, ...]
    phases: pl.DataFrame
    between: pl.DataFrame
    unseen: bool
    replays: Replays | None
    again: Callable[[], Replays] | None
    told: Told | None

    @classmethod
    def of(
        cls,
        entries: Entries,
        typical: Typical,
        replays: Replays | None = None,
        *,
        again: Callable[[], Replays] | None = None,
        told: Told | None = None,
    ) -> Self:
        """Close the ledger of a run.

        Args:
            entries: What all of its steps enter.
            typical: What its tasks take, as a rule.
            replays: What the entries were made of, if that is kept.
            again: Makes that again, where it is not kept and can be made.
            told: What was asked of it before it was let go of.
        """
        table, error = entries.table, entries.errors.sort("step", "pipeline")["error"].to_numpy()
        return cls(
            table=table,
            outside=entries.outside,
            replay_error=float(error.mean()),
            worst_error=float(error.max()),
            steps=entries.errors["step"].n_unique(),
            left_out=entries.left_out,
            present=entries.causes,
            typical=typical,
            slow_ranks=tuple(slow_ranks(entries.work, typical))
            if Cause.SLOW_RANK in entries.causes or entries.work.waits
            else (),
            phases=entries.phases,
            between=entries.between,
            unseen=entries.unseen,
            replays=replays,
            again=again,
            told=told,
        )

    @property
    def counterfactuals(self) -> Counterfactuals:
        """The replays behind it; made again where they were not kept, which takes as much memory.

        Raises:
            TimelineError: The run was looked at in parts that are not here.
        """
        return self._replays.counterfactuals

    @property
    def stretches(self) -> tuple[Stretches, ...]:
        """What the gaps of the run are made of, part by part; raises as `counterfactuals`."""
        return self._replays.stretches

    @cached_property
    def _replays(self) -> Replays:
        if self.replays is not None:
            return self.replays
        if self.again is not None:
            return self.again()
        raise TimelineError(
            "the run was looked at in parts, none of which is kept; ask for some of its steps"
        )

    @cached_property
    def gaps(self) -> pl.DataFrame:
        """Every stretch of idle time with one cause, in the pipeline phase of a step.

        A frame with step, rank, start_ns, end_ns, cause, task (row in the timeline of the task before
        which it is; null if it is the last of the step) and root (row of the task on which all those
        that were waited for waited in the end; where the cause is a slow rank, of the last task
        before the gap that was slow and held it up). Laid out when first asked for: it is large.
        """
        return pl.concat(self.gaps_by_part())

    def gaps_by_part(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of `gaps` some steps at a time, so that not all need be there at once."""
        return laid_out(self._replays) if self.told is None else iter(self.told.gaps)

    def totals(self) -> pl.DataFrame:
        """Return idle_ns and its share of all by cause, largest first.

        A cause may make steps longer and no idle time: it is among them with 0.
        """
        present = [cause.value for cause in self.present]
        none = pl.DataFrame({"cause": present, "idle_ns": 0}, schema=_TOTALS)
        return (
            pl.concat([self.table.select(_TOTALS.keys()), none])
            .group_by("cause")
            .agg(pl.col("idle_ns").sum())
            .with_columns(share=(pl.col("idle_ns") / pl.col("idle_ns").sum()).fill_nan(0.0))
            .sort("idle_ns", "cause", descending=[True, False])
        )


def laid_out(replays: Replays) -> Iterator[pl.DataFrame]:
    """Yield the rows of `Ledger.gaps`, some steps at a time."""
    found = replays.counterfactuals
    for part, made in zip(found.parts(), replays.stretches, strict=True):
        rows = rows_of(part, made)
        yield laid_open(rows, found.between, found.run.pipelines)


def ledger(timeline: Timeline, recognition: Recognition | None) -> Ledger | None:
    """Give each idle nanosecond of a run a cause.

    Args:
        timeline: The run.
        recognition: The schedule that it followed.

    Returns:
        None if the run has no pipeline tasks, or its ranks share no clock.
    """
    found = Counterfactuals.of(timeline, recognition)
    if found is None:
        return None
    entries, stretches = Entries.of(found)
    give_back()
    return Ledger.of(entries, found.typical, Replays(found, stretches))


def replays_of(timeline: Timeline, recognition: Recognition | None) -> Replays:
    """Return what the ledger of a run is made of, which has one; arguments as of `ledger`."""
    made = ledger(timeline, recognition)
    if made is None or made.replays is None:
        raise ValueError("what was replayed once can be replayed again")
    return made.replays
