"""Schedules over a V: two chunks on each device, the first and last stage on device 0.

ZB-V is the hand-made schedule of Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241,
section 6). V-Half and V-Min are built as in Qi et al., "Pipeline Parallelism with Controllable
Memory" (arXiv 2405.15362): the passes of one micro-batch make a building block, blocks are repeated
every six slots, weight gradients fill the slots that are left, and in warm-up and cool-down, where
memory is spare, passes move to earlier slots.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from bubblescope.model.kinds import Kind
from bubblescope.schedules.plan import Operation, Plan, zigzag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    _Slots = NDArray[np.int64]

_PERIOD: Final = 6
"""Slots from one micro-batch's block to the next: a device has six passes for each."""

_LETTERS: Final = {
    "F": Kind.FORWARD,
    "I": Kind.BACKWARD_INPUT,
    "W": Kind.BACKWARD_WEIGHT,
}

_PASSES: Final = (
    (Kind.FORWARD, 0),
    (Kind.FORWARD, 1),
    (Kind.BACKWARD_INPUT, 1),
    (Kind.BACKWARD_INPUT, 0),
)
"""Kind and chunk of a block's passes, in the order in which a micro-batch goes through them."""


def zb_v(devices: int, microbatches: int) -> Plan:
    """No bubble if F, B and W take equally long, with the memory of 1F1B.

    Args:
        devices: Pipeline devices p.
        microbatches: Micro-batches of a step m. With fewer than 2p - 1 the plan is that of 2p - 1
            without the micro-batches that are not there.
    """
    placement = zigzag(devices, 2)
    count = max(2 * devices - 1, microbatches)
    orders = []
    for rank, stages in enumerate(placement):
        after = devices - rank
        steady, entering = count - devices, count - (2 * devices - 1 - rank)
        turns = [
            *["F0"] * (2 * after - 1),
            *["F1", "F0"] * rank,
            *["F1", "I1", "W1"] * after,
            *["F0", "I0", "W0", "F1", "I1", "W1"] * entering,
            *["I0", "W0", "F1", "I1", "W1"] * (steady - entering),
            *["I0", "I1"] * rank,
            *["I0", "W0"] * after,
            *["W1"] * rank,
            *["W0"] * rank,
        ]
        order = _numbered(turns, stages)
        orders.append([operation for operation in order if operation.microbatch < microbatches])
    return Plan.of("zb-v", placement, orders)


def _numbered(turns: list[str], stages: tuple[int, ...]) -> Iterator[Operation]:
    """Turn kinds with chunks into operations: each takes the next micro-batch of its kind."""
    done: Counter[str] = Counter()
    for turn in turns:
        kind, chunk = _LETTERS[turn[0]], int(turn[1])
        yield Operation(kind, stages[chunk], done[turn])
        done[turn] += 1


def v_half(devices: int, microbatches: int) -> Plan:
    """Half of the memory of 1F1B and about half of its bubble."""
    p = devices
    shift = 3 if p % 2 == 0 else 0  # keeps the passes of different micro-batches apart
    block = [
        [2 * r, 3 * p - r - 2, 3 * p + shift + 2 * r - 1, 6 * p + shift - r - 2] for r in range(p)
    ]
    return _woven("v-half", block, microbatches)


def v_min(devices: int, microbatches: int) -> Plan:
    """A third of the memory of 1F1B and about two thirds of its bubble.

    Its forwards and backwards wait for each other at every micro-batch if F, B and W do not take
    equally long; the bubble then grows with the number of micro-batches.
    """
    p = devices
    shift = 2 if p % 3 == 0 else 0
    block = [[r, 2 * p - r - 1, 2 * p + shift + r, 4 * p + shift - r - 1] for r in range(p)]
    return _woven("v-min", block, microbatches)


def _woven(name: str, block: list[list[int]], microbatches: int) -> Plan:
    """Repeat a building block, tighten both ends, and read every device's order off the slots.

    The block has, for each device, the slots of the four passes of the first micro-batch.
    """
    slots = np.array(block)[:, :, None] + _PERIOD * np.arange(microbatches)
    _tighten(slots)
    placement = zigzag(len(block), 2)
    orders = []
    for stages, passes in zip(placement, slots, strict=True):
        weights = _weights(passes)
        count = passes.size
        # Passes are numbered pass by pass, weight gradients after them.
        turns = np.argsort(np.concatenate([passes.ravel(), np.flatnonzero(weights)]))
        order: list[Operation] = []
        pending: list[Operation] = []
        for turn in turns.tolist():
            if turn >= count:
                order.append(pending.pop(0))
                continue
            kind, chunk = _PASSES[turn // microbatches]
            operation = Operation(kind, stages[chunk], turn % microbatches)
            order.append(operation)
            if kind is Kind.BACKWARD_INPUT:
                pending.append(operation._replace(kind=Kind.BACKWARD_WEIGHT))
        orders.append(order)
    return Plan.of(name, placement, orders)


def _weights(passes: _Slots) -> NDArray[np.bool_]:
    """Put weight gradients into the first free slots after their backwards.

    Args:
        passes: Slots of a device's passes, 4 x m.

    Returns:
        For each slot whether a weight gradient is in it.
    """
    device = _Device(passes)
    served = np.cumsum(~device.taken) + _lowest(device.slack)
    found: NDArray[np.bool_] = np.diff(served, prepend=0) > 0
    return found


def _lowest(slack: _Slots) -> _Slots:
    """Return the lowest that it ever was, or 0."""
    lowest: _Slots = np.minimum.accumulate(np.minimum(slack, 0))
    return lowest


class _Device:
    """The slots of a device.

    Weight gradients queue for slots that no pass is in; the queue's length is what arrived less what
    could be served, above the lowest that it ever was (Lindley's recursion). There are slots for all.

    Args:
        passes: Slots of its passes, 4 x m.

    Attributes:
        taken: Whether a pass is in each slot.
        slack: Weight gradients that arrived less slots that were free, up to each slot.
    """

    def __init__(self, passes: _Slots) -> None:
        length = int(passes.max()) + passes[2:].size + 2
        self.taken = np.zeros(length, bool)
        self.taken[passes.ravel()] = True
        arrived = np.cumsum(np.bincount(passes[2:].ravel() + 1, minlength=length))
        self.slack = arrived - np.cumsum(~self.taken)
        # What forwards store less what waits or is done: with those that wait, what is held.
        self._stored = np.cumsum(np.bincount(passes[:2].ravel(), minlength=length)) - arrived

    @property
    def peak(self) -> int:
        """The most passes of which activations are held at once."""
        return int((self._stored + self.slack - _lowest(self.slack)).max())

    def moves(self, slot: int, earlier: int, most: int, *, backward: bool) -> bool:
        """Move a pass to an earlier slot unless more than `most` are held then; say whether it did."""
        slack, stored = self.slack.copy(), self._stored.copy()
        slack[earlier:slot] += 1  # there is a free slot less meanwhile
        if backward:
            slack[earlier + 1 : slot + 1] += 1
            stored[earlier + 1 : slot + 1] -= 1
        else:
            stored[earlier:slot] += 1
        if (stored + slack - _lowest(slack)).max() > most:
            return False
        self.slack, self._stored = slack, stored
        self.taken[[slot, earlier]] = False, True
        return True


def _tighten(slots: _Slots) -> None:
    """Move passes of warm-up and cool-down to earlier slots, without raising the peak of memory.

    Warm-up lasts until the first micro-batch is back on device 0, cool-down begins after the last
    one has entered there. Passes move in the order of their slots, so what a pass needs has moved
    before it.

    Args:
        slots: Slots of all passes, devices x 4 x m; changed in place.
    """
    devices = [_Device(passes) for passes in slots]
    peak = max(device.peak for device in devices)
    warm, cold = int(slots[0, 3, 0]), int(slots[0, 0, -1])
    order = np.argsort(slots, axis=None, kind="stable")
    for rank, which, index in zip(
        *map(np.ndarray.tolist, np.unravel_index(order, slots.shape)), strict=True
    ):
        now = int(slots[rank, which, index])
        if warm <= now <= cold:
            continue
        giver = rank - 1 if which in (0, 2) else rank + 1
        needs = [-1]
        if 0 <= giver < len(devices):
            needs.append(int(slots[giver, which, index]))
        if which:
            needs.append(int(slots[rank, which - 1, index]))
        if index:
            needs.append(int(slots[rank, which, index - 1]))
        after, device = max(needs) + 1, devices[rank]
        for free in np.flatnonzero(~device.taken[after:now]).tolist():
            if device.moves(now, after + free, peak, backward=which > 1):
                slots[rank, which, index] = after + free
                break
