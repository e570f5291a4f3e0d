"""What `bubblescope watch` shows of a job that is running."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import polars as pl
from rich.console import Group
from rich.padding import Padding
from rich.text import Text

from bubblescope.model import units
from bubblescope.model.whole_steps import PASSES
from bubblescope.render.text.sections import bar_of, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from bubblescope.analysis.live import Figures, WholeSteps

_RANKS: Final = 32
"""Ranks shown at most."""
_WIDTH: Final = 32
"""Characters of a bar."""
_NARROW: Final = 8
"""The same where more is told of a rank."""
_NAMED: Final = 4
"""Silent ranks and unreadable files named."""
_PARTS: Final = 6
"""Lines for what ranks were in."""
_ABOVE: Final = 9
"""Lines of a picture that are neither ranks nor parts of a step."""


def picture(folder: Path, figures: Figures, room: int = _RANKS) -> RenderableType:
    """Return what is shown of a job.

    Args:
        folder: Where it records to.
        figures: What it does.
        room: Ranks that there are lines for.
    """
    parts: list[RenderableType] = [heading(folder, figures)]
    if figures.steps:
        parts.append(rates_line(figures))
        if figures.whole is not None:
            parts.append(_parts(figures.whole))
        parts.append(_bars(figures, min(room, _RANKS)))
    parts += [Text(line, "yellow") for line in _complaints(figures)]
    return Group(*parts)


def problems(figures: Figures) -> list[str]:
    """Return what cannot be read, and why, of much the first few."""
    lines = figures.problems[:_NAMED]
    if more := len(figures.problems[_NAMED:]):
        lines.append(f"and {more:,} files more")
    return lines


def lines_above(figures: Figures) -> int:
    """Return how many lines of a picture are no ranks."""
    if figures.whole is None:
        return _ABOVE
    return _ABOVE + 5 + min(_PARTS + 1, figures.whole.shares().height)


def heading(folder: Path, figures: Figures) -> Text:
    """Return where the job is: ranks, last step, pace."""
    if not figures.ranks.height:
        found = "no recording can be read" if figures.problems else "no recordings yet"
        return Text(f"{folder} · {found}", "dim")
    count = figures.ranks.height
    said = [units.count(count, "rank")]
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
    parts = (part for one in said for part in ((" · ", "none"), (one, "none")))
    return Text.assemble((str(folder), "bold"), *parts)


def rates_line(figures: Figures) -> Text:
    """Return the bubble rate of the last steps, and the slowest stage."""
    steps = figures.steps
    over = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
    lines = [
        Text.assemble(
            ("bubble ", "none"),
            (units.percent(figures.rate), "bold"),
            (f" {figures.definition}", "none"),
            (f", {over}", "none"),
        )
    ]
    busy = figures.stages
    if busy.height > 1:
        slowest, busy_ns = busy.row(0)
        mean = busy["busy_ns"].mean()
        more = busy_ns / float(str(mean)) - 1
        lines.append(
            Text.assemble(
                ("slowest stage ", "none"),
                (str(slowest), "bold"),
                (
                    f": busy {units.duration(round(busy_ns))} a step, {100 * more:.1f} % over the mean",
                    "none",
                ),
            )
        )
    return Text("\n").join([*lines, Text()])


def whole_line(whole: WholeSteps) -> Text:
    """Return what ranks were in, in the last step that has ended, in a line."""
    number = whole.numbers[-1]
    last = whole.of(number)
    length_ns, phase_ns = last.means()
    parts = [f"{row['what']} {units.percent(row['share'])}" for row in last.shares().to_dicts()]
    shown = parts[:_PARTS]
    if more := len(parts) - len(shown):
        shown.append(f"{more} more")
    return Text.assemble(
        "whole step ",
        (units.duration(round(length_ns)), "bold"),
        f", step {number}: {', '.join(shown)}; pipeline phase {units.percent(phase_ns / length_ns)}\n",
    )


def _parts(whole: WholeSteps) -> RenderableType:
    """Return what ranks were in: of the last step that has ended, and of the last ones."""
    steps = whole.numbers
    last = whole.of(steps[-1])
    now = {row["what"]: row for row in last.shares().to_dicts()}
    columns = ["", f"step {steps[-1]}", "share"]
    several = len(steps) > 1
    if several:
        columns += [f"{len(steps)} steps", "share "]
    table = table_of(*columns, "most on rank", left=("", "most on rank"))
    rows = whole.shares().to_dicts()
    for row in rows[:_PARTS]:
        most = f"{row['rank']}: {units.duration(round(row['most_ns']))}"
        table.add_row(row["what"], *_part(now, [row]), *_part({}, [row]) * several, most)
    if rest := rows[_PARTS:]:
        table.add_row(f"{len(rest)} more", *_part(now, rest), *_part({}, rest) * several, "")
    lengths = [one.means() for one in ([last, whole] if several else [last])]
    table.add_row(
        "the whole step",
        *(text for length, _ in lengths for text in (units.duration(round(length)), "")),
        "",
        style="bold",
    )
    table.add_row(
        "of it pipeline phase",
        *(
            text
            for length, phase in lengths
            for text in (units.duration(round(phase)), units.percent(phase / length))
        ),
        "",
    )
    title = Text.assemble(
        ("step", "bold"), ("  from its start to the next one's, mean of the ranks", "dim")
    )
    return Group(title, Padding(table, (0, 0, 1, 2)))


def _part(instead: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    """Return time and share of some parts together, of other steps if these are given."""
    of = [instead.get(row["what"], _NONE) for row in rows] if instead else rows
    mean_ns, share = (sum(row[name] for row in of) for name in ("mean_ns", "share"))
    return [units.duration(round(mean_ns)), units.percent(share)]


_NONE: Final = {"mean_ns": 0.0, "share": 0.0}


def _bars(figures: Figures, room: int) -> RenderableType:
    ranks = figures.ranks
    cut = ranks.height > room
    if cut:
        ranks = ranks.sort("busy_ns", descending=True, nulls_last=True).head(room)
    staged = ranks["stages"].list.len().sum() > 0
    beside = _beside(figures.whole)
    columns = ("rank", *["stage"] * staged, "", "idle", "busy a step", "step")
    table = table_of(*columns, *["most beside"] * bool(beside), "", left=("", "most beside"))
    width = _NARROW if beside else _WIDTH
    for rank, stages, idle, busy_ns, step in ranks.iter_rows():
        late = step is not None and step + 1 < (figures.last_step or 0)
        state = "ended" if rank in figures.closed else ""
        if rank in figures.silent:
            state = f"silent for {figures.silent[rank]:.0f} s"
        table.add_row(
            str(rank),
            *[units.stages(stages)] * staged,
            bar_of(idle, width),
            units.percent(idle),
            units.duration(None if busy_ns is None else round(busy_ns)),
            Text("–" if step is None else str(step), "yellow" if late else ""),
            *[beside.get(rank, "")] * bool(beside),
            Text(state, "dim" if state == "ended" else "yellow"),
        )
    title = f"the {room} slowest of {figures.ranks.height:,} ranks" if cut else "ranks"
    return Group(Text(title, "bold"), Padding(table, (0, 0, 0, 2)))


def _beside(whole: WholeSteps | None) -> dict[int, str]:
    """Return what each rank spends most of its steps on beside forwards and backwards."""
    if whole is None:
        return {}
    steps = whole.steps["step"].n_unique()
    spent = (
        whole.spent.filter(pl.col("what") != PASSES)
        .group_by("rank", "what")
        .agg(mean_ns=pl.col("spent_ns").sum() / steps)
        .sort("mean_ns", "what", descending=[True, False])
        .unique("rank", keep="first", maintain_order=True)
    )
    rows = spent.select("rank", "what", "mean_ns").iter_rows()
    return {rank: f"{what} {units.duration(round(mean_ns))}" for rank, what, mean_ns in rows}


def _complaints(figures: Figures) -> list[str]:
    lines = problems(figures)
    if figures.left_out:
        lack = "lacks" if len(figures.left_out) == 1 else "lack"
        steps = units.listed("step", figures.left_out)
        lines.append(f"{steps} left out: {lack} forwards or backwards that others have")
    if figures.silent:
        longest = sorted(figures.silent.items(), key=lambda one: -one[1])
        named = ", ".join(f"rank {rank} for {waited:.0f} s" for rank, waited in longest[:_NAMED])
        rest = f" and {len(longest) - _NAMED:,} more" * (len(longest) > _NAMED)
        lines.append(f"silent: {named}{rest}")
    return lines
