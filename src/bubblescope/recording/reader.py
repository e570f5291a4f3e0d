"""Decoding recordings, which may end anywhere."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.model.bounds import UNDECODABLE
from bubblescope.model.decoders import prepared
from bubblescope.model.errors import SourceError, reason
from bubblescope.model.parquet import UNREADABLE, read_arrow
from bubblescope.recording.arrow import END, has_checksum, message_length, messages
from bubblescope.recording.columns import BUSY, COLUMNS, FORMAT, HEADER, Header

if TYPE_CHECKING:
    from pathlib import Path

_TYPES: Final = {"text": pl.String, "int16": pl.Int16, "int32": pl.Int32, "int64": pl.Int64}
SCHEMA: Final[dict[str, type[pl.DataType]]] = {name: _TYPES[kind] for name, kind in COLUMNS.items()}
"""Columns of a recording as a frame; one whose timer sees kernels has busy_ns too."""
_SCHEMAS: Final = (SCHEMA, {**SCHEMA, BUSY: pl.Int64})


class Torn(msgspec.Struct, frozen=True):
    """How a stream ended.

    Attributes:
        closed: It has an end-of-stream marker.
        lost: Bytes after the last complete message.
        size: Size of the file.
        damaged: Bytes before that were passed over: they are not what was written.
    """

    closed: bool
    lost: int
    size: int
    damaged: int = 0


def read_stream(data: bytes) -> tuple[pl.DataFrame | None, Torn]:
    """Decode the complete messages of a stream, which may end anywhere.

    Returns:
        The rows, or None if not even the schema is complete, and how the stream ended.

    Raises:
        ValueError: The bytes are no Arrow stream, or one that is corrupt before its end.
    """
    schema = message_length(data, 0)
    if schema is None or schema > len(data):
        return None, Torn(closed=False, lost=len(data), size=len(data))
    # What the first batch has, all have: it is the header, which is written in the same way.
    found = messages(data[schema:], checked=has_checksum(data, schema))
    lost = 0 if found.closed else len(data) - schema - found.end
    torn = Torn(closed=found.closed, lost=lost, size=len(data), damaged=found.damaged)
    try:
        frame = read_arrow(io.BytesIO(data[:schema] + found.sound + END))
    except UNREADABLE as error:
        raise ValueError(reason(error)) from None
    return frame, torn


def header_of(path: Path, rows: pl.DataFrame, *, damaged: bool = False) -> Header:
    """Return what a recording's first row says.

    Args:
        path: The file.
        rows: Those that are left of it, at least one.
        damaged: Whether any were left out.

    Raises:
        SourceError: The rows are no recording's, or one of a later version; or the first was left out.
    """
    headed = dict(rows.schema) in _SCHEMAS and rows["kind"][0] == HEADER
    if not headed and damaged:
        raise SourceError(path, "is damaged: the description of its rank fails its checksum")
    if not headed:
        raise SourceError(path, "is an Arrow stream, but not one that bubblescope recorded")
    try:
        header = msgspec.json.decode(rows["name"][0] or "", type=prepared(Header))
    except UNDECODABLE as error:
        raise SourceError(path, f"has an invalid header ({reason(error)})") from None
    if header.format > FORMAT:
        raise SourceError(path, f"was recorded by bubblescope {header.version}; update to read it")
    return header
