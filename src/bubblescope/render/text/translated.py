"""What is to be printed, in the language of who reads it.

What rich prints is made of texts; here they are exchanged before any of them is measured, so that
columns are as wide as what stands in them.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bubblescope.model import language
from bubblescope.render.text.by_width import ByWidth
from bubblescope.render.text.wide_letters import Wide, is_wide

if TYPE_CHECKING:
    from rich.table import Column
    from rich.text import Span


_LONG: Final = range(10, 13)
"""Columns that a title takes which is divided in the middle, such as the name of a rate."""


class Verbatim(Text):
    """A text of a trace, such as the name of a kernel: it is shown as it is in all languages."""


def translated(shown: Any) -> Any:
    """Return what is to be shown in the language that is spoken.

    Args:
        shown: Something that rich can print. What draws itself later is printed as it then is.
    """
    if isinstance(shown, Verbatim):
        return shown
    if isinstance(shown, str):
        said = _kept_wide(shown)
        return Wide(said) if is_wide(said) else said
    if isinstance(shown, Text):
        return shown if isinstance(shown, Wide) else _as_wide(_text(shown))
    if isinstance(shown, Group):
        return Group(*map(translated, shown.renderables), fit=shown.fit)
    if isinstance(shown, Padding):
        other = copy(shown)
        other.renderable = translated(shown.renderable)
        return other
    return _laid_out(shown)


def _laid_out(shown: Any) -> Any:
    if isinstance(shown, ByWidth):
        return ByWidth(translated(shown.roomy), translated(shown.narrow))
    return _table(shown) if isinstance(shown, Table) else shown


def _as_wide(said: Text) -> Text:
    if not is_wide(said.plain):
        return said
    how = {name: getattr(said, name) for name in ("style", "justify", "overflow", "no_wrap", "end")}
    return Wide(said.plain, spans=said.spans, **how)


def _table(shown: Table) -> Table:
    other = copy(shown)
    other.columns = [_column(column) for column in shown.columns]
    return other


def _column(column: Column) -> Column:
    cells = [translated(cell) for cell in column.cells]
    header = translated(column.header)
    return replace(column, header=_short(header, max(map(_width, cells), default=0)), _cells=cells)


def _width(shown: Any) -> int:
    """Return how wide a cell is, of a text."""
    return cell_len(shown.plain if isinstance(shown, Text) else str(shown))


def _short(header: Any, below: int) -> Any:
    """Return a title in two lines, where one would be wider than what stands below it."""
    if not isinstance(header, Text) or cell_len(header.plain) not in _LONG or "\n" in header.plain:
        return header
    if cell_len(header.plain) <= below:
        return header
    middle = len(header) // 2
    return Wide(f"{header.plain[:middle]}\n{header.plain[middle:]}", style=header.style)


def _text(shown: Text) -> Text:
    """Return a text of which each part that has a style is translated; or the whole, if it is known."""
    whole = language.translated(shown.plain)
    ends = sorted({0, len(shown), *(at for span in shown.spans for at in (span.start, span.end))})
    if whole != shown.plain and len(ends) <= 2:
        other = shown.copy()
        other.plain = whole
        other.spans = [_up_to(span, len(whole)) for span in shown.spans]
        return other
    other = shown.blank_copy()
    for part in shown.divide(ends[1:-1]):
        part.plain, spans = _kept_wide(part.plain), part.spans
        part.spans = [_up_to(span, len(part.plain)) for span in spans]
        other.append_text(part)
    return other


def _up_to(span: Span, end: int) -> Span:
    return span._replace(end=end)


def _kept_wide(text: str) -> str:
    """Return a text in the other language; one that spaces make as wide as others stays so."""
    said = language.translated(text)
    if said != text and text.endswith("  "):
        bare = said.rstrip()
        return bare + " " * max(1, cell_len(text) - cell_len(bare))
    return said
