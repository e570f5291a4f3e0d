"""The change of each measure from one run to another, with what noise and clocks make of it.

Every measure is a ratio of two sums over the steps of a run. The difference of two runs comes with a
95 % interval (`bubblescope.analysis.bootstrap`), made wider by what clocks may be off: that is the same
in every step, so no number of steps makes it smaller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.bootstrap import Sums, intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bubblescope.analysis.bootstrap import Floats

OVERALL: Final = ("step", "busy", "idle", "bubble", "span")
"""Measures of a run as a whole, in the order in which they are shown."""

RATES: Final = ("bubble", "span")
"""Those of them that are rates; all other measures are times."""

KEY: Final = ["group", "name"]
"""What tells measures apart."""

UNSTEPPED: Final = -1
"""Number of the step of a run that has none."""

_MEANS: Final = ("cause", "kind", "device", "detail")
"""Groups in which what a run does not have takes no time; elsewhere it is unknown."""

_ENDS: Final = np.array([[-1], [1]])
"""Signs of the lower and the upper end of an interval."""

Interval = tuple[float, float]


class Change(msgspec.Struct, frozen=True):
    """One measure of both runs.

    Attributes:
        group: One of `bubblescope.analysis.compare.GROUPS` or `DEVICE_GROUPS`.
        name: "step", "bubble", "span", "busy" or "idle" of all, else which cause, kind, stage, rank,
            or what devices spent time on.
        unit: "ns", or "rate" for bubble rates.
        before, after: Its value in each run; null where it is unknown.
        difference: after - before.
        relative: The difference as a share of `before`.
        interval, after_interval: 95 % intervals of `difference` and `after`, not below -`before` and
            0; null if either run has one step only, or if the measure is not of all steps.
    """

    group: str
    name: str
    unit: Literal["ns", "rate"]
    before: float | None
    after: float | None
    difference: float | None
    relative: float | None
    interval: Interval | None
    after_interval: Interval | None

    @property
    def certain(self) -> bool | None:
        """Whether the difference is beyond the noise; None if no noise is known."""
        if self.interval is None:
            return None
        return self.interval[0] > 0 or self.interval[1] < 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**msgspec.to_builtins(self), "certain": self.certain}


class Measured(NamedTuple):
    """The measures of one run.

    Attributes:
        rows: Frame with group, name, step, part and whole: a measure of a step is part / whole.
        ranks: Frame with step and ranks, the number of those that it was measured on.
        uncertain_ns: How far, on average, the makespan of a step may be off.
        bubble_error: The same of the bubble rate.
        rate_error: How far lengths of time may be off, as a share.
    """

    rows: pl.DataFrame
    ranks: pl.DataFrame
    uncertain_ns: float = 0.0
    bubble_error: float = 0.0
    rate_error: float = 0.0

    def within(self, steps: Sequence[int | None]) -> Measured:
        """Return the same of some steps only; null stands for a run without."""
        kept = [UNSTEPPED if step is None else step for step in steps]
        rows, ranks = (frame.filter(pl.col("step").is_in(kept)) for frame in self[:2])
        return self._replace(rows=rows, ranks=ranks)


def changes(
    keys: pl.DataFrame, before: Measured, after: Measured, place: Callable[[Change], Any]
) -> list[Change]:
    """Return how measures changed.

    Args:
        keys: Frame with group and name: which measures.
        before: Those of the run to compare with.
        after: Those of the other run.
        place: What to sort by.
    """
    if not keys.height:
        return []
    was, now = _sums(keys, before), _sums(keys, after)
    old, new = was.value(), now.value()
    off_old, off_new = _off(keys, before, old), _off(keys, after, new)
    known = intervals(was, now)
    unknown = np.full((2, len(old)), np.nan)
    rise = known.difference + _ENDS * (off_old + off_new) if known else unknown
    reach = known.after + _ENDS * off_new if known else unknown
    # Where there is little freedom, ends are moved apart beyond what can be: nothing is below zero.
    rise[0], reach[0] = np.maximum(rise[0], -old), np.maximum(reach[0], 0)
    found = [
        _change(group, name, old[at], new[at], rise[:, at], reach[:, at])
        for at, (group, name) in enumerate(keys.select(KEY).iter_rows())
    ]
    return sorted(found, key=place)


def keys_of(before: Measured, after: Measured) -> pl.DataFrame:
    """Return group and name of all that either run has."""
    rows = [before.rows.select(KEY), after.rows.select(KEY)]
    return pl.concat(rows).unique(maintain_order=True)


def largest(keys: pl.DataFrame, before: Measured, after: Measured, count: int) -> pl.DataFrame:
    """Return the measures that changed most, up to so many."""
    rise = np.abs(_sums(keys, after).value() - _sums(keys, before).value())
    return keys[np.argsort(-np.nan_to_num(rise), kind="stable")[:count]]


def _sums(keys: pl.DataFrame, run: Measured) -> Sums:
    steps = run.ranks["step"]
    place = run.rows.join(keys.with_row_index("key"), on=KEY).with_columns(
        at=pl.col("step").replace_strict(steps, pl.int_range(len(steps), eager=True))
    )
    means = keys["group"].is_in(_MEANS).to_numpy()
    part = np.zeros((keys.height, len(steps)))
    whole = np.outer(means, run.ranks["ranks"].to_numpy()).astype(np.float64)
    at = place["key"].to_numpy(), place["at"].to_numpy()
    part[at], whole[at] = place["part"].to_numpy(), place["whole"].to_numpy()
    return Sums(part, whole)


def _off(keys: pl.DataFrame, run: Measured, value: Floats) -> Floats:
    """Return how far each measure may be off because clocks are."""
    group, name = keys["group"].to_numpy(), keys["name"].to_numpy()
    timed = np.isin(group, ["cause", "rank"]) | np.isin(name, ["step", "idle"])
    off = run.rate_error * value + timed * run.uncertain_ns
    return np.where(name == "bubble", run.bubble_error, np.where(name == "span", 0, off))


def _change(group: str, name: str, old: float, new: float, rise: Floats, reach: Floats) -> Change:
    unit: Literal["ns", "rate"] = "rate" if group == "overall" and name in RATES else "ns"
    before, after = _number(old, unit), _number(new, unit)
    difference = None if before is None or after is None else after - before
    return Change(
        group=group,
        name=name,
        unit=unit,
        before=before,
        after=after,
        difference=difference,
        relative=difference / before if difference is not None and before else None,
        interval=_pair(rise, unit),
        after_interval=_pair(reach, unit),
    )


def _number(value: float, unit: str) -> float | None:
    if np.isnan(value):
        return None
    return round(value) if unit == "ns" else float(value)


def _pair(ends: Floats, unit: str) -> Interval | None:
    low, high = (_number(end, unit) for end in ends)
    return None if low is None or high is None else (low, high)
