"""Where the levels of a dataset lie: what `bubblescope serve` shows of it, worked out beforehand.

They are of a dataset as it is now, and for the page of this version: of one that traces are added to,
and for another version, they are another folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bubblescope.sources.dataset.derived_folder import folder_within

if TYPE_CHECKING:
    from bubblescope.sources.dataset.catalogue import Catalogue

SCHEMA: Final = "bubblescope.levels/6"
"""Name and version of the layout, described in docs/dataset.md."""

FOLDER: Final = "levels"


def folder_of(catalogue: Catalogue) -> str:
    """Return the folder of the levels of a dataset, within it."""
    return folder_within(FOLDER, SCHEMA, (part.name.encode() for part in catalogue.parts))
