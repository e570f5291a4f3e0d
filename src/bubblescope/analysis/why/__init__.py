"""Why devices are idle, what that costs, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.analysis.idle.causes import Cause
from bubblescope.analysis.idle.shares import Shares, shares
from bubblescope.analysis.pictured import pictured
from bubblescope.analysis.study import Study, ledger_of, study
from bubblescope.analysis.why import words
from bubblescope.analysis.why.findings import Finding, findings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.pictured import Pictured
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan

SCHEMA: Final = "bubblescope.why/1"
"""Name and version of the JSON, described in docs/why.md. Keys are only ever added."""


class Explanation(msgspec.Struct, frozen=True, eq=False):
    """Why the devices of a run are idle.

    Attributes:
        timeline: The run.
        study: What was worked out about it.
        shares: What each cause costs a step.
        findings: What is to be said.
        language: "en" or "zh".
    """

    timeline: Timeline
    study: Study
    shares: Shares
    findings: tuple[Finding, ...]
    language: str = "en"

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        *,
        also: Sequence[Plan] = (),
        language: str = "en",
    ) -> Self:
        """Explain a run.

        Args:
            timeline: The run.
            also: Schedules to recognise besides the known ones.
            language: "en" or "zh".

        Raises:
            TimelineError: It has no pipeline tasks, or its ranks share no clock.
        """
        known = study(timeline, also)
        cost = shares(timeline, ledger_of(known, timeline).counterfactuals)
        said = tuple(findings(timeline, known, cost))
        return cls(timeline, known, cost, said, language)

    @property
    def ledger(self) -> Ledger:
        """The ledger, which `of` made sure is there."""
        return ledger_of(self.study, self.timeline)

    def pictured(self) -> list[Pictured]:
        """Return what its picture shows: the first step."""
        return [pictured(self.timeline, max_steps=1)]

    def to_dict(self, *, gaps: bool = False) -> dict[str, Any]:
        """Return the explanation as plain values, following the schema `SCHEMA`.

        Args:
            gaps: With every stretch of idle time.
        """
        ledger = self.ledger
        costs = {share.cause: share for share in self.shares.shares}
        outside = ledger.outside["idle_ns"].sum()
        said: dict[str, Any] = {
            "schema": SCHEMA,
            "schedule": self.study.recognition.schedule if self.study.recognition else None,
            "idle_ns": ledger.table["idle_ns"].sum(),
            "outside_ns": outside,
            "replay_error": ledger.replay_error,
            "worst_replay_error": ledger.worst_error,
            "step_ns": self.shares.step_ns,
            "bare_ns": self.shares.bare_ns,
            "replayed_steps": self.shares.steps,
            "steps": self.shares.of,
            "causes": [
                {
                    **row,
                    "meaning": words.meaning(Cause(row["cause"]), self.language),
                    **{
                        name: getattr(costs.get(Cause(row["cause"])), name, None)
                        for name in ("cost_ns", "alone_ns", "last_ns")
                    },
                }
                for row in ledger.totals().to_dicts()
            ],
            "interactions": [
                {"one": one.value, "other": other.value, "cost_ns": cost}
                for one, other, cost in self.shares.interactions
            ],
            "findings": [
                {
                    "role": finding.role,
                    "key": finding.key,
                    "text": words.sentence(finding, self.language),
                    "values": {
                        key: value.value if isinstance(value, Cause) else value
                        for key, value in finding.values.items()
                    },
                    "tasks": [self.timeline.tasks.row(row, named=True) for row in finding.tasks],
                }
                for finding in self.findings
            ],
            "per_rank_step": ledger.table.to_dicts(),
            "outside": ledger.outside.to_dicts(),
        }
        if gaps:
            said["gaps"] = ledger.gaps.to_dicts()
        return said
