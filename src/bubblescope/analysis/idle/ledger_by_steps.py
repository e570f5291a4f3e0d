"""The ledger of a large run, worked out for some steps after the other.

What a run is replayed with takes some times as much memory as its tasks. Steps are replayed each by
itself, told what they have to know of the others (`bubblescope.analysis.idle.whole_run_facts`). So a
question that asks for no replay afterwards needs only that of some steps at a time, and its answer is
the same.
What is asked of all replays, such as what causes cost, is asked of each before it is let go of.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.between_rounds import closed
from bubblescope.analysis.idle.causes import ADDED
from bubblescope.analysis.idle.counterfactuals import Counterfactuals
from bubblescope.analysis.idle.evidence import Evidence
from bubblescope.analysis.idle.inside_passes import inside_passes
from bubblescope.analysis.idle.ledger import (
    Entries,
    Ledger,
    Replays,
    Told,
    laid_out,
    ledger,
    replays_of,
)
from bubblescope.analysis.idle.measured_run import Linked
from bubblescope.analysis.idle.shares import Lasting, Sets, shares_of
from bubblescope.analysis.idle.slow_ranks import joined_by_place, slow_ranks, work_by_place
from bubblescope.analysis.idle.step_groups import NOBODY, StepGroups, groups_of
from bubblescope.analysis.idle.task_lengths import DURATION, Durations, Medians, Typical
from bubblescope.analysis.idle.whole_run_facts import Known, Ways, still_before
from bubblescope.analysis.pipeline_phase import pipelines, seen_by_ranks
from bubblescope.model.arrays import A_FEW, at_once
from bubblescope.model.extents import extents
from bubblescope.model.memory import give_back

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from typing_extensions import Self

    from bubblescope.analysis.schedule.recognise import Recognition
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.replay import Graph

_Seen = TypeVar("_Seen")


def ledger_in_turn(
    timeline: Timeline, recognition: Recognition | None, *, explained: bool = False
) -> Ledger | None:
    """Return what `bubblescope.analysis.idle.ledger.ledger` does, of a large run without its replays.

    Args:
        timeline: The run.
        recognition: The schedule that it followed.
        explained: Whether causes are asked for what they cost and what shows them.
    """
    groups = groups_of(timeline)
    if len(groups) < 2 or not timeline.run.common_clock:
        return ledger(timeline, recognition)
    parts = StepGroups(timeline, groups)
    known = _known(timeline, parts)
    if known is None:
        return None

    def looked_at(found: Counterfactuals, rows: Ints) -> tuple[Entries, _Sums | None]:
        entered, stretches = Entries.of(found)
        return entered, _Sums.of(found, stretches, rows) if explained else None

    made = _of_each(parts, recognition, known, looked_at)
    if not made:
        return None
    entered, told = Entries.joined([entered for entered, _ in made]), None
    if explained:
        sums = [one for _, one in made if one is not None]
        lasting = Lasting.joined([one.lasting for one in sums])
        steps = lasting.telling(entered.causes)

        def replayed(found: Counterfactuals, _: Ints) -> Sets:
            return Sets.of(found.only(steps), entered.causes)

        sets = _of_each(parts, recognition, known, replayed, steps)
        told = Told(
            shares=shares_of(lasting, Sets.joined(sets)),
            evidence=Evidence.joined([one.evidence for one in sums]),
            slow_ranks=slow_ranks(entered.work, known.typical),
            work=joined_by_place([one.work for one in sums]),
            gaps=tuple(gaps for one in sums for gaps in one.gaps),
        )
    return Ledger.of(
        entered, known.typical, again=partial(replays_of, timeline, recognition), told=told
    )


class _Sums(msgspec.Struct, frozen=True):
    """What some steps say of causes.

    Attributes:
        lasting: How long they are without each.
        evidence: What shows each.
        work, gaps: As of `Told`.
    """

    lasting: Lasting
    evidence: Evidence
    work: pl.DataFrame
    gaps: list[pl.DataFrame]

    @classmethod
    def of(cls, found: Counterfactuals, stretches: Any, rows: Ints) -> Self:
        """Look at some steps.

        Args:
            found: What they would have been without causes.
            stretches: As of `Replays`.
            rows: Of their tasks in the run.
        """
        row = pl.Series(rows, dtype=pl.Int32)
        gaps = laid_out(Replays(found, stretches))
        return cls(
            Lasting.of(found),
            Evidence.of_steps(found.timeline, found, ADDED),
            work_by_place(found.run, inside_passes(found.timeline)),
            [
                part.with_columns(task=row.gather(part["task"]), root=row.gather(part["root"]))
                for part in gaps
            ],
        )


def _of_each(
    parts: StepGroups,
    recognition: Recognition | None,
    known: Known,
    look: Callable[[Counterfactuals, Ints], _Seen],
    steps: Collection[int | None] | None = None,
) -> list[_Seen]:
    """Return what is seen of what steps would have been without causes, some at a time.

    Args:
        parts: All of them.
        recognition: The schedule that the run followed.
        known: What they tell each other.
        look: Looks at some, given the rows of their tasks too.
        steps: Only parts that have any of these; all if left out.
    """
    graphs: list[Graph] = []
    looking = threading.Lock()  # takes most memory, while others can be measured

    def seen_of(part: int) -> _Seen | None:
        timeline, rows = parts.tasks(part)
        own = None if recognition is None else _of_rows(recognition, rows)
        found = Counterfactuals.of(timeline, own, known, graphs)
        del timeline
        if found is None:
            return None
        graphs[:] = found.run.graph.graphs[-1:]
        with looking:
            return look(found, rows)

    made = at_once(seen_of, parts.having(steps), A_FEW)
    give_back()
    return [one for one in made if one is not None]


def _known(timeline: Timeline, parts: StepGroups) -> Known | None:
    """Return what groups of steps are told of each other; None if there are no pipeline tasks."""

    def of_ranks(own: pl.DataFrame) -> tuple[pl.DataFrame, Medians]:
        return extents(own, "rank", "step"), Medians.of(Durations.of(own))

    found = seen_by_ranks(of_ranks, closed(timeline), *DURATION)
    if not found:
        return None
    spans, medians = zip(*found, strict=True)
    still = still_before(pl.concat(spans).join(pipelines(timeline), on="rank"))

    def ways_of(part: int) -> Ways | None:
        tasks, _ = parts.tasks(part)
        linked = Linked.of(closed(tasks), still)
        return None if linked is None else linked.ways(tasks)

    ways = [one for one in at_once(ways_of, parts.having(None), A_FEW) if one is not None]
    give_back()
    return Known(still, Ways.joined(ways), Typical.of(Medians.joined(medians)))


def _of_rows(recognition: Recognition, rows: Ints) -> Recognition:
    """Return how some tasks of a run follow its schedule.

    Args:
        recognition: How all do.
        rows: The row of each task in the run; -1 for one that is not asked for.
    """
    if not recognition.departed:
        return recognition  # nobody asks for the order of tasks
    observed = recognition.observed
    place = np.full(max(int(rows.max()), int(observed.task.max())) + 1, NOBODY, np.int32)
    own = rows >= 0
    place[rows[own]] = np.flatnonzero(own)
    there = place[observed.task] >= 0
    some = observed.only(there)
    some = msgspec.structs.replace(some, task=place[some.task])
    return msgspec.structs.replace(recognition, observed=some, position=recognition.position[there])
