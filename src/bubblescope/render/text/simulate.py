"""What simulated schedules come to, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Group
from rich.text import Text

from bubblescope.model import units
from bubblescope.render.text.sections import table_of
from bubblescope.schedules.simulate import ORDER_ONLY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from bubblescope.analysis.rates import Rates
    from bubblescope.schedules.plan import Plan

SCHEMA: Final = "bubblescope.simulate/1"
"""Name and version of the JSON of a comparison, described in docs/schedules.md. Keys are only added."""

_STEADY: Final = (
    "step: from step to step in the steady state, the mean over the later half of the steps"
)
_ALONE: Final = (
    "step: one step by itself, first start to last end on any device; with --steps 8, from step to "
    "step"
)
_RATES: Final = (
    "makespan: the bubble ratio of GPipe, Chimera and Hanayo. longest span: the bubble rate of Zero "
    "Bubble and of V-Half and V-Min. over ideal: the bubble time fraction of Megatron-LM"
)
_MEMORY: Final = (
    "memory: most activations of any device, in micro-batches of 1/p of the model. copies: how "
    "often the parameters are held"
)
_SHOWN: Final = ("makespan", "longest_span", "over_ideal")


class Row(NamedTuple):
    """One of the schedules that are compared.

    Attributes:
        name: Its name.
        length_ns: Length of a step by itself, first start to last end on any device; None of one that
            cannot be simulated.
        step_ns: From step to step in the steady state; None of one step alone.
        rates: Its bubble rates.
        memory: Most activations of any device, in micro-batches of a p-th of the model.
        copies: How often the parameters are held.
        problem: Why it cannot be simulated; empty if it can.
    """

    name: str
    length_ns: int | None = None
    step_ns: int | None = None
    rates: Rates | None = None
    memory: float | None = None
    copies: float | None = None
    problem: str = ""

    @property
    def time_ns(self) -> int:
        """How long a step takes: from step to step if that is known, else by itself."""
        return self.step_ns or self.length_ns or 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, following the schema `SCHEMA`."""
        return {
            "schedule": self.name,
            "step_ns": self.step_ns,
            "length_ns": self.length_ns,
            **{name: getattr(self.rates, name, None) for name in (*_SHOWN, "span")},
            "peak_memory": self.memory,
            "copies": self.copies,
            "problem": self.problem or None,
        }


def comparison(rows: Sequence[Row]) -> RenderableType:
    """Return schedules side by side, with those that cannot be simulated below."""
    names = ("schedule", "step", "", "makespan", "longest\nspan", "over\nideal", "memory", "copies")
    table = table_of(*names, left=("schedule",))
    table.columns[0].min_width = max(len(row.name) for row in rows)
    known = [row for row in rows if not row.problem]
    fastest = min(row.time_ns for row in known)
    for row in known:
        slower = row.time_ns / fastest - 1 if fastest else 0.0
        table.add_row(
            row.name,
            units.duration(row.time_ns),
            f"+{slower:.1%}" if row.time_ns > fastest else "fastest",
            *(units.percent(getattr(row.rates, name, None)) for name in _SHOWN),
            f"{row.memory:.4g}",
            f"{row.copies:g} x",
        )
    problems = [
        Text(f"{row.name}: {row.problem}", "yellow", no_wrap=True, overflow="ignore")
        for row in rows
        if row.problem
    ]
    step = _ALONE if any(row.step_ns is None for row in known) else _STEADY
    return Group(
        table, *problems, *(Text(line, "dim") for line in (step, _RATES, _MEMORY, ORDER_ONLY))
    )


def step_line(step_ns: int | None) -> Text:
    """Return how long it is from step to step; empty for one step alone."""
    if step_ns is None:
        return Text("one step alone; --steps 8 tells how long it is from step to step", "dim")
    return Text.assemble(
        ("Step", "bold"), f"  {units.duration(step_ns)} from step to step in the steady state"
    )


def memory_line(plan: Plan, memory: list[float]) -> Text:
    """Return the most activations that each device holds."""
    each = ", ".join(f"{one:g}" for one in memory[:16]) + (", ..." if len(memory) > 16 else "")
    copies = f", {plan.copies:g} copies of the parameters" if plan.copies > 1 else ""
    return Text.assemble(
        ("Peak memory", "bold"),
        f"  {max(memory):g} micro-batches' activations at most (device by device: {each}){copies}",
    )
