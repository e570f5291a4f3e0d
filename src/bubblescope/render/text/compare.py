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
from bubblescope.render.text.change_rows import COLUMNS, cells, style
from bubblescope.render.text.compare_devices import device_tables
from bubblescope.render.text.compare_words import NOISE, TITLES, difference, headline, said_of
from bubblescope.render.text.face import Face
from bubblescope.render.text.sections import table_of, titled

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bubblescope.analysis.changes import Change
    from bubblescope.analysis.gate import Verdict

_ROWS: Final = 8
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
                Text(letter, "bold"), Text(label, overflow="fold"), Text(said_of(side), "dim")
            )
        parts: list[RenderableType] = [Text(self.headline(), "bold"), Padding(told, (1, 0))]
        for what, mine, its in self.differs:
            parts.append(Text.assemble(("differs  ", "cyan"), difference(what, mine, its)))
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
            parts.append(Text(NOISE, "dim"))
        return Group(*parts)

    def headline(self) -> str:
        """Return in one sentence by how much B is slower or faster, and what changed most."""
        return headline(self)


def verdict_line(verdict: Verdict) -> Text:
    """Return what has become of a condition."""
    return Text.assemble(
        (f"{verdict.outcome}  ", _STYLES[verdict.outcome]), f"{verdict.condition}: {verdict.text}"
    )


def _table(group: str, changes: list[Change], limit: int) -> RenderableType:
    title, of = TITLES[group]
    first = group if group != "overall" else " "
    table = table_of(first, *COLUMNS, left=(first,))
    for change in changes[:limit]:
        table.add_row(change.name, *cells(change), style=style(change))
    more = f", the {limit} largest of {len(changes)}; --all shows them" * (limit < len(changes))
    return titled(title, table, f"{of}{more}")
