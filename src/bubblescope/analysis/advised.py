"""What shows a class of the devices' time to be lost, and the key of the advice about it.

`bubblescope why` gives the advice (`bubblescope.analysis.words`), and what-ifs say in a few words what
it takes (`bubblescope.analysis.remedies`): both go by the same signs.
"""

from __future__ import annotations

from statistics import mean, median
from typing import TYPE_CHECKING, Final

import polars as pl

from bubblescope.analysis.device_budget import one_loads
from bubblescope.analysis.finding import Finding
from bubblescope.model.budget import AT_ONCE, HOST, Use
from bubblescope.names.host_ranges import compiles
from bubblescope.names.runtime_calls import is_of_memory

if TYPE_CHECKING:
    from bubblescope.analysis.device_budget import Budget

MOSTLY: Final = 0.5
"""Share of a loss above which one sort of it decides what to do."""
WORTH_NAMING: Final = 0.1
"""Share of a loss below which a sort of it is not named."""

_HOW: Final[dict[Use, str]] = {
    **dict.fromkeys(HOST, "loss_mostly"),
    Use.HOST_AFTER_SYNC: "loss_after",
}
"""How gaps are told to be in what is named, where it is not all of them."""


def seen(
    budget: Budget, use: Use, told: tuple[list[Finding], str | None] | None = None
) -> tuple[list[Finding], str]:
    """Return what shows a class of time to be lost, and the key of the advice about it.

    Args:
        budget: What the run's devices spent their time on.
        use: The class.
        told: The same, where more is known of it than what is lost when.
    """
    of_use = budget.in_steps.details.filter(use=use.value)
    if not of_use.height:  # all of it is in no whole step, as of a device without launches
        return [], use.value
    if told is not None:
        said, advised = told
    else:
        said, advised = _once(budget, use, of_use)
        if use is Use.LAUNCH_CALL and not advised and (long := _long(of_use)) is not None:
            said, advised = [*said, long], LONG_CALLS
    top = of_use.filter(pl.col("detail").is_not_null(), pl.col("then").is_null()).head(1)
    if top.height:
        detail = top["detail"][0]
        share = top["spent_ns"][0] / of_use["spent_ns"].sum()
        if share >= WORTH_NAMING:
            values = {"detail": detail, "detail_share": share}
            said.append(Finding("evidence", _HOW.get(use, "loss"), values))
        particular = _particular(use, detail) if share > MOSTLY else None
        if not advised or (advised, particular) == (RECURS, COMPILING):
            advised = particular
    after, longest = _once_returned(of_use)
    return said + after, advised or longest or use.value


def _once_returned(of_use: pl.DataFrame) -> tuple[list[Finding], str | None]:
    """Return what a host did once blocking calls had returned, and the key of the advice about most.

    Args:
        of_use: What `Steps.details` says of a class of time.
    """
    later = of_use.drop_nulls("then")
    share = int(later["spent_ns"].sum()) / int(of_use["spent_ns"].sum())
    if share < WORTH_NAMING:
        return [], None
    sums = later.group_by("then").agg(pl.col("spent_ns").sum())
    then = sums.sort("spent_ns", "then", descending=[True, False])["then"][0]
    values = {"then_share": share, "use": Use(then)}
    return [Finding("evidence", "loss_then", values)], then if share > MOSTLY else None


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
    return median(lost[1:]) >= MOSTLY * mean(lost)


def _in_first_step(budget: Budget, use: Use) -> Finding | None:
    """Return that most of a loss is in the first step, if it is."""
    step, *others = budget.whole_steps
    lost, *rest = (budget.per_step[one].lost_ns(use) for one in budget.whole_steps)
    first = lost / max(1, lost + sum(rest))
    if first <= MOSTLY:
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
    if slow <= MOSTLY * spent:
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
    if time <= MOSTLY * spent:
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
