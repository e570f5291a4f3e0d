"""A picture for papers, slides and notebooks.

One lane per rank, in pipeline order. A block is drawn where its task is, to a hundredth of a pixel.
Where a lane has more tasks than pixels, each pixel column shows what runs at its centre: blocks are
never widened to be seen. Tasks that overlap share the height of their lane, so none hides another.
What looks idle is idle.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope import units
from bubblescope.analysis.bubbles import Bubbles, measure
from bubblescope.errors import BubblescopeError
from bubblescope.exports.files import replacing
from bubblescope.exports.layout import duration_text, ordered_ranks, short_label, with_rows
from bubblescope.palette import BUBBLE, COLOURS, INK
from bubblescope.report import facts
from bubblescope.vocabulary import Kind, Lane

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from bubblescope.timeline import Timeline

__all__ = ["compare", "render", "write"]

_ROW: Final = 22
_BLOCK: Final = 18
_LEFT: Final = 150
"""Least room for the titles of the lanes; longer ones, of ranks with many chunks, take more."""
_RIGHT: Final = 70
_LEAST_PLOT: Final = 100
_HOST: Final = 18
"""Height of a host's name above its lanes."""
_LINE: Final = 18
_LONGEST: Final = 44
"""Characters of a lane's title or a host's name that are shown."""
_FONT: Final = 11
_DIGIT: Final = 6.4
"""Width of a character at that size, a little generous, to decide whether a label fits."""
_SEPARATED: Final = 6
"""Pixels from which on a block is set off from its neighbours by a hairline."""
_ROOM: Final = 3
"""Least average pixels per task at which a lane is drawn block by block."""
_MOST_BLOCKS: Final = 40_000
_ILLEGAL: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _Frame(NamedTuple):
    """Where time lies on the page."""

    start_ns: int
    end_ns: int
    left: int
    width: int

    @property
    def plot(self) -> int:
        return self.width - self.left - _RIGHT

    @property
    def scale(self) -> float:
        """Pixels per nanosecond."""
        return self.plot / max(1, self.end_ns - self.start_ns)

    def x(self, time_ns: int) -> float:
        return self.left + (time_ns - self.start_ns) * self.scale


def write(timeline: Timeline, path: Path, *, width: int = 1600) -> Path:
    """Write the picture, `width` pixels wide."""
    with replacing(path) as partial:
        partial.write_text(render(timeline, width=width), encoding="utf-8")
    return path


def compare(timelines: Sequence[Timeline], *, width: int = 1200) -> str:
    """Return one picture of several timelines, one below the other on the same scale of time.

    Args:
        timelines: What to draw, top to bottom.
        width: Of the picture, in pixels.
    """
    longest = max((timeline.duration_ns for timeline in timelines), default=0)
    everything = set[str]().union(*(_kinds(timeline) for timeline in timelines))
    parts, y = [], 0
    for timeline in timelines:
        explained = everything if timeline is timelines[-1] else set()
        panel, height = _panel(timeline, width, length_ns=longest, explained=explained)
        parts.append(f'<g transform="translate(0 {y})">\n{panel}\n</g>')
        y += height
    return _page("\n".join(parts), width, y)


def render(timeline: Timeline, *, width: int = 1200, max_steps: int | None = None) -> str:
    """Return the picture as SVG text.

    Args:
        timeline: What to draw: its compute lanes.
        width: Of the picture, in pixels.
        max_steps: Draw only the first so many steps.

    Raises:
        BubblescopeError: The width leaves no room for the lanes beside their titles.
    """
    if max_steps is not None and len(timeline.steps) > max_steps:
        timeline = timeline.slice(steps=timeline.steps[:max_steps])
    content, height = _panel(timeline, width)
    return _page(content, width, height)


def _page(content: str, width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif" '
        f'font-size="{_FONT}"><rect width="100%" height="100%" fill="#ffffff"/>\n{content}\n</svg>\n'
    )


def _panel(
    timeline: Timeline,
    width: int,
    *,
    length_ns: int | None = None,
    explained: set[str] | None = None,
) -> tuple[str, int]:
    """Draw a timeline, `length_ns` of it or all, and return that and how high it is.

    The legend is of the kinds in `explained`, of those in the picture if None.
    """
    bubbles = measure(timeline)
    tasks = timeline.tasks.filter(pl.col("lane") == Lane.COMPUTE.value)
    titles = _titles(timeline)
    first = int(tasks["start_ns"].min() or 0)  # type: ignore[arg-type]
    frame = _Frame(
        first,
        int(tasks["end_ns"].max() or 1) if length_ns is None else first + length_ns,  # type: ignore[arg-type]
        max(_LEFT, round(max(map(len, titles.values()), default=0) * _DIGIT) + 16),
        width,
    )
    if frame.plot < _LEAST_PLOT:
        least = frame.left + _RIGHT + _LEAST_PLOT
        raise BubblescopeError(f"a picture of these ranks must be at least {least} pixels wide")
    heading = _wrapped(_said(timeline, bubbles), frame)
    top = 30 + _LINE * len(heading)
    lanes, hosts, bottom = _lanes(timeline, top)
    blocks, sampled = _blocks(tasks, frame, lanes)
    legend: list[str] = []
    height = bottom + 34
    if explained is None or explained:
        kinds = explained or _kinds(timeline)
        legend, height = _legend(kinds, frame, bottom + 34, sampled=sampled)
    parts = [
        *_heading(heading, frame),
        *_steps(timeline, bubbles, frame, top, bottom),
        *_hosts(hosts),
        *_lane_titles(titles, bubbles, lanes, frame, top),
        *blocks,
        *_axis(frame, bottom),
        *legend,
    ]
    return "\n".join(parts), height


def _text(value: str) -> str:
    return escape(_ILLEGAL.sub("\ufffd", value), quote=True)


def _shortened(value: str) -> str:
    return value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"


def _titles(timeline: Timeline) -> dict[int, str]:
    """Return the title of each rank's lane."""
    titles = {}
    for rank, stages in timeline.ranks.select("rank", "stages").iter_rows():
        held = ", ".join(map(str, stages or []))
        titles[rank] = _shortened(f"rank {rank}" + (f" · stage {held}" if held else ""))
    return titles


def _lanes(timeline: Timeline, top: int) -> tuple[dict[int, int], list[tuple[int, str]], int]:
    """Return the top of each rank's lane, that of each host's name, and the bottom of it all.

    Where there is but one host, its name is left out.
    """
    lanes: dict[int, int] = {}
    hosts: list[tuple[int, str]] = []
    several = timeline.ranks["host"].n_unique() > 1
    y, host = top, None
    for rank in ordered_ranks(timeline).iter_rows(named=True):
        if several and rank["host"] != host:
            host = rank["host"]
            hosts.append((y, host))
            y += _HOST
        lanes[rank["rank"]] = y
        y += _ROW
    return lanes, hosts, max(y, top + _ROW)


def _said(timeline: Timeline, bubbles: Bubbles) -> list[str]:
    overall = bubbles.overall
    return [
        *facts(timeline),
        f"bubble rate {units.percent(overall.makespan)} of the makespan",
        f"{units.percent(overall.span)} of each rank's span",
    ]


def _wrapped(pieces: list[str], frame: _Frame) -> list[str]:
    """Join pieces into lines that fit the page; a piece itself is never broken."""
    most = (frame.width - frame.left) / (_DIGIT * 1.1)
    lines: list[str] = []
    for piece in map(_shortened, pieces):
        if lines and len(lines[-1]) + 3 + len(piece) <= most:
            lines[-1] += f" · {piece}"
        else:
            lines.append(piece)
    return lines


def _heading(lines: list[str], frame: _Frame) -> Iterator[str]:
    for index, line in enumerate(lines):
        yield (
            f'<text x="{frame.left}" y="{16 + index * _LINE}" font-size="13" fill="#1a1a1a">'
            f"{_text(line)}</text>"
        )


def _steps(
    timeline: Timeline, bubbles: Bubbles, frame: _Frame, top: int, bottom: int
) -> Iterator[str]:
    steps = (
        timeline.tasks.filter(pl.col("step").is_not_null(), pl.col("lane") == Lane.COMPUTE.value)
        .group_by("step")
        .agg(start_ns=pl.col("start_ns").min(), end_ns=pl.col("end_ns").max())
        .sort("start_ns")
    )
    for step, start, end in steps.iter_rows():
        left, right = frame.x(start), frame.x(end)
        yield (
            f'<path d="M{left:.2f} {top - 8}V{bottom}" stroke="#9a9a9a" stroke-width="0.7" '
            'stroke-dasharray="3 3"/>'
        )
        rates = bubbles.per_step.get(step)
        label = f"step {step}" + (f" · {units.percent(rates.makespan)}" if rates else "")
        if right - left > len(label) * _DIGIT:
            yield f'<text x="{left + 3:.2f}" y="{top - 12}" fill="#5c5c5c">{label}</text>'


def _hosts(hosts: list[tuple[int, str]]) -> Iterator[str]:
    for y, host in hosts:
        yield (
            f'<text x="6" y="{y + 12}" fill="#5c5c5c" font-weight="bold">'
            f"{_text(_shortened(host))}</text>"
        )


def _lane_titles(
    titles: dict[int, str], bubbles: Bubbles, lanes: dict[int, int], frame: _Frame, top: int
) -> Iterator[str]:
    yield (
        f'<text x="{frame.width - 4}" y="{top - 12}" text-anchor="end" fill="#5c5c5c">bubble</text>'
    )
    for rank, y in lanes.items():
        middle = y + _BLOCK - 5
        yield f'<text x="{frame.left - 8}" y="{middle}" text-anchor="end">{titles[rank]}</text>'
        yield (
            f'<rect x="{frame.left}" y="{y}" width="{frame.plot}" height="{_BLOCK}" '
            f'fill="{BUBBLE}"/>'
        )
        rates = bubbles.per_rank.get(rank)
        if rates is not None:
            yield (
                f'<text x="{frame.width - 4}" y="{middle}" text-anchor="end">'
                f"{units.percent(rates.makespan)}</text>"
            )


def _blocks(tasks: pl.DataFrame, frame: _Frame, top: dict[int, int]) -> tuple[list[str], bool]:
    """Draw every task of lanes with room for them, and one sample per pixel of the others."""
    crowded = (pl.len().over("rank") > frame.plot // _ROOM) | (pl.len() > _MOST_BLOCKS)
    tasks = tasks.with_columns(label=short_label(), crowded=crowded)
    sampled = tasks.filter("crowded")
    return [
        *_drawn(tasks.filter(~pl.col("crowded")), frame, top),
        *_strokes(_sample(sampled, frame), top),
    ], sampled.height > 0


def _drawn(tasks: pl.DataFrame, frame: _Frame, top: dict[int, int]) -> Iterator[str]:
    blocks = _shared(tasks).select(
        "label",
        kind=pl.col("kind").cast(pl.String),
        left=frame.left + (pl.col("start_ns") - frame.start_ns) * frame.scale,
        wide=(pl.col("end_ns") - pl.col("start_ns")) * frame.scale,
        high=_BLOCK / pl.col("slots"),
        y=pl.col("rank").replace_strict(top, return_dtype=pl.Int64)
        + _BLOCK / pl.col("slots") * pl.col("slot"),
        title=pl.format("{} · {}", "label", duration_text()),
    )
    rect = pl.format(
        '<rect x="{}" y="{}" width="{}" height="{}" fill="{}"><title>{}</title></rect>',
        pl.col("left").round(2),
        _number("y"),
        pl.col("wide").round(2),
        _number("high"),
        pl.col("kind").replace_strict({kind.value: colour for kind, colour in COLOURS.items()}),
        "title",
    )
    size = pl.min_horizontal(pl.lit(_FONT), pl.col("high") - 1)
    label = pl.format(
        '<text x="{}" y="{}" fill="{}" font-size="{}">{}</text>',
        (pl.col("left") + pl.col("wide") / 2).round(2),
        _number(pl.col("y") + pl.col("high") / 2 + size * 0.36),
        pl.col("kind").replace_strict({kind.value: colour for kind, colour in INK.items()}),
        _number(size),
        "label",
    )
    separated = pl.col("wide") >= _SEPARATED
    legible = (size >= _FONT * 0.7) & (
        pl.col("wide") >= pl.col("label").str.len_chars() * size * (_DIGIT / _FONT) + 3
    )
    yield '<g stroke="#ffffff" stroke-width="0.5">'
    yield from blocks.filter(separated).select(rect).to_series()
    yield "</g>"
    yield from blocks.filter(~separated).select(rect).to_series()
    yield '<g text-anchor="middle" pointer-events="none">'
    yield from blocks.filter(legible).select(label).to_series()
    yield "</g>"


def _number(value: str | pl.Expr) -> pl.Expr:
    """Write a coordinate to a hundredth of a pixel, whole ones without a point."""
    value = pl.col(value) if isinstance(value, str) else value
    return value.round(2).cast(pl.String).str.strip_suffix(".0")


def _shared(tasks: pl.DataFrame) -> pl.DataFrame:
    """Add `slot` and `slots`: which part of its lane's height a task has, and of how many."""
    alone = (pl.col("start_ns") >= pl.col("end_ns").cum_max().shift(1).over("rank")).fill_null(
        value=True
    )
    return (
        with_rows(tasks)
        .with_columns(group=alone.cum_sum())
        .with_columns(slot=pl.col("row").rank("dense").over("group").cast(pl.Int64) - 1)
        .with_columns(slots=pl.col("slot").max().over("group") + 1)
    )


def _sample(tasks: pl.DataFrame, frame: _Frame) -> pl.DataFrame:
    """Return what runs at each pixel's centre, merged into runs.

    Returns:
        Frame with rank, kind, left, wide, and slot and slots as in `_shared`.
    """
    step = (frame.end_ns - frame.start_ns) / frame.plot
    centres = frame.start_ns + ((np.arange(frame.plot) + 0.5) * step).astype(np.int64)
    key = ("rank", "slot", "slots", "kind")
    shown = (
        tasks.select(
            "rank",
            "start_ns",
            kind=pl.col("kind").cast(pl.String),
            first=np.searchsorted(centres, tasks["start_ns"].to_numpy()),
            last=np.searchsorted(centres, tasks["end_ns"].to_numpy()),
        )
        .filter(pl.col("first") < pl.col("last"))
        .select("rank", "kind", "start_ns", pixel=pl.int_ranges("first", "last"))
        .explode("pixel")
        .sort("rank", "pixel", "start_ns", maintain_order=True)
        .with_columns(
            slot=pl.int_range(pl.len()).over("rank", "pixel"),
            slots=pl.len().over("rank", "pixel"),
        )
        .sort(*key, "pixel")
    )
    begins = pl.any_horizontal(
        pl.struct(key) != pl.struct(key).shift(1), pl.col("pixel") != pl.col("pixel").shift(1) + 1
    )
    return (
        shown.with_columns(run=begins.fill_null(value=True).cum_sum())
        .group_by("run", maintain_order=True)
        .agg(pl.col(key).first(), left=pl.col("pixel").first() + frame.left, wide=pl.len())
    )


def _strokes(runs: pl.DataFrame, top: dict[int, int]) -> pl.Series:
    """Draw runs as strokes, all of one rank, kind and height in one path."""
    middle = pl.col("rank").replace_strict(top, return_dtype=pl.Int64) + _BLOCK / pl.col(
        "slots"
    ) * (pl.col("slot") + 0.5)
    return (
        runs.with_columns(d=pl.format("M{} {}h{}", "left", _number(middle), "wide"))
        .group_by("rank", "kind", "slots", maintain_order=True)
        .agg(pl.col("d").str.join(""))
        .select(
            pl.format(
                '<path stroke="{}" stroke-width="{}" d="{}"/>',
                pl.col("kind").replace_strict(
                    {kind.value: colour for kind, colour in COLOURS.items()}
                ),
                _number(_BLOCK / pl.col("slots")),
                "d",
            )
        )
        .to_series()
    )


def _axis(frame: _Frame, bottom: int) -> Iterator[str]:
    """Draw time from the first task's start, at round numbers."""
    y = bottom + 4
    yield f'<path d="M{frame.left} {y}H{frame.left + frame.plot}" stroke="#5c5c5c"/>'
    spacing = _round_step((frame.end_ns - frame.start_ns) / max(1, frame.plot / 120))
    for tick in range(0, frame.end_ns - frame.start_ns + 1, spacing):
        x = frame.x(frame.start_ns + tick)
        yield f'<path d="M{x:.2f} {y}v4" stroke="#5c5c5c"/>'
        yield (
            f'<text x="{x:.2f}" y="{y + 16}" text-anchor="middle" fill="#5c5c5c">'
            f"{_tick(tick, spacing)}</text>"
        )


def _round_step(least: float) -> int:
    """Return the smallest 1, 2 or 5 times a power of ten that is at least `least`."""
    power = 1
    while power * 10 < least:
        power *= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def _tick(time_ns: int, spacing: int) -> str:
    for scale, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")):
        if spacing * 10 >= scale:
            return f"{time_ns / scale:g} {unit}"
    return f"{time_ns} ns"


def _kinds(timeline: Timeline) -> set[str]:
    """Return the kinds of task in the picture."""
    drawn = timeline.tasks.filter(pl.col("lane") == Lane.COMPUTE.value)
    return set(drawn["kind"].cast(pl.String).unique())


def _legend(present: set[str], frame: _Frame, y: int, *, sampled: bool) -> tuple[list[str], int]:
    """Return the legend from height `y` on, in as many lines as it needs, and where it ends."""
    entries = [
        (kind.value.replace("_", " "), COLOURS[kind]) for kind in Kind if kind.value in present
    ]
    drawn: list[str] = []
    x = frame.left
    for name, colour in [*entries, ("bubble", BUBBLE)]:
        room = 34 + int(len(name) * _DIGIT)
        if x > frame.left and x + room > frame.width:
            x, y = frame.left, y + _LINE
        edge = ' stroke="#cfcfcf"' if colour == BUBBLE else ""
        drawn.append(f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"{edge}/>')
        drawn.append(f'<text x="{x + 17}" y="{y + 10}">{name}</text>')
        x += room
    if sampled:
        y += _LINE
        drawn.append(
            f'<text x="{frame.left}" y="{y + 10}" fill="#5c5c5c">crowded lanes show what runs '
            "at each pixel's centre</text>"
        )
    return drawn, y + 24
