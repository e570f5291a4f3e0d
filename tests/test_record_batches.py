"""Batches put together by hand are those that Polars would have made of the same tasks."""

from __future__ import annotations

import io

import polars as pl
import pyarrow.ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope.model.kinds import Kind, Lane
from bubblescope.record import Recorder
from bubblescope.record.buffer import Buffer, pack_step, place_of
from bubblescope.record.timers.timer import CpuTimer
from bubblescope.recording import arrow as batches
from bubblescope.recording.arrow import END
from bubblescope.recording.columns import Header
from bubblescope.recording.file import Sink
from bubblescope.recording.reader import read_stream

NUMBER = st.none() | st.integers(0, 30_000)
TASK = st.tuples(
    st.integers(-1, 3),
    st.builds(
        place_of,
        st.sampled_from(list(Kind)),
        stage=NUMBER,
        chunk=NUMBER,
        microbatch=NUMBER,
        peer=NUMBER,
        lane=st.none() | st.sampled_from(list(Lane)),
    ),
    st.tuples(*[st.integers(0, 2**62)] * 4),
    st.none() | st.text(st.characters(exclude_categories=["Cs"])),
)


def buffer(tasks):
    items = []
    for step, place, times, name in tasks:
        items += (pack_step(step), place, *times, name)
    return Buffer(items, None)


@given(st.lists(st.lists(TASK, min_size=1, max_size=20), min_size=1, max_size=3))
def test_they_hold_the_same(tmp_path_factory, blocks):
    path = tmp_path_factory.mktemp("batches") / "rank00000.bubbles"
    written = Sink(path, Header(1, "1", 0, None, "here", 1, None, "boot", 0, "cpu"))
    for tasks in blocks:
        written.append(buffer(tasks).batch(CpuTimer()))
    written.close(complete=True)
    rows, torn = read_stream(path.read_bytes())
    assert torn.closed
    assert rows[1:].equals(pl.concat([buffer(tasks).frame(CpuTimer()) for tasks in blocks]))
    with pyarrow.ipc.open_stream(io.BytesIO(path.read_bytes())) as stream:
        stream.read_all().validate(full=True)
    assert path.read_bytes().endswith(END)


def test_a_chunk_that_does_not_fit_is_refused_and_not_wrapped():
    task = (0, place_of(Kind.FORWARD, chunk=40_000), (1, 2, 1, 2), None)
    with pytest.raises(ValueError, match="the chunk 40000 is more than a recording can hold"):
        buffer([task]).batch(CpuTimer())


def test_where_polars_makes_them_otherwise_frames_are_written(tmp_path, monkeypatch):
    def another():
        raise ValueError("another number of buffers in a record batch")

    monkeypatch.setattr(batches, "_template", another)
    assert not batches.usable()
    with Recorder(tmp_path, rank=0) as recorder, recorder.step(), recorder.task("forward"):
        pass
    rows, torn = read_stream((tmp_path / "rank00000.bubbles").read_bytes())
    assert (rows["kind"].to_list(), torn.closed) == (["header", "forward"], True)
