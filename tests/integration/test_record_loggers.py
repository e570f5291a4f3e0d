"""The recipes of docs/recording.md for other loggers write what each step was."""

from __future__ import annotations

import re
import struct
import time
from collections import defaultdict
from importlib.util import find_spec

import pytest

import bubblescope.record
from bubblescope.record import CpuTimer, Recorder
from full import needs
from places import ROOT

TEXT = (ROOT / "docs" / "recording.md").read_text("utf-8")
RECIPES = {
    name: text
    for text in re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    for name in ("tensorboardX", "wandb")
    if name in text
}
STEPS = 3


def recorded(tmp_path, monkeypatch, recipe):
    """Run a recipe, and steps under what it asks to be called; return these steps' times."""
    asked = {}
    monkeypatch.setattr(bubblescope.record, "instrument", lambda **how: asked.update(how))
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(recipe, "docs/recording.md", "exec"), names)
    seen = []
    with Recorder(tmp_path / "out", rank=0, stages=[0], timer=CpuTimer()) as recorder:
        recorder.on_step(asked["on_step"])
        recorder.on_step(seen.append)
        for _ in range(STEPS):
            with recorder.step():
                for kind in ("forward", "backward"):
                    time.sleep(0.002)
                    with recorder.task(kind, microbatch=0):
                        time.sleep(0.002)
    assert [times.step for times in seen] == list(range(STEPS))
    return names, seen


def test_there_are_the_recipes():
    assert set(RECIPES) == {"tensorboardX", "wandb"}


def test_tensorboard(tmp_path, monkeypatch):
    needs("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    names, seen = recorded(tmp_path, monkeypatch, RECIPES["tensorboardX"])
    names["writer"].close()
    [file] = (tmp_path / "runs" / "rank0").iterdir()
    told, data, at = defaultdict(dict), file.read_bytes(), 0
    while at < len(data):  # a length, its checksum, so many bytes, their checksum
        (size,) = struct.unpack_from("<Q", data, at)
        event = Event.FromString(data[at + 12 : at + 12 + size])
        at += 16 + size
        for value in event.summary.value:
            told[value.tag][event.step] = value.simple_value
    assert told["bubble"] == pytest.approx({times.step: times.bubble for times in seen})
    before = [times.before for times in seen if times.before]
    assert len(before) == STEPS - 1
    for whole in before:
        spent = sum(
            points[whole.step] for tag, points in told.items() if tag.startswith("step_ms/")
        )
        assert spent == pytest.approx(whole.length_ns / 1e6, rel=1e-5)


def test_weights_and_biases_offline(tmp_path, monkeypatch):
    if find_spec("wandb") is None:
        pytest.skip("wandb is not installed")
    for name, value in {"MODE": "offline", "SILENT": "true", "DIR": str(tmp_path)}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    names, seen = recorded(tmp_path, monkeypatch, RECIPES["wandb"])
    names["run"].finish()
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows = [row for row in history(file.read_bytes()) if "bubblescope/step" in row]
    assert [(row["bubblescope/step"], row["bubblescope/bubble"]) for row in rows] == [
        (times.step, pytest.approx(times.bubble)) for times in seen
    ]


def history(data):
    """Yield what was logged, of W&B's file: a log of LevelDB's, of protocol buffers."""
    import json

    from wandb.proto.wandb_internal_pb2 import Record

    at, whole, block = 7, b"", 1 << 15  # after a head of its own
    while at < len(data):
        if block - at % block < 7:  # too little for a head: the block is filled up
            at += block - at % block
            continue
        size, sort = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if sort in {1, 4}:  # a whole record, or the last part of one
            items = Record.FromString(whole).history.item
            whole = b""
            if items:
                yield {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in items
                }
