"""Types of arrays that many modules name, and how to work on long ones and on many."""

from __future__ import annotations

import os
from contextvars import copy_context
from threading import local
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from bubblescope.model.machine import cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import polars as pl

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

Ints = NDArray[np.signedinteger[Any]]  # times and counts are 64 bits wide
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.int32]  # of ranks, stages, tasks: half as large

A_FEW: Final = 2
"""How much is worked on `at_once` where each takes some memory."""

_BLOCK: Final = 1 << 17
"""Rows to work on at once: several columns of so many fit into a processor's cache."""


def blocks(count: int) -> Iterator[slice]:
    """Yield the rows of long arrays, block by block."""
    for low in range(0, count, _BLOCK):
        yield slice(low, min(low + _BLOCK, count))


def in_blocks(frame: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the rows of a frame, block by block: what is made of a block takes little memory.

    Of a frame without rows, that is one block.
    """
    return frame.iter_slices(_BLOCK) if frame.height else iter([frame])


def blocks_of_ranks(tasks: pl.DataFrame, by: str = "rank") -> Iterator[pl.DataFrame]:
    """Yield rows some ranks at a time, each rank's in one block; all if they are not by rank.

    Args:
        tasks: The rows.
        by: What tells ranks apart.
    """
    rank = tasks[by].to_numpy()
    if len(rank) <= _BLOCK or (rank[1:] < rank[:-1]).any():
        yield tasks
        return
    low = 0
    while low < len(rank):
        high = len(rank)
        if low + _BLOCK < high:
            first = int(np.searchsorted(rank, rank[low + _BLOCK]))
            high = first if first > low else int(np.searchsorted(rank, rank[low], "right"))
        yield tasks[low:high]
        low = high


def at_once(
    work: Callable[[_Item], _Result], items: Sequence[_Item], most: int | None = None
) -> list[_Result]:
    """Return what some work makes of each item, on as many threads as this process may have.

    That is one for each processor, or as many as Polars has, where `POLARS_MAX_THREADS` says it: then
    other processes are at work beside this one. Work that does several things at once itself gets a
    share of them.

    Operations on long arrays leave other threads to run meanwhile; so `work` should be little else. It
    sees the context variables of the thread that asks.

    Args:
        work: The work.
        items: The items.
        most: How many may be worked on at once, where each takes much memory.
    """
    allowed = os.environ.get("POLARS_MAX_THREADS", "")
    available = getattr(_own, "threads", None) or min(
        int(allowed) if allowed.isdecimal() else cores(), cores()
    )
    workers = min(len(items), available if most is None else most, available)
    if workers < 2:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 -- small runs need none

    def start() -> None:
        _own.threads = available // workers

    with ThreadPoolExecutor(workers, initializer=start) as pool:
        asking = copy_context()  # which one thread at a time may be in, so that each gets a copy
        return list(pool.map(lambda item: asking.copy().run(work, item), items))


_own: Final = local()
"""How many threads may work for the thread that asks; not there in one that works for no other."""
