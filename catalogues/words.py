"""Single words that are shown, which `catalogues.texts` cannot tell from names in code."""

from __future__ import annotations

from typing import Final

WORDS: Final = (
    "Example:",
    "Examples:",
    "required",
    "them",
    "it",
    "take",
    "takes",
    "explain",
    "explains",
    "{numbers} and {count} more",
)
