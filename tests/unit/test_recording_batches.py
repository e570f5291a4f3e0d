"""Batches put together by hand are those that an Arrow library makes of the same tasks."""

from __future__ import annotations

import io

import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bubblescope.model.kinds import Kind, Lane
from bubblescope.record.buffer import Buffer, identity_of, pack_step
from bubblescope.record.timers.timer import CpuTimer
from bubblescope.recording import arrow
from bubblescope.recording.arrow import END
from bubblescope.recording.columns import COLUMNS, Header
from bubblescope.recording.file import Sink
from bubblescope.recording.reader import SCHEMA, read_stream

TYPES = {"text": pa.large_string(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64()}
NUMBER = st.none() | st.integers(0, 30_000)
PLACE = ("stage", "chunk", "microbatch", "peer")
TASK = st.fixed_dictionaries(
    {
        "step": st.none() | st.integers(0, 3),
        "kind": st.sampled_from(list(Kind)),
        "lane": st.sampled_from(list(Lane)),
        **dict.fromkeys(PLACE, NUMBER),
        "times": st.tuples(*[st.integers(0, 2**62)] * 4),
        "name": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    }
)


def buffer(tasks):
    items = []
    for task in tasks:
        step = -1 if task["step"] is None else task["step"]
        place = {name: task[name] for name in PLACE}
        identity = identity_of(task["kind"], lane=task["lane"], **place)
        items += (pack_step(step), identity, *task["times"], task["name"])
    return Buffer(items, None)


def table(tasks):
    """Return the same as Arrow's own library has them."""
    times = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")
    rows = [
        {
            **dict.fromkeys(COLUMNS),
            **{name: task[name] for name in ("step", *PLACE, "name")},
            "kind": task["kind"].value,
            "lane": task["lane"].value,
            **dict(zip(times, task["times"], strict=True)),
        }
        for task in tasks
    ]
    schema = pa.schema([(name, TYPES[kind]) for name, kind in COLUMNS.items()])
    return pa.Table.from_pylist(rows, schema)


@given(st.lists(st.lists(TASK, min_size=1, max_size=20), min_size=1, max_size=3))
def test_they_hold_the_same(tmp_path_factory, blocks):
    path = tmp_path_factory.mktemp("batches") / "rank00000.bubbles"
    written = Sink(path, Header(1, "1", 0, None, "here", 1, None, "boot", 0, "cpu"))
    for tasks in blocks:
        written.write(buffer(tasks).rows(CpuTimer()))
    written.close(complete=True)
    with pyarrow.ipc.open_stream(io.BytesIO(path.read_bytes())) as stream:
        read = stream.read_all()
    read.validate(full=True)
    expected = pa.concat_tables([table(tasks) for tasks in blocks])
    assert read.slice(1).equals(expected)
    rows, torn = read_stream(path.read_bytes())
    assert torn.closed
    assert rows[1:].equals(pl.from_arrow(expected))
    assert dict(rows.schema) == SCHEMA
    assert path.read_bytes().endswith(END)


def test_a_stream_without_tasks_has_its_columns():
    with pyarrow.ipc.open_stream(io.BytesIO(arrow.schema() + END)) as stream:
        columns = stream.read_all().schema
    assert columns == pa.schema([(name, TYPES[kind]) for name, kind in COLUMNS.items()])


def test_a_chunk_that_does_not_fit_is_refused_and_not_wrapped():
    task = {"step": 0, "kind": Kind.FORWARD, "lane": Lane.COMPUTE, "times": (1, 2, 1, 2)}
    task |= dict.fromkeys((*PLACE, "name")) | {"chunk": 40_000}
    with pytest.raises(ValueError, match="the chunk 40000 is more than a recording can hold"):
        buffer([task]).rows(CpuTimer()).encode()
