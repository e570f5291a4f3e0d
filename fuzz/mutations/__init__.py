"""Mutations: small damage, of the kind that befalls a file of its format.

What is done follows from what a folder holds and a number alone: so numbers are all there is to know.
"""

from __future__ import annotations

import gzip
import json
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Final

import polars as pl

from fuzz.mutations import database, files, frames, lines, raw, tree

if TYPE_CHECKING:
    from pathlib import Path

_CANNOT: Final = (Exception, pl.exceptions.PanicException)
"""What a mutation meets in a file that earlier ones have damaged: it may be anything."""
_SHARE_OF_FILES: Final = 0.08
_SHARE_OF_BYTES: Final = 0.2
_CHECKSUM: Final = b"crc32"
"""What a recording calls its checksums, which those of older versions lack."""


class Damage(Enum):
    """Kinds of changes."""

    TERMS = "in the terms of the format: what is left is a sound file, perhaps an odd one"
    BYTES = "of bytes"
    SHOWN = (
        "of bytes, so that it shows: a reader that says nothing of it must not have been misled. So is "
        "what is packed or has checksums, and what ends early other than between two lines"
    )


def mutate(folder: Path, number: int, *, kept: tuple[str, ...] = ()) -> Damage:
    """Change an input in its place.

    Args:
        folder: The input.
        number: Which change of the many.
        kept: Names in the folder that stay as they are.

    Returns:
        What kind of change it was.
    """
    random = Random(number)
    paths = _files(folder, kept)
    if not paths:
        return Damage.TERMS
    path = random.choice(paths)
    if random.random() < _SHARE_OF_FILES and not kept:  # what one names is what one means
        files.mutate(folder, path, random)
        return Damage.TERMS
    if random.random() >= _SHARE_OF_BYTES:
        try:
            _in_its_terms(path, random)
        except _CANNOT:
            pass
        else:
            return Damage.TERMS
    data = path.read_bytes()
    if not data:
        return Damage.TERMS
    way = random.choice(raw.WAYS)
    damaged = way(data, random)
    path.write_bytes(damaged)
    torn = way is raw.cut and not damaged.endswith(b"\n")
    checked = data.startswith(b"\x1f\x8b") or _CHECKSUM in data
    return Damage.SHOWN if torn or checked else Damage.BYTES


def neutralise(folder: Path, number: int) -> bool:
    """Change what no number of a report depends on; say whether there is such a thing."""
    random = Random(number)
    paths = _files(folder)
    if not paths:
        return False
    path = random.choice(paths)
    try:
        data = path.read_bytes()
        if random.random() < 0.3 or path.suffix == ".bubbles":
            files.neutralise(folder, random)
        elif data.startswith(b"SQLite format 3\0"):
            database.neutralise(path, random)
        elif data.startswith(b"PAR1"):
            path.write_bytes(frames.neutral_parquet(data, random))
        elif data.startswith(b"\x1f\x8b"):
            path.write_bytes(gzip.compress(gzip.decompress(data), random.randrange(10), mtime=0))
        elif data.lstrip()[:1] in {b"{", b"["} and _is_one_document(data):
            path.write_text(tree.neutral(data.decode(), random))
        else:
            path.write_bytes(lines.neutral(data, random))
    except _CANNOT:
        return False
    return True


def _files(folder: Path, kept: tuple[str, ...] = ()) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sorted(path for path in found if path.relative_to(folder).parts[0] not in kept)


def _in_its_terms(path: Path, random: Random) -> None:
    """Damage a file in the terms of its format."""
    data = path.read_bytes()
    if data.startswith(b"SQLite format 3\0"):
        database.mutate(path, random)
    elif data.startswith(b"PAR1"):
        path.write_bytes(frames.mutated_parquet(data, random))
    elif path.suffix == ".bubbles":
        path.write_bytes(frames.mutated_stream(data, random))
    elif data.startswith(b"\x1f\x8b"):
        inside = gzip.decompress(data)
        path.write_bytes(gzip.compress(_text(inside, random), 1, mtime=0))
    elif data:
        path.write_bytes(_text(data, random))


def _text(data: bytes, random: Random) -> bytes:
    if data.lstrip()[:1] in {b"{", b"["} and random.random() < 0.8:
        try:
            return tree.mutated(data.decode(), random).encode("utf-8", "surrogatepass")
        except ValueError:
            pass
    return lines.mutated(data, random)


def _is_one_document(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True
