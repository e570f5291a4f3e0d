"""Integers of SQLite tables that are decoded from pages are those that SQLite reads."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bubblescope.model.errors import SourceError
from bubblescope.model.progress import SILENT
from bubblescope.sources import sqlite_pages
from bubblescope.sources.sqlite import SqliteTables
from bubblescope.sources.sqlite_pages import NotPlainError, Pages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

EDGES = [
    sign * (1 << bits) + more
    for bits in (0, 7, 8, 15, 16, 23, 24, 31, 32, 47, 48, 62)
    for sign in (-1, 1)
    for more in (-1, 0, 1)
] + [None, -(1 << 63), (1 << 63) - 1]
"""Where the bytes that an integer takes change."""

FEW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def made(path: Path, *statements: str, rows: Sequence[Any] = (), into: str = "") -> Path:
    """Write a file by SQLite itself."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        if into:
            connection.executemany(into, rows)
        connection.commit()
    return path


def asked(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


ROOT = 2
"""Page on which the first table of a file begins: the one before lists the tables."""


def decoded(path: Path, places: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return rows of a file's first table as they are decoded from pages."""
    pages = Pages(path)
    parts = pages.parts(ROOT)
    columns = [[], *([] for _ in places)][1:]
    for part in parts:
        for column, found in zip(columns, pages.integers(part, places), strict=True):
            column.extend(found.to_list())
    return list(zip(*columns, strict=True))


@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(EDGES),
            st.text(max_size=20) | st.none() | st.floats(allow_nan=False),
            st.sampled_from(EDGES) | st.integers(-(1 << 63), (1 << 63) - 1),
        ),
        min_size=1,
        max_size=120,
    ),
    size=st.sampled_from([512, 1024, 4096, 65536]),
)
@FEW
def test_integers_of_every_length_between_other_columns(rows, size, tmp_path):
    path = made(
        tmp_path / "a.sqlite",
        f"PRAGMA page_size = {size}",
        "CREATE TABLE t (a INTEGER, b, c INTEGER)",
        rows=rows,
        into="INSERT INTO t VALUES (?, ?, ?)",
    )

    assert decoded(path, [0, 2]) == asked(path, "SELECT a, c FROM t ORDER BY rowid")


@pytest.mark.parametrize("size", [512, 4096, 65536])
@pytest.mark.parametrize("part_bytes", [1 << 12, 1 << 25])
def test_a_table_of_several_levels_with_rows_taken_out_and_put_in(
    tmp_path, monkeypatch, size, part_bytes
):
    monkeypatch.setattr(sqlite_pages, "_PART_BYTES", part_bytes)
    chance = np.random.default_rng(1)
    ids = np.unique(chance.integers(0, 1 << 40, 20_000)).tolist()
    path = made(
        tmp_path / "a.sqlite",
        f"PRAGMA page_size = {size}",
        "CREATE TABLE t (a INTEGER, b INTEGER)",
        rows=[(one, at, one % 1000) for at, one in enumerate(ids)],
        into="INSERT INTO t (rowid, a, b) VALUES (?, ?, ?)",
    )
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM t WHERE a % 7 = 0 OR a BETWEEN 5000 AND 9000")
        connection.execute("INSERT INTO t SELECT a, b FROM t WHERE a % 5 = 0")
        connection.commit()

    assert decoded(path, [0, 1]) == asked(path, "SELECT a, b FROM t ORDER BY rowid")


def test_parts_say_between_which_row_ids_their_rows_lie(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_pages, "_PART_BYTES", 1 << 13)
    path = made(
        tmp_path / "a.sqlite",
        "CREATE TABLE t (a INTEGER)",
        rows=[(at,) for at in range(10_000)],
        into="INSERT INTO t VALUES (?)",
    )
    pages = Pages(path)
    parts = pages.parts(ROOT)

    assert len(parts) > 5
    assert (parts[0].after, parts[-1].last) == (-(1 << 63), (1 << 63) - 1)
    for one, following in pairwise(parts):
        assert one.last == following.after
    for part in parts:
        said = f"SELECT a FROM t WHERE rowid BETWEEN {part.after + 1} AND {part.last}"
        assert pages.integers(part, [0])[0].to_list() == [value for (value,) in asked(path, said)]


def test_a_table_without_rows(tmp_path):
    path = made(tmp_path / "a.sqlite", "CREATE TABLE t (a INTEGER)")

    assert decoded(path, [0]) == []


LONG = "x" * 60  # its type takes two bytes
OVERFLOWING = "x" * 5000

NOT_PLAIN = {
    "text where an integer is wanted": (["CREATE TABLE t (a, b)"], (1, "two")),
    "a float": (["CREATE TABLE t (a, b)"], (1, 2.5)),
    "bytes": (["CREATE TABLE t (a, b)"], (1, b"")),
    "a long text before what is wanted": (["CREATE TABLE t (a, b)"], (LONG, 2)),
    "a row that goes on on other pages": (
        ["CREATE TABLE t (a, b, c DEFAULT '" + OVERFLOWING + "')"],
        (1, 2),
    ),
    "rows of a time when there were fewer columns": (
        [
            "CREATE TABLE t (a)",
            "INSERT INTO t VALUES (1)",
            "ALTER TABLE t ADD COLUMN b INTEGER DEFAULT 5",
        ],
        (1, 2),
    ),
    "row ids below 0, which take nine bytes": (
        ["CREATE TABLE t (a, b)", "INSERT INTO t (rowid, a, b) VALUES (-5, 1, 2)"],
        (1, 2),
    ),
    "a table that is its own index": (
        ["CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER) WITHOUT ROWID"],
        (1, 2),
    ),
}


@pytest.mark.parametrize("what", NOT_PLAIN)
def test_what_only_sqlite_can_read_is_left_to_it(tmp_path, what):
    statements, row = NOT_PLAIN[what]
    path = made(
        tmp_path / "a.sqlite", *statements, rows=[row], into="INSERT INTO t (a, b) VALUES (?, ?)"
    )

    with pytest.raises(NotPlainError):
        decoded(path, [0, 1])


def wide(path: Path, size: int, columns: int, rows: Sequence[Sequence[Any]]) -> Path:
    names = ", ".join(f"c{at}" for at in range(columns))
    return made(
        path,
        f"PRAGMA page_size = {size}",
        f"CREATE TABLE t ({names})",
        rows=rows,
        into=f"INSERT INTO t VALUES ({', '.join('?' * columns)})",
    )


def test_a_row_as_large_as_fits_into_a_page_and_one_a_byte_larger(tmp_path):
    """Of 512 bytes, 477 may be a row: here a header of 12, ten texts and a number of 4."""
    for size in (477, 478):
        texts = ["x" * 57] * 8 + ["x" * (size - 12 - 8 * 57 - 4 - 1), "x"]
        row = [*texts, 1 << 30]
        path = wide(tmp_path / f"{size}.sqlite", 512, 11, [row])
        if size == 477:
            assert decoded(path, [10]) == [(1 << 30,)]
        else:
            with pytest.raises(NotPlainError):
                decoded(path, [10])


def test_a_header_may_take_127_bytes(tmp_path):
    row = [1000 + at for at in range(126)]
    path = wide(tmp_path / "a.sqlite", 4096, 126, [row])

    assert decoded(path, [0, 125]) == [(1000, 1125)]


def test_one_row_whose_header_is_longer(tmp_path):
    numbers = list(range(118))
    rows = [[*numbers, *["x"] * 6], [*numbers, *[LONG] * 6], [*numbers, *["x"] * 6]]
    path = wide(tmp_path / "a.sqlite", 4096, 124, rows)

    with pytest.raises(NotPlainError):
        decoded(path, [0])


def test_texts_of_57_bytes_between_and_of_more_in_one_row(tmp_path):
    rows = [(1, "x" * 57, 2), (3, "", 4)]
    assert decoded(wide(tmp_path / "a.sqlite", 4096, 3, rows), [0, 2]) == [(1, 2), (3, 4)]

    more = wide(tmp_path / "b.sqlite", 4096, 3, [*rows, (5, LONG, 6)])
    assert decoded(more, [0]) == [(1,), (3,), (5,)]
    with pytest.raises(NotPlainError):
        decoded(more, [0, 2])


def damaged(path: Path, at: int, value: int) -> Path:
    data = bytearray(path.read_bytes())
    assert data[at] != value
    data[at] = value
    path.write_bytes(data)
    return path


class TestDamage:
    """What SQLite would notice."""

    @pytest.fixture
    def path(self, tmp_path):
        """A table of three levels: its first page is the second of the file."""
        return made(
            tmp_path / "a.sqlite",
            "PRAGMA page_size = 512",
            "CREATE TABLE t (a INTEGER, b INTEGER, c INTEGER)",
            rows=[(at, 1000, 10**6) for at in range(20_000)],
            into="INSERT INTO t VALUES (?, ?, ?)",
        )

    @staticmethod
    def levels(path: Path) -> tuple[list[int], list[int]]:
        """Return the numbers of interior pages below the first one, and of leaves."""
        kinds = np.frombuffer(path.read_bytes(), np.uint8)[::512]
        return (
            [int(page) + 1 for page in np.flatnonzero(kinds == 5) if page != 1],
            [int(page) + 1 for page in np.flatnonzero(kinds == 13)],
        )

    def test_none(self, path):
        assert decoded(path, [0]) == [(at,) for at in range(20_000)]

    def test_a_leaf_that_is_none(self, path):
        _, leaves = self.levels(path)
        with pytest.raises(NotPlainError):
            decoded(damaged(path, (leaves[-1] - 1) * 512, 5), [0])

    def test_an_interior_page_that_is_none(self, path):
        interior, _ = self.levels(path)
        assert len(interior) > 1
        with pytest.raises(NotPlainError):
            decoded(damaged(path, (interior[-1] - 1) * 512, 13), [0])

    def test_row_ids_that_are_not_in_order(self, path):
        interior, _ = self.levels(path)
        page = path.read_bytes()[(interior[0] - 1) * 512 :][:512]
        cell = int.from_bytes(page[12:14], "big")  # a page's number, and the row id
        with pytest.raises(NotPlainError):
            decoded(damaged(path, (interior[0] - 1) * 512 + cell + 4, 0xFF), [0])

    def test_pages_that_refer_to_themselves(self, path):
        """Each level would have thirty times the pages of the one above, for ever."""
        data = bytearray(path.read_bytes())
        start = (ROOT - 1) * 512
        count = int.from_bytes(data[start + 3 : start + 5], "big")
        cells = [start + 12 + 2 * at for at in range(count)]
        at = [start + int.from_bytes(data[cell : cell + 2], "big") for cell in cells]
        for child in [start + 8, *at]:
            data[child : child + 4] = ROOT.to_bytes(4, "big")
        for cell in at:
            data[cell + 4] = 0  # a row id: so none is out of order
        path.write_bytes(data)
        with pytest.raises(NotPlainError):
            decoded(path, [0])

    @pytest.mark.parametrize("column", [1, 2, 3])
    def test_a_type_with_which_a_row_would_be_longer_or_shorter(self, path, column):
        """Also of a column that is not wanted: what is would be at another place."""
        _, leaves = self.levels(path)
        page = path.read_bytes()[(leaves[5] - 1) * 512 :][:512]
        cell = int.from_bytes(page[8:10], "big")
        start = (leaves[5] - 1) * 512 + cell
        assert page[cell + 3 if page[cell + 1] > 127 else cell + 2] == 4  # bytes of the header
        header = start + (3 if page[cell + 1] > 127 else 2)
        with pytest.raises(NotPlainError):
            decoded(damaged(path, header + column, 6), [0])

    def test_a_page_beyond_the_file(self, path):
        path.write_bytes(path.read_bytes()[: -512 * 3])
        with pytest.raises(NotPlainError):
            decoded(path, [0])


def test_a_file_with_bytes_of_an_extension_on_each_page_is_left_to_it(tmp_path):
    path = made(tmp_path / "a.sqlite", "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)")

    with pytest.raises(NotPlainError):
        Pages(damaged(path, 20, 8)).parts(ROOT)


def test_a_long_text_behind_what_is_wanted_is_none_of_its_business(tmp_path):
    rows = [(at, "x" * at) for at in range(0, 400, 7)]
    path = made(
        tmp_path / "a.sqlite",
        "CREATE TABLE t (a INTEGER, b TEXT)",
        rows=rows,
        into="INSERT INTO t VALUES (?, ?)",
    )

    assert decoded(path, [0]) == [(at,) for at, _ in rows]


def tables(path: Path) -> SqliteTables:
    return SqliteTables(path, SILENT, large=["t"], small=[])


def by_sqlite(path: Path, columns: list[str], monkeypatch: pytest.MonkeyPatch) -> pl.DataFrame:
    """Return what is read if no page is decoded."""

    def refuse(*_: Any) -> Any:
        raise NotPlainError

    with monkeypatch.context() as patch:
        patch.setattr(Pages, "parts", refuse)
        return tables(path).read("t", columns)


class TestTables:
    """What is read of a file as a whole."""

    @pytest.fixture
    def path(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sqlite_pages, "_PART_BYTES", 1 << 13)
        return made(
            tmp_path / "a.sqlite",
            "CREATE TABLE t (start INTEGER, note, end INTEGER)",
            rows=[(at, None, at + 5) for at in range(5000)],
            into="INSERT INTO t VALUES (?, ?, ?)",
        )

    def test_columns_come_in_the_order_asked_for_and_missing_ones_are_null(self, path, monkeypatch):
        columns = ["end", "deviceId", "start"]
        found = tables(path).read("t", columns)

        assert found.columns == columns
        assert found["end"].to_list() == list(range(5, 5005))
        assert found["deviceId"].null_count() == 5000
        assert found.equals(by_sqlite(path, columns, monkeypatch))

    def test_pages_are_decoded_where_all_is_integers(self, path, monkeypatch):
        monkeypatch.setattr(
            SqliteTables, "_query", lambda *_: pytest.fail("SQLite was asked for the rows")
        )

        assert tables(path).read("t", ["start", "end"]).height == 5000

    def test_a_part_that_is_not_plain_is_read_by_sqlite_alone(self, path, monkeypatch):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE t SET note = ? WHERE rowid = 2500", ["x" * 3000])
            connection.execute("UPDATE t SET start = NULL WHERE rowid = 4000")
            connection.commit()
        queries, query = [], SqliteTables._query
        monkeypatch.setattr(
            SqliteTables, "_query", lambda self, asked: queries.append(asked) or query(self, asked)
        )
        found = tables(path).read("t", ["start", "end"])

        assert len(queries) == 1
        assert found["end"].to_list() == list(range(5, 5005))
        assert found["start"][3999] is None

    def test_a_column_that_is_the_row_id_stands_elsewhere(self, tmp_path):
        path = made(
            tmp_path / "a.sqlite",
            "CREATE TABLE t (start INTEGER PRIMARY KEY, end INTEGER)",
            rows=[(3, 4), (7, 8)],
            into="INSERT INTO t VALUES (?, ?)",
        )

        assert tables(path).read("t", ["start", "end"]).rows() == [(3, 4), (7, 8)]

    def test_a_column_that_is_computed_stands_nowhere(self, tmp_path):
        path = made(
            tmp_path / "a.sqlite",
            "CREATE TABLE t (twice AS (start * 2) VIRTUAL, start INTEGER, end INTEGER)",
            rows=[(3, 4), (7, 8)],
            into="INSERT INTO t VALUES (?, ?)",
        )

        assert tables(path).read("t", ["start", "end"]).rows() == [(3, 4), (7, 8)]

    def test_a_file_without_bytes_has_no_tables(self, path):
        path.write_bytes(b"")

        assert tables(path).read("t", ["start"]).is_empty()

    def test_rows_in_a_log_beside_the_file_are_read(self, path):
        writer = sqlite3.connect(path)
        try:
            writer.execute("PRAGMA journal_mode = WAL")
            writer.execute("INSERT INTO t VALUES (9000, NULL, 9001)")
            writer.commit()

            assert tables(path).read("t", ["start", "end"]).row(-1) == (9000, 9001)
        finally:
            writer.close()

    @pytest.mark.parametrize("seed", range(4))
    def test_damage_is_what_it_is_to_sqlite(self, path, monkeypatch, seed):
        """Whatever SQLite refuses is refused, and nothing else is read than what it reads."""
        chance, whole = np.random.default_rng(seed), path.read_bytes()

        def read(how: Any) -> pl.DataFrame | None:
            try:
                return how()
            except SourceError:
                return None

        for _ in range(60):
            data = bytearray(whole)
            data[int(chance.integers(100, len(data)))] = int(chance.integers(256))
            path.write_bytes(data)
            ours = read(lambda: tables(path).read("t", ["start", "end"]))
            theirs = read(lambda: by_sqlite(path, ["start", "end"], monkeypatch))

            assert ours is None or (theirs is not None and ours.equals(theirs))
