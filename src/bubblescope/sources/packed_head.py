"""The beginning of a file, which may be packed."""

from __future__ import annotations

import zlib
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

GZIP: Final = b"\x1f\x8b"


def packed(path: Path) -> bool:
    """Say whether a file is packed.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(GZIP)) == GZIP


def read_head(path: Path, size: int) -> bytes:
    """Return the first bytes of a file, unpacked if it is packed, without a byte order mark.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(size)
    if not head.startswith(GZIP):
        return head.removeprefix(BOM_UTF8)
    try:
        return zlib.decompressobj(wbits=31).decompress(head, size).removeprefix(BOM_UTF8)
    except zlib.error:
        return b""
