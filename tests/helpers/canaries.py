"""Text put into each field of a trace, to be looked for in all that is made of it.

A field is a place of text in files of a kind, wherever it occurs: keys of JSON, a column of a table, a
word of a log. Each canary holds every character that has no picture of its own but changes others.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from bubblescope import sources
from bubblescope.model.errors import BubblescopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

MARKS = [
    *map(chr, (*range(0x09), 0x0B, *range(0x0E, 0x20), *range(0x7F, 0xA0))),
    *"\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
    *"\ufff9\ufffa\ufffb\U000e0001\U000e0041",
]
CANARY = "".join(f"q{mark}j" for mark in MARKS[1:])
"""Without NUL, which ends a text of SQLite."""
RAW = re.compile("|".join(re.escape(f"q{mark}j") for mark in MARKS).encode())
"""What of it is nowhere as it was."""
SHOWN = re.compile("q\ufffdj".encode())


class Field(NamedTuple):
    """A place of text: in files of an ending, and where in those."""

    ending: str
    place: tuple[str, ...]


def fields(folder: Path) -> list[Field]:
    """Return all places of text in the files of a folder."""
    found: dict[Field, None] = {}
    for path in _files(folder):
        ending, handler = _handler(path)
        handler(path, lambda place, ending=ending: found.setdefault(Field(ending, place)))
    return list(found)


def put(folder: Path, into: Iterable[Field], canary: str = CANARY) -> None:
    """Put a canary after the text in some places, wherever they occur in the files of a folder."""
    wanted = set(into)
    for path in _files(folder):
        ending, handler = _handler(path)
        handler(
            path,
            lambda place, ending=ending: canary if Field(ending, place) in wanted else None,
        )


def readable(plain: Path, folder: Path, places: list[Field], canary: str = CANARY) -> list[Field]:
    """Return the fields that may hold a canary: with that, the trace can still be read.

    In the others text is no text of the trace; the command line says so on its console.
    """
    if not places:
        return []
    shutil.copytree(plain, folder)
    put(folder, places, canary)
    try:
        if len(sources.load(folder)):
            return places
    except BubblescopeError:
        pass
    finally:
        shutil.rmtree(folder)
    half = len(places) // 2
    return [
        field
        for part in ((places[:half], places[half:]) if half else ())
        for field in readable(plain, folder, part, canary)
    ]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


Told = "Callable[[tuple[str, ...]], str | None]"
"""What says of a place what is to be put after its text, None if it stays."""


def _handler(path: Path) -> tuple[str, Callable[[Path, Any], None]]:
    name = path.name
    for ending, handler in (
        (".json", _json),
        (".json.gz", _json),
        (".jsonl", _lines),
        (".db", _sqlite),
        (".sqlite", _sqlite),
        (".parquet", _parquet),
    ):
        if name.endswith(ending):
            return ending, handler
    if "trace_step" in name:
        return "trace_step", _json
    return re.sub(r"\d+", "N", name), _log


def _json(path: Path, told: Told) -> None:
    data = path.read_bytes()
    packed = data[:2] == b"\x1f\x8b"
    value = json.loads(gzip.decompress(data) if packed else data)
    changed = json.dumps(_walked(value, (), told), ensure_ascii=False).encode()
    path.write_bytes(gzip.compress(changed) if packed else changed)


def _lines(path: Path, told: Told) -> None:
    values = [json.loads(line) for line in path.read_text().splitlines()]
    text = "".join(f"{json.dumps(_walked(one, (), told))}\n" for one in values)
    path.write_text(text)


def _walked(value: Any, place: tuple[str, ...], told: Told) -> Any:
    if isinstance(value, dict):
        return {key: _walked(one, (*place, key), told) for key, one in value.items()}
    if isinstance(value, list):
        return [_walked(one, place, told) for one in value]
    if isinstance(value, str):
        return value + (told(place) or "")
    return value


def _sqlite(path: Path, told: Told) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for table, column in _texts(connection):
            if more := told((table, column)):
                connection.execute(
                    f'UPDATE "{table}" SET "{column}" = "{column}" || ? '
                    f"WHERE typeof(\"{column}\") = 'text'",
                    (more,),
                )
        connection.commit()


def _texts(connection: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        for _, column, *_ in connection.execute(f'PRAGMA table_info("{table}")').fetchall():
            if connection.execute(
                f'SELECT 1 FROM "{table}" WHERE typeof("{column}") = \'text\' LIMIT 1'
            ).fetchone():
                yield table, column


def _parquet(path: Path, told: Told) -> None:
    frame = pl.read_parquet(path)
    for name, dtype in frame.schema.items():
        if dtype == pl.String and (more := told((path.name, name))):
            frame = frame.with_columns(pl.col(name) + more)
    frame.write_parquet(path)


def _log(path: Path, told: Told) -> None:
    text = path.read_text()
    for word in dict.fromkeys(re.findall(r"[A-Za-z_]{3,}", text)):
        if more := told((word,)):
            text = re.sub(rf"\b{word}\b", lambda found, more=more: found[0] + more, text)
    path.write_text(text)
