"""The sentences that a page is given, in the other language that it can be read in.

What the page says by itself it has in every language (`viewer/src/words.ts`). Names of kinds, causes
and rates are its keys, and stay as they are. Sentences about a run it has in English, and where it is
written by a process that speaks Chinese, in that language too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.model import language

if TYPE_CHECKING:
    from collections.abc import Iterator

_SENTENCES: Final = frozenset(
    (
        *("said", "share_of", "headline", "evidence", "advice", "meaning", "definitions"),
        *("change", "needs", "best_if", "detail", "how", "way", "reason"),
        *("facts", "schedule", "departures", "differs", "noise", "notes", "warnings", "no_kernels"),
        "untold",
    )
)
"""Fields of a head or an answer that are sentences, or lists or tables of them."""


def in_chinese(told: msgspec.Struct) -> dict[str, str]:
    """Return what the sentences of a head or an answer are in Chinese, those that are translated.

    There are none where this process speaks English, which loads no catalogue.
    """
    if language.current() == language.ENGLISH:
        return {}
    texts = dict.fromkeys(_sentences(msgspec.to_builtins(told)))
    chinese = {text: language.translated(text) for text in texts}
    return {text: said for text, said in chinese.items() if said != text}


def _sentences(value: Any, *, sentence: bool = False) -> Iterator[str]:
    if isinstance(value, str):
        if sentence:
            yield value
    elif isinstance(value, list):
        for one in value:
            yield from _sentences(one, sentence=sentence)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _sentences(one, sentence=sentence or key in _SENTENCES)
