"""One real run measured two ways: by our recorder, and by torch.profiler, which names little."""

from __future__ import annotations

import os
import subprocess
import sys

import polars as pl
import pytest

from bubblescope import sources
from bubblescope.analysis.schedule.recognise import recognise
from full import needs
from places import ROOT

needs("torch")

EXAMPLE = ROOT / "examples" / "torch-pipelining" / "record.py"
PASSES = ["forward", "backward", "backward_input", "backward_weight"]


OURS = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "LoopedBFS": "looped-bfs",
    "Interleaved1F1B": "interleaved-1f1b",
    "InterleavedZeroBubble": "interleaved-zb",
    "ZBVZeroBubble": "zb-v",
    "DualPipeV": "dualpipev",
}


@pytest.mark.parametrize("schedule", OURS)
def test_the_profilers_tasks_are_the_recorders(tmp_path, schedule):
    command = [sys.executable, str(EXAMPLE), "--schedule", schedule, "--profile"]
    sizes = ["--ranks", "2", "--microbatches", "4", "--steps", "2", "-o", str(tmp_path)]
    subprocess.run([*command, *sizes], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    recorded = sources.load(*tmp_path.glob("*.bubbles"))
    profiled = sources.load(*tmp_path.glob("*.json.gz"))

    for timeline in (recorded, profiled):
        seen = recognise(timeline)
        assert OURS[schedule] in {seen.schedule, *seen.equals}
        assert seen.departures == ()

    if schedule == "DualPipeV":
        return  # the profile has overlapped pairs, the recorder their halves

    place = ["rank", "step", "kind", "stage", "microbatch"]
    known = recorded.tasks.filter(pl.col("kind").is_in(PASSES))
    found = profiled.tasks.filter(pl.col("kind").is_in(PASSES))
    # The first stage's input gradient has no input: no operator runs, and there is no task.
    empty = (pl.col("kind") == "backward_input") & (pl.col("stage") == 0)
    expected = known.filter(~empty).select(place).sort(place)
    assert found.select(place).sort(place).rows() == expected.rows()
    # Operators lie inside of what the recorder times, up to the difference of the two clocks.
    both = known.join(found, on=place, suffix="_found").select(
        early=pl.col("start_ns") - pl.col("start_ns_found"),
        late=pl.col("end_ns_found") - pl.col("end_ns"),
        overlap=pl.min_horizontal("end_ns", "end_ns_found")
        - pl.max_horizontal("start_ns", "start_ns_found"),
    )
    assert both["overlap"].min() > 0
    assert both.select(pl.max_horizontal("early", "late").median()).item() < 5_000_000
