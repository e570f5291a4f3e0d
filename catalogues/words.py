"""Single words that are shown, which `catalogues.texts` cannot tell from names in code."""

from __future__ import annotations

from typing import Final

WORDS: Final[tuple[str, ...]] = ()
