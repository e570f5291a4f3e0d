"""Conditions on the difference between two runs, such as "bubble > +2%", and whether they hold."""

from __future__ import annotations

import math
import operator
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from bubblescope import units
from bubblescope.analysis.causes import Cause
from bubblescope.analysis.compare import Change, Comparison
from bubblescope.commands.simulate import Span
from bubblescope.vocabulary import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Condition", "Conditions", "Verdict", "judge", "signed"]

_OVERALL: Final = {"step": "ns", "idle": "ns", "busy": "ns", "bubble": "rate", "span": "rate"}
_GROUPS: Final = ("cause", "kind", "stage", "rank")
_WORDS: Final = {"cause": [one.value for one in Cause], "kind": [one.value for one in Kind]}
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


class Conditions(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """A condition: "bubble > +2%", "step > 1.5s", "cause:exposed transfer >= +3ms"."""

    name = "condition"

    def convert(self, value: Any, param: Any, ctx: Any) -> Condition:
        """Take the text apart."""
        if isinstance(value, Condition):
            return value
        found = _EXPRESSION.fullmatch(str(value))
        if found is None:
            self.fail(
                f"{value!r} is not a condition such as 'bubble > +2%' or 'step > 1.5s'", param, ctx
            )
        try:
            group, name = _measure(found["metric"])
            unit = _unit(group, name, found["unit"], rises=bool(found["rise"]))
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        if unit == "ns":
            amount = float(Span().convert(found["number"] + found["unit"], param, ctx))
        else:
            amount = float(found["number"]) / 100
        return Condition(
            str(value).strip(),
            group,
            name,
            found["sign"],
            bool(found["rise"]),
            unit,
            -amount if found["rise"] == "-" else amount,
        )


def _measure(metric: str) -> tuple[str, str]:
    """Return group and name of what a condition is about.

    Raises:
        ValueError: There is no such measure.
    """
    group, colon, name = (part.strip() for part in metric.partition(":"))
    if not colon and group in _OVERALL:
        return "overall", group
    if not colon or group not in _GROUPS:
        measures = ", ".join([*_OVERALL, *(f"{group}:NAME" for group in _GROUPS)])
        raise ValueError(f"there is no measure {metric!r}; there are {measures}")
    if group in _WORDS and name not in _WORDS[group]:
        raise ValueError(f"there is no {group} {name!r}; there are {', '.join(_WORDS[group])}")
    return group, name


def _unit(group: str, name: str, unit: str, *, rises: bool) -> str:
    """Return what a threshold is in.

    Raises:
        ValueError: It cannot be compared with the measure.
    """
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


def judge(condition: Condition, comparison: Comparison, *, strict: bool = False) -> Verdict:
    """Say whether a condition holds.

    It does if the whole interval is beyond the threshold. Where no noise is known, and if `strict`,
    the measured value decides.

    Raises:
        click.UsageError: The number is not known.
    """
    change = comparison.find(condition.group, condition.name) or _absent(condition, comparison)
    value, interval = change.after, change.after_interval
    if condition.rises:
        value, interval = change.difference, change.interval
    if value is None:
        raise _undecided(condition, comparison)
    if condition.unit == "share":
        value = _share(value, change.before)
        interval = interval and (
            _share(interval[0], change.before),
            _share(interval[1], change.before),
        )
    beyond = _COMPARED[condition.sign]
    outcome = "passed"
    if beyond(value, condition.threshold):
        sure = strict or all(beyond(end, condition.threshold) for end in interval or ())
        outcome = "failed" if sure else "not certain"
    return Verdict(condition.text, outcome, value, interval, _said(condition, value, interval))


def _absent(condition: Condition, comparison: Comparison) -> Change:
    """Return a measure that neither run has: what never happened took no time."""
    if condition.group == "kind" or (condition.group == "cause" and comparison.of("cause")):
        return Change(condition.group, condition.name, "ns", 0, 0, 0, None, (0, 0), (0, 0))
    raise _undecided(condition, comparison)


def _undecided(condition: Condition, comparison: Comparison) -> click.UsageError:
    why = "; ".join(note.message for note in comparison.notes) or "it is in neither run"
    return click.UsageError(f"{condition.text!r} cannot be decided: {why}")


def _share(time_ns: float, of_ns: float | None) -> float:
    """Return a time as a share of another; as one of nothing, anything is infinite."""
    if of_ns:
        return time_ns / of_ns
    return math.copysign(math.inf, time_ns) if time_ns else 0.0


def _said(condition: Condition, value: float, interval: tuple[float, float] | None) -> str:
    def written(one: float) -> str:
        if condition.unit == "ns":
            return signed(one) if condition.rises else units.duration(round(one))
        if not condition.rises:
            return units.percent(one)
        return f"{100 * one:+.2f} {'pp' if condition.unit == 'rate' else '%'}"

    if interval is None:
        return f"{written(value)} (no noise known)"
    return f"{written(value)} (95 % interval {written(interval[0])} to {written(interval[1])})"


def signed(time_ns: float) -> str:
    """Write a change of a time.

    >>> signed(1_500_000), signed(-20)
    ('+1.500 ms', '-20 ns')
    """
    return ("+" if time_ns >= 0 else "") + units.duration(round(time_ns))
