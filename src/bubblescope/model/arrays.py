"""Types of arrays that many modules name, and how to work on long ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

_BLOCK: Final = 1 << 17
"""Rows to work on at once: several columns of so many fit into a processor's cache."""


def blocks(count: int) -> Iterator[slice]:
    """Yield the rows of long arrays, block by block."""
    for low in range(0, count, _BLOCK):
        yield slice(low, min(low + _BLOCK, count))
