"""Times that cannot be: what a trace says that no clock can have shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.arrays import at_once
from bubblescope.model.device_time import NONE
from bubblescope.model.provenance import Notice
from bubblescope.sources.capture import ByProcess

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


_SAMPLED: Final = 100_000
"""How many rows tell about when a capture was."""


def without_impossible_work(capture: Capture) -> tuple[Capture, int]:
    """Drop work of devices that ends before it starts, or lies days away from all other.

    Returns:
        The capture, and how many kernels, copies and fills were dropped.
    """
    if not capture.work.height:
        return capture, 0
    start = capture.work["start_ns"]
    some = start.gather_every(1 + len(start) // _SAMPLED)
    middle = int(some.median())  # type: ignore[arg-type]  # a column of integers
    sound = capture.work.select(possible(middle)).to_series()
    if sound.all():
        return capture, 0
    return _of_work(capture, sound)


def without_repeated_work(capture: Capture) -> tuple[Capture, int]:
    """Drop work of devices that is there again: the same kernel of the same launch at the same time.

    Returns:
        The capture, and how many kernels, copies and fills were dropped.
    """
    if not capture.work.height:
        return capture, 0
    row = _begin_together(capture.work)
    if not len(row):
        return capture, 0
    alike = capture.work[row].with_columns(row=row).filter(pl.col("correlation") != NONE)
    first = alike.select(pl.struct(capture.work.columns).is_first_distinct()).to_series()
    again = alike.filter(~first)["row"]
    kept = np.ones(capture.work.height, bool)
    kept[again.to_numpy()] = False
    return _of_work(capture, pl.Series(kept)) if len(again) else (capture, 0)


def _begin_together(work: pl.DataFrame) -> pl.Series:
    """Return the rows of work that begins when other work of its process does, which is few or none."""
    events = ByProcess(work.select("process", "start_ns").with_row_index("row"))

    def of(process: int) -> pl.Series:
        mine = events.of(process)
        start = mine["start_ns"].to_numpy()
        if (start[1:] > start[:-1]).all():
            return mine["row"].clear()
        # Tables are in order, or few of them one after the other: a stable sort takes little time.
        ordered = np.sort(start, kind="stable")
        ties = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        return mine["row"].filter(np.isin(start, ties))

    return pl.concat(at_once(of, events.processes)).sort()


def _of_work(capture: Capture, kept: pl.Series) -> tuple[Capture, int]:
    """Return a capture of some of its work, and how much of it is left out."""
    work = capture.work.filter(kept)
    kernels = None if capture.kernels is None else capture.kernels.filter(kept)
    return (
        msgspec.structs.replace(capture, work=work, kernels=kernels),
        capture.work.height - work.height,
    )


def repeated_work(lost: int, total: int, path: str) -> list[Notice]:
    """Return the note that work of devices is in a trace more than once, if any is."""
    if not lost:
        return []
    text = f"of {path}, some kernels, copies and fills are there again ({lost:,}); one of each was kept"
    return [Notice("repeated-rows", text, lost, total)]


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
