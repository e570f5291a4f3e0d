"""The file that a rank records to, as its writer has it open."""

from __future__ import annotations

import errno
import math
import os
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from bubblescope.model.errors import RecorderError
from bubblescope.recording import arrow
from bubblescope.recording.arrow import END
from bubblescope.recording.columns import COLUMNS, HEADER, WITH_BUSY, Header

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bubblescope.recording.rows import Rows

_ROOM: Final = 4096
"""Least bytes for one message in a recording with a limit: more than any task needs."""
_LONGEST: Final = 200
"""Characters that a task's name has at most in a recording with a limit."""
_PIECES: Final = 8
"""Messages that go into one half of a recording with a limit, at least."""

_open: Final[set[Path]] = set()
"""Files that this process records to: a POSIX lock keeps out other processes only."""


def older(path: Path) -> Path:
    """Return where the older half of a recording is, if it has a limit."""
    return path.with_suffix(f".older{path.suffix}")


class Sink:
    """Appends record batches to a file.

    With a limit, the file is put aside when it has reached half of it, in place of the one that was
    put aside before: never more than the limit is on disk, and of a long recording never less than
    three eighths of it.

    Args:
        path: Where to write; what is there already must be empty.
        header: What the recording says of its rank.
        limit: Most bytes on disk; None for any number.
        busy: Whether rows say how long kernels ran.

    Raises:
        OSError: The file cannot be made or written.
        RecorderError: It is being recorded to already, or holds a recording; or the limit is too small.
    """

    def __init__(
        self, path: Path, header: Header, limit: int | None = None, *, busy: bool = False
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path.resolve()
        self._header = header
        self._busy = busy
        self._size = 0
        self._rows = 0
        first = _first_messages(header, busy=busy)
        self._half = None if limit is None else limit // 2 - len(END)
        self._piece = 0 if self._half is None else (self._half - len(first)) // _PIECES
        if self._half is not None and self._piece < _ROOM:
            least = math.ceil((len(first) + _PIECES * _ROOM + len(END)) * 2 / 1e4) / 100
            raise RecorderError(f"max_mb must be at least {least}, not {(limit or 0) / 1e6:g}")
        if self._path in _open:
            raise _busy(path)
        self._file, self._place = _placed(_opened(self._path))
        _open.add(self._path)
        try:
            if not (holds := os.fstat(self._file).st_size):
                self._append(first)
        except BaseException:
            self.release()
            raise
        if holds:
            self.release()
            raise RecorderError(f"{path} holds a recording already, which is not overwritten")

    def gone(self) -> bool:
        """Say whether somebody deleted the file, or put another in its place.

        A job that becomes a daemon closes all files that it finds open. Ours is opened anew then.

        Raises:
            OSError: It cannot be.
            RecorderError: Another process has locked it meanwhile.
        """
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return True
        if (found.st_dev, found.st_ino) != self._place:
            return True
        if not self._holds():
            self._file, self._place = _placed(_opened(self._path, os.O_WRONLY | os.O_APPEND))
        return False

    def _holds(self) -> bool:
        """Say whether the file is still open: its descriptor may be of a file of the job's own now."""
        try:
            found = os.fstat(self._file)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._place

    def moved(self) -> bool:
        """Say whether the file that is gone still has a name, elsewhere."""
        return self._holds() and os.fstat(self._file).st_nlink > 0

    def write(self, rows: Rows) -> None:
        """Append tasks."""
        if self._half is None:
            self._append(rows.encode())
            return
        for data, count in _pieces(rows.named_within(_LONGEST), self._piece):
            if self._size + len(data) > self._half:
                self._put_aside()
            self._append(data)
            self._rows += count

    def tell(self, **said: Any) -> None:
        """Append what the header says from here on of what the recording lacks.

        Args:
            **said: Fields of the header: dropped, dropped_steps, elsewhere.
        """
        self._header = msgspec.structs.replace(self._header, **said)
        row = _header_row(self._header, busy=self._busy)
        if self._half is not None and self._size + len(row) > self._half:
            self._put_aside()  # whose header says so
        else:
            self._append(row)

    def close(self, *, complete: bool) -> None:
        """Close the file, with the end-of-stream marker if it holds all that it was to hold."""
        try:
            if complete:
                self._append(END)
        finally:
            self.release()

    def release(self) -> None:
        """Close the file as it is."""
        _open.discard(self._path)
        if self._holds():
            os.close(self._file)  # and with it the lock

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
            old, self._size, self._rows = self._file, 0, 0
            self._file, self._place = _placed(new)
        except BaseException:
            os.close(new)
            raise
        try:
            self._append(_first_messages(self._header, busy=self._busy))
            if linked:
                spare.replace(self._path)
        finally:
            os.close(old)  # and with it the lock

    def _append(self, data: bytes) -> None:
        self._size += len(data)
        while data:
            data = data[os.write(self._file, data) :]


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


def _opened(path: Path, flags: int = os.O_WRONLY | os.O_CREAT | os.O_APPEND) -> int:
    """Open and lock a file, which is not emptied: another process may be recording to it.

    Raises:
        RecorderError: It is.
    """
    while True:
        file = os.open(path, flags, 0o644)
        try:
            _lock(file, path)
            # Between the two, the one that held it may have put the file aside.
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _placed(file: int) -> tuple[int, tuple[int, int]]:
    """Return a file that is open, and what tells it from others: its device and inode."""
    found = os.fstat(file)
    return file, (found.st_dev, found.st_ino)


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


def recording_to(path: Path) -> bool:
    """Say whether a process records to a file now, as far as its file system knows of locks.

    Raises:
        OSError: The file cannot be opened for writing.
    """
    if path.resolve() in _open:
        return True
    try:
        os.close(_opened(path, os.O_WRONLY))
    except RecorderError:
        return True
    return False


def _busy(path: Path) -> RecorderError:
    return RecorderError(
        f"{path} is being recorded to already; give each recorder a rank or a folder of its own",
    )


def _first_messages(header: Header, *, busy: bool) -> bytes:
    """Return the schema and the row that holds the header."""
    return arrow.schema(busy=busy) + _header_row(header, busy=busy)


def _header_row(header: Header, *, busy: bool) -> bytes:
    """Return the row that holds the header."""
    zero = np.zeros(1, np.int64)
    said = {"kind": HEADER.encode(), "lane": b"", "name": msgspec.json.encode(header)}
    columns = {
        name: arrow.texts([said[name]])
        if name in said
        else arrow.known(zero)
        if name in ("start_ns", "end_ns")
        else arrow.unknown(kind)
        for name, kind in (WITH_BUSY if busy else COLUMNS).items()
    }
    return arrow.encode(columns, 1)


def _pieces(rows: Rows, most: int) -> Iterator[tuple[bytes, int]]:
    """Yield batches of at most so many bytes, and how many rows each has."""
    data = rows.encode()
    if len(data) <= most or len(rows) == 1:
        yield data, len(rows)
        return
    middle = len(rows) // 2
    yield from _pieces(rows.part(0, middle), most)
    yield from _pieces(rows.part(middle, len(rows)), most)
