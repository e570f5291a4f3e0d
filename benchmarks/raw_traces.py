"""What does a run of PyTorch's profiler cost whose traces fit into no memory? And HTA on it?

    python benchmarks/raw_traces.py make FOLDER [--ranks 64] [--kernels 295000]
    python benchmarks/raw_traces.py run FOLDER [--peer VENV/bin/python] [--gib 3] [OPTIONS of dataset]

Each rank has one trace, laid out as Kineto lays it out: an operator, the call that launches, and the
kernel, and ranges named as `torch.distributed.pipelining` names them. What ran is 1F1B of 8 stages in
as many replicas as there are ranks for, replayed with durations that vary. Eight ranks share a host;
the kernels of one rank take 1.3 times as long, and TRUTH.json says of which. `run` makes a dataset of
the traces and asks it for a report and for `why`, each as a whole process with workers: wall time, CPU
time of all, and peaks of the process that was asked and of the largest worker. HTA gets 1, 2, 4 ... of
the traces, for as long as it stays within the memory that it may have. It parses them in one process,
as the memory of several cannot be limited together, and does not round to whole microseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from inside import HTA, Stopped, attempt
from scale import measured

from bubblescope.engine import engine
from bubblescope.schedules import generate
from bubblescope.schedules.replay import Graph, edges_of

STAGES, MICROBATCHES, A_HOST = 8, 16, 8
FORWARD_US, LINK_US, LAUNCH_US, LOAD_US = 2_000.0, 20.0, 4.0, 500.0
SLOW_DEVICE = 1.3
BASE_NS = 1_750_000_000_000_000_000
KERNELS_A_TASK = 230
_GIB, _MIB = 2**30, 2**20
PROGRAM = """
import json, os, sys
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
from hta.common.trace import Trace
from hta.trace_analysis import TraceAnalysis
parse = Trace.parse_traces
Trace.parse_traces = lambda self, *given, **named: parse(self, use_multiprocessing=False)
analysis = TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])))
times = analysis.get_temporal_breakdown(visualize=False)
print(json.dumps(float(times["idle_time_pctg"].mean())))
"""
"""What HTA is asked for, on all ranks at once."""
KERNELS = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_32x5_tn_align8>",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<c10::BFloat16>>",
    "void at::native::layer_norm_kernel<c10::BFloat16, float>(int, float, c10::BFloat16 const*)",
    "flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, bfloat16_t>>",
)


class Job(NamedTuple):
    """One replica to be made."""

    folder: Path
    replica: int
    ranks: int
    steps: int
    slow_rank: int
    period_us: float


def replay(job: Job) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return the plan, and start and length of every operation in microseconds: steps x n each."""
    plan = generate("1f1b", devices=STAGES, microbatches=MICROBATCHES)
    edges, _ = edges_of(plan)
    graph = Graph(len(plan), edges)
    random = np.random.default_rng([job.replica, job.steps])
    length = np.where(plan.kind == 0, FORWARD_US, 2 * FORWARD_US)
    length = length * random.uniform(0.98, 1.02, (job.steps, len(plan)))
    length[:, rank_of(plan.device, job) == job.slow_rank] *= SLOW_DEVICE
    link = np.where(plan.device[edges.source] != plan.device[edges.target], 1000 * LINK_US, 0)
    lengths = (1000 * length).astype(np.int64)
    ends = np.stack([graph.run(one, link.astype(np.int64))[1] for one in lengths])
    return plan, (ends - lengths) / 1000, lengths / 1000


def rank_of(stage: Any, job: Job) -> Any:
    """Return the rank: replicas vary faster than stages, as in Megatron-LM."""
    return stage * (job.ranks // STAGES) + job.replica


def make_replica(job: Job) -> int:
    """Write the traces of one replica, and return their size in bytes."""
    plan, begin, length = replay(job)
    size = 0
    for stage in range(STAGES):
        rank = rank_of(stage, job)
        mine = np.flatnonzero(plan.device == stage)
        mine = mine[np.argsort(begin[0, mine])]
        path = job.folder / f"rank{rank}.pt.trace.json"
        with path.open("w", encoding="ascii") as file:
            where = {"backend": "nccl", "rank": rank, "world_size": job.ranks}
            file.write(
                '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],\n'
            )
            file.write(f'"distributedInfo": {json.dumps(where)},\n')
            file.write(f'"host_name": "node{rank // A_HOST}", "baseTimeNanoseconds": {BASE_NS},\n')
            file.write('"displayTimeUnit": "ms", "traceEvents": [\n')
            number = 0
            for step in range(job.steps):
                opens = 1000 + step * job.period_us
                lines = [_range(f"ProfilerStep#{step}", opens, 0.99 * job.period_us)]
                for at in mine:
                    name = f"PP:{stage}{'FB'[int(plan.kind[at] != 0)]}{plan.microbatch[at]}"
                    start = opens + LOAD_US + begin[step, at]
                    lines += _task(name, start, length[step, at], number, int(at) + step)
                    number += KERNELS_A_TASK
                file.write((",\n" if step else "") + ",\n".join(lines))
            file.write('\n], "traceName": "made.json"}\n')
        size += path.stat().st_size
    return size


def _event(cat: str, name: str, process: int, thread: int, args: str) -> str:
    """Return a complete event without its start and length in microseconds, and what `args` lacks."""
    return (
        f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {process}, "tid": {thread}, '
        f'"ts": %.3f, "dur": %.3f, "args": {{{args}}}}}'
    )


OPERATOR = _event("cpu_op", "aten::addmm", 77, 77, '"External id": %d')
LAUNCH = _event("cuda_runtime", "cudaLaunchKernel", 77, 77, '"correlation": %d')
LAUNCHED = [
    _event("kernel", name, 0, 7, '"device": 0, "context": 1, "stream": 7, "correlation": %d')
    for name in KERNELS
]


def _range(name: str, start: float, length: float) -> str:
    return _event("user_annotation", name, 77, 77, "") % (start, length)


def _task(name: str, start: float, length: float, number: int, seed: int) -> list[str]:
    """Return the events of one task, whose first kernel starts and whose last ends as said.

    The host is busy with it for half as long, and a twentieth of it no kernel runs.
    """
    share = np.random.default_rng(seed).uniform(0.5, 1.5, KERNELS_A_TASK)
    lengths = 0.95 * length * share / share.sum()
    gap = 0.05 * length / (KERNELS_A_TASK - 1)
    starts = start + np.concatenate([[0], np.cumsum(lengths[:-1] + gap)])
    pace = 0.5 * length / KERNELS_A_TASK
    host = start - LAUNCH_US + pace * np.arange(KERNELS_A_TASK)
    lines = [_range(name, start - LAUNCH_US - 1, 0.5 * length + 1)]
    for index, (begin, took, called) in enumerate(
        zip(starts.tolist(), lengths.tolist(), host.tolist(), strict=True)
    ):
        ids = number + index + 1
        if index % 4 == 0:
            lines.append(OPERATOR % (called - 0.2, 0.8 * pace, ids))
        lines.append(LAUNCH % (called, 0.5 * pace, ids))
        lines.append(LAUNCHED[index % len(LAUNCHED)] % (begin, took, ids))
    return lines


def make(folder: Path, ranks: int, kernels: int) -> None:
    """Write the traces of a run."""
    if ranks % STAGES:
        sys.exit(f"--ranks: {STAGES} stages, so as many ranks or a multiple")
    folder.mkdir(parents=True)
    steps = max(1, round(kernels / (2 * MICROBATCHES * KERNELS_A_TASK)))
    last = Job(folder, ranks // STAGES - 1, ranks, steps, 0, 0)
    slow = rank_of(STAGES // 2, last)
    _, begin, length = replay(last._replace(slow_rank=slow))
    period = (
        1.02 * float((begin + length).max()) + LOAD_US
    )  # all wait for the replica of the slow rank
    jobs = [
        last._replace(replica=at, slow_rank=slow, period_us=period) for at in range(ranks // STAGES)
    ]
    with engine() as workers:
        size = sum(size for _, size in workers.run(make_replica, jobs))
    kernels = steps * 2 * MICROBATCHES * KERNELS_A_TASK
    truth = {"slow_rank": slow, "ranks": ranks, "kernels_a_rank": kernels, "bytes": size}
    _truth(folder).write_text(json.dumps(truth))
    print(f"{ranks} traces of {kernels:,} kernels each: {size / 1e9:.1f} GB")


def _truth(folder: Path) -> Path:
    return folder.parent / f"{folder.name}.TRUTH.json"


def run(folder: Path, how: list[str], peer: Path | None, gib: int, seconds: float) -> None:
    """Make a dataset and a report of it, ask HTA, and print what each took."""
    truth = json.loads(_truth(folder).read_text())
    print(
        f"{truth['ranks']} ranks, {truth['kernels_a_rank']:,} kernels each, "
        f"{truth['bytes'] / 1e9:.1f} GB; load {os.getloadavg()[0]:.1f}"
    )
    print("| | wall | CPU | peak of the client | peak of a worker |\n|---|---|---|---|---|")
    root = folder.with_name(f"{folder.name}.dataset")
    shutil.rmtree(root, ignore_errors=True)
    for said, asked in {
        "dataset": ["dataset", str(folder), "-o", str(root)],
        "report": ["report", str(root)],
        "why": ["why", str(root)],
    }.items():
        wall, cpu, *peaks = measured([*asked, *how], root.with_name(f"{root.stem}.{said}.txt"))
        held = " | ".join(f"{peak / _MIB:.0f} MiB" for peak in peaks)
        print(f"| `{said}` | {wall:.1f} s | {cpu:.1f} s | {held} |", flush=True)
    count = 1
    while peer is not None and count <= truth["ranks"]:
        traces = [str(folder / f"rank{rank}.pt.trace.json") for rank in range(count)]
        command = [str(peer), "-c", PROGRAM, *traces]
        got = attempt(command, {"PYTHONPATH": ""}, seconds, gib * _GIB)
        said = f"| {HTA}, {count} {'ranks' if count > 1 else 'rank'} |"
        if isinstance(got, Stopped):
            print(f"{said} {got.why} | | | |", flush=True)
            return
        wall, cpu, peak = got.cost
        print(f"{said} {wall:.1f} s | {cpu:.1f} s | {peak:.0f} MiB | |", flush=True)
        count *= 2


def main() -> None:
    """Make a run, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ways = parser.add_subparsers(dest="way", required=True)
    making = ways.add_parser("make")
    making.add_argument("folder", type=Path)
    making.add_argument("--ranks", type=int, default=64)
    making.add_argument("--kernels", type=int, default=295_000, help="of each rank")
    running = ways.add_parser("run")
    running.add_argument("folder", type=Path)
    running.add_argument("--peer", type=Path, help="a Python that has HolisticTraceAnalysis")
    running.add_argument("--gib", type=int, default=3, help="address space that HTA may take")
    running.add_argument("--seconds", type=float, default=600, help="how long HTA may take")
    asked, how = parser.parse_known_args()
    if asked.way == "make":
        make(asked.folder, asked.ranks, asked.kernels)
    else:
        run(asked.folder, how, asked.peer, asked.gib, asked.seconds)


if __name__ == "__main__":
    main()
