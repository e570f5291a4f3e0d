"""Tables, and how every file gets to its place."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys

import polars as pl
import pytest

from bubblescope.facade import write
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.files import replacing
from bubblescope.render.formats import FORMATS
from synthetic import HOSTILE, hostile, staggered


def test_unknown_values_are_null_in_json_and_empty_in_csv(tmp_path):
    timeline = staggered()
    tasks = json.loads(write(timeline, tmp_path / "run.json", to="json").read_text())["tasks"]
    assert tasks[0]["peer"] is None
    assert tasks[0]["busy_ns"] is None
    with write(timeline, tmp_path / "run.csv", to="csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert first["peer"] == ""
    assert list(first) == timeline.tasks.columns


def test_kinds_and_lanes_are_words_in_every_table(tmp_path):
    timeline = staggered()
    written = pl.read_csv(write(timeline, tmp_path / "run.csv", to="csv"))
    assert set(written["kind"]) == {"forward", "send_forward", "recv_forward", "gc"}
    assert set(written["lane"]) == {"compute", "comm", "host"}


def test_hostile_text_comes_back_unchanged(tmp_path):
    written = json.loads(write(hostile(), tmp_path / "run.json", to="json").read_text())
    assert {task["name"] for task in written["tasks"]} == {HOSTILE}
    assert {rank["host"] for rank in written["ranks"]} == {HOSTILE}


def test_an_unknown_format_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(
        BubblescopeError, match="'docx' is not an output format; the formats are perfetto"
    ):
        write(staggered(), tmp_path / "run.docx", to="docx")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_missing_folder_is_an_os_error(tmp_path, name):
    with pytest.raises(FileNotFoundError):
        write(staggered(), tmp_path / "none" / "run", to=name)


def test_importing_the_registry_imports_no_writer():
    code = (
        "import sys, bubblescope.render.formats; "
        "print([m for m in sys.modules if m.startswith('bubblescope.render.formats.')], "
        "'perfetto' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[0] == "[] False"


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path):
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    link.symlink_to(real.name)
    with replacing(link) as partial:
        partial.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["link.csv", "real.csv"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # there already, or the writer would wait
    with replacing(pipe) as partial:
        partial.write_text("through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()


def test_an_interrupted_write_leaves_nothing(tmp_path):
    path = tmp_path / "run.svg"

    def interrupted() -> None:
        with replacing(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
