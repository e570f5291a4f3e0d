"""Time of reading a PyTorch profiler trace, beside a bare decode of its JSON, and beside HTA.

With `--beside OTHER_CHECKOUT/src`, also beside another version's report, in turn with this one's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median

from processes import Figures, measure, of_version, print_ratio, print_table

BASE = 1_750_000_000_000_000_000
MICROBATCHES = 32
KERNELS_PER_TASK = 200
BESIDE = "the same of the version beside"

BARE = """
import mmap, sys, msgspec
class Args(msgspec.Struct, gc=False):
    correlation: int | None = None
class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = 0.0
    dur: float = 0.0
    args: Args | None = None
class Trace(msgspec.Struct):
    traceEvents: list[Event]
with open(sys.argv[1], "rb") as file:
    msgspec.json.decode(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), type=Trace)
"""
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
analysis.get_temporal_breakdown(visualize=False)
"""
EVENT = """  {{
    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      {args}
    }}
  }}"""


def make(path: Path, events: int) -> int:
    """Write a trace of about that many events, as Kineto lays them out; return its size."""
    with path.open("w") as file:
        file.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [{"id": 0, "name": "H100"}],\n')
        file.write('  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},\n')
        file.write('  "host_name": "node0",\n  "displayTimeUnit": "ms",\n')
        file.write(f'  "baseTimeNanoseconds": {BASE},\n  "traceEvents": [\n')
        count = number = 0
        host, device = 1e9, 1e9 + 1000
        step = 0
        while count < events:
            whole = 2 * MICROBATCHES * 10.0 * KERNELS_PER_TASK
            lines = [slice_of("user_annotation", f"ProfilerStep#{step}", host, whole, ids=number)]
            for way in "FB":
                for microbatch in range(MICROBATCHES):
                    length = 10.0 * KERNELS_PER_TASK
                    name = f"PP:0{way}{microbatch}"
                    lines.append(slice_of("user_annotation", name, host, length, ids=number))
                    for index in range(KERNELS_PER_TASK):
                        number += 1
                        at = host + 10 * index
                        lines += [
                            slice_of("cpu_op", "aten::addmm", at, 8, ids=number),
                            slice_of("cpu_op", "aten::as_strided", at + 1, 2, ids=number),
                            slice_of(
                                "cuda_runtime", "cudaLaunchKernel", at + 4, 3, correlation=number
                            ),
                            slice_of("kernel", KERNEL, device, 9, correlation=number),
                            flow("s", 77, at, number),
                            flow("f", 7, device, number),
                        ]
                        device += 10
                    host += length
            count += len(lines)
            step += 1
            device = max(device, host)
            file.write(",\n".join(lines))
            file.write(",\n" if count < events else "\n")
        file.write('  ],\n  "traceName": "made.json"\n}\n')
    return path.stat().st_size


KERNEL = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x5_tn_align8>"


def slice_of(cat: str, name: str, ts: float, dur: float, ids: int = 0, correlation: int = 0) -> str:
    """Return a complete event."""
    args = f'"External id": {ids}, "Ev Idx": {ids}'
    if correlation:
        args = f'"External id": {correlation}, "cbid": 211, "correlation": {correlation}'
    if cat == "kernel":
        args = (
            f'"External id": {correlation}, "queued": 0, "device": 0, "context": 1, "stream": 7, '
            f'"correlation": {correlation}, "registers per thread": 168, "shared memory": 98304, '
            '"blocks per SM": 2.5, "warps per SM": 20.0, "grid": [32, 8, 1], "block": [128, 1, 1], '
            '"est. achieved occupancy %": 31'
        )
    pid, tid = (0, 7) if cat == "kernel" else (77, 77)
    return EVENT.format(cat=cat, name=name, pid=pid, tid=tid, ts=ts, dur=dur, args=args)


def flow(phase: str, tid: int, ts: float, number: int) -> str:
    """Return one end of an arrow from a launch to its kernel."""
    return (
        f'  {{\n    "ph": "{phase}", "id": {number}, "pid": 77, "tid": {tid}, "ts": {ts:.3f},\n'
        f'    "cat": "ac2g", "name": "ac2g"\n  }}'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peer", type=Path, help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--beside", type=Path, help="`src` of a checkout of another version")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.json"
        size = make(path, options.events)
        python, target = sys.executable, str(path)
        compared = {
            "bare msgspec decode": [python, "-c", BARE, target],
            "bubblescope report": [python, "-m", "bubblescope", "report", "-q", target],
        }
        if options.beside:
            compared[BESIDE] = of_version(compared["bubblescope report"], options.beside)
        if options.peer:
            compared["HTA breakdown"] = [str(options.peer), "-c", HTA, target]
        figures: dict[str, list[Figures]] = {name: [] for name in compared}
        for index in range(options.runs):
            for name, command in compared.items():
                if index == 0 or name != "HTA breakdown":
                    figures[name].append(measure(command))
    print(f"{options.events:,} events, {size / 1e6:.0f} MB")
    print_table(figures)
    bare = median(run.wall_s for run in figures["bare msgspec decode"])
    ours = median(run.wall_s for run in figures["bubblescope report"])
    peak = max(run.peak_mib for run in figures["bubblescope report"]) * 2**20
    print(f"report / bare decode: {ours / bare:.2f} (medians); peak / file: {peak / size:.2f}")
    if BESIDE in figures:
        print_ratio("report", figures["bubblescope report"], figures[BESIDE])


if __name__ == "__main__":
    main()
