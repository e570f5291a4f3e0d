"""Numbers as people read them."""

from __future__ import annotations

__all__ = ["count", "duration", "optional", "percent"]

_SCALES = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))


def duration(time_ns: int | None) -> str:
    """Write a time span with four significant digits, or a dash if it is unknown.

    >>> duration(1_234_567), duration(999), duration(12_000_000_000)
    ('1.235 ms', '999 ns', '12.00 s')
    """
    if time_ns is None:
        return "–"
    for scale, unit in _SCALES:
        if abs(time_ns) >= scale:
            value = time_ns / scale
            digits = max(0, 4 - len(str(int(abs(value)))))
            return f"{value:.{digits}f} {unit}"
    return f"{time_ns} ns"


def percent(rate: float | None) -> str:
    """Write a share, or a dash if it is unknown.

    >>> percent(3 / 19), percent(None)
    ('15.79 %', '–')
    """
    return "–" if rate is None else f"{100 * rate:.2f} %"


def count(number: int, noun: str) -> str:
    """Write a number with its noun.

    >>> count(1, "rank"), count(2000, "task")
    ('1 rank', '2,000 tasks')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def optional(value: object) -> str:
    """Write a value, or a question mark if it is unknown."""
    return "?" if value is None else str(value)
