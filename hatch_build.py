"""What the package's metadata says beside pyproject.toml: the README, and where the project lives.

Links of the README are relative, which an index cannot follow. Whoever builds a release says where the
repository is (`BUBBLESCOPE_REPOSITORY=https://host/owner/name`); links and pictures then lead to that
release's own files there. Without, nothing is claimed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY: Final = "BUBBLESCOPE_REPOSITORY"
_LINK: Final = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<place>[^)]+)\)")


class ProjectMetadata(MetadataHookInterface):  # type: ignore[misc]  # hatchling is not typed for this
    """Adds README and URLs."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add them."""
        text = Path(self.root, "README.md").read_text("utf-8")
        repository = os.environ.get(REPOSITORY, "").rstrip("/")
        if repository:
            text = absolute(text, repository, f"v{metadata['version']}")
            metadata["urls"] = {
                "Documentation": f"{repository}/tree/v{metadata['version']}/docs",
                "Source": repository,
                "Issues": f"{repository}/issues",
                "Changelog": f"{repository}/blob/v{metadata['version']}/CHANGELOG.md",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, repository: str, tag: str) -> str:
    """Return Markdown whose links and pictures lead to the files of a tag."""

    def led(found: re.Match[str]) -> str:
        place = found["place"]
        if not re.match(r"[a-z]+:|#", place):
            place = f"{repository}/{'raw' if found['picture'] else 'blob'}/{tag}/{place}"
        return f"{found['picture']}[{found['text']}]({place})"

    return _LINK.sub(led, text)
