"""A picture for papers, slides and notebooks.

One lane per rank, in pipeline order; what a run is set beside stands above it, on the same axis of
time. A block is drawn where its task is, to a hundredth of a pixel. Where a lane has more tasks than
pixels, each pixel column shows what runs at its centre: blocks are never widened to be seen. Tasks that
overlap share the height of their lane, so none hides another. What looks idle is idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.model.errors import BubblescopeError
from bubblescope.render.files import replacing
from bubblescope.render.picture import full, paper
from bubblescope.render.picture.sheet import (
    PRINT,
    SCREEN,
    Drawing,
    Panel,
    compute_tasks,
    page,
    span_of,
    stacked,
)
from bubblescope.render.picture.size import Size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.analysis.pictured import Pictured
    from bubblescope.render.picture.sheet import Style

LOOKS: Final = {
    "full": "ranks, hosts, steps and their bubble rates",
    "paper": "devices and micro-batches only, as papers show schedules",
}
"""What a picture can look like, by name."""

_WIDTHS: Final[dict[str, int | str]] = {"full": 1600, "paper": "page"}


def write(
    pictured: Pictured, path: Path, *, width: float | str | None = None, look: str = "full"
) -> Path:
    """Write the picture; the arguments are those of `render`.

    Args:
        pictured: What to draw.
        path: The file to write.
        width: Of the picture; 1600 pixels by default, 7 inches in the look of papers.
        look: One of `LOOKS`.
    """
    with replacing(path) as partial:
        partial.write_text(render(pictured, width=width, look=look), encoding="utf-8")
    return path


class Picture(NamedTuple):
    """A picture that a notebook shows.

    Attributes:
        svg: The picture, as `render` returns it.
    """

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<Picture: {len(self.svg):,} letters of SVG>"

    def __str__(self) -> str:
        return self.svg


def compare(runs: Sequence[Pictured], *, width: int = 1200) -> str:
    """Return one picture of several runs, one below the other on the same scale of time.

    Args:
        runs: What to draw, top to bottom.
        width: Of the picture, in pixels.
    """
    longest = max((run.timeline.duration_ns for run in runs), default=0)
    shown = [compute_tasks(run.timeline) for run in runs]
    size, everything = Size.of(width), pl.concat(shown)
    panels = []
    for run, tasks in zip(runs, shown, strict=True):
        start_ns, _ = span_of(tasks)
        panel = Panel((start_ns, start_ns + longest), everything, legend=run is runs[-1])
        panels.append(full.draw(run, size, SCREEN, panel))
    return page(stacked(panels), size)


def render(pictured: Pictured, *, width: float | str | None = 1200, look: str = "full") -> str:
    """Return the picture as SVG text.

    Args:
        pictured: What to draw: its compute lanes.
        width: Of the picture: a number of pixels, a length such as "84mm" or "3.3in", "column"
            (3.3 inches) or "page" (7 inches). With a length, type is as large as papers have it.
        look: One of `LOOKS`.

    Raises:
        BubblescopeError: The width is none, or leaves no room for the lanes beside their titles;
            there is no such look.
    """
    size = size_of(width, look)
    return page(draw(pictured, size, look, PRINT if size.printed else SCREEN), size)


def size_of(width: float | str | None, look: str) -> Size:
    """Return how wide a picture is to be.

    Raises:
        BubblescopeError: The width is none, or there is no such look.
    """
    if look not in LOOKS:
        raise BubblescopeError(f"{look!r} is no look of a picture; it is {' or '.join(LOOKS)}")
    return Size.of(_WIDTHS[look] if width is None else width)


def draw(pictured: Pictured, size: Size, look: str, style: Style) -> Drawing:
    """Draw a run in one of the `LOOKS`, below what it is set beside.

    Raises:
        BubblescopeError: The width leaves no room for the lanes beside their titles.
    """
    drawn = paper.draw if look == "paper" else full.draw
    if pictured.above is None:
        return drawn(pictured, size, style)
    both = (pictured.above, pictured)
    tasks = pl.concat(compute_tasks(one.timeline) for one in both)
    upper = Panel(span_of(tasks), tasks, axis=False, legend=False)
    lower = Panel(span_of(tasks), tasks)
    return stacked([drawn(both[0], size, style, upper), drawn(both[1], size, style, lower)])
