"""What devices spent their time on, as text: one line for all, one bar for each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Group
from rich.text import Text

from bubblescope.analysis.device_words import BRIEF, LABELS, headline
from bubblescope.model import units
from bubblescope.model.budget import BUSY, Use
from bubblescope.render.text.sections import narrow_table, table_of, titled

if TYPE_CHECKING:
    import polars as pl
    from rich.console import RenderableType
    from rich.table import Table

    from bubblescope.analysis.device_budget import Budget
    from bubblescope.analysis.spending import Spending

_WIDTH: Final = 20
_SHADES: Final = (("█", "blue"), ("▓", "magenta"), ("▒", "yellow"), ("░", "dim"))
DETAILS: Final = 8
"""Things that time is lost to, up to which all are shown where there is little room."""
_ROWS: Final = 24
_WAITING: Final = 0.01
"""Share of a rank's time from which on its waiting in collectives is worth a table."""
LEAST: Final = 0.001
"""Share of all time below which nothing is spoken of."""


def device_line(budget: Budget) -> Text:
    """Return what all devices spent their time on, in one line."""
    return Text.assemble(("device  ", "bold"), headline(budget.overall))


def device_section(budget: Budget, limit: int) -> RenderableType:
    """Return a bar for each rank, and what exposed and idle time consists of."""
    table = _table("rank", "mostly idle for")
    ranks = list(budget.per_rank.items())
    worst = sorted(ranks, key=lambda one: -(one[1].share(one[1].idle_ns) or 0))[:limit]
    for rank, spending in sorted(worst):
        idle = max(spending.idle, key=lambda use: spending.idle[use], default=None)
        table.add_row(str(rank), *_row(spending), Text(BRIEF[idle] if idle else "", "dim"))
    about = "from its first operation to its last, in %"
    if len(worst) < len(ranks):
        about = f"{about}; the {len(worst)} that idle most of {len(ranks)} ranks"
    return Group(
        titled("Device", table, about),
        *([collectives_section(budget, limit)] if tells_of_waiting(budget) else []),
        _details(budget, limit),
    )


def steps_section(budget: Budget, limit: int) -> RenderableType:
    """Return what each step was spent on, over all ranks: those that idled most."""
    steps = list(budget.per_step.items())
    if not steps:
        return Group()
    table = _table("step", "")
    still_open = {step for _, step in budget.open_steps}
    worst = sorted(steps, key=lambda one: -(one[1].share(one[1].idle_ns) or 0))[:limit]
    for step, spending in sorted(worst):
        length = units.duration(budget.lengths_ns[step])
        note = f"{length}, open" if step in still_open else length
        table.add_row(str(step), *_row(spending), Text(note, "dim"))
    about = "from its start to the next one's, in %; the end of an open one is not in the trace"
    about = about if still_open else about.partition(";")[0]
    if len(worst) < len(steps):
        about = f"{about}; the {len(worst)} that idle most of {len(steps)} steps"
    return titled("Steps", table, about)


def _table(first: str, last: str) -> Table:
    names = (first, "", "compute", "comm", "copies", "idle")
    table = table_of(*names, left={first, ""})
    table.add_column(last)  # words, which may wrap so that no number is cut
    return table


def _row(spending: Spending) -> tuple[RenderableType, ...]:
    parts = _parts(spending)
    shares = (f"{100 * (spending.share(part) or 0):.1f}" for part in parts)
    return _bar(parts, spending.total_ns), *shares


def _parts(spending: Spending) -> tuple[int, ...]:
    return (
        spending.compute_ns,
        spending.communication_exposed_ns,
        spending.copy_exposed_ns,
        spending.idle_ns,
    )


def _bar(parts: tuple[int, ...], whole: int) -> Text:
    """Return a bar of shades; each ends where the sum up to it does."""
    bar, done, drawn = Text(), 0, 0
    for part, (shade, style) in zip(parts, _SHADES, strict=True):
        done += part
        until = round(_WIDTH * done / whole) if whole else 0
        bar.append(shade * (until - drawn), style)
        drawn = until
    return bar


def collectives_section(budget: Budget, limit: int) -> RenderableType:
    """Return who waits for whom in collectives: those that come latest."""
    rows, time_ns = budget.arrivals, budget.stepped_ns
    table = table_of("rank", "collectives", "last in", "waits", "late")
    worst = rows.sort("late_ns", "rank", descending=[True, False]).head(limit).sort("rank")
    for row in worst.to_dicts():
        shares = (100 * row[name] / time_ns for name in ("exposed_waits_ns", "late_ns"))
        table.add_row(
            *(str(row[name]) for name in ("rank", "collectives", "last")),
            *(f"{share:.1f}" for share in shares),
        )
    about = "waiting for others, and coming later than half of the ranks, at least, in %"
    if worst.height < rows.height:
        about = f"{about}; the latest {worst.height} of {rows.height} ranks"
    return titled("Collectives", Group(table, *_clocks(rows)), about)


def tells_of_waiting(budget: Budget) -> bool:
    """Say whether any rank waits in collectives for so long that it is worth a table."""
    waits_ns: Any = budget.arrivals["exposed_waits_ns"].max()
    return waits_ns is not None and bool(waits_ns >= _WAITING * budget.stepped_ns)


def _clocks(arrivals: pl.DataFrame) -> list[Text]:
    """Say that clocks differ, if the ends of collectives show it."""
    apart = int(arrivals["clock_ns"].abs().max() or 0)  # type: ignore[arg-type]
    if not apart:
        return []
    said = (
        f"collectives end {units.duration(apart)} apart on clocks of ranks, which differ by that: it "
        "is taken off here, but not from the timeline"
    )
    return [Text.assemble(("clocks  ", "yellow"), said)]


def _details(budget: Budget, limit: int) -> RenderableType:
    table = narrow_table("time", "share")
    table.add_column("lost to")
    table.add_column("")
    lost = losses(budget)
    for one in lost if limit > _ROWS else lost[:DETAILS]:
        table.add_row(
            units.duration(one.spent_ns),
            units.percent(one.share),
            LABELS[one.use],
            Text(one.told, "dim", no_wrap=True, overflow="ellipsis"),
        )
    notes = [Text.assemble(("unknown  ", "yellow"), said) for said in untold(budget)]
    if not lost:
        return Group(*notes, *([Text()] if notes else []))
    return titled("Where devices lose time", Group(table, *notes))


class Loss(NamedTuple):
    """What devices lose time to, and what of it is known besides: an operation, a group's role."""

    use: Use
    told: str
    spent_ns: int
    share: float


def losses(budget: Budget) -> list[Loss]:
    """Return what of the devices' time is not computing, most first, as far as it is worth a line."""
    whole = budget.overall.total_ns
    return [
        Loss(Use(row["use"]), _told(row), row["spent_ns"], row["spent_ns"] / whole)
        for row in budget.details.to_dicts()
        if Use(row["use"]) in LABELS
        and Use(row["use"]) is not Use.COMPUTE
        and row["spent_ns"] >= LEAST * whole
    ]


def _told(row: dict[str, Any]) -> str:
    told = [] if row["detail"] is None else [_short(row["detail"])]
    if Use(row["use"]) in BUSY and row["role"]:
        told.append(row["role"])
    if row["then"]:
        told.insert(0, f"then {BRIEF[Use(row['then'])].removeprefix('host, ')}")
    return ", ".join(told)


def untold(budget: Budget) -> list[str]:
    """Say of which time the traces do not tell what it was spent on, and what would tell."""
    whole = budget.overall.total_ns
    found = []
    for one in budget.undecided:
        if one["spent_ns"] >= 10 * LEAST * whole:
            said = f"{one['why']} ({units.percent(one['spent_ns'] / whole)} of the time)"
            if one["options"]:
                said += f"; {' or '.join(one['options'])} would tell"
            found.append(said)
    return found


def _short(name: str) -> str:
    """Return a name without its template arguments and parameters, which can be long."""
    return name.split("<", 1)[0].removeprefix("void ") if len(name) > 60 else name
