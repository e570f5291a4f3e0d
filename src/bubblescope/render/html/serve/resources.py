"""What the server has to give: the page, what is in sight of it, and answers about the whole run."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bubblescope.model.errors import BubblescopeError
from bubblescope.render.html.kernels import inside
from bubblescope.render.html.packing import packed
from bubblescope.render.html.page import page
from bubblescope.render.html.schema import Asked, Found, Inside, Search, Totals, Where
from bubblescope.render.html.serve.asked import positions, sight, span_ns
from bubblescope.render.html.serve.query import QueryError, find, totals
from bubblescope.render.html.serve.whatifs import Asking
from bubblescope.render.html.serve.windows import Windows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bubblescope.render.html.data import PageData

_TOP: Final = 5
"""Names of kernels that the details of a task show."""

_WAITING: Final = 3
"""What-ifs that wait for the one that is being worked out."""


class BusyError(Exception):
    """So many questions wait that another would wait long."""


class Resources:
    """What can be asked of one run, by any thread.

    Polars works in parallel by itself, so one answer at a time is worked out, which keeps memory
    bounded. A what-if takes seconds, which a window does not: those have a turn of their own, and
    where some wait already, further ones are told to come again.

    Args:
        data: What the run's page would hold.
    """

    def __init__(self, data: PageData) -> None:
        self._data = data
        self._windows = Windows(data)
        self._asking = Asking(data)
        self._turn, self._whatif_turn = threading.Lock(), threading.Lock()
        self._room = threading.BoundedSemaphore(1 + _WAITING)
        self._answers = {
            "totals": self._totals,
            "inside": self._inside,
            "find": self._find,
            "where": self._where,
        }

    def answer(self, what: str, asked: Mapping[str, str]) -> tuple[str, bytes]:
        """Return the type and content of a resource.

        Args:
            what: Its name; that of the page is empty.
            asked: Parameters.

        Raises:
            KeyError: There is none of that name, or a parameter is missing.
            ValueError: A parameter is no number, or cannot be.
            BubblescopeError: The run cannot be asked that.
            BusyError: It is a what-if, and too many wait.
        """
        if what == "whatif":
            return _json(self._whatif(asked["ask"]))
        if what == "window":
            wanted = sight(asked, len(self._data.told.ranks))
            windows = self._windows_of(asked.get("ask"))
            with self._turn:
                return "application/octet-stream", windows.cut(wanted)
        with self._turn:
            if what == "":
                return "text/html; charset=utf-8", self._page
            if what in self._answers:
                return _json(self._answers[what](asked))
        raise KeyError(what)

    @cached_property
    def _page(self) -> bytes:
        """The page without its tasks: what does not change with what is in sight is in its head."""
        tables = self._data.tables_of_run()
        fixed = {name: packed(frame) for name, frame in tables.items()}
        columns = {name: table.columns for name, table in fixed.items()}
        head = self._data.head(columns, self._windows.places, served=True)
        if hint := head.no_kernels:
            served = hint.replace("bubblescope view", "bubblescope serve")
            head = msgspec.structs.replace(head, no_kernels=served)
        return page(head, fixed, connect=True).encode()

    def _windows_of(self, question: str | None) -> Windows:
        """Return what cuts out what is in sight, of the run and what it is asked."""
        if not question:
            return self._windows
        with suppress(KeyError):
            return self._asking.known(question) or self._windows
        with _Place(self._room), self._whatif_turn:
            return self._asking.windows(question) or self._windows

    def _whatif(self, question: str) -> Asked | dict[str, str]:
        try:
            with _Place(self._room), self._whatif_turn:
                return self._asking.answer(question)
        except BubblescopeError as error:
            return {"error": str(error)}

    def _totals(self, asked: Mapping[str, str]) -> Totals:
        wanted = positions(asked["ranks"], len(self._data.told.ranks))
        return totals(self._data, *span_ns(asked), wanted)

    def _find(self, asked: Mapping[str, str]) -> Found | dict[str, str]:
        try:
            return find(self._data, msgspec.json.decode(asked["search"], type=Search))
        except QueryError as error:
            return {"error": str(error)}

    def _inside(self, asked: Mapping[str, str]) -> Inside:
        (rank,) = positions(asked["rank"], len(self._data.told.ranks))
        start, end = (self._data.origin_ns + time_ns for time_ns in span_ns(asked))
        return inside(self._data.kernels, rank, start, end, _TOP)

    def _where(self, asked: Mapping[str, str]) -> Where:
        item = int(asked["id"])
        gaps = asked.get("what", "task") == "gap"
        table = self._data.gaps if gaps else self._data.tasks
        if not 0 <= item < len(table):
            raise ValueError(f"number {item}, where there are {len(table)}")
        row = table.row(item, named=True)
        origin = self._data.origin_ns
        return Where(
            rank=row["position"],
            lane="compute" if gaps else row["lane"],
            start=row["start_ns"] - origin,
            end=row["end_ns"] - origin,
        )


class _Place:
    """A place among those that wait, if there is one."""

    def __init__(self, room: threading.BoundedSemaphore) -> None:
        self._room = room

    def __enter__(self) -> None:
        if not self._room.acquire(blocking=False):
            raise BusyError

    def __exit__(self, *_: object) -> None:
        self._room.release()


def _json(value: Any) -> tuple[str, bytes]:
    return "application/json", msgspec.json.encode(value)
