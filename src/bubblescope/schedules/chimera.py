"""Schedules that keep devices busy from both ends: Chimera's two pipelines and Hanayo's waves.

Both are timetables. Forwards and backwards count one slot each, a micro-batch moves on by one
stage in every slot, and micro-batches enter two slots apart, so that on every device those that
travel up use the slots that those that travel down leave free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bubblescope.model.errors import ScheduleError
from bubblescope.model.kinds import Kind
from bubblescope.schedules.plan import Operation, Plan, mirrored, zigzag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def chimera(devices: int, microbatches: int) -> Plan:
    """Two copies of the model in opposite directions, each running in the other's bubbles.

    Li and Hoefler, "Chimera" (arXiv 2107.06925, section 3). A unit is p micro-batches, half of them
    down from device 0 and half up from device p - 1; longer steps are units one after the other,
    2p slots apart ("direct concatenation").

    Args:
        devices: Pipeline devices p, an even number.
        microbatches: Micro-batches of a step m, an even number.
    """
    if devices % 2 or microbatches % 2:
        raise ScheduleError(
            f"chimera needs an even number of devices and of micro-batches, not {devices} and "
            f"{microbatches}"
        )

    def enter(microbatch: int) -> tuple[int, bool]:
        unit, place = divmod(microbatch, devices)
        half = min(devices, microbatches - unit * devices) // 2
        up, turn = divmod(place, half)
        return 2 * (unit * devices + turn), bool(up)

    return _timetable("chimera", mirrored(devices), range(devices), microbatches, enter)


def hanayo(devices: int, microbatches: int, chunks: int = 2) -> Plan:
    """Waves over a zig-zag of stages (Liu et al., "Hanayo", arXiv 2308.15762).

    Chimera without the second copy: what travelled up the other copy is the way back of the same
    micro-batches. Groups of p micro-batches follow one another, without a gap in between.

    Args:
        devices: Pipeline devices p.
        microbatches: Micro-batches of a step m.
        chunks: Model chunks on each device, two for every wave.
    """
    if chunks % 2:
        raise ScheduleError(f"hanayo needs an even number of chunks, two for a wave; not {chunks}")

    def enter(microbatch: int) -> tuple[int, bool]:
        group, turn = divmod(microbatch, devices)
        return 2 * (group * devices * chunks + turn), False

    placement = zigzag(devices, chunks)
    home = {stage: rank for rank, held in enumerate(placement) for stage in held}
    path = [home[stage] for stage in range(devices * chunks)]
    return _timetable("hanayo", placement, path, microbatches, enter)


def _timetable(
    name: str,
    placement: Sequence[tuple[int, ...]],
    path: Sequence[int],
    microbatches: int,
    enter: Callable[[int], tuple[int, bool]],
) -> Plan:
    """Let micro-batches travel up the stages and down again, and read off each device's order.

    Args:
        name: Name of the plan.
        placement: Stages of each device, by chunk.
        path: The device of each stage, of the first copy if there are two.
        microbatches: Number of micro-batches.
        enter: The slot in which a micro-batch enters, and whether it takes the second copy, which
            lies the other way round.
    """
    devices, stages = len(placement), len(path)
    slots: list[list[tuple[int, Operation]]] = [[] for _ in range(devices)]
    for microbatch in range(microbatches):
        slot, second = enter(microbatch)
        for stage, first in enumerate(path):
            rank = devices - 1 - first if second else first
            slots[rank] += [
                (slot + stage, Operation(Kind.FORWARD, stage, microbatch)),
                (slot + 2 * stages - 1 - stage, Operation(Kind.BACKWARD, stage, microbatch)),
            ]
    # No two operations of a device share a slot.
    orders = [
        [operation for _, operation in sorted(held, key=lambda entry: entry[0])] for held in slots
    ]
    return Plan.of(name, placement, orders)
