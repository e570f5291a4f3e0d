"""The picture with all that is known: ranks, stages, hosts, steps and their bubble rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model import units
from bubblescope.model.kinds import Kind, Lane
from bubblescope.render.layout import ordered_ranks
from bubblescope.render.palette import BUBBLE, COLOURS
from bubblescope.render.picture.blocks import Finish, blocks, coloured
from bubblescope.render.picture.guides import Entry, axis, legend
from bubblescope.render.picture.sheet import (
    ALONE,
    Drawing,
    Frame,
    compute_tasks,
    number,
    shortened,
    span_of,
    text,
)
from bubblescope.render.wording import facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.analysis.pictured import Pictured
    from bubblescope.analysis.rates import BubbleRates
    from bubblescope.model.timeline import Timeline
    from bubblescope.render.picture.sheet import Panel, Style
    from bubblescope.render.picture.size import Size

_GREY: Final = "#5c5c5c"


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
    timeline, bubbles = pictured.timeline, pictured.rates
    tasks = compute_tasks(timeline)
    titles = _titles(timeline)
    titled = max(
        style.left, round(max(map(style.wide, titles.values()), default=0)) + 2 * style.gap
    )
    frame = Frame.fit(panel.span or span_of(tasks), (titled, style.right), size, style)
    heading = _wrapped(_said(pictured), frame, style)
    top = style.heading + 17 + style.line * len(heading)
    lanes, hosts, bottom = _lanes(timeline, top, style)
    finish = Finish(style.block, "#ffffff", 0.5, 6, style.font, style.font * 0.7, 3)
    drawn, sampled = blocks(coloured(tasks), frame, lanes, finish)
    explains: list[str] = []
    height = bottom + (style.font + 23 if panel.axis else 6)
    if panel.legend:
        entries = _entries(tasks if panel.tasks is None else panel.tasks)
        notes = [f"crowded lanes show what runs at {style.sample}"] if sampled else []
        explains, height = legend(
            entries, notes, (_margin(frame, style), height), size.pixels, style
        )
    parts = [
        *_heading(heading, frame, style),
        *_steps(timeline, bubbles, frame, style, (top, bottom)),
        *_hosts(hosts, style),
        *_lane_titles(titles, bubbles, lanes, frame, style, top),
        *drawn,
        *(axis(frame, style, bottom) if panel.axis else ()),
        *explains,
    ]
    return Drawing("\n".join(parts), height, style.font)


def _entries(tasks: pl.DataFrame) -> list[Entry]:
    present = set(tasks["kind"].cast(pl.String).unique())
    return [
        *(
            Entry(kind.value.replace("_", " "), (COLOURS[kind],))
            for kind in Kind
            if kind.value in present
        ),
        Entry("bubble", (BUBBLE,), "#cfcfcf"),
    ]


def _titles(timeline: Timeline) -> dict[int, str]:
    """Return the title of each rank's lane."""
    titles = {}
    for rank, stages in timeline.ranks.select("rank", "stages").iter_rows():
        held = ", ".join(map(str, stages or []))
        titles[rank] = shortened(f"rank {rank}" + (f" · stage {held}" if held else ""))
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


def _said(pictured: Pictured) -> list[str]:
    """Return what the heading says; of what a run is set beside, only what it is and its rates."""
    overall = pictured.rates.overall
    beside = pictured.title and pictured.above is None
    return [
        *([pictured.title] if pictured.title else ()),
        *(() if beside else facts(pictured.timeline)),
        f"bubble rate {units.percent(overall.makespan)} of the makespan",
        f"{units.percent(overall.span)} of each rank's span",
    ]


def _wrapped(pieces: list[str], frame: Frame, style: Style) -> list[str]:
    """Join pieces into lines that fit the page; a piece itself is never broken."""
    most = (frame.width - _margin(frame, style)) / style.wide("0") / 1.1
    lines: list[str] = []
    for piece in map(shortened, pieces):
        if lines and len(lines[-1]) + 3 + len(piece) <= most:
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
    timeline: Timeline,
    bubbles: BubbleRates,
    frame: Frame,
    style: Style,
    extent: tuple[float, float],
) -> Iterator[str]:
    top, bottom = extent
    steps = (
        timeline.tasks.filter(pl.col("step").is_not_null(), pl.col("lane") == Lane.COMPUTE.value)
        .group_by("step")
        .agg(start_ns=pl.col("start_ns").min(), end_ns=pl.col("end_ns").max())
        .sort("start_ns")
    )
    for step, start, end in steps.iter_rows():
        left, right = frame.x(start), frame.x(end)
        yield (
            f'<path d="M{left:.2f} {number(top - 8)}V{number(bottom)}" stroke="#9a9a9a" '
            'stroke-width="0.7" stroke-dasharray="3 3"/>'
        )
        rates = bubbles.per_step.get(step)
        label = f"step {step}" + (f" · {units.percent(rates.makespan)}" if rates else "")
        if right - left > style.wide(label):
            yield f'<text x="{left + 3:.2f}" y="{number(top - 12)}" fill="{_GREY}">{label}</text>'


def _hosts(hosts: list[tuple[float, str]], style: Style) -> Iterator[str]:
    for y, host in hosts:
        yield (
            f'<text x="6" y="{number(y + style.host * 2 / 3)}" fill="{_GREY}" font-weight="bold">'
            f"{text(shortened(host))}</text>"
        )


def _lane_titles(
    titles: dict[int, str],
    bubbles: BubbleRates,
    lanes: dict[int, float],
    frame: Frame,
    style: Style,
    top: float,
) -> Iterator[str]:
    end = number(frame.width - style.gap / 2)
    yield f'<text x="{end}" y="{number(top - 12)}" text-anchor="end" fill="{_GREY}">bubble</text>'
    left, plot, block = number(frame.left), number(frame.plot), number(style.block)
    for rank, y in lanes.items():
        middle = number(y + style.block / 2 + style.font * 4 / 11)
        title = number(frame.left - style.gap)
        yield f'<text x="{title}" y="{middle}" text-anchor="end">{titles[rank]}</text>'
        yield (
            f'<rect x="{left}" y="{number(y)}" width="{plot}" height="{block}" fill="{BUBBLE}"/>'
        )
        rates = bubbles.per_rank.get(rank)
        if rates is not None:
            yield (
                f'<text x="{end}" y="{middle}" text-anchor="end">'
                f"{units.percent(rates.makespan)}</text>"
            )
