"""Columns of integers of a SQLite file, decoded from its pages.

SQLite hands out one value at a time, and its driver for Arrow takes some 60 ns for each. Most of what
profilers export are tables of integers, and NumPy decodes a column of many rows at once, in a third of
the time. What is not that plain is left to SQLite: text and floats, rows that go on on another page,
rows that were written before their table had all its columns, and damage (`NotPlainError`).

The format is described at https://www.sqlite.org/fileformat2.html, whose terms are used here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import FileIO
    from pathlib import Path

    from numpy.typing import NDArray

    from bubblescope.model.arrays import Ints

    Bytes = NDArray[np.uint8]
    Types = Bytes | np.uint8  # of all rows where that is one: most columns are of one for long

_BLOCK_BYTES: Final = 1 << 20
"""Bytes of pages to decode at once: with what is made of them they fit into a processor's cache."""
_PART_BYTES: Final = 1 << 25
"""Bytes of pages that make a part of a table."""

_INTERIOR, _LEAF = 0x05, 0x0D
"""The first byte of pages of a table: of those that refer to others, and of those with rows."""
_DEEPEST: Final = 20
"""Levels of pages that no table has: each has dozens of times the pages of the one above."""
_LAST_ROW: Final = (1 << 63) - 1
_LONGEST: Final = 8
"""Bytes of the numbers of variable length that are decoded here; SQLite's may have one more."""
_AROUND: Final = 35
"""Bytes that a page has at least beside a row: one that is larger goes on on another page."""
_SPARE: Final = 512
"""Bytes behind the last page that a damaged row may seem to reach."""

_NULL, _FLOAT, _ZERO, _ONE = 0, 7, 8, 9
_LAST_INTEGER = _ONE
"""Serial types of values: null, a float, the numbers 0 and 1, the last of which is the last integer."""
_ONE_BYTE: Final = 127
"""The largest number of variable length that takes one byte; as a serial type, a text of 57 bytes."""
_WIDTH: Final = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0], np.int64)
_WIDTHS: Final = np.append(_WIDTH, (np.arange(len(_WIDTH), 256) - len(_WIDTH)) // 2)
"""Bytes of the value of each serial type."""
_UNUSED: Final = np.minimum(64 - 8 * _WIDTH, 63)
"""Bits of a number of 64 that those of an integer do not take."""


class NotPlainError(Exception):
    """Only SQLite can read these rows."""


class Part(NamedTuple):
    """Pages of a table with rows that follow each other.

    Attributes:
        pages: Their numbers.
        after, last: The row ids between which all of its rows lie, the first not among them.
    """

    pages: Ints
    after: int
    last: int


class Pages:
    """The pages of a SQLite file.

    Args:
        path: The file, which is not written to meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            header = file.read(100)
        size = int.from_bytes(header[16:18], "big")
        self._size = 65536 if size == 1 else size
        self._pages = path.stat().st_size // self._size
        self._reserved = header[20] > 0  # by an extension, which may encrypt or sum up the rest

    def parts(self, root: int) -> list[Part]:
        """Return all of a table, in order of row ids.

        Args:
            root: Number of its first page, as `sqlite_master` says it.

        Raises:
            NotPlainError: It is no table with row ids, or damaged, or an extension wrote the file.
        """
        if self._reserved:
            raise NotPlainError
        pages, last = np.array([root]), np.array([_LAST_ROW])
        with self._path.open("rb", buffering=0) as file:
            for _ in range(_DEEPEST):
                if self._read(file, pages[:1])[0] == _LEAF:
                    return self._cut(pages, last)
                pages, last = self._below(file, pages, last)
        raise NotPlainError

    def _cut(self, pages: Ints, last: Ints) -> list[Part]:
        before = np.append(-_LAST_ROW - 1, last[:-1])
        step = max(1, _PART_BYTES // self._size)
        return [
            Part(pages[low : low + step], int(before[low]), int(last[low : low + step][-1]))
            for low in range(0, len(pages), step)
        ]

    def _below(self, file: FileIO, pages: Ints, last: Ints) -> tuple[Ints, Ints]:
        """Return the pages that interior ones refer to, and the last row id that each may have."""
        flat = self._read(file, pages)
        if (self._by_page(flat, len(pages))[:, 0] != _INTERIOR).any():
            raise NotPlainError
        at, count = self._cells(flat, len(pages), header=12)
        key, _ = _varint(flat, at + 4)
        starts = np.arange(len(pages)) * self._size
        behind = np.cumsum(count)  # a page's last child is named in its header
        below = np.insert(_four(flat, at), behind, _four(flat, starts + 8))
        until = np.insert(key, behind, last)
        if len(below) > self._pages or (until[1:] < until[:-1]).any():
            raise NotPlainError  # there may be circles
        return below, until

    def rows(self, part: Part) -> int:
        """Return how many rows a part has by what its pages say, plain or not.

        Raises:
            NotPlainError: The file has not all of its pages.
        """
        with self._path.open("rb", buffering=0) as file:
            return sum(
                int(self._counts(self._read(file, pages), len(pages)).sum())
                for pages in self._blocks(part)
            )

    def integers(self, part: Part, places: Sequence[int]) -> list[pl.Series]:
        """Return columns of a part, as integers of 64 bits and nulls.

        Args:
            part: One of `parts`.
            places: Where each column stands in the table, from 0.

        Raises:
            NotPlainError: Some row is not plain.
        """
        with self._path.open("rb", buffering=0) as file:
            blocks = [self._decoded(file, pages, places) for pages in self._blocks(part)]
        return [_series([block[at] for block in blocks]) for at in range(len(places))]

    def _blocks(self, part: Part) -> Iterator[Ints]:
        """Yield the pages of a part, a few at once."""
        step = max(1, _BLOCK_BYTES // self._size)
        for low in range(0, len(part.pages), step):
            yield part.pages[low : low + step]

    def _decoded(
        self, file: FileIO, pages: Ints, places: Sequence[int]
    ) -> list[tuple[Ints, Types]]:
        """Return the values of columns, and their serial types."""
        flat = self._read(file, pages)
        if (self._by_page(flat, len(pages))[:, 0] != _LEAF).any():
            raise NotPlainError
        at, count = self._cells(flat, len(pages), header=8)
        payload, at = _varint(flat, at)
        at = _behind_varint(flat, at)  # the row id
        end = at + payload
        page_end = np.repeat(np.arange(1, len(pages) + 1) * self._size, count)
        if (payload > self._size - _AROUND).any() or (end > page_end).any():
            raise NotPlainError  # the rest of the row is on another page
        if not len(at):
            return [(at, np.uint8(_ZERO)) for _ in places]
        wanted, header = max(places) + 1, flat[at]
        shortest, longest = int(header.min()), int(header.max())
        if shortest <= wanted or longest > _ONE_BYTE:
            raise NotPlainError
        types = _types(flat, at + 1, shortest - 1)
        plain = [bool(of.max() <= _ONE_BYTE) for of in types]
        if not all(plain[:wanted]):
            raise NotPlainError
        whole = shortest == longest and all(plain)
        behind, alike, ends = at + header, 0, {}
        for place, of in enumerate(types if whole else types[:wanted]):
            width = _WIDTHS.take(of)
            if width.ndim:
                behind = behind + width
            else:  # which takes no time for each row
                alike += int(width)
            if place in places:
                ends[place] = behind + alike
        behind += alike
        if (behind != end if whole else behind > end).any():
            raise NotPlainError
        return [(_integers(flat, ends[place], types[place]), types[place]) for place in places]

    def _read(self, file: FileIO, pages: Ints) -> Bytes:
        """Return pages one after another, with `_SPARE` bytes of zero behind them."""
        size = self._size
        flat = np.empty(len(pages) * size + _SPARE, np.uint8)
        flat[-_SPARE:] = 0
        view = flat.data
        for low, high in _runs(pages):
            file.seek((int(pages[low]) - 1) * size)
            if file.readinto(view[low * size : high * size]) != (high - low) * size:
                raise NotPlainError
        return flat

    def _by_page(self, flat: Bytes, pages: int) -> Bytes:
        """Return a row of bytes for each page."""
        return flat[: pages * self._size].reshape(pages, self._size)

    def _counts(self, flat: Bytes, pages: int) -> Ints:
        """Return how many cells each page has."""
        matrix = self._by_page(flat, pages)
        return matrix[:, 3].astype(np.int64) << 8 | matrix[:, 4]

    def _cells(self, flat: Bytes, pages: int, header: int) -> tuple[Ints, Ints]:
        """Return where the cells of pages begin, and how many each has.

        Args:
            flat: The pages.
            pages: How many.
            header: Bytes of their headers.
        """
        matrix = self._by_page(flat, pages)
        count = self._counts(flat, pages)
        most = int(count.max())
        if header + 2 * most > self._size:
            raise NotPlainError
        pointers = np.ascontiguousarray(matrix[:, header : header + 2 * most]).view(">u2")
        there = np.arange(most) < count[:, None]
        if (pointers >= self._size).any(where=there):
            raise NotPlainError
        starts = np.arange(pages) * self._size
        return (pointers + starts[:, None])[there], count


def _runs(pages: Ints) -> Iterator[tuple[int, int]]:
    """Yield the rows of pages that follow each other in the file."""
    if pages.min() < 1:
        raise NotPlainError
    cuts = np.flatnonzero(np.diff(pages) != 1) + 1
    yield from zip([0, *cuts.tolist()], [*cuts.tolist(), len(pages)], strict=True)


def _four(flat: Bytes, at: Ints) -> Ints:
    """Return the integers of four bytes at some places."""
    return _following(flat, at, 4).view(">u4")[:, 0].astype(np.int64)


def _varint(flat: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Return the integers of variable length at some places, and the places behind them.

    Each byte has seven bits, the highest first, and says by its eighth that another follows.
    """
    byte, at = flat[at], at + 1
    value, more = (byte & 127).astype(np.int64), byte > 127
    for _ in range(_LONGEST - 1):
        if not more.any():
            return value, at
        byte = flat[at]
        value = np.where(more, value << 7 | byte & 127, value)
        at += more
        more &= byte > 127
    raise NotPlainError


def _behind_varint(flat: Bytes, at: Ints) -> Ints:
    """Return the places behind integers of variable length."""
    more, at = flat[at] > 127, at + 1
    for _ in range(_LONGEST - 1):
        if not more.any():
            return at
        further = flat[at] > 127
        at += more
        more &= further
    raise NotPlainError


def _following(flat: Bytes, at: Ints, count: int) -> Bytes:
    """Return the bytes from some places on: a row for each place."""
    every = as_strided(flat[:count].view(f"V{count}"), (len(flat) - count + 1,), (1,))
    return every[at].view(np.uint8).reshape(len(at), count)


def _types(flat: Bytes, at: Ints, count: int) -> list[Types]:
    """Return the serial types of the first columns of rows, whose headers have them at some places."""
    eights = -(-count // 8)
    rows = _following(flat, at, 8 * eights)
    words = rows.view(np.uint64)
    differing = np.array([np.bitwise_or.reduce(word ^ word[0]) for word in words.T])
    varies = differing.view(np.uint8) != 0
    return [
        np.ascontiguousarray(rows[:, column]) if varies[column] else rows[0, column]
        for column in range(count)
    ]


def _integers(flat: Bytes, end: Ints, types: Types) -> Ints:
    """Return the integers that end before some places, of their serial types."""
    lowest, highest = types.min(), types.max()
    if highest > _LAST_INTEGER or (types == _FLOAT).any():
        raise NotPlainError
    every = as_strided(flat[:8].view(">i8"), (len(flat) - 7,), (1,))
    # Of eight bytes the last few, with the sign of the first of them.
    unused = _UNUSED.take(types)
    value: Ints = every[end - 8].astype(np.int64) << unused >> unused
    if lowest == _NULL or highest >= _ZERO:  # the type says it, and there are no bytes
        value[(types == _NULL) | (types == _ZERO)] = 0
        value[types == _ONE] = 1
    return value


def _series(blocks: Sequence[tuple[Ints, Types]]) -> pl.Series:
    values = pl.Series(np.concatenate([values for values, _ in blocks]))
    if all(types.min() > _NULL for _, types in blocks):
        return values
    null = [np.broadcast_to(types == _NULL, values.shape) for values, types in blocks]
    return values.set(pl.Series(np.concatenate(null)), None)
