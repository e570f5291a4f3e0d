"""Numbers as people read them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(ns|us|µs|ms|s)")
_HOUR_NS: Final = 3_600_000_000_000
_H, _MIN = "h", "min"
_SCALES = ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs"))


def duration(time_ns: int | None) -> str:
    """Write a time span with four significant digits, hours with minutes, or a dash if it is unknown.

    >>> duration(1_234_567), duration(999), duration(12_000_000_000), duration(15_729_000_000_000)
    ('1.235 ms', '999 ns', '12.00 s', '4 h 22 min')
    """
    if time_ns is None:
        return "–"
    if abs(time_ns) >= _HOUR_NS:
        hours, minutes = divmod(round(abs(time_ns) / 60_000_000_000), 60)
        return f"{'-' if time_ns < 0 else ''}{hours} {_H} {minutes:02} {_MIN}"
    for scale, unit in _SCALES:
        if abs(time_ns) >= scale:
            value = time_ns / scale
            digits = max(0, 4 - len(str(int(abs(value)))))
            return f"{value:.{digits}f} {unit}"
    return f"{time_ns} ns"


def signed(time_ns: float) -> str:
    """Write a change of a time.

    >>> signed(1_500_000), signed(-20)
    ('+1.500 ms', '-20 ns')
    """
    return ("+" if time_ns >= 0 else "") + duration(round(time_ns))


def nanoseconds(text: str) -> int:
    """Read a time span with its unit.

    >>> nanoseconds("10ms"), nanoseconds("1.5 s")
    (10000000, 1500000000)

    Raises:
        ValueError: It is none.
    """
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not like 10ms, 300us or 1.5s")
    return round(float(found[1]) * _UNITS[found[2]])


def fixed(value: float, digits: int = 2) -> str:
    """Write a number with so many digits after the point, and nought without a sign.

    >>> fixed(0.1251), fixed(-0.001)
    ('0.13', '0.00')
    """
    return f"{round(value, digits) + 0.0:.{digits}f}"


def change(share: float) -> str:
    """Write by how much something is more or less, as a share of it.

    >>> change(0.5), change(-0.1234), change(-1e-9)
    ('+50.00 %', '-12.34 %', '+0.00 %')
    """
    return f"{round(100 * share, 2) + 0.0:+.2f} %"


def percent(rate: float | None) -> str:
    """Write a share, or a dash if it is unknown.

    >>> percent(3 / 19), percent(None)
    ('15.79 %', '–')
    """
    return "–" if rate is None else f"{fixed(100 * rate)} %"


_LAST_DIGIT: Final = 0.0001
"""What the last digit of a share stands for that is written in percent."""


def uncertain(rate: float | None, error: float | None) -> str:
    """Write a share with how far it may be off, if that is known and as much as its last digit tells.

    >>> uncertain(0.2727, 0.0012), uncertain(0.2727, 0.000_004), uncertain(0.2727, None)
    ('27.27 ± 0.12 %', '27.27 %', '27.27 %')
    """
    if rate is None or error is None or error < _LAST_DIGIT / 2:
        return percent(rate)
    return f"{fixed(100 * rate)} ± {100 * error:.2g} %"


def count(number: int, noun: str, nouns: str | None = None) -> str:
    """Write a number with its noun.

    >>> count(1, "rank"), count(2000, "task"), count(3, "micro-batch", "micro-batches")
    ('1 rank', '2,000 tasks', '3 micro-batches')
    """
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


MOST_LISTED: Final = 6
"""Numbers of things that are listed, of many."""


def listed(
    noun: str, numbers: Sequence[int], most: int = MOST_LISTED, *, of: int | None = None
) -> str:
    """Write what some numbered things are, the first few of many.

    Args:
        noun: What they are, one of them.
        numbers: Their numbers, or the first of them.
        most: How many to write.
        of: How many there are, if not all numbers are given.

    >>> listed("rank", [3]), listed("rank", [0, 2])
    ('rank 3', 'ranks 0, 2')
    """
    shown = ", ".join(map(str, numbers[:most]))
    count = len(numbers) if of is None else of
    more = f" and {count - most} more" if count > most else ""
    return f"{noun}{'' if count == 1 else 's'} {shown}{more}"


def stages(numbers: Sequence[int]) -> str:
    """Write the stages of a rank, of many the first two and the last.

    >>> stages([]), stages([3]), stages([0, 7]), stages([0, 4, 8, 12, 16])
    ('?', '3', '0, 7', '0, 4 … 16')
    """
    if len(numbers) > _MOST_STAGES:
        return f"{numbers[0]}, {numbers[1]} … {numbers[-1]}"
    return ", ".join(map(str, numbers)) or "?"


_MOST_STAGES: Final = 3
"""Stages of a rank that are written one by one, so that a lane's title leaves room for the lane."""


def optional(value: object) -> str:
    """Write a value, or a question mark if it is unknown."""
    return "?" if value is None else str(value)


def joined(words: Sequence[str], conjunction: str = "and") -> str:
    """Return words as a sentence lists them.

    >>> joined(["svg"]), joined(["svg", "png"]), joined(["svg", "pdf", "png"], "or")
    ('svg', 'svg and png', 'svg, pdf or png')
    """
    *most, last = words
    return f"{', '.join(most)} {conjunction} {last}" if most else last
