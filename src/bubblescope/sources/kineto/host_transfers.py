"""Sends and receives that the host itself carries out, and the ranks at their other ends.

`c10d::send` and `c10d::recv_` are called with the other end's number within a group
(torch/csrc/distributed/c10d/Ops.cpp). Traces say it where shapes were recorded, and the group nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from bubblescope.model.device_time import NONE
from bubblescope.sources.attribution import Launched, enclosing

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints, Mask
    from bubblescope.sources.kineto.process_groups import RankGroups

_PEER: Final = 2
_INPUTS: Final = 4
"""What these operators are called with: tensors, group, the other end's number, tag."""
_DIGITS: Final = 9
"""Digits of the largest number of a rank that is read."""
_CALLS: Final = {"thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64, "local": pl.Int64}


class HostTransfers:
    """Takes operators that send or receive, and keeps the other ends that they name."""

    def __init__(self) -> None:
        self._calls = [pl.DataFrame(schema=_CALLS)]

    def take(self, events: list[Any], start: Ints, end: Ints, thread: Ints, among: Mask) -> None:
        """Take those of a batch of operators that send or receive."""
        rows = np.flatnonzero(among)
        if len(rows):
            local = np.array([_local(events[row].args) for row in rows], np.int64)
            columns = (thread[rows], start[rows], end[rows], local)
            self._calls.append(pl.DataFrame(dict(zip(_CALLS, columns, strict=True))))

    def peers(self, begun: pl.DataFrame, groups: RankGroups) -> pl.Series:
        """Return the rank at the other end of each transfer; null where it is not known.

        Args:
            begun: Frame with thread and start_ns of what carries transfers out.
            groups: The groups of this rank.
        """
        calls = pl.concat(self._calls).sort("start_ns", "end_ns", descending=[False, True])
        launched = Launched(begun["thread"].to_numpy(), begun["start_ns"].to_numpy())
        local = np.append(calls["local"].to_numpy(), NONE)[enclosing(launched, calls)]
        known = {one: groups.sole_rank(one) for one in np.unique(local).tolist() if one != NONE}
        return pl.Series([known.get(one) for one in local.tolist()], dtype=pl.Int32)


def _local(args: Any) -> int:
    """Return the number of the other end within its group, or `NONE`."""
    inputs = None if args is None else args.inputs
    if not isinstance(inputs, list) or len(inputs) != _INPUTS:
        return NONE
    said = inputs[_PEER]
    plain = isinstance(said, str) and said.isascii() and said.isdigit() and len(said) <= _DIGITS
    return int(said) if plain else NONE
