"""What traces are, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from bubblescope.analysis import info
from bubblescope.model import units
from bubblescope.render.text.face import Face
from bubblescope.render.text.sections import inferred_of, inventory, narrow_table, times_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bubblescope.model.provenance import ClockReport


class Info(Face, info.Info, frozen=True, eq=False):
    """What `bubblescope info` prints."""

    def shown(self, *, everything: bool = False) -> RenderableType:
        """Return all of it, to be printed."""
        del everything
        timeline, run = self.timeline, self.timeline.run
        parts: list[RenderableType] = [Text(repr(timeline))]
        for origin in run.origins:
            version = f" {origin.version}" if origin.version else ""
            parts.append(Text(f"{origin.path}: {origin.format}{version}"))
        if run.contents:
            parts.append(inventory(timeline))
        table = narrow_table()
        for column in ("rank", "host", "process", "device", "stages"):
            table.add_column(column)
        for row in timeline.ranks.iter_rows(named=True):
            stages = ", ".join(map(str, row["stages"] or [])) or "?"
            cells = (units.optional(row[key]) for key in ("rank", "host", "process", "device"))
            table.add_row(*map(Text, cells), stages)
        parts.append(table)
        if steps := timeline.steps:
            parts.append(Text(f"steps {steps[0]} to {steps[-1]} ({len(steps)})"))
        parts += times_of(timeline)
        parts.append(inferred_of(run))
        parts += [
            Text.assemble(("clock  ", "cyan"), line, no_wrap=True, overflow="ignore")
            for line in _certificate(run.clock)
        ]
        return Group(*parts)

    def headline(self) -> str:
        """Return formats and size in one line."""
        formats = dict.fromkeys(origin.format for origin in self.timeline.run.origins)
        return f"{', '.join(formats)}: {self.timeline!r}"


def _certificate(clock: ClockReport | None) -> list[str]:
    """Say on what the clocks of several hosts rest."""
    if clock is None:
        return []
    evidence = (
        f"{clock.method}: {clock.constraints:,} pairs of moments in "
        f"{units.count(clock.groups, 'group')}, {clock.violations_before:,} violated as recorded, "
        f"{clock.violations_after:,} now; uncertain by up to ±{units.duration(clock.error_ns)}"
    )
    return [
        evidence,
        *(
            f"drift of {host}: {ppm:+.3g} parts per million"
            for host, ppm in clock.drift_ppm.items()
        ),
        *(f"tightest: {text}" for text in clock.tightest),
    ]
