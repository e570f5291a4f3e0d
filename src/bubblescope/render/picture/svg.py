"""A picture for papers, slides and notebooks.

One lane per rank, in pipeline order; what a run is set beside stands above it, on the same axis of
time. A block is drawn where its task is, to a hundredth of a pixel. Where a lane has more tasks than
pixels, each pixel column shows what runs at its centre: blocks are never widened to be seen. Tasks that
overlap share the height of their lane, so none hides another. What looks idle is idle.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.analysis.picture_data import Pictured
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.files import replacing
from bubblescope.render.picture import full, paper
from bubblescope.render.picture.sheet import (
    ALONE,
    PRINT,
    SCREEN,
    Drawing,
    Panel,
    compute_tasks,
    number,
    page,
    span_of,
    stacked,
    text,
)
from bubblescope.render.picture.size import Size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.render.picture.sheet import Style

LOOKS: Final = {
    "full": "ranks, hosts, steps and their bubble rates",
    "paper": "devices and micro-batches only, as papers show schedules",
}
"""What a picture can look like, by name."""

_WIDTHS: Final[dict[str, int | str]] = {"full": 1600, "paper": "page"}


def write(
    pictured: Pictured | Sequence[Pictured],
    path: Path,
    *,
    width: float | str | None = None,
    look: str = "full",
    title: str = "",
) -> Path:
    """Write the picture; the arguments are those of `render`.

    Args:
        pictured: What to draw.
        path: The file to write.
        width: Of the picture; 1600 pixels by default, 7 inches in the look of papers.
        look: One of `LOOKS`.
        title: What stands above it.
    """
    drawn = render(pictured, width=width, look=look, title=title)
    with replacing(path) as partial:
        partial.write_text(drawn, encoding="utf-8")
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


def render(
    pictured: Pictured | Sequence[Pictured],
    *,
    width: float | str | None = 1200,
    look: str = "full",
    title: str = "",
) -> str:
    """Return the picture as SVG text.

    Args:
        pictured: What to draw: the compute lanes of a run, or of several, as `draw` has them.
        width: Of the picture: a number of pixels, a length such as "84mm" or "3.3in", "column"
            (3.3 inches) or "page" (7 inches). With a length, type is as large as papers have it.
        look: One of `LOOKS`.
        title: What stands above it.

    Raises:
        BubblescopeError: The width is none, or leaves no room for the lanes beside their titles;
            there is no such look.
    """
    size = size_of(width, look)
    return page(draw(pictured, size, look, PRINT if size.printed else SCREEN, title), size)


def size_of(width: float | str | None, look: str) -> Size:
    """Return how wide a picture is to be.

    Raises:
        BubblescopeError: The width is none, or there is no such look.
    """
    if look not in LOOKS:
        raise BubblescopeError(f"{look!r} is not a look of a picture; choose {' or '.join(LOOKS)}")
    return Size.of(_WIDTHS[look] if width is None else width)


def draw(
    shown: Pictured | Sequence[Pictured], size: Size, look: str, style: Style, title: str = ""
) -> Drawing:
    """Draw a run in one of the `LOOKS`, below what it is set beside, or several runs.

    Args:
        shown: A run; or several, which stand below each other on the same scale of time, each from its
            own start.
        size: How wide.
        look: One of `LOOKS`.
        style: How large things are.
        title: What stands above it all.

    Raises:
        BubblescopeError: The width leaves no room for the lanes beside their titles.
    """
    drawn = paper if look == "paper" else full
    panels = _panels(shown)
    left, right = map(max, zip(*(drawn.margins(run, style) for run, _ in panels), strict=True))
    heading = [_heading(title, size, style)] if title else []
    return stacked(
        [
            *heading,
            *(
                drawn.draw(run, size, style, panel._replace(margins=(left, right)))
                for run, panel in panels
            ),
        ]
    )


def _panels(shown: Pictured | Sequence[Pictured]) -> list[tuple[Pictured, Panel]]:
    """Return the runs from top to bottom, with what each shares with the others."""
    if not isinstance(shown, Pictured):
        tasks = [compute_tasks(run.timeline) for run in shown]
        everything = pl.concat(tasks)
        longest = max((run.timeline.duration_ns for run in shown), default=0)
        starts = [span_of(one)[0] for one in tasks]
        return [
            (run, Panel((start, start + longest), everything, axis=last, legend=last))
            for run, start in zip(shown, starts, strict=True)
            for last in (run is shown[-1],)
        ]
    if shown.above is None:
        return [(shown, ALONE)]
    both = (shown.above, shown)
    tasks = [compute_tasks(one.timeline) for one in both]
    together = pl.concat(tasks)
    span = span_of(together)
    upper = Panel(span, together, axis=False, legend=False, facts=False)
    return [(shown.above, upper), (shown, Panel(span, together))]


def _heading(title: str, size: Size, style: Style) -> Drawing:
    """Draw a title, in as many lines as it takes."""
    high, left = style.heading * 1.2, style.gap
    letter = style.wide(title) / len(title) * high / style.font
    most = int((size.pixels - 2 * left) / letter)
    drawn, y = [], 0.0
    for line in textwrap.wrap(title, most) or [""]:
        y += high * 1.3
        drawn.append(
            f'<text x="{number(left)}" y="{number(y)}" font-size="{number(high)}" '
            f'font-weight="bold" fill="#1a1a1a">{text(line)}</text>'
        )
    return Drawing("\n".join(drawn), y + high * 0.4, style.font)
