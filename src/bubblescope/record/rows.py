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

TIMES: Final = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")

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
_KIND_NAMES: Final = [kind.value.encode() for kind in KINDS]
_LANE_NAMES: Final = [lane.value.encode() for lane in LANES]
_COMM: Final = LANES.index(Lane.COMM)
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

    def batch(self, timer: Timer) -> bytes:
        """Return the tasks as an Arrow record batch with the columns of `COLUMNS`."""
        arrays, names = self._arrays(timer)
        columns = {
            name: batches.numbers(arrays[name], COLUMNS[name], UNKNOWN if name in FIELDS else None)
            for name in (*FIELDS, *TIMES)
        }
        columns["kind"] = batches.texts([_KIND_NAMES[code] for code in arrays["kind"].tolist()])
        columns["lane"] = batches.texts([_LANE_NAMES[code] for code in arrays["lane"].tolist()])
        columns["name"] = batches.texts(
            [None if name is None else name.encode("utf8", "replace") for name in names]
        )
        return batches.encode(columns, len(self))

    def frame(self, timer: Timer) -> pl.DataFrame:
        """Return the same as a frame."""
        arrays, names = self._arrays(timer)
        columns: dict[str, Any] = arrays | {
            "kind": np.array([kind.value for kind in KINDS])[arrays["kind"]],
            "lane": np.array([lane.value for lane in LANES])[arrays["lane"]],
            "name": pl.Series(names, dtype=pl.String),
        }
        return (
            pl.DataFrame(columns)
            .with_columns(pl.col(*FIELDS).replace(UNKNOWN, None))
            .select(pl.col(name).cast(dtype) for name, dtype in COLUMNS.items())
        )

    def _arrays(self, timer: Timer) -> tuple[dict[str, NDArray[Any]], list[str | None]]:
        """Return all columns as numbers, kind and lane by their codes, and the names."""
        steps, places, begins, ends, host_begins, host_ends, names = (
            self._items[at::WIDTH] for at in range(WIDTH)
        )
        place = np.frombuffer(b"".join(places), _PLACES)
        starts, stops = timer.resolve(begins, ends, self._anchor, place["lane"] == _COMM)
        arrays = {name: place[name] for name in PLACE} | {
            "step": np.frombuffer(b"".join(steps), "<i4"),
            "start_ns": starts,
            "end_ns": stops,
            "host_start_ns": np.array(host_begins, np.int64),
            "host_end_ns": np.array(host_ends, np.int64),
        }
        return arrays, names
