"""A job on two nodes, one of whose clocks is wrong, recorded and put on one clock.

Both nodes are on this machine. libfaketime shows the second one's processes a UTC that is 3 ms ahead,
and clocks that run fast; what their clocks should have shown, the job asks the kernel itself.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest

import faked_clock
from bubblescope import sources
from bubblescope.recording.reader import header_of, read_stream
from bubblescope.render.text.report import Report
from full import needs
from places import ROOT

needs("torch")
needs("libfaketime")

AHEAD_NS, PPM = 3_000_000, 80
STEPS = 60
NODES = {0: (0, 1), 1: (2, 3)}


@pytest.fixture(scope="module")
def library():
    """The path of libfaketime."""
    path = faked_clock.library()
    try:
        ctypes.CDLL(str(path))
    except OSError:
        path = None
    if path is None or platform.machine() != "x86_64":
        pytest.skip("PyPI's libfaketime is built for Linux on x86-64 only")
    return path


@contextmanager
def node(number, folder, port, environment):
    """Run one node's half of the job."""
    launcher = [
        *(
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            "2",
            "--node-rank",
            str(number),
        ),
        *("--master-addr", "127.0.0.2", "--master-port", str(port), "--nproc-per-node", "2"),
        *(str(ROOT / "tests" / "helpers" / "two_nodes.py"), str(folder), str(STEPS)),
    ]
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "bubblescope",
            "record",
            "--output",
            str(folder / "out"),
            "--",
            *launcher,
        ],
        env={
            **os.environ,
            **environment,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(paths),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # the launcher and its workers too


@pytest.fixture(scope="module")
def recording(library, tmp_path_factory):
    """The folder of the job's recording and readings."""
    folder = tmp_path_factory.mktemp("nodes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        faked_clock.wrong_clock(library, ahead_ns=AHEAD_NS, ppm=PPM) as wrong,
        node(0, folder, port, {}) as one,
        node(1, folder, port, wrong) as other,
    ):
        for process in (one, other):
            said, _ = process.communicate(timeout=600)
            assert process.returncode == 0, said[-3000:]
    return folder


def utc_ns(folder, rank):
    """Return UTC less monotonic time, as a rank's recording has it."""
    [path] = (folder / "out").rglob(f"rank{rank:05d}.bubbles")
    rows, _ = read_stream(path.read_bytes())
    return header_of(path, rows).utc_ns


def truth(folder, rank, times):
    """Return what the first node's clock showed at times of a rank, and how exactly that is known."""
    shown, true, apart = np.array(json.loads((folder / f"readings{rank}.json").read_text())).T
    first = utc_ns(folder, NODES[rank // 2][0])
    monotonic = times - first
    line = np.polynomial.Polynomial.fit(shown - shown[0], true - shown, 1)
    off = np.abs(line(shown - shown[0]) - (true - shown)).max()
    right = monotonic + np.rint(line(monotonic - shown[0])).astype(np.int64)
    return right + utc_ns(folder, 0), apart.max() + off


def test_both_nodes_have_a_clock_of_their_own_and_one_is_wrong(recording):
    raw = sources.load(recording / "out", clock="raw")

    assert raw.ranks["host"].to_list() == ["node0", "node0", "node1", "node1"]
    assert len(raw.steps) == STEPS
    for rank in range(4):
        mine = raw.tasks.filter(rank=rank)["start_ns"].to_numpy()
        true, exact = truth(recording, rank, mine)
        off = mine - true
        if rank in NODES[0]:
            assert np.abs(off).max() <= exact
        else:
            assert off.min() > AHEAD_NS - exact
            fast = np.polyfit(true - true[0], off, 1)[0] * 1e6
            assert abs(fast - PPM) < 1


@pytest.mark.parametrize("mode", ["auto", "solve"])
def test_the_solved_clocks_are_as_near_the_truth_as_they_are_said_to_be(recording, mode):
    raw = sources.load(recording / "out", clock="raw")
    found = sources.load(recording / "out", clock=mode)

    assert found.run.clock.method == "solved"
    assert found.run.clock.violations_before > found.run.clock.violations_after == 0
    errors = dict(found.ranks.select("rank", "clock_error_ns").iter_rows())
    assert [errors[rank] for rank in NODES[0]] == [0, 0]
    key = ["kind", "step", "microbatch", "stage", "start_ns"]
    for rank in NODES[1]:
        mine, recorded = (one.tasks.filter(rank=rank).sort(key) for one in (found, raw))
        for name in ("start_ns", "end_ns"):
            times = recorded[name].to_numpy()
            true, exact = truth(recording, rank, times)
            off = np.abs(mine[name].to_numpy() - true).max()
            assert off <= errors[rank] + exact
            assert off < np.abs(times - true).min()


def test_the_report_says_what_was_done(recording):
    said = {
        mode: " ".join(str(Report.of(sources.load(recording / "out", clock=mode))).split())
        for mode in ("raw", "auto", "solve")
    }

    assert "between hosts, times are only as good as their synchronisation" in said["raw"]
    assert "±" not in said["raw"]
    assert "the clocks of 2 of 2 hosts were aligned" in said["auto"]
    assert "of the first host's" in said["auto"]
    assert said["auto"] == said["solve"]
