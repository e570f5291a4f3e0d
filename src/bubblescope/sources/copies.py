"""One trace given as two: a copy of a rank's under the name of another.

Each rank's times are its own, to the nanosecond, so no two ranks write the same. Links to one file are
left alone: who makes them means several ranks to have one trace.
"""

from __future__ import annotations

import filecmp
from itertools import combinations
from typing import TYPE_CHECKING, Final

from bubblescope.model.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_PIECE: Final = 1 << 16
"""How much is looked at in files of one length, in the middle and at the end, before all is."""


def refuse_copies(paths: Iterable[Path]) -> None:
    """Refuse files that are the same to the byte.

    Args:
        paths: Traces of one rank each, none of them empty of what ran when.

    Raises:
        SourceError: Two are one trace.
    """
    sizes: dict[int, list[Path]] = {}
    try:
        for path in paths:
            sizes.setdefault(path.stat().st_size, []).append(path)
        for size, some in sizes.items():
            alike: dict[bytes, list[Path]] = {}
            for path in some if len(some) > 1 else ():
                alike.setdefault(_pieces(path, size), []).append(path)
            for same in alike.values():
                for first, other in combinations(sorted(same), 2):
                    _refuse_copy(first, other)
    except OSError as error:
        raise SourceError(path, f"cannot be read ({error.strerror})") from None


def _refuse_copy(first: Path, other: Path) -> None:
    """Refuse a file that is the same as the first, and no link to it."""
    if not first.samefile(other) and filecmp.cmp(first, other, shallow=False):
        raise SourceError(
            other,
            f"is a copy of {first}, byte by byte, and two ranks never run at the same "
            "nanoseconds: one trace was given as two; give only one of them",
        )


def _pieces(path: Path, size: int) -> bytes:
    """Return what is in the middle and at the end of a file."""
    with path.open("rb") as file:
        file.seek(size // 2)
        middle = file.read(_PIECE)
        file.seek(max(0, size - _PIECE))
        return middle + file.read(_PIECE)
