"""The traces of the tutorials are those that their script makes."""

from __future__ import annotations

import importlib.util
import sqlite3
from contextlib import closing

import pytest

from places import ROOT

HERE = ROOT / "examples" / "traces"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    description = importlib.util.spec_from_file_location("make_traces", HERE / "make.py")
    script = importlib.util.module_from_spec(description)
    description.loader.exec_module(script)
    folder = tmp_path_factory.mktemp("made")
    for make in (script.nsight, script.paddle, script.ascend):
        (folder / make.__name__).mkdir()
        make(folder / make.__name__)
    return folder


def content(path):
    """Return what a file holds: the rows of a database, whose bytes depend on SQLite."""
    if path.suffix not in {".db", ".sqlite"} or not path.stat().st_size:
        return path.read_bytes()
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
        return {
            name: connection.execute(f'SELECT * FROM "{name}"').fetchall()
            for name in tables
            if not name.startswith("sqlite_")
        }


@pytest.mark.parametrize("kind", ["nsight", "paddle", "ascend"])
def test_the_traces_are_those_that_the_script_makes(made, kind):
    files = sorted(
        path.relative_to(HERE / kind) for path in (HERE / kind).rglob("*") if path.is_file()
    )
    again = sorted(
        path.relative_to(made / kind) for path in (made / kind).rglob("*") if path.is_file()
    )
    assert files == again
    for name in files:
        assert content(HERE / kind / name) == content(made / kind / name), name
