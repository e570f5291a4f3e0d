"""Times that cannot be: what a trace says that no clock can have shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import polars as pl

from bubblescope.model.provenance import Notice

if TYPE_CHECKING:
    from bubblescope.sources.capture import Capture

EPOCH_2000_NS: Final = 946_684_800 * 10**9
_EPOCH_2200_NS: Final = 7_258_118_400 * 10**9
_FAR_NS: Final = 7 * 86_400 * 10**9
"""No capture is this long: what lies so far from the rest has a time that cannot be."""


def possible(middle_ns: int) -> pl.Expr:
    """Say of rows with start_ns and end_ns whether they can be: in order, and near the others.

    Args:
        middle_ns: Median start of all events of the capture.
    """
    low, high = middle_ns - _FAR_NS, middle_ns + _FAR_NS
    return (
        (pl.col("end_ns") >= pl.col("start_ns"))
        & (pl.col("start_ns") >= low)
        & (pl.col("end_ns") <= high)
    )


def without_impossible_work(capture: Capture) -> tuple[Capture, int]:
    """Drop work of devices that ends before it starts, or lies days away from all other.

    Returns:
        The capture, and how many kernels, copies and fills were dropped.
    """
    if not capture.work.height:
        return capture, 0
    middle = int(capture.work["start_ns"].median())  # type: ignore[arg-type]  # a column of integers
    sound = capture.work.select(possible(middle)).to_series()
    if sound.all():
        return capture, 0
    kernels = None if capture.kernels is None else capture.kernels.filter(sound)
    kept = msgspec.structs.replace(capture, work=capture.work.filter(sound), kernels=kernels)
    return kept, capture.work.height - kept.work.height


def impossible_times(lost: int, total: int, items: str, path: str) -> list[Notice]:
    """Return the warning that items of a trace were dropped because of their times, if any were."""
    if not lost:
        return []
    text = (
        f"{lost} of {total} {items} of {path} end before they start or lie days away from the "
        "others, and were dropped"
    )
    return [Notice("impossible-times", text, lost, total)]


def implausible_clock(starts_ns: dict[str, int]) -> list[Notice]:
    """Return a warning if traces begin in another century by their own clock.

    Args:
        starts_ns: Path -> absolute time of the trace's first event, nanoseconds since 1970.
    """
    odd = [path for path, ns in starts_ns.items() if not EPOCH_2000_NS < ns < _EPOCH_2200_NS]
    if not odd:
        return []
    text = (
        f"{len(odd)} of {len(starts_ns)} traces are not of this century by their own clock "
        f"({odd[0]}); their times may be of another unit or zero"
    )
    return [Notice("implausible-clock", text, len(odd), len(starts_ns))]
