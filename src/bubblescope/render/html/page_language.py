"""The sentences that a page is given, in the language that this process speaks to people.

What the page says by itself it has in every language (`viewer/src/words.ts`). Names of kinds, causes
and rates are its keys, and stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.model import language

if TYPE_CHECKING:
    from bubblescope.render.html.schema import Head

_SENTENCES: Final = frozenset(
    (
        *("said", "share_of", "headline", "evidence", "advice", "meaning", "definitions"),
        *("change", "needs", "best_if", "detail", "how", "way", "reason"),
        *("facts", "schedule", "departures", "differs", "noise", "notes", "warnings", "no_kernels"),
    )
)
"""Fields of a head that are sentences, or lists or tables of them."""


def spoken(head: Head) -> Any:
    """Return a head whose sentences are in the current language, as what JSON can hold."""
    return head if language.current() == language.ENGLISH else _spoken(msgspec.to_builtins(head))


def _spoken(value: Any, *, sentence: bool = False) -> Any:
    if isinstance(value, str):
        return language.translated(value) if sentence else value
    if isinstance(value, list):
        return [_spoken(one, sentence=sentence) for one in value]
    if isinstance(value, dict):
        return {
            key: _spoken(one, sentence=sentence or key in _SENTENCES) for key, one in value.items()
        }
    return value
