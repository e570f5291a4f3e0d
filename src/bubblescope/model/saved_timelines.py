"""Files that `Timeline.save` wrote, as they are read: no rule of timelines has been tried on them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from bubblescope.model import parquet
from bubblescope.model.bounds import UNDECODABLE, Int32, Int64, Place
from bubblescope.model.decoders import prepared
from bubblescope.model.errors import SourceError, reason
from bubblescope.model.parquet import UNREADABLE
from bubblescope.model.provenance import Run
from bubblescope.model.timeline_tables import RANK_SCHEMA, TABLES
from bubblescope.model.timing import TIMED_DTYPE

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


class Saved(msgspec.Struct, frozen=True):
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

    def told(self) -> set[int]:
        """Return the ranks that its tables tell of; -1 is among them if some rows have no rank."""
        frames = [self.tasks, *self.tables.values()]
        of = [frame["rank"].unique() for frame in frames if "rank" in frame.columns]
        return {-1 if rank is None else rank for ranks in of for rank in ranks.to_list()}

    def broken(self, error: Exception) -> SourceError:
        """Return what is to be raised if it breaks a rule."""
        return _of_another_version(self.path, error)


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


def _of_another_version(path: Path, error: Exception) -> SourceError:
    said = f"was written by another version of bubblescope or is damaged ({reason(error)})"
    return SourceError(path, said)
