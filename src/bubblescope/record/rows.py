"""Tasks as rows of numbers: preallocated, and filled one at a time."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import polars as pl

from bubblescope.record.sink import COLUMNS
from bubblescope.vocabulary import LANE_OF, Kind, Lane

if TYPE_CHECKING:
    from bubblescope.record.timers import Timer

__all__ = ["Buffer", "Finished", "pack_what"]

CAPACITY: Final = 4096
"""Tasks in a buffer."""

UNKNOWN: Final = -1
"""Stands for null in a row, whose real numbers are never negative."""

NO_PAIR: Final = (UNKNOWN, UNKNOWN, UNKNOWN)
PAIR: Final = ("pair_stage", "pair_chunk", "pair_microbatch")
FIELDS: Final = ("step", "stage", "chunk", "microbatch", "peer", *PAIR)
WHAT: Final = {name: "h" if name.endswith("chunk") else "i" for name in FIELDS} | {
    "kind": "B",
    "lane": "B",
}
TIMES: Final = {"host_start_ns": "q", "host_end_ns": "q"}
ROW: Final = np.dtype([(name, f"<{code}") for name, code in (WHAT | TIMES).items()])
"""A task in a buffer. Filled through `struct`, which is faster than numpy for one row at a time."""

pack_what: Final = struct.Struct("<" + "".join(WHAT.values())).pack
_pack_times: Final = struct.Struct("<" + "".join(TIMES.values())).pack

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


class Finished(Protocol):
    """A task that is over.

    Attributes:
        what: Its description, packed by `pack_what`.
        begin, end: The timer's marks.
        host_begin, host_end: Monotonic clock of the host, nanoseconds.
        name: Its name, or None.
    """

    what: bytes
    begin: Any
    end: Any
    host_begin: int
    host_end: int
    name: str | None


class Buffer:
    """Preallocated rows that tasks are put into, one at a time.

    Args:
        anchor: What the timer tied the clocks to when these tasks were recorded.
    """

    def __init__(self, anchor: Any) -> None:
        self._anchor = anchor
        self._rows = 0
        # Not a bytearray: zeroing it would cost every step's end.
        self._numbers = np.empty(CAPACITY * ROW.itemsize, np.uint8).data
        self._marks: list[Any] = []
        self._names: list[str | None] = []

    def __len__(self) -> int:
        return self._rows

    def append(self, task: Finished) -> None:
        """Add a finished task."""
        at = self._rows * ROW.itemsize
        self._numbers[at : at + ROW.itemsize] = task.what + _pack_times(
            task.host_begin, task.host_end
        )
        self._marks += (task.begin, task.end)
        self._names.append(task.name)
        self._rows += 1

    def frame(self, timer: Timer) -> pl.DataFrame:
        """Return the rows as a frame with the columns of `COLUMNS`."""
        rows = np.frombuffer(self._numbers, ROW, self._rows)
        times = timer.resolve(self._marks, self._anchor)
        columns: dict[str, Any] = {name: rows[name] for name in (*FIELDS, *TIMES)}
        columns |= {
            "kind": np.array([kind.value for kind in KINDS])[rows["kind"]],
            "lane": np.array([lane.value for lane in LANES])[rows["lane"]],
            "start_ns": times[::2],
            "end_ns": times[1::2],
            "name": pl.Series(self._names, dtype=pl.String),
        }
        return (
            pl.DataFrame(columns)
            .with_columns(pl.col(*FIELDS).replace(UNKNOWN, None))
            .select(pl.col(name).cast(dtype) for name, dtype in COLUMNS.items())
        )
