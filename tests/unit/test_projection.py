"""Which task device work belongs to, against an oracle that looks at every range for every launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from bubblescope import sources
from full import examples
from nsight_maker import UTC, Export


class Range(NamedTuple):
    """A range of one process; those that name no task are there to be ignored."""

    name: str
    start: int
    end: int
    thread: int


class Work(NamedTuple):
    """Device work of one process; `at` None means that its launch is not in the trace."""

    at: int | None
    thread: int
    start: int
    end: int
    table: str
    comm: bool


@dataclass
class Expected:
    """What a reader must find."""

    tasks: dict[str, tuple[int, int, int]]  # name -> start, end, busy
    kernels: list[tuple[int, int]]  # communication kernels that are tasks of their own
    unlaunched: int = 0
    outside: int = 0


NAMES = ["F{i}.{p}.0", "W{i}.{p}.0", "SEND_FORWARD.{i}.{p}.0", "aten::linear, op_id = {i}"]


@st.composite
def ranges(draw: st.DrawFn, process: int) -> list[Range]:
    """Draw ranges on three threads, nested or merely overlapping, no two begun at one moment."""
    starts = draw(st.lists(st.integers(0, 60), unique=True, min_size=1, max_size=8))
    return [
        Range(
            draw(st.sampled_from(NAMES)).format(i=index, p=process),
            start,
            start + draw(st.integers(0, 40)),
            draw(st.integers(0, 2)),
        )
        for index, start in enumerate(sorted(starts))
    ]


@st.composite
def work(draw: st.DrawFn) -> list[Work]:
    """Draw work that overlaps at will, launched anywhere from four threads, or before the trace."""
    drawn = []
    for _ in range(draw(st.integers(1, 20))):
        start = draw(st.integers(1000, 1060))
        at = draw(st.one_of(st.none(), *[st.integers(0, 100)] * 9))
        table = draw(st.sampled_from(["KERNEL", "MEMCPY", "MEMSET"]))
        comm = at is not None and table == "KERNEL" and draw(st.booleans())
        end = start + draw(st.integers(0, 60))
        drawn.append(Work(at, draw(st.integers(0, 3)), start, end, table, comm))
    return drawn


def names_a_task(candidate: Range) -> bool:
    """Say whether a range is of the pipeline."""
    return not candidate.name.startswith("aten")


def owner(one: Work, candidates: list[Range]) -> Range | None:
    """Return the latest-begun open task range: of the launching thread, or else of any."""
    if one.at is None:
        return None
    is_open = [r for r in candidates if r.start <= one.at < r.end and names_a_task(r)]
    own = [r for r in is_open if r.thread == one.thread]
    return max(own or is_open, key=lambda r: r.start, default=None)


def covered(intervals: list[tuple[int, int]]) -> int:
    """Return the length of the union of intervals, moment by moment."""
    return len({moment for start, end in intervals for moment in range(start, end)})


def expect(processes: list[tuple[list[Range], list[Work]]]) -> Expected:
    """Work everything out from the definition alone. Processes without task ranges are no ranks."""
    expected = Expected({}, [])
    for candidates, launched in processes:
        held: dict[str, list[Work]] = {}
        for one in launched:
            winner = owner(one, candidates)
            if winner is not None:
                held.setdefault(winner.name, []).append(one)
            elif one.comm:
                expected.kernels.append((one.start, one.end))
            elif one.at is None:
                expected.unlaunched += 1
            else:
                expected.outside += 1
        for name, items in held.items():
            comm = [(one.start, one.end) for one in items if one.comm]
            other = [(one.start, one.end) for one in items if not one.comm]
            if name.startswith("SEND"):  # its time is the communication; copies, if there is none
                timed = comm or other
            else:
                timed = other
                expected.kernels += comm
            if timed:
                first, last = min(start for start, _ in timed), max(end for _, end in timed)
                expected.tasks[name] = (first, last, covered(timed))
    return expected


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_attribution_agrees_with_looking_at_everything(tmp_path_factory, data):
    export = Export()
    processes = []
    for number in range(data.draw(st.integers(1, 2), label="processes")):
        process = export.process(7 + number, number)  # each counts correlation ids from the same
        drawn = data.draw(ranges(number)), data.draw(work())
        processes.append(drawn)
        for index, (name, start, end, thread) in enumerate(drawn[0]):
            kind = ("pushpop", "startend")[index % 2]
            process.range(name, start, end, thread=thread, kind=kind, registered=index % 3 == 0)
        for one in drawn[1]:
            name = "ncclDevKernel_AllReduce_Sum_f32" if one.comm else "gemm"
            process.work(one.table, one.start, one.end, at=one.at, thread=one.thread, name=name)
    folder = tmp_path_factory.mktemp("forest")
    timeline = sources.load(export.write(folder / "one.sqlite"))
    rows = timeline.tasks.select(
        "name", pl.col("start_ns") - UTC, pl.col("end_ns") - UTC, "busy_ns"
    ).rows()
    lost = {notice.code: notice.lost for notice in timeline.run.warnings}

    # Where no range that names a task launched anything, every device shows all of its work as one.
    whole = [row for row in rows if row[0] == "all device work"]
    rows = [row for row in rows if row not in whole]
    named = [drawn for drawn in processes if any(map(names_a_task, drawn[0]))]
    expected = expect(processes if whole else named)
    if whole:  # what a device does is its communication where it does nothing else
        mixed = [drawn for drawn in processes if not all(one.comm for one in drawn[1])]
        expected.kernels = expect(mixed).kernels
    assert {row[0]: row[1:] for row in rows if not row[0].startswith("nccl")} == expected.tasks
    assert sorted(row[1:3] for row in rows if row[0].startswith("nccl")) == sorted(expected.kernels)
    if whole:
        return  # what ran there is in its task, and not lost
    assert lost.get("kernels-without-launch", 0) == expected.unlaunched
    assert lost.get("kernels-outside-ranges", 0) == expected.outside
