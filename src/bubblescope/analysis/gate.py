"""Conditions on the difference between two runs, such as "bubble > +2%", and whether they hold."""

from __future__ import annotations

import math
import operator
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from bubblescope.analysis.changes import RATES, Change
from bubblescope.analysis.device_measures import BY_ROLE, IDLING, NAMES, STEP
from bubblescope.analysis.idle.causes import Cause
from bubblescope.model import units
from bubblescope.model.errors import BubblescopeError
from bubblescope.model.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from bubblescope.analysis.compare import Comparison

_OVERALL: Final = {"step": "ns", "idle": "ns", "busy": "ns", "bubble": "rate", "span": "rate"}
_GROUPS: Final = ("cause", "kind", "stage", "rank", "device")
_WORDS: Final = {
    "cause": [one.value for one in Cause],
    "kind": [one.value for one in Kind],
    "device": [*NAMES, f"{BY_ROLE}ROLE"],
}
_COMPARED: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_EXPRESSION: Final = re.compile(
    r"\s*(?P<metric>[^<>=]+?)\s*(?P<sign><=|>=|<|>)\s*"
    r"(?P<rise>[+-]?)\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>%|pp|ns|us|µs|ms|s)\s*"
)


class Condition(NamedTuple):
    """A condition of `--fail-if`.

    Attributes:
        text: As it was written.
        group, name: Of the measure.
        sign: How it is compared.
        rises: The difference is compared, not the value in B.
        unit: "ns"; "rate" for rates and their differences; "share" for differences of times as a
            share of A.
        threshold: In that unit.
    """

    text: str
    group: str
    name: str
    sign: str
    rises: bool
    unit: str
    threshold: float


def condition(text: str) -> Condition:
    """Read a condition, such as "bubble > +2%", "step > 1.5s" or "cause:exposed transfer >= +3ms".

    Raises:
        ValueError: It is none; the message says why.
    """
    found = _EXPRESSION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a condition such as 'bubble > +2%' or 'step > 1.5s'")
    try:
        group, name = _measure(found["metric"])
        unit = _unit(group, name, found["unit"], rises=bool(found["rise"]))
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    if unit == "ns":
        amount = float(units.nanoseconds(found["number"] + found["unit"]))
    else:
        amount = float(found["number"]) / 100
    return Condition(
        text.strip(),
        group,
        name,
        found["sign"],
        bool(found["rise"]),
        unit,
        -amount if found["rise"] == "-" else amount,
    )


def _measure(metric: str) -> tuple[str, str]:
    """Return group and name of what a condition is about."""
    group, colon, name = (part.strip() for part in metric.partition(":"))
    if not colon and group in _OVERALL:
        return "overall", group
    if not colon or group not in _GROUPS:
        measures = ", ".join([*_OVERALL, *(f"{group}:NAME" for group in _GROUPS)])
        raise ValueError(f"there is no measure {metric!r}; the measures are {measures}")
    of_role = group == "device" and name.startswith(BY_ROLE)
    if group in _WORDS and name not in _WORDS[group] and not of_role:
        what = f"{group} {name!r}" if group != "device" else f"measure {metric!r}"
        raise ValueError(f"there is no {what}; there are {', '.join(_WORDS[group])}")
    return group, name


def _unit(group: str, name: str, unit: str, *, rises: bool) -> str:
    """Return what a threshold is in, if it can be compared with the measure."""
    rate = group == "overall" and _OVERALL[name] == "rate"
    if unit == "pp" and not rises:
        raise ValueError("percentage points are a difference; write +2pp, or 20% for a rate")
    if unit in ("%", "pp") and rate:
        return "rate"
    if unit == "pp":
        raise ValueError(f"{name} is a time and has no percentage points; write +2% or +3ms")
    if unit == "%" and not rises:
        raise ValueError(f"{name} is a time; write +2% for a change by that share, or 1.5s")
    if unit == "%":
        return "share"
    if rate:
        raise ValueError(f"{name} is a rate, not a time; write +2% or 20%")
    return "ns"


class Verdict(NamedTuple):
    """What has become of a condition.

    Attributes:
        condition: As it was written.
        outcome: "failed", "not certain" (only the measured value is beyond the threshold, not its
            whole interval), or "passed".
        value: What was compared with the threshold.
        interval: Its 95 % interval; null where no noise is known.
        text: The number, for people.
    """

    condition: str
    outcome: str
    value: float
    interval: tuple[float, float] | None
    text: str


def judge(asked: Condition, comparison: Comparison, *, strict: bool = False) -> Verdict:
    """Say whether a condition holds.

    It does if the whole interval is beyond the threshold. Where no noise is known, and if `strict`,
    the measured value decides.

    Raises:
        BubblescopeError: The number is not known.
    """
    change = comparison.find(asked.group, asked.name) or _absent(asked, comparison)
    value, interval = change.after, change.after_interval
    if asked.rises:
        value, interval = change.difference, change.interval
    if value is None or (asked.rises and _times_differ(comparison)):
        raise _undecided(asked, comparison)
    if asked.unit == "share":
        was = change.before
        value = _share(value, was)
        interval = interval and (_share(interval[0], was), _share(interval[1], was))
    beyond = _COMPARED[asked.sign]
    outcome = "passed"
    if beyond(value, asked.threshold):
        sure = strict or all(beyond(end, asked.threshold) for end in interval or ())
        outcome = "failed" if sure else "not certain"
    return Verdict(asked.text, outcome, value, interval, _said(asked, value, interval))


def _absent(condition: Condition, comparison: Comparison) -> Change:
    """Return a measure that neither run has: what never happened took no time."""
    known = {
        "kind": all(len(run) for run in comparison.runs),
        "cause": comparison.group("cause"),
        "device": comparison.find("device", IDLING) and condition.name != STEP,
    }
    if condition.name.startswith(BY_ROLE):  # roles are not always known
        known["device"] = any(one.name.startswith(BY_ROLE) for one in comparison.group("device"))
    if known.get(condition.group):
        return Change(condition.group, condition.name, "ns", 0, 0, 0, None, (0, 0), (0, 0))
    raise _undecided(condition, comparison)


def _times_differ(comparison: Comparison) -> bool:
    """Say whether the times of one run are known to be the host's, and not those of the other."""
    mine, its = comparison.before.timed, comparison.after.timed
    return None not in (mine, its) and mine != its


def _undecided(condition: Condition, comparison: Comparison) -> BubblescopeError:
    why = "; ".join(note.message for note in comparison.notes) or "it is in neither run"
    if condition.rises and _times_differ(comparison):
        mine, its = comparison.before.timed, comparison.after.timed
        why = f"A has {mine} times and B {its} times, which are not of the same work"
    of_pipelines = condition.group in ("cause", "stage") or condition.name in RATES
    if of_pipelines and not comparison.pipelined:
        why = "only pipelines have it, and not both runs are"
    if condition.group == "device" and not comparison.group("device"):
        why = "not both traces hold device work"
    return BubblescopeError(f"{condition.text!r} cannot be decided: {why}")


def _share(time_ns: float, of_ns: float | None) -> float:
    """Return a time as a share of another; as one of nothing, anything is infinite."""
    if of_ns:
        return time_ns / of_ns
    return math.copysign(math.inf, time_ns) if time_ns else 0.0


def _said(condition: Condition, value: float, interval: tuple[float, float] | None) -> str:
    def written(one: float) -> str:
        if condition.unit == "ns":
            return units.signed(one) if condition.rises else units.duration(round(one))
        if not condition.rises:
            return units.percent(one)
        return f"{100 * one:+.2f} {'pp' if condition.unit == 'rate' else '%'}"

    if interval is None:
        return f"{written(value)} (no noise known)"
    return f"{written(value)} (95 % interval {written(interval[0])} to {written(interval[1])})"
