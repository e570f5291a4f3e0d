"""Looks at every link of the built pages: files that are there, and anchors that are in them."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urldefrag, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_REFERS: Final = {"a": "href", "link": "href", "img": "src", "script": "src", "iframe": "src"}


class _Page(HTMLParser):
    """What a page refers to, and what can be referred to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of an element."""
        given = dict(attrs)
        for name in ("id", "name"):
            if given.get(name):
                self.anchors.add(str(given[name]))
        if (target := given.get(_REFERS.get(tag, ""))) is not None:
            self.links.append(target)


def broken(site: Path) -> Iterator[str]:
    """Yield a sentence for each link within the site that leads nowhere.

    Args:
        site: Folder of the built pages.
    """
    pages = {
        path.resolve(): _Page(path.read_text("utf-8")) for path in sorted(site.rglob("*.html"))
    }
    for path, page in pages.items():
        for link in dict.fromkeys(page.links):
            address, anchor = urldefrag(link)
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            where = f"{path.relative_to(site.resolve())}: {link}"
            if not target.exists():
                yield f"{where}: there is no such file"
            elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
                yield f"{where}: there is no such anchor"
