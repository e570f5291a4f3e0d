"""Why devices are idle, in words and tables: what `bubblescope why` prints."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bubblescope import units, words
from bubblescope.analysis.causes import Cause
from bubblescope.analysis.findings import INHERENT, Finding, findings
from bubblescope.analysis.shapley import Shares, shares
from bubblescope.analysis.study import Study, study
from bubblescope.console import PlainConsole
from bubblescope.errors import TimelineError
from bubblescope.vocabulary import SHORT, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from bubblescope.analysis.ledger import Ledger
    from bubblescope.schedules import Plan
    from bubblescope.timeline import Timeline

__all__ = ["SCHEMA", "Explanation"]

SCHEMA: Final = "bubblescope.why/1"
"""Name and version of the JSON, described in docs/why.md. Keys are only ever added."""

_INHERENT: Final = [cause.value for cause in INHERENT]
_ROWS: Final = 16
_GAPS: Final = 5
_WARN: Final = 0.005
"""Replay error from which on the replay is not to be trusted without a look."""


class Explanation(msgspec.Struct, frozen=True, eq=False):
    """Why the devices of a run are idle.

    Attributes:
        timeline: The run.
        study: What was worked out about it.
        shares: What each cause costs a step.
        findings: What is to be said.
        language: "en" or "zh".
        limit: Ranks, steps and gaps shown at most.
    """

    timeline: Timeline
    study: Study
    shares: Shares
    findings: tuple[Finding, ...]
    language: str = "en"
    limit: int = _ROWS

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        *,
        also: Sequence[Plan] = (),
        language: str = "en",
        limit: int = _ROWS,
    ) -> Explanation:
        """Explain a run.

        Args:
            timeline: The run.
            also: Schedules to recognise besides the known ones.
            language: "en" or "zh".
            limit: Ranks, steps and gaps shown at most.

        Raises:
            TimelineError: It has no pipeline tasks, or its ranks share no clock.
        """
        known = study(timeline, also)
        cost = shares(timeline, known.recognition) if known.ledger else None
        if known.ledger is None or cost is None:
            raise TimelineError(_why_not(timeline))
        said = tuple(findings(timeline, known, cost))
        return cls(timeline, known, cost, said, language, limit)

    @property
    def ledger(self) -> Ledger:
        """The ledger, which `of` made sure is there."""
        if self.study.ledger is None:
            raise TimelineError(_why_not(self.timeline))
        return self.study.ledger

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
                    **(
                        {
                            "cost_ns": cost.cost_ns,
                            "alone_ns": cost.alone_ns,
                            "last_ns": cost.last_ns,
                        }
                        if (cost := costs.get(Cause(row["cause"])))
                        else {"cost_ns": None, "alone_ns": None, "last_ns": None}
                    ),
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

    def __rich__(self) -> RenderableType:
        return Group(self._words(), self._causes(), self._ranks(), self._longest(), self._replay())

    def __str__(self) -> str:
        out = io.StringIO()
        PlainConsole(file=out, width=110, color_system=None).print(self)
        return out.getvalue()

    def _words(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column()
        styles = {"verdict": "bold", "evidence": "", "advice": "cyan"}
        for finding in self.findings:
            said = Text(words.sentence(finding, self.language), styles[finding.role])
            grid.add_row(words.heading(finding.role, self.language), said)
        return Padding(grid, (0, 0, 1, 0))

    def _causes(self) -> RenderableType:
        columns = ("cause", "idle", "share", "cost", "last", "meaning")
        table = self._table(*columns, left=("cause", "meaning"))
        costs = {share.cause: share for share in self.shares.shares}
        for row in self.ledger.totals().to_dicts():
            cause = Cause(row["cause"])
            share = costs.get(cause)
            table.add_row(
                words.cause_name(cause, self.language),
                units.duration(row["idle_ns"]),
                units.percent(row["share"]),
                units.duration(share.cost_ns) if share else "",
                units.duration(share.last_ns) if share else "",
                words.meaning(cause, self.language),
                style="dim" if cause in INHERENT else "",
            )
        notes = [self._titled("causes", table)]
        least = max(1, self.shares.step_ns // 100)
        strong = [pair for pair in self.shares.interactions if abs(pair.cost_ns) >= least]
        for one, other, cost in strong[:3]:
            both = " + ".join(words.cause_name(cause, self.language) for cause in (one, other))
            notes.append(Text(f"  {both}: {'+' if cost > 0 else ''}{units.duration(cost)}", "dim"))
        if strong:
            notes.append(Text())
        outside = int(self.ledger.outside["idle_ns"].sum())
        if outside:
            said = words.note("outside", self.language, cause=Cause.SYNC, idle_ns=outside)
            notes.append(Padding(Text(said), (0, 0, 1, 2)))
        return Group(*notes)

    def _ranks(self) -> RenderableType:
        sums = self.ledger.table.group_by("rank", "cause").agg(pl.col("idle_ns").sum())
        inherent = pl.col("cause").is_in(_INHERENT)
        ranks = (
            sums.with_columns(other=pl.when(inherent).then(0).otherwise("idle_ns"))
            .sort("other")
            .group_by("rank")
            .agg(
                idle=pl.col("idle_ns").sum(),
                first=pl.when(pl.col("other").last() > 0).then(pl.col("cause").last()),
                other=pl.col("other").sum(),
            )
            .sort("other", "rank", descending=[True, False])
        )
        shown = ranks.head(self.limit)
        grid = self._table("rank", "idle", "other", "mostly", left=("rank", "mostly"))
        for row in shown.to_dicts():
            name = words.cause_name(Cause(row["first"]), self.language) if row["first"] else ""
            idle, other = units.duration(row["idle"]), units.duration(row["other"])
            grid.add_row(str(row["rank"]), idle, other, name)
        parts: list[RenderableType] = [grid]
        if len(shown) < len(ranks):
            more = words.note("more", self.language, count=len(ranks) - len(shown))
            parts.append(Text(more, "dim"))
        return self._titled("ranks", Group(*parts))

    def _longest(self) -> RenderableType:
        gaps = (
            self.ledger.gaps.filter(~pl.col("cause").is_in(_INHERENT))
            .with_columns(length=pl.col("end_ns") - pl.col("start_ns"))
            .sort("length", "start_ns", descending=[True, False])
            .head(_GAPS if self.limit == _ROWS else self.limit)
        )
        if not len(gaps):
            return Group()
        grid = self._table(
            "idle", "cause", "where", "before", "root", left=("cause", "where", "before", "root")
        )
        for row in gaps.to_dicts():
            grid.add_row(
                units.duration(row["length"]),
                words.cause_name(Cause(row["cause"]), self.language),
                words.note(
                    "rank" if row["step"] is None else "step",
                    self.language,
                    rank=row["rank"],
                    step=row["step"],
                ),
                "" if row["task"] is None else self._task(row["task"]),
                self._task(row["root"]),
            )
        return self._titled("gaps", grid)

    def _replay(self) -> RenderableType:
        ledger = self.ledger
        doubtful = ledger.worst_error > _WARN or ledger.worlds.run.left_out > 0
        mean, worst = units.percent(ledger.replay_error), units.percent(ledger.worst_error)
        said = words.note("replay", self.language, mean=mean, worst=worst)
        if doubtful:
            said += words.note("doubt", self.language)
        if ledger.worlds.run.left_out:
            said += words.note("left_out", self.language, count=ledger.worlds.run.left_out)
        if self.shares.steps < self.shares.of:
            steps = {"steps": self.shares.steps, "of": self.shares.of}
            said += words.note("part", self.language, **steps)
        return Text(said, "yellow" if doubtful else "dim")

    def _task(self, row: int) -> str:
        task = self.timeline.tasks.row(row, named=True)
        number = "" if task["microbatch"] is None else str(task["microbatch"])
        stage = "" if task["stage"] is None else f" stage {task['stage']}"
        return f"{SHORT[Kind(task['kind'])]}{number}{stage} (rank {task['rank']})"

    def _table(self, *columns: str, left: tuple[str, ...]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in columns:
            side: Any = "left" if column in left else "right"
            table.add_column(words.heading(column, self.language), justify=side)
        return table

    def _titled(self, key: str, body: RenderableType) -> RenderableType:
        title = Text(words.heading(key, self.language), "bold")
        return Group(title, Padding(body, (0, 0, 1, 2)))


def _why_not(timeline: Timeline) -> str:
    if not timeline.run.common_clock:
        return (
            "the ranks share no clock, so what waited for what cannot be told; "
            "--clock solve tries to find one"
        )
    return "no ledger can be made of a run without forwards and backwards"
