"""The file a rank records to: one Arrow IPC stream that grows by whole messages.

Every flush is one write of complete record batches, so the file is a valid stream at any moment:
readable while it is written, and after the process was killed. `read_stream` keeps every complete
message of a file that ends in the middle of one. The format is that of
https://arrow.apache.org/docs/format/Columnar.html#ipc-streaming-format, so any Arrow library reads it.

The first row is the header: its `name` holds JSON that describes the rank.
"""

from __future__ import annotations

import errno
import io
import math
import os
import struct
from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.errors import RecorderError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "COLUMNS",
    "END",
    "FORMAT",
    "Header",
    "Sink",
    "Torn",
    "batches_of",
    "complete_messages",
    "message_length",
    "older",
    "read_stream",
]

FORMAT: Final = 1

COLUMNS: Final[dict[str, type[pl.DataType]]] = {
    "kind": pl.String,
    "lane": pl.String,
    "step": pl.Int32,
    "stage": pl.Int32,
    "chunk": pl.Int16,
    "microbatch": pl.Int32,
    "pair_stage": pl.Int32,
    "pair_chunk": pl.Int16,
    "pair_microbatch": pl.Int32,
    "peer": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "host_start_ns": pl.Int64,
    "host_end_ns": pl.Int64,
    "name": pl.String,
}
"""Columns of the stream. Times are on the host's monotonic clock."""

_CONTINUATION: Final = b"\xff\xff\xff\xff"
END: Final = _CONTINUATION + b"\0\0\0\0"
"""The end-of-stream marker."""
_BODY_LENGTH_SLOT: Final = 10
"""Offset of Message.bodyLength in its flatbuffer vtable: 4 bytes of sizes, then three fields."""

_ROOM: Final = 4096
"""Least bytes for one message in a recording with a limit: more than any task needs."""
_LONGEST: Final = 200
"""Characters that a task's name has at most in a recording with a limit."""
_PIECES: Final = 8
"""Messages that go into one half of a recording with a limit, at least."""

_open: Final[set[Path]] = set()
"""Files that this process records to: a POSIX lock keeps out other processes only."""


class Header(msgspec.Struct, frozen=True):
    """What a recording says of its rank.

    Attributes:
        format: Version of this format.
        version: Version of bubblescope that recorded.
        rank, stages, host, process, device, dp, tp, cp: As in `timeline.ranks`.
        boot: Identifies the host's boot; recordings of one boot share a monotonic clock.
        utc_ns: UTC minus the monotonic clock, when recording began.
        timer: Name of the timer.
        schedule, microbatches: As the job declared them.
        before: Tasks that were recorded before this file, which has a limit.
    """

    format: int
    version: str
    rank: int
    stages: list[int] | None
    host: str
    process: int
    device: int | None
    boot: str
    utc_ns: int
    timer: str
    schedule: str | None = None
    microbatches: int | None = None
    dp: int | None = None
    tp: int | None = None
    cp: int | None = None
    before: int = 0


class Torn(msgspec.Struct, frozen=True):
    """How a stream ended.

    Attributes:
        closed: It has an end-of-stream marker.
        lost: Bytes after the last complete message.
        size: Size of the file.
    """

    closed: bool
    lost: int
    size: int


def older(path: Path) -> Path:
    """Return where the older half of a recording is, if it has a limit."""
    return path.with_suffix(f".older{path.suffix}")


class Sink:
    """Appends record batches to a file.

    With a limit, the file is put aside when it has reached half of it, in place of the one that was
    put aside before: never more than the limit is on disk, and of a long recording never less than
    three eighths of it.

    Args:
        path: Where to write.
        header: What the recording says of its rank.
        limit: Most bytes on disk; None for any number.

    Raises:
        OSError: The file cannot be made or written.
        RecorderError: It is being recorded to already, or the limit is too small.
    """

    def __init__(self, path: Path, header: Header, limit: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path.resolve()
        self._header = header
        self._size = 0
        self._rows = 0
        first = _first_messages(header)
        self._half = None if limit is None else limit // 2 - len(END)
        self._piece = 0 if self._half is None else (self._half - len(first)) // _PIECES
        if self._half is not None and self._piece < _ROOM:
            least = math.ceil((len(first) + _PIECES * _ROOM + len(END)) * 2 / 1e4) / 100
            raise RecorderError(f"max_mb must be at least {least}, not {(limit or 0) / 1e6:g}")
        if self._path in _open:
            raise _busy(path)
        self._file = _opened(self._path)
        _open.add(self._path)
        try:
            # In this order: what a killed job leaves behind is one recording, and no mixture of two.
            _spare(self._path).unlink(missing_ok=True)
            older(self._path).unlink(missing_ok=True)
            os.ftruncate(self._file, 0)
            self._append(first)
        except BaseException:
            self._release()
            raise

    def write(self, rows: pl.DataFrame) -> None:
        """Append rows with the columns of `COLUMNS`."""
        if self._half is None:
            self.append(batches_of(rows))
            return
        rows = rows.with_columns(pl.col("name").str.head(_LONGEST))
        for data, count in _pieces(rows, self._piece):
            if self._size + len(data) > self._half:
                self._put_aside()
            self._append(data)
            self._rows += count

    def append(self, batches: bytes) -> None:
        """Append record batches of these columns to a recording without a limit."""
        self._append(batches)

    def close(self, *, complete: bool) -> None:
        """Close the file, with the end-of-stream marker if it holds all that it was to hold."""
        try:
            if complete:
                self._append(END)
        finally:
            self._release()

    def _put_aside(self) -> None:
        """Begin a new file; what was put aside before is dropped.

        Wherever this is interrupted, the path is there and ours: the new file takes its place locked
        and with its header. Until then the half put aside is there under both names. It gets no
        end-of-stream marker: that is for the end of the whole recording.
        """
        spare = _spare(self._path)
        linked = _linked(self._path, spare)
        (spare if linked else self._path).replace(older(self._path))
        self._header = msgspec.structs.replace(
            self._header, before=self._header.before + self._rows
        )
        begun = spare if linked else self._path
        new = os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        try:
            _lock(new, self._path)
            old, self._file, self._size, self._rows = self._file, new, 0, 0
        except BaseException:
            os.close(new)
            raise
        try:
            self._append(_first_messages(self._header))
            if linked:
                spare.replace(self._path)
        finally:
            os.close(old)  # and with it the lock

    def _append(self, data: bytes) -> None:
        self._size += len(data)
        while data:
            data = data[os.write(self._file, data) :]

    def _release(self) -> None:
        _open.discard(self._path)
        os.close(self._file)  # and with it the lock


def _spare(path: Path) -> Path:
    """Return where a file is while it changes its name; no reader looks at hidden files."""
    return path.with_name(f".{path.stem}.spare")


def _linked(path: Path, other: Path) -> bool:
    """Give a file a second name, where its file system can."""
    other.unlink(missing_ok=True)
    try:
        os.link(path, other)
    except OSError:
        return False
    return True


def _opened(path: Path) -> int:
    """Open and lock a file, which is not emptied: another process may be recording to it.

    Raises:
        RecorderError: It is.
    """
    while True:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            _lock(file, path)
            # Between the two, the one that held it may have put the file aside.
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _lock(file: int, path: Path) -> None:
    """Keep other processes from recording to the file, where its file system can."""
    try:
        import fcntl  # noqa: PLC0415  POSIX only, and reading recordings must work everywhere
    except ImportError:
        return
    try:
        # Not flock: forked data loaders would inherit it and lock out the job that is restarted.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EAGAIN}:
            raise _busy(path) from None


def _busy(path: Path) -> RecorderError:
    return RecorderError(
        f"{path} is being recorded to already; give each recorder a rank or a folder of its own",
    )


def _first_messages(header: Header) -> bytes:
    """Return the schema and the row that holds the header."""
    first = dict.fromkeys(COLUMNS, None) | {
        "kind": "header",
        "lane": "",
        "start_ns": 0,
        "end_ns": 0,
        "name": msgspec.json.encode(header).decode(),
    }
    return _encode(pl.DataFrame([first], schema=COLUMNS))


def batches_of(rows: pl.DataFrame) -> bytes:
    """Return record batches only: the schema is there already."""
    encoded = _encode(rows)
    return encoded[_first_message(encoded) :]


def _pieces(rows: pl.DataFrame, most: int) -> Iterator[tuple[bytes, int]]:
    """Yield batches of at most so many bytes, and how many rows each has."""
    data = batches_of(rows)
    if len(data) <= most or rows.height == 1:
        yield data, rows.height
        return
    middle = rows.height // 2
    yield from _pieces(rows[:middle], most)
    yield from _pieces(rows[middle:], most)


def _encode(rows: pl.DataFrame) -> bytes:
    """Return a schema message and record batches, without the end-of-stream marker."""
    buffer = io.BytesIO()
    rows.rechunk().write_ipc_stream(buffer, compat_level=pl.CompatLevel.oldest())
    return buffer.getvalue().removesuffix(END)


def read_stream(data: bytes) -> tuple[pl.DataFrame | None, Torn]:
    """Decode the complete messages of a stream, which may end anywhere.

    Returns:
        The rows, or None if not even the schema is complete, and how the stream ended.

    Raises:
        ValueError: The bytes are no Arrow stream, or one that is corrupt before its end.
    """
    end, closed = complete_messages(data)
    torn = Torn(closed=closed, lost=0 if closed else len(data) - end, size=len(data))
    if end == 0:
        return None, torn
    try:
        frame = pl.read_ipc_stream(io.BytesIO(data[:end] + END))
    # Polars panics on some damaged metadata.
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise ValueError(str(error).partition("\n")[0]) from None
    return frame, torn


def _first_message(data: bytes) -> int:
    """Return the length of the message that `data` begins with, which must be complete."""
    length = message_length(data, 0)
    if length is None:
        raise ValueError("no complete message")
    return length


def complete_messages(data: bytes) -> tuple[int, bool]:
    """Return where the last complete message ends, and whether the end marker follows it."""
    position = 0
    while data[position : position + 8] != END:
        length = message_length(data, position)
        if length is None or position + length > len(data):
            return position, False
        position += length
    return position, True


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
    body: int
    try:
        (table,) = struct.unpack_from("<I", metadata, 0)
        (back,) = struct.unpack_from("<i", metadata, table)
        vtable = table - back
        (vtable_size,) = struct.unpack_from("<H", metadata, vtable)
        slot = 0
        if vtable_size > _BODY_LENGTH_SLOT:
            (slot,) = struct.unpack_from("<H", metadata, vtable + _BODY_LENGTH_SLOT)
        (body,) = struct.unpack_from("<q", metadata, table + slot) if slot else (0,)
    except struct.error:
        raise ValueError(f"the Arrow message at byte {position} is damaged") from None
    if body < 0:
        raise ValueError(f"the Arrow message at byte {position} is damaged")
    return int(8 + size + body)
