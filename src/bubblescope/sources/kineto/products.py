"""What operators that may multiply matrices were called with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.sources.kineto.document import ExactShapedSlice, ShapedSlice
from bubblescope.sources.kineto.operator_flops import OPERATORS, multiplies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

NO_CALL: Final = -1
"""Stands for an operator that multiplies no matrices."""

_SHAPED: Final = frozenset({ShapedSlice, ExactShapedSlice})
_NULL: Final = b"null"
_UNTOLD: Final = (_NULL, _NULL, _NULL)
_CALLS: Final = {name: OPERATORS[name] for name in ("name", "dims", "types", "concrete")}


class Products:
    """Numbers the distinct calls of operators, batch by batch."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, tuple[bytes, bytes, bytes]], int] = {}
        self._unshaped = _Unshaped(self._calls)

    def take(self, names: Sequence[str], events: Sequence[Any]) -> NDArray[np.int32]:
        """Return a number for what each operator was called with, or `NO_CALL`."""
        found = np.fromiter(map(self._unshaped.__getitem__, names), np.int32, len(names))
        if type(events[0]) in _SHAPED:
            for row in np.flatnonzero(found != NO_CALL).tolist():
                args = events[row].args
                if args is not None:
                    told = (bytes(args.dims), bytes(args.types), msgspec.json.encode(args.inputs))
                    found[row] = self._calls.setdefault((names[row], told), len(self._calls))
        return found

    def finish(self, operators: pl.DataFrame) -> pl.DataFrame:
        """Return the operators that may multiply matrices, with the columns of `OPERATORS`.

        Args:
            operators: Frame with thread, start_ns, end_ns and call, a number that `take` gave.

        Returns:
            Nothing if none of them tells what it was called with.
        """
        if all(told == _UNTOLD for _, told in self._calls):
            return pl.DataFrame(schema=OPERATORS)
        calls = pl.DataFrame(
            [(name, *map(_text, told)) for name, told in self._calls], _CALLS, orient="row"
        )
        mine = operators.filter(pl.col("call") != NO_CALL)
        return pl.concat([mine, calls[mine["call"]]], how="horizontal").select(*OPERATORS)


class _Unshaped(dict[str, int]):
    """The numbers of calls of which no more is known than the name."""

    def __init__(self, calls: dict[tuple[str, tuple[bytes, bytes, bytes]], int]) -> None:
        self._calls = calls

    def __missing__(self, name: str) -> int:
        call = (name, _UNTOLD)
        self[name] = found = (
            self._calls.setdefault(call, len(self._calls)) if multiplies(name) else NO_CALL
        )
        return found


def _text(json: bytes) -> str | None:
    return None if json == _NULL else json.decode("utf-8", "replace")
