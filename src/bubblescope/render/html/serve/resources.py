"""What the server has to give: the page, what is in sight of it, and answers about the whole run."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from bubblescope.model.decoders import prepared
from bubblescope.model.errors import BubblescopeError, TimelineError, reason
from bubblescope.render.html.data import PageData
from bubblescope.render.html.kernels import inside
from bubblescope.render.html.packing import packed
from bubblescope.render.html.page import page
from bubblescope.render.html.page_language import in_chinese
from bubblescope.render.html.schema import Asked, Explained, Found, Inside, Search, Totals, Where
from bubblescope.render.html.serve.query import QueryError, find, totals
from bubblescope.render.html.serve.request_parameters import moment_ns, positions, sight, span_ns
from bubblescope.render.html.serve.whatifs import Asking
from bubblescope.render.html.serve.windows import Windows

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from bubblescope.render.html.packing import Packed
    from bubblescope.render.html.schema import Head, Idle, TableName
    from bubblescope.render.html.serve.windows import Sight

_TOP: Final = 5
"""Names of kernels that the details of a task show."""

_PARTS: Final = 1 << 20
"""More than a run has."""

_WAITING: Final = 3
"""What-ifs that wait for the one that is being worked out."""


class BusyError(Exception):
    """So many questions wait that another would wait long."""


class Answers(Protocol):
    """Answers what-ifs, as `Asking` does."""

    def answer(self, question: str, at_ns: int | None = None) -> Asked:
        """Return what is said, of all of the run or of the step at a time."""

    def windows(self, question: str) -> Windows | None:
        """Return what cuts out what would have run; None where there are no lanes of it."""

    def known(self, question: str) -> Windows | None:
        """Return the same at once; raises KeyError if it has to be worked out."""


class Held(Protocol):
    """A run that can be asked: all of it is here, or what is asked for is read when it is."""

    @property
    def ranks(self) -> int:
        """How many ranks it has."""

    @property
    def asking(self) -> Answers | None:
        """Answers what-ifs; None if nobody can."""

    def page(self) -> bytes:
        """Return the page without its tasks."""

    def cut(self, sight: Sight) -> bytes:
        """Return what is in sight, as `Windows.cut` does."""

    def explain(self, start_ns: int, end_ns: int, parts: Collection[int]) -> Idle:
        """Work out why ranks are idle in one of the parts in a stretch of time, if that can be."""

    def totals(self, start_ns: int, end_ns: int, ranks: Collection[int]) -> Totals:
        """Return what happened in a stretch of time on some ranks."""

    def find(self, search: Search) -> Found:
        """Return what a search is about; raises QueryError."""

    def inside(self, rank: int, start_ns: int, end_ns: int) -> Inside:
        """Return which kernels ran in a stretch of time."""

    def where(self, what: str, item: int) -> Where:
        """Return where a task or gap is; raises ValueError if there is none of that number."""


class Whole:
    """A run all of which is here.

    Args:
        data: What its page would hold.
    """

    def __init__(self, data: PageData) -> None:
        self._data = data
        self._windows = Windows(data)
        self.asking: Answers | None = Asking(data)

    @property
    def ranks(self) -> int:
        """How many ranks it has."""
        return len(self._data.told.ranks)

    def page(self) -> bytes:
        """Return the page; what does not change with what is in sight is in its head."""
        fixed = {name: packed(frame) for name, frame in self._data.tables_of_run().items()}
        columns = {name: table.columns for name, table in fixed.items()}
        return served_page(self._data.head(columns, self._windows.places, served=True), fixed)

    def cut(self, sight: Sight) -> bytes:
        """Return what is in sight."""
        return self._windows.cut(sight)

    def explain(self, *_: object) -> Idle:
        """Do nothing: all of it is known."""
        return "elsewhere"

    def totals(self, start_ns: int, end_ns: int, ranks: Collection[int]) -> Totals:
        """Return what happened in a stretch of time on some ranks."""
        return totals(self._data, start_ns, end_ns, ranks)

    def find(self, search: Search) -> Found:
        """Return what a search is about."""
        return find(self._data, search)

    def inside(self, rank: int, start_ns: int, end_ns: int) -> Inside:
        """Return which kernels ran in a stretch of time."""
        origin = self._data.origin_ns
        return inside(self._data.kernels, rank, origin + start_ns, origin + end_ns, _TOP)

    def where(self, what: str, item: int) -> Where:
        """Return where a task or gap is."""
        table = self._data.gaps if what == "gap" else self._data.tasks
        if not 0 <= item < len(table):
            raise ValueError(f"number {item}, where there are {len(table)}")
        return place_of(table.row(item, named=True), self._data.origin_ns)


def place_of(row: Mapping[str, Any], origin_ns: int) -> Where:
    """Return where a row of a page's tasks or gaps is; those are on the compute lane."""
    return Where(
        rank=row["position"],
        lane=row.get("lane", "compute"),
        start=row["start_ns"] - origin_ns,
        end=row["end_ns"] - origin_ns,
    )


def served_page(head: Head, fixed: Mapping[TableName, Packed]) -> bytes:
    """Return a page that loads what is in sight, with the tables that it always has."""
    if hint := head.no_kernels:
        served = hint.replace("bubblescope view", "bubblescope serve")
        head = msgspec.structs.replace(head, no_kernels=served)
    return page(head, fixed, connect=True).encode()


class Resources:
    """What can be asked of one run, by any thread.

    Polars works in parallel by itself, so one answer at a time is worked out, which keeps memory
    bounded. A what-if takes seconds, which a window does not: those have a turn of their own, and
    where some wait already, further ones are told to come again. So has a search, which may read all
    of the run, and so have workers that are asked why ranks are idle in a step.

    Args:
        run: The run, or what its page would hold.
    """

    def __init__(self, run: PageData | Held) -> None:
        self._run: Held = Whole(run) if isinstance(run, PageData) else run
        self._turn, self._whatif_turn, self._search_turn, self._explain_turn = (
            threading.Lock() for _ in range(4)
        )
        self._room = threading.BoundedSemaphore(1 + _WAITING)
        self._answers = {
            "totals": self._totals,
            "inside": self._inside,
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
            return _json(self._whatif(asked["ask"], moment_ns(asked)))
        if what == "explain":
            return _json(self._explained(asked))
        if what == "window":
            wanted = sight(asked, self._run.ranks)
            cutting = self._cutting(asked.get("ask"))
            with self._turn:
                return "application/octet-stream", cutting.cut(wanted)
        if what == "find":
            with self._search_turn:
                return _json(self._find(asked))
        with self._turn:
            if what == "":
                return "text/html; charset=utf-8", self._page
            if what in self._answers:
                return _json(self._answers[what](asked))
        raise KeyError(what)

    @cached_property
    def _page(self) -> bytes:
        return self._run.page()

    def _cutting(self, question: str | None) -> Windows | Held:
        """Return what cuts out what is in sight, of the run and what it is asked."""
        if not question:
            return self._run
        with suppress(KeyError):
            return self._asking.known(question) or self._run
        with _Place(self._room), self._whatif_turn:
            return self._asking.windows(question) or self._run

    @property
    def _asking(self) -> Answers:
        if self._run.asking is None:
            raise TimelineError("a run of which parts are read cannot be asked what-ifs")
        return self._run.asking

    def _whatif(self, question: str, at_ns: int | None) -> Asked | dict[str, str]:
        try:
            with _Place(self._room), self._whatif_turn:
                told = self._asking.answer(question, at_ns)
                return msgspec.structs.replace(told, chinese=in_chinese(told.answer))
        except BubblescopeError as error:
            return {"error": str(error)}

    def _explained(self, asked: Mapping[str, str]) -> Explained | dict[str, str]:
        parts = positions(asked["parts"], _PARTS)
        try:
            with _Place(self._room), self._explain_turn:
                return Explained(idle=self._run.explain(*span_ns(asked), parts))
        except BubblescopeError as error:
            return {"error": str(error)}
        except OSError as error:
            return {"error": f"why ranks are idle cannot be written: {reason(error)}"}

    def _totals(self, asked: Mapping[str, str]) -> Totals:
        return self._run.totals(*span_ns(asked), positions(asked["ranks"], self._run.ranks))

    def _find(self, asked: Mapping[str, str]) -> Found | dict[str, str]:
        try:
            return self._run.find(msgspec.json.decode(asked["search"], type=prepared(Search)))
        except QueryError as error:
            return {"error": str(error)}

    def _inside(self, asked: Mapping[str, str]) -> Inside:
        (rank,) = positions(asked["rank"], self._run.ranks)
        return self._run.inside(rank, *span_ns(asked))

    def _where(self, asked: Mapping[str, str]) -> Where:
        return self._run.where(asked.get("what", "task"), int(asked["id"]))


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
