"""Where what is worked out of a dataset lies in it: of the dataset as it is now, by this version."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from bubblescope.model.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

_LETTERS: Final = 8


def folder_within(folder: str, schema: str, known: Iterable[bytes]) -> str:
    """Return the folder, which is another one for another version and for another dataset.

    Args:
        folder: What it is in.
        schema: Name and version of the layout.
        known: What tells datasets apart.
    """
    key = hashlib.blake2b(f"{schema} {__version__}".encode(), digest_size=_LETTERS)
    for part in known:
        key.update(part)
    return f"{folder}/{key.hexdigest()}"
