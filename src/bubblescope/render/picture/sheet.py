"""The page: where time lies on it, how large things are, and how text gets into it."""

from __future__ import annotations

import re
from html import escape
from math import ceil, floor
from typing import TYPE_CHECKING, Final, NamedTuple
from unicodedata import east_asian_width

import polars as pl

from bubblescope.model.errors import BubblescopeError
from bubblescope.model.kinds import Lane
from bubblescope.render.picture.size import INCH, POINT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.model.timeline import Timeline
    from bubblescope.render.picture.size import Size

FAMILIES: Final = "Helvetica, Arial, Liberation Sans, DejaVu Sans, Noto Sans, sans-serif"
"""All that a machine may have, by name: not every program knows what its sans-serif font is."""
DIGIT: Final = 6.4 / 11
"""Width of a character as a share of its height, a little generous, to decide if a text fits."""
_LONGEST: Final = 44
"""Characters of a lane's title or a host's name that are shown."""
_ILLEGAL: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Style(NamedTuple):
    """How large things are, in pixels of 1/96 inch.

    Attributes:
        row, block: Height of a lane with the room below it, and without.
        left: Least room for the titles of the lanes; longer ones take more.
        gap: Room between a title and its lane.
        right: Least room for the rates at the other end; longer ones take more.
        host: Height of a host's name above its lanes.
        line: Height of a line of text.
        font, heading: Size of the type, and of the heading's.
        swatch: Side of a colour in the legend.
        apart: Room between the numbers of the time axis, at least.
        density: Samples per pixel in crowded lanes.
        sample: What a sample of a crowded lane is the centre of.
    """

    row: float
    block: float
    left: float
    gap: float
    right: float
    host: float
    line: float
    font: float
    heading: float
    swatch: float
    apart: float
    density: float = 1.0
    sample: str = "each pixel's centre"

    def wide(self, said: str) -> float:
        """Return how much room a text takes."""
        square = sum(east_asian_width(sign) in "FW" for sign in said)
        return ((len(said) - square) * DIGIT + square) * self.font


SCREEN: Final = Style(22, 18, 150, 8, 70, 18, 18, 11, 13, 12, 120)
"""For windows and slides."""
PRINT: Final = Style(
    row=15,
    block=12.5,
    left=0,
    gap=3,
    right=37,
    host=13,
    line=13,
    font=7 * POINT,
    heading=7 * POINT,
    swatch=8,
    apart=64,
    density=300 / INCH,
    sample="the centre of each 300th of an inch",
)
"""For paper: its type is 7 points high, and there is no wide margin."""


class Frame(NamedTuple):
    """Where time lies on the page. Samples lie on a grid of `density` columns per pixel.

    Attributes:
        start_ns, end_ns: What is shown.
        left: Where it starts.
        columns: Samples across it.
        width: Of the whole page.
        density: Columns per pixel.
    """

    start_ns: int
    end_ns: int
    left: float
    columns: int
    width: float
    density: float

    @classmethod
    def fit(
        cls, span: tuple[int, int], margins: tuple[float, float], size: Size, style: Style
    ) -> Frame:
        """Lay a span of time between two margins.

        Raises:
            BubblescopeError: They leave too little room for it.
        """
        left, right = ceil(margins[0] * style.density), margins[1]
        columns = floor(round((size.pixels - right) * style.density, 6)) - left
        least = style.apart if size.printed else _LEAST
        if columns < least * style.density:
            needed = left / style.density + right + least
            said = size.written(ceil(needed)) if size.printed else f"{ceil(needed)} pixels"
            raise BubblescopeError(f"a picture of these ranks must be at least {said} wide")
        start_ns, end_ns = span
        return cls(start_ns, end_ns, left / style.density, columns, size.pixels, style.density)

    @property
    def plot(self) -> float:
        """Width of the time axis in pixels."""
        return self.columns / self.density

    @property
    def right(self) -> float:
        """Where the time axis ends."""
        return self.left + self.plot

    @property
    def scale(self) -> float:
        """Pixels per nanosecond."""
        return self.plot / max(1, self.end_ns - self.start_ns)

    def x(self, time_ns: int) -> float:
        """Return where a moment lies."""
        return self.left + (time_ns - self.start_ns) * self.scale


_LEAST: Final = 100
"""Least pixels of the time axis on a screen."""


class Drawing(NamedTuple):
    """SVG elements, how high they are in pixels, and the size of the type in them."""

    content: str
    height: float
    font: float


class Panel(NamedTuple):
    """What a run shares with others in one picture; alone, it has all of it to itself.

    Attributes:
        span: What time is shown; its own if None.
        tasks: The tasks of all of them, which colours and legend are for; its own if None.
        axis: Whether the axis of time is below it.
        legend: Whether the legend is.
        facts: Whether its heading says what run it is, beside its title and its rates.
        margins: Room at the left and right of all of them; its own if None.
    """

    span: tuple[int, int] | None = None
    tasks: pl.DataFrame | None = None
    axis: bool = True
    legend: bool = True
    facts: bool = True
    margins: tuple[float, float] | None = None


ALONE: Final = Panel()


def stacked(drawings: Sequence[Drawing]) -> Drawing:
    """Put drawings below each other."""
    parts, y = [], 0.0
    for one in drawings:
        parts.append(f'<g transform="translate(0 {y:g})">\n{one.content}\n</g>')
        y += one.height
    return Drawing("\n".join(parts), y, drawings[0].font)


def compute_tasks(timeline: Timeline) -> pl.DataFrame:
    """Return the tasks that pictures show."""
    return timeline.tasks.filter(pl.col("lane") == Lane.COMPUTE.value)


def span_of(tasks: pl.DataFrame) -> tuple[int, int]:
    """Return the first start and the last end of tasks."""
    return int(tasks["start_ns"].min() or 0), int(tasks["end_ns"].max() or 1)  # type: ignore[arg-type]


def page(drawing: Drawing, size: Size, extent: tuple[str, str] | None = None) -> str:
    """Return an SVG document of the drawing.

    Args:
        drawing: What is on it.
        size: How wide it is.
        extent: Width and height as they are to be written, if not in the unit of `size`.
    """
    width, height = extent or (size.written(size.pixels), size.written(drawing.height))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {number(size.pixels)} {number(drawing.height)}" '
        f'width="{width}" height="{height}" '
        f'font-family="{FAMILIES}" font-size="{number(drawing.font)}">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{drawing.content}\n</svg>\n'
    )


def number(value: float) -> str:
    """Write a coordinate to a hundredth of a pixel, whole ones without a point."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text(value: str) -> str:
    """Make a text safe to stand in an SVG document, whatever it is."""
    return escape(_ILLEGAL.sub("\ufffd", value), quote=True)


def shortened(value: str) -> str:
    """Cut a long text at its end."""
    return value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"


def squeezed(value: str, most: int = _LONGEST) -> str:
    """Cut a long name in its middle: paths, and names of a cluster's hosts, differ at their ends."""
    if len(value) <= most:
        return value
    kept = most - 1
    return f"{value[: kept // 2]}…{value[len(value) - (kept - kept // 2) :]}"
