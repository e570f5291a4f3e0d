"""Answers that are short enough to be read: lists end early, and it says so where they do.

Texts are those of traces that others wrote. So none is longer than a name can be, and what has no
picture of its own but changes others is replaced.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from bubblescope.model.plain_text import cut, visible

ROWS: Final = 20
"""Rows of a list, if not said otherwise."""
MOST_ROWS: Final = 200
LONGEST_TEXT: Final = 1000
"""Characters of a text; more than any sentence of ours has."""
MOST_CHARACTERS: Final = 60_000
"""Of an answer as JSON. A model reads no more than this in a glance, and pays for every one."""


def limited(value: dict[str, Any], rows: int = ROWS) -> dict[str, Any]:
    """Return an answer whose lists have so many rows at most, and which is no longer than may be.

    What was cut is said under `truncated`: where, how many rows are shown, and how many there are.

    Args:
        value: Plain values.
        rows: Rows of each list; fewer if the answer is too long with these.

    Raises:
        ValueError: The number of rows is none that may be.
    """
    if not 1 <= rows <= MOST_ROWS:
        raise ValueError(f"rows is {rows}, where 1 to {MOST_ROWS} may be")
    while True:
        ends: list[dict[str, Any]] = []
        shown: dict[str, Any] = _cut(value, "", rows, ends)
        if ends:
            shown["truncated"] = ends[:rows]
        if rows == 1 or len(msgspec.json.encode(shown)) <= MOST_CHARACTERS:
            return shown
        rows = max(rows // 2, 1)


def _cut(value: Any, where: str, rows: int, ends: list[dict[str, Any]]) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        named = {_text(str(key)): one for key, one in value.items()}
        return {
            key: _cut(one, f"{where}.{key}" if where else key, rows, ends)
            for key, one in named.items()
        }
    if isinstance(value, (list, tuple)):
        if len(value) > rows:
            ends.append({"where": where, "shown": rows, "of": len(value)})
        return [_cut(one, f"{where}[{at}]", rows, ends) for at, one in enumerate(value[:rows])]
    return value


def _text(text: str) -> str:
    return cut(visible(text), LONGEST_TEXT)
