"""What the recorder says, in the language of the job's environment."""
# ruff: noqa: RUF001  Chinese punctuation is what is meant

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from bubblescope.record.job_log import told, warn
from bubblescope.record.notes import Note, why_nothing
from places import ROOT

START = ROOT / "src" / "bubblescope" / "record" / "start.py"
SAID = {
    "C": "nothing will be recorded, and the job goes on",
    "zh_CN.UTF-8": "不会录制任何内容，作业照常继续",
}


@pytest.mark.parametrize("language", SAID)
def test_settings_that_make_no_sense_are_told_of_at_the_start(language):
    done = subprocess.run(
        [sys.executable, "-c", f"import runpy; runpy.run_path({str(START)!r}); print('trained')"],
        env={
            "BUBBLESCOPE_RECORD": "stepz=1:2",
            "LC_ALL": language,
            "PYTHONPATH": ":".join(sys.path),
            "PYTHONUTF8": "1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "trained\n"
    assert done.stderr.count("\n") == 1
    assert SAID[language] in done.stderr
    assert "stepz" in done.stderr


@pytest.mark.parametrize(
    "note",
    [
        None,
        Note(),
        Note(ended=False),
        Note(7),
        Note(0, "torch"),
        Note(0, None, ("optimizer",)),
        Note(0, None, (), "x"),
        Note(7, due=1),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
def test_why_nothing_was_recorded_is_told_in_chinese(note, begun, monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    why = why_nothing([note] if note else [], "10:15", "torch, deepspeed", begun=begun)
    said = told(f"bubblescope: nothing was recorded: {why}")
    assert said.startswith("bubblescope：没有录制到任何内容：")
    assert not re.search("[a-z]{2,} [a-z]{2,} [a-z]{2,}", said), said


def test_a_warning_is_of_the_line_that_asks_for_it(monkeypatch):
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    with pytest.warns(
        RuntimeWarning, match="^bubblescope 已停止录制（设备没有完成最后的任务）；训练照常继续$"
    ) as caught:
        warn(
            "bubblescope stopped recording (the device did not finish the last tasks); "
            "training goes on",
            stacklevel=1,
        )
    assert caught[0].filename == __file__
