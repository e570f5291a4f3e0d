"""What a run would have taken, as the page tells it: answers, and the lanes of what would have run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.analysis.question_text import written
from bubblescope.analysis.rates import makespan_rates
from bubblescope.model import units
from bubblescope.model.decoders import prepared
from bubblescope.render.html import schema
from bubblescope.render.html.packing import COUNTERPART, LANE, TASK_ROW, arranged_apart, extents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.idle.ledger import Ledger
    from bubblescope.analysis.prediction import Prediction
    from bubblescope.analysis.standard_questions import Answer, Questions
    from bubblescope.analysis.view import View
    from bubblescope.model.timeline import Timeline

_HELD: Final = 100_000
"""Tasks of all answers together whose lanes a page holds, some 8 bytes each."""

ASK: Final = ("bubblescope", "whatif")
"""The command that asks."""


class Ghost(NamedTuple):
    """What would have run.

    Attributes:
        tasks: As `packing.arranged` returns them, in the lane of what-ifs; `task` is null.
        names: Those of its tasks' names that the run has none of, numbered after those that it has.
        idle: How much each rank would have been idle, in the order of the page; by the answer's number.
    """

    tasks: pl.DataFrame
    names: pl.Series
    idle: dict[int, list[float | None]]


class Asks(NamedTuple):
    """What a question about a run needs.

    Attributes:
        questions: Answers it.
        timeline: The run.
        ranks: Its ranks in the order of the page, with rank and position.
        names: Of tasks, by number.
    """

    questions: Questions
    timeline: Timeline
    ranks: pl.DataFrame
    names: pl.Series

    def ghost(self, answer: Answer) -> Ghost | None:
        """Return what would have run; None where no task would have moved, as without a pipeline."""
        ghost = _ghost([answer], self.timeline, self.ranks, self.names)
        return ghost._replace(tasks=ghost.tasks.drop("answer")) if ghost.tasks.height else None


def _ghost(
    answers: Sequence[Answer], timeline: Timeline, ranks: pl.DataFrame, names: pl.Series
) -> Ghost:
    """Return what would have run by each answer; `answer` is its number, by which they are in order."""
    runs = {
        number: answer.prediction.timeline(timeline)
        for number, answer in enumerate(answers)
        if answer.prediction.timeline is not None
    }
    ran = {number: run.tasks for number, run in runs.items()}
    tasks = arranged_apart(ran or {0: timeline.tasks.clear()}, ranks, "answer")
    found = _names(tasks)
    fresh = found.filter(~found.is_in(names.implode()))
    numbers = pl.concat([names, fresh])
    codes = pl.int_range(len(numbers), eager=True).cast(tasks.schema["code"])
    tasks = tasks.with_columns(
        lane=pl.lit("whatif", LANE),
        code=tasks["name"].cast(pl.String).replace_strict(numbers, codes),
    )
    idle = {number: idle_of(run, timeline, ranks) for number, run in runs.items()}
    return Ghost(tasks, fresh, idle)


def idle_of(might: Timeline, run: Timeline, ranks: pl.DataFrame) -> list[float | None]:
    """Return how much each rank would have been idle, in the order of the page.

    Args:
        might: What would have run.
        run: What did.
        ranks: In the order of the page, with rank and position.
    """
    rates = makespan_rates(might, run)
    return [rates.get(rank) for rank in ranks.sort("position")["rank"].to_list()]


class Told(NamedTuple):
    """What a page tells of what-ifs, with their lanes.

    Attributes:
        whatif: The answers and what else can be asked; None if nothing can.
        ghosts: The tasks of those answers whose lanes the page holds, as of `Ghost`, with `answer`, the
            number of the answer.
        names: Those of all tasks, by number.
    """

    whatif: schema.WhatIf | None
    ghosts: pl.DataFrame
    names: pl.Series


class Answers(NamedTuple):
    """What a page tells of what-ifs, but for their lanes.

    Attributes:
        whatif: As of `Told`.
        drawn: The first of the answers, whose lanes the page holds.
    """

    whatif: schema.WhatIf | None
    drawn: Sequence[Answer]

    @classmethod
    def of(cls, view: View) -> Answers:
        """Return what a page tells of the run that it shows."""
        questions = view.questions
        if not questions.possible:
            return cls(None, ())
        ledger = view.study.ledger if view.study.pipelined else None
        size = int(ledger.typical.places["size"].sum()) if ledger is not None else 0
        whatif = schema.WhatIf(
            command=None if view.read_again is None else shlex.join((*ASK, *view.read_again)),
            step=questions.simple.step_ns,
            span=questions.simple.span,  # type: ignore[arg-type]  # one of the three
            moves=ledger is not None,
            causes=questions.removable,
            stages=_stages(ledger),
            layers=None if questions.layers is None else list(questions.layers),
            answers=[said(one) for one in view.answers],
        )
        return cls(whatif, view.answers[: _HELD // max(1, size)])

    def with_lanes(self, timeline: Timeline, ranks: pl.DataFrame, tasks: pl.DataFrame) -> Told:
        """Add the lanes of what would have run.

        Args:
            timeline: The run.
            ranks: Its ranks in the order of the page, with rank and position.
            tasks: Its tasks, as `packing.arranged` returns them.
        """
        names = _names(tasks)
        ghosts, fresh, idle = _ghost(self.drawn, timeline, ranks, names)
        names = pl.concat([names, fresh])
        if COUNTERPART in tasks.columns:  # what could have been has none
            ghosts = ghosts.with_columns(pl.lit(0, tasks.schema[COUNTERPART]).alias(COUNTERPART))
        if self.whatif is None or not ghosts.height:
            return Told(self.whatif, ghosts, names)
        rows: dict[int, list[schema.Row]] = {}
        for row in extents(ghosts, "answer", *TASK_ROW):
            rows.setdefault(row.pop("answer"), []).append(
                msgspec.convert(row, prepared(schema.Row))
            )
        drawn = [
            msgspec.structs.replace(answer, rows=rows.get(number, []), idle=idle.get(number, []))
            for number, answer in enumerate(self.whatif.answers)
        ]
        return Told(msgspec.structs.replace(self.whatif, answers=drawn), ghosts, names)


def _names(tasks: pl.DataFrame) -> pl.Series:
    """Return the names of arranged tasks in the order in which they appear."""
    return tasks["name"].unique(maintain_order=True).cast(pl.String)


def _stages(ledger: Ledger | None) -> list[int]:
    if ledger is None:
        return []
    known: list[int] = (
        ledger.typical.places.filter(pl.col("stage") >= 0)["stage"].unique().sort().to_list()
    )
    return known


def said(answer: Answer) -> schema.Answer:
    """Return an answer as the page tells it, without the rows of its tasks."""
    asked, prediction = answer
    return schema.Answer(
        asked=shlex.join(written(asked)),
        change=prediction.change,
        needs=prediction.needs,
        predicted=prediction.predicted_ns,
        saved=prediction.saved_ns,
        share=prediction.saved_share,
        error=prediction.error,
        best=prediction.best_ns,
        best_if=prediction.best_if,
        rows=[],
        idle=[],
    )


def sentence(answer: Prediction) -> str:
    """Say in one sentence what was predicted."""
    less = answer.saved_share >= 0
    said = (
        f"a step takes {units.duration(answer.predicted_ns)} instead of "
        f"{units.duration(answer.step_ns)}, {units.percent(abs(answer.saved_share))} "
        f"{'less' if less else 'more'} for a micro-batch, ± {units.percent(answer.error)}"
    )
    if answer.best_ns is not None:
        said += f"; {units.duration(answer.best_ns)} if {answer.best_if}"
    return f"{said}; it needs {answer.needs}" if answer.needs else said
