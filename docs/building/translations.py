"""Pages in other languages: `docs/zh/X.md` is `docs/X.md` in Chinese, `README.zh.md` is `README.md`.

What a translation runs is what its original runs, so only the original is run; that both have the same
code blocks, but for the comments in them, is one of the tests.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from docs.building.pages import RUNNABLE, blocks

if TYPE_CHECKING:
    from pathlib import Path

    from docs.building.pages import Block

LANGUAGES: Final = {"zh": "zh-CN"}
"""Folders of translated pages, and their languages as HTML names them."""

_COMMENT: Final = re.compile(r"[ \t]*(?<!\S)#.*$", re.MULTILINE)


def original(page: Path, docs: Path) -> Path | None:
    """Return the page that a page is a translation of; None if it is none.

    Args:
        page: A page of the documentation, or a README.
        docs: The sources of the site.
    """
    if page.is_relative_to(docs):
        folder, *rest = page.relative_to(docs).parts
        return docs.joinpath(*rest) if folder in LANGUAGES else None
    name, _, language = page.stem.partition(".")
    return page.with_name(f"{name}.md") if language in LANGUAGES else None


def code(page: Path) -> list[Block]:
    """Return the code blocks of a page as translations share them: without comments and places."""
    return [
        block._replace(
            line=0, text=_COMMENT.sub("", block.text) if block.language in RUNNABLE else block.text
        )
        for block in blocks(page)
        if block.language != "{toctree}"
    ]
