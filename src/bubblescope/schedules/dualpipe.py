"""DualPipe and DualPipeV: forwards overlapped with backwards of the opposite direction.

DeepSeek-AI, "DeepSeek-V3 Technical Report" (arXiv 2412.19437, section 3.2.1) and
https://github.com/deepseek-ai/DualPipe; the cut-in-half form is Sea AI Lab's.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind
from bubblescope.schedules.plan import Operation, Plan, mirrored, zigzag

PHASES: Final = (
    "warmup",
    "interleaved_forward",
    "1b1w1f",
    "overlap",
    "1b1overlap",
    "interleaved_backward",
    "cooldown",
)
"""What a device does one after the other, by the names of Ascend's tools: DeepSeek's eight steps, of
which the last two drain."""


def dualpipe(devices: int, microbatches: int) -> Plan:
    """Two copies of the model in opposite directions, half of the micro-batches through each.

    Micro-batches 0 to m/2 - 1 enter at device 0, the others at device p - 1.

    Args:
        devices: Pipeline devices p, an even number.
        microbatches: Micro-batches of a step m, an even number of at least 2p.
    """
    if devices % 2 or microbatches % 2 or microbatches < 2 * devices:
        raise ScheduleError(
            f"dualpipe needs an even number of devices and an even number of micro-batches, at "
            f"least twice as many; not {devices} and {microbatches}"
        )
    half, count = devices // 2, microbatches // 2
    placement = mirrored(devices)
    orders = []
    for rank in range(devices):
        # The second half of the devices sees the directions the other way round.
        near = 0 if rank < half else 1
        sides = [
            (placement[rank][near], near * count),
            (placement[rank][1 - near], (1 - near) * count),
        ]
        order = phased(half, min(rank, devices - 1 - rank), count, sides)
        orders.append([operation for _, operation in order])
    return Plan.of("dualpipe", placement, orders)


def dualpipev(devices: int, microbatches: int) -> Plan:
    """DualPipe cut in half: one copy of the model, folded into a V.

    Args:
        devices: Pipeline devices p.
        microbatches: Micro-batches of a step m, at least 2p.
    """
    return _folded(devices, microbatches, splits_last=True)


def mindspeed_dualpipev(devices: int, microbatches: int) -> Plan:
    """DualPipeV as MindSpeed runs it: its last backwards stay whole.

    Args:
        devices: Pipeline devices p.
        microbatches: Micro-batches of a step m, at least 2p.
    """
    return _folded(devices, microbatches, splits_last=False)


def _folded(devices: int, microbatches: int, *, splits_last: bool) -> Plan:
    if microbatches < 2 * devices:
        raise ScheduleError(
            f"dualpipev on {devices} devices needs at least {2 * devices} micro-batches, not "
            f"{microbatches}"
        )
    placement = zigzag(devices, 2)
    orders = []
    for rank, stages in enumerate(placement):
        sides = [(stage, 0) for stage in stages]
        order = phased(devices, rank, microbatches, sides, splits_last=splits_last)
        orders.append([operation for _, operation in order])
    return Plan.of("dualpipev", placement, orders)


_HELD: Final = (Kind.FORWARD, Kind.BACKWARD)


class _Device:
    """Writes down what a device does, counting the micro-batches of each side and direction."""

    def __init__(self, sides: list[tuple[int, int]]) -> None:
        self.order: list[tuple[int, Operation]] = []
        self._phase = 0
        self._stages = [stage for stage, _ in sides]
        self._next = {(kind, side): sides[side][1] for kind in _HELD for side in (0, 1)}
        self._weights: deque[Operation] = deque()

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self._phase = PHASES.index(phase)

    def forward(self, side: int) -> None:
        self._put(self._take(Kind.FORWARD, side))

    def backward(self, side: int, *, split: bool = False) -> None:
        whole = self._take(Kind.BACKWARD, side)
        if split:
            self._weights.append(whole._replace(kind=Kind.BACKWARD_WEIGHT))
        self._put(whole._replace(kind=Kind.BACKWARD_INPUT) if split else whole)

    def backwards(self, turns: range, *, split: bool = False) -> None:
        """Run backwards of both sides in turn, the far one at even turns."""
        for turn in turns:
            self.backward(1 - turn % 2, split=split)

    def pair(self, side: int) -> None:
        """Run a forward of one side overlapped with a backward of the other."""
        forward, backward = self._take(Kind.FORWARD, side), self._take(Kind.BACKWARD, 1 - side)
        self._put(
            Operation(
                Kind.FORWARD_BACKWARD,
                forward.stage,
                forward.microbatch,
                backward.stage,
                backward.microbatch,
            )
        )

    def weight(self) -> None:
        if self._weights:
            self._put(self._weights.popleft())

    def _put(self, operation: Operation) -> None:
        self.order.append((self._phase, operation))

    def _take(self, kind: Kind, side: int) -> Operation:
        microbatch = self._next[kind, side]
        self._next[kind, side] += 1
        return Operation(kind, self._stages[side], microbatch)


def phased(
    half: int,
    rank: int,
    count: int,
    sides: list[tuple[int, int]],
    *,
    splits_last: bool = True,
) -> list[tuple[int, Operation]]:
    """Return the operations of a device in order, each with the index of its phase.

    Args:
        half: Devices between an end of the pipeline and its middle.
        rank: The device's number counted from its end.
        count: Micro-batches of each side.
        sides: Stage and first micro-batch of the side that enters near, and of the other.
        splits_last: Split the last backwards, to have weight gradients for the drain.
    """
    device = _Device(sides)
    after = half - rank - 1
    device.enter("warmup")
    for _ in range(2 * after):
        device.forward(0)
    device.enter("interleaved_forward")
    for _ in range(rank + 1):
        device.forward(0)
        device.forward(1)
    device.enter("1b1w1f")
    for _ in range(after):
        device.backward(1, split=True)
        device.weight()
        device.forward(1)
    device.enter("overlap")
    for index in range(count - 2 * half + rank + 1):
        if index or after:
            device.pair(0)
        else:  # the middle of the pipeline turns around: overlapping its first pair would idle more
            device.forward(0)
            device.backward(1)
        device.pair(1)
    device.enter("1b1overlap")
    for _ in range(after):
        device.backward(1)
        device.pair(1)
    device.enter("interleaved_backward")
    device.backwards(range(rank + 1))
    device.enter("cooldown")
    device.backwards(range(rank + 1, 2 * (rank + 1)), split=splits_last)
    for _ in range(after):
        device.weight()
        device.backward(0, split=splits_last)
    for _ in range(rank + 1):
        device.weight()
    return device.order
