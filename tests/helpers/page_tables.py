"""Reads the tables of a page as the viewer does."""

from __future__ import annotations

import zlib

import msgspec
import numpy as np

_TYPES = {"u8": "u1", "i16": "<i2", "i32": "<i4", "u32": "<u4", "f64": "<f8"}


def columns(packed: bytes, described: list) -> dict[str, np.ndarray]:
    """Unpack a table: of the numbers of a column, all first bytes come first, then all second ones."""
    data = zlib.decompress(packed)
    found, offset = {}, 0
    for column in msgspec.to_builtins(described):
        dtype = np.dtype(_TYPES[column["type"]])
        size = column["length"] * dtype.itemsize
        planes = np.frombuffer(data, np.uint8, size, offset).reshape(dtype.itemsize, -1)
        numbers = planes.T.copy().view(dtype).ravel()
        found[column["name"]] = numbers.astype(float if dtype.kind == "f" else np.int64)
        offset += -(-size // 8) * 8
    assert offset == len(data)
    return found
