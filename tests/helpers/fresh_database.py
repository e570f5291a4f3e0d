"""SQLite files that tests make: nobody's data, which need not outlive the machine."""

from __future__ import annotations

import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def fresh_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Make a database in which nothing is waited for to be on the disk; commit what was put into it."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = OFF")
        yield connection
        connection.commit()
