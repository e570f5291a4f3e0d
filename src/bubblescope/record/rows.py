"""Tasks as they are recorded: one after another in a list, of which a frame is made later."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from bubblescope.record import batches
from bubblescope.record.sink import COLUMNS
from bubblescope.vocabulary import LANE_OF, Kind, Lane, mark_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bubblescope.record.timers import Timer

__all__ = ["Buffer", "kind_of", "label_of", "pack_place", "pack_step", "place_of"]

CAPACITY: Final = 4096
"""Tasks that wait to be written at most; a few more if several threads record."""

WIDTH: Final = 7
"""Values of a task in a buffer: its packed step, its packed place, the timer's marks at its begin and
end, the host's monotonic times at its begin and end, its name or None."""

UNKNOWN: Final = -1
"""Stands for null in a row, whose real numbers are never negative."""

NO_PAIR: Final = (UNKNOWN, UNKNOWN, UNKNOWN)
PAIR: Final = ("pair_stage", "pair_chunk", "pair_microbatch")
FIELDS: Final = ("step", "stage", "chunk", "microbatch", "peer", *PAIR)
PLACE: Final = (*FIELDS[1:], "kind", "lane")

TIMES: Final = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")

pack_step: Final = struct.Struct("<i").pack
pack_place: Final = struct.Struct(f"<{len(PLACE)}i").pack
"""All that describes a task but its step: the same in every step, so that it need be packed once."""

_unpack_place: Final = struct.Struct(f"<{len(PLACE)}i").unpack

KINDS: Final = tuple(Kind)
LANES: Final = tuple(Lane)
KIND_CODES: Final[dict[str, int]] = {
    key: code for code, kind in enumerate(KINDS) for key in (kind, kind.value)
}
LANE_CODES: Final[dict[str, int]] = {
    key: code for code, lane in enumerate(LANES) for key in (lane, lane.value)
}
LANE_OF_KIND: Final = tuple(LANES.index(LANE_OF[kind]) for kind in KINDS)
_KIND_NAMES: Final = [kind.value.encode() for kind in KINDS]
_LANE_NAMES: Final = [lane.value.encode() for lane in LANES]
_NAMED: Final = frozenset(("stage", "chunk", "microbatch", "peer", "pair_stage", "pair_microbatch"))
"""What a task's name tells beside its kind and step."""
_COMM: Final = LANES.index(Lane.COMM)
PAIRED: Final = KINDS.index(Kind.FORWARD_BACKWARD)


def label_of(place: bytes, step: int | None) -> str:
    """Return the name of a task for a vendor's profiler, from its packed place."""
    said = {
        name: number
        for name, number in zip(PLACE, _unpack_place(place), strict=True)
        if name in _NAMED and number != UNKNOWN
    }
    return mark_name(kind_of(place), step=step, **said)


def kind_of(place: bytes) -> Kind:
    """Return what a task does, from its packed place."""
    code: int = _unpack_place(place)[-2]
    return KINDS[code]


@lru_cache(maxsize=1 << 16)
def place_of(
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
    return pack_place(
        *(UNKNOWN if value is None else value for value in (stage, chunk, microbatch, peer)),
        *NO_PAIR,
        code,
        LANE_OF_KIND[code] if lane is None else LANE_CODES[lane],
    )


class Buffer:
    """Tasks that were recorded, to be made a frame of.

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

    def batch(self, timer: Timer) -> bytes:
        """Return the tasks as an Arrow record batch with the columns of `COLUMNS`."""
        places, times, names = self._arrays(timer)
        kinds, lanes = places[-2:]
        dtypes = [COLUMNS[name] for name in FIELDS]
        columns = {
            **dict(zip(FIELDS, batches.numbers(places[:-2], dtypes, UNKNOWN), strict=True)),
            **dict(zip(TIMES, map(batches.known, times), strict=True)),
            "kind": batches.chosen(kinds, _KIND_NAMES),
            "lane": batches.chosen(lanes, _LANE_NAMES),
            "name": batches.texts(
                [None if name is None else name.encode("utf8", "replace") for name in names]
            ),
        }
        return batches.encode(columns, len(self))

    def frame(self, timer: Timer) -> pl.DataFrame:
        """Return the same as a frame."""
        places, times, names = self._arrays(timer)
        columns: dict[str, Any] = {
            **dict(zip((*FIELDS, "kind", "lane"), places, strict=True)),
            **dict(zip(TIMES, times, strict=True)),
        }
        columns |= {
            "kind": np.array([kind.value for kind in KINDS])[columns["kind"]],
            "lane": np.array([lane.value for lane in LANES])[columns["lane"]],
            "name": pl.Series(names, dtype=pl.String),
        }
        return (
            pl.DataFrame(columns)
            .with_columns(pl.col(*FIELDS).replace(UNKNOWN, None))
            .select(pl.col(name).cast(dtype) for name, dtype in COLUMNS.items())
        )

    def _arrays(
        self, timer: Timer
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], list[str | None]]:
        """Return the step and place of each task, their times, one row for each field, and names."""
        steps, places, begins, ends, host_begins, host_ends, names = (
            self._items[at::WIDTH] for at in range(WIDTH)
        )
        numbers = np.empty((1 + len(PLACE), len(steps)), np.int32)
        numbers[0] = np.frombuffer(b"".join(steps), "<i4")
        numbers[1:] = np.frombuffer(b"".join(places), "<i4").reshape(-1, len(PLACE)).T
        times = np.empty((len(TIMES), len(steps)), np.int64)
        times[2:] = host_begins, host_ends
        times[:2] = timer.resolve(begins, ends, self._anchor, numbers[-1] == _COMM)
        return numbers, times, names
