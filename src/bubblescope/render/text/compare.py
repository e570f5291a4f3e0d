"""What changed between two runs, as tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bubblescope.analysis import compare
from bubblescope.analysis.compare import GROUPS
from bubblescope.analysis.device_measures import PARTS
from bubblescope.model import units
from bubblescope.model.kinds import COMPUTE_KINDS
from bubblescope.render.text.change_rows import COLUMNS, cells, style
from bubblescope.render.text.compare_devices import device_tables
from bubblescope.render.text.face import Face
from bubblescope.render.text.sections import table_of, titled

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bubblescope.analysis.changes import Change
    from bubblescope.analysis.gate import Verdict
    from bubblescope.analysis.step_measures import Side

_ROWS: Final = 8
_TITLES: Final = {
    "overall": ("Overall", "of a step, busy and idle of a rank"),
    "cause": ("Idle by cause", "of a rank in a step"),
    "kind": ("Tasks by kind", "of a rank in a step"),
    "stage": ("Busy by stage", "in a step, of each rank that holds it"),
    "rank": ("Idle by rank", "in a step"),
}
_LEGEND: Final = "±: half of the 95 % interval; noise: the interval includes no change"
_STYLES: Final = {"failed": "bold red", "not certain": "yellow", "passed": "green"}


class Comparison(Face, compare.Comparison, frozen=True, eq=False):
    """What `bubblescope compare` prints."""

    def shown(self, *, everything: bool = False) -> RenderableType:
        """Return the tables to be printed.

        Args:
            everything: With all lines of all tables.
        """
        limit = sys.maxsize if everything else _ROWS
        told = Table.grid(padding=(0, 2))
        for letter, label, side in zip("AB", self.labels, (self.before, self.after), strict=True):
            told.add_row(
                Text(letter, "bold"), Text(label, overflow="fold"), Text(_side(side), "dim")
            )
        parts: list[RenderableType] = [Text(self.headline(), "bold"), Padding(told, (1, 0))]
        for what, mine, its in self.differs:
            parts.append(Text.assemble(("differs  ", "cyan"), f"{what}: A {mine}, B {its}"))
        parts += [Text.assemble(("note  ", "yellow"), note.message) for note in self.notes]
        if len(parts) > 2:
            parts.append(Text())
        devices = device_tables(self, everything=everything)
        for group in GROUPS:
            changes = self.group(group)
            if devices and not self.pipelined and group == "overall":
                parts += devices  # which says the same, and more
            elif changes:
                parts.append(_table(group, changes, limit))
        if self.pipelined:
            parts += devices
        if any(change.interval for change in self.changes):
            parts.append(Text(_LEGEND, "dim"))
        return Group(*parts)

    def headline(self) -> str:
        """Return in one sentence by how much B is slower or faster, and mostly because of what."""
        step = self.find("overall", "step")
        if step is None or step.difference is None or step.relative is None:
            return "Which run is faster is not known: the steps of at least one cannot be timed."
        what = "the capture" if self.captures else "a step"
        times = f"{what} takes {units.duration(_ns(step.after))}"
        if not step.difference:
            return f"B is as fast as A: {times} in both."
        change = units.change(step.relative)
        if step.interval is None:
            noise = "no noise known"
        else:
            low, high = (units.change(end / (step.before or 1)) for end in step.interval)
            noise = f"95 % interval {low.removesuffix(' %')} to {high}"
        if step.certain is False:
            return (
                f"Whether B is slower or faster than A is not certain: {times} instead of "
                f"{units.duration(_ns(step.before))}, {change} ({noise})."
            )
        slower = "slower" if step.difference > 0 else "faster"
        return (
            f"B is {100 * abs(step.relative):.2f} % {slower} than A ({noise}): {times} instead of "
            f"{units.duration(_ns(step.before))}{self._because(step.difference)}."
        )

    def _because(self, difference: float) -> str:
        """Name what added most to the change of a step."""
        return (_because if self.pipelined else _because_devices)(self, difference)


def verdict_line(verdict: Verdict) -> Text:
    """Return what has become of a condition."""
    return Text.assemble(
        (f"{verdict.outcome}  ", _STYLES[verdict.outcome]), f"{verdict.condition}: {verdict.text}"
    )


def _side(side: Side) -> str:
    steps = units.count(len(side.steps), "step")
    if not side.pipelined and side.steps in ((), (None,)):
        steps = "whole capture"
    counted = [units.count(len(side.ranks), "rank"), steps]
    if side.microbatches:
        counted.append(units.count(side.microbatches, "micro-batch", "micro-batches"))
    named = "unknown schedule" if side.pipelined else "no pipeline"
    return " · ".join([side.schedule or named, *counted])


def _because(comparison: compare.Comparison, difference: float) -> str:
    """Name what added most to the change of a step: it is that of a rank's idle and busy time."""
    overall = {one.name: one for one in comparison.group("overall")}
    idle = comparison.group("cause") or [overall["idle"]]
    compute = {kind.value for kind in COMPUTE_KINDS}
    busy = [one for one in comparison.group("kind") if one.name in compute]
    if not all(one.before and one.after for one in busy):
        busy = [overall["busy"]]  # a backward that is now split is no reason, only its length
    most = max(idle + busy, key=lambda one: _toward(one, difference), default=None)
    if most is None or _toward(most, difference) <= 0:
        return ""
    what = "busy" if most in busy else "idle"
    cause = f"{most.name} time" if most.group == "overall" else most.name
    said = f", mostly because of {cause} ({units.signed(most.difference or 0)} {what} a rank)"
    stage = next(iter(comparison.group("stage")), None)
    if stage is not None and _toward(stage, difference) > 0:
        longer = "longer" if difference > 0 else "shorter"
        said += f"; stage {stage.name} works {units.duration(abs(_ns(stage.difference)))} {longer}"
    return said


def _because_devices(comparison: compare.Comparison, difference: float) -> str:
    """Name what devices spent more or less time on."""
    parts = [one for one in comparison.group("device") if one.name in PARTS]
    most = max(parts, key=lambda one: _toward(one, difference), default=None)
    if most is None or _toward(most, difference) <= 0:
        return ""
    return f", mostly because of {most.name} ({units.signed(most.difference or 0)} a rank)"


def _toward(change: Change, difference: float) -> float:
    """Return by how much a measure changed the same way, 0 if noise may be why."""
    if change.certain is False or change.difference is None:
        return 0
    return change.difference if difference > 0 else -change.difference


def _ns(time_ns: float | None) -> int:
    return round(time_ns or 0)


def _table(group: str, changes: list[Change], limit: int) -> RenderableType:
    title, of = _TITLES[group]
    first = group if group != "overall" else " "
    table = table_of(first, *COLUMNS, left=(first,))
    for change in changes[:limit]:
        table.add_row(change.name, *cells(change), style=style(change))
    more = f", the {limit} largest of {len(changes)}; --all shows them" * (limit < len(changes))
    return titled(title, table, f"{of}{more}")
