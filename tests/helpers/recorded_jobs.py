"""Training jobs that are recorded, beside stamps that they take themselves (`stamped_jobs`).

Each job runs twice: alone, and under `bubblescope record`. Every task of the recording must be one of
the job's stamps: the same rank, kind, stage, micro-batch and step, at the same time; and the other way
round. What the job computes must be the same to the bit, and so must its exit code.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

import bubblescope
from places import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SCRIPTS: Final = Path(__file__).parent / "stamped_jobs"
PASSES: Final = ("forward", "backward", "backward_input", "backward_weight")
CALL: Final = "call"
"""A stamp around a framework's own function, of no micro-batch: the job does not know of which."""
BESIDE: Final = ("evaluation", "checkpoint", "gradient clipping", "forward without backward")
"""What is recorded by a name: it is of a step, and of no micro-batch."""


class Job(NamedTuple):
    """A job to record.

    Attributes:
        name: What it is.
        script: Which of `stamped_jobs`, and its arguments.
        ranks: How many processes torchrun starts; 0 starts the script itself.
        needs: Modules without which it cannot run.
        code: The exit code that it ends with.
        restarts: How often torchrun may start it again.
        again: Whether it fails, and is to be started a second time, to go on from its checkpoint.
    """

    name: str
    script: str
    ranks: int = 2
    needs: tuple[str, ...] = ("torch",)
    code: int = 0
    restarts: int = 0
    again: bool = False

    @property
    def missing(self) -> list[str]:
        """Packages that are not there."""
        return [one for one in self.needs if not _installed(one)]

    @property
    def command(self) -> list[str]:
        """What starts it."""
        name, *arguments = self.script.split()
        script = [str(SCRIPTS / name), *arguments]
        if not self.ranks:
            return [sys.executable, *script]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        sizes = ["--nproc-per-node", str(self.ranks), "--max-restarts", str(self.restarts)]
        return [*launcher, *sizes, *script]


TITAN: Final = ("torch", "torchtitan")
LIGHTNING: Final = ("torch", "lightning")
TRAINER: Final = ("torch", "transformers", "accelerate")
ACCELERATE: Final = ("torch", "accelerate")
MEGATRON: Final = ("torch", "megatron.core")
DEEPSPEED: Final = ("torch", "deepspeed")

JOBS: Final = (
    Job("GPipe", "pipelines.py --schedule GPipe", 4),
    Job("1F1B", "pipelines.py --schedule 1F1B", 4),
    Job("interleaved 1F1B", "pipelines.py --schedule Interleaved1F1B"),
    Job("looped BFS", "pipelines.py --schedule LoopedBFS"),
    Job("interleaved zero bubble", "pipelines.py --schedule InterleavedZeroBubble"),
    Job("ZBV", "pipelines.py --schedule ZBVZeroBubble"),
    Job("DualPipeV", "pipelines.py --schedule DualPipeV"),
    Job("a schedule from a CSV file", "pipelines.py --schedule csv"),
    Job("1F1B × DDP", "pipelines.py --replicate 2", 4),
    Job("1F1B × FSDP2", "pipelines.py --shard 2", 4),
    Job("1F1B × tensor parallel", "pipelines.py --tensor 2", 4),
    Job("1F1B × HSDP", "pipelines.py --replicate 2 --shard 2", 8),
    Job("1F1B, 3 rounds of gradient accumulation", "pipelines.py --rounds 3 --clip"),
    Job("1F1B × DDP, 2 rounds, evaluation", "pipelines.py --rounds 2 --evaluate --replicate 2", 4),
    Job("1F1B, evaluation between steps", "pipelines.py --evaluate"),
    Job(
        "interleaved 1F1B, activations recomputed",
        "pipelines.py --schedule Interleaved1F1B --recompute",
    ),
    Job("1F1B, torch.save", "pipelines.py --save torch"),
    Job("1F1B, distributed checkpoint", "pipelines.py --save dcp"),
    Job("1F1B, a bad batch that rank 0 catches", "pipelines.py --bad"),
    Job("1F1B, a step that is skipped", "pipelines.py --nan"),
    Job("1F1B, compiled stages", "pipelines.py --compile"),
    Job("1F1B, data by a forked worker", "pipelines.py --workers fork"),
    Job("1F1B, fails and is started again", "pipelines.py --fail 2", restarts=1),
    Job("1F1B, fails", "pipelines.py --fail 2", code=1),
    Job("a pipeline by hand", "loops.py --pipeline", 4),
    Job("one process", "loops.py --evaluate --save", 0),
    Job("one process, leaves with code 13", "loops.py --fail 1", 0, code=13),
    Job("one process, optimizer with a closure", "loops.py --closure", 0),
    Job("one process, compiled", "loops.py --compile --evaluate", 0),
    Job("one process, compiled in place", "loops.py --compile --in-place", 0),
    Job("one process, gradients overflow", "loops.py --scaler", 0),
    Job("one process, a bad batch", "loops.py --bad", 0),
    Job("data by forked workers", "loops.py --workers fork", 0),
    Job("data by spawned workers", "loops.py --workers spawn", 0),
    Job("mp.spawn, DDP", "loops.py --wrap ddp --spawn 2", 0),
    Job("DDP", "loops.py --wrap ddp"),
    Job("DDP, accumulation, evaluation", "loops.py --wrap ddp --accumulate 3 --no-sync --evaluate"),
    Job(
        "DDP, forwards that rank 1 runs again",
        "loops.py --wrap ddp --accumulate 3 --no-sync --again",
    ),
    Job("DDP, compiled", "loops.py --wrap ddp --compile"),
    Job("DDP, activations recomputed", "loops.py --wrap ddp --recompute plain"),
    Job("DDP, fails and is started again", "loops.py --wrap ddp --fail 2", restarts=1),
    Job("FSDP1", "loops.py --wrap fsdp1"),
    Job("FSDP2", "loops.py --wrap fsdp"),
    Job("HSDP", "loops.py --wrap hsdp", 4),
    Job(
        "DeepSpeed ZeRO, accumulation, evaluation",
        "loops.py --wrap zero --accumulate 2 --evaluate",
        2,
        DEEPSPEED,
    ),
    Job("Megatron core, 1F1B, evaluation", "megatron_job.py --evaluate", 2, MEGATRON),
    Job("Megatron core, interleaved × DP", "megatron_job.py --chunks 2 --replicas 2", 4, MEGATRON),
    Job("DeepSpeed, 1F1B, evaluation", "deepspeed_job.py --evaluate", 2, DEEPSPEED),
    Job("DeepSpeed, 1F1B × ZeRO", "deepspeed_job.py --zero 1", 4, DEEPSPEED),
    Job("DeepSpeed, resumed", "deepspeed_job.py --resume", 2, DEEPSPEED, again=True),
    Job("Lightning, accumulation, validation", "lightning_job.py --accumulate 2", 0, LIGHTNING),
    Job("Lightning, one process", "lightning_job.py --devices 1", 0, LIGHTNING),
    Job("Trainer", "trainer_job.py", 2, TRAINER),
    Job(
        "Trainer, accumulation, evaluation", "trainer_job.py --accumulate 2 --evaluate", 2, TRAINER
    ),
    Job("Trainer, resumed", "trainer_job.py --resume", 2, TRAINER, again=True),
    Job("Accelerate, accumulation, evaluation", "accelerate_job.py", 2, ACCELERATE),
    Job("torchtitan, interleaved 1F1B", "titan_job.py", 2, TITAN),
)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be part of
        return False


class Outcome(NamedTuple):
    """What came of a job.

    Attributes:
        equal, tasks: How many tasks are as stamped, and how many there are in either.
        same_results: Whether losses and weights are the same to the bit with and without recording.
        rate, stamped_rate: Bubble rate over the makespan, of the recording and of the stamps; None
            where it is not known.
        called_rate: The same of stamps around a framework's own functions, which do more than the
            models' passes, where the job takes such.
        code, code_alone: Exit codes with and without recording.
        edges: By how many nanoseconds passes begin after their stamps, and end after them, but for the
            first step.
        differing: What is only in one of both, the first few, for whoever looks for the reason.
        recorded_by: Whose hooks recorded.
        said: What the recorded job wrote to its standard error.
    """

    equal: int
    tasks: int
    same_results: bool
    rate: float | None
    stamped_rate: float | None
    called_rate: float | None
    code: int
    code_alone: int
    edges: list[tuple[int, int]]
    differing: list[str]
    recorded_by: str
    said: str

    def right(self, job: Job) -> bool:
        """Say whether nothing differs."""
        if self.rate is None or self.stamped_rate is None:
            return False
        return (
            self.equal == self.tasks > 0
            and self.same_results
            and abs(self.rate - (self.called_rate or self.stamped_rate)) <= 0.005
            and self.code == self.code_alone == job.code
        )


def run(job: Job, folder: Path) -> Outcome:
    """Run a job twice, and compare what was recorded with its stamps.

    Args:
        job: The job.
        folder: Where to, a new one.
    """
    alone = _run(job.command, folder / "alone", again=job.again)
    recording = folder / "recording"
    ours = [sys.executable, "-m", "bubblescope", "record", "--output", str(recording), "--"]
    recorded = _run([*ours, *job.command], folder / "stamps", again=job.again)
    equal = tasks = 0
    differing: list[str] = []
    rate = stamped_rate = called_rate = None
    edges: list[tuple[int, int]] = []
    by = ""
    attempts = sorted(recording.glob("attempt-*"))
    starts = _stamps(folder / "stamps")
    if len(attempts) != len(starts):
        differing.append(f"{len(starts)} starts, {len(attempts)} attempts")
    for attempt, stamps in zip(attempts, starts, strict=False):
        trace = bubblescope.load(attempt)
        by = ", ".join(dict.fromkeys(str(one.recorded_by) for one in trace.run.origins))
        found = compared(stamps, recorded_rows(trace))
        edges = compared_edges(stamps, recorded_rows(trace))
        equal, tasks, differing = equal + found[0], tasks + found[1], [*differing, *found[2]]
        rate = bubble_rate(trace)
        stamped_rate, called_rate = stamped_idle(stamps, PASSES), stamped_idle(stamps, (CALL,))
    if not starts or len(attempts) < len(starts):
        tasks += sum(map(len, starts[len(attempts) :]))
    return Outcome(
        equal,
        tasks,
        bool(digests(folder / "alone")) and digests(folder / "alone") == digests(folder / "stamps"),
        rate,
        stamped_rate,
        called_rate,
        recorded.returncode,
        alone.returncode,
        edges,
        differing[:12],
        by,
        alone.stderr[-3000:] + "\n----\n" + recorded.stdout[-2000:] + recorded.stderr[-6000:],
    )


def _run(command: list[str], stamps: Path, *, again: bool) -> subprocess.CompletedProcess:
    stamps.mkdir(parents=True)
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "STAMPS": str(stamps),
        "PYTHONWARNINGS": "ignore,default::RuntimeWarning",
    }
    limited = ["timeout", "300", *command]  # a pipeline that hangs is ended with all its processes
    for start in range(1 + again):
        environment |= {"START": str(start)} if again else {}
        done = subprocess.run(
            limited, capture_output=True, text=True, check=False, env=environment, cwd=stamps
        )
    return done


def digests(folder: Path) -> dict[str, str]:
    """Return what ranks computed, for each start and rank."""
    return {path.name: path.read_text() for path in folder.glob("stamps.*.digest")}


def _stamps(folder: Path) -> list[list[dict[str, Any]]]:
    """Return the stamps of all ranks, for each start of the job."""
    starts: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("stamps.*.jsonl")):
        lines = map(json.loads, path.read_text().splitlines())
        starts.setdefault(path.name.split(".")[1], []).extend(lines)
    return [starts[number] for number in sorted(starts)]


def recorded_rows(trace: bubblescope.Trace) -> list[dict[str, Any]]:
    """Return the tasks of a recording that a job takes stamps of."""
    tasks = trace.tasks.with_columns(pl.col("kind").cast(pl.String))
    beside = (pl.col("kind") == "other") & pl.col("name").is_in(BESIDE)
    tasks = tasks.with_columns(kind=pl.when(beside).then("name").otherwise("kind"))
    wanted = tasks.filter(pl.col("kind").is_in([*PASSES, "optimizer", *BESIDE]))
    return wanted.select(
        "rank", "kind", "step", "stage", "microbatch", "start_ns", "end_ns"
    ).to_dicts()


def compared(
    stamps: Iterable[dict[str, Any]], rows: Iterable[dict[str, Any]]
) -> tuple[int, int, list[str]]:
    """Return how many tasks are equal, how many there are in either, and which are not."""
    rows = list(rows)
    known = {_key(row) for row in rows}
    passes = [row for row in rows if row["kind"] in PASSES]
    # What a loop of its own does beside its passes need not be a task, but may be no pass.
    wanted, silent = [], 0
    for stamp in stamps:
        if stamp["kind"] == CALL:
            continue
        if stamp["kind"] in BESIDE and not any(key[1] == stamp["kind"] for key in known):
            inside = [row for row in passes if row["rank"] == stamp["rank"] and _within(row, stamp)]
            silent += not inside
            if inside:
                wanted.append(stamp)
        else:
            wanted.append(stamp)
    left: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        left.setdefault(_key(row), []).append(row)
    equal, differing = silent, []
    for stamp in wanted:
        same = left.get(_key(stamp), [])
        those = [row for row in same if _alike(stamp, row)]
        if stamp["kind"] not in BESIDE:  # a checkpoint may be several files
            those = those[:1]
        if those:
            left[_key(stamp)] = [row for row in same if row not in those]
            equal += len(those)
        else:
            others = ", ".join(_said(row) for row in same)
            differing.append(f"stamped only: {_said(stamp)}" + f" (recorded {others})" * bool(same))
    for same in left.values():
        differing += [f"recorded only: {_said(row)}" for row in same]
    return equal, equal + len(differing), differing


def compared_edges(
    stamps: Iterable[dict[str, Any]], rows: Iterable[dict[str, Any]]
) -> list[tuple[int, int]]:
    """Return by how much passes begin and end after their stamps, in all steps but the first."""
    recorded = {_key(row): row for row in rows}
    passes = [one for one in stamps if one["kind"] in PASSES and "step" in one]
    first = min((one["step"] for one in passes), default=None)
    found = []
    for one in passes:
        row = recorded.get(_key(one))
        if row is not None and one["step"] != first and _alike(one, row):
            found.append((row["start_ns"] - one["start_ns"], row["end_ns"] - one["end_ns"]))
    return found


def _key(task: dict[str, Any]) -> tuple[Any, ...]:
    of_pass = task["kind"] in PASSES
    place = (task.get("stage"), task.get("microbatch")) if of_pass else ()
    return (task["rank"], task["kind"], task.get("step"), *place)


def _alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Say whether two intervals are the same piece of work: the longer has most of the shorter.

    A process that waits for a core between the two readings of a clock makes one of them longer. What
    such lengths add up to is compared by bubble rates.
    """
    both = min(one["end_ns"], other["end_ns"]) - max(one["start_ns"], other["start_ns"])
    shorter = min(one["end_ns"] - one["start_ns"], other["end_ns"] - other["start_ns"])
    return both >= 0.5 * shorter


def _within(row: dict[str, Any], stamp: dict[str, Any]) -> bool:
    return stamp["start_ns"] <= row["start_ns"] and row["end_ns"] <= stamp["end_ns"]


def _said(task: dict[str, Any]) -> str:
    length = (task["end_ns"] - task["start_ns"]) / 1e6
    return " ".join(map(str, _key(task))) + f" at {task['start_ns'] / 1e6:.3f} for {length:.3f} ms"


def bubble_rate(trace: bubblescope.Trace) -> float | None:
    """Return the bubble rate over the makespan that the report says, without the first step.

    In that, frameworks set themselves up, inside or outside of where a job can take stamps.
    """
    said = json.loads(trace.slice(steps=trace.steps[1:]).report().to_json())
    rates = (said["bubble"] or {}).get("overall") or {}
    return rates.get("makespan")


def stamped_idle(stamps: Iterable[dict[str, Any]], kinds: Sequence[str]) -> float | None:
    """Return the share of all steps but the first, from first pass to last, in which ranks idle.

    Args:
        stamps: All that were taken. Those that say which pipeline they are of are measured by pipeline.
        kinds: Those that are work.
    """
    steps: dict[int, dict[Any, list[dict[str, Any]]]] = {}
    for one in stamps:
        if one["kind"] in kinds and "step" in one:
            steps.setdefault(one["step"], {}).setdefault(one.get("pipeline"), []).append(one)
    idle = whole = 0
    for those in [those for step in sorted(steps)[1:] for those in steps[step].values()]:
        length = max(one["end_ns"] for one in those) - min(one["start_ns"] for one in those)
        for rank in {one["rank"] for one in those}:
            busy = until = 0
            for one in sorted(those, key=lambda one: one["start_ns"]):
                if one["rank"] == rank:
                    busy += max(0, one["end_ns"] - max(until, one["start_ns"]))
                    until = max(until, one["end_ns"])
            idle, whole = idle + length - busy, whole + length
    return idle / whole if whole else None
