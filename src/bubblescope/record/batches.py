"""Arrow record batches of our own columns, without a frame.

A job's step may be short, and what is written of it then is little: making a frame of that and
encoding it takes several times as long as putting the same bytes together here. The metadata of a
batch is a flatbuffer in which, as the columns are always the same, only some numbers differ from one
batch to the next: those are put into a copy of one that Polars made.

The layout is that of https://arrow.apache.org/docs/format/Columnar.html#recordbatch-message.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.record.sink import COLUMNS, batches_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Column", "chosen", "encode", "known", "numbers", "texts", "usable"]

_ALIGNED: Final = 8
_ZEROS: Final = bytes(_ALIGNED)
_PREFIX: Final = 8
"""Bytes before the metadata: the continuation marker and its length."""
_HEADER, _BODY_LENGTH = 2, 3
_LENGTH, _NODES, _BUFFERS = 0, 1, 2
"""Fields of the tables Message and RecordBatch, counted from 0."""


class Column(NamedTuple):
    """What a batch holds of a column.

    Attributes:
        nulls: Values that are null.
        buffers: Validity bitmap, empty if nothing is null, and values, with offsets before the text.
    """

    nulls: int
    buffers: tuple[bytes, ...]


def numbers(
    rows: NDArray[np.int32], dtypes: Sequence[type[pl.DataType]], null: int
) -> list[Column]:
    """Return a column of each row of an array, in which one number stands for null.

    Raises:
        ValueError: A number is too large for its column.
    """
    there = rows != null
    nulls = (rows.shape[1] - np.count_nonzero(there, axis=1)).tolist()
    bitmaps = np.packbits(there, axis=1, bitorder="little")
    return [
        Column(
            nulls[at],
            (
                bitmaps[at].tobytes() if nulls[at] else b"",
                (row if dtype is pl.Int32 else _narrow(row)).tobytes(),
            ),
        )
        for at, (row, dtype) in enumerate(zip(rows, dtypes, strict=True))
    ]


def known(values: NDArray[np.int64]) -> Column:
    """Return a column of 64-bit numbers none of which is null."""
    return Column(0, (b"", values.tobytes()))


def chosen(codes: NDArray[np.int32], names: Sequence[bytes]) -> Column:
    """Return a column of texts, each one of a few."""
    offsets = np.zeros(len(codes) + 1, np.int64)
    np.cumsum(np.array([len(name) for name in names])[codes], out=offsets[1:])
    return Column(0, (b"", offsets.tobytes(), b"".join([names[code] for code in codes.tolist()])))


def texts(values: Sequence[bytes | None]) -> Column:
    """Return a column of UTF-8 texts, or None."""
    offsets = np.zeros(len(values) + 1, np.int64)
    nulls = values.count(None)
    if nulls == len(values):
        return Column(nulls, (bytes(-(-nulls // 8)), offsets.tobytes(), b""))
    np.cumsum([len(value or b"") for value in values], out=offsets[1:])
    there = np.array([value is not None for value in values]) if nulls else None
    text = b"".join([value or b"" for value in values])
    return Column(nulls, (b"" if there is None else _bitmap(there), offsets.tobytes(), text))


def usable() -> bool:
    """Say whether the installed Polars makes batches as they are known here."""
    try:
        _template()
    except (ValueError, struct.error):
        return False
    return True


def encode(columns: dict[str, Column], rows: int) -> bytes:
    """Return the record batch of columns, in the order of `COLUMNS`."""
    template = _template()
    nodes: list[int] = []
    buffers: list[int] = []
    body: list[bytes] = []
    at = 0
    for name in COLUMNS:
        nulls, parts = columns[name]
        nodes += (rows, nulls)
        for data in parts:
            size = len(data)
            buffers += (at, size)
            body.append(data)
            if padding := -size % _ALIGNED:
                body.append(_ZEROS[:padding])
                size += padding
            at += size
    message = bytearray(template.metadata)
    struct.pack_into("<q", message, template.length, rows)
    struct.pack_into("<q", message, template.body_length, at)
    struct.pack_into(f"<{len(nodes)}q", message, template.nodes, *nodes)
    struct.pack_into(f"<{len(buffers)}q", message, template.buffers, *buffers)
    return b"".join((message, *body))


def _narrow(row: NDArray[np.int32]) -> NDArray[np.int16]:
    narrow = row.astype(np.int16)
    if (narrow != row).any():
        raise ValueError(f"the chunk {row.max()} is more than a recording can hold")
    return narrow


def _bitmap(there: NDArray[np.bool_]) -> bytes:
    return np.packbits(there, bitorder="little").tobytes()


class _Template(NamedTuple):
    """The metadata of a batch of one row, and where its numbers are in it."""

    metadata: bytes
    length: int
    body_length: int
    nodes: int
    buffers: int


@cache
def _template() -> _Template:
    # A flatbuffer leaves out what is 0: a row, then, and texts that are not empty.
    row = {name: "x" if dtype is pl.String else None for name, dtype in COLUMNS.items()}
    message = batches_of(pl.DataFrame([row], COLUMNS))
    (size,) = struct.unpack_from("<i", message, 4)
    metadata = message[: _PREFIX + size]
    root = _PREFIX + _value("<I", metadata, _PREFIX)
    header = _field(metadata, root, _HEADER)
    batch = header + _value("<I", metadata, header)
    nodes, buffers = (
        at + _value("<I", metadata, at)
        for at in (_field(metadata, batch, _NODES), _field(metadata, batch, _BUFFERS))
    )
    parts = sum(3 if dtype is pl.String else 2 for dtype in COLUMNS.values())
    counts = _value("<I", metadata, nodes), _value("<I", metadata, buffers)
    if counts != (len(COLUMNS), parts):
        raise ValueError("another number of buffers in a record batch")
    return _Template(
        metadata,
        _field(metadata, batch, _LENGTH),
        _field(metadata, root, _BODY_LENGTH),
        nodes + 4,
        buffers + 4,
    )


def _field(metadata: bytes, table: int, number: int) -> int:
    """Return where a field of a flatbuffer's table is."""
    vtable = table - _value("<i", metadata, table)
    slot = _value("<H", metadata, vtable + 4 + 2 * number)
    if not slot:
        raise ValueError("a field is missing in a record batch")
    return table + slot


def _value(code: str, data: bytes, at: int) -> int:
    return int(struct.unpack_from(code, data, at)[0])
