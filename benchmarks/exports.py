"""Time and size of every output of about a million tasks on 1024 ranks."""

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

RANKS, STAGES, MICROBATCHES, STEPS = 1024, 64, 160, 3


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


if __name__ == "__main__":
    main()
