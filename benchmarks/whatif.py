"""What was predicted beside what then happened, in runs that were really made.

`matrix` runs each of torch's schedules once and predicts every one from the recording of every other.
`runs` makes random jobs, asks one question about each, and makes the run that answers it: jobs of
torch.distributed.pipelining with slow ranks, heavy layers, heads, uneven stages and random lengths, and
the demo with stages of different work; `demos` makes the latter only. All work is sleep, so the fewer
other programs run the less is chance; `--scale` makes all take longer, which has the same effect.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

import bubblescope
import sleeping
from bubblescope.schedules import SCHEDULES as KNOWN
from bubblescope.schedules import generate
from sleeping import SCHEDULES, SINGLE, Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.analysis.prediction import Prediction

TIMES_MS = (5.0, 6.0, 4.0)
"""Of a layer's forward, input gradient and weight gradient, at a scale of 1."""

LINEAR = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2")
"""Schedules of the demo."""


_DEMOS = 1
"""Demos that run at a time: these also compute, most of all when they start."""


class Demo(NamedTuple):
    """A run of the demo.

    Attributes:
        schedule: One of `LINEAR`.
        work: How many times as long each stage takes.
        microbatches: Of a step.
        sleep_ms: Of a task of usual length.
    """

    schedule: str
    work: tuple[float, ...]
    microbatches: int
    sleep_ms: float


class Case(NamedTuple):
    """A run, a question, and the run that answers.

    Attributes:
        what: In words.
        before, after: The runs.
        asked: The method of `WhatIf` and its arguments.
    """

    what: str
    before: Job | Demo
    after: Job | Demo
    asked: tuple[object, ...]


class Outcome(NamedTuple):
    """What was said of a step, and what it then took.

    Attributes:
        said: The answer.
        step_ns: What the step then took.
    """

    said: Prediction
    step_ns: int

    @property
    def best_ns(self) -> int:
        """Return the shorter end of what was said."""
        return self.said.predicted_ns if self.said.best_ns is None else self.said.best_ns

    @property
    def covered(self) -> bool:
        """Say whether the step is within what was said."""
        low, high = 1 - self.said.error, 1 + self.said.error
        return self.best_ns * low <= self.step_ns <= self.said.predicted_ns * high

    @property
    def off(self) -> float:
        """Return how far the nearer end is from the step, as a share; 0 within a range."""
        near = min(max(self.step_ns, self.best_ns), self.said.predicted_ns)
        return near / self.step_ns - 1

    def cells(self) -> str:
        """Return cells of a table: what was said, ±, what was measured, and how far that is off."""
        said, best = self.said.predicted_ns / 1e9, self.best_ns / 1e9
        words = f"{said:.3f} s" if self.said.best_ns is None else f"{best:.3f} to {said:.3f} s"
        measured = f"{self.step_ns / 1e9:.3f} s"
        return f"{words} | {self.said.error:.2%} | {measured} | {self.off:+.2%}{self.note}"

    def cell(self) -> str:
        """Return how far what was said is from what was measured, and ±, in per cent."""
        ends = [100 * (end / self.step_ns - 1) for end in (self.best_ns, self.said.predicted_ns)]
        words = " to ".join(f"{end:+.2f}" for end in ends[self.said.best_ns is None :])
        return f"{words} ± {100 * self.said.error:.2f}{self.note}"

    @property
    def note(self) -> str:
        """Return a word for a step that is not within what was said."""
        return "" if self.covered else " **missed**"


def made(run: Demo, folder: Path) -> None:
    """Make a run of the demo, recorded into a folder."""
    command = [sys.executable, "-m", "bubblescope", "demo", "-q", "--no-open", "-o", str(folder)]
    command += ["--schedule", run.schedule, "--stages", str(len(run.work))]
    command += ["--microbatches", str(run.microbatches), "--steps", "4"]
    command += ["--sleep-compute", str(run.sleep_ms)]
    command += ["--stage-work", ",".join(map(str, run.work))]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=sleeping.prompt)


def loaded(run: Job | Demo, folder: Path) -> bubblescope.Trace:
    """Return a recording; the demo's without its first step, a warm-up."""
    trace = bubblescope.load(folder)
    return trace if isinstance(run, Job) else trace.slice(steps=range(1, 4))


def made_all(runs: list[Job | Demo], folder: Path, at_once: int) -> list[bubblescope.Trace]:
    """Make runs that the folder does not hold yet, so many at once; return their recordings."""
    folders = {folder / str(number): run for number, run in enumerate(runs)}
    missing = {where: run for where, run in folders.items() if not where.exists()}
    demos = {where: run for where, run in missing.items() if isinstance(run, Demo)}
    with ThreadPoolExecutor(min(at_once, _DEMOS)) as pool:
        list(pool.map(made, demos.values(), demos))
    sleeping.run({at: run for at, run in missing.items() if isinstance(run, Job)}, at_once)
    return [loaded(run, where) for where, run in folders.items()]


def question(*asked: object) -> Callable[..., Prediction]:
    """Return a question of a method and its arguments."""
    name, *arguments = asked
    return lambda run: getattr(run, str(name))(*arguments)


def measured_ns(trace: bubblescope.Trace) -> int:
    """Return the mean step of a run: what is said to be now."""
    return trace.whatif(question("microbatches", 12)).step_ns


def matrix(options: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Predict each schedule from each other's recording."""
    times = tuple(options.scale * time for time in TIMES_MS)
    jobs = [Job(schedule, times_ms=times) for schedule in SCHEDULES]
    traces = dict(zip(SCHEDULES, made_all(jobs, folder, options.at_once), strict=True))
    steps = {schedule: measured_ns(trace) for schedule, trace in traces.items()}
    print(f"| recorded | measured | {' | '.join(SCHEDULES)} |")
    print("|---" * (2 + len(SCHEDULES)) + "|")
    outcomes = []
    for now, trace in traces.items():
        cells = [now, f"{steps[now] / 1e9:.3f} s"]
        for then, name in SCHEDULES.items():
            if now == then:
                cells.append("")
                continue
            chunks = 2 if KNOWN[name].any_chunks else None
            (said,) = trace.whatif(question("schedule", name, chunks)).predictions
            outcomes.append(Outcome(said, steps[then]))
            cells.append(outcomes[-1].cell())
        print(f"| {' | '.join(cells)} |")
    return outcomes


def runs(options: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Ask random questions about random runs."""
    return _asked(options, folder, case)


def demos(options: argparse.Namespace, folder: Path) -> list[Outcome]:
    """Ask random questions about runs of the demo alone, whose ranks do not wait at a step's end."""

    def one(seed: int, scale: float) -> Case:
        return _demo(np.random.default_rng(seed), scale)

    return _asked(options, folder, one)


def _asked(
    options: argparse.Namespace, folder: Path, made: Callable[[int, float], Case]
) -> list[Outcome]:
    """Make random cases, and print what was said beside what was measured."""
    cases = [made(options.first + number, options.scale) for number in range(options.count)]
    every = [run for one in cases for run in (one.before, one.after)]
    traces = made_all(every, folder, options.at_once)
    print("| seed | run and question | said | ± | measured | off |")
    print("|---|---|---|---|---|---|")
    outcomes = []
    for number, one in enumerate(cases):
        before, after = traces[2 * number : 2 * number + 2]
        (said,) = before.whatif(question(*one.asked)).predictions
        outcomes.append(Outcome(said, measured_ns(after)))
        print(f"| {options.first + number} | {one.what} | {outcomes[-1].cells()} |")
    return outcomes


def case(seed: int, scale: float) -> Case:
    """Return a random case: one in five is the demo's."""
    random = np.random.default_rng(seed)
    return _demo(random, scale) if seed % 5 == 4 else _torch(random, scale, seed)


def _demo(random: np.random.Generator, scale: float) -> Case:
    p = int(random.integers(3, 6))
    work = tuple(random.choice([0.6, 0.8, 1, 1, 1, 1.3, 1.6], p).tolist())
    before = Demo(str(random.choice(LINEAR)), work, p * int(random.integers(2, 4)), 8 * scale)
    what = f"demo {before.schedule}, p {p}, m {before.microbatches}, work {work}"
    kind = str(random.choice(["schedule", "microbatches", "stage"]))
    if kind == "schedule":
        name = str(random.choice([one for one in LINEAR if one != before.schedule]))
        after = before._replace(schedule=name)
        return Case(f"{what}: {name}", before, after, ("schedule", name))
    if kind == "microbatches":
        m = p * int(random.choice([4, 5]))
        after = before._replace(microbatches=m)
        return Case(f"{what}: m {m}", before, after, ("microbatches", m))
    stage, factor = int(random.integers(p)), float(random.choice([0.5, 1.5]))
    then = [one * factor if at == stage else one for at, one in enumerate(work)]
    after = before._replace(work=tuple(then))
    asked = ("scaled", "stage", stage, factor)
    return Case(f"{what}: stage {stage} x {factor}", before, after, asked)


def _torch(random: np.random.Generator, scale: float, seed: int) -> Case:
    p = int(random.choice([2, 3, 4]))
    whole, share = random.uniform(1.5, 2.5), random.uniform(0.42, 0.64)
    times = np.array([1, whole * share, whole * (1 - share)]) * 7.5 / (1 + whole) * scale
    layers, head, slow, partition = [1.0] * 4 * p, 0.0, {}, ()
    replicas = int(random.choice([1, 1, 2]))
    troubles = ["none", "slow", "slow", "heavy", "head", "uneven", "both"]
    trouble = str(random.choice(troubles))
    device, heavy = (int(random.integers(p)) for _ in range(2))
    if trouble in ("slow", "both"):
        slow[p * int(random.integers(replicas)) + device] = round(random.uniform(1.1, 1.7), 2)
    if trouble in ("heavy", "both"):
        layers[4 * heavy : 4 * heavy + 4] = [round(random.uniform(1.1, 1.7), 2)] * 4
    if trouble == "head":
        head = round(random.uniform(0.4, 2), 2)
    singles = trouble == "uneven" or random.random() < 0.4
    now = str(random.choice(SINGLE if singles else list(SCHEDULES)))
    if trouble == "uneven":
        held = [4] * p
        held[device] += 1
        held[(device + 1) % p] -= 1
        partition = tuple(held)
    before = Job(
        now,
        tuple(layers),
        head,
        partition,
        slow,
        replicas,
        ranks=p,
        microbatches=2 * p * int(random.integers(1, 3)),
        times_ms=tuple(times.tolist()),
        jitter=float(random.choice([0.0, 0.01, 0.03])),
        seed=2 * seed,
    )
    what = f"{now}, p {p}, m {before.microbatches}, {replicas} replicas, jitter {before.jitter}"
    what += f", slow {slow}" * bool(slow) + f", head {head}" * bool(head)
    what += f", layers {layers[::4]}" * (max(layers) > 1) + f", {partition}" * bool(partition)
    asked, after = _question(random, before)
    return Case(f"{what}: {' '.join(map(str, asked))}", before, after, asked)


def _question(random: np.random.Generator, before: Job) -> tuple[tuple[object, ...], Job]:
    """Return what is asked of a job, and the job that answers."""
    p, m = before.ranks, before.microbatches
    after = before._replace(seed=before.seed + 1)
    kinds = ["schedule", "schedule", "microbatches"]
    kinds += ["move", "move"] * (before.schedule in SINGLE) + ["healthy", "healthy"] * bool(
        before.slow
    )
    kind = str(random.choice(kinds))
    if kind == "microbatches":
        count = int(random.choice([one for one in (2 * p, 3 * p, 4 * p, 6 * p) if one != m]))
        if before.schedule == "DualPipeV" or count % p:  # needs two for each rank
            count = 4 * p if m != 4 * p else 2 * p
        return ("microbatches", count), after._replace(microbatches=count)
    if kind == "healthy":
        (rank,) = before.slow
        return ("healthy", rank), after._replace(slow={})
    if kind == "move":
        held = list(before.partition or (4,) * p)
        count, (source, target) = int(random.integers(1, 3)), random.choice(p, 2, replace=False)
        then = list(held)
        then[source] -= count
        then[target] += count
        asked = ("moved", count, int(source), int(target), held)
        return asked, after._replace(partition=tuple(then))
    others = [one for one in SCHEDULES if one != before.schedule]
    if before.partition:
        others = [one for one in SINGLE if one != before.schedule]
    then = str(random.choice(others))
    name = SCHEDULES[then]
    chunks = 2 if KNOWN[name].any_chunks else None
    generate(name, p, m, chunks=chunks)  # there is such a schedule
    return ("schedule", name, chunks), after._replace(schedule=then)


def summed_up(outcomes: list[Outcome]) -> None:
    """Print how many steps were within what was said of them, and how sure that was."""
    covered = sum(one.covered for one in outcomes)
    ranges = [one for one in outcomes if one.said.best_ns is not None]
    error = [one.said.error for one in outcomes]
    off = [abs(one.off) for one in outcomes]
    print(
        f"\n{covered} of {len(outcomes)} steps within what was said ({covered / len(outcomes):.1%})"
    )
    print(f"±: median {np.median(error):.2%}, most {max(error):.2%}; {len(ranges)} are ranges")
    if ranges:
        half = [(1 - one.best_ns / one.said.predicted_ns) / 2 for one in ranges]
        print(f"half of a range: median {np.median(half):.2%}, most {max(half):.2%}")
    print(f"off: median {np.median(off):.2%}, most {max(off):.2%}")


_WHAT = {"matrix": matrix, "runs": runs, "demos": demos}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=[*_WHAT])
    parser.add_argument("--scale", type=float, default=4.0, help="1: forwards of a layer take 5 ms")
    parser.add_argument("--at-once", type=int, default=1, help="jobs that run at a time")
    parser.add_argument("--count", type=int, default=60, help="of runs that are asked about")
    parser.add_argument("--first", type=int, default=0, help="first of the seeds of these")
    parser.add_argument("--keep", type=Path, help="folder for the recordings")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        summed_up(_WHAT[options.what](options, options.keep or Path(folder)))
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
