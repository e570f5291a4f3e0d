"""Other plans for a run's devices, and how they are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.model import units
from bubblescope.model.errors import ScheduleError
from bubblescope.model.timeline import Timeline
from bubblescope.schedules import SCHEDULES, generate, named
from bubblescope.schedules.plan import Plan

if TYPE_CHECKING:
    from bubblescope.analysis.cost_model import Model
    from bubblescope.analysis.idle.measured_run import MeasuredRun

_TWICE: Final = ("chimera", "dualpipe", "dualpipev")
"""Schedules that hold every parameter twice."""


def alternative(
    model: Model, name: str | Plan, chunks: int | None = None, microbatches: int | None = None
) -> Plan:
    """Return another schedule for a run's devices.

    Args:
        model: The run.
        name: One of `bubblescope.schedules.SCHEDULES`, or what others call it; or a plan.
        chunks: Model chunks on each device, where the schedule leaves that open; 2 if left out.
        microbatches: Of each round of a step, of which there are as many as in the run; as many as that
            has if left out.

    Raises:
        ScheduleError: It is not for these numbers.
    """
    now = model.plan
    count = now.per_round if microbatches is None else microbatches
    if isinstance(name, Plan):
        if (name.devices, name.microbatches) != (now.devices, count):
            raise ScheduleError(
                f"{name.name} is a plan for {name.devices} devices and {name.microbatches} "
                f"micro-batches, but {now.devices} and {count} are asked about"
            )
        if chunks not in (None, name.chunks):
            raise ScheduleError(f"{name.name} is a plan for {name.chunks} chunks, not {chunks}")
        return name.repeated(now.rounds)
    schedule = named(name)
    return generate(
        schedule.name,
        now.devices,
        count,
        chunks=(chunks or 2) if schedule.any_chunks else None,
        times=model.times,
        memory=now.peak_memory().max() if schedule.name == "zb-auto" else None,
    ).repeated(now.rounds)


def stepped(timeline: Timeline, run: MeasuredRun, tasks: pl.DataFrame) -> Timeline:
    """Return tasks whose steps are numbered from 0 as those of a run."""
    step = pl.Series(run.steps, dtype=pl.Int32).gather(tasks["step"])
    return Timeline(tasks.with_columns(step=step), timeline.ranks, timeline.run)


def needs_of_plan(name: str, plan: Plan, now: Plan) -> str:
    """Say what another schedule needs that the run's does not.

    Args:
        name: What it is called.
        plan: Its plan.
        now: The run's.
    """
    needs = []
    if plan.chunks != now.chunks:
        needs.append(f"{plan.chunks} chunks on each device")
    if plan.splits_backward and not now.splits_backward:
        needs.append("a backward that can be split")
    if name in _TWICE:
        needs.append("every parameter twice")
    more = float(plan.peak_memory().max() / now.peak_memory().max())
    if more > 1:
        needs.append(f"{more:.2f} times the activations")
    return ", ".join(needs)


def name_of(name: str | Plan) -> str:
    """Return the name of a schedule, or of a plan."""
    return name.name if isinstance(name, Plan) else named(name).name


def title_of(name: str, plan: Plan) -> str:
    """Return how a schedule is called where it could have other numbers of chunks."""
    free = name in SCHEDULES and SCHEDULES[name].any_chunks
    return f"{name}, {units.count(plan.chunks, 'chunk')}" if free else name


def numbers_of(plan: Plan) -> str:
    """Say how many micro-batches a plan has."""
    rounds = f" in each of {plan.rounds} rounds" if plan.rounds > 1 else ""
    return f"{plan.per_round} micro-batches{rounds}"
