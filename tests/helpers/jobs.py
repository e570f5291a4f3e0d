"""Training jobs in processes of their own, with the package of this checkout."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from places import ROOT


def run(command: list[str], **variables: str) -> subprocess.CompletedProcess:
    """Run a command to its end, with these environment variables too."""
    environment = {
        **os.environ,
        **variables,
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "default",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    return subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, env=environment
    )


def forked(ranks: int, module: str, script: Path, *arguments: str) -> list[str]:
    """Return the command that runs a script of a module, without us, to compare with."""
    launcher = str(Path(__file__).with_name("forked.py"))
    return [sys.executable, launcher, str(ranks), module, str(script), *arguments]


def digests(done: subprocess.CompletedProcess, ranks: int) -> list[str]:
    """Return what each rank of a job said of its losses and weights."""
    found = sorted(line for line in done.stdout.splitlines() if line.startswith("rank "))
    assert len(found) == ranks, done.stderr[-2000:]
    return found
