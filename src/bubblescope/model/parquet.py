"""Reading Parquet and Arrow that others wrote, damaged perhaps."""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import contextmanager
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Final

import polars as pl

from bubblescope.model.parquet_pages import MAGIC, TAIL, ImpossibleError, claimed_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

UNREADABLE: Final = (OSError, pl.exceptions.PolarsError)
"""What these functions raise of a damaged file."""

_MANY: Final = 1 << 18
"""Rows that are more than a row group."""

_VALUE: Final = 8
"""Bytes that a value takes."""
_PACKED_WELL: Final = 200
_UNPACKED: Final = 1 << 27
"""Equal values take no room in a file: that many rows in so few bytes are no table of a run, and would
fill the memory."""

_LOOKED_AT: Final = 1 << 13
"""Files whose heads need not be looked at again; of a dataset, each is read several times."""


def metadata_of(path: Path) -> dict[str, str]:
    """Return the key-value metadata of a file; may raise any of `UNREADABLE`."""
    with panics_unprinted():
        return pl.read_parquet_metadata(path)


def mentions(path: Path, key: str) -> bool | None:
    """Say whether the head of a file, where its metadata are, has a word in it; None if it has no head.

    That is a fraction of the work of `metadata_of`.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        tail = file.read(TAIL)
        head = int.from_bytes(tail[: -len(MAGIC)], "little")
        if not tail.endswith(MAGIC) or head > size - TAIL:
            return None
        file.seek(size - TAIL - head)
        return key.encode() in file.read(head)


def columns_of(path: Path) -> list[str]:
    """Return the names of a file's columns; may raise any of `UNREADABLE`."""
    with panics_unprinted():
        return list(pl.read_parquet_schema(path))


def read(
    source: Path | bytes,
    columns: Sequence[str] | None = None,
    where: pl.Expr | None = None,
) -> pl.DataFrame:
    """Return some columns of a file, or all, of some rows, or all; may raise any of `UNREADABLE`."""
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    with panics_unprinted():
        most = max(_UNPACKED, _PACKED_WELL * size)
        try:
            claimed = _claimed(source, columns, most)
        except ImpossibleError as error:
            raise pl.exceptions.ComputeError(str(error)) from None
        scan = pl.scan_parquet(source, glob=False, hive_partitioning=False)
        if columns is not None:
            scan = scan.select(columns)
        if claimed is None:
            claimed = scan.select(pl.len()).collect().item(), len(scan.collect_schema())
        rows, wide = claimed
        if rows * wide * _VALUE > most:
            raise pl.exceptions.ComputeError(f"it claims to have {rows:,} rows in {size:,} bytes")
        if where is not None:
            return scan.filter(where).collect()
        if rows < _MANY:
            return scan.collect()
        # Columns of many rows come in pieces, and what works on these copies them again and again. All
        # of a column and its pieces are there at once, but not those of all columns.
        names = scan.collect_schema().names()
        return pl.DataFrame([scan.select(name).collect().to_series().rechunk() for name in names])


def _claimed(
    source: Path | bytes, columns: Sequence[str] | None, unpacked: int
) -> tuple[int, int] | None:
    """Return what `claimed_size` does, of a file as it is now without looking at it twice."""
    if isinstance(source, bytes):
        return claimed_size(source, columns, unpacked)
    now = source.stat()
    try:
        claimed = _looked_at(source, (now.st_ino, now.st_size, now.st_mtime_ns), unpacked)
    except ImpossibleError:  # of some columns it may be true
        return claimed_size(source, columns, unpacked)
    if claimed is None or columns is None:
        return claimed
    return claimed[0], len(columns)


@lru_cache(_LOOKED_AT)
def _looked_at(path: Path, _: tuple[int, ...], unpacked: int) -> tuple[int, int] | None:
    return claimed_size(path, None, unpacked)


def read_arrow(source: IO[bytes], columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Return some columns of an Arrow stream, or all; may raise any of `UNREADABLE`."""
    with panics_unprinted():
        return pl.read_ipc_stream(source, columns=None if columns is None else list(columns))


class _Held:
    """What is written to the error stream meanwhile, by whichever threads."""

    lock = threading.Lock()
    readers = 0
    panicked = False
    stream = -1
    written: IO[bytes]


@contextmanager
def panics_unprinted() -> Iterator[None]:
    """Keep what Rust prints when it panics off the error stream: the exception says it.

    Whatever else is written there meanwhile follows afterwards.

    Raises:
        polars.exceptions.ComputeError: Rust panicked, in words that tell a user nothing.
    """
    _begin()
    panicked = False
    try:
        yield
    except pl.exceptions.PanicException:
        panicked = True
        raise pl.exceptions.ComputeError("its metadata contradict its content") from None
    finally:
        _end(panicked=panicked)


def _begin() -> None:
    with _Held.lock:
        _Held.readers += 1
        if _Held.readers > 1:
            return
        try:
            _Held.stream = os.dup(2)
        except OSError:  # there is no such stream
            _Held.stream = -1
            return
        _Held.written = tempfile.TemporaryFile()  # noqa: SIM115  closed in `_end`
        os.dup2(_Held.written.fileno(), 2)


def _end(*, panicked: bool) -> None:
    with _Held.lock:
        _Held.readers -= 1
        _Held.panicked |= panicked
        if _Held.readers or _Held.stream < 0:
            return
        os.dup2(_Held.stream, 2)
        os.close(_Held.stream)
        with _Held.written as written:
            if not _Held.panicked:
                written.seek(0)
                os.write(2, written.read())
        _Held.panicked = False
