"""Types of arguments and options that commands share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import click

from bubblescope.model.errors import BubblescopeError
from bubblescope.schedules import named

if TYPE_CHECKING:
    from collections.abc import Callable


class Parsed(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """What a function reads from a text; it raises ValueError if it cannot, and says why.

    Args:
        name: What to call such a value.
        read: The function.
    """

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Read the text; click also asks for what has been read before."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except BubblescopeError:  # which is a sentence of its own
            raise
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _numbers(text: str) -> list[range]:
    """Read whole numbers and half-open ranges, "3", "2:5", "0,4:6"; a number is a range of its own."""
    try:
        parts = [part.partition(":") for part in text.split(",")]
        chosen = [
            range(int(low), int(high) if colon else int(low) + 1) for low, colon, high in parts
        ]
    except ValueError:
        chosen = []
    if not all(chosen) or not chosen:
        raise ValueError(f"{text!r} is not like 3 or 2:5 or 0,4:6")
    return chosen


_DAY: Final = 86_400.0


def seconds(least: float) -> Parsed:
    """Return the type of options that are a time in seconds, of a day at most."""

    def read(text: str) -> float:
        try:
            time = float(text)
        except ValueError:
            time = math.nan
        if not least <= time <= _DAY:
            raise ValueError(f"{text!r} is no number of seconds from {least:g} to {_DAY:,.0f}")
        return time

    return Parsed("seconds", read)


NUMBERS: Final = Parsed("numbers", _numbers)
"""The type of options that choose steps or ranks."""


SCHEDULE: Final = Parsed("schedule", lambda text: named(text).name)
"""The type of options that name a schedule, as it is called here or elsewhere."""
