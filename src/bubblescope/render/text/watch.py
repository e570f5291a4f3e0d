"""What `bubblescope watch` shows of a job that is running."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from bubblescope.model import units
from bubblescope.render.text.sections import bar_of, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from bubblescope.analysis.live import Figures

_RANKS: Final = 32
"""Ranks shown at most."""
_WIDTH: Final = 32
"""Characters of a bar."""
_NAMED: Final = 4
"""Silent ranks and unreadable files named."""


def picture(folder: Path, figures: Figures, room: int = _RANKS) -> RenderableType:
    """Return what is shown of a job.

    Args:
        folder: Where it records to.
        figures: What it does.
        room: Ranks that there are lines for.
    """
    parts: list[RenderableType] = [heading(folder, figures)]
    if figures.steps:
        parts += [rates_line(figures), _bars(figures, min(room, _RANKS))]
    parts += [Text(line, "yellow") for line in _complaints(figures)]
    return Group(*parts)


def heading(folder: Path, figures: Figures) -> Text:
    """Return where the job is: ranks, last step, pace."""
    if not figures.ranks.height:
        return Text(f"{folder} · no recordings yet", "dim")
    count = figures.ranks.height
    said = [f"{count:,} rank{'s' * (count > 1)}"]
    if figures.last_step is None:
        said.append("no step has ended yet")
    else:
        at = datetime.fromtimestamp(figures.last_ns / 1e9).astimezone()
        said.append(f"step {figures.last_step} at {at:%H:%M:%S}")
    if figures.period_ns:
        said.append(f"{60e9 / figures.period_ns:.3g} steps a minute")
    if figures.host:
        some = "" if len(figures.host) == count else f" on {units.listed('rank', figures.host)}"
        said.append(f"host times{some}")
    if len(figures.closed) == count:
        said.append("ended")
    return Text.assemble((str(folder), "bold"), " · ", " · ".join(said))


def rates_line(figures: Figures) -> Text:
    """Return the bubble rate of the last steps, and the slowest stage."""
    steps = figures.steps
    over = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
    lines = [
        Text.assemble(
            "bubble ", (units.percent(figures.rate), "bold"), f" {figures.definition}", f", {over}"
        )
    ]
    busy = figures.stages
    if busy.height > 1:
        slowest, busy_ns = busy.row(0)
        mean = busy["busy_ns"].mean()
        more = busy_ns / float(str(mean)) - 1
        lines.append(
            Text.assemble(
                "slowest stage ",
                (str(slowest), "bold"),
                f": busy {units.duration(round(busy_ns))} a step, {100 * more:.1f} % over the mean",
            )
        )
    return Text("\n").join([*lines, Text()])


def _bars(figures: Figures, room: int) -> RenderableType:
    ranks = figures.ranks
    cut = ranks.height > room
    if cut:
        ranks = ranks.sort("busy_ns", descending=True, nulls_last=True).head(room)
    staged = ranks["stages"].list.len().sum() > 0
    table = table_of("rank", *["stage"] * staged, "", "idle", "busy a step", "step", "")
    for rank, stages, idle, busy_ns, step in ranks.iter_rows():
        late = step is not None and step + 1 < (figures.last_step or 0)
        state = "ended" if rank in figures.closed else ""
        if rank in figures.silent:
            state = f"silent for {figures.silent[rank]:.0f} s"
        table.add_row(
            str(rank),
            *[", ".join(map(str, stages))] * staged,
            bar_of(idle, _WIDTH),
            units.percent(idle),
            units.duration(None if busy_ns is None else round(busy_ns)),
            Text("–" if step is None else str(step), "yellow" if late else ""),
            Text(state, "dim" if state == "ended" else "yellow"),
        )
    title = f"the {room} slowest of {figures.ranks.height:,} ranks" if cut else "ranks"
    return Group(Text(title, "bold"), Padding(table, (0, 0, 0, 2)))


def _complaints(figures: Figures) -> list[str]:
    lines = figures.problems[:_NAMED]
    if more := len(figures.problems[_NAMED:]):
        lines.append(f"and {more:,} files more")
    if figures.silent:
        longest = sorted(figures.silent.items(), key=lambda one: -one[1])
        named = ", ".join(f"rank {rank} for {waited:.0f} s" for rank, waited in longest[:_NAMED])
        rest = f" and {len(longest) - _NAMED:,} more" * (len(longest) > _NAMED)
        lines.append(f"silent: {named}{rest}")
    return lines
