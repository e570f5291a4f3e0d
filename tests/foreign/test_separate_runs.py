"""Runs that were made one after the other lie in one folder, and are no ranks of one."""

from __future__ import annotations

import pytest

from bubblescope import sources
from bubblescope.model.errors import SourceError
from kineto_maker import BASE, Trace

SECOND = 1_000_000_000


def run_of(folder, name, begins, *, process=77, step=0, comm=False, rank=None):
    """Write what a process recorded that states no rank, of a step that begins at some time."""
    trace = Trace(rank=rank, host="node0", base=BASE + begins)
    trace.range(f"ProfilerStep#{step}", 0, 40_000)
    trace.kernel(5_000, 30_000, at=1_000)
    if comm:
        trace.kernel(30_000, 35_000, at=2_000, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    for event in trace.events:
        if event["pid"] == 77:
            event["pid"] = process
    return trace.write(folder / name)


@pytest.mark.parametrize("apart", [11 * SECOND, 600 * SECOND])
def test_processes_that_ran_one_after_the_other_are_no_ranks(tmp_path, apart):
    for number in range(3):
        run_of(tmp_path, f"run{number}.json", number * apart, process=70 + number)
    with pytest.raises(SourceError, match=r"2 other traces, of processes that ran one after the"):
        sources.load(tmp_path)


@pytest.mark.parametrize(
    ("apart", "more"),
    [
        (0, {}),
        (2 * SECOND, {}),  # clocks of hosts may be so far apart
        (60 * SECOND, {"comm": True}),  # whoever communicates is not alone
    ],
)
def test_processes_that_may_have_run_together_are_ranks(tmp_path, apart, more):
    for number in range(2):
        run_of(tmp_path, f"run{number}.json", number * apart, process=70 + number, **more)
    assert sources.load(tmp_path).ranks["rank"].to_list() == [0, 1]


def test_ranks_that_are_stated_are_believed(tmp_path):
    for number in range(2):
        run_of(tmp_path, f"r{number}.json", number * 60 * SECOND, process=70 + number, rank=number)
    assert sources.load(tmp_path).ranks["rank"].to_list() == [0, 1]


@pytest.mark.parametrize("rank", [None, 0])
def test_two_profilers_of_one_process_that_count_alike_are_two_runs(tmp_path, rank):
    for number in range(2):
        run_of(tmp_path, f"run{number}.json", number * SECOND, step=4, rank=rank)
    with pytest.raises(SourceError, match=r"has step 4, and so has .*run0\.json"):
        sources.load(tmp_path)


def test_a_profiler_that_counts_on_is_one(tmp_path):
    for number in range(2):
        run_of(tmp_path, f"run{number}.json", number * SECOND, step=4 + number)
    timeline = sources.load(tmp_path)
    assert timeline.ranks["rank"].to_list() == [0]
    assert timeline.steps == [4, 5]
