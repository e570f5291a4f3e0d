"""What the page knows of a run, before it is packed: words and figures, and frames of times.

A part of a run is shown by the same head with fewer rows in the frames: tasks keep their row of the
page and their name's number, and what refers to a task that is not among them refers to none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from bubblescope.analysis.study import study
from bubblescope.analysis.whatif import WhatIf
from bubblescope.errors import TimelineError
from bubblescope.exports.html_counters import counters_of
from bubblescope.exports.html_summary import overlays_of, summary, title_of
from bubblescope.exports.html_tables import (
    arranged,
    cells_of,
    extents,
    gap_columns,
    gaps_of,
    link_columns,
    links_of,
    phases_of,
    task_columns,
)
from bubblescope.exports.layout import ordered_ranks
from bubblescope.plain import cut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.study import Study
    from bubblescope.analysis.whatif import Prediction, Question
    from bubblescope.exports.html_counters import Counters
    from bubblescope.schedules import Plan
    from bubblescope.timeline import Timeline

__all__ = ["PageData"]

_TITLE: Final = 200
_TEXT: Final = 10_000
"""Letters of a text from a trace that the page holds."""


class PageData(msgspec.Struct, frozen=True, eq=False):
    """What the page knows of a run.

    Attributes:
        head: What does not depend on how much of the run is shown, as plain values.
        origin_ns: First start of the run, from which the page counts time.
        tasks: Tasks in the order of the page, as `html_tables.arranged` returns them.
        gaps: Idle time by rank, as `html_tables.gaps_of` returns it.
        links: What feeds what, as rows of the timeline's tasks: source and target.
        phases, cells: Of each rank and step, in the columns of the page.
        samples: Values of counters over time, in the columns of the page.
    """

    head: dict[str, Any]
    origin_ns: int
    tasks: pl.DataFrame
    gaps: pl.DataFrame
    links: pl.DataFrame
    phases: pl.DataFrame
    cells: pl.DataFrame
    samples: pl.DataFrame

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        *,
        title: str | None = None,
        also: Sequence[Plan] = (),
        whatif: Question | None = None,
    ) -> PageData:
        """Work out everything about a run that the page shows.

        Args:
            timeline: What to show.
            title: Heading; by default the names of the traces.
            also: Schedules to recognise besides the known ones.
            whatif: What to show beside what was measured.

        Raises:
            TimelineError: A what-if is asked for of a run whose ranks share no clock or that has no
                pipeline tasks.
            ScheduleError: The what-if makes no sense for the run.
        """
        known = study(timeline, also)
        answer = _answer(known, whatif) if whatif else None
        ranks = ordered_ranks(timeline).with_row_index("position")
        overlays = {}
        if known.ideal is not None and known.ideal.timeline is not None:
            overlays["ideal"] = known.ideal.timeline
        if answer is not None:
            overlays["whatif"] = answer.timeline(timeline)
        tasks = arranged(timeline, overlays, ranks)
        counted = counters_of(timeline, ranks, timeline.start_ns)
        last = int(tasks["end_ns"].max() or 0)  # type: ignore[arg-type]
        head = {
            **summary(timeline, known, ranks),
            "end": last - timeline.start_ns,
            "title": cut(title or title_of(timeline), _TITLE),
            "chunks": bool((tasks["chunk"].max() or 0) > 0),  # type: ignore[operator]
            "names": [
                cut(name, _TEXT) for name in tasks["name"].unique(maintain_order=True).to_list()
            ],
            "overlays": overlays_of(overlays, answer),
            "counters": counted.counters,
            "samples": counted.samples,
        }
        if counted.left_out:
            head["notes"].append(_thinned(counted))
        steps = pl.Series("step", [step["step"] for step in head["steps"]], pl.Int32)
        return cls(
            head=head,
            origin_ns=timeline.start_ns,
            tasks=tasks,
            gaps=gaps_of(known.ledger, ranks),
            links=links_of(timeline),
            phases=phases_of(timeline, ranks),
            cells=cells_of(known.bubbles, ranks, steps),
            samples=counted.table,
        )

    def places(self) -> dict[str, Any]:
        """Return which rows of its tables belong where on the page, for the head."""
        return {
            "rows": extents(self.tasks, "position", "lane", "row"),
            "gaps": extents(self.gaps, "position"),
        }

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables that the page reads, by name; their columns are numbers."""
        return {**self.tables_in_sight(), **self.tables_of_run()}

    def tables_in_sight(self) -> dict[str, pl.DataFrame]:
        """Return those of the tables that are about the tasks that are shown."""
        return {
            "tasks": task_columns(self.tasks, self.origin_ns),
            "gaps": gap_columns(self.gaps, self.tasks, self.origin_ns),
            "links": link_columns(self.links, self.tasks),
        }

    def tables_of_run(self) -> dict[str, pl.DataFrame]:
        """Return those of the tables that are about the whole run, whatever tasks are shown."""
        return {"phases": self.phases, "cells": self.cells, "samples": self.samples}


def _answer(known: Study, question: Question) -> Prediction:
    if known.ledger is None:
        raise TimelineError(
            "a what-if needs a run with forwards and backwards whose ranks share a clock; "
            "--clock solve tries to find one"
        )
    return question(WhatIf(known.recognition, known.ledger))


def _thinned(counted: Counters) -> str:
    """Say that not every sample is shown."""
    shown = counted.table.height
    return (
        f"{shown:,} of {shown + counted.left_out:,} counter samples are in this page: of each "
        "stretch of time the least, the most and the last"
    )
