"""Protobuf messages of many rows at once, encoded as columns.

Format: https://protobuf.dev/programming-guides/encoding. n messages are a table of bytes, a row each
and as wide as the longest, beside a table that says which of the bytes are there; those are written,
row by row. So a million messages do not take a million steps of Python.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bubblescope.model.arrays import Ints

_BITS: Final = 7
"""Bits of a number in each byte of a varint, the low ones first; the top bit says that more follow."""
_MORE: Final = 0x80
_NUMBER: Final = 0
_BYTES: Final = 2
"""Wire types."""


class Columns(NamedTuple):
    """A part of each of n messages.

    Attributes:
        data: Tables of n rows of bytes, side by side.
        kept: For each table, which of its bytes are part of the message.
        lengths: How many bytes that are in each of the n rows.
    """

    data: tuple[NDArray[np.uint8], ...]
    kept: tuple[NDArray[np.bool_], ...]
    lengths: Ints

    def to_bytes(self) -> bytes:
        """Return all n parts, one after the other."""
        return np.concatenate(self.data, axis=1)[np.concatenate(self.kept, axis=1)].tobytes()


def joined(*parts: Columns) -> Columns:
    """Return parts of the same messages as one."""
    lengths = parts[0].lengths
    for part in parts[1:]:
        lengths = lengths + part.lengths
    return Columns(
        sum((part.data for part in parts), start=()),
        sum((part.kept for part in parts), start=()),
        lengths,
    )


def numbers(field: int, values: Ints, known: NDArray[np.bool_] | None = None) -> Columns:
    """Encode a field that holds whole numbers.

    Args:
        field: Its number.
        values: n values; negative ones are written as 64 bits, as int32 and int64 fields have them.
        known: Which messages have the field; all if left out.
    """
    return _present(joined(_key(field, _NUMBER, len(values)), _varints(values)), known)


def constant(field: int, value: int, count: int) -> Columns:
    """Encode a field that holds the same whole number in each of that many messages."""
    return _constant(encoded(field, value), count)


def messages(field: int, content: Columns, known: NDArray[np.bool_] | None = None) -> Columns:
    """Encode a field that holds a message, of which the content is given; arguments as of `numbers`."""
    key = _key(field, _BYTES, len(content.lengths))
    return _present(joined(key, _varints(content.lengths), content), known)


@cache
def encoded(field: int, value: int | bytes) -> bytes:
    """Encode one field of one message: a number that is not negative, or bytes."""
    if isinstance(value, int):
        return _varint(field << 3 | _NUMBER) + _varint(value)
    return _varint(field << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    low, rest = value & (_MORE - 1), value >> _BITS
    return bytes([low | _MORE]) + _varint(rest) if rest else bytes([low])


def _varints(values: Ints) -> Columns:
    unsigned = np.asarray(values, np.int64).view(np.uint64)
    width = max(1, -(-int(unsigned.max(initial=0)).bit_length() // _BITS))
    data = np.empty((len(unsigned), width), np.uint8)
    kept = np.ones((len(unsigned), width), np.bool_)
    lengths = np.ones(len(unsigned), np.int64)
    for place in range(width):
        rest = unsigned >> np.uint64(_BITS * (place + 1))
        low = (unsigned >> np.uint64(_BITS * place)).astype(np.uint8) & np.uint8(_MORE - 1)
        more = rest > 0
        data[:, place] = low | np.where(more, np.uint8(_MORE), np.uint8(0))
        if place + 1 < width:
            kept[:, place + 1] = more
            lengths += more
    return Columns((data,), (kept,), lengths)


def _key(field: int, wire: int, count: int) -> Columns:
    return _constant(_varint(field << 3 | wire), count)


def _constant(data: bytes, count: int) -> Columns:
    shape = (count, len(data))
    table = np.broadcast_to(np.frombuffer(data, np.uint8), shape)
    kept = np.broadcast_to(np.True_, shape)
    return Columns((table,), (kept,), np.broadcast_to(np.int64(len(data)), count))


def _present(part: Columns, known: NDArray[np.bool_] | None) -> Columns:
    if known is None or known.all():
        return part
    kept = tuple(table & known[:, None] for table in part.kept)
    return Columns(part.data, kept, np.where(known, part.lengths, 0))
