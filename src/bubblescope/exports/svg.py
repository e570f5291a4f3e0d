"""A picture for papers, slides and notebooks.

One lane per rank, in pipeline order. A block is drawn where its task is, to a hundredth of a pixel.
Where a lane has more tasks than pixels, each pixel column shows what runs at its centre: blocks are
never widened to be seen, so what looks idle is idle.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope import units
from bubblescope.analysis.bubbles import Bubbles, measure
from bubblescope.exports.files import replacing
from bubblescope.exports.layout import duration_text, ordered_ranks, short_label
from bubblescope.palette import BUBBLE, COLOURS, INK
from bubblescope.report import facts
from bubblescope.vocabulary import Kind, Lane

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bubblescope.timeline import Timeline

__all__ = ["render", "write"]

_ROW: Final = 22
_BLOCK: Final = 18
_LEFT: Final = 150
_RIGHT: Final = 70
_TOP: Final = 46
_LEGEND: Final = 46
_GROUP_GAP: Final = 10
_FONT: Final = 11
_DIGIT: Final = 6.4
"""Width of a character at that size, a little generous, to decide whether a label fits."""
_ROOM: Final = 3
"""Least average pixels per task at which a lane is drawn block by block."""
_MOST_BLOCKS: Final = 40_000
_ILLEGAL: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class _Frame(NamedTuple):
    """Where time lies on the page."""

    start_ns: int
    end_ns: int
    width: int

    @property
    def plot(self) -> int:
        return self.width - _LEFT - _RIGHT

    @property
    def scale(self) -> float:
        """Pixels per nanosecond."""
        return self.plot / max(1, self.end_ns - self.start_ns)

    def x(self, time_ns: int) -> float:
        return _LEFT + (time_ns - self.start_ns) * self.scale


def write(timeline: Timeline, path: Path, *, width: int = 1600) -> Path:
    """Write the picture, `width` pixels wide."""
    with replacing(path) as partial:
        partial.write_text(render(timeline, width=width), encoding="utf-8")
    return path


def render(timeline: Timeline, *, width: int = 1200, max_steps: int | None = None) -> str:
    """Return the picture as SVG text.

    Args:
        timeline: What to draw: its compute lanes.
        width: Of the picture, in pixels.
        max_steps: Draw only the first so many steps.
    """
    if max_steps is not None and len(timeline.steps) > max_steps:
        timeline = timeline.slice(steps=timeline.steps[:max_steps])
    bubbles = measure(timeline)
    tasks = timeline.tasks.filter(pl.col("lane") == Lane.COMPUTE.value)
    frame = _Frame(
        int(tasks["start_ns"].min() or 0),  # type: ignore[arg-type]
        int(tasks["end_ns"].max() or 1),  # type: ignore[arg-type]
        width,
    )
    lanes = _lanes(timeline)
    bottom = max((y for _, y, _ in lanes), default=_TOP) + _ROW
    blocks, sampled = _blocks(tasks, frame, {rank: y for rank, y, _ in lanes})
    height = bottom + _LEGEND + 24
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif" '
            f'font-size="{_FONT}"><rect width="100%" height="100%" fill="#ffffff"/>'
        ),
        *_heading(timeline, bubbles, frame, bottom),
        *_lane_titles(timeline, bubbles, lanes, frame),
        *blocks,
        *_axis(frame, bottom),
        *_legend(tasks, bottom + 34, sampled=sampled),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _text(value: str) -> str:
    return escape(_ILLEGAL.sub("\ufffd", value), quote=True)


def _lanes(timeline: Timeline) -> list[tuple[int, int, str]]:
    """Return rank, top and host of each lane, with a gap between hosts."""
    lanes: list[tuple[int, int, str]] = []
    y, host = _TOP, None
    for rank in ordered_ranks(timeline).iter_rows(named=True):
        if host is not None and rank["host"] != host:
            y += _GROUP_GAP
        host = rank["host"]
        lanes.append((rank["rank"], y, host))
        y += _ROW
    return lanes


def _heading(timeline: Timeline, bubbles: Bubbles, frame: _Frame, bottom: int) -> Iterator[str]:
    overall = bubbles.overall
    said = " · ".join(
        [
            *facts(timeline),
            f"bubble rate {units.percent(overall.makespan)} of the makespan",
            f"{units.percent(overall.span)} of each rank's span",
        ],
    )
    yield f'<text x="{_LEFT}" y="16" font-size="13" fill="#1a1a1a">{_text(said)}</text>'
    steps = (
        timeline.tasks.filter(pl.col("step").is_not_null(), pl.col("lane") == Lane.COMPUTE.value)
        .group_by("step")
        .agg(start_ns=pl.col("start_ns").min(), end_ns=pl.col("end_ns").max())
        .sort("start_ns")
    )
    for step, start, end in steps.iter_rows():
        left, right = frame.x(start), frame.x(end)
        yield (
            f'<path d="M{left:.2f} {_TOP - 8}V{bottom}" stroke="#9a9a9a" stroke-width="0.7" '
            'stroke-dasharray="3 3"/>'
        )
        rates = bubbles.per_step.get(step)
        label = f"step {step}" + (f" · {units.percent(rates.makespan)}" if rates else "")
        if right - left > len(label) * _DIGIT:
            yield f'<text x="{left + 3:.2f}" y="{_TOP - 12}" fill="#5c5c5c">{label}</text>'


def _lane_titles(
    timeline: Timeline, bubbles: Bubbles, lanes: list[tuple[int, int, str]], frame: _Frame
) -> Iterator[str]:
    stages = dict(timeline.ranks.select("rank", "stages").iter_rows())
    several = timeline.ranks["host"].n_unique() > 1
    previous = None
    yield (
        f'<text x="{frame.width - 4}" y="{_TOP - 12}" text-anchor="end" fill="#5c5c5c">bubble</text>'
    )
    for rank, y, host in lanes:
        middle = y + _BLOCK - 5
        held = ", ".join(map(str, stages[rank] or []))
        title = f"rank {rank}" + (f" · stage {held}" if held else "")
        if several and host != previous:
            yield (
                f'<text x="6" y="{middle}" fill="#5c5c5c" font-weight="bold">{_text(host[:9])}</text>'
            )
        previous = host
        yield f'<text x="{_LEFT - 8}" y="{middle}" text-anchor="end">{_text(title)}</text>'
        yield (
            f'<rect x="{_LEFT}" y="{y}" width="{frame.plot}" height="{_BLOCK}" fill="{BUBBLE}"/>'
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
    drawn = tasks.filter(~crowded).select(
        "rank",
        kind=pl.col("kind").cast(pl.String),
        left=_LEFT + (pl.col("start_ns") - frame.start_ns) * frame.scale,
        wide=(pl.col("end_ns") - pl.col("start_ns")) * frame.scale,
        label=short_label(),
        title=pl.format("{} · {}", short_label(), duration_text()),
        y=pl.col("rank").replace_strict(top, return_dtype=pl.Int64),
    )
    fills = {kind.value: colour for kind, colour in COLOURS.items()}
    inks = {kind.value: colour for kind, colour in INK.items()}
    block = pl.format(
        '<rect x="{}" y="{}" width="{}" height="{}" fill="{}"><title>{}</title></rect>',
        pl.col("left").round(2),
        "y",
        pl.col("wide").round(2),
        pl.lit(_BLOCK),
        pl.col("kind").replace_strict(fills),
        "title",
    )
    label = pl.format(
        '<text x="{}" y="{}" text-anchor="middle" fill="{}" pointer-events="none">{}</text>',
        (pl.col("left") + pl.col("wide") / 2).round(2),
        pl.col("y") + _BLOCK - 5,
        pl.col("kind").replace_strict(inks),
        "label",
    )
    fits = pl.col("wide") >= pl.col("label").str.len_chars() * _DIGIT + 3
    blocks = drawn.select(
        pl.concat_str(block, pl.when(fits).then(label).otherwise(pl.lit("")))
    ).to_series()
    runs = _sample(tasks.filter(crowded), frame).with_columns(
        y=pl.col("rank").replace_strict(top, return_dtype=pl.Int64)
    )
    strokes = (
        runs.with_columns(d=pl.format("M{} {}h{}", "left", pl.col("y") + _BLOCK // 2, "wide"))
        .group_by("rank", "kind", maintain_order=True)
        .agg(pl.col("d").str.join(""))
        .select(
            pl.format(
                '<path stroke="{}" stroke-width="{}" d="{}"/>',
                pl.col("kind").replace_strict(fills),
                pl.lit(_BLOCK),
                "d",
            )
        )
        .to_series()
    )
    return [*blocks, *strokes], runs.height > 0


def _sample(tasks: pl.DataFrame, frame: _Frame) -> pl.DataFrame:
    """Return for each rank and pixel the kind that runs at the pixel's centre, merged into runs."""
    step = (frame.end_ns - frame.start_ns) / frame.plot
    centres = pl.DataFrame({"pixel": range(frame.plot)}).with_columns(
        at=(frame.start_ns + (pl.col("pixel") + 0.5) * step).cast(pl.Int64)
    )
    shown = (
        tasks.select("rank")
        .unique()
        .join(centres, how="cross")
        .sort("at")
        .join_asof(
            tasks.sort("start_ns").select("rank", "kind", "start_ns", "end_ns"),
            left_on="at",
            right_on="start_ns",
            by="rank",
            check_sortedness=False,
        )
        .filter(pl.col("at") < pl.col("end_ns"))
        .sort("rank", "pixel")
    )
    changed = (
        (pl.col("kind") != pl.col("kind").shift(1))
        | (pl.col("pixel") != pl.col("pixel").shift(1) + 1)
        | (pl.col("rank") != pl.col("rank").shift(1))
    )
    return (
        shown.with_columns(run=changed.fill_null(value=True).cum_sum())
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("rank").first(),
            pl.col("kind").first().cast(pl.String),
            left=pl.col("pixel").first() + _LEFT,
            wide=pl.len(),
        )
    )


def _axis(frame: _Frame, bottom: int) -> Iterator[str]:
    """Draw time from the first task's start, at round numbers."""
    y = bottom + 4
    yield f'<path d="M{_LEFT} {y}H{_LEFT + frame.plot}" stroke="#5c5c5c"/>'
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


def _legend(tasks: pl.DataFrame, y: int, *, sampled: bool) -> Iterator[str]:
    x = _LEFT
    present = set(tasks["kind"].cast(pl.String).unique())
    for kind in (kind for kind in Kind if kind.value in present):
        yield f'<rect x="{x}" y="{y}" width="12" height="12" fill="{COLOURS[kind]}"/>'
        yield f'<text x="{x + 17}" y="{y + 10}">{kind.value.replace("_", " ")}</text>'
        x += 34 + int(len(kind.value) * _DIGIT)
    yield f'<rect x="{x}" y="{y}" width="12" height="12" fill="{BUBBLE}" stroke="#cfcfcf"/>'
    yield f'<text x="{x + 17}" y="{y + 10}">bubble</text>'
    if sampled:
        yield (
            f'<text x="{x + 80}" y="{y + 10}" fill="#5c5c5c">crowded lanes show what runs '
            "at each pixel's centre</text>"
        )
