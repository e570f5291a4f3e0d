"""One set of colours for every output, for light grounds and for dark ones.

What things mean is never told by hue alone. Forward, backward and idle time differ in luminance, three
to one at least, also as people with any of the three kinds of colour blindness see them; so many
luminances there are no more of, and what else is on a lane has a line of another luminance around it.
The two halves of a split backward are one hue, strong and faint; where some backwards are split and
others are not, all three are. Transfers stand out less than what
computes. Causes of idle time have hues of their own, and patterns.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, Literal

from bubblescope.analysis.idle.causes import Cause
from bubblescope.model.budget import Use
from bubblescope.model.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Collection

COLOURS: Final[dict[Kind, str]] = {
    Kind.FORWARD: "#0d2d60",
    Kind.BACKWARD: "#c17527",
    Kind.BACKWARD_INPUT: "#c17527",
    Kind.BACKWARD_WEIGHT: "#ffdf96",
    Kind.FORWARD_BACKWARD: "#00735a",
    Kind.RECOMPUTE: "#6db3e2",
    Kind.OPTIMIZER: "#111111",
    Kind.SEND_FORWARD: "#a9c6de",
    Kind.RECV_FORWARD: "#c9dcea",
    Kind.SEND_BACKWARD: "#dcc08a",
    Kind.RECV_BACKWARD: "#ebdab6",
    Kind.COLLECTIVE: "#d99bbb",
    Kind.DATA: "#8c8c8c",
    Kind.GC: "#5c5c5c",
    Kind.OTHER: "#b0b0b0",
}
"""Fill colour of each task kind on a light ground."""

DARK_COLOURS: Final[dict[Kind, str]] = {
    Kind.FORWARD: "#c9dcff",
    Kind.BACKWARD: "#ad6016",
    Kind.BACKWARD_INPUT: "#ad6016",
    Kind.BACKWARD_WEIGHT: "#6b4e12",
    Kind.FORWARD_BACKWARD: "#5fd0ac",
    Kind.RECOMPUTE: "#31648f",
    Kind.OPTIMIZER: "#ffffff",
    Kind.SEND_FORWARD: "#3d586e",
    Kind.RECV_FORWARD: "#2f4250",
    Kind.SEND_BACKWARD: "#6a5530",
    Kind.RECV_BACKWARD: "#4d4029",
    Kind.COLLECTIVE: "#7a4462",
    Kind.DATA: "#8c8c8c",
    Kind.GC: "#b4b4b4",
    Kind.OTHER: "#5e6165",
}
"""The same on a dark ground."""

BESIDE_FUSED: Final = ("#784108", "#eba541")
"""Fill of `BACKWARD_INPUT` on a light and on a dark ground, where fused backwards are shown too: of the
hue of all backwards, and the farthest from the ground."""


def colours_beside(shown: Collection[str], *, dark: bool = False) -> dict[Kind, str]:
    """Return the fills of kinds where some of them are shown together.

    Args:
        shown: The kinds that are.
        dark: Whether the ground is.
    """
    colours = DARK_COLOURS if dark else COLOURS
    fused = {Kind.BACKWARD.value, Kind.FORWARD_BACKWARD.value} & set(shown)
    return {**colours, Kind.BACKWARD_INPUT: BESIDE_FUSED[dark]} if fused else dict(colours)


UNKNOWN_GROUND: Final[dict[Kind, str]] = {
    Kind.FORWARD: "#0072b2",
    Kind.BACKWARD: "#e69f00",
    Kind.BACKWARD_INPUT: "#e69f00",
    Kind.BACKWARD_WEIGHT: "#f7dc8b",
    Kind.FORWARD_BACKWARD: "#009e73",
    Kind.RECOMPUTE: "#56b4e9",
    Kind.OPTIMIZER: "#d55e00",
    Kind.SEND_FORWARD: "#8fb8d8",
    Kind.RECV_FORWARD: "#b9d3e6",
    Kind.SEND_BACKWARD: "#d9b56a",
    Kind.RECV_BACKWARD: "#e8d3a5",
    Kind.COLLECTIVE: "#cc79a7",
    Kind.DATA: "#8c8c8c",
    Kind.GC: "#5c5c5c",
    Kind.OTHER: "#b0b0b0",
}
"""The same where the ground may be either, as in a terminal or another's viewer: no fill is very dark.

The hues are those of Okabe & Ito, "Color Universal Design" (2008).
"""

_LIGHT, _DARK = "#ffffff", "#1a1a1a"
_LINE_CONTRAST: Final = 4.5


def _channels(colour: str) -> tuple[int, int, int]:
    """Return red, green and blue of "#rrggbb", 0 to 255."""
    red, green, blue = bytes.fromhex(colour[1:])
    return red, green, blue


def _luminance(colour: str) -> float:
    """Return the relative luminance of "#rrggbb" (WCAG 2.2, section 1.4.3 and its definitions)."""
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (channel / 255 for channel in _channels(colour))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ink_on(colour: str) -> str:
    """Return the colour of text on a fill: of white and black, the one that contrasts more."""
    return max((_LIGHT, _DARK), key=lambda ink: _contrast(ink, colour))


def outline_of(colour: str) -> str:
    """Return the colour of lines around a fill: its hue, as light or dark as is needed to see them.

    That is 4.5 to one, or where no colour contrasts as much with the fill, black or white.
    """
    end = max(("#000000", "#ffffff"), key=lambda end: _contrast(end, colour))

    def contrast(percent: int) -> float:
        return _contrast(_mixed(colour, end, percent), colour)

    # The more there is of black or white, the more it contrasts.
    return _mixed(colour, end, bisect_left(range(100), _LINE_CONTRAST, key=contrast))


def _mixed(one: str, other: str, percent: int) -> str:
    """Return a colour with so much of another."""
    channels = zip(_channels(one), _channels(other), strict=True)
    return f"#{bytes(round(a + (b - a) * percent / 100) for a, b in channels).hex()}"


USE_COLOURS: Final[dict[Use, str]] = {
    Use.COMPUTE: "#0f8f6c",
    Use.COMMUNICATION: COLOURS[Kind.COLLECTIVE],
    Use.COPY: "#f0e442",
}
"""Colour of kernels by what they do, on a light ground: communication as everywhere, the others in hues
that no pass of a pipeline has alone."""

DARK_USE_COLOURS: Final[dict[Use, str]] = {
    Use.COMPUTE: "#35b48d",
    Use.COMMUNICATION: DARK_COLOURS[Kind.COLLECTIVE],
    Use.COPY: "#857d12",
}
"""The same on a dark ground."""

BUBBLE: Final = "#fbfbf9"
"""Colour of an idle lane on a light ground."""

DARK_BUBBLE: Final = "#17191c"
"""The same on a dark ground."""

_MAGENTA: Final = ("#8e1e6a", "#f06cb4")
_VIOLET: Final = ("#6a4bc4", "#9a86ff")
_OLIVE: Final = ("#7d8c12", "#9bb83c")
_TEAL: Final = ("#1590a5", "#35b6c9")
_RED: Final = ("#7a1712", "#ffb3aa")
Pattern = Literal["solid", "upright", "level", "rising", "falling", "dots", "check", "line"]
"""How the band of a cause is filled."""

_SLATE: Final = ("#5b5f66", "#c9ccd1")
_GREY: Final = ("#8a8f94", "#7b8187")

CAUSE_LOOKS: Final[dict[Cause, tuple[Pattern, str, str]]] = {
    Cause.WARM_UP: ("line", *_GREY),
    Cause.STEADY: ("line", *_GREY),
    Cause.COOL_DOWN: ("line", *_GREY),
    Cause.IMBALANCE: ("rising", *_OLIVE),
    Cause.SLOW_RANK: ("level", *_RED),
    Cause.VARIATION: ("upright", *_VIOLET),
    Cause.ORDER: ("falling", *_VIOLET),
    Cause.TRANSFER: ("dots", *_TEAL),
    Cause.PAUSE: ("falling", *_MAGENTA),
    Cause.LAUNCH: ("solid", *_MAGENTA),
    Cause.SEND: ("dots", *_TEAL),
    Cause.CODE: ("solid", *_MAGENTA),
    Cause.SYNC: ("upright", *_TEAL),
    Cause.UNEXPLAINED: ("check", *_SLATE),
    Cause.CLOCK: ("dots", *_SLATE),
}
"""Pattern of each cause of idle time, and its colour on a light and on a dark ground.

What is inherent to the schedule is a grey line. Patterns are upright, level, rising or falling stripes,
dots and a check; those of the same pattern differ in a hue that everyone can tell apart. Host code is
what launches are on a device, and a blocked send is a transfer: they look alike.
"""

CAUSE_COLOURS: Final[dict[Cause, str]] = {
    cause: light for cause, (_, light, _) in CAUSE_LOOKS.items()
}
"""Colour of each cause of idle time on a light ground."""

STRIPED: Final = frozenset({Cause.ORDER, Cause.PAUSE, Cause.SYNC, Cause.CLOCK})
"""Where there is no room for patterns: of two causes with one hue, the one that is two lines."""
