"""What simulated schedules come to, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Group
from rich.text import Text

from bubblescope.model import units
from bubblescope.render.text.sections import table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from bubblescope.schedules.plan import Plan

_MEANING: Final = (
    "makespan, span: bubble rates. memory: most activations of any device, in micro-batches of a p-th "
    "of the model"
)


class Row(NamedTuple):
    """One of the schedules that are compared.

    Attributes:
        name: Its name.
        makespan_ns: Length of its step; 0 of one that cannot be simulated.
        makespan, span: Its bubble rates.
        memory: Most activations of any device, in micro-batches of a p-th of the model.
        copies: How often the parameters are held.
        problem: Why it cannot be simulated; empty if it can.
    """

    name: str
    makespan_ns: int = 0
    makespan: float | None = None
    span: float | None = None
    memory: float = 0
    copies: float = 0
    problem: str = ""


def comparison(rows: Sequence[Row]) -> RenderableType:
    """Return schedules side by side, with those that cannot be simulated below."""
    names = ("schedule", "step", "", "makespan", "span", "memory", "parameters")
    table = table_of(*names, left=("schedule",))
    table.columns[0].min_width = max(len(row.name) for row in rows)
    fastest = min(row.makespan_ns for row in rows if not row.problem)
    for row in rows:
        if row.problem:
            continue
        table.add_row(
            row.name,
            units.duration(row.makespan_ns),
            f"+{row.makespan_ns / fastest - 1:.1%}" if row.makespan_ns > fastest else "fastest",
            units.percent(row.makespan),
            units.percent(row.span),
            f"{row.memory:.4g}",
            f"{row.copies:g} x",
        )
    problems = [
        Text(f"{row.name}: {row.problem}", "yellow", no_wrap=True, overflow="ignore")
        for row in rows
        if row.problem
    ]
    return Group(table, *problems, Text(_MEANING, "dim"))


def memory_line(plan: Plan, memory: list[float]) -> Text:
    """Return the most activations that each device holds."""
    each = ", ".join(f"{one:g}" for one in memory[:16]) + (", ..." if len(memory) > 16 else "")
    copies = f", {plan.copies:g} copies of the parameters" if plan.copies > 1 else ""
    return Text.assemble(
        ("Peak memory", "bold"),
        f"  {max(memory):g} micro-batches' activations at most (device by device: {each}){copies}",
    )
