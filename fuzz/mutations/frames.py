"""Damage to tables that stay tables: Parquet, and the Arrow streams of recordings."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from fuzz.hostile import FLOATS, STORED, TEXTS
from fuzz.mutations import tree

if TYPE_CHECKING:
    from random import Random

_TYPES: Final = (
    *(pl.String, pl.Float64, pl.Float32, pl.Int8, pl.Int64, pl.UInt64, pl.Boolean, pl.Binary),
    *(pl.Null, pl.Categorical, pl.Datetime("ns"), pl.Duration("us"), pl.Date, pl.Int128),
    pl.Decimal(38, 2),
)
_COMPRESSIONS: Final = ("zstd", "snappy", "uncompressed", "gzip")
_GROUPS: Final = 8
_NESTED: Final = 4
"""Of what a cell is put into: a list, a structure, an array or an object of a dictionary."""


def mutated_parquet(data: bytes, random: Random) -> bytes:
    """Return another Parquet file; texts of its metadata that are JSON are damaged as JSON."""
    metadata = pl.read_parquet_metadata(io.BytesIO(data))
    metadata.pop("ARROW:schema", None)
    frame = pl.read_parquet(io.BytesIO(data))
    if metadata and random.random() < 0.5:
        key = random.choice(sorted(metadata))
        metadata[key] = _said(metadata[key], random)
        if random.random() < 0.1:
            metadata[f"{key}x"] = metadata.pop(key)
    else:
        frame = _mutated(frame, random)
    return _parquet(frame, metadata, random)


def neutral_parquet(data: bytes, random: Random) -> bytes:
    """Return the same table, written in another way."""
    metadata = pl.read_parquet_metadata(io.BytesIO(data))
    metadata.pop("ARROW:schema", None)
    return _parquet(pl.read_parquet(io.BytesIO(data)), metadata, random)


def mutated_stream(data: bytes, random: Random) -> bytes:
    """Return another Arrow stream, without checksums: as if that had been recorded."""
    frame = pl.read_ipc_stream(io.BytesIO(data))
    if random.random() < 0.5 and "name" in frame.columns and frame.height:
        texts = frame["name"].to_list()
        head = _said(texts[0] or "", random)
        frame = frame.with_columns(pl.Series("name", [head, *texts[1:]], pl.String))
    else:
        frame = _mutated(frame, random)
    buffer = io.BytesIO()
    frame.write_ipc_stream(buffer, compat_level=pl.CompatLevel.oldest())
    return buffer.getvalue()


def _parquet(frame: pl.DataFrame, metadata: dict[str, str], random: Random) -> bytes:
    buffer = io.BytesIO()
    how: Any = {
        "compression": random.choice(_COMPRESSIONS),
        "row_group_size": random.choice((None, max(3, frame.height // _GROUPS))),
    }
    frame.write_parquet(buffer, metadata=metadata, **how)
    return buffer.getvalue()


def _said(text: str, random: Random) -> str:
    """Damage a text, which may be JSON."""
    try:
        return tree.mutated(text, random)
    except ValueError:
        at = random.randrange(len(text) + 1)
        return random.choice((text[:at], text[at:], "", *TEXTS))


def _mutated(frame: pl.DataFrame, random: Random) -> pl.DataFrame:
    """Return another table."""
    if not frame.width:
        return frame
    return random.choice(_WAYS)(frame, random.choice(frame.columns), random)


def _cells(frame: pl.DataFrame, name: str, random: Random) -> pl.DataFrame:
    """Give one, some or all cells of a column another value that its type can hold."""
    share = random.choice((0.0, 0.3, 1.0))
    chosen = {random.randrange(max(1, frame.height))}
    chosen |= {row for row in range(frame.height) if random.random() < share}
    kind = frame.schema[name]
    values: tuple[Any, ...] = STORED if kind.is_integer() else FLOATS if kind.is_float() else TEXTS
    value = pl.lit(random.choice((None, *values)))
    where = pl.int_range(pl.len()).is_in(sorted(chosen))
    changed = pl.when(where).then(value.cast(kind, strict=False)).otherwise(pl.col(name))
    return frame.with_columns(changed.alias(name))


def _retyped(frame: pl.DataFrame, name: str, random: Random) -> pl.DataFrame:
    """Hold a column as another type, with what of it can be held so."""
    return frame.with_columns(pl.col(name).cast(random.choice(_TYPES), strict=False))


def _nested(frame: pl.DataFrame, name: str, random: Random) -> pl.DataFrame:
    """Put every cell of a column into something."""
    column = pl.col(name)
    into = (
        pl.concat_list(column),
        pl.struct(column),
        pl.concat_list(pl.concat_list(column)),
        pl.concat_list(column).list.to_array(1),
    )
    return frame.with_columns(into[random.randrange(_NESTED)].alias(name))


def _lost_column(frame: pl.DataFrame, name: str, _random: Random) -> pl.DataFrame:
    """Lack a column."""
    return frame.drop(name)


def _renamed(frame: pl.DataFrame, name: str, random: Random) -> pl.DataFrame:
    """Call a column something else."""
    other = random.choice((f"{name}_", name.upper(), "", "é"))
    return frame if other in frame.columns else frame.rename({name: other})


def _swapped(frame: pl.DataFrame, name: str, random: Random) -> pl.DataFrame:
    """Exchange two columns."""
    other = random.choice(frame.columns)
    return frame.with_columns(frame[name].alias(other), frame[other].alias(name))


def _rows(frame: pl.DataFrame, _name: str, random: Random) -> pl.DataFrame:
    """Lose, repeat or reorder rows."""
    at = random.randrange(max(1, frame.height))
    ways = (
        lambda: frame.head(0),
        lambda: frame.head(at),
        lambda: frame.tail(at),
        lambda: pl.concat([frame, frame[at : at + 1]]),
        lambda: pl.concat([frame, frame]),
        lambda: pl.concat([frame[:at], frame[at + 1 :]]),
        lambda: frame.sample(fraction=1, shuffle=True, seed=at),
    )
    return random.choice(ways)()


def _extra(frame: pl.DataFrame, name: str, _random: Random) -> pl.DataFrame:
    """Have a column more."""
    return frame.with_columns(pl.col(name).alias(f"{name}_again"))


_WAYS: Final = (
    *(_cells, _cells, _cells, _retyped, _retyped, _nested),
    *(_lost_column, _renamed, _swapped, _rows, _extra),
)
