"""What the budget of a run's devices comes to, as findings."""

from __future__ import annotations

from statistics import mean, median
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.device_budget import bound, main_reason, one_loads
from bubblescope.analysis.finding import Finding
from bubblescope.analysis.losses import BETWEEN
from bubblescope.analysis.step_lengths import is_one_step, warm_up
from bubblescope.analysis.why.late_ranks import LATE, late_ranks
from bubblescope.model.budget import AT_ONCE, HOST, Use
from bubblescope.names.host_ranges import compiles
from bubblescope.names.runtime_calls import is_of_memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bubblescope.analysis.device_budget import Budget
    from bubblescope.analysis.losses import Losses
    from bubblescope.model.provenance import Run

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
        evidence, advised = _seen(budget, use, alike=alike)
        said += evidence
        told = next(iter(options.get(advised, ())), None)
        if told is not None:
            said.append(Finding("advice", f"{advised}_option", {"option": told}))
        else:
            said.append(Finding("advice", advised, {}))
    return said


def _seen(budget: Budget, use: Use, *, alike: bool) -> tuple[list[Finding], str]:
    """Return what shows a class of time to be lost, and the key of the advice about it."""
    of_use = budget.in_steps.details.filter(use=use.value)
    if not of_use.height:  # all of it is in no whole step, as of a device without launches
        return [], use.value
    if use is Use.COMMUNICATION:
        said, advised = _waits(budget, alike=alike)
    else:
        said, advised = _once(budget, use, of_use)
        if use is Use.LAUNCH_CALL and not advised and (long := _long(of_use)) is not None:
            said, advised = [*said, long], LONG_CALLS
    top = of_use.filter(pl.col("detail").is_not_null(), pl.col("then").is_null()).head(1)
    if top.height:
        detail = top["detail"][0]
        share = top["spent_ns"][0] / of_use["spent_ns"].sum()
        if share >= _WORTH_NAMING:
            values = {"detail": detail, "detail_share": share}
            said.append(Finding("evidence", _HOW.get(use, "loss"), values))
        particular = _particular(use, detail) if share > _MOSTLY else None
        if not advised or (advised, particular) == (RECURS, COMPILING):
            advised = particular
    after, longest = _once_returned(of_use)
    return said + after, advised or longest or use.value


def _waits(budget: Budget, *, alike: bool) -> tuple[list[Finding], str | None]:
    """Return which ranks others wait for, and the key of the advice if most communication is that."""
    said = late_ranks(budget, alike=alike)
    waits = said[0].values["waiting_share"] if said else 0.0
    if waits < _WORTH_NAMING:
        return [], None
    return said, LATE if waits > _MOSTLY else None


def _once_returned(of_use: pl.DataFrame) -> tuple[list[Finding], str | None]:
    """Return what a host did once blocking calls had returned, and the key of the advice about most.

    Args:
        of_use: What `Steps.details` says of a class of time.
    """
    later = of_use.drop_nulls("then")
    share = int(later["spent_ns"].sum()) / int(of_use["spent_ns"].sum())
    if share < _WORTH_NAMING:
        return [], None
    sums = later.group_by("then").agg(pl.col("spent_ns").sum())
    then = sums.sort("spent_ns", "then", descending=[True, False])["then"][0]
    values = {"then_share": share, "use": Use(then)}
    return [Finding("evidence", "loss_then", values)], then if share > _MOSTLY else None


def _once(budget: Budget, use: Use, of_use: pl.DataFrame) -> tuple[list[Finding], str | None]:
    """Return that a loss is no cost of every step, as far as the trace tells, and the advice then.

    Args:
        budget: What the run's devices spent their time on.
        use: The class of time.
        of_use: What `Steps.details` says of it.
    """
    recurs = _recurs(budget, use)
    if recurs:
        return [], None
    if use is Use.LAUNCH_CALL and (slow := _slow(of_use, "call")) is not None:
        return [slow], FIRST_USE
    if recurs is None:
        slow = _slow(of_use, "gap") if use is Use.HOST_OPERATOR else None
        return ([slow], RECURS) if slow is not None else ([], None)
    first = _in_first_step(budget, use)
    if first is None:
        return [], None
    # Launches before the recording began are missing from its first step, whatever step that is.
    return [first], None if use is Use.UNLINKED else FIRST_STEP


FIRST_STEP: Final = "first_step"
"""Key of the advice about what only the first step loses."""
RECURS: Final = "recurs"
"""Key of the advice about what may be lost in every step, or on first use only."""
_OTHERS: Final = 2
"""Steps after the first that it takes to tell what every step loses."""


def _recurs(budget: Budget, use: Use) -> bool | None:
    """Say whether steps after the first lose what a step does on average; None if they are few."""
    lost = [budget.per_step[step].lost_ns(use) for step in budget.whole_steps]
    if len(lost) <= _OTHERS:
        return None
    return median(lost[1:]) >= _MOSTLY * mean(lost)


def _in_first_step(budget: Budget, use: Use) -> Finding | None:
    """Return that most of a loss is in the first step, if it is."""
    step, *others = budget.whole_steps
    lost, *rest = (budget.per_step[one].lost_ns(use) for one in budget.whole_steps)
    first = lost / max(1, lost + sum(rest))
    if first <= _MOSTLY:
        return None
    shares = (budget.per_step[one].share(ns) or 0 for one, ns in zip(others, rest, strict=True))
    values = {"step": step, "first_share": first, "others_share": median(shares)}
    return Finding("evidence", "first_step", values)


FIRST_USE: Final = "first_use"
"""Key of the advice about launches that load or compile their kernels."""


def _slow(of_use: pl.DataFrame, what: str) -> Finding | None:
    """Return how few calls, or gaps, of over a millisecond take most of the time of all, if they do.

    A single call may do so that is shorter.

    Args:
        of_use: What `Steps.details` says of them.
        what: "call" or "gap".
    """
    sums = pl.col("spent_ns", "slow_ns", "slow").sum(), pl.col("longest_ns").max()
    spent, slow, count, longest = of_use.select(sums).row(0)
    if slow <= _MOSTLY * spent:
        if what != "call" or not one_loads(spent, longest):
            return None
        slow, count = longest, 1
    values = {"count": count, "slow_share": slow / spent, "longest_ns": longest}
    return Finding("evidence", f"slow_{what}" if count == 1 else f"slow_{what}s", values)


LONG_CALLS: Final = "long_calls"
"""Key of the advice about launches that take long, each, whatever for."""


def _long(of_use: pl.DataFrame) -> Finding | None:
    """Return how many launch calls that do more than launch take most of the time, if they do."""
    spent, time, count = of_use.select(pl.col("spent_ns", "long_ns", "long").sum()).row(0)
    if time <= _MOSTLY * spent:
        return None
    return Finding("evidence", LONG_CALLS, {"count": count, "long_share": time / spent})


CALLS_OF_MEMORY: Final = "calls_of_memory"
"""Key of the advice about calls that allocate and free memory."""
COMPILING: Final = "compiling"
"""Key of the advice about operators that compile code."""
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
    if use is Use.HOST_OPERATOR and compiles(detail):
        return COMPILING
    if use is Use.HOST_OPERATOR and detail.startswith(_COMPILED):
        return COMPILED
    if use is Use.HOST_OPTIMIZER and ".zero_grad" in detail:
        return GRADIENTS
    return None


_COMPILED: Final = ("Torch-Compiled Region", "CompiledFunction")
"""What ranges of code that torch.compile made begin with."""


def _copies(sort: str) -> str:
    """Return the key of the advice about copies: pinned memory helps only those from and to a host."""
    if AT_ONCE in sort:
        return "copies_at_once"
    way, _, memory = sort.partition(" ")
    if memory == "unified":
        return Use.PAGES.value
    if memory == "pinned":
        return "copy_pinned"
    return {"DtoD": "copy_on_device", "PtoP": "copy_between_devices"}.get(way, Use.COPY.value)
