"""Real runs of torch's pipeline schedules as a profiler sees them without marks, and what was true.

A case's folder gets

- `marked/rankN.json.gz`: what torch.profiler wrote, with the schedule's own ranges,
- `stripped/rankN.json.gz`: the same without any range that names an action,
- `truth.json`: the case, and every action of every rank as the job itself noted it.

Shares no code with what reads traces.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from bisect import bisect_left
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markless_strip import MARK, read, without, write

if TYPE_CHECKING:
    from collections.abc import Sequence

JOB = Path(__file__).with_name("markless_job.py")

SINGLE = ("GPipe", "1F1B")
FOLDED = ("ZBVZeroBubble", "DualPipeV")
SCHEDULES = (*SINGLE, "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", *FOLDED)
MEGATRON = ("Megatron1F1B", "MegatronInterleaved")
"""Schedules of Megatron-LM core, which name nothing."""

NOT_PIPELINES = "not_pipelines"
"""The folder, beside those of the schedules, of jobs that are no pipelines."""

FOLLOWS = 50_000
"""Nanoseconds within which an operator follows another, on a machine that is not too busy."""

_TRUTH = re.compile(r"TRUTH:(\w+):(-?\d+):(\d+):(\d+)")
_OVERLAP = re.compile(r"PP:\(.*\)OVERLAP_F_B")


@dataclass(frozen=True)
class Case:
    """One job.

    Attributes:
        schedule: What torch calls the schedule, or the kind of a job that is no pipeline.
        shape: The name of its sizes and its model.
        model: "mlp", "transformer", "recomputed" (a transformer that checkpoints activations), "uneven"
            (stages of unlike length) or "shared" (the same, and a stage's layers share their weights).
        chunks: Stages on a device.
        samples: In a micro-batch.
        numbered: Whether the job calls the profiler's `step`, and so has `ProfilerStep` ranges.
    """

    schedule: str
    shape: str
    model: str
    ranks: int
    microbatches: int
    chunks: int = 1
    record_shapes: bool = False
    numbered: bool = True
    optimizer: str = "AdamW"
    steps: int = 3
    samples: int = 4

    @property
    def path(self) -> str:
        """The case's folder in a corpus."""
        return f"{self.schedule if self.is_pipeline else NOT_PIPELINES}/{self.shape}"

    @property
    def is_pipeline(self) -> bool:
        return self.schedule in SCHEDULES + MEGATRON


def pipelines(schedule: str) -> list[Case]:
    """Return the cases of one of torch's schedules, the smallest first."""
    looped = 1 if schedule in SINGLE else 2 if schedule in FOLDED else 3
    pair = min(looped, 2)
    # torch cannot split the backward of a stage that uses a weight twice.
    uneven = "uneven" if "ZeroBubble" in schedule or schedule == "DualPipeV" else "shared"
    return [
        Case(schedule, "mlp", "mlp", 2, 4, pair, optimizer="SGD"),
        Case(schedule, "transformer", "transformer", 4, 8, pair, record_shapes=True),
        Case(schedule, "recomputed", "recomputed", 3, 6, looped),
        Case(schedule, uneven, uneven, 4, 12, pair, record_shapes=True, numbered=False),
    ]


def megatron(schedule: str) -> list[Case]:
    """Return the cases of one of Megatron's schedules."""
    chunks = 1 if schedule == "Megatron1F1B" else 2
    return [
        Case(schedule, "mlp", "mlp", 2, 4, chunks, optimizer="SGD"),
        Case(schedule, "transformer", "transformer", 4, 8, chunks, record_shapes=True),
        Case(schedule, "recomputed", "recomputed", 3, 6, chunks),
        Case(schedule, "shared", "shared", 4, 12, chunks, record_shapes=True, numbered=False),
    ]


def others(schedule: str) -> list[Case]:
    """Return cases of any schedule that no factor of certainty was chosen by: of other sizes."""
    looped = (
        1 if schedule in (*SINGLE, "Megatron1F1B") else 2 if schedule in FOLDED + MEGATRON else 3
    )
    pair = min(looped, 2)
    uneven = "uneven" if "ZeroBubble" in schedule or schedule == "DualPipeV" else "shared"
    return [
        Case(schedule, "mlp-other", "mlp", 4, 8, pair, record_shapes=True, numbered=False),
        Case(schedule, "transformer-other", "transformer", 2, 6, looped, optimizer="SGD", steps=5),
        Case(schedule, "recomputed-other", "recomputed", 4, 8, pair, steps=2, samples=2),
        Case(schedule, f"{uneven}-other", uneven, 3, 9, pair, record_shapes=True, samples=6),
    ]


def loops() -> list[Case]:
    """Return jobs that are no pipelines."""
    return [
        Case("loop", "loop", "transformer", 1, 1),
        Case("loop", "unnumbered", "mlp", 1, 1, numbered=False, steps=4),
        Case("loop", "accumulating", "transformer", 1, 4, record_shapes=True),
        Case("loop", "recomputed", "recomputed", 1, 2),
        Case("ddp", "ddp", "transformer", 2, 1, record_shapes=True),
        Case("ddp", "ddp-accumulating", "mlp", 2, 4, optimizer="SGD"),
        Case("fsdp", "fsdp", "transformer", 2, 2),
        Case("tensor-parallel", "tensor-parallel", "mlp", 2, 2, record_shapes=True),
    ]


def described(case: Case) -> dict[str, Any]:
    """Return a case as plain values."""
    return {**dataclasses.asdict(case), "pipeline": case.is_pipeline}


def make(folder: Path, cases: list[Case]) -> None:
    """Run the jobs one after the other, and write what they left into the corpus' folder."""
    with tempfile.TemporaryDirectory() as scratch:
        asked = []
        for case in cases:
            raw = Path(scratch, case.path)
            raw.mkdir(parents=True)
            asked.append({**described(case), "folder": str(raw)})
        listed = Path(scratch, "cases.json")
        listed.write_text(json.dumps(asked))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(JOB), str(listed)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=1200
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-4000:])
        for case in cases:
            part(Path(scratch, case.path), folder / case.path, case)


def part(raw: Path, folder: Path, case: Case) -> None:
    """Part what a job left into the traces that a user has, and the truth."""
    actions: list[dict[str, Any]] = []
    working: list[list[tuple[int, int]]] = []
    for rank in range(case.ranks):
        document = read(raw / f"rank{rank}.json.gz")
        actions += truth_of(document, rank)
        working.append(operating(document))
        for kind, is_taken_out in (("marked", _TRUTH.match), ("stripped", MARK.match)):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            write(without(document, is_taken_out), folder / kind / f"rank{rank}.json.gz")
    truth = {**described(case), "actions": actions, "working": working}
    (folder / "truth.json").write_text(json.dumps(truth))


def truth_of(document: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    """Return the actions that the job noted in a rank's trace, in order.

    Each has its rank, step, stage, microbatch and kind, from when to when it ran in ns on the trace's
    absolute clock, from when to when its operators did (null without any), how many these are, and the
    number of the overlapped pair that it is of. A busy machine may halt a process before its first
    operator or after its last, which no trace tells.
    """
    base = document["baseTimeNanoseconds"]
    notes, pairs, operators = [], [], []
    for event in document["traceEvents"]:
        if event.get("ph") != "X" or event.get("cat") not in ("cpu_op", "user_annotation"):
            continue
        start = base + round(event["ts"] * 1000)
        span = (start, start + round(event["dur"] * 1000))
        if event["cat"] == "cpu_op":
            operators.append(span)
        elif found := _TRUTH.match(event["name"]):
            notes.append((*span, found))
        elif _OVERLAP.match(event["name"]):
            pairs.append(span)
    notes.sort(key=lambda note: note[:2])
    pairs.sort()
    operators.sort()
    starts = [start for start, _ in operators]

    def inside(start: int, end: int) -> list[tuple[int, int]]:
        return operators[bisect_left(starts, start) : bisect_left(starts, end)]

    return [
        {
            "rank": rank,
            "step": int(found[2]),
            "stage": int(found[3]),
            "microbatch": int(found[4]),
            "kind": found[1],
            "start_ns": start,
            "end_ns": end,
            "operators": len(inside(start, end)),
            "first_ns": min((first for first, _ in inside(start, end)), default=None),
            "last_ns": max((last for _, last in inside(start, end)), default=None),
            "pair": next((i for i, pair in enumerate(pairs) if pair[0] <= start < pair[1]), None),
        }
        for start, end, found in notes
        if int(found[2]) >= 0
    ]


def operating(document: dict[str, Any]) -> list[tuple[int, int]]:
    """Return from when to when a rank's operators ran, in ns, as one where they follow each other."""
    base = document["baseTimeNanoseconds"]
    found: list[tuple[int, int]] = []
    for event in sorted(
        (event for event in document["traceEvents"] if event.get("cat") == "cpu_op"),
        key=lambda event: event["ts"],
    ):
        start = base + round(event["ts"] * 1000)
        end = start + round(event["dur"] * 1000)
        if found and start - found[-1][1] < FOLLOWS:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def make_corpus(folder: Path, wanted: Sequence[str] = (), other: bool = False) -> None:
    """Make each case, or case of other sizes, that is not there yet and whose path begins as wanted."""
    has_megatron = find_spec("megatron") is not None
    schedules = SCHEDULES + MEGATRON if has_megatron else SCHEDULES
    if other:
        cases = [case for schedule in schedules for case in others(schedule)]
    else:
        cases = [case for schedule in SCHEDULES for case in pipelines(schedule)]
        cases += [case for schedule in MEGATRON if has_megatron for case in megatron(schedule)]
        cases += loops()
    for case in cases:
        asked = not wanted or case.path.startswith(tuple(wanted))
        if asked and not (folder / case.path / "truth.json").exists():
            make(folder, [case])
            sys.stdout.write(f"{case.path}\n")


def main() -> None:
    """Make a corpus: `python markless_runs.py FOLDER [SCHEDULE/SHAPE ...]`."""
    make_corpus(Path(sys.argv[1]), sys.argv[2:])


if __name__ == "__main__":
    main()
