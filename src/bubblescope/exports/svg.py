"""A picture for papers, slides and notebooks.

One lane per rank, in pipeline order. A block is drawn where its task is, to a hundredth of a pixel.
Where a lane has more tasks than pixels, each pixel column shows what runs at its centre: blocks are
never widened to be seen. Tasks that overlap share the height of their lane, so none hides another.
What looks idle is idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bubblescope.errors import BubblescopeError
from bubblescope.exports.files import replacing
from bubblescope.exports.picture import full, paper
from bubblescope.exports.picture.page import PRINT, SCREEN, Drawing, page
from bubblescope.exports.picture.size import Size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bubblescope.exports.picture.page import Style
    from bubblescope.timeline import Timeline

__all__ = ["LOOKS", "compare", "draw", "render", "size_of", "write"]

LOOKS: Final = {
    "full": "ranks, hosts, steps and their bubble rates",
    "paper": "devices and micro-batches only, as papers show schedules",
}
"""What a picture can look like, by name."""

_WIDTHS: Final[dict[str, int | str]] = {"full": 1600, "paper": "page"}


def write(
    timeline: Timeline, path: Path, *, width: float | str | None = None, look: str = "full"
) -> Path:
    """Write the picture; the arguments are those of `render`.

    Args:
        timeline: What to draw.
        path: The file to write.
        width: Of the picture; 1600 pixels by default, 7 inches in the look of papers.
        look: One of `LOOKS`.
    """
    with replacing(path) as partial:
        partial.write_text(render(timeline, width=width, look=look), encoding="utf-8")
    return path


def compare(timelines: Sequence[Timeline], *, width: int = 1200) -> str:
    """Return one picture of several timelines, one below the other on the same scale of time.

    Args:
        timelines: What to draw, top to bottom.
        width: Of the picture, in pixels.
    """
    longest = max((timeline.duration_ns for timeline in timelines), default=0)
    everything = set[str]().union(*(full.kinds(timeline) for timeline in timelines))
    size = Size.of(width)
    parts, y = [], 0.0
    for timeline in timelines:
        explained = everything if timeline is timelines[-1] else set()
        panel = full.draw(timeline, size, SCREEN, length_ns=longest, explained=explained)
        parts.append(f'<g transform="translate(0 {y:g})">\n{panel.content}\n</g>')
        y += panel.height
    return page(Drawing("\n".join(parts), y, SCREEN.font), size)


def render(
    timeline: Timeline,
    *,
    width: float | str | None = 1200,
    max_steps: int | None = None,
    look: str = "full",
) -> str:
    """Return the picture as SVG text.

    Args:
        timeline: What to draw: its compute lanes.
        width: Of the picture: a number of pixels, a length such as "84mm" or "3.3in", "column"
            (3.3 inches) or "page" (7 inches). With a length, type is as large as papers have it.
        max_steps: Draw only the first so many steps.
        look: One of `LOOKS`.

    Raises:
        BubblescopeError: The width is none, or leaves no room for the lanes beside their titles;
            there is no such look.
    """
    if max_steps is not None and len(timeline.steps) > max_steps:
        timeline = timeline.slice(steps=timeline.steps[:max_steps])
    size = size_of(width, look)
    return page(draw(timeline, size, look, PRINT if size.printed else SCREEN), size)


def size_of(width: float | str | None, look: str) -> Size:
    """Return how wide a picture is to be.

    Raises:
        BubblescopeError: The width is none, or there is no such look.
    """
    if look not in LOOKS:
        raise BubblescopeError(f"{look!r} is no look of a picture; it is {' or '.join(LOOKS)}")
    return Size.of(_WIDTHS[look] if width is None else width)


def draw(timeline: Timeline, size: Size, look: str, style: Style) -> Drawing:
    """Draw a timeline in one of the `LOOKS`.

    Raises:
        BubblescopeError: The width leaves no room for the lanes beside their titles.
    """
    if look == "paper":
        return paper.draw(timeline, size, style)
    return full.draw(timeline, size, style)
