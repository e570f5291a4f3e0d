"""What traces are, line by line."""

from __future__ import annotations

import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.text import Text

from bubblescope.analysis import info
from bubblescope.model import units
from bubblescope.render.text.face import Face
from bubblescope.render.text.sections import inferred_of, inventory, narrow_table, times_of
from bubblescope.render.wording import recorder

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bubblescope.model.provenance import ClockReport, RecordedStart
    from bubblescope.model.timeline import Timeline


_PLACE: Final = ("rank", "host", "process", "device")
_AXES: Final = ("pp", "dp", "tp", "cp", "ep", "etp", "edp")
"""Coordinates of ranks; a column for each that is known of any."""
_ROWS: Final = 64
"""Traces, processes and ranks that are listed unless all are asked for."""
_SHOWN: Final = 8
"""Ranks of a group that are named."""
_SHOWN_GROUPS: Final = 4
"""Groups of a role and size whose ranks are named."""


class Info(Face, info.Info, frozen=True, eq=False):
    """What `bubblescope info` prints."""

    def shown(self, *, everything: bool = False) -> RenderableType:
        """Return what is printed.

        Args:
            everything: With all traces, processes and ranks.
        """
        limit = sys.maxsize if everything else _ROWS
        timeline, run = self.timeline, self.timeline.run
        parts: list[RenderableType] = [Text(self.described())]
        for origin in run.origins[:limit]:
            version = f" {origin.version}" if origin.version else ""
            by = f", by {recorder(origin.recorded_by)}" if origin.recorded_by else ""
            parts.append(Text(f"{origin.path}: {origin.format}{version}{by}"))
        parts += _more(len(run.origins), limit, "trace")
        if run.contents:
            parts += [
                inventory(timeline, limit),
                *_more(len(run.contents), limit, "process", "processes"),
            ]
        if len(run.attempts) > 1:
            parts.append(_starts(run.attempts))
        table = narrow_table()
        known = [axis for axis in _AXES if timeline.ranks[axis].null_count() < len(timeline.ranks)]
        for column in (*_PLACE, "stages", *known):
            table.add_column(column)
        for row in timeline.ranks.head(limit).iter_rows(named=True):
            stages = ", ".join(map(str, row["stages"] or [])) or "?"
            cells = [units.optional(row[key]) for key in (*_PLACE, *known)]
            cells.insert(len(_PLACE), stages)
            table.add_row(*map(Text, cells))
        parts += [table, *_more(timeline.ranks.height, limit, "rank")]
        parts += [
            Text.assemble(("" if at else "groups  ", "cyan"), " " * 8 if at else "", line)
            for at, line in enumerate(_groups(timeline))
        ]
        if steps := self.size.steps:
            parts.append(Text(f"steps {steps[0]} to {steps[-1]} ({len(steps)})"))
        parts += times_of(timeline)
        parts.append(inferred_of(run))
        parts += [
            Text.assemble(("clock  ", "cyan"), *((part, "none") for part in line))
            for line in _certificate(run.clock)
        ]
        return Group(*parts)

    def headline(self) -> str:
        """Return formats and size in one line."""
        formats = dict.fromkeys(origin.format for origin in self.timeline.run.origins)
        return f"{', '.join(formats)}: {self.described()}"


def _more(count: int, limit: int, noun: str, nouns: str | None = None) -> list[Text]:
    """Return the line that says how many rows are left out; none if none are."""
    if count <= limit:
        return []
    more = units.count(count - limit, f"more {noun}", nouns and f"more {nouns}")
    return [Text(f"and {more}; --all shows them", "dim")]


def _groups(timeline: Timeline) -> list[str]:
    """Say which groups communicate: how many of each role and size, and the ranks of a few."""
    alike = timeline.groups.group_by("role", "size", maintain_order=True).agg("ranks")
    lines = []
    for role, size, ranks in alike.sort("role", "size", nulls_last=True).iter_rows():
        one = list(dict.fromkeys(", ".join(map(str, each[:_SHOWN])) for each in ranks if each))
        cut = ", …" if (size or 0) > _SHOWN else ""
        shown = "; ".join(f"{each}{cut}" for each in one[:_SHOWN_GROUPS])
        more = "; …" if len(one) > _SHOWN_GROUPS else ""
        count = units.count(len(ranks), "group")
        of = f" of {units.count(size, 'rank')}" if size else ""
        lines.append(f"{role or 'of no known role'}: {count}{of}: {shown}{more}".rstrip(": "))
    return lines


def _starts(attempts: tuple[RecordedStart, ...]) -> RenderableType:
    """Return a table of every start of a job that recorded itself."""
    table = narrow_table()
    beside = ["beside"] * any(start.beside for start in attempts)
    for column in ("attempt", "began (UTC)", "restarts", "ranks", "files", *beside, ""):
        table.add_column(column)
    for start in attempts:
        table.add_row(
            str(start.attempt),
            "?" if start.began_utc_ns is None else _moment(start.began_utc_ns),
            units.optional(start.restart),
            str(start.ranks),
            "complete" if start.ended else "not closed",
            *[", ".join(map(str, start.beside)) for _ in beside],
            "read here" if start.read else f"--attempt {start.attempt}",
        )
    return table


def _moment(utc_ns: int) -> str:
    return datetime.fromtimestamp(utc_ns // 1_000_000_000, timezone.utc).strftime(
        "%Y-%m-%d %H:%M:%S"
    )


def _certificate(clock: ClockReport | None) -> list[tuple[str, ...]]:
    """Say on what the clocks of several hosts rest, in lines of parts."""
    if clock is None:
        return []
    groups = f" in {units.count(clock.groups, 'group')}" if clock.groups else ""
    off = (
        "how far clocks are off is unknown"
        if clock.error_ns is None
        else f"uncertain by up to ±{units.duration(clock.error_ns)}"
    )
    evidence = (
        f"{clock.method}: {clock.constraints:,} pairs of moments{groups}, "
        f"{clock.violations_before:,} violated as recorded, {clock.violations_after:,} now; {off}"
    )
    return [
        (evidence,),
        *(
            (f"drift of {host}: {ppm:+.3g} parts per million",)
            for host, ppm in clock.drift_ppm.items()
        ),
        *(("tightest: ", text) for text in clock.tightest),
    ]
