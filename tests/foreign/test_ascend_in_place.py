"""`bubblescope ascend --in-place`: whenever it ends, all profiles have their chart or none has."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bubblescope.render.artefacts import step_task_info
from charting import traced, write, write_until

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["bubblescope.render.artefacts.step_task_info", "polars.selectors"])
KILLS = 20


@pytest.fixture
def folder(tmp_path):
    """A folder in memory, where there is one: on a disk, to be sure that all is written takes long."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory) as made:
        yield Path(made)


def databases(folder, ranks, logged=()):
    """Databases of some ranks, some with a write-ahead log, each with a send and no chart."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{rank}.db" for rank in range(ranks)]
    for rank, path in enumerate(paths):
        with closing(sqlite3.connect(path)) as connection:
            if rank in logged:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE COMMUNICATION_OP (opId INTEGER)")
            connection.execute("INSERT INTO COMMUNICATION_OP VALUES (1)")
            connection.commit()
    return paths


def charted(path):
    """Whether a database has its chart, as whoever opens it next sees it."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        if tables == {"COMMUNICATION_OP"}:
            assert connection.execute("SELECT * FROM COMMUNICATION_OP").fetchall() == [(1,)]
            return False
        assert connection.execute("SELECT * FROM StepTaskInfo").fetchall() == [("FP", 0, 1, 0)]
        linked = connection.execute("SELECT * FROM COMMUNICATION_OP").fetchall()
        assert linked == [(1, "a_0_1_0")]
        return True


@pytest.mark.parametrize("logged", [(), (0, 2)])
def test_killed_at_any_statement_it_leaves_all_or_nothing(folder, logged):
    outcomes, killed = [], True
    while killed:
        paths = databases(folder / "in", 3, logged)
        child = CONTEXT.Process(target=write_until, args=(paths, len(outcomes)))
        child.start()
        child.join()
        killed = child.exitcode == -signal.SIGKILL
        [outcome] = {charted(path) for path in paths}
        outcomes.append(outcome)
        shutil.rmtree(folder / "in")
    assert len(outcomes) > 20
    assert outcomes == sorted(outcomes)  # nothing, until it is all
    assert outcomes[0] is False
    assert outcomes[-1] is True


def test_killed_at_any_moment_it_leaves_all_or_nothing(folder):
    """While it commits, too: that is one statement, which of many databases takes a while."""
    outcomes = []
    for kill in range(KILLS):
        paths = databases(folder / "in", step_task_info._TOGETHER)
        began = time.monotonic()
        child = CONTEXT.Process(target=write, args=(paths,))
        child.start()
        if not kill:  # the first one may end, to see how long that takes
            child.join()
            took = time.monotonic() - began
        child.join(took * kill / KILLS)
        child.kill()
        child.join()
        [outcome] = {charted(path) for path in paths}
        outcomes.append(outcome)
        shutil.rmtree(folder / "in")
    assert outcomes[0] is True


@pytest.mark.parametrize("ranks", [1, 11, 12, 25])
def test_any_number_of_databases_is_written(folder, ranks):
    paths = databases(folder, ranks)
    write(paths)
    assert all(charted(path) for path in paths)
    assert sorted(folder.iterdir()) == sorted(paths)


@pytest.mark.parametrize("read", [0, 11])
def test_one_that_is_read_by_somebody_keeps_all_as_they_were(folder, monkeypatch, read):
    monkeypatch.setattr(step_task_info, "_PATIENCE_S", 0.1)
    paths = databases(folder, 12)
    before = [path.read_bytes() for path in paths]
    with closing(sqlite3.connect(paths[read], isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM sqlite_master").fetchall()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            write(paths)
    assert [path.read_bytes() for path in paths] == before


def test_a_database_keeps_its_write_ahead_log(folder):
    paths = databases(folder, 3, logged=(0, 1))
    write(paths)
    modes = []
    for path in paths:
        with closing(sqlite3.connect(path)) as connection:
            modes += connection.execute("PRAGMA journal_mode").fetchone()
    assert modes == ["wal", "wal", "delete"]
    assert all(charted(path) for path in paths)


def test_what_interrupts_waits_until_all_is_committed(folder, monkeypatch):
    """Of more databases than one transaction has, else only some would be."""
    paths = databases(folder, 25)

    def interrupting(statement):
        if statement == "COMMIT":
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(sqlite3, "connect", traced(interrupting))
    with pytest.raises(KeyboardInterrupt):
        write(paths)
    monkeypatch.undo()
    assert all(charted(path) for path in paths)
