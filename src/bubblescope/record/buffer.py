"""Tasks as they are recorded: one after another in a list, of which columns are made later."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bubblescope.model.kinds import LANE_OF, Kind, Lane
from bubblescope.names.recorder_ranges import mark_name
from bubblescope.recording.rows import FIELDS, KINDS, LANES, TIMES, UNKNOWN, Rows

if TYPE_CHECKING:
    from bubblescope.record.timers.timer import Timer

CAPACITY: Final = 4096
"""Tasks that wait to be written at most; a few more if several threads record."""

WIDTH: Final = 7
"""Values of a task in a buffer: its packed step, its packed place, the timer's marks at its begin and
end (None if it is timed on the host only), the host's monotonic times at its begin and end, its name or
None."""
_HOST_BEGIN: Final = 4

NO_PAIR: Final = (UNKNOWN, UNKNOWN, UNKNOWN)
PAIR: Final = ("pair_stage", "pair_chunk", "pair_microbatch")
PLACE: Final = (*FIELDS[1:], "kind", "lane")

pack_step: Final = struct.Struct("<i").pack
pack_identity: Final = struct.Struct(f"<{len(PLACE)}i").pack
"""All that describes a task but its step: the same in every step, so that it need be packed once."""

_unpack_step: Final = struct.Struct("<i").unpack
_unpack_identity: Final = struct.Struct(f"<{len(PLACE)}i").unpack

KIND_CODES: Final[dict[str, int]] = {
    key: code for code, kind in enumerate(KINDS) for key in (kind, kind.value)
}
LANE_CODES: Final[dict[str, int]] = {
    key: code for code, lane in enumerate(LANES) for key in (lane, lane.value)
}
LANE_OF_KIND: Final = tuple(LANES.index(LANE_OF[kind]) for kind in KINDS)
_NAMED: Final = frozenset(("stage", "chunk", "microbatch", "peer", "pair_stage", "pair_microbatch"))
"""What a task's name tells beside its kind and step."""
_COMM: Final = LANES.index(Lane.COMM)
PAIRED: Final = KINDS.index(Kind.FORWARD_BACKWARD)


def label_of(place: bytes, step: int | None) -> str:
    """Return the name of a task for a vendor's profiler, from its packed place."""
    said = {name: number for name, number in place_of(place).items() if name in _NAMED}
    return mark_name(kind_of(place), step=step, **said)


def place_of(place: bytes) -> dict[str, int]:
    """Return what is known of a packed place, by the names of `PLACE`."""
    numbers = zip(PLACE, _unpack_identity(place), strict=True)
    return {name: number for name, number in numbers if number != UNKNOWN}


def kind_of(place: bytes) -> Kind:
    """Return what a task does, from its packed place."""
    code: int = _unpack_identity(place)[-2]
    return KINDS[code]


@lru_cache(maxsize=1 << 16)
def identity_of(
    kind: Kind,
    *,
    stage: int | None = None,
    chunk: int | None = None,
    microbatch: int | None = None,
    peer: int | None = None,
    lane: Lane | None = None,
) -> bytes:
    """Return where a task belongs, packed. Those of a pipeline are few and come again every step."""
    code = KIND_CODES[kind]
    return pack_identity(
        *(UNKNOWN if value is None else value for value in (stage, chunk, microbatch, peer)),
        *NO_PAIR,
        code,
        LANE_OF_KIND[code] if lane is None else LANE_CODES[lane],
    )


class Buffer:
    """Tasks that were recorded, to be written.

    Args:
        items: `WIDTH` values for each task. One flat list and no object for each task: those would
            set off garbage collections in the job.
        anchor: What the timer tied the clocks to when these tasks were recorded.
    """

    def __init__(self, items: list[Any], anchor: Any) -> None:
        self._items = items
        self._anchor = anchor

    def __len__(self) -> int:
        return len(self._items) // WIDTH

    def begins(self, items: list[Any]) -> bool:
        """Say whether these tasks are the first of a list: each has a number of its own, its begin."""
        return bool(items) and items[_HOST_BEGIN] is self._items[_HOST_BEGIN]

    def remove_from(self, items: list[Any]) -> None:
        """Remove these tasks from the beginning of a list, to which other threads may add meanwhile."""
        del items[: len(self._items)]

    def steps(self) -> tuple[int, int] | None:
        """Return the steps of the first and the last task; None if they are of none."""
        ends = (_unpack_step(self._items[at])[0] for at in (0, -WIDTH))
        known = [step for step in ends if step != UNKNOWN]
        return (min(known), max(known)) if known else None

    def rows(self, timer: Timer) -> Rows:
        """Return the tasks, timed."""
        steps, places, begins, ends, host_begins, host_ends, names = (
            self._items[at::WIDTH] for at in range(WIDTH)
        )
        numbers = np.empty((1 + len(PLACE), len(steps)), np.int32)
        numbers[0] = np.frombuffer(b"".join(steps), "<i4")
        numbers[1:] = np.frombuffer(b"".join(places), "<i4").reshape(-1, len(PLACE)).T
        times = np.empty((len(TIMES), len(steps)), np.int64)
        times[2:] = host_begins, host_ends
        busy_ns = np.full(len(steps), -1, np.int64) if timer.sees_kernels else None
        marked: Any = slice(None)
        if None in begins:  # what has no marks of the timer is timed on the host
            times[:2] = times[2:]
            marked = np.array([one is not None for one in begins])
            begins, ends = ([one for one in marks if one is not None] for marks in (begins, ends))
        found = timer.resolve(begins, ends, self._anchor, (numbers[-1] == _COMM)[marked])
        times[:2, marked] = found[:2]
        if busy_ns is not None:
            busy_ns[marked] = found[2]
        return Rows(numbers[:-2], numbers[-2], numbers[-1], times, names, busy_ns)
