"""The report in a terminal or a notebook."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from rich.console import Group
from rich.table import Table
from rich.text import Text

from bubblescope.analysis import report
from bubblescope.analysis.device_words import headline
from bubblescope.analysis.idle.causes import INHERENT, Cause
from bubblescope.analysis.rates import DEFINITIONS, BubbleRates, Rates
from bubblescope.analysis.step_lengths import phase_lengths
from bubblescope.model import units
from bubblescope.model.kinds import SHORT, Kind
from bubblescope.render.text import lanes
from bubblescope.render.text.device import device_line, device_section, steps_section
from bubblescope.render.text.face import Face
from bubblescope.render.text.sections import (
    bar_of,
    inferred_of,
    inventory,
    table_of,
    times_of,
    titled,
    warnings_of,
    what_schedule,
)
from bubblescope.render.text.utilization import utilization_section
from bubblescope.render.wording import counted

if TYPE_CHECKING:
    from rich.console import RenderableType


_ROWS: Final = 24
_NAMES: Final = ("makespan", "span", "longest_span", "over_ideal", "no_wait", "excess")
_ALONE: Final = ("makespan", "over_ideal")
"""Those of a device that waits for no other: its span is that of all, and it follows no schedule."""
_DEPARTURES: Final = 5
_CAUSES: Final = 4
_LEAST_SPENT: Final = 0.001
"""Share of a step from which on what ranks were in is listed."""


class Report(Face, report.Report, frozen=True, eq=False):
    """What `bubblescope report` prints."""

    def shown(self, *, everything: bool = False) -> RenderableType:
        """Return the report to be printed.

        Args:
            everything: With all ranks, steps and departures.
        """
        limit = sys.maxsize if everything else _ROWS
        parts: list[RenderableType] = [self._heading()]
        if self.budget is not None:
            parts.append(device_section(self.budget, limit))
        parts.append(utilization_section(self.utilization))
        if self.devices is not None:
            parts += [self._lanes(limit), steps_section(self.devices, limit)]
            parts += [self._kinds()] if self.overview.tasks else []
        elif self.overview.tasks and not self.bubbles.per_rank:
            parts += [self._lanes(limit), self._whole_step(), self._kinds(), _NO_PASSES]
        elif self.overview.tasks:
            parts += [
                self._lanes(limit),
                self._rates(),
                self._whole_step(),
                self._schedule(limit),
                self._why(),
                self._ranks(limit),
                self._steps(limit),
                self._kinds(),
            ]
        else:
            parts.append(inventory(self.timeline))
        run = self.timeline.run
        unknown = self.unknowable
        if unknown is not None:
            parts.append(Text.assemble(("unknown  ", "yellow"), unknown))
        return Group(*parts, inferred_of(run), warnings_of((*run.warnings, *self.bubbles.notices)))

    def headline(self) -> str:
        """Return schedule, size and bubble rate in one line."""
        if self.devices is not None:
            return ", ".join([*self._counted(), headline(self.devices.overall)])
        overall = self.bubbles.overall
        rate = units.percent(overall.span if overall.makespan is None else overall.makespan)
        return ", ".join([*self._counted(), f"bubble rate {rate}"])

    def _counted(self) -> list[str]:
        return counted(self.timeline, self.overview, of_devices=self.devices is not None)

    def _heading(self) -> RenderableType:
        timeline = self.timeline
        origins = timeline.run.origins
        made = sorted({(origin.format, origin.version or "") for origin in origins})
        source = ", ".join(f"{name} {version}".strip() for name, version in made)
        return Group(
            Text.assemble(("bubblescope  ", "bold"), " · ".join(self._counted())),
            *([device_line(self.budget)] if self.budget is not None else []),
            *times_of(timeline),
            *self._slow_rank(),
            *[Text(f"read from {units.count(len(origins), 'trace')} ({source})", "dim")]
            * bool(origins),
            Text(),
        )

    def _slow_rank(self) -> list[Text]:
        """Return the line that names the rank that holds up the others, if there is one."""
        slow = self.study.slow_rank if self.study.pipelined else None
        if slow is None or not slow.stands_out:
            return []
        return [Text.assemble(("slow     ", "yellow"), str(slow))]

    def _lanes(self, limit: int) -> RenderableType:
        most = limit if limit > _ROWS else lanes.LANES
        found = lanes.Lanes.of(
            self.timeline,
            most=most,
            overview=self.overview,
            of_devices=self.devices is not None,
            among=self.bubbles.rated,
        )
        return Group() if found is None else titled("Timeline", found, found.said)

    def _rates(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        overall, found = self.bubbles.overall, self.study.recognition
        alone = found is not None and found.devices == len(self.bubbles.per_rank) == 1
        for name in _ALONE if alone else _NAMES:
            style = "bold" if name == "makespan" else ""
            grid.add_row(
                Text(name.replace("_", " "), style),
                Text(_rate(overall, name).rjust(8), style),
                _defined(DEFINITIONS[name], overall.unknown.get(name)),
            )
        about = "share of the tasks' time in which a kernel was running"
        grid.add_row(
            "kernel share",
            units.percent(overall.kernel_share).rjust(8),
            _defined(about, overall.unknown.get("kernel_share")),
        )
        about = "from first forward to last backward of a step, optimizer left out"
        return titled("Bubble rate", grid, about)

    def _schedule(self, limit: int) -> RenderableType:
        found = self.study.recognition
        if found is None:
            said = Text("no forward names its stage and micro-batch, so it is not known", "dim")
            return titled("Schedule", said)
        lines: list[Text] = [what_schedule(found)]
        if found.schedule is None:
            why = "none of the known ones" if found.devices > 1 else "one device, so no pipeline"
            lines.append(Text(f"{why}; what ran in one step, device by device:"))
            lines += [
                Text(f"device {device}  {order}", "dim", no_wrap=True, overflow="ellipsis")
                for device, order in list(found.order.items())[:limit]
            ]
            return titled("Schedule", Group(*lines))
        count = found.departed
        lines.append(
            Text(
                f"all of {found.operations:,} operations in its order"
                if not count
                else f"{count:,} of {found.operations:,} operations out of its order"
            )
        )
        if found.missing:
            lines[-1].append(f", {found.missing:,} more of its operations not in the trace")
        shown = found.departures if limit > _ROWS else found.departures[:_DEPARTURES]
        lines += [Text(f"  {departure}", "yellow") for departure in shown]
        if len(shown) < count:
            lines.append(Text(f"  and {count - len(shown):,} more; --all shows them", "dim"))
        return titled("Schedule", Group(*lines))

    def _whole_step(self) -> RenderableType:
        """Return what ranks were in, from the start of a step to the start of the next."""
        if self.wall is None:
            return Group()
        table = table_of("", "a step", "share", "outside the pipeline phase", left=("",))
        for row in self.wall.totals().filter(pl.col("share") >= _LEAST_SPENT).to_dicts():
            table.add_row(
                row["what"],
                units.duration(row["per_step_ns"]),
                units.percent(row["share"]),
                units.duration(row["outside_ns"]) if row["outside_ns"] else "",
            )
        whole = units.duration(self.wall.step_ns)
        about = f"{whole} from its start to the next one's, the mean of all ranks and whole steps"
        return titled("Step", table, about)

    def _why(self) -> RenderableType:
        ledger = self.ledger
        if ledger is None:
            return Group()
        totals = {Cause(row["cause"]): row for row in ledger.totals().to_dicts()}
        inherent = [totals.pop(cause) for cause in INHERENT if cause in totals]
        table = Table.grid(padding=(0, 2))
        idle = sum(row["idle_ns"] for row in inherent)
        share = sum(row["share"] for row in inherent)
        if inherent:
            schedule = "inherent to the schedule"
            if ledger.unseen:
                schedule = "inherent to the schedule, as far as is known"
            table.add_row(schedule, units.duration(idle), units.percent(share), style="dim")
        for row in [row for row in totals.values() if row["idle_ns"]][:_CAUSES]:
            table.add_row(
                row["cause"], units.duration(row["idle_ns"]).rjust(8), units.percent(row["share"])
            )
        off = units.percent(ledger.replay_error)
        return titled("Why idle", table, _about_causes(self.bubbles, off))

    def _ranks(self, limit: int) -> RenderableType:
        ranks = self.timeline.ranks
        # One of them is enough to find a rank, and a terminal has room for one.
        places = [name for name in ("host", "device") if ranks[name].n_unique() > 1][:1]
        replayed = ["no wait"] * (self.bubbles.overall.no_wait is not None)
        bar = [""] * (not self.bubbles.overall.makespan_error)
        columns = ("rank", "stage", *places, "busy", "idle", "span", *replayed, "makespan", *bar)
        table = table_of(*columns)
        facts = {row["rank"]: row for row in ranks.to_dicts()}
        rows = list(self.bubbles.per_rank.items())
        shown = _worst(rows, limit)
        for rank, rates in sorted(shown, key=lambda row: _pipeline_order(facts[row[0]])):
            fact = facts[rank]
            table.add_row(
                str(rank),
                units.stages(fact["stages"] or []),
                *(
                    Text(units.optional(fact[place]), no_wrap=True, overflow="ellipsis")
                    for place in places
                ),
                units.duration(rates.busy_ns),
                units.duration(rates.idle_ns),
                units.percent(rates.span),
                *(units.percent(rates.no_wait) for _ in replayed),
                _rate(rates, "makespan"),
                *(bar_of(rates.makespan) for _ in bar),
            )
        return titled("Ranks", table, _few(shown, rows, "ranks"))

    def _steps(self, limit: int) -> RenderableType:
        replayed = ["no wait", "excess"] * (self.bubbles.overall.no_wait is not None)
        table = table_of("step", "length", "span", *replayed, "makespan", "")
        rows = list(self.bubbles.per_step.items())
        shown = _worst(rows, limit)
        lengths = phase_lengths(self.bubbles)
        for step, rates in sorted(shown, key=lambda row: -1 if row[0] is None else row[0]):
            table.add_row(
                units.optional(step),
                units.duration(lengths[step]),
                units.percent(rates.span),
                *(_rate(rates, name.replace(" ", "_")) for name in (*replayed, "makespan")),
                bar_of(rates.makespan),
            )
        return titled("Steps", table, _few(shown, rows, "steps"))

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


_NO_PASSES: Final = Text(
    "No forward or backward takes any time in these traces, so there are no bubble rates. If ranges "
    "are forwards or backwards (`bubblescope names` lists them), describe them with --names.\n"
)


def _about_causes(bubbles: BubbleRates, off: str) -> str:
    """Say what the shares of causes are of, in how many of the steps if not in all."""
    if bubbles.replayed is None:
        return f"shares of idle time; replay {off} off; bubblescope why has the evidence"
    some, of = len(bubbles.replayed), len(bubbles.per_step)
    return f"shares of idle time in {some} of {of} steps; replay {off} off; bubblescope why has all"


def _defined(definition: str, unknown: str | None) -> Text:
    """Return what a rate is, and why it is not known where it is not."""
    text = Text(definition, "dim")
    return text.append(f": {unknown}", "yellow") if unknown else text


def _rate(rates: Rates, name: str) -> str:
    """Write a rate, with how far it may be off because clocks differ."""
    return units.uncertain(getattr(rates, name), getattr(rates, f"{name}_error", None))


def _pipeline_order(fact: dict[str, Any]) -> tuple[int, int]:
    return (min(fact["stages"] or [fact["rank"]]), fact["rank"])


def _few(shown: list[Any], of: list[Any], what: str) -> str:
    if len(shown) == len(of):
        return ""
    return f"the {len(shown)} with the largest bubble of {len(of)} {what}"


def _worst(rows: list[tuple[Any, Rates]], limit: int) -> list[tuple[Any, Rates]]:
    return sorted(rows, key=lambda row: -(row[1].makespan or row[1].span or 0))[:limit]
