"""Time and size of every output of about a million tasks on 1024 ranks, and of a million kernels."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from bubblescope import Timeline
from bubblescope.facade import write
from bubblescope.render.formats import FORMATS
from bubblescope.render.text.report import Report

ORIGIN_NS = 1_750_000_000_000_000_000

RANKS, STAGES, MICROBATCHES, STEPS = 1024, 64, 160, 3
KERNELS, DEVICES = 1_000_000, 8
NAMES = [
    f"void at::native::vectorized_elementwise_kernel<{way}, at::native::CUDAFunctor_add<float>, "
    f"std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, {way}ul>)"
    for way in range(200)
]
"""As long as PyTorch's are."""


def make() -> Timeline:
    """Return 1F1B-like tasks with jittered lengths."""
    random = np.random.default_rng(0)
    count = 2 * MICROBATCHES * STEPS
    kinds = np.tile(np.array(["forward", "backward"]), count // 2)
    frames = []
    for rank in range(RANKS):
        length = np.where(kinds == "forward", 1_000_000, 2_000_000)
        length = (length * random.uniform(0.9, 1.1, count)).astype(np.int64)
        gap = random.integers(0, 400_000, count)
        start = np.cumsum(length + gap) - length + (rank % STAGES) * 1_000_000
        frames.append(
            pl.DataFrame(
                {
                    "rank": np.full(count, rank, np.int32),
                    "step": np.arange(count) // (2 * MICROBATCHES),
                    "kind": kinds,
                    "microbatch": np.arange(count) // 2 % MICROBATCHES,
                    "stage": np.full(count, rank % STAGES, np.int32),
                    "start_ns": start,
                    "end_ns": start + length,
                }
            )
        )
    tasks = pl.concat(frames).with_columns(lane=pl.lit("compute"), name=pl.lit("task"))
    ranks = pl.DataFrame(
        {
            "rank": range(RANKS),
            "host": [f"node{rank // 8}" for rank in range(RANKS)],
            "stages": [[rank % STAGES] for rank in range(RANKS)],
        }
    )
    return Timeline(tasks, ranks)


def make_kernels() -> Timeline:
    """Return a run of eight ranks, each with a million kernels' eighth on two streams."""
    random = np.random.default_rng(0)
    count = KERNELS // DEVICES
    steps = np.arange(count) * STEPS // count
    step, first, last = np.unique(steps, return_index=True, return_counts=True)
    tasks, kernels = [], []
    for rank in range(DEVICES):
        length = random.integers(1000, 9000, count)
        start = np.cumsum(length + random.integers(0, 2000, count)) - length
        name = random.integers(0, len(NAMES), count)
        communicates = name % 20 == 0
        kernels.append(
            pl.DataFrame(
                {
                    "rank": np.full(count, rank, np.int32),
                    "device": np.full(count, rank, np.int32),
                    "stream": np.where(communicates, 23, 7).astype(np.int32),
                    "step": steps.astype(np.int32),
                    "use": np.where(communicates, "communication", "compute"),
                    "name": [f"vectorized_elementwise_kernel<CUDAFunctor_add> {it}" for it in name],
                    "full": pl.Series(NAMES).gather(name),
                    "module": [f"layers.{it // 1000}" for it in range(count)],
                    "kind": np.where(np.arange(count) // 500 % 2, "backward", "forward"),
                    "stage": np.full(count, rank, np.int32),
                    "microbatch": (np.arange(count) // 1000 % 16).astype(np.int32),
                    "start_ns": ORIGIN_NS + start,
                    "end_ns": ORIGIN_NS + start + length,
                    "launch_ns": ORIGIN_NS + start - 20_000,
                }
            )
        )
        tasks.append(
            pl.DataFrame(
                {
                    "rank": np.full(STEPS, rank, np.int32),
                    "step": step.astype(np.int32),
                    "start_ns": ORIGIN_NS + start[first],
                    "end_ns": ORIGIN_NS + (start + length)[first + last - 1],
                }
            ).with_columns(kind=pl.lit("other"), lane=pl.lit("compute"), name=pl.lit("step"))
        )
    return Timeline(pl.concat(tasks), activities=pl.concat(kernels))


def main() -> None:
    timeline = make()
    print(timeline)
    began = time.perf_counter()
    str(Report.of(timeline))
    print(f"{'report':10}{time.perf_counter() - began:8.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        for name, known in FORMATS.items():
            path = Path(folder) / f"run{known.suffix}"
            began = time.perf_counter()
            # Pixels for a thousand ranks would fill no page: a picture is of one replica.
            shown = timeline.slice(ranks=range(64)) if name == "png" else timeline
            write(shown, path, to=name)
            print(
                f"{name:10}{time.perf_counter() - began:8.2f} s{path.stat().st_size / 1e6:10.1f} MB"
            )
            path.unlink()
    with_kernels()


def with_kernels() -> None:
    """Print what the outputs that carry kernels take."""
    timeline = make_kernels()
    print(f"\n{timeline.activities.height:,} kernels")
    with tempfile.TemporaryDirectory() as folder:
        for name, known in FORMATS.items():
            if "kernels" not in known.options:
                continue
            path = Path(folder) / f"run{known.suffix}"
            began, busy = time.perf_counter(), time.process_time()
            write(timeline, path, to=name, kernels=True)
            took, busy = time.perf_counter() - began, time.process_time() - busy
            size = path.stat().st_size
            each = size / timeline.activities.height
            print(
                f"{name:10}{took:8.2f} s, {busy:.2f} s of CPU{size / 1e6:10.1f} MB"
                f"{each:8.0f} bytes each"
            )
            path.unlink()


if __name__ == "__main__":
    main()
