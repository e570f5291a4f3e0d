"""How what devices did changed between two runs, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.padding import Padding
from rich.table import Table

from bubblescope.analysis.device_measures import BY_ROLE, HOST_LATE, IDLING, NAMES, STEP
from bubblescope.render.text.change_rows import COLUMNS, cells, rise, style, value
from bubblescope.render.text.sections import narrow_table, titled

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bubblescope.analysis.changes import Change
    from bubblescope.analysis.compare import Comparison

_LEAST: Final = 0.001
"""Share of a step from which on a use of time matters."""

_DETAILS: Final = 8
_IDLE: Final = NAMES[NAMES.index(IDLING) + 1 :]


def device_tables(comparison: Comparison, *, everything: bool) -> list[RenderableType]:
    """Return what a step of a device was spent on, and what of that changed most.

    Args:
        comparison: The runs.
        everything: Also with what takes next to no time.
    """
    uses, details = comparison.group("device"), comparison.group("detail")
    if not uses:
        return []
    step = comparison.find("device", STEP)
    least = 0 if everything else _LEAST
    of_step = step or uses[0]
    shown = [one for one in uses if one is step or _matters(one, of_step, least)]
    about = "of a rank in a step, from its start to the next one's"
    if comparison.captures:
        about = "of a rank in its whole capture"
    parts = [titled("Device", _uses(shown), about)]
    changed = details if everything else [one for one in details if _moved(one, of_step)]
    if changed:
        limit = len(changed) if everything else _DETAILS
        more = f", the {limit} largest of {len(details)}; --all shows them" * (limit < len(details))
        about = f"of a rank{more}"
        parts.append(titled("Exposed and idle time in detail", _details(changed[:limit]), about))
    return parts


def _matters(change: Change, step: Change, least: float) -> bool:
    """Return whether a use took such a share of a step in either run."""
    pairs = ((change.before, step.before), (change.after, step.after))
    return any((time or 0) >= least * (whole or 0) for time, whole in pairs)


def _moved(change: Change, step: Change) -> bool:
    return abs(change.difference or 0) >= _LEAST * max(step.before or 0, step.after or 0)


def _uses(changes: list[Change]) -> Table:
    """Return a table in which the parts of something stand below it, farther to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("", overflow="fold")
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for change in changes:
        table.add_row(_indented(change.name), *cells(change), style=style(change))
    return table


def _indented(name: str) -> Padding:
    depth = 1 if name in _IDLE else 0
    for above, deep in ((BY_ROLE, 1), (f"{HOST_LATE}: ", 2)):
        if name.startswith(above):
            name, depth = name.removeprefix(above), deep
    return Padding(name, (0, 0, 0, 2 * depth))


def _details(changes: list[Change]) -> Table:
    table = narrow_table("A", "B", "change", "")
    table.add_column("", overflow="fold")
    for change in changes:
        numbers = value(change, change.before), value(change, change.after), rise(change)
        table.add_row(*numbers, cells(change)[-1], change.name, style=style(change))
    return table
