"""Lines of Chinese: a letter is two columns wide, and a line may end behind almost any."""
# ruff: noqa: RUF001  Chinese punctuation is what is meant

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len
from rich.containers import Lines
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

_WIDE: Final = r"\u2e80-\u9fff\uff00-\uffef"
_PIECE: Final = re.compile(
    rf"[{_WIDE}][、。〉》」』】〕！），．：；？］]*|[^\s{_WIDE}]+[、。！），：；？]*|\s+"
)
"""What a line is not broken within: a wide letter with what closes after it, a word, spaces."""
_CHINESE: Final = re.compile(r"[\u4e00-\u9fff]")


def is_wide(text: str) -> bool:
    """Say whether a text has Chinese letters."""
    return _CHINESE.search(text) is not None


def breaks(text: str, width: int) -> list[int]:
    """Return where to break a text, so that no line takes more columns of a terminal than that.

    >>> breaks("各 rank 没有共同的时钟。", 12)
    [9]
    """
    ends, used = [], 0
    for piece in _PIECE.finditer(text):
        needed = cell_len(piece[0].rstrip())
        if used and used + needed > width:
            ends.append(piece.start())
            used = 0
        used += cell_len(piece[0])
        while (
            used > width and piece[0].strip() and cell_len(piece[0]) == used
        ):  # longer than a line
            used -= width
            if used > 0:
                ends.append(piece.end() - used)
    return ends


class Wide(Text):
    """Wide letters, which rich takes for one word up to the next space, however many there are."""

    def wrap(self, console: Console, width: int, **options: Any) -> Lines:
        """Return the lines of a text, none wider than that."""
        overflow = options.get("overflow") or self.overflow
        if options.get("no_wrap") or self.no_wrap or overflow == "ignore":
            return super().wrap(console, width, **options)
        lines = Lines()
        for line in self.split(allow_blank=True):
            for part in line.divide(breaks(line.plain, width)):
                part.rstrip()  # Rich would count letters, and cut a line for the space behind it
                lines.append(part)
        if (justify := options.get("justify") or self.justify) is not None:
            lines.justify(console, width, justify=justify, overflow=overflow or "fold")
        return lines
