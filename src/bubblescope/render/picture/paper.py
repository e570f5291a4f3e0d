"""The classic picture of a schedule: devices, blocks with the number of their micro-batch, time."""

from __future__ import annotations

from math import ceil, inf
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model import language, units
from bubblescope.model.kinds import Kind
from bubblescope.render.palette import BUBBLE
from bubblescope.render.picture.blocks import Finish, blocks, coloured, fills_of
from bubblescope.render.picture.guides import Entry, legend, step_labels
from bubblescope.render.picture.order import pipeline_order
from bubblescope.render.picture.sheet import (
    ALONE,
    DIGIT,
    Drawing,
    Frame,
    compute_tasks,
    number,
    span_of,
    text,
)
from bubblescope.render.picture.size import INCH, POINT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.analysis.picture_data import Pictured
    from bubblescope.render.picture.sheet import Panel, Style
    from bubblescope.render.picture.size import Size

_EDGE: Final = "#1a1a1a"
_EDGE_WIDTH: Final = 0.4
_OUTLINED, _THINNEST_OUTLINED = 3, 0.8
"""Width from which on a block is outlined, and the same where most blocks are that wide."""
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


def draw(pictured: Pictured, size: Size, style: Style, panel: Panel = ALONE) -> Drawing:
    """Draw the compute lanes of a timeline as papers show schedules.

    Devices and micro-batches are numbered from 1. Chunks of a device's model are told apart by shade,
    or by letters where there are more than three or where weight gradients, a lighter shade
    themselves, are drawn.

    Args:
        pictured: What to draw.
        size: How wide.
        style: How large things are; the type in the blocks is 5 to 7 points high.
        panel: What it shares with others.

    Raises:
        BubblescopeError: The width leaves no room for the lanes beside their titles.
    """
    tasks = compute_tasks(pictured.timeline)
    everything = tasks if panel.tasks is None else panel.tasks
    ranks = pipeline_order(pictured.timeline)["rank"].to_list()
    titles = _numbered(pictured)
    row = min(style.row, max(_THINNEST, _HIGHEST / max(1, len(ranks))))
    block = row - (0.5 if row == style.row else 0)
    beside = panel.margins or margins(pictured, style)
    frame = Frame.fit(panel.span or span_of(tasks), beside, size, style)
    steps = tasks.filter(pl.col("step").is_not_null()).group_by("step")
    begins = steps.agg(pl.col("start_ns").min()).sort("start_ns").rows()
    top = 4.0 + style.font * 1.5 * (bool(pictured.title) + (len(begins) > 1))
    lanes = {rank: top + row * device for device, rank in enumerate(ranks)}
    bottom = top + row * max(1, len(ranks))
    chunks = int(everything["chunk"].max() or 0) + 1  # type: ignore[arg-type]
    weights = (everything["kind"] == Kind.BACKWARD_WEIGHT.value).any()
    shaded = 1 < chunks <= _SHADES and not weights
    own = int(tasks["chunk"].max() or 0) + 1  # type: ignore[arg-type]
    tasks = _labelled(_shaded(tasks, chunks) if shaded else coloured(tasks), own, shaded=shaded)
    # One look for all blocks: outlines and numbers that only some have room for look like a pattern.
    wide = (everything["end_ns"] - everything["start_ns"]) * frame.scale
    outlined = _OUTLINED if (wide.median() or 0) < _OUTLINED else _THINNEST_OUTLINED  # type: ignore[operator]
    size_of_type = _type_size(_labelled(everything, chunks, shaded=shaded), frame)
    least = _SMALLEST * 0.99 if size_of_type else inf
    finish = Finish(block, _EDGE, _EDGE_WIDTH, outlined, size_of_type, least, _SPARE)
    drawn, sampled = blocks(tasks, frame, lanes, finish)
    explained: list[str] = []
    height = bottom + (style.font * 2.4 if panel.axis else 4)
    if panel.legend:
        notes = (
            _notes(chunks, shaded=shaded)
            + [f"Crowded lanes show what runs at {style.sample}"] * sampled
        )
        entries = _entries(everything, chunks if shaded else 1)
        explained, height = legend(entries, notes, (frame.left, height), size.pixels, style)
        height -= style.swatch * 0.75
    parts = [
        *_caption(pictured.title, frame, style),
        *_titles(titles, list(lanes.values()), frame, style, (row, block)),
        *drawn,
        *_steps(begins, frame, style, (top, bottom)),
        *(_time(frame, style, bottom) if panel.axis else ()),
        *explained,
    ]
    return Drawing("\n".join(parts), height, style.font)


def margins(pictured: Pictured, style: Style) -> tuple[float, float]:
    """Return how much room there is at the left, for the titles of the lanes, and at the right."""
    return max(map(style.wide, _numbered(pictured)), default=0) + style.gap, _RIGHT


def _numbered(pictured: Pictured) -> list[str]:
    """Return the titles of the lanes."""
    devices = range(1, pictured.timeline.ranks.height + 1)
    return [language.translated(f"Device {device}") for device in devices]


def _caption(title: str, frame: Frame, style: Style) -> Iterator[str]:
    if title:
        yield f'<text x="{number(frame.left)}" y="{number(style.font * 1.2)}">{text(title)}</text>'


def _shaded(tasks: pl.DataFrame, chunks: int) -> pl.DataFrame:
    """Colour tasks by kind and chunk."""
    shades = {
        kind.value: [_lighter(colour, chunk, chunks) for chunk in range(chunks)]
        for kind, colour in fills_of(tasks).items()
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
    label = pl.concat_str(said("").fill_null(""), pair)
    return tasks.with_columns(label=label, named=pl.lit(value=False))


def _type_size(tasks: pl.DataFrame, frame: Frame) -> float:
    """Return one size for all numbers, at which they fit into nine blocks of ten.

    0 if the smallest fits into less than half of them.
    """
    numbered = tasks.filter(pl.col("label") != "")
    wide = (pl.col("end_ns") - pl.col("start_ns")) * frame.scale
    letters = pl.col("label").str.len_chars() * DIGIT
    fits = numbered.select((wide - _AIR) / letters).to_series()
    if not len(fits):
        return _LARGEST
    if numbered.select(((wide - _SPARE) / letters).median()).item() < _SMALLEST:
        return 0.0
    return min(_LARGEST, max(_SMALLEST, fits.quantile(0.1) or 0.0))


def _entries(tasks: pl.DataFrame, chunks: int) -> list[Entry]:
    """Return the legend."""
    present = set(tasks["kind"].cast(pl.String).unique())
    chunked = set(tasks.filter(pl.col("chunk") > 0)["kind"].cast(pl.String).unique())
    entries = []
    for kind, fill in fills_of(tasks).items():
        if kind.value in present:
            shades = range(chunks if kind.value in chunked else 1)
            colours = tuple(_lighter(fill, chunk, chunks) for chunk in shades)
            entries.append(Entry(language.translated(_NAMES[kind]), colours, _EDGE))
    return [*entries, Entry(language.translated("Idle"), (BUBBLE,), _EDGE)]


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


def _steps(
    begins: list[tuple[int, int]], frame: Frame, style: Style, extent: tuple[float, float]
) -> Iterator[str]:
    """Draw a line where each step but the first begins, and numbers above, where there are several."""
    if len(begins) < 2:
        return
    top, bottom = extent
    lefts = [frame.x(start) for _, start in begins]
    labels = step_labels(
        [step for step, _ in begins], [""] * len(begins), [*lefts, frame.right], style
    )
    for at, (left, label) in enumerate(zip(lefts, labels, strict=True)):
        if at > 0:
            yield (
                f'<path d="M{left:.2f} {number(top - 3)}V{number(bottom + 3)}" '
                f'stroke="{_EDGE}" stroke-width="0.7" stroke-dasharray="2 2"/>'
            )
        if label and left + style.wide(label) <= frame.right:
            yield f'<text x="{left:.2f}" y="{number(top - style.font * 0.5)}">{label}</text>'


def _time(frame: Frame, style: Style, bottom: float) -> Iterator[str]:
    """Draw the arrow of time, with the length of what is shown at its end."""
    line = bottom + style.font * 1.2
    length = units.duration(frame.end_ns - frame.start_ns)
    title = language.translated("Time")
    start = frame.left + style.wide(title) + 4
    tip = frame.right - style.wide(length) - 4
    left, y = number(frame.left), number(line)
    base = number(line + style.font * 0.36)
    yield f'<text x="{left}" y="{base}">{title}</text>'
    if tip > start + 8:
        yield (
            f'<path d="M{number(start)} {y}H{number(tip)}m-4 -2.5l4 2.5l-4 2.5" fill="none" '
            f'stroke="{_EDGE}" stroke-width="0.8"/>'
        )
    yield f'<text x="{number(frame.right)}" y="{base}" text-anchor="end">{length}</text>'
