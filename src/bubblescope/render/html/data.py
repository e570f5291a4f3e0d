"""What the page knows of a run, before it is packed: words and figures, and frames of times.

A part of a run is shown by the same head with fewer rows in the frames: tasks keep their row of the
page and their name's number, and what refers to a task that is not among them refers to none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.model.plain_text import cut
from bubblescope.render.html import answers, schema
from bubblescope.render.html.against import against_of, latest_ns
from bubblescope.render.html.kernels import (
    NOT_ASKED,
    ROW,
    kernel_columns,
    kernels_of,
    no_kernels,
    sums_in_tasks,
)
from bubblescope.render.html.packing import (
    SUMS,
    TASK_ROW,
    arranged,
    cells_of,
    counterparts_of,
    extents,
    gap_columns,
    gaps_of,
    link_columns,
    phase_columns,
    task_columns,
)
from bubblescope.render.html.samples import counters_of
from bubblescope.render.html.summary import overlays_of, summary, title_of, verdict_of
from bubblescope.render.layout import ordered_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bubblescope.analysis.view import View
    from bubblescope.render.html.samples import Counters

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
        ghosts: Tasks of what-ifs that the page holds, as of `bubblescope.render.html.answers.Told`.
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
    ghosts: pl.DataFrame
    asks: answers.Asks | None

    @classmethod
    def of(
        cls, view: View, *, title: str | None = None, kernels: bool = False, asked: bool = True
    ) -> PageData:
        """Arrange everything about a run that the page shows.

        Args:
            view: What to show.
            title: Heading; by default the names of the traces.
            kernels: Whether to show the kernels too, if the timeline has them.
            asked: Whether questions come later, as from a page that is served. Answering them takes all
                that was worked out about the run, which is large.
        """
        timeline, known = view.timeline, view.study
        ranks = ordered_ranks(timeline).with_row_index("position")
        overlays = view.overlays
        tasks = arranged(timeline, overlays, ranks)
        ran = kernels_of(timeline, ranks) if kernels else no_kernels()
        # Work before the first task, as of a warm-up, is shown too.
        origin_ns = min(timeline.start_ns, _extreme(ran.table["start_ns"].min(), timeline.start_ns))
        last = _extreme(tasks["end_ns"].max(), 0)
        last = max(last, _extreme(ran.table["end_ns"].max(), last))
        if view.against is not None:
            tasks = tasks.with_columns(counterparts_of(tasks, view.against.pairing.tasks))
            last = max(last, latest_ns(view.against.pairing))
        counted = counters_of(timeline, ranks, origin_ns)
        if timeline.budget.height:
            tasks = tasks.with_columns(**sums_in_tasks(tasks, timeline.budget))
        could = answers.tell(view, ranks, tasks)
        told = schema.Told(
            **summary(view, ranks, origin_ns),
            against=None if view.against is None else against_of(view.against, ranks, origin_ns),
            end=last - origin_ns,
            title=cut(title or title_of(view), _TITLE),
            chunks=bool((tasks["chunk"].max() or 0) > 0),  # type: ignore[operator]
            names=[cut(name, _TEXT) for name in could.asks.names.to_list()],
            overlays=overlays_of(view),
            verdict=verdict_of(view.verdict, known.bubbles.overall.makespan_error, tasks),
            above=view.above,  # type: ignore[arg-type]
            whatif=could.whatif,
            counters=counted.counters,
            samples=counted.samples,
            kernels=ran.head(),
            no_kernels=NOT_ASKED if timeline.budget.height and not kernels else None,
        )
        if counted.left_out:
            told.notes.append(_thinned(counted))
        steps = pl.Series("step", [step.step for step in told.steps], pl.Int32)
        return cls(
            told=told,
            origin_ns=origin_ns,
            tasks=tasks,
            gaps=gaps_of(known.ledger, ranks),
            links=view.links,
            phases=phase_columns(view.phases, ranks, origin_ns),
            cells=cells_of(known.bubbles, ranks, steps),
            samples=counted.table,
            kernels=ran.table,
            ghosts=could.ghosts,
            asks=could.asks if asked else None,
        )

    def places(self) -> Places:
        """Return which rows of its tables belong where on the page."""
        return Places(
            rows=msgspec.convert(extents(self.tasks, "position", "lane", "row"), list[schema.Row]),
            gaps=msgspec.convert(extents(self.gaps, "position"), list[schema.Extent]),
            kernel_rows=msgspec.convert(extents(self.kernels, *ROW), list[schema.KernelRow]),
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
        yield from self.tables_in_sight()
        yield from self.tables_of_run().items()
        ghosts = self.ghosts.select(pl.exclude(SUMS))
        yield "ghosts", task_columns(ghosts, self.origin_ns, ("answer", *TASK_ROW))

    def tables_in_sight(self) -> Iterator[tuple[schema.TableInSight, pl.DataFrame]]:
        """Yield those of the tables that are about the tasks that are shown, each made in its turn."""
        yield "tasks", task_columns(self.tasks, self.origin_ns)
        yield "gaps", gap_columns(self.gaps, self.tasks, self.origin_ns)
        yield "links", link_columns(self.links, self.tasks)
        yield "kernels", kernel_columns(self.kernels, self.origin_ns)

    def tables_of_run(self) -> dict[schema.TableName, pl.DataFrame]:
        """Return those of the tables that are about the whole run, whatever tasks are shown."""
        return {
            "phases": self.phases,
            "cells": self.cells,
            "samples": self.samples,
        }


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
