"""What the budget of a run's devices comes to, as findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.device_budget import bound, main_reason
from bubblescope.analysis.finding import Finding
from bubblescope.analysis.losses import BETWEEN
from bubblescope.analysis.step_lengths import warm_up
from bubblescope.model.budget import HOST, Use
from bubblescope.names.runtime_calls import is_of_memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bubblescope.analysis.device_budget import Budget
    from bubblescope.analysis.losses import Losses

_LEAST: Final = 0.01
"""Share of the time below which a loss is not spoken of."""
_MOSTLY: Final = 0.5
"""Share of a loss above which one sort of it decides what to do."""
_WORTH_NAMING: Final = 0.1
"""Share of a loss below which a sort of it is not named."""
_MOST: Final = 3
"""Losses that are spoken of."""

_TOLD: Final = (Use.HOST_UNKNOWN.value, Use.UNLINKED.value)
"""Losses of which a trace with another option of the profiler tells the reason."""

_HOW: Final[dict[Use, str]] = {
    **dict.fromkeys(HOST, "loss_mostly"),
    Use.HOST_AFTER_SYNC: "loss_after",
}
"""How gaps are told to be in what is named, where it is not all of them."""


def of_devices(
    budget: Budget, losses: Losses | None, between: list[Finding], *, pipelined: bool
) -> list[Finding]:
    """Return all that is said of a run whose traces hold the work of devices.

    Args:
        budget: What its devices spent their time on.
        losses: What makes its steps longer than computing; None if it has none.
        between: What else is said, after the verdict and before what is lost.
        pipelined: Whether it may be a pipeline, of which the last step is as good as the others.
    """
    said = [verdict(budget, whole=not pipelined), *in_graphs(budget), *between]
    return said + (lost(budget, losses) if losses else [])


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


def first_step(budget: Budget) -> list[Finding]:
    """Return that the first step is unlike the others, if it is."""
    ended = budget.per_step.keys() - {step for _, step in budget.open_steps}
    return warming({step: budget.lengths_ns[step] for step in ended})


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


def lost(budget: Budget, losses: Losses) -> list[Finding]:
    """Return what time is lost to that is no bubble, most first."""
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
        said.append(Finding("verdict", "loss", values))
        of_use = budget.in_steps.details.filter(use=use.value)
        top = of_use.filter(pl.col("detail").is_not_null()).head(1)
        advised = use.value
        if use is Use.LAUNCH_CALL and (slow := _slow(of_use)) is not None:
            said.append(slow)
            advised = FIRST_USE
        if top.height:
            detail = top["detail"][0]
            share = top["spent_ns"][0] / of_use["spent_ns"].sum()
            if share >= _WORTH_NAMING:
                values = {"detail": detail, "detail_share": share}
                said.append(Finding("evidence", _HOW.get(use, "loss"), values))
            if share > _MOSTLY:
                advised = _particular(use, detail) or advised
        told = next(iter(options.get(advised, ())), None)
        if told is not None:
            said.append(Finding("advice", f"{advised}_option", {"option": told}))
        else:
            said.append(Finding("advice", advised, {}))
    return said


FIRST_USE: Final = "first_use"
"""Key of the advice about launches that load or compile their kernels."""


def _slow(calls: pl.DataFrame) -> Finding | None:
    """Return how few launch calls take most of the time of all, if they do.

    Args:
        calls: What `Steps.details` says of launch calls.
    """
    spent, slow, count = calls.select(pl.col("spent_ns", "slow_ns", "slow").sum()).row(0)
    if slow <= _MOSTLY * spent:
        return None
    values = {"count": count, "slow_share": slow / spent, "longest_ns": calls["longest_ns"].max()}
    return Finding("evidence", "slow_call" if count == 1 else "slow_calls", values)


CALLS_OF_MEMORY: Final = "calls_of_memory"
"""Key of the advice about calls that allocate and free memory."""
COMPILED: Final = "compiled"
"""Key of the advice about operators that launch late though they are compiled."""
GRADIENTS: Final = "gradients"
"""Key of the advice about an optimizer that clears gradients."""


def _particular(use: Use, detail: str) -> str | None:
    """Return the key of the advice about most of a class of time; None if it is that of the class."""
    if use is Use.COPY:
        return _copies(detail)
    if use is Use.HOST_CALL and is_of_memory(detail):
        return CALLS_OF_MEMORY
    if use is Use.HOST_OPERATOR and detail.startswith(_COMPILED):
        return COMPILED
    if use is Use.HOST_OPTIMIZER and ".zero_grad" in detail:
        return GRADIENTS
    return None


_COMPILED: Final = ("Torch-Compiled Region", "CompiledFunction")
"""What ranges of code that torch.compile made begin with."""


def _copies(sort: str) -> str:
    """Return the key of the advice about copies: pinned memory helps only those from and to a host."""
    way, _, memory = sort.partition(" ")
    if memory == "unified":
        return Use.PAGES.value
    if memory == "pinned":
        return "copy_pinned"
    return {"DtoD": "copy_on_device", "PtoP": "copy_between_devices"}.get(way, Use.COPY.value)
