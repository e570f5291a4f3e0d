"""The patches for others' projects, on the real packages.

Of Megatron-LM an index has the core alone: what the patch adds runs with that. Where `MEGATRON_LM` is
a clone of the whole, the patch is also applied to it, and its options are asked for.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_record_megatron import TRAIN

from bubblescope import sources
from bubblescope.model.kinds import Kind
from full import needs
from places import ROOT

CONTRIB = ROOT / "contrib"
MEGATRON = CONTRIB / "megatron-lm" / "record-pipeline.patch"
TITAN = CONTRIB / "torchtitan" / "record-pipeline.patch"
JOBS = ROOT / "tests" / "helpers" / "stamped_jobs"


def patched(patch: Path, folder: Path, *options: str) -> None:
    """Apply a patch to what lies in a folder."""
    command = ["git", "apply", "--whitespace=error", *options, str(patch)]
    # A folder within a repository would be taken for a part of that.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr


def launched(folder: Path, script: Path, *arguments: str, **variables: str) -> None:
    """Run a job of two processes that finds what lies in a folder before what is installed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
            *("--standalone", str(script), *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT / "src", JOBS))),
            **variables,
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]


def passes(folder: Path, kind: str) -> Counter:
    tasks = sources.load(folder).tasks
    chosen = tasks.filter(tasks["kind"].cast(str) == kind)
    return Counter(chosen.select("step", "stage", "microbatch").iter_rows())


def test_what_is_added_to_megatron_records_its_core(tmp_path):
    needs("megatron")
    needs("torch")
    patched(MEGATRON, tmp_path, "--include=megatron/training/pipeline_recording.py")
    out, end = tmp_path / "out", 2
    ready = "rank = parallel_state.get_pipeline_model_parallel_rank()\n"
    recording = (
        f"sys.path.insert(0, {str(tmp_path / 'megatron' / 'training')!r})\n"
        "from pipeline_recording import record_pipeline\n"
        f"record_pipeline(None)\nrecord_pipeline({str(out)!r}, 1, {end})\n"
    )
    assert TRAIN.count(ready) == 1
    script = tmp_path / "train.py"
    script.write_text(TRAIN.replace(ready, recording + ready))
    launched(tmp_path / "nothing", script, "1", "4", "plain")
    once = Counter((1, stage, microbatch) for stage in range(2) for microbatch in range(4))
    assert passes(out, "forward") == passes(out, "backward") == once
    assert sources.load(out).tasks["kind"].cast(str).eq(Kind.OPTIMIZER.value).sum() == 2


def test_without_bubblescope_megatron_trains_on(tmp_path):
    patched(MEGATRON, tmp_path, "--include=megatron/training/pipeline_recording.py")
    program = (
        "import sys; sys.modules['bubblescope'] = None; "
        "from pipeline_recording import record_pipeline; record_pipeline('out'); print('trained')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path / "megatron" / "training",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "trained\n"
    assert "--record-pipeline needs bubblescope (pip install bubblescope)" in done.stderr


def test_the_whole_of_megatron_takes_the_patch(tmp_path):
    clone = os.environ.get("MEGATRON_LM")
    if not clone:
        pytest.skip("MEGATRON_LM names no clone of Megatron-LM")
    shutil.copytree(Path(clone) / "megatron", tmp_path / "megatron")
    patched(MEGATRON, tmp_path)
    training = (tmp_path / "megatron" / "training" / "training.py").read_text("utf-8")
    assert training.index("initialize_megatron(\n") < training.index("record_pipeline(\n")
    # Megatron makes its options of this, as `--record-pipeline`; all of it needs more than is here.
    place = tmp_path / "megatron" / "training" / "config" / "common_config.py"
    options = runpy.run_path(str(place))["ProfilingConfig"]()
    assert options.record_pipeline is None
    assert (options.record_pipeline_step_start, options.record_pipeline_step_end) == (0, None)


def test_torchtitan_records_its_pipeline(tmp_path):
    if find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed")
    [installed] = find_spec("torchtitan").submodule_search_locations
    shutil.copytree(installed, tmp_path / "torchtitan")
    patched(TITAN, tmp_path)
    stamps = tmp_path / "stamps"
    stamps.mkdir()
    job = JOBS / "titan_job.py"
    launched(tmp_path, job, STAMPS=str(stamps), PROFILE="enable_pipeline_recording")
    steps, stages, microbatches = 4, 4, 4
    once = Counter(
        (step, stage, microbatch)
        for step in range(steps)
        for stage in range(stages)
        for microbatch in range(microbatches)
    )
    out = stamps / "pipeline_recording"
    assert passes(out, "forward") == passes(out, "backward") == once
    assert sources.load(out).run.schedule is not None
