"""The letters by which the zero-bubble papers, and many loops after them, call operations."""

from __future__ import annotations

from typing import Final

from bubblescope.model.kinds import Kind

LETTERS: Final = {
    "F": Kind.FORWARD,
    "B": Kind.BACKWARD,
    "BW": Kind.BACKWARD,
    "W": Kind.BACKWARD_WEIGHT,
    "R": Kind.RECOMPUTE,
}
"""What the letters of the zero-bubble papers stand for. A plain "B" may be the input gradient alone:
see `ParsedName.splits`."""
