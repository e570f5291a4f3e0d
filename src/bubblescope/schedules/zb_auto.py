"""Zero-bubble schedules found for given times and a memory limit.

The heuristic of Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241, section 3.1):

* warm up with as many forwards as fit before the first backward arrives, within the memory limit;
* then alternate forwards and backwards, and put a weight gradient wherever one fits into the wait
  for the next of them, wherever the wait would otherwise make this device's bubble the largest, and
  wherever memory must be freed;
* at the end run the weight gradients that are left.

Three questions of taste are left open: may the last warm-up forward delay the first backward, may
a forward step back for the next device's backward, and may a weight gradient start in a gap shorter
than itself while other devices idle more. All eight answers are tried and the shortest schedule is
kept.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind
from bubblescope.schedules.plan import KINDS, Plan, linear

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints

_F, _B, _W = range(3)
_KINDS = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
_ROUNDING = 1e-9
"""Memory is added up in fractions; this much is no memory."""


class Times(NamedTuple):
    """How long a micro-batch takes on each device, in nanoseconds."""

    forward_ns: int
    backward_input_ns: int
    backward_weight_ns: int
    comm_ns: int = 0


class _Taste(msgspec.Struct, frozen=True):
    delays_backward: bool
    yields: bool
    fills: bool


def zb_auto(
    devices: int,
    microbatches: int,
    times: Times,
    memory: float,
    name: str = "zb-auto",
    weight_share: float = 0.5,
) -> Plan:
    """Return the shortest schedule that the heuristic finds.

    Args:
        devices: Pipeline devices p.
        microbatches: Micro-batches of a step m.
        times: How long operations and transfers take; the search is for these.
        memory: Activations that a device may hold, in micro-batches: p for ZB-1p, 2p for ZB-2p.
        name: Name of the plan.
        weight_share: Share of a forward's activations that its weight gradient still needs; the
            paper's M_W / M_B, a half in its authors' implementation.

    Raises:
        ScheduleError: The limit is below one micro-batch.
    """
    if memory < 1:
        raise ScheduleError(f"{name} needs memory for at least one micro-batch, not {memory:g}")
    orders = _shortest(devices, microbatches, times, memory, weight_share)
    return Plan(name, linear(devices), [_columns(*one) for one in enumerate(orders)])


@lru_cache(maxsize=8)
def _shortest(
    devices: int, microbatches: int, times: Times, memory: float, weight_share: float
) -> list[list[int]]:
    """Return the kinds that each device runs, in order; the limits of two schedules may be the same."""
    best = min(
        (
            _Search(devices, microbatches, times, memory, weight_share, _Taste(*taste)).run()
            for taste in product((True, False), repeat=3)
        ),
        key=lambda search: search.longest_ns(),
    )
    return best.orders


def _columns(device: int, order: list[int]) -> Ints:
    """Return a device's operations as columns of a plan; each kind takes the micro-batches in turn."""
    kinds = np.array(order)
    microbatch = np.zeros(len(kinds), np.int64)
    for kind in range(len(_KINDS)):
        own = kinds == kind
        microbatch[own] = np.arange(own.sum())
    none = np.full(len(kinds), -1)
    code = np.array([KINDS.index(kind) for kind in _KINDS])[kinds]
    return np.stack([code, np.full(len(kinds), device), microbatch, none, none])


class _Search:
    """One try: the state of every device while operations are put one after the other."""

    def __init__(
        self,
        devices: int,
        microbatches: int,
        times: Times,
        memory: float,
        weight_share: float,
        taste: _Taste,
    ) -> None:
        self.orders: list[list[int]] = [[] for _ in range(devices)]
        self._p, self._m, self._taste = devices, microbatches, taste
        self._limit = memory + _ROUNDING
        self._stores = (1.0, weight_share - 1.0, -weight_share)
        self._takes = times[:3]
        self._comm = times.comm_ns
        self._done = [[0, 0, 0] for _ in range(devices)]
        self._free = [0] * devices
        self._held = [0.0] * devices
        self._idle = [0] * devices
        self._began = [0] * devices
        # Ends of forwards and backwards, which other devices wait for.
        self._ends: list[tuple[list[int], list[int]]] = [([], []) for _ in range(devices)]

    def longest_ns(self) -> int:
        """Return the longest time from a device's first start to its last end."""
        return max(end - start for end, start in zip(self._free, self._began, strict=True))

    def run(self) -> _Search:
        """Put everything."""
        self._warm_up()
        for index in range(1, self._m):
            self._forwards()
            self._backwards(index)
        for device in range(self._p):
            while self._done[device][_W] < self._m:
                self._put(device, _W)
        return self

    def _arrival(self, device: int, kind: int) -> int:
        """Return when what a device's next forward or backward needs arrives."""
        giver = device - 1 if kind == _F else device + 1
        if not 0 <= giver < self._p:
            return 0
        return self._ends[giver][kind][self._done[device][kind]] + self._comm

    def _put(self, device: int, kind: int) -> None:
        done = self._done[device]
        start = self._free[device]
        if kind != _W:
            start = max(start, self._arrival(device, kind))
            if done[_F]:
                self._idle[device] += start - self._free[device]
            else:
                self._began[device] = start
        self._free[device] = start + self._takes[kind]
        if kind != _W:
            self._ends[device][kind].append(self._free[device])
        self._held[device] += self._stores[kind]
        self.orders[device].append(kind)
        done[kind] += 1

    def _warm_up(self) -> None:
        """Run the first forward everywhere, as many more as fit, and the first backward."""
        for device in range(self._p):
            self._put(device, _F)
        forward, backward, _ = self._takes
        more = [0] * self._p
        back = self._free[-1] + backward
        for device in range(self._p - 2, -1, -1):
            free, arrival = self._free[device], back + self._comm
            slack = 0 if self._taste.delays_backward else forward
            while (
                1 + more[device] < self._m
                and self._held[device] + self._stores[_F] * (more[device] + 1) <= self._limit
                and free + forward - slack <= arrival - (slack > 0)
            ):
                more[device] += 1
                free += forward
            back = max(free, arrival) + backward
        for device in range(1, self._p):
            # What the device before does not send, this one cannot run.
            if more[device] and more[device] >= more[device - 1] and 1 + more[device] < self._m:
                more[device] = max(0, more[device - 1] - 1)
        for device in range(self._p):
            for _ in range(more[device]):
                self._put(device, _F)
        for device in reversed(range(self._p)):
            self._put(device, _B)

    def _forwards(self) -> None:
        """Run the next forward on every device that wants it and will be sent it."""
        wanted = [self._wants_forward(device) for device in range(self._p)]
        for device in reversed(range(self._p - 1)):
            wanted[device] &= wanted[device + 1]
        for device in range(self._p):
            if wanted[device]:
                self._make_room(device, _F)
                self._fill(device, _F)
                self._put(device, _F)

    def _wants_forward(self, device: int) -> bool:
        done = self._done[device][_F]
        if done >= self._m:
            return False
        after = device + 1
        if not (self._taste.yields and after < self._p and done >= self._done[after][_F] + 2):
            return True
        # The next device has enough to do: is there time before its next backward comes back?
        forward, backward, weight = self._takes
        back = self._free[after] + forward + backward + self._comm
        if self._free[device] >= back:
            return False
        first = self._done[device]
        excess = self._held[device] + self._stores[_F] - self._limit
        needed = min(max(0, excess), first[_B] - first[_W])
        if self._free[device] + forward + needed * weight <= back:
            return True
        return back - self._free[device] > max(self._idle) - self._idle[device]

    def _backwards(self, index: int) -> None:
        for device in reversed(range(self._p)):
            self._make_room(device, _B)
            self._fill(device, _B)
            if device == 0 and self._done[0][_F] == self._m:
                while self._done[0][_W] < index:
                    self._put(0, _W)
            self._put(device, _B)

    def _make_room(self, device: int, kind: int) -> None:
        """Free memory by weight gradients until the operation fits."""
        while self._held[device] + self._stores[kind] > self._limit:
            if not self._pending(device):
                raise ScheduleError(
                    f"a zero-bubble schedule of {self._p} devices does not fit into the memory of "
                    f"{self._limit:g} micro-batches"
                )
            self._put(device, _W)

    def _fill(self, device: int, kind: int) -> None:
        """Use the wait before an operation for weight gradients."""
        giver = device - 1 if kind == _F else device + 1
        if not 0 <= giver < self._p:
            return
        arrival = self._arrival(device, kind)
        while self._pending(device) and self._free[device] + self._takes[_W] <= arrival:
            self._put(device, _W)
        gap = arrival - self._free[device]
        if self._pending(device) and gap > 0:
            spare = max(self._idle) - self._idle[device]
            if gap > spare or self._taste.fills:
                self._put(device, _W)

    def _pending(self, device: int) -> bool:
        return self._done[device][_W] < self._done[device][_B]
