"""The classic picture of a schedule: devices, blocks with the number of their micro-batch, time."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model import units
from bubblescope.model.kinds import Kind, Lane
from bubblescope.render.palette import BUBBLE, COLOURS
from bubblescope.render.picture.blocks import Finish, blocks, coloured
from bubblescope.render.picture.guides import Entry, legend
from bubblescope.render.picture.order import pipeline_order
from bubblescope.render.picture.sheet import DIGIT, Drawing, Frame, number
from bubblescope.render.picture.size import INCH, POINT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.model.timeline import Timeline
    from bubblescope.render.picture.sheet import Style
    from bubblescope.render.picture.size import Size

_EDGE: Final = "#1a1a1a"
_EDGE_WIDTH: Final = 0.4
_OUTLINED: Final = 3
_LARGEST, _SMALLEST = 7 * POINT, 5 * POINT
"""Type sizes of the numbers in blocks."""
_SPARE, _AIR = 0.5, 2.0
"""Room beside a number: what it needs, and what it gets where type can be smaller instead."""
_HIGHEST: Final = 7 * INCH
"""Height that the lanes may take; beyond it they get thinner, down to `_THINNEST`."""
_THINNEST: Final = 4.0
_RIGHT: Final = 4
_SHADES: Final = 3
"""Chunks that can be told apart by their shade."""
_PALEST: Final = 0.55
"""How far the last chunk's colour is on its way to white."""

_NAMES: Final = {
    **{kind: kind.value.replace("_", " ").capitalize() for kind in Kind},
    Kind.BACKWARD_INPUT: "Backward for inputs",
    Kind.BACKWARD_WEIGHT: "Backward for weights",
    Kind.FORWARD_BACKWARD: "Overlapped forward and backward",
}


def draw(timeline: Timeline, size: Size, style: Style) -> Drawing:
    """Draw the compute lanes of a timeline as papers show schedules.

    Devices and micro-batches are numbered from 1. Chunks of a device's model are told apart by shade,
    or by letters where there are more than three or where weight gradients, a lighter shade
    themselves, are drawn.

    Args:
        timeline: What to draw.
        size: How wide.
        style: How large things are; the type in the blocks is 5 to 7 points high.

    Raises:
        BubblescopeError: The width leaves no room for the lanes beside their titles.
    """
    tasks = timeline.tasks.filter(pl.col("lane") == Lane.COMPUTE.value)
    ranks = pipeline_order(timeline)["rank"].to_list()
    titles = [f"Device {device + 1}" for device in range(len(ranks))]
    row = min(style.row, max(_THINNEST, _HIGHEST / max(1, len(ranks))))
    block = row - (0.5 if row == style.row else 0)
    frame = Frame.fit(
        (
            int(tasks["start_ns"].min() or 0),  # type: ignore[arg-type]
            int(tasks["end_ns"].max() or 1),  # type: ignore[arg-type]
        ),
        (max(map(style.wide, titles), default=0) + style.gap, _RIGHT),
        size,
        style,
    )
    top = 4.0
    lanes = {rank: top + row * device for device, rank in enumerate(ranks)}
    bottom = top + row * max(1, len(ranks))
    chunks = int(tasks["chunk"].max() or 0) + 1  # type: ignore[arg-type]
    shaded = 1 < chunks <= _SHADES and not (tasks["kind"] == Kind.BACKWARD_WEIGHT.value).any()
    tasks = _labelled(_shaded(tasks, chunks) if shaded else coloured(tasks), chunks, shaded=shaded)
    finish = Finish(
        block, _EDGE, _EDGE_WIDTH, _OUTLINED, _type_size(tasks, frame), _SMALLEST * 0.99, _SPARE
    )
    drawn, sampled = blocks(tasks, frame, lanes, finish)
    notes = (
        _notes(chunks, shaded=shaded)
        + [f"Crowded lanes show what runs at {style.sample}"] * sampled
    )
    entries = _entries(tasks, chunks if shaded else 1)
    explained, height = legend(
        entries, notes, (frame.left, bottom + style.font * 2.4), size.pixels, style
    )
    parts = [
        *_titles(titles, list(lanes.values()), frame, style, (row, block)),
        *drawn,
        *_steps(tasks, frame, (top, bottom)),
        *_time(frame, style, bottom),
        *explained,
    ]
    return Drawing("\n".join(parts), height - style.swatch * 0.75, style.font)


def _shaded(tasks: pl.DataFrame, chunks: int) -> pl.DataFrame:
    """Colour tasks by kind and chunk."""
    shades = {
        kind.value: [_lighter(colour, chunk, chunks) for chunk in range(chunks)]
        for kind, colour in COLOURS.items()
    }
    chunk = pl.col("chunk").fill_null(0).cast(pl.Int64)
    kind = pl.col("kind").cast(pl.String)
    fill = kind.replace_strict(shades, return_dtype=pl.List(pl.String)).list.get(chunk)
    tasks = coloured(tasks)
    # On anything lighter than a palette's own colour, dark text is the one that contrasts more.
    ink = pl.when(chunk == 0).then("ink").otherwise(pl.lit(_EDGE))
    return tasks.with_columns(fill=fill, ink=ink)


def _lighter(colour: str, chunk: int, chunks: int) -> str:
    share = _PALEST * chunk / max(1, chunks - 1)
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)


def _labelled(tasks: pl.DataFrame, chunks: int, *, shaded: bool) -> pl.DataFrame:
    """Label tasks with the numbers of their micro-batches, the first of which is 1."""
    shift = int(tasks["microbatch"].min() == 0)

    def said(prefix: str) -> pl.Expr:
        label = (pl.col(f"{prefix}microbatch") + shift).cast(pl.String)
        if chunks == 1 or shaded:
            return label
        letters = [chr(ord("a") + chunk % 26) for chunk in range(chunks)]
        chunk = pl.col(f"{prefix}chunk").cast(pl.Int64)
        letter = chunk.replace_strict(dict(enumerate(letters)), default="", return_dtype=pl.String)
        return pl.concat_str(label, letter.fill_null(""))

    pair = pl.concat_str(pl.lit("/"), said("pair_")).fill_null("")
    return tasks.with_columns(label=pl.concat_str(said("").fill_null(""), pair))


def _type_size(tasks: pl.DataFrame, frame: Frame) -> float:
    """Return one size for all numbers, at which they fit into nine blocks of ten."""
    numbered = tasks.filter(pl.col("label") != "")
    wide = (pl.col("end_ns") - pl.col("start_ns")) * frame.scale - _AIR
    fits = numbered.select(wide / (pl.col("label").str.len_chars() * DIGIT)).to_series()
    common = fits.quantile(0.1)
    return _LARGEST if common is None else min(_LARGEST, max(_SMALLEST, common))


def _entries(tasks: pl.DataFrame, chunks: int) -> list[Entry]:
    """Return the legend; kinds of one colour share a line."""
    present = set(tasks["kind"].cast(pl.String).unique())
    chunked = set(tasks.filter(pl.col("chunk") > 0)["kind"].cast(pl.String).unique())
    named: dict[tuple[str, ...], list[str]] = {}
    for kind in Kind:
        if kind.value in present:
            shades = range(chunks if kind.value in chunked else 1)
            colours = tuple(_lighter(COLOURS[kind], chunk, chunks) for chunk in shades)
            named.setdefault(colours, []).append(_NAMES[kind])
    entries = [Entry(" / ".join(names), colours, _EDGE) for colours, names in named.items()]
    return [*entries, Entry("Idle", (BUBBLE,), _EDGE)]


def _notes(chunks: int, *, shaded: bool) -> list[str]:
    if chunks == 1:
        return []
    if shaded:
        return ["A lighter shade is a later chunk of the device's model"]
    letters = ", ".join(chr(ord("a") + chunk % 26) for chunk in range(min(chunks, 3)))
    return [f"{letters}{', ...' if chunks > 3 else ''}: chunks of the device's model"]


def _titles(
    titles: list[str], tops: list[float], frame: Frame, style: Style, heights: tuple[float, float]
) -> Iterator[str]:
    """Draw idle lanes with their titles; where lanes are thin, only every so many have one."""
    row, block = heights
    every = ceil(style.font * 1.1 / row)
    left, plot = number(frame.left), number(frame.plot)
    for device, (title, y) in enumerate(zip(titles, tops, strict=True)):
        yield (
            f'<rect x="{left}" y="{number(y)}" width="{plot}" height="{number(block)}" '
            f'fill="{BUBBLE}"/>'
        )
        if device % every == 0:
            x, middle = number(frame.left - style.gap), number(y + block / 2 + style.font * 0.36)
            yield f'<text x="{x}" y="{middle}" text-anchor="end">{title}</text>'


def _steps(tasks: pl.DataFrame, frame: Frame, extent: tuple[float, float]) -> Iterator[str]:
    """Draw a line where each step but the first begins."""
    begins = tasks.filter(pl.col("step").is_not_null()).group_by("step")
    for start in begins.agg(pl.col("start_ns").min())["start_ns"].sort()[1:]:
        yield (
            f'<path d="M{frame.x(start):.2f} {number(extent[0] - 3)}V{number(extent[1] + 3)}" '
            f'stroke="{_EDGE}" stroke-width="0.7" stroke-dasharray="2 2"/>'
        )


def _time(frame: Frame, style: Style, bottom: float) -> Iterator[str]:
    """Draw the arrow of time, with the length of what is shown at its end."""
    line = bottom + style.font * 1.2
    length = units.duration(frame.end_ns - frame.start_ns)
    start = frame.left + style.wide("Time") + 4
    tip = frame.right - style.wide(length) - 4
    left, y = number(frame.left), number(line)
    base = number(line + style.font * 0.36)
    yield f'<text x="{left}" y="{base}">Time</text>'
    if tip > start + 8:
        yield (
            f'<path d="M{number(start)} {y}H{number(tip)}m-4 -2.5l4 2.5l-4 2.5" fill="none" '
            f'stroke="{_EDGE}" stroke-width="0.8"/>'
        )
    yield f'<text x="{number(frame.right)}" y="{base}" text-anchor="end">{length}</text>'
