"""Tasks as blocks in the lanes of a picture.

A block is drawn where its task is, to a hundredth of a pixel. Where a lane has more tasks than room
for them, it shows samples. Tasks that overlap share the height of their lane, so none hides another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.model import intervals
from bubblescope.render.layout import drawn_ns, duration_text, own_name, short_label, with_rows
from bubblescope.render.palette import colours_beside, ink_on
from bubblescope.render.picture.sampling import moments, running
from bubblescope.render.picture.sheet import DIGIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.model.kinds import Kind
    from bubblescope.render.picture.sheet import Frame

_ROOM: Final = 3
"""Least average pixels per task at which a lane is drawn block by block."""
MOST_BLOCKS: Final = 40_000
"""Tasks of a picture up to which any lane is drawn block by block."""
_LETTER: Final = 0.68
"""As `DIGIT`, of the letters of names in the widest of the fonts."""
_FEW: Final = 0.02
"""Share of labels that may be left out so that the others are larger."""
_MOST_LETTERS: Final = 1_000
_LEAST_LETTERS: Final = 5
"""Letters of a name that must fit for its beginning to be shown."""


class Finish(NamedTuple):
    """How blocks are drawn. Lengths are in pixels.

    Attributes:
        block: Height of one that has its lane to itself.
        edge, edge_width: Colour and width of its outline.
        outlined: Width from which on it has one.
        font, least: Size of its label, and the size below which it has none.
        spare: Room beside a label.
    """

    block: float
    edge: str
    edge_width: float
    outlined: float
    font: float
    least: float
    spare: float


def coloured(tasks: pl.DataFrame) -> pl.DataFrame:
    """Add what blocks are drawn with: `label`, `named` (it is the task's own name), `fill`, `ink`."""
    kind = pl.col("kind").cast(pl.String)
    fills = fills_of(tasks)
    return tasks.with_columns(
        label=short_label(),
        named=own_name(),
        fill=kind.replace_strict({kind.value: fill for kind, fill in fills.items()}),
        ink=kind.replace_strict({kind.value: ink_on(fill) for kind, fill in fills.items()}),
    )


def fills_of(tasks: pl.DataFrame) -> dict[Kind, str]:
    """Return the fill of each kind in a picture of some tasks."""
    return colours_beside(tasks["kind"].cast(pl.String).unique().to_list())


def type_size(tasks: pl.DataFrame, frame: Frame, sizes: tuple[float, float], spare: float) -> float:
    """Return one size for the labels of all blocks, at which all but a few that can be legible fit.

    Sizes that differ from block to block, or labels that only some blocks of a kind have room for, look
    like a pattern of the run.

    Args:
        tasks: Tasks with what `coloured` adds. Names of their own are cut to fit, so they do not count.
        frame: Where time lies.
        sizes: The smallest and the largest that it may be.
        spare: Room beside a label.
    """
    least, most = sizes
    wide = (pl.col("end_ns") - pl.col("start_ns")) * frame.scale - spare
    labelled = tasks.filter(~pl.col("named") & (pl.col("label") != ""))
    fits = labelled.select(wide / (pl.col("label").str.len_chars() * DIGIT)).to_series()
    smallest = fits.filter(fits >= least).quantile(_FEW)
    if smallest is None:
        return most
    return min(most, max(least, smallest * (1 - 1e-9)))  # rounding must not make it too large


def blocks(
    tasks: pl.DataFrame, frame: Frame, top: dict[int, float], finish: Finish
) -> tuple[list[str], bool]:
    """Draw every task of lanes with room for them, and samples of the others.

    Args:
        tasks: Tasks with what `coloured` adds.
        frame: Where time lies.
        top: Rank -> top of its lane.
        finish: How blocks are drawn.

    Returns:
        The elements, and whether any lane is sampled.
    """
    crowded = (pl.len().over("rank") > frame.plot // _ROOM) | (pl.len() > MOST_BLOCKS)
    tasks = tasks.with_columns(crowded=crowded)
    sampled = tasks.filter("crowded")
    return [
        *_drawn(tasks.filter(~pl.col("crowded")), frame, top, finish),
        *_strokes(_runs(sampled, frame), frame, top, finish),
    ], sampled.height > 0


def _drawn(
    tasks: pl.DataFrame, frame: Frame, top: dict[int, float], finish: Finish
) -> Iterator[str]:
    high = finish.block / pl.col("slots")
    shown = _shared(tasks).select(
        "label",
        "named",
        "fill",
        "ink",
        left=frame.left + (drawn_ns() - frame.start_ns) * frame.scale,
        wide=(pl.col("end_ns") - drawn_ns()) * frame.scale,
        high=high,
        y=pl.col("rank").replace_strict(top, return_dtype=pl.Float64) + high * pl.col("slot"),
        title=_safe(pl.format("{} · {}", short_label(), duration_text())),
    )
    rect = pl.format(
        '<rect x="{}" y="{}" width="{}" height="{}" fill="{}"><title>{}</title></rect>',
        pl.col("left").round(2),
        _number("y"),
        pl.col("wide").round(2),
        _number("high"),
        "fill",
        "title",
    )
    size = pl.min_horizontal(pl.lit(finish.font), pl.col("high") - 1)
    letter = size * pl.when("named").then(_LETTER).otherwise(DIGIT)
    room = (pl.col("wide") - finish.spare) / letter.clip(lower_bound=0.01)  # type may be of no size
    room = room.clip(0, _MOST_LETTERS).floor().cast(pl.Int64)
    long = pl.col("named") & (pl.col("label").str.len_chars() > room) & (room >= _LEAST_LETTERS)
    begun = pl.format("{}…", pl.col("label").str.slice(0, (room - 1).clip(lower_bound=0)))
    shown = shown.with_columns(label=pl.when(long).then(begun).otherwise("label"))
    label = pl.format(
        '<text x="{}" y="{}" fill="{}" font-size="{}">{}</text>',
        (pl.col("left") + pl.col("wide") / 2).round(2),
        _number(pl.col("y") + pl.col("high") / 2 + size * 0.36),
        "ink",
        _number(size),
        _safe(pl.col("label")),
    )
    outlined = pl.col("wide") >= finish.outlined
    legible = (size >= finish.least) & (
        pl.col("wide") >= pl.col("label").str.len_chars() * letter + finish.spare
    )
    yield f'<g stroke="{finish.edge}" stroke-width="{finish.edge_width}">'
    yield from shown.filter(outlined).select(rect).to_series()
    yield "</g>"
    yield from shown.filter(~outlined).select(rect).to_series()
    yield '<g text-anchor="middle" pointer-events="none">'
    yield from shown.filter(legible & (pl.col("label") != "")).select(label).to_series()
    yield "</g>"


def _safe(value: pl.Expr) -> pl.Expr:
    """Make text safe to stand in an SVG document; control characters are none of it any more."""
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        value = value.str.replace_all(sign, entity, literal=True)
    return value.str.replace_all("[\\u{fffe}\\u{ffff}]", "\ufffd")


def _number(value: str | pl.Expr) -> pl.Expr:
    """Write a coordinate to a hundredth of a pixel, whole ones without a point."""
    value = pl.col(value) if isinstance(value, str) else value
    return value.round(2).cast(pl.String).str.strip_suffix(".0")


def _shared(tasks: pl.DataFrame) -> pl.DataFrame:
    """Add `slot` and `slots`: which part of its lane's height a task has, and of how many."""
    placed = with_rows(tasks)
    _, ends, rank = intervals.columns(placed, "rank")
    alone = drawn_ns() >= pl.Series(intervals.reached_ns(ends, rank))
    return (
        placed.with_columns(group=alone.cum_sum())
        .with_columns(slot=pl.col("row").rank("dense").over("group").cast(pl.Int64) - 1)
        .with_columns(slots=pl.col("slot").max().over("group") + 1)
    )


def _runs(tasks: pl.DataFrame, frame: Frame) -> pl.DataFrame:
    """Return what runs at the centre of each column, merged into runs.

    Returns:
        Frame with rank, fill, left and wide (in columns), and slot and slots as in `_shared`.
    """
    key = ("rank", "slot", "slots", "fill")
    at_ns = moments(frame.start_ns, frame.end_ns, frame.columns)
    drawn = with_rows(tasks).with_columns(start_ns=drawn_ns())
    shown = running(drawn, at_ns, "fill").sort(*key, "sample")
    begins = pl.any_horizontal(
        pl.struct(key) != pl.struct(key).shift(1), pl.col("sample") != pl.col("sample").shift(1) + 1
    )
    return (
        shown.with_columns(run=begins.fill_null(value=True).cum_sum())
        .group_by("run", maintain_order=True)
        .agg(pl.col(key).first(), left=pl.col("sample").first(), wide=pl.len())
    )


def _strokes(
    runs: pl.DataFrame, frame: Frame, top: dict[int, float], finish: Finish
) -> Iterator[str]:
    """Draw runs as strokes, all of one rank, colour and height in one path."""
    if not runs.height:
        return
    place, closing = pl.col("left"), ""
    if frame.density == 1:
        place = place + int(frame.left)
    else:  # then a column is a fraction of a pixel, and the paths count in columns
        yield f'<g transform="translate({frame.left:.8g} 0) scale({1 / frame.density:.8g} 1)">'
        closing = "</g>"
    high = finish.block / pl.col("slots")
    middle = pl.col("rank").replace_strict(top, return_dtype=pl.Float64) + high * (
        pl.col("slot") + 0.5
    )
    yield from (
        runs.with_columns(d=pl.format("M{} {}h{}", place, _number(middle), "wide"))
        .group_by("rank", "fill", "slots", maintain_order=True)
        .agg(pl.col("d").str.join(""))
        .select(
            pl.format('<path stroke="{}" stroke-width="{}" d="{}"/>', "fill", _number(high), "d")
        )
        .to_series()
    )
    yield closing
