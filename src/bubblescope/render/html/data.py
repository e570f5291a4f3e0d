"""What the page knows of a run, before it is packed: words and figures, and frames of times.

A part of a run is shown by the same head with fewer rows in the frames: tasks keep their row of the
page and their name's number, and what refers to a task that is not among them refers to none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.analysis.arrivals import kernels_waited
from bubblescope.analysis.overview import Overview
from bubblescope.model.decoders import prepared
from bubblescope.model.plain_text import cut
from bubblescope.render.html import schema, whatif_answers
from bubblescope.render.html.against import against_of, latest_ns
from bubblescope.render.html.counter_samples import counters_of
from bubblescope.render.html.device_sums import devices_of
from bubblescope.render.html.in_tasks import (
    Communication,
    communication_columns,
    groups_of,
    sums_in_tasks,
    waits_in_tasks,
)
from bubblescope.render.html.kernels import NOT_ASKED, ROW, kernel_columns, kernels_of, no_kernels
from bubblescope.render.html.packing import (
    SUMS,
    TASK_ROW,
    arranged,
    cells_of,
    changes_of,
    counterparts_of,
    extents,
    gap_columns,
    gaps_of,
    link_columns,
    most_of,
    phase_columns,
    rows_of,
    task_columns,
)
from bubblescope.render.html.summary import (
    overlays_of,
    summary,
    title_of,
    unrecorded_of,
    verdict_of,
)
from bubblescope.render.layout import ordered_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bubblescope.analysis.standard_questions import Questions
    from bubblescope.analysis.verdict import Verdict
    from bubblescope.analysis.view import View
    from bubblescope.model.timeline import Timeline
    from bubblescope.render.html.counter_samples import Counters

_TITLE: Final = 200
_TEXT: Final = 10_000
"""Letters of a text from a trace that the page holds."""


class Places(NamedTuple):
    """Which rows of tables belong where on the page: tasks, gaps and kernels, top to bottom."""

    rows: list[schema.Row]
    gaps: list[schema.Extent]
    kernel_rows: list[schema.KernelRow]


class PageData(msgspec.Struct, frozen=True, eq=False):
    """What the page knows of a run.

    Attributes:
        told: What does not depend on how much of the run is shown.
        origin_ns: First start of the run, from which the page counts time.
        tasks: Tasks in the order of the page, as `html_tables.arranged` returns them.
        gaps: Idle time by rank, as `html_tables.gaps_of` returns it.
        links: What feeds what, as rows of the timeline's tasks: source and target.
        phases, cells: Of each rank and step, in the columns of the page.
        samples: Values of counters over time, in the columns of the page.
        kernels: As `bubblescope.render.html.kernels.Kernels.table`; empty if the page has none.
        communication: As `bubblescope.render.html.in_tasks.Communication.table`.
        ghosts: Tasks of what-ifs that the page holds, as of
            `bubblescope.render.html.whatif_answers.Told`.
        asks: What can be asked about the run, and how a page tells the answer; None if nobody can ask.
    """

    told: schema.Told
    origin_ns: int
    tasks: pl.DataFrame
    gaps: pl.DataFrame
    links: pl.DataFrame
    phases: pl.DataFrame
    cells: pl.DataFrame
    samples: pl.DataFrame
    kernels: pl.DataFrame
    communication: pl.DataFrame
    ghosts: pl.DataFrame
    asks: whatif_answers.Asks | None

    @classmethod
    def of(cls, view: View, *, title: str | None = None, kernels: bool = False) -> PageData:
        """Arrange everything about a run that the page shows.

        Args:
            view: What to show.
            title: Heading; by default the names of the traces.
            kernels: Whether to show the kernels too, if the timeline has them.
        """
        return Outline.of(view, title, kernels=kernels).with_tasks(view.questions)

    def places(self) -> Places:
        """Return which rows of its tables belong where on the page."""
        return Places(
            rows=msgspec.convert(
                extents(self.tasks, "position", "lane", "row"), prepared(list[schema.Row])
            ),
            gaps=msgspec.convert(extents(self.gaps, "position"), prepared(list[schema.Extent])),
            kernel_rows=msgspec.convert(
                extents(self.kernels, *ROW), prepared(list[schema.KernelRow])
            ),
        )

    def head(
        self,
        columns: Mapping[schema.TableName, list[schema.Column]],
        places: Places,
        *,
        served: bool = False,
    ) -> schema.Head:
        """Return the head of a page that holds these columns, with rows at these places."""
        told = msgspec.structs.asdict(self.told)
        return schema.Head(**told, **places._asdict(), columns=dict(columns), served=served)

    def tables(self) -> Iterator[tuple[schema.TableName, pl.DataFrame]]:
        """Yield the tables that the page reads, by name; their columns are numbers."""
        yield "tasks", pl.DataFrame([*self.task_columns()])
        yield from self.tables_beside()

    def task_columns(self) -> Iterator[pl.Series]:
        """Yield the columns of the table of tasks, which is large, each made in its turn."""
        return task_columns(self.tasks, self.origin_ns)

    def without_tasks(self) -> PageData:
        """Return the same with no more of its tasks than what refers to them needs."""
        return msgspec.structs.replace(self, tasks=self.tasks.select("task"))

    def tables_beside(self) -> Iterator[tuple[schema.TableName, pl.DataFrame]]:
        """Yield the tables but that of tasks."""
        yield from self._referring()
        yield from self.tables_of_run().items()
        ghosts = self.ghosts.select(pl.exclude(SUMS))
        ghost_columns = task_columns(ghosts, self.origin_ns, ("answer", *TASK_ROW))
        yield "ghosts", pl.DataFrame([*ghost_columns])

    def tables_in_sight(self) -> Iterator[tuple[schema.TableInSight, pl.DataFrame]]:
        """Yield those of the tables that are about the tasks that are shown, each made in its turn."""
        yield "tasks", pl.DataFrame([*self.task_columns()])
        yield from self._referring()

    def _referring(self) -> Iterator[tuple[schema.TableInSight, pl.DataFrame]]:
        yield "gaps", gap_columns(self.gaps, self.tasks, self.origin_ns)
        yield "links", link_columns(self.links, self.tasks)
        yield "kernels", kernel_columns(self.kernels, self.origin_ns)
        yield "communication", communication_columns(self.communication)

    def tables_of_run(self) -> dict[schema.TableName, pl.DataFrame]:
        """Return those of the tables that are about the whole run, whatever tasks are shown."""
        return {
            "phases": self.phases,
            "cells": self.cells,
            "samples": self.samples,
        }


class Outline(NamedTuple):
    """What the page knows of a run before its tasks are in order, which takes nothing else.

    All that was worked out about a run is larger than what the page holds of it. So whoever writes a
    page of a large run lets go of that, and then puts its tasks in order.

    Attributes:
        timeline: The run.
        overlays: Lane -> what stands beside it; taken out when tasks are put in order.
        ranks: Its ranks in the order of the page, with rank and position.
        origin_ns: As of `PageData`.
        end_ns: The last end of what is not a task.
        known: Fields of `schema.Told`.
        verdict: What the run comes to.
        error: How far its share may be off because clocks differ.
        pairs: As of `packing.counterparts_of`; None if the page shows one run.
        answers: What it tells of what-ifs.
        gaps, links, phases, cells, samples, kernels: As of `PageData`.
    """

    timeline: Timeline
    overlays: dict[str, Timeline]
    ranks: pl.DataFrame
    origin_ns: int
    end_ns: int
    known: dict[str, Any]
    verdict: Verdict
    error: float | None
    pairs: pl.DataFrame | None
    answers: whatif_answers.Answers
    gaps: pl.DataFrame
    links: pl.DataFrame
    phases: pl.DataFrame
    cells: pl.DataFrame
    samples: pl.DataFrame
    kernels: pl.DataFrame

    @classmethod
    def of(cls, view: View, title: str | None = None, *, kernels: bool = False) -> Outline:
        """Take what the page shows of a view; arguments as of `PageData.of`."""
        timeline, study, against = view.timeline, view.study, view.against
        pipelined = view.devices is None  # else devices run whole models, which have no bubbles
        ranks = ordered_ranks(timeline).with_row_index("position")
        ran = kernels_of(timeline, ranks) if kernels else no_kernels()
        overview = Overview.of(timeline)
        spans = overview.spans(of_devices=not pipelined)
        # Work before the first task, as of a warm-up, is shown too, and what a step is beyond tasks.
        beside = pl.concat([table.select("start_ns", "end_ns") for table in (ran.table, spans)])
        origin_ns = min(timeline.start_ns, _extreme(beside["start_ns"].min(), timeline.start_ns))
        end_ns = _extreme(beside["end_ns"].max(), 0)
        if against is not None:
            end_ns = max(end_ns, latest_ns(against.pairing))
        counted = counters_of(timeline, ranks, origin_ns)
        could = whatif_answers.Answers.of(view)
        known = {
            **summary(view, overview, ranks, origin_ns),
            "against": None if against is None else against_of(against, ranks, origin_ns),
            "title": cut(title or title_of(view), _TITLE),
            "overlays": overlays_of(view, ranks),
            "above": view.above,
            "counters": counted.counters,
            "samples": counted.samples,
            "kernels": ran.head(),
            "no_kernels": NOT_ASKED if timeline.budget.height and not kernels else None,
            "groups": groups_of(timeline),
            "unrecorded": unrecorded_of(overview.unrecorded, ranks, origin_ns),
        }
        known["devices"] = devices_of(
            view.budget, ranks["rank"].to_list(), [step.step for step in known["steps"]]
        )
        if counted.left_out:
            known["notes"].append(_thinned(counted))
        steps = pl.Series("step", [step.step for step in known["steps"]], pl.Int32)
        return cls(
            timeline=timeline,
            overlays=dict(view.overlays),
            ranks=ranks,
            origin_ns=origin_ns,
            end_ns=end_ns,
            known=known,
            verdict=view.verdict,
            error=study.bubbles.overall.makespan_error,
            pairs=None if against is None else against.pairing.tasks,
            answers=could,
            gaps=gaps_of(study.ledger if pipelined else None, ranks),
            links=view.links,
            phases=phase_columns(
                view.phases if pipelined else view.phases.clear(), ranks, origin_ns
            ),
            cells=cells_of(study.bubbles, ranks, steps),
            samples=counted.table,
            kernels=ran.table,
        )

    def with_tasks(self, questions: Questions | None = None) -> PageData:
        """Put the tasks in order.

        Args:
            questions: Answers what is asked of the page later; None if nobody can ask.
        """
        tasks = arranged(self.timeline, self.overlays, self.ranks)
        if self.pairs is not None:
            tasks = tasks.with_columns(counterparts_of(tasks, self.pairs))
            tasks = tasks.with_columns(changes_of(tasks))
        if self.timeline.budget.height:
            tasks = tasks.with_columns(**sums_in_tasks(tasks, self.timeline.budget))
            tasks = tasks.with_columns(
                **waits_in_tasks(tasks, kernels_waited(self.timeline), self.ranks)
            )
        moved = Communication.of(tasks, self.timeline.budget)
        could = self.answers.with_lanes(self.timeline, self.ranks, tasks)
        shown = pl.Series([one.task for one in self.verdict.remedies], dtype=pl.Int64)
        told = schema.Told(
            **self.known,
            communicating=moved.kinds,
            end=max(_extreme(tasks["end_ns"].max(), 0), self.end_ns) - self.origin_ns,
            microbatches=most_of(tasks, "microbatch"),
            chunks=most_of(tasks, "chunk"),
            names=[cut(name, _TEXT) for name in could.names.to_list()],
            verdict=verdict_of(self.verdict, self.error, rows_of(shown, tasks).tolist()),
            whatif=could.whatif,
        )
        asks = None
        if questions is not None:
            asks = whatif_answers.Asks(questions, self.timeline, self.ranks, could.names)
        return PageData(
            told=told,
            origin_ns=self.origin_ns,
            tasks=tasks,
            gaps=self.gaps,
            links=self.links,
            phases=self.phases,
            cells=self.cells,
            samples=self.samples,
            kernels=self.kernels,
            communication=moved.table,
            ghosts=could.ghosts,
            asks=asks,
        )


def _extreme(value: Any, otherwise: int) -> int:
    """Return the least or most of a column; something else if it has none."""
    return otherwise if value is None else int(value)


def _thinned(counted: Counters) -> str:
    """Say that not every sample is shown."""
    shown = counted.table.height
    return (
        f"{shown:,} of {shown + counted.left_out:,} counter samples are in this page: of each "
        "stretch of time the least, the most and the last"
    )
