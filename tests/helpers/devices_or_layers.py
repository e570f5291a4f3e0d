"""Random runs with slow devices or heavy layers, what is asked about them, and what then happens.

The run is played, and so is the other one, with the same slow devices and the same layers; nothing
here is shared with what predicts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.idle.causes import Cause
from bubblescope.model.errors import ScheduleError
from bubblescope.schedules import SCHEDULES, generate
from injected import Fault, Job

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope import Timeline
    from bubblescope.analysis.prediction import Prediction
    from bubblescope.analysis.whatif import WhatIf
    from bubblescope.schedules.plan import Plan

LAYERS = 8
"""Layers of each device."""

QUESTIONS = ("schedule", "microbatches", "move", "healthy")
OTHERS = (
    *("1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "interleaved-1f1b", "interleaved-zb", "gpipe"),
    *("looped-bfs", "hanayo", "chimera"),
)


class Case(NamedTuple):
    """A run, a question about it, and the run that answers.

    Attributes:
        what: In words.
        run: What was measured.
        ask: The question.
        step_ns: How long a step of the other run is.
        busiest_ns: How long its device that computes most does in a step, the mean.
        told: Whether replicas tell devices from layers.
    """

    what: str
    run: Timeline
    ask: Callable[[WhatIf], Prediction]
    step_ns: float
    busiest_ns: float
    told: bool


class Trouble(NamedTuple):
    """What makes the devices of a run take different times.

    Attributes:
        slow: As in `Fault`.
        layers: What each layer costs, those of the usual being 1.
        head: What the last stage takes besides.
        device: The device that takes longest for it.
    """

    slow: dict[tuple[int, int], float]
    layers: np.ndarray
    head: float
    device: int

    def fault(self, plan: Plan, held: np.ndarray | None = None) -> Fault:
        """Return what makes a plan's stages as heavy as their layers are, and devices slow.

        Args:
            plan: The plan.
            held: Layers of each stage; the same number if left out.
        """
        count = len(self.layers)
        ends = np.arange(plan.stages + 1) * count / plan.stages
        if held is not None:
            ends = np.concatenate([[0], np.cumsum(held)])
        begun = np.concatenate([[0], np.cumsum(self.layers)])
        cost = np.diff(np.interp(ends, np.arange(count + 1), begun))
        cost[-1] += self.head
        heavy = dict(enumerate((cost * plan.stages / count).tolist()))
        return Fault(Cause.SLOW_RANK, slow=self.slow, heavy=heavy)


def case(seed: int, question: str | None = None) -> Case:
    """Return a random case."""
    random = np.random.default_rng(seed)
    p = int(random.integers(2, 7))
    m = p * int(random.integers(2, 5)) * 2
    now = str(random.choice(["1f1b", "zb-h1", "interleaved-1f1b", "gpipe"]))
    plan = generate(now, p, m)
    replicas = int(random.integers(1, 4))
    jitter = float(random.choice([0.0, 0.01, 0.03, 0.06]))
    steps = int(random.integers(2, 9))
    trouble = _trouble(random, p, replicas)
    question = question or str(random.choice(QUESTIONS))
    if question == "move" and plan.chunks > 1:
        question = "schedule"
    asked, other, fault = _question(question, random, plan, trouble)
    before = Job(plan, replicas=replicas, steps=steps, jitter=jitter, seed=seed)
    after = Job(other, replicas=replicas, steps=steps, jitter=jitter, seed=seed + 10**6)
    ran, then = before.play(trouble.fault(plan)), after.play(fault)
    what = f"{seed}: {now}, p {p}, m {m}, {replicas} replicas, {steps} steps, jitter {jitter}, "
    what += f"slow {trouble.slow}, layers {trouble.layers[::LAYERS]}, head {trouble.head:.2f}: "
    what += " ".join(map(str, asked))
    name, *arguments = asked

    def ask(run: WhatIf) -> Prediction:
        return getattr(run, name)(*arguments)

    return Case(what, ran, ask, step(then), busiest(then), replicas > 1)


def _trouble(random: np.random.Generator, p: int, replicas: int) -> Trouble:
    kind = str(random.choice(["device", "layers", "both"], p=[0.45, 0.45, 0.1]))
    device = int(random.integers(p))
    slow: dict[tuple[int, int], float] = {}
    if kind != "layers":
        slow[int(random.integers(replicas)), device] = random.uniform(1.05, 2.4)
    layers = np.ones(p * LAYERS)
    if kind == "device":
        return Trouble(slow, layers, 0.0, device)
    if random.random() < 0.3:
        return Trouble(slow, layers, random.uniform(0.1, 1.0) * LAYERS, p - 1)
    heavy = int(random.integers(p))
    layers[heavy * LAYERS : (heavy + 1) * LAYERS] = random.uniform(1.05, 2)
    return Trouble(slow, layers, 0.0, heavy if kind == "layers" else device)


def _question(
    question: str, random: np.random.Generator, plan: Plan, trouble: Trouble
) -> tuple[tuple[object, ...], Plan, Fault]:
    """Return the method and its arguments, the plan that answers, and the faults that it has."""
    p, device = plan.devices, trouble.device
    if question == "schedule":
        name, chunks, other = _schedule(random, plan)
        return ("schedule", name, chunks), other, trouble.fault(other)
    if question == "microbatches":
        m = plan.microbatches
        count = int(random.choice([m // 2, 2 * m, 3 * m]))
        free = SCHEDULES[plan.name].any_chunks
        other = generate(plan.name, p, count, chunks=plan.chunks if free else None)
        return ("microbatches", count), other, trouble.fault(other)
    if question == "move":
        target = int(random.choice([one for one in range(p) if one != device]))
        count = int(random.integers(1, 4))
        held = np.full(p, LAYERS)
        held[[device, target]] += [-count, count]
        asked = ("moved", count, device, target, [LAYERS] * p)
        return asked, plan, trouble.fault(plan, held)
    replica = next(iter(trouble.slow))[0] if trouble.slow else 0
    still = {where: times for where, times in trouble.slow.items() if where != (replica, device)}
    return ("healthy", replica * p + device), plan, trouble._replace(slow=still).fault(plan)


def _schedule(random: np.random.Generator, plan: Plan) -> tuple[str, int | None, Plan]:
    while True:
        name = str(random.choice(OTHERS))
        chunks = int(random.choice([2, 4])) if SCHEDULES[name].any_chunks else None
        try:
            return name, chunks, generate(name, plan.devices, plan.microbatches, chunks=chunks)
        except ScheduleError:
            continue


def step(timeline: Timeline) -> float:
    """Return the mean pipeline phase of a step."""
    parts = timeline.tasks.filter(lane="compute").partition_by("step")
    return float(np.mean([int(p["end_ns"].max()) - int(p["start_ns"].min()) for p in parts]))


def busiest(timeline: Timeline) -> float:
    """Return the mean over steps of what the rank with most to do computes."""
    tasks = timeline.tasks.filter(lane="compute")
    taken = tasks.group_by("step", "rank").agg(pl.col("end_ns").sum() - pl.col("start_ns").sum())
    return float(taken.group_by("step").agg(pl.col("end_ns").max())["end_ns"].mean())
