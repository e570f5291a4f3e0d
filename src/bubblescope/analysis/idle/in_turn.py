"""The ledger of a large run, worked out for some steps after the other.

What a run is replayed with takes some times as much memory as its tasks. Steps are replayed each by
itself, told what they have to know of the others (`bubblescope.analysis.idle.known`). So a question
that asks for no replay afterwards needs only that of some steps at a time, and its answer is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.beside import names_of
from bubblescope.analysis.between_rounds import closed, rounds
from bubblescope.analysis.idle.counterfactuals import Counterfactuals
from bubblescope.analysis.idle.known import Known, Ways, still_before
from bubblescope.analysis.idle.ledger import Entries, Ledger, ledger
from bubblescope.analysis.idle.measured_run import Linked
from bubblescope.analysis.idle.task_lengths import DURATION, Durations, Medians, Typical
from bubblescope.analysis.phase import compared_by_ranks, pipelines, step_facts
from bubblescope.analysis.schedule.observe import seen
from bubblescope.model.arrays import give_back
from bubblescope.model.kinds import COMPUTE_KINDS, Lane
from bubblescope.model.remembered import told
from bubblescope.model.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bubblescope.analysis.schedule.recognise import Recognition
    from bubblescope.model.arrays import Ints

_SOME: Final = 1 << 17
"""Tasks that are looked at at a time, about: fewer take longer in all."""

_GROUPS: Final = 8
"""Groups of steps at most, each of which is chosen among all tasks."""

_TELLING: Final = (step_facts, seen, names_of, pipelines, rounds)
"""What parts are told of the whole."""

_NOBODY: Final = -1

_PASS: Final = pl.col("kind").is_in([kind.value for kind in COMPUTE_KINDS])


def ledger_in_turn(timeline: Timeline, recognition: Recognition | None) -> Ledger | None:
    """Return what `bubblescope.analysis.idle.ledger.ledger` does, of a large run without its replays.

    Args:
        timeline: The run.
        recognition: The schedule that it followed.
    """
    groups = _groups(timeline)
    if len(groups) < 2 or not timeline.run.common_clock:
        return ledger(timeline, recognition)
    known = _known(timeline, groups)
    if known is None:
        return None
    entries = []
    for part, rows in _parts(timeline, groups):
        own = None if recognition is None else _of_rows(recognition, rows)
        found = Counterfactuals.of(part, own, known)
        if found is not None:
            entries.append(Entries.of(found)[0])
        del found
        give_back()
    return Ledger.of(Entries.joined(entries), known.typical) if entries else None


def _groups(timeline: Timeline) -> list[list[int]]:
    """Return the steps of a run in groups of about as many; one group if it is not worth more."""
    steps = timeline.steps
    count = min(len(steps), _GROUPS, len(timeline) // _SOME)
    return [group.tolist() for group in np.array_split(np.array(steps), max(1, count))]


def _parts(timeline: Timeline, groups: list[list[int]]) -> Iterator[tuple[Timeline, Ints]]:
    """Yield the tasks of each group of steps, told of the whole run, and their rows in it.

    What belongs to no step is with the group in whose time it began; what is no pass and overlaps the
    time of a group stands beside it, as ranks are in it meanwhile, with rows of -1.
    """
    tasks = timeline.tasks
    group_of = {step: group for group, steps in enumerate(groups) for step in steps}
    stepped = tasks.select("step", "start_ns").drop_nulls("step")
    opens = stepped.group_by("step").agg(pl.col("start_ns").min()).sort("start_ns")
    del stepped
    began = np.searchsorted(opens["start_ns"].to_numpy(), tasks["start_ns"].to_numpy(), "right")
    by_time = opens["step"].replace_strict(group_of, return_dtype=pl.Int8).to_numpy()
    owner = (
        tasks["step"]
        .replace_strict(group_of, default=None, return_dtype=pl.Int8)
        .zip_with(tasks["step"].is_not_null(), pl.Series(by_time[np.maximum(began - 1, 0)]))
        .to_numpy()
    )
    del began
    known = {look: look(timeline) for look in _TELLING}
    passes = _PASS & (pl.col("lane") == Lane.COMPUTE.value)
    beside = tasks.select(~passes).to_series().to_numpy()
    for group in range(len(groups)):
        first, last = (
            tasks.filter(pl.Series(owner == group))
            .select(pl.col("start_ns").min(), pl.col("end_ns").max())
            .row(0)
        )
        near = tasks.select((pl.col("end_ns") > first) & (pl.col("start_ns") < last)).to_series()
        rows = np.flatnonzero((owner == group) | (beside & near.to_numpy()))
        part = Timeline(tasks[rows], timeline.ranks, timeline.run)
        yield told(part, known), np.where(owner[rows] == group, rows, _NOBODY)


def _known(timeline: Timeline, groups: list[list[int]]) -> Known | None:
    """Return what groups of steps are told of each other; None if there are no pipeline tasks."""
    spans, medians = [], []
    for own in compared_by_ranks(closed(timeline), *DURATION):
        edges = pl.col("start_ns").min(), pl.col("end_ns").max()
        spans.append(own.group_by("rank", "step").agg(*edges))
        medians.append(Medians.of(Durations.of(own)))
    if not spans:
        return None
    still = still_before(pl.concat(spans).join(pipelines(timeline), on="rank"))
    ways = []
    for part, _ in _parts(timeline, groups):
        linked = Linked.of(closed(part), still)
        if linked is not None:
            ways.append(linked.ways(part))
        del linked
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
    place = np.full(max(int(rows.max()), int(observed.task.max())) + 1, _NOBODY, np.int32)
    own = rows >= 0
    place[rows[own]] = np.flatnonzero(own)
    there = place[observed.task] >= 0
    some = observed.only(there)
    some = msgspec.structs.replace(some, task=place[some.task])
    return msgspec.structs.replace(recognition, observed=some, position=recognition.position[there])
