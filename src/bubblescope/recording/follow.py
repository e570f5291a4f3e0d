"""Following recordings while they are written: only what is new is read."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.model.errors import SourceError, reason
from bubblescope.model.parquet import UNREADABLE, read_arrow
from bubblescope.recording.arrow import END, has_checksum, message_length, messages
from bubblescope.recording.attempts import attempts_in, is_older_half
from bubblescope.recording.columns import HEADER
from bubblescope.recording.file import older
from bubblescope.recording.reader import SCHEMA, header_of, read_stream

if TYPE_CHECKING:
    from bubblescope.recording.columns import Header

_SUFFIX: Final = ".bubbles"
_BACKLOG: Final = 128 << 20
"""Bytes of all files that are decoded at once; of more than that, only the ends are."""
_HEAD: Final = 1 << 16
"""Bytes in which the metadata of any of our messages fit."""
_WANTED: Final = [
    *("kind", "lane", "step", "stage", "chunk", "microbatch"),
    *("pair_stage", "pair_chunk", "pair_microbatch"),
    *("start_ns", "end_ns", "host_start_ns", "name"),
]


class News(NamedTuple):
    """What is new in a recording.

    Attributes:
        recording: Which one.
        tasks: Its new tasks: kind, lane, step, stage, chunk, microbatch, pair_stage, pair_chunk,
            pair_microbatch, start_ns, end_ns, host_start_ns and name.
        anew: It is another job's than before, or gone: what was known of it is void.
    """

    recording: Recording
    tasks: pl.DataFrame
    anew: bool


class Recording:
    """One rank's file as it grows.

    Args:
        path: The file; its older half, if it has a limit, is looked for beside it.

    Attributes:
        header: What it says of its rank; None until that is there.
        closed: It was ended in good order.
        grown_s: When it last grew, on `time.monotonic`.
        problem: Why it cannot be read; None if it can.
        passed: Bytes that were passed over, as too old to matter.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Header | None = None
        self.closed = False
        self.grown_s = time.monotonic()
        self.problem: str | None = None
        self.passed = 0
        self._file = (-1, -1)
        """Device and inode of the file that the offset is in."""
        self._size = -1
        self._offset = 0
        self._first = b""
        """The messages that the file begins with: its schema and its header."""
        self._schema = b""

    def news(self, most: int = _BACKLOG) -> News | None:
        """Return what is new, or None if nothing is; of more than so many bytes, the end only."""
        try:
            now = self.path.stat()
        except OSError:
            return None
        place = (now.st_dev, now.st_ino)
        if (place, now.st_size) == (self._file, self._size):
            return None
        fresh = self._size < 0
        before = self.header
        rest: list[pl.DataFrame] = []
        tasks: list[pl.DataFrame] = []
        try:
            if not fresh and place != self._file:
                rest = self._rest(most)
                self._begin_anew()
            with self.path.open("rb") as file:
                # It may have been replaced since: then that is seen the next time.
                now = os.fstat(file.fileno())
                if os.pread(file.fileno(), len(self._first), 0) != self._first:
                    self._begin_anew()
                self._file, self._size = (now.st_dev, now.st_ino), now.st_size
                tasks = self._read(file.fileno(), now.st_size, most)
        except OSError as error:
            self.problem = f"cannot be read ({error.strerror})"
        except SourceError as error:
            self.problem = str(error).removeprefix(f"{self.path}: ")
        except ValueError as error:
            self.problem = f"is not a recording or is damaged ({error})"
        self.grown_s = time.monotonic()
        if fresh:
            self.grown_s -= max(0.0, time.time() - now.st_mtime)
        anew = (
            before is not None
            and self.header is not None
            and before.of_its_rank() != self.header.of_its_rank()
        )
        if not anew:
            tasks = rest + tasks
        return News(self, pl.concat(tasks) if tasks else _none(), anew)

    def _begin_anew(self) -> None:
        """Read the file from its begin."""
        self._offset, self._first, self.closed = 0, b"", False

    def _rest(self, most: int) -> list[pl.DataFrame]:
        """Read on in the file that was put aside meanwhile; nothing if it was dropped already."""
        try:
            with older(self.path).open("rb") as file:
                found = os.fstat(file.fileno())
                if (found.st_dev, found.st_ino) == self._file:
                    return self._read(file.fileno(), found.st_size, most)
        except OSError:
            pass
        return []

    def _read(self, file: int, size: int, most: int) -> list[pl.DataFrame]:
        """Decode the complete messages after the offset.

        Raises:
            SourceError: It is no recording that can be read.
            ValueError: It is damaged.
        """
        if not self._first and not self._begin(file):
            return []
        passed = self._pass_over(file, size, most)
        data = os.pread(file, max(0, size - self._offset), self._offset)
        found = messages(data, checked=has_checksum(self._first, len(self._schema)))
        self.closed = found.closed
        if found.damaged:
            self.problem = "is damaged: tasks in parts that fail their checksum are left out"
        # A process that was forked may have put the end there: what follows is read from there.
        self._offset += found.end - (len(END) if found.closed else 0)
        if not found.sound:
            return []
        try:
            tasks = read_arrow(io.BytesIO(self._schema + found.sound + END), _WANTED)
        except UNREADABLE as error:
            raise ValueError(reason(error)) from None
        tasks = tasks.filter(pl.col("kind") != HEADER)
        # Of the first step after a leap, tasks may be missing.
        return [
            tasks.filter(pl.col("step") != pl.col("step").drop_nulls().first()) if passed else tasks
        ]

    def _begin(self, file: int) -> bool:
        """Read the header; return whether it is there already."""
        data = os.pread(file, _HEAD, 0)
        schema = message_length(data, 0)
        length = None if schema is None else message_length(data, schema)
        if schema is not None and length is not None and schema + length > len(data):
            data = os.pread(file, schema + length, 0)  # of a rank of many groups
        if schema is None or length is None or schema + length > len(data):
            return False
        rows, _ = read_stream(data[: schema + length])
        if rows is None or rows.height != 1:
            raise SourceError(
                self.path, "is an Arrow stream, but not one that bubblescope recorded"
            )
        self.header, self.problem = header_of(self.path, rows), None
        self._first, self._schema = data[: schema + length], data[:schema]
        self._offset = schema + length
        return True

    def _pass_over(self, file: int, size: int, most: int) -> bool:
        """Go on to the last messages, by the lengths that each says it has; at least one is left."""
        begun = self._offset
        length = self._length(file, size, begun) if size - begun > most else None
        while length is not None and size - self._offset > most:
            following = self._length(file, size, self._offset + length)
            if following is None:
                break
            self._offset += length
            length = following
        self.passed += self._offset - begun
        return self._offset > begun

    def _length(self, file: int, size: int, at: int) -> int | None:
        """Return the length of the message that begins there, None if it is not complete."""
        head = os.pread(file, _HEAD, at)
        length = None if head[: len(END)] == END else message_length(head, 0)
        return None if length is None or at + length > size else length


class Tail:
    """The recordings of a folder, as they appear and grow; of a job's starts, those of the last.

    Args:
        folder: Where to look, and in the folders in it; it may be empty still, or missing.

    Attributes:
        recordings: What has been found, by path.
        unlisted: Folders that cannot be looked into, and why.
    """

    def __init__(self, folder: Path) -> None:
        self.recordings: dict[Path, Recording] = {}
        self.unlisted: dict[str, str] = {}
        self._folder = folder

    def news(self) -> list[News]:
        """Return what is new since the last call."""
        there = sorted(self._paths())
        # Where files have one name only, it is missing for a moment when one is put aside.
        gone = [path for path in self.recordings.keys() - set(there) if not older(path).exists()]
        news = [News(self.recordings.pop(path), _none(), anew=True) for path in gone]
        most = _BACKLOG // max(1, len(there))
        for path in there:
            found = self.recordings.setdefault(path, Recording(path)).news(most)
            if found is not None:
                news.append(found)
        return news

    def _paths(self) -> list[Path]:
        found: list[Path] = []
        self.unlisted.clear()
        for folder, folders, names in os.walk(self._folder, onerror=self._note):
            if attempts := attempts_in(Path(folder)):
                folders[:] = [attempts[-1].folder.name]
                continue
            paths = [Path(folder, name) for name in names if _followed(name)]
            found += [path for path in paths if path in self.recordings or path.is_file()]
        return found

    def _note(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # it may come yet, or was moved meanwhile
            self.unlisted[str(error.filename)] = str(error.strerror)


def _followed(name: str) -> bool:
    """Say whether a file is a recording, and not the older half of one or one being renamed."""
    path = Path(name)
    return path.suffix == _SUFFIX and not is_older_half(path) and not name.startswith(".")


def _none() -> pl.DataFrame:
    return pl.DataFrame(schema={name: SCHEMA[name] for name in _WANTED})
