"""Files of Parquet are asked what they claim to hold before they are read, each as it is now."""

from __future__ import annotations

import os

import polars as pl
import pytest

from bubblescope.model import parquet


@pytest.fixture
def looked(monkeypatch):
    """The files whose heads were looked at."""
    paths, plain = [], parquet.claimed_size
    monkeypatch.setattr(
        parquet, "claimed_size", lambda path, *more: (paths.append(path), plain(path, *more))[1]
    )
    return paths


def rows(path):
    return parquet.read(path)["number"].to_list()


def test_an_unchanged_file_is_looked_at_once_whichever_columns_are_read(tmp_path, looked):
    path = tmp_path / "rows.parquet"
    pl.DataFrame({"number": [1, 2], "name": ["a", "b"]}).write_parquet(path)
    assert rows(path) == rows(path) == parquet.read(path, ["number"])["number"].to_list()
    assert looked == [path]


def test_a_file_that_changed_is_looked_at_anew(tmp_path, looked):
    path = tmp_path / "rows.parquet"
    pl.DataFrame({"number": [1, 2]}).write_parquet(path)
    assert rows(path) == [1, 2]
    other = tmp_path / "other.parquet"
    pl.DataFrame({"number": [3]}).write_parquet(other)
    other.replace(path)
    assert rows(path) == [3]
    os.utime(path, ns=(1, 1))  # as if it had been written to
    assert rows(path) == [3]
    assert looked == [path] * 3
