"""Reads the tables of a page as the viewer does."""

from __future__ import annotations

import zlib

import msgspec
import numpy as np

_TYPES = {"u8": "u1", "i16": "<i2", "i32": "<i4", "u32": "<u4", "f64": "<f8"}


def columns(packed: bytes, described: list) -> dict[str, np.ndarray]:
    """Unpack a table: of numbers of four or eight bytes, all first ones come first, and so on."""
    data = zlib.decompress(packed)
    found, offset = {}, 0
    for column in msgspec.to_builtins(described):
        dtype, length = np.dtype(_TYPES[column["type"]]), column["length"]
        planes, wide = (dtype.itemsize, 1) if dtype.itemsize >= 4 else (1, dtype.itemsize)
        padded = -(-length * wide // 8) * 8
        rows = np.frombuffer(data, np.uint8, planes * padded, offset).reshape(planes, padded)
        numbers = rows[:, : length * wide].T.ravel().view(dtype)
        found[column["name"]] = numbers.astype(float if dtype.kind == "f" else np.int64)
        offset += planes * padded
    assert offset == len(data)
    return found
