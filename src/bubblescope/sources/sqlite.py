"""Tables of a SQLite file as frames: read-only, in parallel, and with one error for all damage."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import adbc_driver_manager
import adbc_driver_sqlite
import polars as pl

from bubblescope.model.arrays import at_once
from bubblescope.model.column_types import UnfitError
from bubblescope.model.errors import SourceError, reason
from bubblescope.sources.export_columns import BINARY, TEXT, fitting, nothing
from bubblescope.sources.sqlite_head import cut_short, has_log, tables_of, uri_of
from bubblescope.sources.sqlite_pages import NotPlainError, Pages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from bubblescope.model.progress import Progress
    from bubblescope.sources.sqlite_pages import Part

_DAMAGE: Final = (sqlite3.Error, UnicodeDecodeError)
"""What the standard module raises: its own errors, or, if their text is damaged too, that."""
_ROWS_PER_JOB: Final = 500_000
_ROWS_PER_BATCH: Final = "262144"


def _decode(column: pl.Series) -> pl.Series:
    try:
        return column.cast(pl.String)
    except pl.exceptions.ComputeError:
        return pl.Series(column.name, [value.decode(errors="replace") for value in column])


class _Table(NamedTuple):
    """What a file says of one of its tables.

    Attributes:
        columns: Its columns.
        places: Where the values of each stand in a row, of those that do.
        root: The number of its first page.
        last_row: The largest row id.
    """

    columns: set[str]
    places: dict[str, int]
    root: int
    last_row: int

    @classmethod
    def of(cls, connection: sqlite3.Connection, name: str) -> _Table:
        rows = connection.execute(f'PRAGMA table_xinfo("{name}")').fetchall()
        columns = {row[1] for row in rows if row[6] == _STORED}
        # A key may be the row id, which stands elsewhere; what is computed does not stand anywhere.
        stored = len(columns) == len(rows)
        places = {row[1]: row[0] for row in rows if stored and row[5] == _NO_KEY}
        [(root,)] = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name = ?", [name]
        )
        [(last,)] = connection.execute(f'SELECT max(rowid) FROM "{name}"')  # noqa: S608  a fixed name
        return cls(columns, places, int(root), int(last or 0))


_STORED, _NO_KEY = 0, 0
"""That a column is neither computed nor hidden, and no part of the primary key, in `table_xinfo`."""


class _Job(NamedTuple):
    """Rows to read.

    Attributes:
        query: What asks SQLite for them.
        part: The pages that have them; None if they cannot be plain.
    """

    query: str
    part: Part | None = None


class SqliteTables:
    """Tables of a SQLite file, in parts on all cores: integers from its pages, others through ADBC.

    Two connections read about 1.3 times as fast as one; SQL never joins or sorts.

    Args:
        path: The file.
        progress: Is told of rows of large tables.
        large: Tables that grow with the run; they are read in parts.
        small: Tables that describe it.
        text: Columns that hold text, in whichever table they occur.

    Raises:
        SourceError: The file is cut short or damaged.
    """

    def __init__(
        self,
        path: Path,
        progress: Progress,
        large: Collection[str],
        small: Collection[str],
        text: Collection[str] = TEXT,
    ) -> None:
        self.path = path
        self._progress = progress
        self._large = large
        self._text = text
        self._uri = uri_of(path)
        if (lacking := cut_short(path)) is not None:
            raise SourceError(path, lacking)
        try:
            with closing(sqlite3.connect(self._uri, uri=True)) as connection:
                tables = sorted(tables_of(connection) & {*large, *small})
                self._tables = {table: _Table.of(connection, table) for table in tables}
        except _DAMAGE as error:
            raise self._damaged(error) from None
        # A file without bytes is one without tables.
        self._pages = Pages(path) if self._tables and not has_log(path) else None

    def size(self) -> int:
        """Return the amount of progress that reading everything makes."""
        return sum(of.last_row for name, of in self._tables.items() if name in self._large)

    def columns_of(self, table: str) -> set[str]:
        """Return the names of a table's columns; none if it is missing."""
        return self._tables[table].columns if table in self._tables else set()

    def read(
        self,
        table: str,
        columns: Sequence[str],
        shrink: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
    ) -> pl.DataFrame:
        """Return the columns of a table; empty if the table is missing.

        Args:
            table: Its name, one of the large or small.
            columns: Wanted columns: integers, but for those that hold text or bytes. One that this
                file does not have is filled with null, or "" for text, or no bytes.
            shrink: Applied to each piece as it arrives, to keep only what is needed in memory.
        """

        def run(job: _Job) -> pl.DataFrame:
            piece = self._decoded(table, columns, job.part)
            if piece is None:
                piece = self._query(job.query)
                self._hold(table, job.part, piece.height)
            try:
                piece = pl.DataFrame(
                    [
                        _decode(piece[column])
                        if column in self._text
                        else fitting(piece[column], self._text)
                        for column in columns
                    ]
                )
            except UnfitError as error:
                raise SourceError(self.path, f"{table}.{error.problem}; export it again") from None
            if table in self._large:
                self._progress.advance(piece.height)
            return shrink(piece) if shrink else piece

        pieces = [piece for piece in at_once(run, self._jobs(table, columns)) if piece.height]
        if not pieces:
            empty = pl.DataFrame([nothing(column, self._text) for column in columns])
            return shrink(empty) if shrink else empty
        return pl.concat(pieces, rechunk=False)

    def _jobs(self, table: str, columns: Sequence[str]) -> list[_Job]:
        if table not in self._tables:
            return []
        of = self._tables[table]
        chosen = ", ".join(self._chosen(column, there=column in of.columns) for column in columns)
        whole = f'SELECT {chosen} FROM "{table}"'  # noqa: S608  a fixed name
        if table not in self._large:
            return [_Job(whole)]
        if parts := self._parts(of, columns):
            return [
                _Job(f"{whole} WHERE rowid BETWEEN {part.after + 1} AND {part.last}", part)
                for part in parts
            ]
        if of.last_row > self.path.stat().st_size:  # ids of its own: from 0 and with any gaps
            return [_Job(whole)]
        return [
            _Job(f"{whole} WHERE rowid BETWEEN {low} AND {low + _ROWS_PER_JOB - 1}")
            for low in range(0, of.last_row + 1, _ROWS_PER_JOB)
        ]

    def _chosen(self, column: str, *, there: bool) -> str:
        """Return what asks for a column that a table has or not."""
        if column in self._text or column in BINARY:
            # Text goes through bytes: exports hold strings that are not valid UTF-8.
            value = f"COALESCE({column}, '')" if there else "''"
            return f"CAST({value} AS BLOB) AS {column}"
        return f'"{column}"' if there else f'NULL AS "{column}"'

    def _parts(self, of: _Table, columns: Sequence[str]) -> list[Part]:
        """Return the pages of a table of whose columns some may all be integers; none if not so."""
        present = of.columns.intersection(columns)
        if self._pages is None or not present or not present <= of.places.keys():
            return []
        if not present.isdisjoint(self._text) or not present.isdisjoint(BINARY):
            return []
        try:
            return self._pages.parts(of.root)
        except NotPlainError:
            return []
        except OSError as error:
            raise self._damaged(error) from None

    def _decoded(
        self, table: str, columns: Sequence[str], part: Part | None
    ) -> pl.DataFrame | None:
        """Return columns of pages; None if only SQLite can read them."""
        if part is None or self._pages is None:
            return None
        places = self._tables[table].places
        present = [column for column in columns if column in places]
        try:
            found = self._pages.integers(part, [places[column] for column in present])
        except NotPlainError:
            return None
        except OSError as error:
            raise self._damaged(error) from None
        nulls = pl.Series([None], dtype=pl.Null).new_from_index(0, len(found[0]))
        of = dict(zip(present, found, strict=True))
        return pl.DataFrame({column: of.get(column, nulls) for column in columns})

    def _hold(self, table: str, part: Part | None, rows: int) -> None:
        """Make sure that SQLite found all rows of a part: of damaged pages it may skip some."""
        if part is None or self._pages is None:
            return
        with suppress(NotPlainError):
            if self._pages.rows(part) == rows:
                return
        raise SourceError(
            self.path, f"is a damaged SQLite file (rows of {table} are lost); export it again"
        )

    def _query(self, query: str) -> pl.DataFrame:
        driver = adbc_driver_sqlite._driver_path()  # noqa: SLF001  what its own dbapi calls
        try:
            with (
                adbc_driver_manager.AdbcDatabase(driver=driver, uri=self._uri) as database,
                adbc_driver_manager.AdbcConnection(database) as connection,
                adbc_driver_manager.AdbcStatement(connection) as statement,
            ):
                statement.set_options(**{"adbc.sqlite.query.batch_rows": _ROWS_PER_BATCH})
                statement.set_sql_query(query)
                stream, _ = statement.execute_query()
                return pl.DataFrame(stream)
        except (adbc_driver_manager.Error, pl.exceptions.PolarsError, OSError) as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> SourceError:
        return SourceError(
            self.path, f"is a damaged SQLite file ({reason(error)}); export it again"
        )
