"""What tells one SQLite file from another: its first bytes, the names of its tables, what it lacks."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

_MAGIC: Final = b"SQLite format 3\0"
_HEAD_BYTES: Final = 1 << 18
_HEADER_BYTES: Final = 100


def head_of(path: Path) -> bytes:
    """Return the first bytes of a SQLite file, where the names of its tables usually stand.

    Empty if it is none, or cannot be opened.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return b""
    return head if is_sqlite(head) else b""


def is_sqlite(head: bytes) -> bool:
    """Say whether these are the first bytes of a SQLite file, or all that is left of it."""
    return head.startswith(_MAGIC)


def cut_short(path: Path) -> str | None:
    """Say, as the rest of a sentence, that a SQLite file ends before its end; None if it does not.

    Told by the size in the header, which is https://sqlite.org/fileformat.html's.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if not is_sqlite(header):
        return None
    size = path.stat().st_size
    if len(header) < _HEADER_BYTES:
        return f"is cut short: it ends after {size} bytes; export it again"
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    whole = page * int.from_bytes(header[28:32], "big")
    # The page count is only valid if written by the same version that last changed the file.
    if header[24:28] != header[92:96] or whole <= size:
        return None
    return f"is cut short: it has {size} of {whole} bytes; copy or export it again"


def table_names(path: Path) -> set[str]:
    """Return the names of a SQLite file's tables; none if it cannot be read."""
    import sqlite3  # noqa: PLC0415  most files are none

    try:
        with closing(sqlite3.connect(uri_of(path), uri=True)) as connection:
            return tables_of(connection)
    # Its own errors, or, if their text is damaged too, that.
    except (sqlite3.Error, UnicodeDecodeError):
        return set()


def tables_of(connection: sqlite3.Connection) -> set[str]:
    """Return the names of the tables of an open file."""
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return {name for (name,) in rows}


def uri_of(path: Path) -> str:
    """Return how to open a file for reading alone: no lock, no journal, nothing beside it.

    Unless its writer left a log beside it that holds the newest rows.
    """
    return f"{path.resolve().as_uri()}?mode=ro{'' if has_log(path) else '&immutable=1'}"


def has_log(path: Path) -> bool:
    """Say whether the writer of a file left a log beside it, with rows that the file lacks."""
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0
