"""Tables for other programs: Parquet, CSV and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.exports.files import replacing

if TYPE_CHECKING:
    from pathlib import Path

    from bubblescope.timeline import Timeline

__all__ = ["SCHEMA", "write_csv", "write_json", "write_parquet"]

SCHEMA: Final = "bubblescope.timeline/1"
"""Name and version of the JSON form: `run`, `ranks[]` and `tasks[]`, columns as in docs/model.md."""


def write_parquet(timeline: Timeline, path: Path) -> Path:
    """Write the whole timeline as one Parquet file, which `bubblescope.load` reads back."""
    with replacing(path) as partial:
        timeline.save(partial)
    return path


def write_csv(timeline: Timeline, path: Path) -> Path:
    """Write the tasks as CSV, with a header; nulls are empty."""
    with replacing(path) as partial:
        timeline.tasks.write_csv(partial)
    return path


def write_json(timeline: Timeline, path: Path) -> Path:
    """Write everything as one JSON object, one task a line."""
    rows = timeline.tasks.select(pl.struct(pl.all()).struct.json_encode()).to_series()
    head = msgspec.json.encode(
        {
            "schema": SCHEMA,
            "run": msgspec.to_builtins(timeline.run),
            "ranks": timeline.ranks.to_dicts(),
        }
    ).decode()
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(head[:-1] + ',"tasks":[\n')
        file.write(",\n".join(rows))
        file.write("\n]}\n")
    return path
