"""Questions about a run that the viewer asks while it looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl
from msgspec.structs import replace

from bubblescope.analysis.question_text import read
from bubblescope.model.errors import ScheduleError
from bubblescope.render.html.schema import Asked
from bubblescope.render.html.serve.windows import Windows
from bubblescope.render.html.whatif_answers import said

if TYPE_CHECKING:
    from bubblescope.analysis.standard_questions import Answer, Questions
    from bubblescope.render.html.data import PageData

_KEPT: Final = 2
"""Answers whose tasks are kept: that in sight, and the one before."""

_LETTERS: Final = 2_000
"""Of a question."""

_OPERATIONS: Final = 100_000
"""Operations of a plan that is made for a question: some seconds' work at most."""


class _Told(NamedTuple):
    asked: Asked
    windows: Windows | None


class Asking:
    """Answers questions, and cuts out of what would have run what is in sight.

    Args:
        data: What a page of the run would hold, and what can be asked about it.
    """

    def __init__(self, data: PageData) -> None:
        if data.asks is None:
            raise ValueError("the page's data was made for one that nobody can ask")
        self._data, self._asks = data, data.asks
        self._told: dict[str, _Told] = {}

    def answer(self, question: str, at_ns: int | None = None) -> Asked:  # noqa: ARG002  of all steps
        """Return what is said.

        Args:
            question: Options, as on the command line of `bubblescope whatif`.
            at_ns: What is in sight, for those who answer of a single step.

        Raises:
            ScheduleError: It cannot be read, makes no sense for the run, or takes too long to answer.
            TimelineError: The run cannot be asked that.
        """
        return self._tell(question).asked

    def windows(self, question: str) -> Windows | None:
        """Return what cuts out what is in sight, None where no task moves; raises as `answer` does."""
        return self._tell(question).windows

    def known(self, question: str) -> Windows | None:
        """Return the same as `windows` of a question that was answered lately; by any thread.

        Raises:
            KeyError: It was not.
        """
        return self._told[question].windows

    def _tell(self, question: str) -> _Told:
        told = self._told.pop(question, None) or self._asked(question)
        self._told[question] = told  # the last is that in sight
        while len(self._told) > _KEPT:
            del self._told[next(iter(self._told))]
        return told

    def _asked(self, question: str) -> _Told:
        data = self._data
        answer = questioned(self._asks.questions, question)
        ghost = self._asks.ghost(answer)
        if ghost is None:
            return _Told(Asked(answer=said(answer), rows=[], names=[]), None)
        measured, places = len(data.tasks), data.places()
        # In place of what the page opened with in the same lane; all others keep their numbers.
        shown = [row for row in places.rows if row.lane != "whatif"]
        shown += [
            replace(row, first=row.first + measured, to=row.to + measured)
            for row in replace(data, tasks=ghost.tasks).places().rows
        ]
        data = replace(data, tasks=pl.concat([data.tasks, ghost.tasks], how="diagonal"))
        windows = Windows(data, places._replace(rows=shown))
        rows = windows.places.rows
        told = replace(said(answer), idle=ghost.idle[0])
        return _Told(Asked(answer=told, rows=rows, names=ghost.names.to_list()), windows)


def questioned(questions: Questions, question: str) -> Answer:
    """Return the answer to a question as it is written; raises as `Asking.answer` does."""
    if len(question) > _LETTERS:
        raise ScheduleError("the question is too long")
    asked = read(question)
    if questions.operations(*asked) > _OPERATIONS:
        raise ScheduleError("that takes too long here: ask it with `bubblescope whatif`")
    return questions.ask(*asked)
