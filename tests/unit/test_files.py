"""Files are written wholly or not at all."""

from __future__ import annotations

import errno
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import bubblescope
from bubblescope.cli import main
from bubblescope.facade import write
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.files import replacing
from bubblescope.render.artefacts import pipeline_profile
from bubblescope.render.formats import FORMATS, agree
from bubblescope.schedules import generate, torch_csv
from synthetic import one_f_one_b

full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device is always full")  # noqa: PTH110


class TestReplacing:
    def test_a_file_that_is_replaced_keeps_its_permissions(self, tmp_path):
        path = tmp_path / "run.csv"
        path.write_text("old")
        path.chmod(0o640)
        with replacing(path) as partial:
            assert stat.S_IMODE(partial.stat().st_mode) == 0o640
            partial.write_text("new")
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o640)

    def test_a_new_file_has_the_permissions_that_new_files_have(self, tmp_path):
        (tmp_path / "plain").write_text("")
        with replacing(tmp_path / "run.csv") as partial:
            partial.write_text("new")
        assert (tmp_path / "run.csv").stat().st_mode == (tmp_path / "plain").stat().st_mode

    def test_nobody_can_say_beforehand_what_is_written_to(self, tmp_path):
        names = set()
        for _ in range(10):
            with replacing(tmp_path / "run.csv") as partial:
                names.add(partial.name)
        assert len(names) == 10

    @pytest.mark.parametrize("letter", ["n", "\u6f22"])
    def test_the_longest_name_of_a_file_will_do(self, tmp_path, letter):
        path = tmp_path / (letter * (255 // len(letter.encode())))
        with replacing(path) as partial:
            partial.write_text("new")
        assert path.read_text() == "new"

    def test_a_file_that_is_read_only_stays(self, tmp_path, monkeypatch):
        if os.geteuid() == 0:  # who may write anything
            monkeypatch.setattr(os, "access", lambda *_: False)
        path = tmp_path / "run.csv"
        path.write_text("mine")
        path.chmod(0o400)
        with pytest.raises(PermissionError), replacing(path):
            pass
        assert path.read_text() == "mine"
        assert list(tmp_path.iterdir()) == [path]

    def test_an_error_of_the_system_names_the_file(self, tmp_path):
        path = tmp_path / "none" / "run.csv"
        with pytest.raises(FileNotFoundError) as raised, replacing(path):
            pass
        assert raised.value.filename == str(path)


def writers(tmp_path):
    """Each way of ours to write a file: its path, and what writes it."""
    timeline = one_f_one_b()
    ranks = timeline.ranks.with_columns(device="rank")
    placed = timeline.described(ranks, timeline.run)
    found = {
        f"run{known.suffix}": lambda path, name=name: write(timeline, path, to=name)
        for name, known in FORMATS.items()
    }
    found["saved.parquet"] = timeline.save
    found["plan.csv"] = lambda path: torch_csv.write(generate("1f1b", 4, 8), path)
    found["pipeline_profile.json"] = lambda path: pipeline_profile.write(placed, path.parent)
    return {tmp_path / name: act for name, act in found.items()}


def test_on_a_full_disk_each_output_ends_in_a_sentence_and_what_was_there_stays(tmp_path):
    """As of a disk that fills up while it is written: files may not grow beyond some bytes."""
    written = writers(tmp_path)
    for path in written:
        path.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    outcomes = {}
    for path, act in written.items():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
        try:
            act(path)
        except OSError as error:
            outcomes[path] = (error.errno, error.filename)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path: path.read_text() for path in written} == dict.fromkeys(written, "old")
    assert sorted(tmp_path.iterdir()) == sorted(written)
    assert outcomes == {path: (errno.EFBIG, str(path)) for path in written}


@pytest.mark.parametrize("name", sorted(FORMATS))
@full
def test_a_command_says_in_a_sentence_that_a_disk_is_full(tmp_path, name, monkeypatch, capsys):
    run = one_f_one_b().save(tmp_path / "run.parquet")
    command = ["export", str(run), "-q", "--to", name, "-o", "/dev/full"]
    monkeypatch.setattr(sys, "argv", ["bubblescope", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip() == (
        "error  /dev/full: No space left on device; make room, or write to another place"
    )


@full
def test_printing_to_what_is_full_is_told_of():
    command = [sys.executable, "-m", "bubblescope", "schedules"]
    with open("/dev/full", "w") as nowhere:  # noqa: PTH123
        done = subprocess.run(
            command, stdout=nowhere, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr.strip().startswith("error  No space left on device")


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_no_format_is_written_under_the_name_of_another(tmp_path, name):
    run = bubblescope.simulate("1f1b", devices=2, microbatches=2)
    others = {known.suffix for known in (FORMATS[one] for one in FORMATS)} - {FORMATS[name].suffix}
    for suffix in (*others, ".jpg", ".xlsx", ".zip", ".PNG"):
        path = tmp_path / f"run{suffix}"
        if path.suffix.lower() == Path(f"x{FORMATS[name].suffix}").suffix:
            continue  # such as .json, which both of two formats end in
        with pytest.raises(BubblescopeError, match="has the ending of a"):
            run.export(path, to=name)
        with pytest.raises(BubblescopeError, match="has the ending of a"):
            agree(path, name)
    assert list(tmp_path.iterdir()) == []
