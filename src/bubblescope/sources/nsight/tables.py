"""The tables of one Nsight Systems export, whichever container they lie in.

An export is a SQLite file or a folder with one Parquet file per table (`nsys export -t parquetdir`).
Tables are lazy, so any may be missing, and older versions miss columns: `read` fills those with
null, so that the rest of the source sees one schema.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final, Protocol

import polars as pl

from bubblescope.model import parquet
from bubblescope.model.column_types import UnfitError
from bubblescope.model.errors import SourceError, reason
from bubblescope.model.parquet import UNREADABLE
from bubblescope.sources.export_columns import fitting, nothing, texts_of
from bubblescope.sources.nsight.tool_names import EVENTS
from bubblescope.sources.sqlite import SqliteTables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bubblescope.model.progress import Progress

_FACTS: Final = (
    "META_DATA_CAPTURE",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "ENUM_NSYS_EVENT_TYPE",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
    "StringIds",
    "ThreadNames",
    "TARGET_INFO_SESSION_START_TIME",
    "TARGET_INFO_SYSTEM_ENV",
    "TARGET_INFO_CUDA_DEVICE",
    "TARGET_INFO_GPU",
    "TARGET_INFO_GPU_METRICS",
)
"""The tables that are used: those that grow with the run, and those that describe it."""


class Tables(Protocol):
    """Read access to the tables of one export."""

    path: Path

    def size(self) -> int:
        """Return the amount that reading everything will report as progress."""

    def read(
        self,
        table: str,
        columns: Sequence[str],
        shrink: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
    ) -> pl.DataFrame:
        """Return the columns of a table; empty if the table is missing.

        Args:
            table: Its name.
            columns: Wanted columns: integers, but for those of `export_columns.TEXT` and `BINARY`. One
                that this version does not have is filled with null, or "" for text, or no bytes.
            shrink: Applied to each piece as it arrives, to keep only what is needed in memory.
        """

    def texts(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return the columns of a small table, whatever they hold, as text; null where it is missing.

        Empty if the table is missing.
        """


class SqliteExport(SqliteTables):
    """Tables of a `.sqlite` export.

    Raises:
        SourceError: The file is cut short or damaged.
    """

    def __init__(self, path: Path, progress: Progress) -> None:
        super().__init__(path, progress, EVENTS, _FACTS)

    def texts(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return the columns of a small table as text; see `Tables.texts`."""
        present = self.columns_of(table)
        schema = dict.fromkeys(columns, pl.String)
        if not present:
            return pl.DataFrame(schema=schema)
        chosen = ", ".join(
            f'CAST("{column}" AS TEXT)' if column in present else "NULL" for column in columns
        )
        query = f'SELECT {chosen} FROM "{table}"'  # noqa: S608  fixed names
        try:
            with closing(sqlite3.connect(self._uri, uri=True)) as connection:
                connection.text_factory = lambda text: text.decode(errors="replace")
                rows = connection.execute(query).fetchall()
        except sqlite3.Error as error:
            raise self._damaged(error) from None
        return pl.DataFrame(rows, schema=schema, orient="row")


class ParquetTables:
    """Tables of a `parquetdir` export.

    Raises:
        SourceError: A table cannot be read.
    """

    def __init__(self, path: Path, progress: Progress) -> None:
        self.path = path
        self._progress = progress

    def size(self) -> int:
        """Return the amount of progress that reading everything makes."""
        return sum((self.path / f"{table}.parquet").exists() for table in EVENTS)

    def read(
        self,
        table: str,
        columns: Sequence[str],
        shrink: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
    ) -> pl.DataFrame:
        """Return the columns of a table; see `Tables.read`."""
        file = self.path / f"{table}.parquet"
        if not file.is_file():
            frame = pl.DataFrame([nothing(column) for column in columns])
        else:
            frame = self._collect(file, columns)
        if table in EVENTS:
            self._progress.advance()
        return shrink(frame) if shrink else frame

    def texts(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Return the columns of a small table as text; see `Tables.texts`."""
        file = self.path / f"{table}.parquet"
        if not file.is_file():
            return pl.DataFrame(schema=dict.fromkeys(columns, pl.String))
        found = self._columns(file, columns)
        try:
            return pl.DataFrame([column.cast(pl.String) for column in found])
        except UNREADABLE as error:
            raise SourceError(file, f"holds no text ({reason(error)}); export it again") from None

    def _collect(self, file: Path, columns: Sequence[str]) -> pl.DataFrame:
        try:
            text = texts_of(file.stem)
            found = [fitting(column, text) for column in self._columns(file, columns)]
        except UnfitError as error:
            raise SourceError(file, f"{error.problem}; export it again") from None
        return pl.DataFrame(found).with_columns(
            pl.col(pl.String).fill_null(""), pl.col(pl.Binary).fill_null(pl.lit(b""))
        )

    @staticmethod
    def _columns(file: Path, columns: Sequence[str]) -> list[pl.Series]:
        """Return columns as they are; those that are missing are null throughout."""
        try:
            present = parquet.columns_of(file)
            frame = parquet.read(file, [name for name in columns if name in present] or present[:1])
        except UNREADABLE as error:
            raise SourceError(file, f"cannot be read ({reason(error)}); export it again") from None
        return [
            frame[name]
            if name in present
            else pl.Series(name, [None], pl.Null).new_from_index(0, frame.height)
            for name in columns
        ]
