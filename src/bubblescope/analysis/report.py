"""The report: bubble rates and the facts around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.analysis.device_budget import budget
from bubblescope.analysis.efficiency import utilization
from bubblescope.analysis.overview import Overview, kinds_of
from bubblescope.analysis.picture_data import pictured
from bubblescope.analysis.rates import DEFINITIONS
from bubblescope.analysis.step_lengths import phase_lengths, to_next
from bubblescope.analysis.study import study
from bubblescope.analysis.untold_time import untold
from bubblescope.analysis.wall_clock import wall_clock
from bubblescope.model.memory import give_back
from bubblescope.model.progress import SILENT
from bubblescope.model.timing import timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.analysis.device_budget import Budget
    from bubblescope.analysis.efficiency import Efficiency, Workload
    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.picture_data import Pictured
    from bubblescope.analysis.pieces.study_of_pieces import Found
    from bubblescope.analysis.rates import BubbleRates
    from bubblescope.analysis.study import Study
    from bubblescope.analysis.wall_clock import WallClock
    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan

SCHEMA: Final = "bubblescope.report/1"
"""Name and version of the JSON report, described in docs/report.md. Keys are only ever added."""


class Report(msgspec.Struct, frozen=True, eq=False):
    """Everything that `bubblescope report` says about a timeline.

    Attributes:
        timeline: What the report is about; of a run that was looked at in parts, what is drawn of it.
        overview: How much there is of it.
        study: What was worked out about it: schedule, ideal, bubble rates.
        kinds: Frame with kind, count, total_ns, min_ns, median_ns and max_ns of the tasks.
        budget: What the devices spent their time on; None if the traces do not tell.
        utilization: How much of the devices' peak the run made use of; None if nothing tells FLOPs.
        wall: What ranks were in, in whole steps; None as of `analysis.wall_clock.wall_clock`.
        to_next: How long it takes from each step to the next, as `analysis.step_lengths.to_next`.
    """

    timeline: Timeline
    overview: Overview
    study: Study
    kinds: pl.DataFrame
    budget: Budget | None
    utilization: Efficiency | None
    wall: WallClock | None
    to_next: dict[int, int]

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        *,
        also: Sequence[Plan] = (),
        workload: Workload | None = None,
        progress: Progress = SILENT,
    ) -> Self:
        """Analyse a timeline.

        Args:
            timeline: The run.
            also: Schedules to recognise besides the known ones.
            workload: What a step should compute, for MFU.
            progress: Is told what is being worked out.

        Raises:
            ModelError: The traces are of more devices than the job is stated to have.
        """
        length = (pl.col("end_ns") - pl.col("start_ns")).median().cast(pl.Int64)
        medians = timeline.tasks.group_by("kind").agg(median_ns=length)
        kinds = (
            kinds_of(timeline.tasks)
            .join(medians, on="kind")
            .select("kind", "count", "total_ns", "min_ns", "median_ns", "max_ns")
            .sort("kind")
        )
        used = utilization(timeline, workload)
        found = study(timeline, also, progress, replayed=False, explained=False, placed=False)
        progress.begin("adding up whole steps")
        wall = wall_clock(timeline, found.ledger)
        give_back()
        overview = Overview.of(timeline)
        return cls(
            timeline, overview, found, kinds, budget(timeline), used, wall, to_next(timeline)
        )

    @classmethod
    def of_pieces(cls, found: Found) -> Self:
        """Return the report of a run that was looked at in parts; without `utilization`.

        Args:
            found: What is known of it.
        """
        return cls(
            found.drawn,
            found.overview,
            found.study,
            found.kinds,
            found.budget,
            None,
            found.wall,
            found.to_next,
        )

    @property
    def bubbles(self) -> BubbleRates:
        """The bubble rates."""
        return self.study.bubbles

    @property
    def unknowable(self) -> str | None:
        """What traces without kernels do not tell, as `analysis.untold_time.unknowable` says it."""
        if self.budget is not None or not self.overview.tasks:
            return None
        return untold(self.timeline.run, some=self.overview.kernels_told)

    @property
    def devices(self) -> Budget | None:
        """What the devices did, where that is what it is about; None of what may be a pipeline."""
        return None if self.study.pipelined else self.budget

    @property
    def ledger(self) -> Ledger | None:
        """Why ranks were in no task; None where it is not known which task waited for which."""
        return None if self.timeline.run.unplaced is not None else self.study.ledger

    def pictured(self) -> list[Pictured]:
        """Return what its picture shows: the first step."""
        return [pictured(self.timeline, max_steps=1)] if len(self.timeline) else []

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, following the schema `SCHEMA`."""
        timeline, table = self.timeline, self.bubbles.table
        run = timeline.run
        overview = self.overview
        alone, following = phase_lengths(self.bubbles), self.to_next
        low, high = overview.span_ns or (None, None)
        return {
            "schema": SCHEMA,
            "run": {
                "sources": [msgspec.to_builtins(origin) for origin in run.origins],
                "schedule": run.schedule,
                "microbatches": run.microbatches,
                "timed": timed(timeline.ranks),
                "common_clock": run.common_clock,
                "clock": msgspec.to_builtins(run.clock),
                "inferred": run.inferred,
                "tasks": overview.tasks,
                "start_ns": low,
                "end_ns": high,
            },
            "ranks": timeline.ranks.join(overview.per_rank.drop("stage"), on="rank", how="left")
            .with_columns(pl.col("tasks").fill_null(0))
            .sort("rank")
            .to_dicts(),
            "steps": overview.steps.to_dicts(),
            "kinds": self.kinds.to_dicts(),
            "device": self.budget.to_dict() if self.budget else None,
            "device_unknown": self.unknowable,
            "devices": self.budget.to_dicts() if self.budget else [],
            "wall_clock": self.wall.to_dict() if self.wall else None,
            "utilization": self.utilization.to_dict() if self.utilization else None,
            "schedule": self._schedule_dict(),
            "bubble": {
                "definitions": {**DEFINITIONS, "ideal": "the same as no_wait, its first name"},
                "overall": self.bubbles.overall.to_dict(),
                "replayed_steps": self.bubbles.replayed,
                "per_rank": [
                    {"rank": rank, **rates.to_dict()}
                    for rank, rates in self.bubbles.per_rank.items()
                ],
                "per_step": [
                    {
                        "step": step,
                        **rates.to_dict(),
                        "length_ns": alone.get(step),
                        "to_next_ns": None if step is None else following.get(step),
                    }
                    for step, rates in self.bubbles.per_step.items()
                ],
                "per_rank_step": [
                    {"step": row["step"], "rank": row["rank"], **rates.to_dict()}
                    for row, rates in zip(
                        table.iter_rows(named=True), self.bubbles.per_rank_step(), strict=True
                    )
                ],
            },
            "why": self._why_dict(),
            "notes": msgspec.to_builtins(run.notes),
            "warnings": [
                msgspec.to_builtins(notice) for notice in (*run.warnings, *self.bubbles.notices)
            ],
        }

    def _why_dict(self) -> dict[str, Any] | None:
        ledger = self.ledger
        if ledger is None or self.devices is not None:
            return None
        return {
            "causes": ledger.totals().to_dicts(),
            "outside_ns": ledger.outside["idle_ns"].sum(),
            "replay_error": ledger.replay_error,
            "steps": ledger.steps,
        }

    def _schedule_dict(self) -> dict[str, Any] | None:
        found, best = self.study.recognition, self.study.ideal
        if found is None:
            return None
        steps = best.steps.to_dicts() if best else []
        return {
            **found.to_dict(),
            "ideal_steps": steps,
            "imputed": best.imputed if best else None,
        }
