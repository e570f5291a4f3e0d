"""Questions about runs into which something was put, and what was put in: the answers.

The runs are played by `injected`, which shares nothing with what analyses them, and some answers are
arithmetic: with p devices and m micro-batches, a step of 1F1B takes m + p - 1 passes, and its
bubble rate is (p - 1) / (m + p - 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import polars as pl

from bubblescope import Timeline
from bubblescope.analysis.idle.causes import Cause
from bubblescope.model.provenance import ONE_STEP
from bubblescope.schedules import generate
from injected import Fault, Job

if TYPE_CHECKING:
    from pathlib import Path

P, M = 4, 8
MS = 1_000_000
PASS_NS = 30 * MS
"""A forward and a whole backward, as `injected` plays them."""
STEPS = 4


class Question(NamedTuple):
    """A question, the names of the runs that it is about, and its answer.

    Attributes:
        text: The question.
        runs: Names of `runs`.
        answer: What is right; None if it cannot be known.
        within: How far a number may be off, as a share.
    """

    text: str
    runs: tuple[str, ...]
    answer: Any
    within: float = 0.0


def _job(*faults: Fault, schedule: str = "1f1b", replicas: int = 1, **more: Any) -> Timeline:
    return Job(generate(schedule, P, M), replicas=replicas, steps=STEPS, **more).play(*faults)


def _every(operation: int, length_ns: int) -> dict[tuple[int, int, int], int]:
    return {(step, 0, operation): length_ns for step in range(STEPS)}


def _steady(device: int) -> int:
    """Return an operation in the middle of what a device runs."""
    plan = generate("1f1b", P, M)
    return int(plan.first[device]) + M


def runs() -> dict[str, Timeline]:
    """Return the runs by name."""
    plain = _job()
    longest = pl.col("rank").eq(1) & pl.col("step").eq(2) & pl.col("microbatch").eq(5)
    longest &= pl.col("kind") == "backward"
    stretched = plain.tasks.with_columns(
        end_ns=pl.when(longest).then(pl.col("end_ns") + 9 * MS).otherwise("end_ns")
    )
    return {
        "plain": plain,
        "zb": _job(schedule="zb-h1"),
        "slow": _job(Fault(Cause.SLOW_RANK, slow={(1, 2): 1.5}), replicas=2),
        "slow alone": _job(Fault(Cause.SLOW_RANK, slow={(0, 2): 1.5})),
        "heavy": _job(Fault(Cause.IMBALANCE, heavy={1: 1.6})),
        "links": _job(Fault(Cause.TRANSFER, link_ns={(0, 1): 6 * MS, (1, 0): 6 * MS})),
        "paused": _job(Fault(Cause.PAUSE, pause_ns=_every(_steady(2), 40 * MS))),
        "late": _job(Fault(Cause.LAUNCH, late_ns=_every(_steady(3), 40 * MS))),
        "odd step": _job(Fault(Cause.PAUSE, pause_ns={(2, 0, _steady(1)): 90 * MS})),
        "long task": Timeline(stretched, plain.ranks, plain.run),
        "noisy": _job(jitter=0.05, seed=1),
        "noisy too": _job(jitter=0.05, seed=2),
        "one step": plain.slice(steps=[0]),
        "no passes": Timeline(
            plain.tasks.with_columns(
                kind=pl.lit("other"), stage=None, chunk=None, microbatch=None, name=pl.lit("work")
            ).cast(plain.tasks.schema),
            plain.ranks,
            plain.run,
        ),
    }


def unsure() -> list[Timeline]:
    """Return a run of which more cannot be known: its clock, ranks and steps."""
    plain = _job()
    known = {"common_clock": False, "world": 2 * P, "inferred": {"step": ONE_STEP}}
    tasks = plain.tasks.with_columns(step=pl.lit(0, pl.Int32))
    return [Timeline(tasks, plain.ranks, msgspec.structs.replace(plain.run, **known))]


def write(folder: Path) -> dict[str, Path]:
    """Write the runs; return where each is."""
    return {
        name: run.save(folder / f"{name.replace(' ', '-')}.bubbles.parquet")
        for name, run in runs().items()
    }


QUESTIONS = [
    Question("What is the bubble rate?", ("plain",), (P - 1) / (M + P - 1), 1e-6),
    Question("Which schedule is this?", ("zb",), "zb-h1"),
    Question("Which schedule is this?", ("slow",), "1f1b"),
    Question("What is the first cause of idle time?", ("slow",), "slow rank"),
    Question("Which rank is slow?", ("slow",), P + 2),
    Question("How much slower than its peers is it?", ("slow",), 0.5, 0.01),
    Question("Is it the device or its layers?", ("slow",), "device"),
    Question("Is it the device or its layers?", ("slow alone",), None),
    Question("What is the first cause of idle time?", ("heavy",), "stage imbalance"),
    Question("Which stage takes longest?", ("heavy",), 1),
    Question("How many times as long as the others does it take?", ("heavy",), 1.6, 0.01),
    Question("What is the first cause of idle time?", ("links",), "exposed transfer"),
    Question("What is the first cause of idle time?", ("paused",), "host pause"),
    Question("On which rank does the host hold work back?", ("late",), 3),
    Question("Which step is the longest?", ("odd step",), 2),
    Question("Which micro-batch has the longest task?", ("long task",), 5),
    Question(
        "What would a step take with `--microbatches 16`?",
        ("plain",),
        (16 + P - 1) * PASS_NS,
        0.01,
    ),
    Question(
        "What would a step take with `--stage 1=0.625`?", ("heavy",), (M + P - 1) * PASS_NS, 0.01
    ),
    Question("Is the second run faster or slower?", ("noisy", "heavy"), "slower"),
    Question("Is the second run faster or slower?", ("noisy", "noisy too"), "not certain"),
    Question("Which stage has grown?", ("noisy", "heavy"), "1"),
    Question("Does the gate `step > +5%` fail?", ("noisy", "heavy"), "failed"),
    Question("Which kernel takes longest?", ("plain",), None),
    Question("Is the second run faster or slower?", ("one step", "heavy"), None),
    Question("What is the first cause of idle time?", ("no passes",), None),
]
