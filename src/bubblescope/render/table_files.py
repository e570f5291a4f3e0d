"""Tables for other programs: Parquet, CSV and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl
import polars.selectors as cs

from bubblescope.model.files import replacing
from bubblescope.model.plain_text import UNSEEN, inert_json

if TYPE_CHECKING:
    from pathlib import Path

    from bubblescope.model.timeline import Timeline

SCHEMA: Final = "bubblescope.timeline/1"
"""Name and version of the JSON form: `run`, `ranks[]`, `tasks[]` and, if asked for, `activities[]`,
with columns as in docs/model.md."""

_FORMULA: Final = r"^\s*[=+\-@|%]"
"""How a text begins that some spreadsheet takes for a formula or a command."""


def write_parquet(timeline: Timeline, path: Path, *, kernels: bool = False) -> Path:
    """Write the whole timeline as one Parquet file, which `bubblescope.load` reads back.

    That has its kernels if the timeline does, so `kernels` only says that they are meant to be there.
    """
    del kernels
    return timeline.save(path)


def write_csv(timeline: Timeline, path: Path, *, kernels: bool = False) -> Path:
    """Write the tasks, or in their place the kernels, as CSV, with a header; nulls are empty.

    It is made for spreadsheets, which run a cell that begins like a formula: a name that does gets an
    apostrophe before it, and what has no picture of its own but changes that of others becomes U+FFFD.
    JSON and Parquet have it as it is.
    """
    table = timeline.activities if kernels else timeline.tasks
    # Many readers take a NUL for the end of the text, and terminals obey other control characters.
    texts = cs.string().str.replace_all(UNSEEN, "\ufffd")
    formula = texts.str.contains(_FORMULA)
    safe = pl.when(formula).then("'" + texts).otherwise(texts).name.keep()
    with replacing(path) as partial:
        table.with_columns(safe).write_csv(partial)
    return path


def write_json(timeline: Timeline, path: Path, *, kernels: bool = False) -> Path:
    """Write everything as one JSON object, one task a line, and if asked for one kernel a line."""
    tables = {"tasks": timeline.tasks}
    if kernels:
        tables["activities"] = timeline.activities
    head = msgspec.json.encode(
        {
            "schema": SCHEMA,
            "run": msgspec.to_builtins(timeline.run),
            "ranks": timeline.ranks.to_dicts(),
        }
    ).decode()
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write(inert_json(head[:-1]))
        for name, table in tables.items():
            rows = table.select(pl.struct(pl.all()).struct.json_encode()).to_series()
            file.write(f',"{name}":[\n')
            file.write(inert_json(",\n".join(rows)))
            file.write("\n]")
        file.write("}\n")
    return path
