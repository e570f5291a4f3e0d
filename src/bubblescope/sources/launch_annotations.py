"""What the host's ranges around a launch say about the communication that was launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from bubblescope.model.device_time import NONE, owner_at
from bubblescope.names.communication_ranges import (
    OPERATION,
    REPLICATED,
    ROLE,
    operation_of_range,
    role_of_range,
)

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints


class Launched(NamedTuple):
    """When and by which thread n kernels were launched; `NONE` where it is not known."""

    thread: Ints
    at_ns: Ints


def enclosing(launched: Launched, spans: pl.DataFrame) -> Ints:
    """Return for each launch the row of the innermost span of its thread, or `NONE`.

    Args:
        launched: The launches.
        spans: Frame with thread, start_ns and end_ns (exclusive), by start.
    """
    found = np.full(len(launched.at_ns), NONE, np.int64)
    threads = spans["thread"].to_numpy()
    start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    for thread in np.intersect1d(launched.thread, threads):
        mine = np.flatnonzero(launched.thread == thread)
        own = np.flatnonzero(threads == thread)
        owner = owner_at(launched.at_ns[mine], start[own], end[own])
        found[mine] = np.append(own, NONE)[owner]
    return found


class Annotations:
    """The ranges of a trace that tell what is launched in them.

    Args:
        spans: Frame with thread, start_ns, end_ns and name, of any type, of all ranges.
        names: Frame with name, unique and of that type, and text.
    """

    def __init__(self, spans: pl.DataFrame, names: pl.DataFrame) -> None:
        self._replicated = bool((names["text"] == REPLICATED).any())
        self._operations = _Telling(spans, names.filter(pl.col("text").str.contains(OPERATION)))
        self._roles = _Telling(spans, names.filter(pl.col("text").str.contains(ROLE)))

    def around(self, launched: Launched) -> tuple[Ints, Ints]:
        """Return the innermost ranges around each launch that may tell an operation, and a role.

        They are numbers that `operation` and `role` understand, or `NONE`.
        """
        return self._operations.around(launched), self._roles.around(launched)

    def operation(self, number: int) -> str | None:
        """Return the operation that a range names, in the words of `CommunicationKernel`."""
        return operation_of_range(self._operations.texts[number]) if number >= 0 else None

    def role(self, number: int, operation: str | None) -> str | None:
        """Return what an operation is for that is launched in a range; see `role_of_range`."""
        if number < 0:
            return None
        name = self._roles.texts[number]
        return role_of_range(name, operation, replicated=self._replicated)


class _Telling:
    """The spans of some names."""

    def __init__(self, spans: pl.DataFrame, names: pl.DataFrame) -> None:
        self.texts = names["text"].to_list()
        self._spans = (
            spans.join(names.with_row_index("telling"), on="name")
            .drop_nulls(["thread", "end_ns"])
            .sort("start_ns", "end_ns", descending=[False, True])
        )

    def around(self, launched: Launched) -> Ints:
        """Return which of the names the innermost span around each launch has, or `NONE`."""
        rows = enclosing(launched, self._spans)
        return np.append(self._spans["telling"].cast(pl.Int64).to_numpy(), NONE)[rows]
