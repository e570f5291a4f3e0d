"""The picture with all that is known: ranks, stages, hosts, steps and their bubble rates."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.device_words import headline
from bubblescope.model import language, units
from bubblescope.model.kinds import Lane
from bubblescope.render.layout import ordered_ranks
from bubblescope.render.palette import BUBBLE
from bubblescope.render.picture.blocks import Finish, blocks, coloured, fills_of, type_size
from bubblescope.render.picture.cause_lines import lines
from bubblescope.render.picture.guides import Entry, axis, legend, listed, step_labels
from bubblescope.render.picture.sheet import (
    ALONE,
    Drawing,
    Frame,
    compute_tasks,
    number,
    shortened,
    span_of,
    squeezed,
    text,
)
from bubblescope.render.wording import facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.analysis.picture_data import Pictured
    from bubblescope.model.timeline import Timeline
    from bubblescope.render.picture.sheet import Panel, Style
    from bubblescope.render.picture.size import Size

_GREY: Final = "#5c5c5c"
_LEAST_TYPE: Final = 0.7
"""Size of the smallest labels, as a share of the other type's."""
_BOLD: Final = 1.15
"""How much wider bold type is."""
_SPARE: Final = 3
"""Room beside a label, in pixels."""


def draw(pictured: Pictured, size: Size, style: Style, panel: Panel = ALONE) -> Drawing:
    """Draw the compute lanes of a timeline.

    Args:
        pictured: What to draw.
        size: How wide.
        style: How large things are.
        panel: What it shares with others.

    Raises:
        BubblescopeError: The width leaves no room for the lanes beside their titles.
    """
    timeline = pictured.timeline
    tasks = compute_tasks(timeline)
    beside = panel.margins or margins(pictured, style)
    frame = Frame.fit(panel.span or span_of(tasks), beside, size, style)
    heading = _wrapped(_said(pictured, panel), frame, style)
    top = style.heading + 17 + style.line * len(heading)
    lanes, hosts, bottom = _lanes(timeline, top, style)
    tasks = coloured(tasks)
    least = style.font * _LEAST_TYPE
    font = type_size(tasks, frame, (least, style.font), _SPARE)
    drawn, sampled = blocks(
        tasks, frame, lanes, Finish(style.block, "#ffffff", 0.5, 6, font, least, _SPARE)
    )
    idle, causes = lines(pictured.gaps, frame, lanes, style.block)
    explains: list[str] = []
    height = bottom + (style.font + 23 if panel.axis else 6)
    if panel.legend:
        between = "bubble" if pictured.budget is None else "no task"
        entries = _entries(tasks if panel.tasks is None else panel.tasks, between)
        entries += [
            Entry(listed(names), (BUBBLE,), "#cfcfcf", line) for line, names in causes.items()
        ]
        notes = [f"crowded lanes show what runs at {style.sample}"] if sampled else []
        explains, height = legend(
            entries, notes, (_margin(frame, style), height), size.pixels, style
        )
    parts = [
        *_heading(heading, frame, style),
        *_steps(pictured, frame, style, (top, bottom)),
        *_hosts(hosts, frame, style),
        *_lane_titles(_titles(timeline), lanes, frame, style),
        *_rates(_lane_rates(pictured), lanes, frame, style, top),
        *idle,
        *drawn,
        *(axis(frame, style, bottom) if panel.axis else ()),
        *explains,
    ]
    return Drawing("\n".join(parts), height, style.font)


def margins(pictured: Pictured, style: Style) -> tuple[float, float]:
    """Return how much room the titles of the lanes and their rates take, at the left and right."""
    what, rates = _lane_rates(pictured)
    titled = max(map(style.wide, _titles(pictured.timeline).values()), default=0)
    rated = max(map(style.wide, (what, *rates.values())))
    return (
        max(style.left, round(titled) + 2 * style.gap),
        max(style.right, ceil(rated) + 2 * style.gap),
    )


def _entries(tasks: pl.DataFrame, between: str) -> list[Entry]:
    """Return what the colours stand for; `between` is what is between tasks."""
    present = set(tasks["kind"].cast(pl.String).unique())
    kinds = [
        Entry(language.translated(kind.value.replace("_", " ")), (fill,))
        for kind, fill in fills_of(tasks).items()
        if kind.value in present
    ]
    return [*kinds, Entry(language.translated(between), (BUBBLE,), "#cfcfcf")]


def _titles(timeline: Timeline) -> dict[int, str]:
    """Return the title of each rank's lane."""
    titles = {}
    for rank, stages in timeline.ranks.select("rank", "stages").iter_rows():
        held = ", ".join(map(str, stages or []))
        title = f"rank {rank}" + (f" · stage {held}" if held else "")
        titles[rank] = shortened(language.translated(title))
    return titles


def _lanes(
    timeline: Timeline, top: float, style: Style
) -> tuple[dict[int, float], list[tuple[float, str]], float]:
    """Return the top of each rank's lane, that of each host's name, and the bottom of it all.

    Where there is but one host, its name is left out.
    """
    lanes: dict[int, float] = {}
    hosts: list[tuple[float, str]] = []
    several = timeline.ranks["host"].n_unique() > 1
    y, host = top, None
    for rank in ordered_ranks(timeline).iter_rows(named=True):
        if several and rank["host"] != host:
            host = rank["host"]
            hosts.append((y, host))
            y += style.host
        lanes[rank["rank"]] = y
        y += style.row
    return lanes, hosts, max(y, top + style.row)


def _said(pictured: Pictured, panel: Panel) -> list[str]:
    """Return what the heading says."""
    said = facts(pictured.timeline) if panel.facts else []
    return [
        *([squeezed(pictured.title)] if pictured.title else ()),
        *map(language.translated, said[1:] if said[:1] == [pictured.title] else said),
        *map(language.translated, _idleness(pictured)),
    ]


def _idleness(pictured: Pictured) -> list[str]:
    """Return the bubble rates that are known, or what devices did where there are no bubbles."""
    if pictured.budget is not None:
        idle, _, busy = headline(pictured.budget.overall).partition("; ")
        return [f"devices {idle.partition(',')[0]}", *filter(None, busy.split(", "))]
    overall = pictured.rates.overall
    makespan, span = overall.makespan, overall.span
    said = []
    if makespan is not None:
        said.append(f"bubble rate {units.percent(makespan)} of the makespan")
    if span is not None:
        share = units.percent(span)
        alone = f"bubble rate {share} of each rank's span"
        said.append(f"{share} of each rank's span" if said else alone)
    return said


def _wrapped(pieces: list[str], frame: Frame, style: Style) -> list[str]:
    """Join pieces into lines that fit the page; a piece itself is never broken."""
    room = (frame.width - _margin(frame, style)) / 1.1
    lines: list[str] = []
    for piece in map(shortened, pieces):
        if lines and style.wide(f"{lines[-1]} · {piece}") <= room:
            lines[-1] += f" · {piece}"
        else:
            lines.append(piece)
    return lines


def _margin(frame: Frame, style: Style) -> float:
    """Return where heading and legend begin: above the lanes, or where room is dear, at the edge."""
    return frame.left if style.left else style.gap


def _heading(lines: list[str], frame: Frame, style: Style) -> Iterator[str]:
    for at, line in enumerate(lines):
        y = style.heading + 3 + style.line * at
        yield (
            f'<text x="{number(_margin(frame, style))}" y="{number(y)}" '
            f'font-size="{number(style.heading)}" fill="#1a1a1a">{text(line)}</text>'
        )


def _steps(
    pictured: Pictured, frame: Frame, style: Style, extent: tuple[float, float]
) -> Iterator[str]:
    top, bottom = extent
    steps = (
        pictured.timeline.tasks.filter(
            pl.col("step").is_not_null(), pl.col("lane") == Lane.COMPUTE.value
        )
        .group_by("step")
        .agg(pl.col("start_ns").min())
        .sort("start_ns")
    )
    lefts = [frame.x(start) for start in steps["start_ns"]]
    rates = [_of_step(pictured, step) for step in steps["step"]]
    known = ["" if rate is None else f" · {units.percent(rate)}" for rate in rates]
    labels = step_labels(steps["step"].to_list(), known, [*lefts, frame.right], style)
    for left, label in zip(lefts, labels, strict=True):
        yield (
            f'<path d="M{left:.2f} {number(top - 8)}V{number(bottom)}" stroke="#9a9a9a" '
            'stroke-width="0.7" stroke-dasharray="3 3"/>'
        )
        if label and left + style.wide(label) <= frame.right:
            yield f'<text x="{left + 3:.2f}" y="{number(top - 12)}" fill="{_GREY}">{label}</text>'


def _of_step(pictured: Pictured, step: int) -> float | None:
    """Return the bubble rate of a step, or how much of it devices idled; None if it is not known."""
    if pictured.budget is not None:
        spent = pictured.budget.per_step.get(step)
        return None if spent is None else spent.share(spent.idle_ns)
    rates = pictured.rates.per_step.get(step)
    return None if rates is None else rates.makespan


def _hosts(hosts: list[tuple[float, str]], frame: Frame, style: Style) -> Iterator[str]:
    most = int(frame.right / style.wide("0") / _BOLD)
    for y, host in hosts:
        yield (
            f'<text x="6" y="{number(y + style.host * 2 / 3)}" fill="{_GREY}" font-weight="bold">'
            f"{text(squeezed(host, most))}</text>"
        )


def _lane_titles(
    titles: dict[int, str], lanes: dict[int, float], frame: Frame, style: Style
) -> Iterator[str]:
    left, plot, block = number(frame.left), number(frame.plot), number(style.block)
    for rank, y in lanes.items():
        middle = number(_middle(y, style))
        title = number(frame.left - style.gap)
        yield f'<text x="{title}" y="{middle}" text-anchor="end">{titles[rank]}</text>'
        yield (
            f'<rect x="{left}" y="{number(y)}" width="{plot}" height="{block}" fill="{BUBBLE}"/>'
        )


def _lane_rates(pictured: Pictured) -> tuple[str, dict[int, str]]:
    """Return what stands at the right of the lanes and over it, if it is known of any rank."""
    what, rates = _per_rank(pictured)
    if all(rate is None for rate in rates.values()):
        return "", {}
    return language.translated(what), {rank: units.percent(rate) for rank, rate in rates.items()}


def _rates(
    rated: tuple[str, dict[int, str]],
    lanes: dict[int, float],
    frame: Frame,
    style: Style,
    top: float,
) -> Iterator[str]:
    what, rates = rated
    end = number(frame.width - style.gap / 2)
    if what:
        yield f'<text x="{end}" y="{number(top - 12)}" text-anchor="end" fill="{_GREY}">{what}</text>'
    for rank in lanes.keys() & rates.keys():
        middle = number(_middle(lanes[rank], style))
        yield f'<text x="{end}" y="{middle}" text-anchor="end">{rates[rank]}</text>'


def _per_rank(pictured: Pictured) -> tuple[str, dict[int, float | None]]:
    """Return what is said of each rank: its bubble rate, or how much of the time its devices idled."""
    if pictured.budget is not None:
        spent = pictured.budget.per_rank
        return "idle", {rank: one.share(one.idle_ns) for rank, one in spent.items()}
    rates = pictured.rates.per_rank
    if pictured.rates.overall.makespan is None:
        return "of its span", {rank: one.span for rank, one in rates.items()}
    return "bubble", {rank: one.makespan for rank, one in rates.items()}


def _middle(y: float, style: Style) -> float:
    """Return where text stands beside a lane."""
    return y + style.block / 2 + style.font * 4 / 11
