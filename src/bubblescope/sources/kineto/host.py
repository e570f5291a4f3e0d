"""What the host did while a device waited for it, as far as a PyTorch trace tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from bubblescope.names.host_ranges import collects_garbage, unnumbered, without_address
from bubblescope.names.runtime_calls import what_for
from bubblescope.sources.capture import (
    GC,
    HOST,
    NOTHING_TOLD,
    OPERATOR,
    PYTHON,
    WAITS,
    annotated,
    doing_in_calls,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from bubblescope.model.arrays import Ints


class Host:
    """Takes what threads of the host did, batch by batch."""

    def __init__(self) -> None:
        self._names = Numbers()
        self._of_functions = _AlikeFunctions(self._names)
        self._calls, self._functions = _Calls(), _Functions()
        self._columns: list[tuple[Any, ...]] = []
        self._waits: list[tuple[Ints, Ints]] = []
        self._syncs = False

    def take_calls(self, names: Sequence[str], start: Ints, end: Ints, thread: Ints) -> None:
        """Take calls of the device's runtime, and keep those that tell what the host did."""
        sort = np.fromiter(map(self._calls.__getitem__, names), np.int8, len(names))
        doing = doing_in_calls(sort, end - start)
        kept = np.flatnonzero(doing != NOTHING_TOLD)
        if len(kept):
            told = [names[row] for row in kept.tolist()]
            self._take(told, start[kept], end[kept], thread[kept], doing[kept])

    def take_operators(self, names: Sequence[str], start: Ints, end: Ints, thread: Ints) -> None:
        """Take operators."""
        self._take(names, start, end, thread, OPERATOR)

    def take_functions(self, names: Sequence[str], start: Ints, end: Ints, thread: Ints) -> None:
        """Take Python's functions; one that collects garbage is told from others."""
        doing = np.fromiter(map(self._functions.__getitem__, names), np.int8, len(names))
        self._take(names, start, end, thread, doing, self._of_functions)

    def take_syncs(self, events: Sequence[Any], start: Ints) -> None:
        """Take events of synchronisation, and keep those that let a stream wait for an event."""
        self._syncs = True
        waits = [
            row
            for row, event in enumerate(events)
            if event.name == "Stream Wait Event" and type(_stream(event)) is int
        ]
        streams = [_stream(events[row]) for row in waits]
        self._waits.append((start[waits], np.array(streams, np.int64)))

    def _take(
        self,
        names: Sequence[str],
        start: Ints,
        end: Ints,
        thread: Ints,
        doing: int | NDArray[np.int8],
        numbered: dict[str, int] | None = None,
    ) -> None:
        number = (self._names if numbered is None else numbered).__getitem__
        numbers = np.fromiter(map(number, names), np.int32, len(names))
        codes = np.broadcast_to(np.asarray(doing, np.int8), len(names))
        self._columns.append((thread, start, end, codes, numbers))

    def finish(
        self, ranges: pl.DataFrame
    ) -> tuple[pl.DataFrame, tuple[str, ...], pl.DataFrame | None]:
        """Return the columns of `HOST`, the names in it, and the columns of `WAITS`.

        Args:
            ranges: Frame with thread, start_ns, end_ns and name of all annotations.
        """
        nothing = [np.empty(0, np.int64)] * 3 + [np.empty(0, np.int8), np.empty(0, np.int32)]
        data = map(np.concatenate, zip(nothing, *self._columns, strict=True))
        self._columns.clear()
        names = ("thread", "start_ns", "end_ns", "doing", "name")
        host = pl.DataFrame(dict(zip(names, data, strict=True)))
        host = host.with_columns(process=pl.lit(0, pl.Int64)).select(*HOST)
        numbers = {
            name: self._names[unnumbered(name)]
            for name in ranges["name"].unique(maintain_order=True)
        }
        marked = annotated(ranges.with_columns(process=pl.lit(0, pl.Int64)), numbers)
        waits = None
        if self._syncs:
            start, stream = (np.concatenate(parts) for parts in zip(*self._waits, strict=True))
            waits = pl.DataFrame({"stream": stream, "start_ns": start})
            waits = waits.with_columns(process=pl.lit(0, pl.Int64)).select(*WAITS)
        return pl.concat([host, marked]), tuple(self._names), waits


class Numbers(dict[str, int]):
    """Numbers names as they come."""

    def __missing__(self, name: str) -> int:
        self[name] = found = len(self)
        return found


class _AlikeFunctions(dict[str, int]):
    """Numbers functions of Python: a method has one number, whichever object it is of."""

    def __init__(self, names: Numbers) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, name: str) -> int:
        self[name] = found = self._names[without_address(name)]
        return found


class _Calls(dict[str, int]):
    """Says of each call, by its name, what it is for: values of `Call`."""

    def __missing__(self, name: str) -> int:
        self[name] = sort = what_for(name).value
        return sort


class _Functions(dict[str, int]):
    """Tells the function of Python that collects garbage from others, by their names."""

    def __missing__(self, name: str) -> int:
        self[name] = found = GC if collects_garbage(name) else PYTHON
        return found


def _stream(event: Any) -> Any:
    return event.args.stream if event.args is not None else None
