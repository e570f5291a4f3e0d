"""Causes of idle time: lines along the foot of a lane, where it is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.analysis.idle.causes import Cause
from bubblescope.render.palette import BUBBLE, CAUSE_COLOURS, STRIPED
from bubblescope.render.picture.sheet import number

if TYPE_CHECKING:
    from bubblescope.render.picture.sheet import Frame

_HIGH: Final = 0.3
"""How much of a block's height a line takes."""
_LEAST: Final = 1.0
"""Pixels from which on a stretch is drawn: what is shorter could not be told from its neighbours."""


class Line(NamedTuple):
    """What a cause looks like.

    Attributes:
        colour: Its colour.
        double: Whether it is two thin lines, not one.
    """

    colour: str
    double: bool

    @classmethod
    def of(cls, cause: Cause) -> Line:
        """Return what a cause looks like."""
        return cls(CAUSE_COLOURS[cause], cause in STRIPED)

    def drawn(self, places: str, high: float) -> str:
        """Draw it.

        Args:
            places: Path data of where it is, along its middle.
            high: Its height, or that of both lines and what is between them.
        """
        whole = f'<path stroke="{self.colour}" stroke-width="{number(high)}" d="{places}"/>'
        if not self.double:
            return whole
        return f'{whole}<path stroke="{BUBBLE}" stroke-width="{number(high / 3)}" d="{places}"/>'


def lines(
    gaps: pl.DataFrame | None, frame: Frame, top: dict[int, float], block: float
) -> tuple[list[str], dict[Line, list[str]]]:
    """Draw the causes of idle time that have room.

    Args:
        gaps: As `Pictured.gaps`.
        frame: Where time lies.
        top: Rank -> top of its lane.
        block: Height of a lane's blocks.

    Returns:
        The elements, and the names of the causes of each line that is among them.
    """
    if gaps is None:
        return [], {}
    high = block * _HIGH
    rank = pl.col("rank").replace_strict(top, return_dtype=pl.Float64)
    shown = (
        gaps.filter((pl.col("end_ns") - pl.col("start_ns")) * frame.scale >= _LEAST)
        .sort("rank", "start_ns")
        .with_columns(
            places=pl.format(
                "M{} {}h{}",
                (frame.left + (pl.col("start_ns") - frame.start_ns) * frame.scale).round(2),
                (rank + block - high / 2).round(2),
                ((pl.col("end_ns") - pl.col("start_ns")) * frame.scale).round(2),
            )
        )
        .group_by(pl.col("cause").cast(pl.String))
        .agg(pl.col("places").str.join(""))
    )
    places = dict(shown.iter_rows())
    named: dict[Line, list[str]] = {}
    drawn = []
    for cause in Cause:
        if cause.value in places:
            line = Line.of(cause)
            drawn.append(line.drawn(places[cause.value], high))
            named.setdefault(line, []).append(cause.value)
    return drawn, named
