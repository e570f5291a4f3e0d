"""What requests ask for, read from their parameters within bounds: none costs more than the run has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from bubblescope.render.html.serve.windows import Sight

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_COLUMNS: Final = 50_000
_FAR_NS: Final = 10**18
"""Some 30 years: what is further from a run's first start is no time of it."""


def sight(asked: Mapping[str, str], ranks: int) -> Sight:
    """Return what a viewer shows.

    Args:
        asked: Parameters start, perpixel (both ns), columns, ranks, lanes and perhaps unfolded, idle
            and shift (ns).
        ranks: How many ranks the run has.

    Raises:
        KeyError: A parameter is missing.
        ValueError: One is no number, or no such window can be.
    """
    columns, per_pixel = int(asked["columns"]), float(asked["perpixel"])
    if not (0 < columns <= _MOST_COLUMNS and 0 < per_pixel < _FAR_NS):
        raise ValueError("that window")
    return Sight(
        start_ns=_time_ns(asked["start"]),
        per_pixel_ns=per_pixel,
        columns=columns,
        ranks=positions(asked["ranks"], ranks),
        lanes=frozenset(asked["lanes"].split(",")),
        unfolded=positions(asked.get("unfolded", ""), ranks),
        shift_ns=round(_time_ns(asked.get("shift", "0"))),
        idle=positions(asked["idle"], ranks) if "idle" in asked else None,
    )


def span_ns(asked: Mapping[str, str]) -> tuple[int, int]:
    """Return the parameters start and end, since the run's first start; raises as `sight` does."""
    return round(_time_ns(asked["start"])), round(_time_ns(asked["end"]))


def moment_ns(asked: Mapping[str, str]) -> int | None:
    """Return the parameter at, likewise; None if it is left out."""
    return round(_time_ns(asked["at"])) if "at" in asked else None


def positions(text: str, ranks: int) -> frozenset[int]:
    """Read "0-3,7": the positions on the page that are meant, of those of some ranks.

    Costs a byte a rank and not more, however often a rank is named.

    Raises:
        ValueError: That is no list of positions, or there are not so many ranks.
    """
    wanted = np.zeros(ranks, np.bool_)
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        begin, stop = int(first), int(last or first)
        if not 0 <= begin <= stop < ranks:
            raise ValueError(f"ranks {part}, where positions are 0 to {ranks - 1}")
        wanted[begin : stop + 1] = True
    return frozenset(np.flatnonzero(wanted).tolist())


def _time_ns(text: str) -> float:
    time_ns = float(text)
    if not abs(time_ns) < _FAR_NS:  # nor is it NaN
        raise ValueError(f"the time {text}")
    return time_ns
