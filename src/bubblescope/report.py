"""The report: bubble rates and the facts around them, for a terminal, a notebook or a program."""

from __future__ import annotations

import html
import io
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bubblescope import terminal, units
from bubblescope.analysis.bubbles import DEFINITIONS, Bubbles, Rates
from bubblescope.analysis.causes import Cause
from bubblescope.analysis.findings import INHERENT
from bubblescope.analysis.study import Study, study
from bubblescope.console import PlainConsole
from bubblescope.sections import bar_of, facts, inventory, table_of, titled, what_schedule
from bubblescope.vocabulary import SHORT, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from bubblescope.schedules import Plan
    from bubblescope.timeline import Timeline

__all__ = ["SCHEMA", "Report", "facts", "inventory", "what_schedule"]

SCHEMA: Final = "bubblescope.report/1"
"""Name and version of the JSON report, described in docs/report.md. Keys are only ever added."""

_ROWS: Final = 24
_NAMES: Final = ("makespan", "span", "over_ideal", "ideal", "excess")
_DEPARTURES: Final = 5
_CAUSES: Final = 4
_EXPLAINED: Final = 30_000
"""Tasks whose idle time is explained at most: `bubblescope why` explains all."""


class Report(msgspec.Struct, frozen=True, eq=False):
    """Everything that `bubblescope report` says about a timeline.

    Print it, show it in a notebook, or take `to_dict()` for a program.

    Attributes:
        timeline: What the report is about.
        study: What was worked out about it: schedule, ideal, bubble rates.
        kinds: Frame with kind, count, total_ns, min_ns, median_ns and max_ns of the tasks.
        limit: Ranks and steps shown in the terminal at most; the JSON always has them all.
    """

    timeline: Timeline
    study: Study
    kinds: pl.DataFrame
    limit: int = _ROWS

    @classmethod
    def of(cls, timeline: Timeline, *, limit: int = _ROWS, also: Sequence[Plan] = ()) -> Report:
        """Analyse a timeline.

        Args:
            timeline: The run.
            limit: Ranks and steps shown in the terminal at most.
            also: Schedules to recognise besides the known ones.
        """
        length = pl.col("end_ns") - pl.col("start_ns")
        kinds = (
            timeline.tasks.group_by("kind")
            .agg(
                count=pl.len(),
                total_ns=length.sum(),
                min_ns=length.min(),
                median_ns=length.median().cast(pl.Int64),
                max_ns=length.max(),
            )
            .sort("kind")
        )
        return cls(timeline, study(timeline, also, most=_EXPLAINED), kinds, limit)

    @property
    def bubbles(self) -> Bubbles:
        """The bubble rates."""
        return self.study.bubbles

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, following the schema `SCHEMA`."""
        timeline, table = self.timeline, self.bubbles.table
        run = timeline.run
        counts = timeline.tasks.group_by("rank").agg(tasks=pl.len())
        steps = (
            timeline.tasks.filter(pl.col("step").is_not_null())
            .group_by("step")
            .agg(start_ns=pl.col("start_ns").min(), end_ns=pl.col("end_ns").max(), tasks=pl.len())
            .sort("step")
        )
        return {
            "schema": SCHEMA,
            "run": {
                "sources": [msgspec.to_builtins(origin) for origin in run.origins],
                "schedule": run.schedule,
                "microbatches": run.microbatches,
                "common_clock": run.common_clock,
                "clock": msgspec.to_builtins(run.clock),
                "inferred": run.inferred,
                "tasks": len(timeline),
                "start_ns": timeline.start_ns if len(timeline) else None,
                "end_ns": timeline.end_ns if len(timeline) else None,
            },
            "ranks": timeline.ranks.join(counts, on="rank", how="left")
            .with_columns(pl.col("tasks").fill_null(0))
            .sort("rank")
            .to_dicts(),
            "steps": steps.to_dicts(),
            "kinds": self.kinds.to_dicts(),
            "schedule": self._schedule_dict(),
            "bubble": {
                "definitions": DEFINITIONS,
                "overall": msgspec.to_builtins(self.bubbles.overall),
                "per_rank": [
                    {"rank": rank, **msgspec.to_builtins(rates)}
                    for rank, rates in self.bubbles.per_rank.items()
                ],
                "per_step": [
                    {"step": step, **msgspec.to_builtins(rates)}
                    for step, rates in self.bubbles.per_step.items()
                ],
                "per_rank_step": [
                    {"step": row["step"], "rank": row["rank"], **msgspec.to_builtins(rates)}
                    for row, rates in zip(
                        table.iter_rows(named=True), self.bubbles.per_rank_step(), strict=True
                    )
                ],
            },
            "why": self._why_dict(),
            "warnings": [msgspec.to_builtins(notice) for notice in run.warnings],
        }

    def _why_dict(self) -> dict[str, Any] | None:
        ledger = self.study.ledger
        if ledger is None:
            return None
        return {
            "causes": ledger.totals().to_dicts(),
            "outside_ns": ledger.outside["idle_ns"].sum(),
            "replay_error": ledger.replay_error,
            "steps": self.study.explained,
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

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [self._headline()]
        if len(self.timeline):
            parts += [
                self._lanes(),
                self._rates(),
                self._schedule(),
                self._why(),
                self._ranks(),
                self._steps(),
                self._kinds(),
            ]
        else:
            parts.append(inventory(self.timeline))
        parts.append(self._notes())
        return Group(*parts)

    def __str__(self) -> str:
        out = io.StringIO()
        PlainConsole(file=out, width=110, color_system=None).print(self)
        return out.getvalue()

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{name}</th>"
            f"<td>{units.uncertain(rate, self._error(name))}</td>"
            f"<td style='text-align:left'>{html.escape(DEFINITIONS[name])}</td></tr>"
            for name, rate in self._overall()
        )
        notes = "".join(
            f"<li>{html.escape(notice.message)}</li>" for notice in self.timeline.run.warnings
        )
        return f"<table><caption>bubble rate</caption>{rows}</table><ul>{notes}</ul>"

    def _overall(self) -> list[tuple[str, float | None]]:
        return [(name, getattr(self.bubbles.overall, name)) for name in _NAMES]

    def _error(self, name: str) -> float | None:
        """Return how far a rate of the whole run may be off because clocks differ."""
        error: float | None = getattr(self.bubbles.overall, f"{name}_error", None)
        return error

    def _headline(self) -> RenderableType:
        timeline = self.timeline
        made = sorted({(origin.format, origin.version or "") for origin in timeline.run.origins})
        source = ", ".join(f"{name} {version}".strip() for name, version in made)
        return Group(
            Text.assemble(("bubblescope  ", "bold"), " · ".join(facts(timeline))),
            Text(f"read from {units.count(len(timeline.run.origins), 'trace')} ({source})", "dim"),
            Text(),
        )

    def _lanes(self) -> RenderableType:
        most = self.limit if self.limit > _ROWS else terminal.LANES
        lanes = terminal.Lanes.of(self.timeline, most=most)
        if lanes is None:
            return Group()
        title = Text.assemble(("Timeline", "bold"), (f"  {lanes.said}", "dim"))
        return Group(title, Padding(lanes, (0, 0, 1, 2)))

    def _rates(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        for name, rate in self._overall():
            style = "bold" if name == "makespan" else ""
            grid.add_row(
                Text(name, style),
                Text(units.uncertain(rate, self._error(name)).rjust(8), style),
                Text(DEFINITIONS[name], "dim"),
            )
        share = self.bubbles.overall.kernel_share
        grid.add_row(
            "kernel share",
            units.percent(share).rjust(8),
            Text("share of the tasks' time in which a kernel was running", "dim"),
        )
        title = Text.assemble(
            ("Bubble rate", "bold"),
            ("  from first forward to last backward of a step, optimizer left out", "dim"),
        )
        return Group(title, Padding(grid, (0, 0, 1, 2)))

    def _schedule(self) -> RenderableType:
        found = self.study.recognition
        if found is None:
            said = Text("no forward names its stage and micro-batch, so it is not known", "dim")
            return titled("Schedule", said)
        lines: list[Text] = [what_schedule(found)]
        if found.schedule is None:
            lines.append(Text("none of the known ones; what ran in one step, device by device:"))
            lines += [
                Text(f"device {device}  {order}", "dim", no_wrap=True, overflow="ellipsis")
                for device, order in list(found.order.items())[: self.limit]
            ]
            return titled("Schedule", Group(*lines))
        count = len(found.departures)
        lines.append(
            Text(
                f"all of {found.operations:,} operations in its order"
                if not count
                else f"{count:,} of {found.operations:,} operations out of its order"
            )
        )
        if found.missing:
            lines[-1].append(f", {found.missing:,} more of its operations not in the trace")
        shown = found.departures if self.limit > _ROWS else found.departures[:_DEPARTURES]
        lines += [Text(f"  {departure}", "yellow") for departure in shown]
        if len(shown) < count:
            lines.append(Text(f"  and {count - len(shown):,} more; --all shows them", "dim"))
        return titled("Schedule", Group(*lines))

    def _why(self) -> RenderableType:
        ledger = self.study.ledger
        if ledger is None:
            return Group()
        totals = {Cause(row["cause"]): row for row in ledger.totals().to_dicts()}
        inherent = [totals.pop(cause) for cause in INHERENT if cause in totals]
        table = Table.grid(padding=(0, 2))
        idle = sum(row["idle_ns"] for row in inherent)
        share = sum(row["share"] for row in inherent)
        if inherent:
            schedule = "inherent to the schedule"
            table.add_row(schedule, units.duration(idle), units.percent(share), style="dim")
        for row in list(totals.values())[:_CAUSES]:
            table.add_row(
                row["cause"], units.duration(row["idle_ns"]).rjust(8), units.percent(row["share"])
            )
        about = f"replay {units.percent(ledger.replay_error)} off; bubblescope why has the evidence"
        if self.study.explained < len(self.timeline.steps):
            about = f"of {units.count(self.study.explained, 'step')}; {about}, of all"
        title = Text.assemble(("Why idle", "bold"), (f"  {about}", "dim"))
        return Group(title, Padding(table, (0, 0, 1, 2)))

    def _ranks(self) -> RenderableType:
        ranks = self.timeline.ranks
        # One of them is enough to find a rank, and a terminal has room for one.
        places = [name for name in ("host", "device") if ranks[name].n_unique() > 1][:1]
        ideal = ["ideal"] * (self.bubbles.overall.ideal is not None)
        bar = [""] * (not self.bubbles.overall.makespan_error)
        columns = ("rank", "stage", *places, "busy", "idle", "span", *ideal, "makespan", *bar)
        table = table_of(*columns)
        facts = {row["rank"]: row for row in ranks.to_dicts()}
        rows = list(self.bubbles.per_rank.items())
        shown = _worst(rows, self.limit)
        for rank, rates in sorted(shown, key=lambda row: _pipeline_order(facts[row[0]])):
            fact = facts[rank]
            table.add_row(
                str(rank),
                _stages(fact["stages"]),
                *(Text(units.optional(fact[place])) for place in places),
                units.duration(rates.busy_ns),
                units.duration(rates.idle_ns),
                units.percent(rates.span),
                *(units.percent(rates.ideal) for _ in ideal),
                units.uncertain(rates.makespan, rates.makespan_error),
                *(bar_of(rates.makespan) for _ in bar),
            )
        return titled("Ranks", table, len(rows), len(shown), "ranks")

    def _steps(self) -> RenderableType:
        ideal = ["ideal", "excess"] * (self.bubbles.overall.ideal is not None)
        table = table_of("step", "length", "span", *ideal, "makespan", "")
        rows = list(self.bubbles.per_step.items())
        shown = _worst(rows, self.limit)
        ranks = self.bubbles.table.group_by("step").len()
        ranks_of = dict(ranks.iter_rows())
        for step, rates in sorted(shown, key=lambda row: -1 if row[0] is None else row[0]):
            length_ns = rates.makespan_ns
            table.add_row(
                units.optional(step),
                units.duration(length_ns and length_ns // ranks_of[step]),
                units.percent(rates.span),
                *(
                    units.uncertain(getattr(rates, name), getattr(rates, f"{name}_error", None))
                    for name in ideal
                ),
                units.uncertain(rates.makespan, rates.makespan_error),
                bar_of(rates.makespan),
            )
        return titled("Steps", table, len(rows), len(shown), "steps")

    def _kinds(self) -> RenderableType:
        table = table_of("kind", "", "count", "total", "shortest", "median", "longest")
        for row in self.kinds.iter_rows(named=True):
            table.add_row(
                row["kind"],
                SHORT[Kind(row["kind"])],
                f"{row['count']:,}",
                *(units.duration(row[f"{key}_ns"]) for key in ("total", "min", "median", "max")),
            )
        return titled("Tasks", table)

    def _notes(self) -> RenderableType:
        run = self.timeline.run
        lines = [
            Text.assemble(("inferred  ", "cyan"), f"{field}: {how}")
            for field, how in run.inferred.items()
        ]
        lines += [Text.assemble(("warning  ", "yellow"), notice.message) for notice in run.warnings]
        return Group(*lines)


def _pipeline_order(fact: dict[str, Any]) -> tuple[int, int]:
    return (min(fact["stages"] or [fact["rank"]]), fact["rank"])


def _stages(stages: list[int] | None) -> str:
    return ", ".join(map(str, stages)) if stages else "?"


def _worst(rows: list[tuple[Any, Rates]], limit: int) -> list[tuple[Any, Rates]]:
    return sorted(rows, key=lambda row: -(row[1].makespan or row[1].span or 0))[:limit]
