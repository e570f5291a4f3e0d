"""What a run is set beside: a schedule as it is planned, on the run's own axis of time.

As Figure 6 of the zero-bubble paper (Qi et al., ICLR 2024, arXiv:2401.10241) shows a schedule above the
execution that was profiled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bubblescope.analysis.cost_model import Model
from bubblescope.analysis.other_plans import alternative, stepped
from bubblescope.analysis.picture_data import Reference
from bubblescope.model.errors import ScheduleError, TimelineError
from bubblescope.schedules import SCHEDULES
from bubblescope.schedules.naming import meant, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.study import Study
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan

IDEAL: Final = "ideal"
PLAN: Final = "plan"


def reference(timeline: Timeline, name: str, known: Study, also: Sequence[Plan] = ()) -> Reference:
    """Return what a run is to be set beside.

    Args:
        timeline: The run.
        name: "ideal": the run's own tasks in the order of its schedule, none waiting but for what it
            needs. "plan": the run's schedule with every operation as long as the mean of its kind, and
            transfers as measured. Any of `SCHEDULES`, by its own or another's name, or the name of one
            of `also`: that schedule, in the same way.
        known: What was worked out about the run.
        also: Schedules besides the known ones.

    Raises:
        ScheduleError: There is no such schedule, it is not for the run's devices and micro-batches, the
            run's own is not recognised, or an ideal is asked for of devices that left no trace.
        TimelineError: The run's ranks share no clock, or it has no pipeline tasks.
    """
    plans = {plan.name: plan for plan in also}
    if name not in (IDEAL, PLAN, *plans):
        schedule = meant(name, SCHEDULES)
        if schedule is None:
            near = nearest(name, (IDEAL, PLAN, *SCHEDULES, *plans))
            raise ScheduleError(
                f"{name!r} cannot be set beside a run; "
                + (f"did you mean {near}? Give " if near else "give ")
                + f"{IDEAL}, {PLAN} or a schedule: {', '.join((*SCHEDULES, *plans))}"
            )
        name = schedule
    recognition = known.recognition
    if recognition is None or recognition.plan is None:
        raise ScheduleError(
            "the run's schedule is not recognised, so nothing can be set beside it; describe it with "
            "--plan"
        )
    own = recognition.plan.name
    if name == IDEAL:
        recognition.check_whole()
        if known.ideal is None or known.ideal.timeline is None:
            raise TimelineError("the ideal needs whole steps of ranks that share a clock")
        detail = (
            f"the run's own tasks in the order of {own}, where tasks wait only for the results that "
            "they need, which arrive at once"
        )
        return Reference(f"ideal {own}", detail, known.ideal.timeline)
    model = Model.of(recognition, known.ledger.counterfactuals) if known.ledger else None
    if known.ledger is None or model is None:
        raise TimelineError(
            "a plan needs a run with forwards and backwards whose ranks share a clock; --clock solve "
            "tries to find one"
        )
    run = known.ledger.counterfactuals.run
    plan = model.plan if name == PLAN else plans.get(name) or alternative(model, name)
    if plan.devices != model.plan.devices:
        raise ScheduleError(
            f"{plan.name} is for {plan.devices} devices, and the run has {model.plan.devices}"
        )
    tasks = model.evened().tasks(plan, run.opens_ns)
    detail = (
        f"{plan.name} with {plan.microbatches} micro-batches, every operation as long as the mean of "
        "its kind and transfers as measured"
    )
    return Reference(f"{plan.name} as planned", detail, stepped(timeline, run, tasks))
