"""What each task of a run waited for, on runs small enough to work out by hand."""

from __future__ import annotations

import polars as pl
import pytest

from bubblescope import Timeline
from bubblescope.analysis.idle.measured_run import measured_run
from chunked import with_an_empty_chunk


def run_of(*rows):
    """Return a run of forwards: rank (and stage), micro-batch, start and end of each."""
    columns = ["rank", "microbatch", "start_ns", "end_ns"]
    tasks = pl.DataFrame(rows, schema=columns, orient="row")
    return Timeline(
        tasks.with_columns(
            step=0,
            stage="rank",
            kind=pl.lit("forward"),
            lane=pl.lit("compute"),
            name=pl.format("F{}", "microbatch"),
        )
    )


def test_a_run_stays_as_it_is_however_its_tasks_lie_in_memory(monkeypatch):
    timeline = run_of((0, 0, 100, 200), (0, 1, 200, 300), (1, 0, 250, 400))
    chunked = with_an_empty_chunk(timeline.tasks)
    monkeypatch.setattr(timeline, "tasks", chunked)
    before = timeline.tasks.clone().rows()

    measured_run(timeline)

    assert timeline.tasks.rows() == before


@pytest.mark.parametrize(
    ("free_ns", "fastest_ns"),
    [(200, 30), (199, 30), (201, 50)],
    ids=["free as it is sent", "free before", "free after"],
)
def test_the_fastest_transfer_is_the_least_of_those_that_a_free_device_waited_for(
    free_ns, fastest_ns
):
    """F1 comes to rank 1 after 30 ns, F0 after 50; how fast a device is that was busy says nothing."""
    timeline = run_of((0, 0, 0, 100), (0, 1, 100, 200), (1, 0, 150, free_ns), (1, 1, 230, 300))

    run = measured_run(timeline)

    [first, second] = run.delay_ns[run.links].tolist()
    assert (first, second) == (fastest_ns, min(fastest_ns, 30))
    own = dict(
        zip(
            zip(run.rank.tolist(), run.microbatch.tolist(), strict=True),
            run.lag_ns.tolist(),
            strict=True,
        )
    )
    assert own[1, 0] == 50 - fastest_ns
