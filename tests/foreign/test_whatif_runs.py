"""What a recording of one of torch's schedules says of others, beside what these then take.

`benchmarks/whatif.py matrix` asks the same of all seven, and for longer.
"""

from __future__ import annotations

from itertools import permutations

import pytest

import bubblescope
from bubblescope.schedules import generate
from bubblescope.schedules.simulate import Costs, simulate
from full import needs
from sleeping import SCHEDULES, Job, run

needs("torch")

ASKED = ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")
TIMES_MS = (30.0, 36.0, 24.0)


def nominal_ns(job: Job) -> float:
    """Return what a step takes if nobody sleeps longer than asked for."""
    name = SCHEDULES[job.schedule]
    chunks = 2 if job.schedule == "Interleaved1F1B" else None
    layers = len(job.layers) // job.stages
    f, b, w = (round(layers * time * 1e6) for time in job.times_ms)
    costs = Costs(f, b, w)
    timeline = simulate(generate(name, job.ranks, job.microbatches, chunks=chunks), costs)
    tasks = timeline.tasks.filter(lane="compute")
    return float(tasks["end_ns"].max() - tasks["start_ns"].min())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    jobs = {folder / name: Job(name, steps=2, times_ms=TIMES_MS) for name in ASKED}
    run(jobs, at_once=len(jobs))
    return {name: bubblescope.load(folder / name) for name in ASKED}


def test_each_schedule_takes_what_the_others_say(recorded):
    steps = {
        name: trace.whatif(lambda run: run.microbatches(12)).step_ns
        for name, trace in recorded.items()
    }
    for now, then in permutations(ASKED, 2):
        name = SCHEDULES[then]
        chunks = 2 if name == "interleaved-1f1b" else None
        (said,) = (
            recorded[now]
            .whatif(lambda run, name=name, chunks=chunks: run.schedule(name, chunks))
            .predictions
        )
        # By how much longer they slept than asked for is the machine's, in either run.
        late = max(steps[one] / nominal_ns(Job(one, times_ms=TIMES_MS)) - 1 for one in (now, then))
        best = said.predicted_ns if said.best_ns is None else said.best_ns
        assert late >= 0
        assert best * (1 - said.error - late) <= steps[then]
        assert steps[then] <= said.predicted_ns * (1 + said.error + late)
        # Nobody knows how a backward splits that was recorded whole.
        unknown = then == "ZBVZeroBubble"
        assert said.best_ns is not None or not unknown
        assert ("% of a backward" in said.best_if) == unknown
        assert said.error <= 0.1 + late
