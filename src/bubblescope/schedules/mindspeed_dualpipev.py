"""DualPipeV as MindSpeed runs it: two chunks on each device in a V, forwards and backwards overlapped.

The order is that of `dualpipe.phased`, with whole backwards at the end. Here every operation has the
phase that Ascend's tools give it, and the first device the passes of the output layer. Chunk 0 of
device s is stage s, chunk 1 is stage 2p - 1 - s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind
from bubblescope.schedules.dualpipe import PHASES, phased

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bubblescope.schedules.plan import Operation

_BACK: Final = (Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.FORWARD_BACKWARD)
"""What the output layer's pass comes before, where it is of chunk 1 on device 0."""


class Step(NamedTuple):
    """One operation of a device.

    Attributes:
        kind: What it does. The output layer's own pass, before each backward of chunk 1 on device
            0, is `Kind.OTHER`.
        chunk, microbatch: Of the forward, or of the only half.
        phase: Index into `PHASES`.
        pair_chunk, pair_microbatch: Of the backward half of an overlapped pair, else None.
        apart: The forward half of a pair that runs apart from its backward half.
    """

    kind: Kind
    chunk: int
    microbatch: int
    phase: int
    pair_chunk: int | None = None
    pair_microbatch: int | None = None
    apart: bool = False


def order(devices: int, device: int, microbatches: int) -> list[Step]:
    """Return what a device runs, in order.

    Args:
        devices: Number of pipeline devices p.
        device: The device's own number s.
        microbatches: Micro-batches of a step; the schedule needs at least 2p.

    Raises:
        ScheduleError: There are too few micro-batches, or no such device.
    """
    if not 0 <= device < devices:
        raise ScheduleError(f"device {device} is none of {devices}")
    if microbatches < 2 * devices:
        raise ScheduleError(
            f"DualPipeV on {devices} devices needs at least {2 * devices} micro-batches, not "
            f"{microbatches}"
        )
    # With chunks for stages, the schedule's own numbers are the steps'.
    planned = phased(devices, device, microbatches, [(0, 0), (1, 0)], splits_last=False)
    return [step for phase, one in planned for step in _labelled(phase, one, first=device == 0)]


def _labelled(phase: int, operation: Operation, *, first: bool) -> Iterator[Step]:
    """Yield an operation as a step, on the first device after the output layer's pass it needs."""
    kind, chunk, microbatch, pair_chunk, pair_microbatch = operation
    back = {Kind.FORWARD_BACKWARD: (pair_chunk, pair_microbatch)}.get(kind, (chunk, microbatch))
    half = kind is not Kind.FORWARD_BACKWARD and PHASES[phase] == "overlap"
    apart = half and kind is Kind.FORWARD
    if first and apart:
        # Only a single device is first and turns around: the pass stands before the pair, whole or not.
        yield Step(Kind.OTHER, 1, 0, phase)
    elif first and not half and kind in _BACK and back[0] == 1:
        yield Step(Kind.OTHER, 1, back[1] or 0, phase)
    yield Step(kind, chunk, microbatch, phase, pair_chunk, pair_microbatch, apart)


class Alignment(NamedTuple):
    """How what a device ran fits its schedule.

    Attributes:
        places: For each operation that ran, its index in the schedule, or -1 where more than one
            would do or none does.
        missing: How many operations of the schedule did not run.
        extra: How many ran that the schedule does not have.
    """

    places: list[int]
    missing: int
    extra: int


def align(ran: Sequence[str], planned: Sequence[str]) -> Alignment:
    """Match what ran with what was planned, by kinds, and keep the matches that are beyond doubt.

    A match is beyond doubt if it is in every longest common subsequence of the two: with F(i, j) the
    length for the first i and j, and G(i, j) for the rest, i may match j if F(i, j) + 1 + G(i + 1,
    j + 1) is the whole length, and must if it can match no other and its absence would shorten it.
    """
    if list(ran) == list(planned):
        return Alignment(list(range(len(ran))), 0, 0)
    forth = _common(ran, planned)
    back = _common(ran[::-1], planned[::-1])[::-1, ::-1]
    whole = int(forth[-1, -1])
    same = np.array([[one == other for other in planned] for one in ran]).reshape(
        len(ran), len(planned)
    )
    may = same & (forth[:-1, :-1] + 1 + back[1:, 1:] == whole)
    # Without operation i, the longest is that of what lies before and after it.
    needed = (forth[:-1] + back[1:]).max(axis=1) < whole if len(ran) else np.zeros(0, bool)
    sure = (may.sum(axis=1) == 1) & needed
    places = np.where(sure, may.argmax(axis=1) if len(planned) else -1, -1)
    return Alignment(places.tolist(), len(planned) - whole, len(ran) - whole)


def _common(
    first: Sequence[str], second: Sequence[str]
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return the length of the longest common subsequence of all pairs of beginnings."""
    lengths = np.zeros((len(first) + 1, len(second) + 1), np.int64)
    for row, one in enumerate(first, 1):
        for column, other in enumerate(second, 1):
            lengths[row, column] = (
                lengths[row - 1, column - 1] + 1
                if one == other
                else max(lengths[row - 1, column], lengths[row, column - 1])
            )
    return lengths
