"""What a Parquet file says of its pages, looked at before Polars believes it.

Polars takes room for as many values as the head of a page claims, and a claim of 2^61 of them ends the
process. Heads of pages and the file's own are structures in Thrift's compact protocol:
https://parquet.apache.org/docs/file-format/ and
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

import mmap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

MAGIC: Final = b"PAR1"
TAIL: Final = 8
"""Bytes behind the file's head, which stands at its end: its length and the magic."""
_LONGEST: Final = 10
"""Bytes of a number of 64 bits, with seven bits in each."""

# Numbers of fields in Parquet's structures.
_SCHEMA: Final = 2
_CHILDREN: Final = 5
"""Of the first of the schema, which is the whole: its columns."""
_ROWS: Final = 3
"""Of the file, and of a group of rows."""
_ROW_GROUPS: Final = 4
_CHUNKS: Final = 1
_CHUNK: Final = 3
_PATH, _VALUES, _PACKED, _FIRST_PAGE, _DICTIONARY = 3, 5, 7, 9, 11
_UNPACKED_SIZE, _PACKED_SIZE = 2, 3
_DICTIONARY_PAGE: Final = 7
_PAGES_OF_VALUES: Final = (5, 8)
_VALUES_OF_PAGE: Final = 1

# Kinds of values in the protocol.
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS: Final = (4, 5, 6)

_Fields = dict[int, Any]


class ImpossibleError(Exception):
    """A file claims what cannot be."""


def claimed_size(
    source: Path | bytes, columns: Collection[str] | None, unpacked: int
) -> tuple[int, int] | None:
    """Return how many rows and columns a file claims to have; None if its head does not say.

    Args:
        source: The file, or what it holds.
        columns: Those that will be read, which count; None for all.
        unpacked: Bytes that a page may have at most.

    Raises:
        ImpossibleError: A page claims what cannot be.
    """
    with _held(source) as data:
        try:
            rows, wide, chunks = _head(data)
        except (ValueError, LookupError, RecursionError, AttributeError, TypeError):
            return None
        for chunk in chunks:
            path = chunk.get(_PATH) or [b""]
            if columns is not None and path[0].decode("utf-8", "replace") not in columns:
                continue
            try:
                _look_at(data, chunk, unpacked)
            except (ValueError, LookupError, RecursionError, TypeError):
                raise ImpossibleError("a page's head is not of what it holds") from None
    return rows, wide if columns is None else len(columns)


@contextmanager
def _held(source: Path | bytes) -> Iterator[bytes | mmap.mmap]:
    if isinstance(source, bytes):
        yield source
    elif not source.stat().st_size:
        yield b""
    else:
        with (
            source.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            yield data


def _head(data: bytes | mmap.mmap) -> tuple[int, int, list[_Fields]]:
    """Return how many rows and columns a file's head claims, and what it says of each group's columns.

    Raises:
        ValueError, IndexError, RecursionError: It is damaged.
    """
    size = int.from_bytes(data[-TAIL : -len(MAGIC)], "little")
    begin = len(data) - TAIL - size
    if data[-len(MAGIC) :] != MAGIC or begin < 0:
        raise ValueError("no head")
    head, _ = _struct(data, begin)
    groups = head.get(_ROW_GROUPS, ())
    rows = max(head[_ROWS], sum(group[_ROWS] for group in groups))
    return (
        rows,
        head[_SCHEMA][0][_CHILDREN],
        [
            column[_CHUNK]
            for group in groups
            for column in group.get(_CHUNKS, ())
            if isinstance(column.get(_CHUNK), dict)
        ],
    )


def _look_at(data: bytes | mmap.mmap, chunk: _Fields, unpacked: int) -> None:
    """Go through the pages of a column.

    Raises:
        ValueError, LookupError, RecursionError, TypeError: One is not possible.
    """
    at: int = chunk[_DICTIONARY] if _DICTIONARY in chunk else chunk[_FIRST_PAGE]
    end = at + chunk[_PACKED]
    values = min(chunk[_VALUES], unpacked)
    if not 0 <= at <= end <= len(data):
        raise ValueError("pages beyond the file")
    while at < end:
        head, at = _struct(data, at)
        at += head[_PACKED_SIZE]
        unpacked_size = head[_UNPACKED_SIZE]
        if head[_PACKED_SIZE] < 0 or at > end or not 0 <= unpacked_size <= unpacked:
            raise ValueError("a page beyond its column")
        # A dictionary may have more entries than there are rows, but each takes a byte at least.
        for kind, most in (
            (_DICTIONARY_PAGE, unpacked_size),
            *((n, values) for n in _PAGES_OF_VALUES),
        ):
            if kind in head and not 0 <= head[kind][_VALUES_OF_PAGE] <= most:
                raise ValueError("more values than there can be")


# What follows reads Thrift's compact protocol: each function returns what begins at a place, and where
# it ends. They raise ValueError, LookupError or RecursionError where there is no such thing. A file has
# thousands of these values, so the most frequent kinds are read where they stand.


def _struct(data: bytes | mmap.mmap, at: int) -> tuple[_Fields, int]:
    """Return the values of a structure by the numbers of its fields."""
    found: _Fields = {}
    field = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head > 15:
            field += head >> 4
        else:
            field, at = _signed(data, at)
        if kind in _INTEGERS:
            number = data[at]
            if number < 128:
                at += 1
            else:
                number, at = _number(data, at)
            found[field] = (number >> 1) ^ -(number & 1)
        elif kind == _BINARY:
            found[field], at = _bytes(data, at)
        elif kind in {_TRUE, _FALSE}:
            found[field] = kind == _TRUE
        else:
            found[field], at = _READERS[kind](data, at)
    return found, at + 1


def _byte(data: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    return data[at], at + 1


def _number(data: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_LONGEST):
        byte = data[at + place]
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    raise ValueError("a number without end")


def _signed(data: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    value, at = _number(data, at)
    return (value >> 1) ^ -(value & 1), at


def _bytes(data: bytes | mmap.mmap, at: int) -> tuple[bytes, int]:
    size = data[at]
    if size < 128:
        at += 1
    else:
        size, at = _number(data, at)
    return _double(data, at, size)


def _double(data: bytes | mmap.mmap, at: int, size: int = 8) -> tuple[bytes, int]:
    if at + size > len(data):
        raise IndexError("beyond the file")
    return data[at : at + size], at + size


def _list(data: bytes | mmap.mmap, at: int) -> tuple[list[Any], int]:
    head, at = data[at], at + 1
    count = head >> 4
    if count == 15:
        count, at = _number(data, at)
    read = _READERS[head & 15]
    found = []
    for _ in range(count):
        value, at = read(data, at)
        found.append(value)
    return found, at


def _map(data: bytes | mmap.mmap, at: int) -> tuple[list[tuple[Any, Any]], int]:
    count, at = _number(data, at)
    kinds, at = _byte(data, at) if count else (0, at)
    found = []
    for _ in range(count):
        key, at = _READERS[kinds >> 4](data, at)
        value, at = _READERS[kinds & 15](data, at)
        found.append((key, value))
    return found, at


_READERS: Final[dict[int, Callable[[bytes | mmap.mmap, int], tuple[Any, int]]]] = {
    **dict.fromkeys((_TRUE, _FALSE, _BYTE), _byte),  # those of truth, where they are in a list
    **dict.fromkeys(_INTEGERS, _signed),
    **dict.fromkeys((_LIST, _SET), _list),
    _DOUBLE: _double,
    _BINARY: _bytes,
    _MAP: _map,
    _STRUCT: _struct,
}
