"""Types of arrays that many modules name, and how to work on long ones and on many."""

from __future__ import annotations

import os
import sys
from collections import deque
from contextvars import copy_context
from itertools import chain, islice
from threading import local
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from bubblescope.model.machine import cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import ThreadPoolExecutor

    import polars as pl
    from numpy.typing import NDArray

    Ints = NDArray[np.signedinteger[Any]]  # times and counts are 64 bits wide
    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]
    Numbers = NDArray[np.int32]  # of ranks, stages, tasks: half as large

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Other = TypeVar("_Other")

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
    workers = _threads_for(len(items), most)
    if workers < 2:
        return [work(item) for item in items]
    with _pool(workers) as pool:
        return list(pool.map(_as_asked(work), items))


def both(one: Callable[[], _Result], other: Callable[[], _Other]) -> tuple[_Result, _Other]:
    """Return what two functions return, which are called `at_once`."""
    found: list[Any] = at_once(lambda work: work(), [one, other])
    return found[0], found[1]


def in_turn(
    work: Callable[[_Item], _Result], items: Iterable[_Item], most: int
) -> Iterator[_Result]:
    """Yield what some work makes of each item, as `at_once` does, of items that take time to be there.

    While some are worked on, the next are asked for.

    Args:
        work: The work.
        items: The items.
        most: How many may be there at once.
    """
    workers, items = _threads_for(most), iter(items)
    several = list(islice(items, 2))
    if workers < 2 or len(several) < 2:
        yield from map(work, chain(_emptied(several), items))
        return
    with _pool(workers) as pool:
        work, waiting = _as_asked(work), deque[Any]()
        for item in chain(_emptied(several), items):
            waiting.append(pool.submit(work, item))
            del item
            if len(waiting) == most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _emptied(items: list[_Item]) -> Iterator[_Item]:
    """Yield items, and hold none that was yielded."""
    while items:
        yield items.pop(0)


def _threads_for(count: int, most: int | None = None) -> int:
    """Return how many threads are to work on so many items, or on fewer of them at once."""
    allowed = os.environ.get("POLARS_MAX_THREADS", "")
    available: int = getattr(_own, "threads", None) or min(
        int(allowed) if allowed.isdecimal() else cores(), cores()
    )
    return min(count, available if most is None else most, available)


def _pool(workers: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 -- small runs need none

    share = _threads_for(sys.maxsize) // workers

    def start() -> None:
        _own.threads = share

    return ThreadPoolExecutor(workers, initializer=start)


def _as_asked(work: Callable[[_Item], _Result]) -> Callable[[_Item], _Result]:
    """Return the work, such that it sees the context variables of the thread that asks."""
    asking = copy_context()  # which one thread at a time may be in, so that each gets a copy
    return lambda item: asking.copy().run(work, item)


_own: Final = local()
"""How many threads may work for the thread that asks; not there in one that works for no other."""
