"""The letters of a PNG or PDF picture that a font of this machine has to have."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING, Final
from unicodedata import category

from bubblescope.model.errors import BubblescopeError

if TYPE_CHECKING:
    from collections.abc import Iterable

_UNDRAWN: Final = re.compile(r"<title>.*?</title>|<[^>]*>", re.DOTALL)
"""What of an SVG document is not drawn as text."""
_SHAPELESS: Final = ("Cc", "Cf", "M", "Z")
"""Categories of Unicode: controls, marks that belong to the letter before, room."""
_NO_LETTER: Final = "\ufffd"
"""Stands for what is no letter; a box is what it looks like."""
_NAMED: Final = 8
"""How many letters a message names."""


def beyond_ascii(document: str) -> list[str]:
    """Return the letters of an SVG document that not every font has, each once."""
    drawn = unescape(_UNDRAWN.sub("", document))
    return sorted(
        letter
        for letter in set(drawn) - {_NO_LETTER}
        if not letter.isascii() and not category(letter).startswith(_SHAPELESS)
    )


def refuse(lacking: Iterable[str]) -> None:
    """Refuse letters that would be boxes.

    Args:
        lacking: The letters of a picture that no font has.

    Raises:
        BubblescopeError: There are some.
    """
    letters = sorted(lacking)
    if letters:
        more = " ..." if len(letters) > _NAMED else ""
        raise BubblescopeError(
            f"no font of this machine has {''.join(letters[:_NAMED])}{more}, which stand in the names "
            "or the title of the picture; install a TrueType font that has them, such as Noto Sans, or "
            "export an SVG picture"
        )
