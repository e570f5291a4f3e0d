"""How wide a picture is, in pixels or as it is printed."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from bubblescope.model.errors import BubblescopeError

INCH: Final = 96.0
"""Pixels in an inch, as CSS and SVG define them."""
POINT: Final = INCH / 72
"""Pixels in a point, the unit of type sizes."""

_UNITS: Final = {"px": 1.0, "in": INCH, "cm": INCH / 2.54, "mm": INCH / 25.4, "pt": POINT}
_NAMED: Final = {"column": "3.3in", "page": "7in"}
"""Widths with a name: those of a column and of a page of most two-column papers."""

_LENGTH: Final = re.compile(r"(\d+\.?\d*|\.\d+) ?(px|in|cm|mm|pt)?", re.ASCII)
_MOST: Final = 50_000


class Size(NamedTuple):
    """A length with its unit.

    Attributes:
        pixels: The length in pixels of 1/96 inch.
        unit: The unit in which it was given.
    """

    pixels: float
    unit: str

    @classmethod
    def of(cls, width: float | str) -> Size:
        """Return a width given as a number of pixels or as text, such as "3.3in" or "column".

        Raises:
            BubblescopeError: The text is no length, or the picture would be over 50,000 pixels wide.
        """
        unit = "px"
        if isinstance(width, str):
            found = _LENGTH.fullmatch(_NAMED.get(width.strip(), width.strip()))
            if found is None:
                names = " or ".join(f"{name} ({length})" for name, length in _NAMED.items())
                raise BubblescopeError(
                    f"{width!r} is not a width; give one such as 84mm, 3.3in, 240pt or 1600px, "
                    f"or {names}"
                )
            unit = found[2] or "px"
            width = float(found[1])
        size = cls(width * _UNITS[unit], unit)
        if size.pixels > _MOST:
            raise BubblescopeError(f"a picture is at most {size.written(_MOST)} wide")
        return size

    @property
    def printed(self) -> bool:
        """Whether it is the size of a print, so that type sizes are meant as they are."""
        return self.unit != "px"

    def written(self, pixels: float) -> str:
        """Write a length in the unit of this one, as an SVG attribute takes it.

        >>> Size.of("84mm").written(96), Size.of(1600).written(96)
        ('25.4mm', '96')
        """
        text = f"{pixels / _UNITS[self.unit]:.4f}".rstrip("0").rstrip(".")
        return text + (self.unit if self.printed else "")
