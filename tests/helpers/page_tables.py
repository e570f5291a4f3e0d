"""Reads the tables of a page as the viewer does."""

from __future__ import annotations

import zlib

import msgspec
import numpy as np


def columns(packed: bytes, described: list) -> dict[str, np.ndarray]:
    """Unpack a table."""
    data = zlib.decompress(packed)
    types = {"u8": "u1", "i16": "<i2", "i32": "<i4", "u32": "<u4", "f64": "<f8"}
    found, offset = {}, 0
    for column in msgspec.to_builtins(described):
        array = np.frombuffer(data, types[column["type"]], column["length"], offset)
        found[column["name"]] = array.astype(float if array.dtype.kind == "f" else np.int64)
        offset += -(-array.nbytes // 8) * 8
    assert offset == len(data)
    return found
