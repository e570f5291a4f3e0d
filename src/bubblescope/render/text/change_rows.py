"""Changes of measures between two runs as cells of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bubblescope.model import units

if TYPE_CHECKING:
    from bubblescope.analysis.changes import Change

COLUMNS: Final = ("A", "B", "change", "", "")
"""Titles of what `cells` returns."""

_SCALES: Final = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}
_TIMES: Final = 9
"""Change of a value by more than this share of it is written as a factor."""


def cells(change: Change) -> tuple[str, ...]:
    """Return both values, their difference with half of its interval, its share, and doubt."""
    return (
        value(change, change.before),
        value(change, change.after),
        rise(change),
        _relative(change),
        "noise" if change.certain is False and change.difference else "",
    )


def style(change: Change) -> str | None:
    """Return how to write a change: those that may be noise are dim."""
    return "dim" if change.certain is False else None


def value(change: Change, of_run: float | None) -> str:
    """Write a measure of one run."""
    if of_run is None or change.unit == "ns":
        return units.duration(None if of_run is None else round(of_run))
    return units.percent(of_run)


def rise(change: Change) -> str:
    """Write a difference, and half of its interval in the same unit."""
    if change.difference is None:
        return units.duration(None)
    half = (change.interval[1] - change.interval[0]) / 2 if change.interval else 0
    if change.unit == "rate":
        return f"{100 * change.difference:+.2f}{f' ± {100 * half:.2f}' if half else ''} pp"
    number, unit = units.duration(round(max(abs(change.difference), half))).split()
    digits = len(number.partition(".")[2])
    parts = f"{change.difference / _SCALES[unit]:+.{digits}f}"
    if half:
        parts += f" ± {half / _SCALES[unit]:.{digits}f}"
    return f"{parts} {unit}"


def _relative(change: Change) -> str:
    if change.unit == "rate" or not change.difference:
        return ""
    if change.relative is None:
        return "new"
    if change.after == 0:
        return "gone"
    if change.relative > _TIMES:
        return f"x {1 + change.relative:.3g}"
    return f"{100 * change.relative:+.1f} %"
