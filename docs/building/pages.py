"""The code blocks of a Markdown page: what language they are in, and whether they are to be run.

A block is run unless the line before it is a comment that says why not:

    <!-- not run: needs a GPU -->

Blocks of `text` show output and are not run; nor are those of data (`toml`, `yaml`, `sql`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

RUNNABLE: Final = ("sh", "python")
"""Languages whose blocks are run."""

SHOWN: Final = ("text", "toml", "yaml", "sql", "json", "csv")
"""Languages of blocks that are not programs."""

_FENCE: Final = re.compile(r"^( *)(`{3,})\s*(\{?[\w-]*\}?)[^\n`]*$")
_REASON: Final = re.compile(r"^<!-- not run: (.+) -->$")


class Block(NamedTuple):
    """A code block.

    Attributes:
        language: As its fence names it; empty if it does not.
        text: Its lines.
        line: Number of its first line in the page, from 1.
        reason: Why it is not run; None if it is.
    """

    language: str
    text: str
    line: int
    reason: str | None


def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page, top to bottom.

    Raises:
        ValueError: A block is not closed, or names no language.
    """
    found: list[Block] = []
    opened: tuple[str, str, int] | None = None
    lines: list[str] = []
    before = ""
    reason: str | None = None
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            told = _REASON.match(before)
            reason = told[1] if told else None
            opened, lines = (fence[2], fence[3], number + 1), []
            if not fence[3]:
                raise ValueError(f"{page}:{number}: a code block without a language")
        elif opened is not None and line.strip() == opened[0]:
            found.append(Block(opened[1], "".join(f"{one}\n" for one in lines), opened[2], reason))
            opened = None
        elif opened is not None:
            lines.append(line)
        if line.strip():
            before = line.strip()
    if opened is not None:
        raise ValueError(f"{page}:{opened[2]}: a code block that is not closed")
    return found
