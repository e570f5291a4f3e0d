"""Damage to SQLite files that stay SQLite: cells, rows, columns and tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from fuzz.hostile import FLOATS, STORED, TEXTS, near

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

_KINDS: Final = ("TEXT", "REAL", "BLOB", "INTEGER", "")


def mutate(path: Path, random: Random) -> None:
    """Change a database in its place.

    Raises:
        sqlite3.Error: It is none, or the change cannot be made.
    """
    with closing(_opened(path)) as database:
        tables = _tables(database, random)
        if not tables:
            return
        for _ in range(random.choice((1, 1, 1, 3))):
            random.choice(_WAYS)(database, random.choice(tables), random)
        database.commit()


def neutralise(path: Path, random: Random) -> None:
    """Change what no number depends on: pages, a table and a column that nobody knows."""
    with closing(_opened(path)) as database:
        tables = _tables(database, random)
        table = random.choice(tables)
        how = random.randrange(3)
        if how == 0:
            database.execute('CREATE TABLE "unknown to all" (start INTEGER, name TEXT)')
            database.execute("""INSERT INTO "unknown to all" VALUES (1, 'F0.0.0')""")
        elif how == 1:
            database.execute(
                f'ALTER TABLE "{table}" ADD COLUMN "unknown to all" TEXT DEFAULT \'x\''
            )
        database.commit()
        database.execute("VACUUM")


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    # Names of tables and columns may be anything by now, and texts no UTF-8.
    database.text_factory = lambda data: data.decode("utf-8", "replace")
    return database


def _tables(database: sqlite3.Connection, random: Random) -> list[str]:
    """Return the tables, those with rows many times: damage to others is seldom of interest."""
    found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    names = [name for (name,) in found if not name.startswith("sqlite_") and '"' not in name]
    held = [
        name
        for name in names
        if database.execute(f'SELECT 1 FROM "{name}" LIMIT 1').fetchone() is not None
    ]
    return held if held and random.random() < 0.9 else names


def _column(database: sqlite3.Connection, table: str, random: Random) -> str:
    columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
    return str(random.choice(columns))


def _row(database: sqlite3.Connection, table: str, random: Random) -> int | None:
    [(count,)] = database.execute(f'SELECT count(*) FROM "{table}"')
    if not count:
        return None
    query = f'SELECT rowid FROM "{table}" LIMIT 1 OFFSET ?'
    [(row,)] = database.execute(query, (random.randrange(count),))
    return int(row)


def _value(random: Random, value: Any) -> Any:
    how = random.random()
    if how < 0.35 and isinstance(value, (int, float, str)):
        changed = near(random, value)
        small = not isinstance(changed, int) or -(2**63) <= changed < 2**63
        return changed if small else str(changed)
    if how < 0.45:
        return None
    if how < 0.55:
        return str(value)
    if how < 0.6:
        return random.choice((b"", b"\0" * 9, bytes(range(256))))
    return random.choice((*STORED, *FLOATS, *TEXTS))


def _cell(database: sqlite3.Connection, table: str, random: Random) -> None:
    """Give a cell another value."""
    row, column = _row(database, table, random), _column(database, table, random)
    [(value,)] = database.execute(f'SELECT "{column}" FROM "{table}" WHERE rowid = ?', (row,))
    query = f'UPDATE OR IGNORE "{table}" SET "{column}" = ? WHERE rowid = ?'
    database.execute(query, (_value(random, value), row))


def _whole_column(database: sqlite3.Connection, table: str, random: Random) -> None:
    """Give all cells of a column one value."""
    column = _column(database, table, random)
    first = database.execute(f'SELECT "{column}" FROM "{table}" LIMIT 1').fetchone()
    value = _value(random, first[0] if first else 0)
    database.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ?', (value,))


def _swapped_columns(database: sqlite3.Connection, table: str, random: Random) -> None:
    """Exchange the values of two columns."""
    one, other = (_column(database, table, random) for _ in range(2))
    database.execute(f'UPDATE OR IGNORE "{table}" SET "{one}" = "{other}", "{other}" = "{one}"')


def _lost_rows(database: sqlite3.Connection, table: str, random: Random) -> None:
    """Lose a row, many, or all."""
    row = _row(database, table, random)
    sign = random.choice(("=", "=", ">", "<", "<>", "IS NOT NULL OR rowid ="))
    database.execute(f'DELETE FROM "{table}" WHERE rowid {sign} ?', (row,))


def _repeated_row(database: sqlite3.Connection, table: str, random: Random) -> None:
    """Hold a row twice, or under a number that no row has."""
    row = _row(database, table, random)
    columns = [one[1] for one in database.execute(f'PRAGMA table_info("{table}")') if not one[5]]
    if columns:
        names = ", ".join(f'"{column}"' for column in columns)
        same = f'SELECT {names} FROM "{table}" WHERE rowid = ?'
        database.execute(f'INSERT OR IGNORE INTO "{table}" ({names}) {same}', (row,))
    if random.random() < 0.5:
        number = random.choice((0, -1, 10**9, 9 * 10**18, 2**63 - 1))
        database.execute(f'UPDATE OR IGNORE "{table}" SET rowid = ? WHERE rowid = ?', (number, row))


def _lost_table(database: sqlite3.Connection, table: str, _random: Random) -> None:
    """Lack a table."""
    database.execute(f'DROP TABLE "{table}"')


def _renamed_table(database: sqlite3.Connection, table: str, random: Random) -> None:
    """Call a table something else."""
    name = random.choice((f"{table}_old", f"{table}é", table[:-1] or "x", f"{table}_V2"))
    database.execute(f'ALTER TABLE "{table}" RENAME TO "{name}"')


def _lost_column(database: sqlite3.Connection, table: str, random: Random) -> None:
    """Lack a column."""
    database.execute(f'ALTER TABLE "{table}" DROP COLUMN "{_column(database, table, random)}"')


def _renamed_column(database: sqlite3.Connection, table: str, random: Random) -> None:
    """Call a column something else."""
    column = _column(database, table, random)
    name = random.choice((f"{column}_", f"{column}é", "x"))
    database.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{name}"')


def _retyped_table(database: sqlite3.Connection, table: str, random: Random) -> None:
    """Declare all columns of a table to be of another type, which changes their values."""
    columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
    kind = random.choice(_KINDS)
    declared = ", ".join(f'"{column}" {kind}' for column in columns)
    database.execute(f'ALTER TABLE "{table}" RENAME TO "before it"')
    database.execute(f'CREATE TABLE "{table}" ({declared})')
    database.execute(f'INSERT INTO "{table}" SELECT * FROM "before it"')
    database.execute('DROP TABLE "before it"')


def _view(database: sqlite3.Connection, table: str, random: Random) -> None:
    """Have a view in place of a table: as it was, or of far more rows, or of itself."""
    database.execute(f'ALTER TABLE "{table}" RENAME TO "behind it"')
    of = random.choice(
        (
            'SELECT * FROM "behind it"',
            'SELECT * FROM "behind it" UNION ALL SELECT * FROM "behind it"',
            f'SELECT * FROM "{table}"',
            "SELECT 1",
        ),
    )
    database.execute(f'CREATE VIEW "{table}" AS {of}')


_WAYS: Final = (
    *(_cell, _cell, _cell, _cell, _whole_column, _whole_column, _swapped_columns),
    *(_lost_rows, _repeated_row, _lost_table, _renamed_table, _lost_column, _renamed_column),
    *(_retyped_table, _view),
)
