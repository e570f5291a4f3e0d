"""Parts of a dataset as they were made ready once, for who looks at them again.

A part is read, put in order and on one clock once; then it lies in files that are mapped into memory,
not read, wherever it is looked at next. They are Arrow's, uncompressed, of the columns that hold
anything: about 70 bytes a task.
"""

from __future__ import annotations

import glob
import os
import shutil
import socket
import tempfile
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.ordering import stretches_of
from bubblescope.model.timeline import TASK_SCHEMA
from bubblescope.model.timeline_tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bubblescope.engine import Engine
    from bubblescope.model.arrays import Ints
    from bubblescope.sources.dataset.catalogue import Catalogue

_PARTS: Final = 64
"""Parts of which a worker knows where ranks are; of each, few bytes for a rank."""

A_ROW: Final = 100
"""Bytes that a task takes at the most, about, all columns of it filled."""
_SCHEMAS: Final = {"tasks": TASK_SCHEMA, **{name: table.schema for name, table in TABLES.items()}}


class Kept(NamedTuple):
    """A folder of parts that are kept while questions are asked.

    All workers see it. What they find out of parts may be held in it as well
    (`bubblescope.engine.remote_results`).

    Attributes:
        folder: Where they lie.
        spared: How many bytes are left free there.
        every: Whether there is room for all parts; else those are kept that are looked at first.
    """

    folder: Path
    spared: int = 0
    every: bool = True

    def keep(self, name: str, tables: Mapping[str, pl.DataFrame]) -> None:
        """Keep the tables of a part, if there is room; who comes second leaves it as it is.

        Args:
            name: Of the part.
            tables: By name, "tasks" among them.
        """
        place = self.folder / name
        if place.exists() or not self.folder.is_dir():
            return
        if not self.has_room(sum(frame.height for frame in tables.values())):
            return
        partial = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=self.folder))
        try:
            for table, frame in tables.items():
                if frame.height:
                    _write(partial / table, frame)
            (partial / _EDGES).write_bytes(msgspec.json.encode(_edges(tables)))
            partial.rename(place)
        except OSError:  # no room, or another worker was first
            shutil.rmtree(partial, ignore_errors=True)

    def has_room(self, rows: int) -> bool:
        """Say whether a part of so many rows would be kept."""
        return self.every or shutil.disk_usage(self.folder).free - rows * A_ROW >= self.spared

    def holds(self, name: str) -> bool:
        """Say whether a part is kept."""
        return (self.folder / name).is_dir()

    def kept(self, *names: str) -> dict[str, pl.DataFrame] | None:
        """Return the tables of a part as they were kept, without those that were empty; None if not.

        Args:
            names: Of the part, or of what it is put together of: the rows of one after the other's.
        """
        places = [self.folder / name for name in names]
        if not all(place.is_dir() for place in places):
            return None
        tables = sorted({file.name for place in places for file in _tables_in(place)})
        return {table: _whole(table, [place / table for place in places]) for table in tables}

    def during(self, name: str, start_ns: int, end_ns: int) -> dict[str, pl.DataFrame] | None:
        """Return what of a part overlaps a time, of tables of which anything does; None if not kept."""
        place = self.folder / name
        if not place.is_dir():
            return None
        times = pl.col("start_ns"), pl.col("end_ns")
        found = {}
        for table, (first_ns, last_ns) in msgspec.json.decode(
            (place / _EDGES).read_bytes()
        ).items():
            if last_ns <= start_ns or first_ns >= end_ns:
                continue
            file = place / table
            start, end = _whole(file.name, [file], ("start_ns", "end_ns")).select(times)
            rows = ((end > start_ns) & (start < end_ns)).arg_true()
            found[file.name] = _whole(file.name, [file], rows=rows)
        return found

    def along(self, name: str, low: int, high: int, columns: Sequence[str]) -> pl.DataFrame | None:
        """Return columns of the tasks in a part of ranks from one to another; None if not kept."""
        file = self.folder / name / "tasks"
        if not file.is_file():
            return None if not file.parent.is_dir() else pl.DataFrame(schema=TASK_SCHEMA)[columns]
        ranks, edges = _ranks_in(file)
        first, last = edges[np.searchsorted(ranks, [low, high + 1])].tolist()
        return _whole("tasks", [file], columns, rows=slice(first, last))

    def forget(self, name: str) -> None:
        """Keep a part no longer."""
        shutil.rmtree(self.folder / name, ignore_errors=True)


@contextmanager
def keeping(catalogue: Catalogue, workers: Engine) -> Iterator[Kept | None]:
    """Give a folder to keep the parts of a dataset in while it is asked about, then remove it.

    It lies where temporary files do (`TMPDIR`), of which half of the room is left free; one that a
    killed command left there is removed. None is given where no folder can be made, or where some of
    the workers do not see it, such as those on other machines.

    Args:
        catalogue: Of the dataset.
        workers: Who look at the parts.
    """
    rows = sum(sum(held.rows.values()) for part in catalogue.parts for held in part.blocks.values())
    try:
        _sweep()
        spared = shutil.disk_usage(tempfile.gettempdir()).free // 2
        folder = tempfile.mkdtemp(prefix=f"{_mine()}{os.getpid()}-")
    except OSError:
        yield None
        return
    try:
        kept = Kept(Path(folder), spared, rows * A_ROW < spared)
        yield kept if workers.see(folder) else None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _mine() -> str:
    """Return how folders begin that commands on this machine keep parts in."""
    return f"bubblescope-parts-{socket.gethostname()}-"


def _sweep() -> None:
    """Remove the folders of commands that were killed on this machine, which could not."""
    for folder in Path(tempfile.gettempdir()).glob(f"{glob.escape(_mine())}*"):
        pid = folder.name.removeprefix(_mine()).partition("-")[0]
        if pid.isdecimal() and not _alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it is another user's, or what is no process's number
        return True
    return True


_ONE: Final = ".one"
"""How the files end of the columns of a table that have one value in all rows."""


_EDGES: Final = f"edges{_ONE}"
"""File of the first start and the last end of each table of a part that has times."""


def _edges(tables: Mapping[str, pl.DataFrame]) -> dict[str, tuple[int, int]]:
    return {
        table: frame.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
        for table, frame in tables.items()
        if frame.height and {"start_ns", "end_ns"} <= {*frame.columns}
    }


def _write(file: Path, frame: pl.DataFrame) -> None:
    """Write a table: of columns with one value in all rows, such as its step, that value alone."""
    first, *others = frame.get_columns()
    several = [first, *(one for one in others if not _is_one(one))]
    held = pl.DataFrame(several)
    held.write_ipc(file, compression="uncompressed")
    frame.head(1).drop(held.columns).write_ipc(f"{file}{_ONE}", compression="uncompressed")


def _is_one(column: pl.Series) -> bool:
    """Say whether all rows have one value, or none has any."""
    if column.has_nulls():
        return column.null_count() == len(column)
    if column.dtype.is_nested():
        return False
    return bool(column[0] == column[-1] and (column == column[0]).all())


def _tables_in(place: Path) -> list[Path]:
    return sorted(file for file in place.iterdir() if file.suffix != _ONE)


def _whole(
    table: str,
    files: Sequence[Path],
    columns: Sequence[str] = (),
    rows: slice | pl.Series | None = None,
) -> pl.DataFrame:
    """Return the rows of a table that lie in some files, of which some may be missing.

    Args:
        table: Its name.
        files: The files, as `_write` made them.
        columns: Those that are wanted; all if none is named.
        rows: Which rows of each file are wanted; all if None. A value that all have is written out for
            these only.
    """
    there = [file for file in files if file.is_file()]
    ones = [_read(Path(f"{file}{_ONE}")).collect() for file in there]
    schema = _SCHEMAS[table]
    wanted = columns or [*schema]
    # The first column is in all files, and says how many rows they have.
    read = [*dict.fromkeys((next(iter(schema)), *wanted))]
    alike = {
        name: ones[0][name].item()
        for name in read
        if all(name in one.columns for one in ones)
        and all(one[name].eq_missing(ones[0][name]).all() for one in ones)
    }
    parts = []
    for file, one in zip(there, ones, strict=True):
        part = _rows(file, [name for name in read if name not in one.columns], rows)
        said = (pl.lit(one[name].item(), schema[name]).alias(name) for name in one.columns)
        parts.append(part.with_columns(said).select(name for name in read if name not in alike))
    whole = pl.concat(parts, rechunk=True)
    alone = (pl.lit(value, schema[name]).alias(name) for name, value in alike.items())
    return whole.with_columns(alone).select(wanted)


def _rows(file: Path, columns: list[str], rows: slice | pl.Series | None) -> pl.DataFrame:
    """Return columns of some rows of a file, or of all; of a slice, no other rows are read."""
    every = _read(file).select(columns)
    if isinstance(rows, slice):
        return every.slice(rows.start, rows.stop - rows.start).collect()
    whole = every.collect()
    return whole if rows is None else whole[rows]


def _read(file: Path) -> pl.LazyFrame:
    """Return a file, whose path says nothing but where it is, though it may look like a pattern."""
    return pl.scan_ipc(file, glob=False, hive_partitioning=False)


@lru_cache(maxsize=_PARTS)
def _ranks_in(file: Path) -> tuple[Ints, Ints]:
    """Return the ranks of a part's tasks, ascending, and their first rows, with the number of all."""
    rank = _whole("tasks", [file], ("rank",))["rank"].to_numpy()
    firsts = stretches_of(rank)
    return rank[firsts], np.append(firsts, len(rank))
