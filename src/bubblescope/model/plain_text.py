"""Text of a trace as it can be shown: nothing in it moves, colours or turns anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_HALVES: Final = dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
_UNSEEN: Final = _HALVES | dict.fromkeys(
    {
        *range(0x20),
        *range(0x7F, 0xA0),
        0x200E,
        0x200F,
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
    }
    - {0x09, 0x0A},
    "\ufffd",
)
"""Control characters but for tab and line feed, marks of direction, and halves of characters."""


def visible(text: str) -> str:
    """Replace every character that has no picture of its own but changes that of others."""
    return text.translate(_UNSEEN)


def whole(text: str) -> str:
    """Replace halves of characters, as in a file's name that is no UTF-8: no file of ours holds one."""
    return text if text.isascii() else text.translate(_HALVES)


def utf8(path: Path) -> bool:
    """Say whether a file's name is UTF-8, as the libraries need it that read and write files."""
    return whole(str(path)) == str(path)


def cut(text: str, most: int) -> str:
    """Return the beginning of a text that is longer than anybody reads, and by how much it is."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more letters)"
