"""Why devices are idle, what that costs, and what to do about it."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.analysis import words
from bubblescope.analysis.device_budget import budget
from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.idle.evidence import Evidence
from bubblescope.analysis.idle.longest_gaps import longest
from bubblescope.analysis.idle.shares import Shares, shares
from bubblescope.analysis.losses import losses
from bubblescope.analysis.picture_data import pictured
from bubblescope.analysis.study import Study, ledger_of, study
from bubblescope.analysis.wall_clock import wall_clock
from bubblescope.analysis.why.device_findings import first_step, knows_steps, of_devices
from bubblescope.analysis.why.findings import of_whole_steps, spoken_of
from bubblescope.model.memory import give_back
from bubblescope.model.progress import SILENT
from bubblescope.model.timing import timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.analysis.device_budget import Budget
    from bubblescope.analysis.finding import Finding
    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.losses import Losses
    from bubblescope.analysis.picture_data import Pictured
    from bubblescope.analysis.pieces.study_of_pieces import Found
    from bubblescope.analysis.wall_clock import WallClock
    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan

SCHEMA: Final = "bubblescope.why/1"
"""Name and version of the JSON, described in docs/why.md. Keys are only ever added."""


class Explanation(msgspec.Struct, frozen=True, eq=False):
    """Why the devices of a run are idle.

    Attributes:
        timeline: The run.
        study: What was worked out about it.
        shares: What each cause costs a step; None without a pipeline.
        findings: What is to be said.
        budget: What the devices spent their time on; None if the traces do not tell.
        losses: What makes its steps long, all causes together; None likewise.
        wall: What ranks were in, in whole steps; None as of `analysis.wall_clock.wall_clock`.
        language: "en" or "zh".
        gaps: The longest gaps, of a run that was looked at in parts; None of another.
        gap_count: How many such a run has.
    """

    timeline: Timeline
    study: Study
    shares: Shares | None
    findings: tuple[Finding, ...]
    budget: Budget | None
    losses: Losses | None
    wall: WallClock | None = None
    language: str = "en"
    gaps: pl.DataFrame | None = None
    gap_count: int = 0

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        *,
        also: Sequence[Plan] = (),
        language: str = "en",
        known: Study | None = None,
        progress: Progress = SILENT,
    ) -> Self:
        """Explain a run.

        Args:
            timeline: The run.
            also: Schedules to recognise besides the known ones.
            language: "en" or "zh".
            known: What was worked out about the run already; by default it is now.
            progress: Is told what is being worked out.

        Raises:
            TimelineError: It has no pipeline tasks, or its ranks share no clock, and its traces do not
                tell what devices did.
        """
        known = known or study(timeline, also, progress, replayed=False, placed=False)
        progress.begin("weighing causes")
        spent = budget(timeline)
        if spent is not None and not known.pipelined:
            held = losses(timeline, None)
            stepped = knows_steps(spent, timeline.run)
            said = of_devices(spent, held, first_step(spent), pipelined=False, stepped=stepped)
            return cls(timeline, known, None, tuple(said), spent, held, language=language)
        ledger = ledger_of(known, timeline)
        if ledger.told is not None:
            cost, shown = ledger.told.shares, ledger.told.evidence
        else:
            cost = shares(ledger.counterfactuals)
            shown = Evidence.of_steps(timeline, ledger.counterfactuals, spoken_of(ledger, cost))
        wall = wall_clock(timeline, known.ledger)
        give_back()
        said = of_whole_steps(timeline, known, cost, shown, wall)
        held = losses(timeline, known.ledger)
        if spent is not None and held is not None:
            said = of_devices(spent, held, said, pipelined=True, stepped=True)
        return cls(timeline, known, cost, tuple(said), spent, held, wall, language)

    @classmethod
    def of_pieces(cls, found: Found, language: str = "en") -> Self:
        """Explain a run that was looked at in parts.

        Args:
            found: What is known of it.
            language: "en" or "zh".

        Raises:
            TimelineError: As `of`.
        """
        known, spent, held = found.study, found.budget, found.losses
        if spent is not None and not known.pipelined:
            stepped = knows_steps(spent, found.drawn.run)
            said = of_devices(spent, held, first_step(spent), pipelined=False, stepped=stepped)
            return cls(found.drawn, known, None, tuple(said), spent, held, language=language)
        ledger_of(known, found.drawn)
        cost, shown, wall = found.shares, found.evidence, found.wall
        if cost is None or shown is None:
            raise ValueError("what causes cost was not asked for")
        said = of_whole_steps(found.drawn, known, cost, shown, wall)
        if spent is not None and held is not None:
            said = of_devices(spent, held, said, pipelined=True, stepped=True)
        return cls(
            found.drawn,
            known,
            cost,
            tuple(said),
            spent,
            held,
            wall,
            language,
            found.gaps,
            found.gap_count,
        )

    def longest(self, count: int) -> pl.DataFrame:
        """Return the longest gaps, as `analysis.idle.longest_gaps.longest` does.

        Args:
            count: How many; of a run that was looked at in parts, there are
                `analysis.idle.longest_gaps.MOST`.
        """
        if self.gaps is not None or self.ledger is None:
            return pl.DataFrame() if self.gaps is None else self.gaps.head(count)
        return longest(self.ledger.gaps_by_part(), self.timeline, count)

    @property
    def stepped(self) -> bool:
        """Whether what devices spent is of steps, and not of a recording without any."""
        spent = self.budget
        return self.study.pipelined or spent is None or knows_steps(spent, self.timeline.run)

    @property
    def ledger(self) -> Ledger | None:
        """Why ranks were in no task of the pipeline; None without a pipeline."""
        return self.study.ledger if self.shares is not None else None

    def pictured(self) -> list[Pictured]:
        """Return what its picture shows: the first step, and why its ranks were idle."""
        ledger = self.ledger if self.gaps is None else None
        shown = pictured(self.timeline, max_steps=1, ledger=ledger)
        return [shown] if len(self.timeline) else []

    def to_dict(self, *, gaps: bool = False) -> dict[str, Any]:
        """Return the explanation as plain values, following the schema `SCHEMA`.

        Args:
            gaps: With every stretch of idle time; not of a run that was looked at in parts.
        """
        ledger, shares = self.ledger, self.shares
        recognition = self.study.recognition
        costs = {share.cause: share for share in shares.shares} if shares else {}
        said: dict[str, Any] = {
            "schema": SCHEMA,
            "timed": timed(self.timeline.ranks),
            "schedule": recognition.schedule if recognition else None,
            "idle_ns": ledger.table["idle_ns"].sum() if ledger else None,
            "outside_ns": ledger.outside["idle_ns"].sum() if ledger else None,
            "replay_error": ledger.replay_error if ledger else None,
            "worst_replay_error": ledger.worst_error if ledger else None,
            "step_ns": shares.step_ns if shares else None,
            "replayed_ns": shares.replayed_ns if shares else None,
            "bare_ns": shares.bare_ns if shares else None,
            "replayed_steps": shares.steps if shares else None,
            "steps": shares.of if shares else self.study.bubbles.table["step"].n_unique(),
            "causes": [
                {
                    **row,
                    "meaning": words.meaning(Cause(row["cause"]), self.language),
                    **{
                        name: getattr(costs.get(Cause(row["cause"])), name, None)
                        for name in ("cost_ns", "alone_ns", "last_ns")
                    },
                }
                for row in (ledger.totals().to_dicts() if ledger else [])
            ],
            "interactions": [
                {"one": one.value, "other": other.value, "cost_ns": cost}
                for one, other, cost in (shares.interactions if shares else ())
            ],
            "findings": [
                {
                    "role": finding.role,
                    "key": finding.key,
                    "text": words.sentence(finding, self.language),
                    "values": {
                        key: value.value if isinstance(value, Enum) else value
                        for key, value in finding.values.items()
                    },
                    "tasks": list(finding.tasks),
                }
                for finding in self.findings
            ],
            "device": self.budget.to_dict() if self.budget else None,
            "wall_clock": self.wall.to_dict() if self.wall else None,
            "losses": self.losses.ranked().to_dicts() if self.losses else [],
            "per_rank_step": ledger.table.to_dicts() if ledger else [],
            "outside": ledger.outside.to_dicts() if ledger else [],
            "warnings": [
                msgspec.to_builtins(notice)
                for notice in (*self.timeline.run.warnings, *self.study.bubbles.notices)
            ],
        }
        if gaps and ledger and self.gaps is None:
            said["gaps"] = ledger.gaps.to_dicts()
        return said
