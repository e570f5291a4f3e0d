"""Text of a trace as it can be shown: nothing in it moves, colours or turns anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_HALVES: Final = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
_CHANGES_OTHERS: Final = (
    *((0x00, 0x08), (0x0B, 0x1F), (0x7F, 0x9F)),  # control characters but for tab and line feed
    *((0x061C, 0x061C), (0x200E, 0x200F), (0x202A, 0x202E), (0x2066, 0x2069)),  # of direction
    *(
        (0x2028, 0x2029),
        (0xFFF9, 0xFFFB),
    ),  # ends of lines and paragraphs, and what is between lines
    (0xE0000, 0xE007F),  # tags
)
"""Characters without a picture of their own that change those of others: first and last of ranges."""

_RANGES: Final = "".join(rf"\x{{{a:X}}}-\x{{{b:X}}}" for a, b in _CHANGES_OTHERS)
UNSEEN: Final = f"[{_RANGES}]"
"""A regular expression of Polars for one of those characters."""
UNSEEN_IN_LINE: Final = rf"[\t\n{_RANGES}]"
"""The same for text that stands in one line."""

_UNSEEN: Final = _HALVES | {
    code: "\ufffd" for first, last in _CHANGES_OTHERS for code in range(first, last + 1)
}
_IN_JSON: Final = {
    code: "".join(f"\\u{unit:04x}" for unit in memoryview(chr(code).encode("utf-16-le")).cast("H"))
    for first, last in _CHANGES_OTHERS
    for code in range(max(first, 0x20), last + 1)
}


def visible(text: str) -> str:
    """Replace every character that has no picture of its own but changes that of others."""
    return text.translate(_UNSEEN)


def inert_json(text: str) -> str:
    """Return the same JSON with what `visible` replaces, within strings, as escapes."""
    plain = text.isascii() and "\x7f" not in text  # as nearly all is, and to see that takes no time
    return text if plain else text.translate(_IN_JSON)


def whole(text: str) -> str:
    """Replace halves of characters, as in a name that is not UTF-8: no file of ours holds one."""
    return text if text.isascii() else text.translate(_HALVES)


def utf8(path: Path) -> bool:
    """Say whether a file's name is UTF-8, as the libraries need it that read and write files."""
    return whole(str(path)) == str(path)


def cut(text: str, most: int) -> str:
    """Return the beginning of a text that is longer than anybody reads, and by how much it is."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more letters)"
