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
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.timeline import TASK_SCHEMA
from bubblescope.model.timeline_tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bubblescope.engine import Engine
    from bubblescope.sources.dataset.catalogue import Catalogue

A_ROW: Final = 100
"""Bytes that a task takes at the most, about, all columns of it filled."""
_SCHEMAS: Final = {"tasks": TASK_SCHEMA, **{name: table.schema for name, table in TABLES.items()}}


class Kept(NamedTuple):
    """A folder of parts that are kept while questions are asked.

    All workers see it. What they find out of parts may be held in it as well
    (`bubblescope.engine.held`).

    Attributes:
        folder: Where they lie.
    """

    folder: Path

    def keep(self, name: str, tables: Mapping[str, pl.DataFrame]) -> None:
        """Keep the tables of a part, if there is room; who comes second leaves it as it is.

        Args:
            name: Of the part.
            tables: By name, "tasks" among them.
        """
        place = self.folder / name
        if place.exists() or not self.folder.is_dir():
            return
        partial = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=self.folder))
        try:
            for table, frame in tables.items():
                filled = [one.name for one in frame.iter_columns() if one.null_count() < len(one)]
                if frame.height:
                    frame.select(filled).write_ipc(partial / table, compression="uncompressed")
            partial.rename(place)
        except OSError:  # no room, or another worker was first
            shutil.rmtree(partial, ignore_errors=True)

    def kept(self, name: str) -> dict[str, pl.DataFrame] | None:
        """Return the tables of a part as they were kept, without those that were empty; None if not."""
        place = self.folder / name
        if not place.is_dir():
            return None
        return {file.name: _whole(file, pl.read_ipc(file)) for file in sorted(place.iterdir())}

    def during(self, name: str, start_ns: int, end_ns: int) -> dict[str, pl.DataFrame] | None:
        """Return the rows of a part that overlap a time; None if it is not kept."""
        place = self.folder / name
        if not place.is_dir():
            return None
        overlaps = (pl.col("end_ns") > start_ns) & (pl.col("start_ns") < end_ns)
        return {
            file.name: _whole(file, pl.scan_ipc(file).filter(overlaps).collect())
            for file in place.iterdir()
            if {"start_ns", "end_ns"} <= {*_SCHEMAS[file.name]}
        }

    def along(self, name: str, low: int, high: int, columns: Sequence[str]) -> pl.DataFrame | None:
        """Return columns of the tasks in a part of ranks from one to another; None if not kept."""
        file = self.folder / name / "tasks"
        if not file.is_file():
            return None if not file.parent.is_dir() else pl.DataFrame(schema=TASK_SCHEMA)[columns]
        frame = pl.read_ipc(file)
        first, last = np.searchsorted(frame["rank"].to_numpy(), [low, high + 1]).tolist()
        return _whole(file, frame.slice(first, last - first)).select(columns)

    def forget(self, name: str) -> None:
        """Keep a part no longer."""
        shutil.rmtree(self.folder / name, ignore_errors=True)


@contextmanager
def keeping(catalogue: Catalogue, workers: Engine) -> Iterator[Kept | None]:
    """Give a folder to keep the parts of a dataset in while it is asked about, then remove it.

    It lies where temporary files do (`TMPDIR`); one that a killed command left there is removed. None
    is given where parts would fill half of the room that is left there, or more, or where some of the
    workers do not see it, such as those on other machines.

    Args:
        catalogue: Of the dataset.
        workers: Who look at the parts.
    """
    rows = sum(sum(held.rows.values()) for part in catalogue.parts for held in part.blocks.values())
    try:
        _sweep()
        if 2 * rows * A_ROW >= shutil.disk_usage(tempfile.gettempdir()).free:
            folder = None
        else:
            folder = tempfile.mkdtemp(prefix=f"{_mine()}{os.getpid()}-")
    except OSError:
        folder = None
    if folder is None:
        yield None
        return
    try:
        yield Kept(Path(folder)) if workers.see(folder) else None
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


def _whole(file: Path, frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows of a table with all of its columns, those that hold nothing too."""
    return frame.select(
        pl.col(name) if name in frame.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in _SCHEMAS[file.name].items()
    )
