"""Values that programs, disks and people put where a reader expects others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from random import Random

INTEGERS: Final = (
    *(0, 1, -1, 2, 7, 255, 65_536, 10**9, -(10**9), 10**13),
    *(2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 9 * 10**18),
    *(2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -(2**64), 10**30, 10**400),
)
STORED: Final = tuple(value for value in INTEGERS if -(2**63) <= value < 2**63)
"""Those that 64 bits hold."""
FLOATS: Final = (0.5, -0.0, -1.5, 1e-320, 1e18, 1e19, 1e300, math.inf, -math.inf, math.nan)
TEXTS: Final = (
    *("", " ", "0", "-1", "1e999", "NaN", "null", "true", "9" * 30, "1_000", "٣", "¼", "0x10"),
    *(
        "\0",
        "a\0b",
        "\x1b[2J\x1b]0;x\a",
        "\u202e\u2066",
        "\u2028",
        "\ufeff",
        "é",
        "🦆" * 40,
        "x" * 9000,
    ),
    *("../../x", "/dev/zero", "=1+1", "</script>", "%s%n", "{0}", "'; DROP TABLE x; --", "[bold]"),
    *("F", "F0.0.0", "PP:1B0", "optimizer", "forward_step", "ProfilerStep#0", "ncclAllReduce"),
)
OTHERS: Final[tuple[Any, ...]] = (None, True, False, [], {}, [[]], [None], {"": None}, {"a": [1]})


def near(random: Random, value: Any) -> Any:
    """Return a value of the same type that is not far off: a plausible one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((value + 1, value - 1, -value, 2 * value, value // 2, value * 1000))
    if isinstance(value, float):
        return random.choice((value + 1, -value, 2 * value, value / 2, value * 1000, value * 1e-9))
    if isinstance(value, str) and value:
        at = random.randrange(len(value))
        return random.choice((value[:at], value[at:], value * 2, value.swapcase(), f"{value} "))
    return value


def hostile(random: Random, value: Any) -> Any:
    """Return what might stand in place of a value."""
    how = random.random()
    if how < 0.3:
        return near(random, value)
    if how < 0.4 and isinstance(value, (int, float)):
        return str(value)
    if how < 0.4 and isinstance(value, str) and value.strip("-").isdecimal():
        return int(value)
    if how < 0.5:
        return [value]
    return random.choice((*INTEGERS, *FLOATS, *TEXTS, *OTHERS))
