"""One set of colours for every output.

The hues are those of Okabe & Ito, "Color Universal Design" (2008), which people with any of the
common colour-vision deficiencies can tell apart; forward and backward also differ in lightness, so
that they survive a grey print. The two halves of a split backward are one hue, dark and light.
"""

from __future__ import annotations

from typing import Final

from bubblescope.analysis.idle.causes import Cause
from bubblescope.model.budget import Use
from bubblescope.model.kinds import Kind

COLOURS: Final[dict[Kind, str]] = {
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
"""Fill colour of each task kind."""

_LIGHT, _DARK = "#ffffff", "#1a1a1a"


def _luminance(colour: str) -> float:
    """Return the relative luminance of "#rrggbb" (WCAG 2.2, section 1.4.3 and its definitions)."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (red, green, blue)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(one: str, other: str) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ink_on(colour: str) -> str:
    """Return the colour of text on a fill: of white and black, the one that contrasts more."""
    return max((_LIGHT, _DARK), key=lambda ink: _contrast(ink, colour))


INK: Final[dict[Kind, str]] = {kind: ink_on(colour) for kind, colour in COLOURS.items()}
"""Colour of text drawn on each fill."""

USE_COLOURS: Final[dict[Use, str]] = {
    Use.COMPUTE: "#009e73",
    Use.COMMUNICATION: COLOURS[Kind.COLLECTIVE],
    Use.COPY: "#f0e442",
}
"""Colour of kernels by what they do: communication as everywhere, the others in hues of the same set
that no pass of a pipeline has alone."""

BUBBLE: Final = "#f4f4f2"
"""Colour of an idle lane."""

CAUSE_COLOURS: Final[dict[Cause, str]] = {
    Cause.WARM_UP: "#8c929b",
    Cause.STEADY: "#8c929b",
    Cause.COOL_DOWN: "#8c929b",
    Cause.IMBALANCE: "#b47ee4",
    Cause.SLOW_RANK: "#c2185b",
    Cause.VARIATION: "#b47ee4",
    Cause.ORDER: "#4a52c9",
    Cause.TRANSFER: "#3f9a96",
    Cause.PAUSE: "#a0822a",
    Cause.LAUNCH: "#a0822a",
    Cause.SEND: "#3f9a96",
    Cause.CODE: "#a0822a",
    Cause.SYNC: "#3f9a96",
    Cause.UNEXPLAINED: "#c2185b",
    Cause.CLOCK: "#4a52c9",
}
"""Colour of each cause of idle time: grey where it is inherent, else one of five hues.

Five are as many as people with any of the common deficiencies can tell apart, on dark and on light;
of the two causes with the same hue, one is striped. Host code is what launches are on a device, and a
blocked send is a transfer: they look alike.
"""

STRIPED: Final = frozenset(
    {Cause.STEADY, Cause.VARIATION, Cause.PAUSE, Cause.SYNC, Cause.UNEXPLAINED, Cause.CLOCK}
)
"""Causes that are drawn as two lines, not as one."""
