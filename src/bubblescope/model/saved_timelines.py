"""Files that `Timeline.save` wrote: one by itself, or several of different ranks at once.

Looking at a table takes some milliseconds whether it has a hundred rows or a hundred thousand. So the
rules are tried on the rows of several files together, and on each file by itself only where one breaks
a rule, to say which.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.model import parquet
from bubblescope.model.bounds import UNDECODABLE, Int32, Int64, Place
from bubblescope.model.decoders import prepared
from bubblescope.model.errors import SourceError, TimelineError, reason
from bubblescope.model.parquet import UNREADABLE
from bubblescope.model.provenance import Run
from bubblescope.model.timeline import RANK_SCHEMA, Timeline, concat, joined
from bubblescope.model.timeline_tables import TABLES
from bubblescope.model.timing import TIMED_DTYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

_JSON_TYPES: Final = {
    pl.Int32(): Int32 | None,
    pl.Int64(): Int64 | None,
    pl.String(): str | None,
    TIMED_DTYPE: str | None,
    pl.List(pl.Int32()): list[Place] | None,
}
_RANK_ROWS: Final = msgspec.json.Decoder(
    list[  # type: ignore[misc]  # of a type made here
        msgspec.defstruct(
            "RankRow", [(name, _JSON_TYPES[dtype], None) for name, dtype in RANK_SCHEMA.items()]
        )
    ]
)


class Saved(NamedTuple):
    """What a file holds, of which no rule has been tried.

    Attributes:
        path: The file.
        tasks, ranks, run: As of `Timeline`.
        tables: The others by name; those that were empty were not saved.
    """

    path: Path
    tasks: pl.DataFrame
    ranks: pl.DataFrame
    run: Run
    tables: dict[str, pl.DataFrame]

    def timeline(self) -> Timeline:
        """Return it as a timeline.

        Raises:
            SourceError: It breaks a rule.
        """
        try:
            return Timeline(self.tasks, self.ranks, self.run, **self.tables)
        except (TimelineError, *UNREADABLE) as error:
            raise _of_another_version(self.path, error) from None

    def told(self) -> set[int]:
        """Return the ranks that its tables tell of; -1 is among them if some rows have no rank."""
        frames = [self.tasks, *self.tables.values()]
        of = [frame["rank"].unique() for frame in frames if "rank" in frame.columns]
        return {-1 if rank is None else rank for ranks in of for rank in ranks.to_list()}


def opened(path: str | Path) -> Saved:
    """Read a file.

    Raises:
        SourceError: It is missing, damaged, or no saved timeline.
    """
    path = Path(path)
    try:
        metadata = parquet.metadata_of(path)
        tasks = parquet.read(path)
    except FileNotFoundError:
        raise SourceError(path, "no such file") from None
    except UNREADABLE as error:
        raise SourceError(path, f"cannot be read as Parquet ({reason(error)})") from None
    if "bubblescope.run" not in metadata:
        raise SourceError(path, "is Parquet, but not a timeline that bubblescope saved")
    try:
        run = msgspec.json.decode(metadata["bubblescope.run"], type=prepared(Run))
        rows = _RANK_ROWS.decode(metadata["bubblescope.ranks"])
        ranks = pl.DataFrame(map(msgspec.structs.astuple, rows), RANK_SCHEMA, orient="row")
        texts = {name: metadata.get(f"bubblescope.{name}") for name in TABLES}
        tables = {
            name: parquet.read(base64.b64decode(text, validate=True))
            for name, text in texts.items()
            if text is not None
        }
    except (*UNDECODABLE, ValueError, KeyError, *UNREADABLE) as error:
        raise _of_another_version(path, error) from None
    return Saved(path, tasks, ranks, run, tables)


def together(files: Sequence[Saved]) -> Timeline:
    """Return several files as one timeline, as `concat` does of each by itself.

    Args:
        files: At least one.

    Raises:
        SourceError: A file breaks a rule.
        TimelineError: Two have the same rank.
    """
    whole = _at_once(files) if len(files) > 1 else None
    return concat([file.timeline() for file in files]) if whole is None else whole


def _at_once(files: Sequence[Saved]) -> Timeline | None:
    """Return several files as one timeline; None if they must be looked at one by one."""
    ranks = [file.ranks["rank"].to_list() for file in files]
    own = all(file.told() <= {*mine} for file, mine in zip(files, ranks, strict=True))
    count = sum(map(len, ranks))
    if not own or len(set().union(*ranks)) < count:
        return None
    names = dict.fromkeys(name for file in files for name in file.tables)
    try:
        return Timeline(
            pl.concat([file.tasks for file in files]),
            pl.concat([file.ranks for file in files]),
            joined([file.run for file in files], count),
            **{
                name: pl.concat([file.tables[name] for file in files if name in file.tables])
                for name in names
            },
        )
    except (TimelineError, *UNREADABLE):  # of columns that differ, for one
        return None


def _of_another_version(path: Path, error: Exception) -> SourceError:
    said = f"was written by another version of bubblescope or is damaged ({reason(error)})"
    return SourceError(path, said)
