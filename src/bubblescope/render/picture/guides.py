"""What stands around the lanes: the time axis, and the legend of the colours."""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from bubblescope.model import language
from bubblescope.render.picture.sheet import number
from bubblescope.render.ticks import ticks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bubblescope.render.picture.cause_lines import Line
    from bubblescope.render.picture.sheet import Frame, Style

_GREY = "#5c5c5c"


def axis(frame: Frame, style: Style, bottom: float) -> Iterator[str]:
    """Draw time from the first task's start, at round numbers."""
    y = bottom + 4
    left, right = number(frame.left), number(frame.right)
    yield f'<path d="M{left} {number(y)}H{right}" stroke="{_GREY}"/>'
    for tick, label in ticks(frame.end_ns - frame.start_ns, frame.plot / style.apart):
        x = frame.x(frame.start_ns + tick)
        yield f'<path d="M{x:.2f} {number(y)}v4" stroke="{_GREY}"/>'
        yield (
            f'<text x="{x:.2f}" y="{number(y + 5 + style.font)}" text-anchor="middle" '
            f'fill="{_GREY}">{label}</text>'
        )


def step_labels(
    steps: Sequence[int], known: Sequence[str], begins: Sequence[float], style: Style
) -> list[str]:
    """Return what stands above each step: all that is known where most have room, else some numbers.

    Args:
        steps: Their numbers.
        known: What else could be said of each.
        begins: Where each begins, and where the last one ends, in pixels.
        style: How large things are.
    """
    if not steps:
        return []
    short = [language.translated(f"step {step}") for step in steps]
    full = [name + more for name, more in zip(short, known, strict=True)]
    apart = median(right - left for left, right in pairwise(begins))
    if max(map(style.wide, full)) + style.gap <= apart:
        return full
    every = ceil((max(map(style.wide, short)) + style.gap) / max(0.1, apart))
    return [label if at % every == 0 else "" for at, label in enumerate(short)]


def listed(names: Sequence[str]) -> str:
    """Return what the legend says of a colour that stands for several things."""
    return " / ".join(map(language.translated, names))


class Entry(NamedTuple):
    """A line of the legend.

    Attributes:
        name: What it says.
        colours: The colours that it explains, side by side.
        edge: Colour of their outline, if they have one.
        line: What stands at their foot, if it is that which it explains.
    """

    name: str
    colours: tuple[str, ...]
    edge: str | None = None
    line: Line | None = None


def legend(
    entries: Sequence[Entry],
    notes: Sequence[str],
    place: tuple[float, float],
    width: float,
    style: Style,
) -> tuple[list[str], float]:
    """Draw the legend, in as many lines as it needs.

    Args:
        entries: Colours and what they mean.
        notes: Lines below them.
        place: Where it begins, from the left and from the top.
        width: Of the page.
        style: How large things are.

    Returns:
        The elements, and where they end.
    """
    drawn: list[str] = []
    left, y = place
    x, side = left, style.swatch
    for name, colours, edge, line in entries:
        room = len(colours) * side + 5 + 17 * side / 12 + int(style.wide(name))
        if x > left and x + room > width:
            x, y = left, y + style.line
        outline = f' stroke="{edge}" stroke-width="0.5"' if edge else ""
        drawn += [
            f'<rect x="{number(x + at * side)}" y="{number(y)}" width="{number(side)}" '
            f'height="{number(side)}" fill="{colour}"{outline}/>'
            for at, colour in enumerate(colours)
        ]
        if line is not None:
            high = side * 0.4
            drawn.append(
                line.drawn(f"M{number(x)} {number(y + side - high / 2)}h{number(side)}", high)
            )
        start = x + len(colours) * side + 5 * side / 12
        drawn.append(f'<text x="{number(start)}" y="{number(y + side * 10 / 12)}">{name}</text>')
        x += room
    for note in notes:
        y += style.line
        drawn.append(
            f'<text x="{number(left)}" y="{number(y + side * 10 / 12)}" fill="{_GREY}">'
            f"{language.translated(note)}</text>"
        )
    return drawn, y + 2 * side
