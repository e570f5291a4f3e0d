"""Round numbers on a time axis, whatever it is drawn with."""

from __future__ import annotations


def ticks(length_ns: int, most: float) -> list[tuple[int, str]]:
    """Return round numbers on a time axis of that length, about `most` of them, as written."""
    spacing = _round_step(length_ns / max(1.0, most))
    return [(at_ns, _written(at_ns, spacing)) for at_ns in range(0, length_ns + 1, spacing)]


def _round_step(least: float) -> int:
    """Return the smallest 1, 2 or 5 times a power of ten that is at least `least`."""
    power = 1
    while power * 10 < least:
        power *= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def _written(time_ns: int, spacing: int) -> str:
    for scale, unit in ((1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "µs")):
        if spacing * 10 >= scale:
            return f"{time_ns / scale:g} {unit}"
    return f"{time_ns} ns"
