"""DualPipeV as MindSpeed runs it: two chunks on each device in a V, forwards and backwards overlapped.

The schedule is the cut-in-half DualPipe of Sea AI Lab and DeepSeek
(https://github.com/deepseek-ai/DualPipe, `dualpipe/dualpipev.py`), with its eight phases taken as the
seven that Ascend's tools name. Chunk 0 of device s is stage s, chunk 1 is stage 2p - 1 - s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from bubblescope.errors import ScheduleError
from bubblescope.vocabulary import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = ["PHASES", "Alignment", "Step", "align", "order"]

PHASES: Final = (
    "warmup",
    "interleaved_forward",
    "1b1w1f",
    "overlap",
    "1b1overlap",
    "interleaved_backward",
    "cooldown",
)


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
    return list(_Device(devices, device, microbatches).steps())


class _Device:
    """Counts the micro-batches that a device has sent through each chunk and direction."""

    def __init__(self, devices: int, device: int, microbatches: int) -> None:
        self._devices = devices
        self._device = device
        self._microbatches = microbatches
        self._next = {
            (kind, chunk): 0 for kind in (Kind.FORWARD, Kind.BACKWARD) for chunk in (0, 1)
        }

    def steps(self) -> Iterator[Step]:
        """Yield the phases one after the other."""
        after = self._devices - self._device - 1
        for _ in range(2 * after):
            yield self._forward(0, 0)
        for _ in range(self._device + 1):
            yield self._forward(0, 1)
            yield self._forward(1, 1)
        for _ in range(after):
            yield from self._output(2)
            back = self._backward(1, 2)
            yield back._replace(kind=Kind.BACKWARD_INPUT)
            yield back._replace(kind=Kind.BACKWARD_WEIGHT)
            yield self._forward(1, 2)
        for index in range(self._microbatches - 2 * self._devices + self._device + 1):
            yield from self._output(3)
            # Device p - 1 turns around: its first pair is not yet overlapped.
            yield from self._pair(0, 3, apart=not after and not index)
            yield from self._pair(1, 3)
        for _ in range(after):
            yield from self._output(4)
            yield self._backward(1, 4)
            yield from self._pair(1, 4)
        for index in range(self._device + 1):
            yield from self._output(5) if index % 2 == 0 else ()
            yield self._backward(1 - index % 2, 5)
        chunk = (self._device + 1) % 2
        while any(self._left(Kind.BACKWARD, one) for one in (0, 1)):
            chunk = 1 - chunk
            if self._left(Kind.BACKWARD, chunk):
                yield self._backward(chunk, 6)

    def _left(self, kind: Kind, chunk: int) -> int:
        return self._microbatches - self._next[kind, chunk]

    def _take(self, kind: Kind, chunk: int) -> int:
        self._next[kind, chunk] += 1
        return self._next[kind, chunk] - 1

    def _forward(self, chunk: int, phase: int) -> Step:
        return Step(Kind.FORWARD, chunk, self._take(Kind.FORWARD, chunk), phase)

    def _backward(self, chunk: int, phase: int) -> Step:
        return Step(Kind.BACKWARD, chunk, self._take(Kind.BACKWARD, chunk), phase)

    def _pair(self, chunk: int, phase: int, *, apart: bool = False) -> Iterator[Step]:
        forward, backward = self._forward(chunk, phase), self._backward(1 - chunk, phase)
        if apart:
            yield forward._replace(apart=True)
            yield backward
        else:
            yield forward._replace(
                kind=Kind.FORWARD_BACKWARD,
                pair_chunk=backward.chunk,
                pair_microbatch=backward.microbatch,
            )

    def _output(self, phase: int) -> Iterator[Step]:
        if self._device == 0:
            yield Step(Kind.OTHER, 1, self._next[Kind.BACKWARD, 1], phase)


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
