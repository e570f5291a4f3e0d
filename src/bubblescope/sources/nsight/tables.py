"""The tables of one Nsight Systems export, whichever container they lie in.

An export is a SQLite file or a folder with one Parquet file per table (`nsys export -t parquetdir`).
Tables are lazy, so any may be missing, and older versions miss columns: `read` fills those with
null, so that the rest of the source sees one schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import polars as pl

from bubblescope.errors import SourceError
from bubblescope.sources.sqlite import TEXT, nothing
from bubblescope.timeline import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bubblescope.progress import Progress

__all__ = ["EVENTS", "FACTS", "ParquetTables", "Tables"]

EVENTS: Final = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
)
FACTS: Final = (
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "StringIds",
    "TARGET_INFO_SESSION_START_TIME",
    "TARGET_INFO_SYSTEM_ENV",
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
            columns: Wanted columns: integers, but for those whose name is "text", "name" or
                "value". One that this version does not have is filled with null, or "" for text.
            shrink: Applied to each piece as it arrives, to keep only what is needed in memory.
        """


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
        if not file.exists():
            frame = pl.DataFrame([nothing(column) for column in columns])
        else:
            frame = self._collect(file, columns)
        if table in EVENTS:
            self._progress.advance()
        return shrink(frame) if shrink else frame

    @staticmethod
    def _collect(file: Path, columns: Sequence[str]) -> pl.DataFrame:
        try:
            scan = pl.scan_parquet(file)
            present = scan.collect_schema().names()
            values = {
                column: pl.col(column) if column in present else pl.lit(None) for column in columns
            }
            return scan.select(
                value.cast(pl.String).fill_null("").alias(column)
                if column in TEXT
                else value.cast(pl.Int64).alias(column)  # ids may be unsigned
                for column, value in values.items()
            ).collect()
        except UNREADABLE as error:
            reason = str(error).strip().splitlines()[0]
            raise SourceError(file, f"cannot be read ({reason}); export it again") from None
