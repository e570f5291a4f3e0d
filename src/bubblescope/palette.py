"""One set of colours for every output.

The hues are those of Okabe & Ito, "Color Universal Design" (2008), which people with any of the
common colour-vision deficiencies can tell apart; forward and backward also differ in lightness, so
that they survive a grey print. The two halves of a split backward are one hue, dark and light.
"""

from __future__ import annotations

from typing import Final

from bubblescope.vocabulary import Kind

__all__ = ["BUBBLE", "COLOURS", "INK"]

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

INK: Final[dict[Kind, str]] = {
    kind: "#ffffff"
    if kind in {Kind.FORWARD, Kind.OPTIMIZER, Kind.GC, Kind.FORWARD_BACKWARD}
    else "#1a1a1a"
    for kind in COLOURS
}
"""Colour of text drawn on each fill: the one of black and white that contrasts more."""

BUBBLE: Final = "#f4f4f2"
"""Colour of an idle lane."""
