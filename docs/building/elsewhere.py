"""Documents that lie outside of docs/, which the site has as pages too, and links to them."""

from __future__ import annotations

import posixpath
import re
from typing import Final

ELSEWHERE: Final = {
    "README.md": "index.md",
    "README.zh.md": "zh/index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "examples/README.md": "project/examples.md",
}
"""Documents outside of docs/, and the pages that hold them."""

_LINK: Final = re.compile(r"(\]\()([^)#:\s]+)(#[^)\s]*)?(\))")


def relinked(text: str, path: str, docname: str) -> str:
    """Return a text whose links lead to pages of the site.

    Args:
        text: Markdown.
        path: Where the text lies in the project.
        docname: The page that it is on.
    """

    def lead(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[2]))
        if target in ELSEWHERE:
            page = ELSEWHERE[target]
        elif target.startswith("docs/"):
            page = target.removeprefix("docs/")
        else:
            page = f"../{target}"
        start = posixpath.dirname(docname) or "."
        return f"{match[1]}{posixpath.relpath(page, start)}{match[3] or ''}{match[4]}"

    return _LINK.sub(lead, text)
