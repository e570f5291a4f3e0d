"""Recordings of jobs say what the jobs say of themselves; more are in `benchmarks/recorded_jobs.py`."""

from __future__ import annotations

import os
import subprocess
import sys

import polars as pl
import pytest

import bubblescope
from full import needs
from places import ROOT
from recorded_jobs import JOBS, run

needs("torch")

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
NAMES = ("1F1B, a bad batch that rank 0 catches", "DDP, forwards that rank 1 runs again")


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_is_what_the_job_stamped(name, tmp_path):
    job = next(one for one in JOBS if one.name == name)
    found = run(job, tmp_path / "job")
    assert found.equal == found.tasks > 0, "\n".join([*found.differing, found.said])
    assert found.same_results
    assert found.code == found.code_alone == job.code


OPTIMIZERS = """
import os, torch
from torch import nn
class Several(torch.optim.Optimizer):
    def __init__(self, inner):
        self.inner = inner
        super().__init__([one for each in inner for one in each.param_groups[0]["params"]], {})
    def step(self, closure=None):
        for one in self.inner:
            one.step()
torch.set_num_threads(1)
layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
optimizer = Several([torch.optim.AdamW(layer.parameters(), foreach=False) for layer in layers])
if os.path.exists("saved"):
    for one, state in zip(optimizer.inner, torch.load("saved")):
        one.load_state_dict(state)
for step in range(3):
    layers(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    for one in optimizer.inner:
        one.zero_grad()
torch.save([one.state_dict() for one in optimizer.inner], "saved")
lbfgs = torch.optim.LBFGS(layers.parameters(), max_iter=3)
def closure():
    lbfgs.zero_grad()
    loss = layers(torch.ones(2, 4)).pow(2).sum()
    loss.backward()
    return loss
lbfgs.step(closure)
"""


def test_steps_go_on_from_a_checkpoint_and_optimizers_are_apart_from_what_they_call(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(OPTIMIZERS)
    for attempt, first in ((1, 0), (2, 3)):
        record = [sys.executable, "-m", "bubblescope", "record", "--steps", "1:"]
        done = subprocess.run(
            [*record, "--", sys.executable, str(script)],
            cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        trace = bubblescope.load(tmp_path / "recording", attempt=attempt)
        # The first step of each start is left out: which to record is counted from there.
        assert trace.steps == [first + 1, first + 2, first + 3]
        kinds = trace.tasks.with_columns(pl.col("kind").cast(pl.String))
        alone = kinds.filter(pl.col("kind") == "optimizer").group_by("step").len().sort("step")
        assert alone["len"][:2].to_list() == [1, 1]
        assert alone["len"][2] > 1
        compute = kinds.filter(lane="compute").sort("start_ns")
        ends = compute["end_ns"].shift(1)
        assert compute.filter(pl.col("start_ns") < ends).is_empty()
