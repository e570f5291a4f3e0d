"""Tasks as they are recorded: one after another in a list, of which a frame is made later."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from bubblescope.record.sink import COLUMNS
from bubblescope.vocabulary import LANE_OF, Kind, Lane, mark_name

if TYPE_CHECKING:
    from bubblescope.record.timers import Timer

__all__ = ["Buffer", "label_of", "pack_place", "pack_step", "place_of"]

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
PLACE: Final = {name: "h" if name.endswith("chunk") else "i" for name in FIELDS[1:]} | {
    "kind": "B",
    "lane": "B",
}

pack_step: Final = struct.Struct("<i").pack
pack_place: Final = struct.Struct("<" + "".join(PLACE.values())).pack
"""All that describes a task but its step: the same in every step, so that it need be packed once."""

_unpack_place: Final = struct.Struct("<" + "".join(PLACE.values())).unpack
_PLACES: Final = np.dtype([(name, f"<{code}") for name, code in PLACE.items()])

KINDS: Final = tuple(Kind)
LANES: Final = tuple(Lane)
KIND_CODES: Final[dict[str, int]] = {
    key: code for code, kind in enumerate(KINDS) for key in (kind, kind.value)
}
LANE_CODES: Final[dict[str, int]] = {
    key: code for code, lane in enumerate(LANES) for key in (lane, lane.value)
}
LANE_OF_KIND: Final = tuple(LANES.index(LANE_OF[kind]) for kind in KINDS)
PAIRED: Final = KINDS.index(Kind.FORWARD_BACKWARD)


def label_of(place: bytes, step: int | None) -> str:
    """Return the name of a task for a vendor's profiler, from its packed place."""
    *numbers, kind, _ = _unpack_place(place)
    stage, chunk, microbatch, peer = (None if n == UNKNOWN else n for n in numbers[:4])
    return mark_name(
        KINDS[kind], step=step, stage=stage, chunk=chunk, microbatch=microbatch, peer=peer
    )


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

    def frame(self, timer: Timer) -> pl.DataFrame:
        """Return the tasks as a frame with the columns of `COLUMNS`."""
        steps, places, begins, ends, host_begins, host_ends, names = (
            self._items[at::WIDTH] for at in range(WIDTH)
        )
        place = np.frombuffer(b"".join(places), _PLACES)
        times = timer.resolve(begins + ends, self._anchor)
        columns: dict[str, Any] = {name: place[name] for name in FIELDS[1:]}
        columns |= {
            "step": np.frombuffer(b"".join(steps), "<i4"),
            "kind": np.array([kind.value for kind in KINDS])[place["kind"]],
            "lane": np.array([lane.value for lane in LANES])[place["lane"]],
            "start_ns": times[: len(begins)],
            "end_ns": times[len(begins) :],
            "host_start_ns": np.array(host_begins, np.int64),
            "host_end_ns": np.array(host_ends, np.int64),
            "name": pl.Series(names, dtype=pl.String),
        }
        return (
            pl.DataFrame(columns)
            .with_columns(pl.col(*FIELDS).replace(UNKNOWN, None))
            .select(pl.col(name).cast(dtype) for name, dtype in COLUMNS.items())
        )
