"""Time of reading job traces, beside a bare read of the same files."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl
from processes import measure

MICROBATCHES, STAGES = 8, 4
BARE = {
    "jobtrace": "import sys, polars; polars.read_parquet(sys.argv[1])",
    "ndtimeline": "import sys, msgspec; msgspec.json.decode(open(sys.argv[1], 'rb').read())",
    "primus": (
        "import sys, pathlib, msgspec\n"
        "for path in pathlib.Path(sys.argv[1]).glob('pp_rank_*'):\n"
        "    msgspec.json.decode(path.read_bytes())"
    ),
}


def job_table(path: Path, rows: int) -> None:
    """Write a Parquet job trace: 64 replicas, forwards, backwards and sends."""
    replicas = 64
    names = ["forward-compute", "backward-compute", "forward-send", "optimizer"]
    per_step = replicas * STAGES * MICROBATCHES * len(names)
    index = np.arange(-(-rows // per_step) * per_step)
    place = index // len(names)
    microbatch = place % MICROBATCHES
    stage = place // MICROBATCHES % STAGES
    replica = place // (MICROBATCHES * STAGES) % replicas
    kind = index % len(names)
    jitter = np.random.default_rng(7).uniform(0, 0.04, len(index))
    frame = pl.DataFrame(
        {
            "dp_rank": replica.astype(np.int8),
            "stage": stage.astype(np.int8),
            "rank": (stage * replicas + replica).astype(np.int16),
            "step": index // per_step,
            "optype": pl.Series(np.array(names)[kind]).cast(pl.Categorical),
            "start_ts": (microbatch * 0.4 + kind * 0.1 + jitter).astype(np.float32),
            "duration": (0.05 + jitter).astype(np.float32),
            "seq_id": microbatch.astype(np.int32),
            "mc": np.where(kind < 2, 0, -1).astype(np.int8),
            "mb_id": np.where(kind < 2, microbatch, -1).astype(np.int8),
            "gmc": np.where(kind < 2, stage, -1).astype(np.int16),
        }
    )
    frame.write_parquet(path)


def nd_trace(path: Path, rows: int) -> None:
    """Write an ndtimeline file."""
    events = []
    for index in range(rows):
        step, place = divmod(index, 2 * MICROBATCHES * STAGES)
        stage, at = divmod(place, 2 * MICROBATCHES)
        name = "forward-compute" if at < MICROBATCHES else "backward-compute"
        said = {"rank": stage, "step": step, "tp": 0, "pp": stage}
        ts = 1.75e15 + 1e6 * step + 1000 * (at + stage)
        event = {"ph": "X", "name": name, "cat": name, "pid": 0, "tid": stage * 10, "ts": ts}
        events.append({**event, "dur": 900.0, "args": said})
    path.write_text(json.dumps(events))


def dumps(folder: Path, rows: int) -> None:
    """Write Primus dumps of eight ranks."""
    folder.mkdir()
    ranks, microbatches = 8, 16
    for rank in range(ranks):
        start = [60.0 * index for index in range(microbatches)]
        one = {
            "total": 3000.0,
            "fwd_start": start,
            "fwd_end": [ms + 55.123456 for ms in start],
            "bwd_start": [ms + 1500 for ms in start],
            "bwd_end": [ms + 1555.654321 for ms in start],
        }
        iterations = rows // (2 * ranks * microbatches)
        said = {str(number + 1): one for number in range(iterations)}
        (folder / f"pp_rank_{rank}.json").write_text(json.dumps(said))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    python = sys.executable
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        made = {
            "jobtrace": folder / "job.parquet",
            "ndtimeline": folder / "trace_step0_9",
            "primus": folder / "dumps",
        }
        job_table(made["jobtrace"], options.rows)
        nd_trace(made["ndtimeline"], options.rows // 4)
        dumps(made["primus"], options.rows // 4)
        print(f"{'':12}{'MB':>8}{'report':>10}{'CPU':>8}{'peak':>12}{'bare read':>12}{'ratio':>8}")
        for name, path in made.items():
            files = [path] if path.is_file() else list(path.iterdir())
            size = sum(file.stat().st_size for file in files) / 1e6
            report = [python, "-m", "bubblescope", "report", "-q", str(path)]
            ours, bare = [], []
            for _ in range(options.runs):
                ours.append(measure(report))
                bare.append(measure([python, "-c", BARE[name], str(path)]))
            took = median(run.wall_s for run in ours)
            read = median(run.wall_s for run in bare)
            print(
                f"{name:12}{size:8.1f}{took:9.2f}s{median(run.cpu_s for run in ours):7.2f}s"
                f"{max(run.peak_mib for run in ours):8.0f} MiB{read:11.2f}s{took / read:8.2f}"
            )


if __name__ == "__main__":
    main()
