"""Messages of an Arrow IPC stream with the columns of a recording, made and taken apart.

Made here and not by a library of frames: what records runs inside of a training job, where a library
that is not loaded costs neither memory nor time, and of a short step there is little to write. The
metadata of a batch is a flatbuffer in which, as the columns are always the same, only some numbers
differ from one batch to the next: those are put into a copy of one that was made before. One of them is
a checksum of the whole message, which readers that do not know it pass over.

The layout is that of https://arrow.apache.org/docs/format/Columnar.html#recordbatch-message, the tables
are those of https://github.com/apache/arrow/blob/main/format/Message.fbs and Schema.fbs beside it.
"""

from __future__ import annotations

import struct
import zlib
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import flatbuffers
import msgspec
import numpy as np

from bubblescope.recording.columns import BUSY, COLUMNS, WITH_BUSY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_CONTINUATION: Final = b"\xff\xff\xff\xff"
END: Final = _CONTINUATION + b"\0\0\0\0"
"""The end-of-stream marker."""
_ALIGNED: Final = 8
_ZEROS: Final = bytes(_ALIGNED)
_PREFIX: Final = 8
"""Bytes before the metadata: the continuation marker and its length."""

_VERSION, _HEADER_TYPE, _HEADER, _BODY_LENGTH, _CUSTOM = range(5)
"""Fields of the table Message."""
_CHECKSUM: Final = "crc32"
"""Key, in the custom metadata of a batch, of the CRC-32 (zlib's) of the message, as eight hexadecimal
digits that are zeros for this purpose."""
_UNCHECKED: Final = b"00000000"
_V5: Final = 4
"""MetadataVersion.V5."""
_SCHEMA, _RECORD_BATCH = 1, 3
"""Members of the union MessageHeader."""
_LENGTH, _NODES, _BUFFERS = range(3)
"""Fields of the table RecordBatch."""
_FIELDS: Final = 1
"""Schema.fields."""
_NAME, _NULLABLE, _TYPE_TYPE, _TYPE, _CHILDREN = 0, 1, 2, 3, 5
"""Fields of the table Field."""
_INT, _LARGE_TEXT = 2, 20
"""Members of the union Type."""
_BITS: Final = {"int16": 16, "int32": 32, "int64": 64}


class Column(NamedTuple):
    """What a batch holds of a column.

    Attributes:
        nulls: Values that are null.
        buffers: Validity bitmap, empty if nothing is null, and values, with offsets before the text.
    """

    nulls: int
    buffers: tuple[bytes, ...]


def numbers(rows: NDArray[np.int32], types: Sequence[str], null: int) -> list[Column]:
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
                (row if kind == "int32" else _narrow(row)).tobytes(),
            ),
        )
        for at, (row, kind) in enumerate(zip(rows, types, strict=True))
    ]


def known(values: NDArray[np.int64]) -> Column:
    """Return a column of 64-bit numbers none of which is null."""
    return Column(0, (b"", values.tobytes()))


def partly_known(values: NDArray[np.int64], null: int) -> Column:
    """Return a column of 64-bit numbers, in which one stands for null."""
    there = values != null
    nulls = len(values) - int(np.count_nonzero(there))
    bitmap = np.packbits(there, bitorder="little").tobytes() if nulls else b""
    return Column(nulls, (bitmap, values.tobytes()))


def unknown(kind: str) -> Column:
    """Return a column of one number of this type that is null."""
    return Column(1, (bytes(1), bytes(_BITS[kind] // 8)))


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
    there = b""
    if nulls:
        there = np.packbits([value is not None for value in values], bitorder="little").tobytes()
    text = b"".join([value or b"" for value in values])
    return Column(nulls, (there, offsets.tobytes(), text))


def encode(columns: dict[str, Column], rows: int) -> bytes:
    """Return the record batch of columns: those of `COLUMNS`, or of `WITH_BUSY`."""
    busy = BUSY in columns
    template = _template(busy=busy)
    nodes: list[int] = []
    buffers: list[int] = []
    body: list[bytes] = []
    at = 0
    for name in _kinds(busy=busy):
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
    content = b"".join(body)
    checksum = zlib.crc32(content, zlib.crc32(message))
    message[template.checksum : template.checksum + len(_UNCHECKED)] = b"%08x" % checksum
    return b"".join((message, content))


def _narrow(row: NDArray[np.int32]) -> NDArray[np.int16]:
    narrow = row.astype(np.int16)
    if (narrow != row).any():
        raise ValueError(f"the chunk {row.max()} is more than a recording can hold")
    return narrow


def _kinds(*, busy: bool) -> dict[str, str]:
    return WITH_BUSY if busy else COLUMNS


def schema(*, busy: bool = False) -> bytes:
    """Return the message that a stream begins with, which says what its columns are.

    Args:
        busy: Whether they are those of `WITH_BUSY`.
    """
    made = flatbuffers.Builder(1024)
    fields = [_described(made, name, kind) for name, kind in _kinds(busy=busy).items()]
    made.StartVector(4, len(fields), 4)
    for field in reversed(fields):
        made.PrependUOffsetTRelative(field)
    listed = made.EndVector()
    made.StartObject(4)
    made.PrependUOffsetTRelativeSlot(_FIELDS, listed, 0)
    return _message(made, _SCHEMA, made.EndObject(), 0)


def _described(made: flatbuffers.Builder, name: str, kind: str) -> int:
    """Add a Field to a flatbuffer."""
    title = made.CreateString(name)
    made.StartVector(4, 0, 4)
    children = made.EndVector()
    if kind == "text":
        made.StartObject(0)
    else:
        made.StartObject(2)
        made.PrependInt32Slot(0, _BITS[kind], 0)
        made.PrependBoolSlot(1, True, False)  # signed
    type_ = made.EndObject()
    made.StartObject(7)
    made.PrependUOffsetTRelativeSlot(_NAME, title, 0)
    made.PrependBoolSlot(_NULLABLE, True, False)
    made.PrependUint8Slot(_TYPE_TYPE, _LARGE_TEXT if kind == "text" else _INT, 0)
    made.PrependUOffsetTRelativeSlot(_TYPE, type_, 0)
    made.PrependUOffsetTRelativeSlot(_CHILDREN, children, 0)
    return int(made.EndObject())


def _message(
    made: flatbuffers.Builder, kind: int, header: int, body_length: int, custom: int = 0
) -> bytes:
    """Finish a Message; return it with its prefix, padded so that the body is aligned."""
    made.StartObject(5)
    made.PrependInt16Slot(_VERSION, _V5, 0)
    made.PrependUint8Slot(_HEADER_TYPE, kind, 0)
    made.PrependUOffsetTRelativeSlot(_HEADER, header, 0)
    made.PrependInt64Slot(_BODY_LENGTH, body_length, 0)
    made.PrependUOffsetTRelativeSlot(_CUSTOM, custom, 0)
    made.Finish(made.EndObject())
    metadata = bytes(made.Output())
    metadata += _ZEROS[: -len(metadata) % _ALIGNED]
    return _CONTINUATION + struct.pack("<i", len(metadata)) + metadata


class _Template(msgspec.Struct, frozen=True):
    """The metadata of a batch, and where its numbers are in it."""

    metadata: bytes
    length: int
    body_length: int
    nodes: int
    buffers: int
    checksum: int


@cache
def _template(*, busy: bool) -> _Template:
    """Return the metadata of a batch whose numbers are still to be put in.

    All of them are 1 in it: a flatbuffer leaves out what is 0.
    """
    made = flatbuffers.Builder(1024)
    kinds = _kinds(busy=busy)
    parts = sum(3 if kind == "text" else 2 for kind in kinds.values())
    vectors = []
    for count in (parts, len(kinds)):  # of structs of two 64-bit numbers each
        made.StartVector(16, count, 8)
        for _ in range(2 * count):
            made.PrependInt64(1)
        vectors.append(made.EndVector())
    buffers, nodes = vectors
    key, value = made.CreateString(_CHECKSUM), made.CreateString(_UNCHECKED.decode())
    made.StartObject(2)
    made.PrependUOffsetTRelativeSlot(0, key, 0)
    made.PrependUOffsetTRelativeSlot(1, value, 0)
    pair = made.EndObject()
    made.StartVector(4, 1, 4)
    made.PrependUOffsetTRelative(pair)
    custom = made.EndVector()
    made.StartObject(4)
    made.PrependInt64Slot(_LENGTH, 1, 0)
    made.PrependUOffsetTRelativeSlot(_NODES, nodes, 0)
    made.PrependUOffsetTRelativeSlot(_BUFFERS, buffers, 0)
    metadata = _message(made, _RECORD_BATCH, made.EndObject(), 1, custom)
    root = _PREFIX + _value("<I", metadata, _PREFIX)
    header = _field(metadata, root, _HEADER)
    batch = header + _value("<I", metadata, header)
    at_nodes, at_buffers = (
        at + _value("<I", metadata, at) + 4
        for at in (_field(metadata, batch, _NODES), _field(metadata, batch, _BUFFERS))
    )
    return _Template(
        metadata,
        _field(metadata, batch, _LENGTH),
        _field(metadata, root, _BODY_LENGTH),
        at_nodes,
        at_buffers,
        metadata.index(_UNCHECKED),
    )


def _field(metadata: bytes, table: int, number: int) -> int:
    """Return where a field of a flatbuffer's table is; 0 if it is left out: it has its default."""
    vtable = table - _value("<i", metadata, table)
    if _value("<H", metadata, vtable) <= 4 + 2 * number:
        return 0
    slot = _value("<H", metadata, vtable + 4 + 2 * number)
    return table + slot if slot else 0


def _value(code: str, data: bytes, at: int) -> int:
    return int(struct.unpack_from(code, data, at)[0])


class Messages(msgspec.Struct, frozen=True):
    """What a stream of messages holds, or a part of one.

    Attributes:
        sound: Those that are complete and not damaged, one after the other.
        end: Where the last that is complete ends, or the end marker behind it.
        closed: Whether the stream ends with its end marker.
        damaged: Bytes of what was passed over because it is not what was written.
    """

    sound: bytes
    end: int
    closed: bool
    damaged: int


def messages(data: bytes, *, checked: bool) -> Messages:
    """Return the messages of a stream, which may end anywhere.

    An end marker in the midst is passed over: a process that was forked of the job may have put it
    there, and the job went on.

    Args:
        data: The stream, from where any of its messages begins.
        checked: Whether its batches have checksums, as those of older versions had not.

    Raises:
        ValueError: It is no stream of Arrow's, or it is damaged and has no checksums to go on by.
    """
    runs: list[tuple[int, int]] = []  # of messages that follow each other
    position = damaged = 0
    closed = False
    while position < len(data) and not closed:
        if data[position : position + len(END)] == END:
            position += len(END)
            closed = position == len(data) or not (checked or _begins(data, position))
            continue
        length = _length(data, position, checked=checked)
        following = None if length is None else position + length
        if length is not None and (not checked or _is_sound(data, position, length)):
            begun = runs.pop()[0] if runs and runs[-1][1] == position else position
            runs.append((begun, position + length))
        else:
            found = _next_sound(data, position + 1) if checked else None
            if found is not None:
                following = found
            elif following is not None or not _begins(data, position):
                # Nothing sound comes any more, but perhaps the end.
                following = len(data) - len(END) * data.endswith(END)
            damaged += 0 if following is None else following - position
        if following is None:
            break
        position = following
    parts = [data[begin:end] for begin, end in runs]
    return Messages(parts[0] if len(parts) == 1 else b"".join(parts), position, closed, damaged)


def _begins(data: bytes, position: int) -> bool:
    """Say whether a message begins there, or may."""
    try:
        message_length(data, position)
    except ValueError:
        return False
    return True


def _length(data: bytes, position: int, *, checked: bool) -> int | None:
    """Return the length of the message that begins there; None if it is not complete, or is none.

    Raises:
        ValueError: No message begins there, and nothing is checked.
    """
    try:
        length = message_length(data, position)
    except ValueError:
        if not checked:
            raise
        return None
    return None if length is None or position + length > len(data) else length


def has_checksum(data: bytes, position: int) -> bool:
    """Say whether the batch that begins there is of a kind that has a checksum."""
    return _template_of(data, position) is not None


def _template_of(data: bytes, position: int) -> _Template | None:
    """Return the template of a batch, known by the length of its metadata; None if there is none."""
    prefix = data[position : position + _PREFIX]
    templates = (_template(busy=busy) for busy in (False, True))
    return next((one for one in templates if one.metadata[:_PREFIX] == prefix), None)


def _is_sound(data: bytes, position: int, length: int) -> bool:
    """Say whether a batch is what was written, by its checksum."""
    template = _template_of(data, position)
    if template is None:
        return False
    whole = memoryview(data)[position : position + length]
    at, size = template.checksum, len(template.metadata)
    digits = slice(at, at + len(_UNCHECKED))
    head = bytearray(whole[:size])
    written = bytes(head[digits])
    head[digits] = _UNCHECKED
    return b"%08x" % zlib.crc32(whole[size:], zlib.crc32(head)) == written


def _next_sound(data: bytes, position: int) -> int | None:
    """Return where the next batch begins that is not damaged; None if there is none."""
    starts = [_template(busy=busy).metadata[:_PREFIX] for busy in (False, True)]
    while True:
        found = [at for start in starts if (at := data.find(start, position)) >= 0]
        if not found:
            return None
        position = min(found)
        length = _length(data, position, checked=True)
        if length is not None and _is_sound(data, position, length):
            return position
        position += 1


def message_length(data: bytes, position: int) -> int | None:
    """Return the length of an encapsulated message with its body, or None if its head is cut off.

    A message is a continuation marker, the size of its metadata, the metadata (a flatbuffer
    `Message` table, padded) and a body whose length the metadata states.
    """
    prefix: bytes = data[position : position + 8]
    if not _CONTINUATION.startswith(prefix[:4]):
        raise ValueError(f"no Arrow message begins at byte {position}")
    if len(prefix) < 8:
        return None
    (size,) = struct.unpack_from("<i", prefix, 4)
    metadata = data[position + 8 : position + 8 + size]
    if size <= 0:
        raise ValueError(f"the Arrow message at byte {position} has no metadata")
    if len(metadata) < size:
        return None
    try:
        at = _field(metadata, _value("<I", metadata, 0), _BODY_LENGTH)
        body = _value("<q", metadata, at) if at else 0
    except struct.error:
        raise ValueError(f"the Arrow message at byte {position} is damaged") from None
    if body < 0:
        raise ValueError(f"the Arrow message at byte {position} is damaged")
    return int(8 + size + body)
