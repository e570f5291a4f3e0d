"""One real run measured two ways: by our recorder, and by torch.profiler, which names little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from decimal import Decimal

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


RANKS, MICROBATCHES, STEPS = 2, 4, 2
TOGETHER = """
import importlib.util, sys
from argparse import Namespace
from pathlib import Path

spec = importlib.util.spec_from_file_location("example", sys.argv[1])
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)

def train(rank, sizes, folders):
    for folder in folders:
        options = Namespace(schedule=folder.name, output=folder, profile=True, **sizes)
        example.train(rank, options, str(folder / "store"))

if __name__ == "__main__":
    ranks, microbatches, steps = map(int, sys.argv[2:5])
    sizes = {"ranks": ranks, "microbatches": microbatches, "steps": steps}
    example.multiprocessing.spawn(train, (sizes, list(map(Path, sys.argv[5:]))), ranks)
"""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """What the example records of each schedule, one after the other in processes that start once."""
    folder = tmp_path_factory.mktemp("together")
    script = folder / "together.py"
    script.write_text(TOGETHER)
    folders = [folder / schedule for schedule in OURS]
    for each in folders:
        each.mkdir()
    command = [sys.executable, str(script), str(EXAMPLE)]
    sizes = map(str, (RANKS, MICROBATCHES, STEPS))
    subprocess.run([*command, *sizes, *map(str, folders)], check=True, env=ENVIRONMENT)
    return folder


@pytest.mark.parametrize("schedule", OURS)
def test_the_profilers_tasks_are_the_recorders(together, schedule):
    check(together / schedule, schedule)


def test_the_example_records_and_profiles(tmp_path):
    command = [sys.executable, str(EXAMPLE), "--schedule", "1F1B", "--profile", "-o", str(tmp_path)]
    sizes = {"--ranks": RANKS, "--microbatches": MICROBATCHES, "--steps": STEPS}
    options = [str(part) for pair in sizes.items() for part in pair]
    subprocess.run([*command, *options], check=True, env=ENVIRONMENT)
    check(tmp_path, "1F1B")


def check(folder, schedule):
    """Compare the profiler's tasks of a run with those of our recorder."""
    recorded = sources.load(*folder.rglob("*.bubbles"))
    profiled = sources.load(*folder.glob("*.json.gz"))

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


EVALUATING = """
import sys, torch
from torch.profiler import profile, record_function

model = torch.nn.Sequential(
    torch.nn.Conv1d(4, 8, 3), torch.nn.BatchNorm1d(8), torch.nn.Flatten(), torch.nn.Linear(112, 8)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
inputs, wanted = torch.randn(8, 4, 16), torch.zeros(8, dtype=torch.long)

def train():
    with record_function("training"):
        loss = torch.nn.functional.cross_entropy(model(inputs * 2), wanted)
    loss.backward()
    optimizer.step()

def evaluate(off):
    with record_function("evaluating"), off():
        for _ in range(2):
            model(inputs * 2).argmax(1).eq(wanted).sum()

mixed = torch.autocast("cpu", torch.bfloat16, enabled=sys.argv[2] == "mixed")
with profile() as profiled, mixed:
    for off in (torch.no_grad, torch.inference_mode):
        evaluate(off)
        train()
        train()
    evaluate(torch.no_grad)
profiled.export_chrome_trace(sys.argv[1])
"""


@pytest.mark.parametrize("precision", ["single", "mixed"])
def test_an_evaluation_is_told_from_the_training_around_it(tmp_path, precision):
    """Of the very first operators of a process too, whose sequence number is 0."""
    path = tmp_path / "t.json"
    subprocess.run([sys.executable, "-c", EVALUATING, str(path), precision], check=True)
    document = json.loads(path.read_text(), parse_float=Decimal)
    base = document["baseTimeNanoseconds"]
    ranges = {"training": [], "evaluating": []}
    for event in document["traceEvents"]:
        if event.get("cat") == "user_annotation" and event["name"] in ranges:
            start, length = (int(1000 * event[key]) for key in ("ts", "dur"))
            ranges[event["name"]].append((base + start, base + start + length))

    tasks = sources.load(path).tasks.sort("start_ns")

    assert not tasks["name"].str.contains("outside").any()
    for name, found in (
        ("training", tasks.filter(kind="forward")),
        ("evaluating", tasks.filter(name="forward without autograd")),
    ):
        made = ranges[name]
        assert found.height == len(made) == {"training": 4, "evaluating": 3}[name]
        for (start, end), task in zip(sorted(made), found.iter_rows(named=True), strict=True):
            assert start <= task["start_ns"] < task["end_ns"]
            if name == "evaluating":  # what gives the backward its first gradient is of the forward
                assert task["end_ns"] <= end
            assert task["start_ns"] < end
    assert tasks.filter(kind="forward").select("step", "microbatch").rows() == [
        (step, 0) for step in range(4)
    ]
    assert tasks.filter(kind="backward").select("step", "microbatch").rows() == [
        (step, 0) for step in range(4)
    ]
