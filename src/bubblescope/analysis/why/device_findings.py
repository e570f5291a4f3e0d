"""What the budget of a run's devices comes to, as findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.advised import MOSTLY, WORTH_NAMING, seen
from bubblescope.analysis.device_words import bound, main_reason
from bubblescope.analysis.finding import Finding
from bubblescope.analysis.losses import BETWEEN
from bubblescope.analysis.step_lengths import is_one_step, warm_up
from bubblescope.analysis.why.late_ranks import LATE, late_ranks
from bubblescope.model.budget import Use

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bubblescope.analysis.device_budget import Budget
    from bubblescope.analysis.losses import Losses
    from bubblescope.model.provenance import Run

_LEAST: Final = 0.01
"""Share of the time below which a loss is not spoken of."""
_MOST: Final = 3
"""Losses that are spoken of."""

_TOLD: Final = (Use.HOST_UNKNOWN.value, Use.UNLINKED.value)
"""Losses of which a trace with another option of the profiler tells the reason."""


def of_devices(
    budget: Budget,
    losses: Losses | None,
    between: list[Finding],
    *,
    pipelined: bool,
    stepped: bool,
    alike: bool = True,
) -> list[Finding]:
    """Return all that is said of a run whose traces hold the work of devices.

    Args:
        budget: What its devices spent their time on.
        losses: What makes its steps longer than computing; None if it has none.
        between: What else is said, after the verdict and before what is lost.
        pipelined: Whether it may be a pipeline, of which the last step is as good as the others.
        stepped: Whether it has steps.
        alike: Whether all ranks hold the same stages, so that they can be compared.
    """
    said = [verdict(budget, whole=not pipelined), *in_graphs(budget), *between]
    return said + (lost(budget, losses, stepped=stepped, alike=alike) if losses else [])


def verdict(budget: Budget, *, whole: bool) -> Finding:
    """Return what the steps of a run are bound by, and why its devices are idle in them.

    Args:
        budget: What its devices spent their time on.
        whole: Whether steps that go on when the recording ends are left out.
    """
    steps = budget.in_steps.spending if whole else budget.in_any
    outside = 1 - steps.total_ns / max(1, budget.overall.total_ns)
    steps = budget.overall if outside < _LEAST else steps
    by = bound(steps)
    if not steps.idle_ns:
        key = "busy_outside" if by == "graph" else "busy"
        return Finding("verdict", key, {"bound": by})
    key, time = main_reason(steps)
    values = {
        "bound": by,
        "idle_tenth": steps.share(steps.idle_ns),
        "main_whole": time / steps.idle_ns,
        "reason": key,
    }
    if steps is budget.overall:
        return Finding("verdict", "device", values)
    return Finding("verdict", "device_in_steps", {**values, "outside_tenth": outside})


def in_graphs(budget: Budget) -> list[Finding]:
    """Return how long devices ran graphs of which the traces do not tell what ran in them, if long."""
    steps = budget.in_steps.spending
    share = steps.share(steps.graphs_ns) or 0
    if share < _LEAST:
        return []
    told = Finding("verdict", "graphs", {"graphs_tenth": share})
    return [told, Finding("advice", "graphs", {})]


def knows_steps(budget: Budget, run: Run) -> bool:
    """Say whether the trace has steps: else all of the recording is told of as a whole."""
    return bool(budget.per_step) and not is_one_step(run)


def first_step(budget: Budget) -> list[Finding]:
    """Return that the first step is unlike the others, if it is."""
    return warming({step: budget.lengths_ns[step] for step in budget.whole_steps})


def warming(lengths: Mapping[int, int]) -> list[Finding]:
    """Return that the first of some steps is unlike the others, if it is.

    Args:
        lengths: How long each takes.
    """
    found = warm_up(lengths)
    if found is None:
        return []
    values = {
        "step": found.step,
        "step_ns": found.length_ns,
        "factor_times": found.factor,
        "others_ns": found.median_ns,
    }
    return [Finding("evidence", "warm_up", values)]


def lost(budget: Budget, losses: Losses, *, stepped: bool, alike: bool = True) -> list[Finding]:
    """Return what time is lost to that is no bubble, most first, of a step or of the recording.

    Args:
        budget: What devices spent their time on.
        losses: What makes steps longer than computing.
        stepped: Whether there are steps.
        alike: As of `of_devices`.
    """
    key = "loss" if stepped else "loss_of_recording"
    ranked = losses.ranked().filter(pl.col("place") != BETWEEN, pl.col("share") >= _LEAST)
    options = {one["class"]: one["options"] for one in budget.undecided if one["class"] in _TOLD}
    by_use = ranked.unique("use", keep="first", maintain_order=True).head(_MOST)
    said = []
    for row in by_use.to_dicts():
        use = Use(row["use"])
        values = {
            "use": use,
            "per_step_ns": row["per_step_ns"],
            "time_share": row["share"],
            "place": row["place"],
        }
        said.append(Finding("verdict", key, values))
        waits = _waits(budget, alike=alike) if use is Use.COMMUNICATION else None
        evidence, advised = seen(budget, use, waits)
        said += evidence
        told = next(iter(options.get(advised, ())), None)
        if told is not None:
            said.append(Finding("advice", f"{advised}_option", {"option": told}))
        else:
            said.append(Finding("advice", advised, {}))
    return said


def _waits(budget: Budget, *, alike: bool) -> tuple[list[Finding], str | None]:
    """Return which ranks others wait for, and the key of the advice if most communication is that."""
    said = late_ranks(budget, alike=alike)
    waits = said[0].values["waiting_share"] if said else 0.0
    if waits < WORTH_NAMING:
        return [], None
    return said, LATE if waits > MOSTLY else None
