"""Tasks as a recording holds them: arrays, one row for each column of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from bubblescope.model.kinds import Kind, Lane
from bubblescope.recording import arrow
from bubblescope.recording.columns import BUSY, COLUMNS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FIELDS: Final = (
    "step",
    "stage",
    "chunk",
    "microbatch",
    "peer",
    "pair_stage",
    "pair_chunk",
    "pair_microbatch",
)
TIMES: Final = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")

UNKNOWN: Final = -1
"""Stands for null in a row, whose real numbers are never negative."""

KINDS: Final = tuple(Kind)
LANES: Final = tuple(Lane)

_KIND_NAMES: Final = [kind.value.encode() for kind in KINDS]
_LANE_NAMES: Final = [lane.value.encode() for lane in LANES]
_FIELD_TYPES: Final = [COLUMNS[name] for name in FIELDS]


class Rows(msgspec.Struct, frozen=True, eq=False):
    """Tasks as a recording holds them, n of them.

    Attributes:
        fields: What `FIELDS` names, `UNKNOWN` where it is null; 8 x n.
        kind, lane: Indices into `KINDS` and `LANES`; n long.
        times: What `TIMES` names, in nanoseconds; 4 x n.
        names: Names of tasks, or None; n long.
        busy_ns: How long kernels of each ran, `UNKNOWN` for those without; None if the timer sees none.
    """

    fields: NDArray[np.int32]
    kind: NDArray[np.int32]
    lane: NDArray[np.int32]
    times: NDArray[np.int64]
    names: list[str | None]
    busy_ns: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def part(self, start: int, stop: int) -> Rows:
        """Return the tasks from one to before another."""
        cut = slice(start, stop)
        return Rows(
            self.fields[:, cut],
            self.kind[cut],
            self.lane[cut],
            self.times[:, cut],
            self.names[cut],
            None if self.busy_ns is None else self.busy_ns[cut],
        )

    def named_within(self, characters: int) -> Rows:
        """Return the same with names of at most so many characters."""
        short = [name and name[:characters] for name in self.names]
        return msgspec.structs.replace(self, names=short)

    def encode(self) -> bytes:
        """Return the tasks as an Arrow record batch with the columns of `COLUMNS`, or of `WITH_BUSY`.

        Raises:
            ValueError: A number is too large for its column.
        """
        numbers = arrow.numbers(self.fields, _FIELD_TYPES, UNKNOWN)
        columns = {
            **dict(zip(FIELDS, numbers, strict=True)),
            **dict(zip(TIMES, map(arrow.known, self.times), strict=True)),
            "kind": arrow.chosen(self.kind, _KIND_NAMES),
            "lane": arrow.chosen(self.lane, _LANE_NAMES),
            "name": arrow.texts(
                [None if name is None else name.encode("utf8", "replace") for name in self.names]
            ),
        }
        if self.busy_ns is not None:
            columns[BUSY] = arrow.partly_known(self.busy_ns, UNKNOWN)
        return arrow.encode(columns, len(self))
