"""Random runs with random faults and damage: schedules, replicas that wait or drift, causes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from bubblescope import Timeline
from bubblescope.model.errors import ScheduleError
from bubblescope.model.provenance import Run
from bubblescope.schedules import generate
from injected import CAUSES, Fault, Job, fault

if TYPE_CHECKING:
    from collections.abc import Callable

ORIGIN = 1_750_000_000_123_456_789
TIMES = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")
SCHEDULES = ("1f1b", "zb-h1", "interleaved-1f1b", "gpipe", "zb-v")
_BETWEEN_NS = 1_000_000
_OPTIMIZER_NS = 500_000


class Made(NamedTuple):
    """A run.

    Attributes:
        what: In words.
        timeline: The run.
        slow: The rank that was made slow, if there is one and replicas tell it from its stage.
    """

    what: str
    timeline: Timeline
    slow: int | None


def made(seed: int) -> Made:
    """Return a random run."""
    random = np.random.default_rng(seed)
    name = str(random.choice(SCHEDULES))
    p = int(random.integers(2, 6))
    plan = generate(name, p, 2 * p if name == "zb-v" else p * int(random.integers(1, 4)))
    jitter = float(random.choice([0.0, 0.01, 0.05, 0.2]))
    replicas, steps = int(random.integers(1, 5)), int(random.integers(1, 6))
    job = Job(plan, replicas=replicas, steps=steps, jitter=jitter, seed=seed)
    faults = _faults(random, job)
    played = job.play(*faults)
    tasks = played.tasks
    drifts = replicas > 1 and steps > 1 and random.random() < 0.3
    if drifts:
        tasks = _drifting(tasks, job)
    damage = str(random.choice([*_DAMAGE]))
    if random.random() < 0.5:
        tasks = _DAMAGE[damage](tasks, random)
    else:
        damage = "whole"
    slow = [one.slow for one in faults if one.slow]
    told = len(slow) == 1 and replicas > 2 and steps > 2 and damage == "whole" and jitter < 0.1
    [(copy, device)] = slow[0] if told else [(0, 0)]
    causes = " and ".join(one.cause.value for one in faults) or "no fault"
    what = f"{seed}: {name}, p {p}, m {plan.microbatches}, {replicas} replicas, {steps} steps, "
    what += f"jitter {jitter}, {causes}, {damage}{', drifting' * drifts}"
    shifted = tasks.with_columns(pl.col(*TIMES) + ORIGIN)
    timeline = Timeline(shifted, played.ranks, Run())
    return Made(what, timeline, copy * p + device if told else None)


def _faults(random: np.random.Generator, job: Job) -> list[Fault]:
    faults = []
    for index in random.permutation(len(CAUSES))[: int(random.integers(0, 3))]:
        with suppress(ScheduleError):  # no swap costs anything
            faults.append(fault(CAUSES[index], random, job))
    return faults


def _drifting(tasks: pl.DataFrame, job: Job) -> pl.DataFrame:
    """Let each replica begin a step when it has done the one before."""
    rows, opens = [], [0] * job.replicas
    for step in range(job.steps):
        for copy in range(job.replicas):
            mine = tasks.filter(pl.col("step") == step, pl.col("rank") // job.plan.devices == copy)
            mine = mine.with_columns(pl.col(*TIMES) - int(mine["start_ns"].min()) + opens[copy])
            opens[copy] = int(mine["end_ns"].max()) + _BETWEEN_NS
            rows.append(mine)
    return pl.concat(rows)


def _rank(tasks: pl.DataFrame, random: np.random.Generator) -> pl.Expr:
    return pl.col("rank") == int(random.integers(int(tasks["rank"].max()) + 1))


def _step_missing(tasks: pl.DataFrame, random: np.random.Generator) -> pl.DataFrame:
    """A rank lacks a step of several."""
    step = int(random.integers(int(tasks["step"].max()) + 1))
    if tasks["step"].n_unique() == 1:
        return tasks
    return tasks.filter(~(_rank(tasks, random) & (pl.col("step") == step)))


def _cut_short(tasks: pl.DataFrame, random: np.random.Generator) -> pl.DataFrame:
    """A rank's recording ends early."""
    return tasks.filter(~_rank(tasks, random) | (pl.col("end_ns") < tasks["end_ns"].quantile(0.8)))


def _begun_late(tasks: pl.DataFrame, random: np.random.Generator) -> pl.DataFrame:
    """A rank's recording begins late."""
    begun = pl.col("start_ns") > tasks["end_ns"].quantile(0.15)
    return tasks.filter(~_rank(tasks, random) | begun)


def _clock_off(tasks: pl.DataFrame, random: np.random.Generator) -> pl.DataFrame:
    """A rank's clock is off."""
    off = pl.col(*TIMES) + int(random.integers(-20, 20)) * 1_000_000
    return tasks.with_columns(pl.when(_rank(tasks, random)).then(off).otherwise(pl.col(*TIMES)))


def _unnumbered(tasks: pl.DataFrame, _random: np.random.Generator) -> pl.DataFrame:
    """The only step has no number."""
    if tasks["step"].n_unique() > 1:
        return tasks
    return tasks.with_columns(step=pl.lit(None, pl.Int32))


def _optimized(tasks: pl.DataFrame, _random: np.random.Generator) -> pl.DataFrame:
    """Steps end with the optimizer."""
    after = (
        tasks.filter(lane="compute")
        .group_by("rank", "step")
        .agg(start_ns=pl.col("end_ns").max())
        .with_columns(
            kind=pl.lit("optimizer", tasks.schema["kind"]),
            lane=pl.lit("compute", tasks.schema["lane"]),
            end_ns=pl.col("start_ns") + _OPTIMIZER_NS,
            name=pl.lit("step"),
        )
    )
    return pl.concat([tasks, after], how="diagonal")


def _half_a_step(tasks: pl.DataFrame, random: np.random.Generator) -> pl.DataFrame:
    """Every rank's recording ends within the last step."""
    last = tasks.filter(pl.col("step") == pl.col("step").max())
    if tasks["step"].n_unique() == 1:
        return tasks
    until = int(last["start_ns"].quantile(float(random.uniform(0.3, 0.7))))
    return tasks.filter(pl.col("end_ns") < until)


_DAMAGE: dict[str, Callable[[pl.DataFrame, np.random.Generator], pl.DataFrame]] = {
    "one rank lacks a step": _step_missing,
    "one rank cut short": _cut_short,
    "one rank begun late": _begun_late,
    "one clock off": _clock_off,
    "a step without number": _unnumbered,
    "an optimizer": _optimized,
    "cut in the last step": _half_a_step,
}
