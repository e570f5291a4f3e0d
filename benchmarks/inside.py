"""Time and memory of a device's budget, beside those of HTA and TraceLens on the same traces.

    python benchmarks/inside.py [--trace FILE...] [--kernels 1000000] [--runs 3]
        [--peers VENV/bin/python] [--tracelens CHECKOUT] [--peers-up-to 1000000]

Asked for is what a device spends its time on and why it idles:

- `bubblescope report`, whole, with the budget by class of idle time;
- HolisticTraceAnalysis: `TraceAnalysis`, `get_temporal_breakdown` and `get_idle_time_breakdown`;
- TraceLens: `TreePerfAnalyzer.from_file` and `get_df_gpu_timeline`, which is the way that its reports
  go, and, as the least that it can do, `GPUEventAnalyser` alone on the events of devices. Neither says
  why a device idles.

Every one is a process of its own, in turns, with the same limits of time and memory. Peers live in an
environment of their own; HTA runs without rounding to whole microseconds, for it stops where kernels
are shorter. Made traces have an operator for every fourth kernel, and none of the arrows that profilers
draw, so peers have less to read than in real ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from processes import Figures

OURS = "bubblescope report"
HTA = "HTA"
TRACELENS = "TraceLens, its tree"
ANALYSER = "TraceLens, bare analyser"
PROGRAMS = {
    HTA: """
import json, os, sys
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
times = analysis.get_temporal_breakdown(visualize=False)
analysis.get_idle_time_breakdown(visualize=False)
print(json.dumps(float(times["idle_time_pctg"][0])))
""",
    TRACELENS: """
import json, sys
from TraceLens import TreePerfAnalyzer
run = TreePerfAnalyzer.from_file(sys.argv[1], include_unlinked_kernels=True)
times = run.get_df_gpu_timeline()
print(json.dumps(float(times.set_index("type")["percent"]["idle_time"])))
""",
    ANALYSER: """
import json, sys
from TraceLens import DataLoader, GPUEventAnalyser
sorts = {"kernel", "gpu_memcpy", "gpu_memset"}
events = [it for it in DataLoader.load_data(sys.argv[1])["traceEvents"] if it.get("cat") in sorts]
for number, event in enumerate(events):
    event["UID"], event["t_end"] = number, event["ts"] + event["dur"]
times = GPUEventAnalyser(events).get_breakdown_df()
print(json.dumps(float(times.set_index("type")["percent"]["idle_time"])))
""",
}
"""What the peers run; each prints the idle share in percent as its last line."""
VERSIONS = """
import importlib.metadata as known, platform
print(f"Python {platform.python_version()}", *(
    f"{name} {known.version(name)}" for name in ("HolisticTraceAnalysis", "pandas")
), sep=", ")
"""
GIB = 2**30
STEP = 20_000
"""Kernels in a step of a made trace."""
GEMM = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x5_tn_align8>"
    "(cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x5_tn_align8::Params)"
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COPY = "Memcpy HtoD (Pinned -> Device)"


class Stopped(NamedTuple):
    """Why a process has no figures."""

    why: str


class Answered(NamedTuple):
    """What a process took, and the idle share that it said, in percent."""

    cost: Figures
    idle: float


def make(path: Path, kernels: int) -> int:
    """Write a trace of that many kernels as Kineto does, a step at a time; return its size.

    The host takes as long to launch a kernel as it runs, and much longer every fiftieth time; of a
    hundred, two communicate on a stream of their own and one copies.
    """
    rng = random.Random(0)
    operator = _template("cpu_op", "aten::addmm", 77, 77)
    launch = _template("cuda_runtime", "cudaLaunchKernel", 77, 77)
    gemm, reduction, copy = (
        _template(cat, name, 0, stream, f', "device": 0, "context": 1, "stream": {stream}')
        for cat, name, stream in (
            ("kernel", GEMM, 7),
            ("kernel", ALL_REDUCE, 20),
            ("gpu_memcpy", COPY, 7),
        )
    )
    with path.open("w", encoding="ascii") as file:
        file.write('{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],\n')
        file.write('"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},\n')
        file.write('"host_name": "node0", "baseTimeNanoseconds": 1750000000000000000,\n')
        file.write('"displayTimeUnit": "ms", "traceEvents": [\n')
        host = device = 1000.0
        before = ""
        for first in range(0, kernels, STEP):
            begin, lines = host, []
            for number in range(first, min(first + STEP, kernels)):
                host += 60 if number % 50 == 49 else 3
                length = 1 + 3.5 * rng.random()
                start = max(device, host + 4)
                which = gemm
                if number % 100 in (30, 80):
                    which, start, length = reduction, host + 4, 10 * length
                else:
                    which = copy if number % 100 == 60 else gemm
                    device = start + length
                ids = (number, number + 1)
                if number % 4 == 0:
                    lines.append(operator % (host - 1, 2.9, *ids))
                lines.append(launch % (host, 1.5, *ids))
                lines.append(which % (start, length, *ids))
            host += 2
            step = _template("user_annotation", f"ProfilerStep#{first // STEP}", 77, 77)
            lines.append(step % (begin, host - begin, first, 0))
            file.write(before + ",\n".join(lines))
            before = ",\n"
        file.write('\n], "traceName": "made.json"}\n')
    return path.stat().st_size


def _template(cat: str, name: str, process: int, thread: int, more: str = "") -> str:
    """Return a complete event without its start and length in microseconds and its two ids."""
    correlated = ', "correlation": %d' if cat not in {"cpu_op", "user_annotation"} else "%.0s"
    return (
        f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {process}, "tid": {thread}, '
        f'"ts": %.3f, "dur": %.3f, "args": {{"External id": %d{correlated}{more}}}}}'
    )


def attempt(
    command: list[str], env: dict[str, str], limit_s: float, limit_bytes: int
) -> Answered | Stopped:
    """Run a command to its end, unless it takes more time or address space than it may."""
    limited = ["sh", "-c", f'ulimit -v {limit_bytes // 1024} && exec "$@"', "sh", *command]
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complaints:
        began = time.perf_counter()
        process = subprocess.Popen(
            limited,
            stdout=said,
            stderr=complaints,
            env={**os.environ, **env},
            start_new_session=True,
        )
        late = False
        try:
            while not (ended := os.wait4(process.pid, os.WNOHANG))[0] and not late:
                late = time.perf_counter() - began > limit_s
                time.sleep(0.01)
        finally:  # also where this program is interrupted
            if not ended[0]:
                os.killpg(process.pid, signal.SIGKILL)
                ended = os.wait4(process.pid, 0)
        _, status, usage = ended
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if late and process.returncode == -signal.SIGKILL:
            peak = usage.ru_maxrss / 1024
            return Stopped(f"stopped after {limit_s:.0f} s, at {peak:.0f} MiB by then")
        said.seek(0)
        complaints.seek(0)
        text, complaint = said.read(), complaints.read()
    if process.returncode:
        if "MemoryError" in complaint or process.returncode == -signal.SIGKILL:
            return Stopped(f"out of memory after {wall:.0f} s")
        last = complaint.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        return Stopped(f"failed after {wall:.1f} s: {last[0][:90]}")
    cost = Figures(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
    return Answered(cost, _idle(text))


def _idle(text: str) -> float:
    """Return the idle share in percent, of our JSON or of a peer's last line."""
    if not text.startswith("{"):
        return float(text.strip().splitlines()[-1])
    device = json.loads(text)["device"]["capture"]
    share: float = 100 * device["idle_ns"] / device["total_ns"]
    return share


def commands(options: argparse.Namespace, kernels: int | None) -> dict[str, list[str]]:
    """Return what to run on a trace, which is to come last; peers not on what is too large for them."""
    found = {OURS: [sys.executable, "-m", "bubblescope", "report", "--json", "-q"]}
    if options.peers and (kernels is None or kernels <= options.peers_up_to):
        wanted = [HTA] + ([TRACELENS, ANALYSER] if options.tracelens else [])
        found |= {name: [str(options.peers), "-c", PROGRAMS[name]] for name in wanted}
    return found


def compare(path: Path, kernels: int | None, options: argparse.Namespace) -> None:
    """Run all on one trace, in turns, and print what they took and the ratios to ours."""
    found: dict[str, list[Answered]] = {}
    stopped: dict[str, str] = {}
    programs = commands(options, kernels)
    for _ in range(options.runs):
        for name, command in programs.items():
            if name in stopped:
                continue
            env = {"PYTHONPATH": str(options.tracelens)} if name in (TRACELENS, ANALYSER) else {}
            if name == HTA:
                env = {"PYTHONPATH": ""}
            got = attempt([*command, str(path)], env, options.seconds, options.gib * GIB)
            if isinstance(got, Stopped):
                stopped[name] = got.why
            else:
                found.setdefault(name, []).append(got)
    many = f", {kernels:,} kernels" if kernels else ""
    print(f"\n{path.name}, {path.stat().st_size / 1e6:.1f} MB{many}")
    print(f"{'':26}{'runs':>5}{'wall min':>10}{'median':>10}{'CPU':>10}{'peak':>12}{'idle':>9}")
    ours = found.get(OURS, [])
    for name in programs:
        if name in stopped:
            print(f"{name:26}{stopped[name]}", flush=True)
            continue
        runs = found[name]
        wall, cpu, peak = _medians(runs)
        least = min(run.cost.wall_s for run in runs)
        ratio = ""
        if name != OURS and ours:
            said = zip(("wall", "CPU", "peak"), (wall, cpu, peak), _medians(ours), strict=True)
            ratio = "  to ours: " + ", ".join(f"{what} {one / own:.2f}" for what, one, own in said)
        print(
            f"{name:26}{len(runs):5}{least:9.2f}s{wall:9.2f}s{cpu:9.2f}s{peak:8.0f} MiB"
            f"{runs[0].idle:8.2f}%{ratio}",
            flush=True,
        )


def _medians(runs: list[Answered]) -> tuple[float, float, float]:
    """Return the medians of wall and CPU time, in seconds, and the largest peak, in MiB."""
    return (
        median(run.cost.wall_s for run in runs),
        median(run.cost.cpu_s for run in runs),
        max(run.cost.peak_mib for run in runs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, nargs="*", default=[], help="traces of one device")
    parser.add_argument("--kernels", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peers", type=Path, help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--tracelens", type=Path, help="a checkout of AMD-AGI/TraceLens")
    parser.add_argument("--peers-up-to", type=int, default=1_000_000, help="kernels of made traces")
    parser.add_argument("--seconds", type=float, default=600, help="how long each may take")
    parser.add_argument("--gib", type=int, default=16, help="address space that each may take")
    options = parser.parse_args()
    if options.peers:
        subprocess.run([options.peers, "-c", VERSIONS], check=True)
    for path in options.trace:
        compare(path, None, options)
    with tempfile.TemporaryDirectory() as folder:
        for kernels in options.kernels:
            path = Path(folder) / "made.json"
            make(path, kernels)
            compare(path, kernels, options)


if __name__ == "__main__":
    main()
