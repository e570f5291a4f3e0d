"""Reading takes memory by a factor of what is read, as docs/reliability.md has it, and linear time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
import pytest

import kineto_maker
import nsight_maker
import paddle_maker
import primus_maker
import rocpd_maker
import synthetic
from ascend_maker import Profile
from bounded import MIB, bounded, size_of
from full import FULL
from job_trace_maker import make as make_job
from places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Format(NamedTuple):
    """A format whose traces can be made as long as one likes.

    Attributes:
        write: Writes a trace of so many steps; returns the bytes of its values where they are packed.
        steps: So many that it is some megabytes.
        row: Its row of the table of the documentation.
    """

    write: Callable[[Path, int], int | None]
    steps: int
    row: str


def style(steps):
    return nsight_maker.Style(stages=1, microbatches=8, steps=steps)


def kineto(folder, steps):
    kineto_maker.pipeline(style(steps))[0][0].write(folder / "rank0.json")


def kineto_packed(folder, steps):
    [trace], _, _ = kineto_maker.pipeline(style(steps))
    trace.write(folder / "rank0.json.gz")
    return len(trace.text())


def nsight(folder, steps):
    nsight_maker.pipeline(style(steps))[0][0].write(folder / "r.sqlite")


def nsight_parquet(folder, steps):
    export = nsight_maker.pipeline(style(steps))[0][0]
    export.write_parquet_dir(folder / "r")
    return sum(frame.estimated_size() for frame in export.frames().values())


def rocpd(folder, steps):
    rocpd_maker.pipeline(style(steps))[0][0].write(folder / "r.db")


def ascend(folder, steps):
    profile = Profile(0)
    for step in range(steps):
        profile.step(step, 1000 * step, 1000 * step + 999)
        for at in range(16):
            low, host = 10_000 * step + 500 * at, 1000 * step + 10 * at
            word = "forward_step" if at < 8 else "backward_step"
            profile.range({"name": word}, low, low + 400, host=(host, host + 4))
    profile.write(folder)


def paddle(folder, steps):
    times = [(step, at, 1000 * step + 50 * at) for step in range(steps) for at in range(16)]
    lines = [
        paddle_maker.line("forward" if at < 8 else "backward", at % 8, ms, ms + 40)
        for _, at, ms in times
    ]
    paddle_maker.write(folder, *lines)


def primus(folder, steps):
    orders = primus_maker.interleaved(1, 1, 64)
    primus_maker.dump(folder, orders, chunks=1, iterations=steps)


def job_trace(folder, steps):
    path = folder / "trace-a.parquet"
    make_job(path, replicas=8, steps=2, chunks=1, overlapped=False)
    one = pl.read_parquet(path)
    whole = pl.concat([one.with_columns(pl.col("step") + 2 * at) for at in range(steps)])
    whole.write_parquet(path)
    return whole.estimated_size()


def saved(folder, steps):
    run = synthetic.one_f_one_b(2, 8, steps)
    run.save(folder / "run.bubbles.parquet")
    return run.tasks.estimated_size()


FORMATS = {
    "kineto": Format(kineto, 800, "PyTorch profiler"),
    "kineto, packed": Format(kineto_packed, 800, "PyTorch profiler"),
    "nsight": Format(nsight, 600, "Nsight Systems, SQLite"),
    "nsight, parquet": Format(nsight_parquet, 600, "Nsight Systems, Parquet"),
    "rocpd": Format(rocpd, 400, "rocpd"),
    "ascend": Format(ascend, 1500, "Ascend"),
    "paddle": Format(paddle, 1500, "Paddle"),
    "primus": Format(primus, 300, "Primus"),
    "jobtrace": Format(job_trace, 100, "job traces"),
    "saved": Format(saved, 1500, "saved runs"),
}
ALWAYS = ("kineto", "paddle", "jobtrace")
"""Formats that are tried where not everything is: the streamed one, one of text, one of tables."""


def stated(row):
    """Return the factor that the documentation states."""
    text = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    return int(re.search(rf"^\| {re.escape(row)} \| (\d+) \|", text, re.MULTILINE)[1])


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """What the shortest trace takes: the libraries, and starting them."""
    folder = tmp_path_factory.mktemp("short")
    kineto(folder, 1)
    return bounded("report", "--quiet", folder)


@pytest.mark.parametrize("name", FORMATS if FULL else ALWAYS)
def test_reading_takes_memory_by_the_stated_factor_and_linear_time(tmp_path, name, libraries):
    format_ = FORMATS[name]
    taken = []
    for steps in (format_.steps, 2 * format_.steps):
        folder = tmp_path / str(steps)
        folder.mkdir()
        size = format_.write(folder, steps) or size_of(folder)
        ran = bounded("report", "--quiet", folder, mib=3000)
        assert ran.code == 0, ran.said
        taken.append((size, ran))
    (_, once), (size, twice) = taken
    assert (twice.mib - libraries.mib) * MIB < stated(format_.row) * size
    # Twice as much takes twice as long, and a little for what is measured: starting may have been slow.
    start = min(libraries.seconds, once.seconds)
    assert twice.seconds - start < 2.5 * (once.seconds - start) + 1


def test_the_documentation_states_a_factor_for_each():
    assert all(stated(format_.row) > 0 for format_ in FORMATS.values())
