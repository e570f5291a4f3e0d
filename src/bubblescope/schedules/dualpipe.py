"""DualPipe and DualPipeV: forwards overlapped with backwards of the opposite direction.

DeepSeek-AI, "DeepSeek-V3 Technical Report" (arXiv 2412.19437, section 3.2.1) and
https://github.com/deepseek-ai/DualPipe; the cut-in-half form is Sea AI Lab's.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from bubblescope.errors import ScheduleError
from bubblescope.schedules import mindspeed
from bubblescope.schedules.plan import Operation, Plan, mirrored, zigzag
from bubblescope.vocabulary import Kind

__all__ = ["dualpipe", "dualpipev", "mindspeed_dualpipev"]


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
        orders.append(_order(half, min(rank, devices - 1 - rank), count, sides))
    return Plan.of("dualpipe", placement, orders)


def dualpipev(devices: int, microbatches: int) -> Plan:
    """DualPipe cut in half: one copy of the model, folded into a V.

    Args:
        devices: Pipeline devices p.
        microbatches: Micro-batches of a step m, at least 2p.
    """
    if microbatches < 2 * devices:
        raise ScheduleError(
            f"dualpipev on {devices} devices needs at least {2 * devices} micro-batches, not "
            f"{microbatches}"
        )
    placement = zigzag(devices, 2)
    orders = [
        _order(devices, rank, microbatches, [(stage, 0) for stage in placement[rank]])
        for rank in range(devices)
    ]
    return Plan.of("dualpipev", placement, orders)


def mindspeed_dualpipev(devices: int, microbatches: int) -> Plan:
    """Return DualPipeV as MindSpeed runs it: its last backwards stay whole."""
    placement = zigzag(devices, 2)
    orders = []
    for rank, stages in enumerate(placement):
        order = []
        for step in mindspeed.order(devices, rank, microbatches):
            if step.kind is Kind.OTHER:  # the output layer's pass, part of the last stage's work
                continue
            pair = None if step.pair_chunk is None else stages[step.pair_chunk]
            order.append(
                Operation(
                    step.kind, stages[step.chunk], step.microbatch, pair, step.pair_microbatch
                )
            )
        orders.append(order)
    return Plan.of("dualpipev", placement, orders)


_HELD: Final = (Kind.FORWARD, Kind.BACKWARD)


class _Device:
    """Writes down what a device does, counting the micro-batches of each side and direction."""

    def __init__(self, sides: list[tuple[int, int]]) -> None:
        self.order: list[Operation] = []
        self._stages = [stage for stage, _ in sides]
        self._next = {(kind, side): sides[side][1] for kind in _HELD for side in (0, 1)}
        self._weights: deque[Operation] = deque()

    def forward(self, side: int) -> None:
        self.order.append(self._take(Kind.FORWARD, side))

    def backward(self, side: int, *, split: bool = False) -> None:
        whole = self._take(Kind.BACKWARD, side)
        if split:
            self._weights.append(whole._replace(kind=Kind.BACKWARD_WEIGHT))
        self.order.append(whole._replace(kind=Kind.BACKWARD_INPUT) if split else whole)

    def pair(self, side: int) -> None:
        """Run a forward of one side overlapped with a backward of the other."""
        forward, backward = self._take(Kind.FORWARD, side), self._take(Kind.BACKWARD, 1 - side)
        self.order.append(
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
            self.order.append(self._weights.popleft())

    def _take(self, kind: Kind, side: int) -> Operation:
        microbatch = self._next[kind, side]
        self._next[kind, side] += 1
        return Operation(kind, self._stages[side], microbatch)


def _order(half: int, rank: int, count: int, sides: list[tuple[int, int]]) -> list[Operation]:
    """Return the eight phases of a device.

    Args:
        half: Devices between an end of the pipeline and its middle.
        rank: The device's number counted from its end.
        count: Micro-batches of each side.
        sides: Stage and first micro-batch of the side that enters near, and of the other.
    """
    device = _Device(sides)
    after = half - rank - 1
    for _ in range(2 * after):
        device.forward(0)
    for _ in range(rank + 1):
        device.forward(0)
        device.forward(1)
    for _ in range(after):
        device.backward(1, split=True)
        device.weight()
        device.forward(1)
    for index in range(count - 2 * half + rank + 1):
        if index or after:
            device.pair(0)
        else:  # the middle of the pipeline turns around: overlapping its first pair would idle more
            device.forward(0)
            device.backward(1)
        device.pair(1)
    for _ in range(after):
        device.backward(1)
        device.pair(1)
    # The second half of these backwards is split, to have weight gradients for what follows.
    whole = rank + 1
    for index in range(2 * (rank + 1)):
        device.backward(1 - index % 2, split=index >= whole)
    for _ in range(after):
        device.weight()
        device.backward(0, split=True)
    for _ in range(rank + 1):
        device.weight()
    return device.order
