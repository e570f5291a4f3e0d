"""What numbers and texts of a file can be: the bounds that every reader holds it to.

What a file declares is a claim. Tables by rank, stage or micro-batch are as large as the largest number
of them, so a single damaged one could fill the memory; here is where such numbers end. The types are
for `msgspec`, which refuses what is beyond them and names the field.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

RANKS: Final = 1 << 20
"""No job has as many ranks, nor as many stages, nor micro-batches in a step."""
DEVICES: Final = 1 << 15
"""No machine has as many devices."""
TIMES_NS: Final = 1 << 62
"""Times are between minus this and this: 146 years about the zero of their clock."""
LONGEST_NS: Final = 1 << 56
"""No run is as long: two years."""

Place = Annotated[int, Meta(ge=0, lt=RANKS)]
"""A rank, a stage, a micro-batch, or a coordinate among the ranks."""
Device = Annotated[int, Meta(ge=-1, lt=DEVICES)]
"""A device; -1 is what profilers write of none."""
Int32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Amount = Annotated[int, Meta(ge=0, le=TIMES_NS)]
"""A number of things, or a process."""
Time = Annotated[int, Meta(ge=-TIMES_NS, le=TIMES_NS)]
"""Nanoseconds."""

UNDECODABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding JSON that somebody else wrote may raise; the last of lists in lists in lists."""
