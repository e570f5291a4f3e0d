"""What changed between two runs, and whether it is more than the noise between steps.

Of pipelines, the measures are those of their tasks and bubbles; beside them stands what devices did,
where the traces of both runs tell. Runs that are no pipelines have no bubbles: a step of theirs lasts
from its start to that of the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import polars as pl

from bubblescope.analysis.changes import OVERALL, Change, changes, keys_of
from bubblescope.analysis.device_changes import GROUPS as DEVICE_GROUPS
from bubblescope.analysis.device_changes import device_pair
from bubblescope.analysis.picture_data import pictured
from bubblescope.analysis.step_measures import (
    Side,
    StepMeasures,
    slow_first_step,
    step_measures,
    task_measures,
)
from bubblescope.model import units
from bubblescope.model.progress import SILENT
from bubblescope.model.provenance import Notice
from bubblescope.model.timing import on_host, timed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.analysis.picture_data import Pictured
    from bubblescope.model.progress import Progress
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan

SCHEMA: Final = "bubblescope.compare/1"
"""Name and version of the JSON, described in docs/compare.md. Keys are only ever added."""

GROUPS: Final = ("overall", "cause", "kind", "stage", "rank")
"""What measures of tasks are of, in the order in which they are shown."""


_WORK: Final = ("kernels", "copies", "fills")
_ALIKE: Final = 0.01
"""Share by which two captures of the same work may differ in how many operations they hold."""


class Difference(NamedTuple):
    """Something that the runs do not have in common, such as the schedule."""

    what: str
    before: str
    after: str


class Comparison(msgspec.Struct, frozen=True, eq=False):
    """Two runs side by side.

    Attributes:
        runs: The run to compare with, and the one that may have changed.
        labels: What they are called.
        before, after: What is known of them.
        differs: What they do not have in common.
        changes: All measures, by group, the largest difference first; of the group "device" in the
            order of `bubblescope.analysis.device_measures.NAMES`.
        notes: What to know before believing them.
        pipelined: Whether both runs may be pipelines. If not, a step is one of the wall clock.
    """

    runs: tuple[Timeline, Timeline]
    labels: tuple[str, str]
    before: Side
    after: Side
    differs: tuple[Difference, ...]
    changes: tuple[Change, ...]
    notes: tuple[Notice, ...]
    pipelined: bool = True

    @classmethod
    def of(
        cls,
        before: Timeline,
        after: Timeline,
        *,
        labels: tuple[str, str] = ("", ""),
        also: Sequence[Plan] = (),
        progress: Progress = SILENT,
    ) -> Self:
        """Compare two runs, step for step and rank for rank.

        Steps at either end of a run that were not recorded whole are left out. All others count, the
        first one as well; a note says so if it stands out.

        Args:
            before: The run to compare with.
            after: The run that may have changed.
            labels: What they are called, such as their paths.
            also: Schedules to recognise besides the known ones.
            progress: Is told what is being worked out.
        """
        progress.begin("comparing the runs")
        one, other = step_measures("A", before, also), step_measures("B", after, also)
        pipelined = one.side.pipelined and other.side.pipelined
        if pipelined:
            sides, found, notes = _of_pipelines(before, after, one, other)
        else:
            sides, found, notes = _of_devices(before, after, one, other)
        return cls(
            runs=(before, after),
            labels=labels,
            before=msgspec.structs.replace(sides[0], timed=timed(before.ranks)),
            after=msgspec.structs.replace(sides[1], timed=timed(after.ranks)),
            differs=(*_differs(one, other), *_other_times(before, after)),
            changes=tuple(found),
            notes=(*_host_times(before, after), *notes),
            pipelined=pipelined,
        )

    @property
    def captures(self) -> bool:
        """Whether the captures were compared as a whole, since not both runs have steps."""
        return not self.pipelined and self.after.steps == (None,)

    @property
    def same_times(self) -> bool:
        """Whether the times of both runs are those of devices, or of the host, as far as is known.

        A host may be done with a step long before its devices are.
        """
        return not _other_times(*self.runs)

    @property
    def comparable(self) -> bool:
        """Whether the lengths of steps, or of captures of about as much work, tell who is faster."""
        if not self.same_times:
            return False
        before, after = map(_work, self.runs)
        return not self.captures or abs(after - before) <= _ALIKE * max(before, after)

    def pictured(self) -> list[Pictured]:
        """Return what its picture shows: the first step of each run."""
        return [pictured(run, max_steps=1) for run in self.runs if len(run)]

    def find(self, group: str, name: str) -> Change | None:
        """Return a measure; None if neither run has it."""
        return next((one for one in self.changes if (one.group, one.name) == (group, name)), None)

    def group(self, name: str) -> list[Change]:
        """Return the measures of a group, the largest difference first."""
        return [change for change in self.changes if change.group == name]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values, following the schema `SCHEMA`."""
        plain = {group: [one.to_dict() for one in self.group(group)] for group in GROUPS}
        for group in DEVICE_GROUPS:
            if found := self.group(group):
                plain[group] = [one.to_dict() for one in found]
        return {
            "schema": SCHEMA,
            "before": msgspec.to_builtins(self.before),
            "after": msgspec.to_builtins(self.after),
            "differs": [difference._asdict() for difference in self.differs],
            "changes": plain,
            "notes": msgspec.to_builtins(self.notes),
        }


_Compared = tuple[tuple[Side, Side], list[Change], list[Notice]]


def _of_pipelines(
    before: Timeline, after: Timeline, one: StepMeasures, other: StepMeasures
) -> _Compared:
    """Compare tasks and bubbles of two pipelines, and what their devices did."""
    keys, notes = _comparable(one, other)
    found = changes(keys, one.measured, other.measured, _place)
    shared = _shared_notes(one, other, _differs(one, other))
    notes = [*one.notes, *other.notes, *shared, *notes]
    if before.budget.height or after.budget.height:
        pair, missing = device_pair(_whole_steps(before, one.side), _whole_steps(after, other.side))
        notes += missing
        if pair is not None:
            found += pair.changes(pipelined=True)
            notes += pair.notes(pipelined=True)
    return (one.side, other.side), found, notes


def _whole_steps(run: Timeline, side: Side) -> Timeline:
    """Return a run without the steps that were left out."""
    if not side.left_out:
        return run
    return run.slice(steps=[step for step in run.steps if step not in side.left_out])


def _of_devices(
    before: Timeline, after: Timeline, one: StepMeasures, other: StepMeasures
) -> _Compared:
    """Compare two runs of which one or both are no pipelines: steps, devices and kinds of tasks."""
    pair, missing = device_pair(before, after)
    runs = pair.runs if pair else (before, after)
    tasks = [task_measures(run) for run in runs]
    steps = [run.steps for run in pair.devices] if pair else [run.side.steps for run in tasks]
    out = [run.left_out for run in pair.devices] if pair else [(), ()]
    one, other = (
        run._replace(side=msgspec.structs.replace(run.side, steps=own, left_out=others))
        for run, own, others in zip((one, other), steps, out, strict=True)
    )
    found, notes = [], _no_pipelines(one, other)
    if pair is not None:
        found = pair.changes(pipelined=False)
        for label, device in zip("AB", pair.devices, strict=True):
            notes += slow_first_step(label, device.steps, device.lengths_ns)
        missing += pair.notes(pipelined=False)
    if pair is None or not pair.captures:
        notes += _shared_notes(one, other, _differs(one, other))
    was, now = (run.measured.within(own) for run, own in zip(tasks, steps, strict=True))
    groups = ["kind"] if pair else ["overall", "kind"]
    if sum(len(run) > 0 for run in runs) == 1:
        groups.remove("kind")
        label = "A" if len(before) else "B"
        text = f"only {label}'s traces tell tasks apart, so these are not compared by kind"
        missing.append(Notice("one-with-tasks", text))
    keys = keys_of(was, now).filter(pl.col("group").is_in(groups))
    found += changes(keys, was, now, _place)
    return (one.side, other.side), found, notes + missing


def _work(run: Timeline) -> int:
    """Count the kernels, copies and fills that a run's traces hold; 0 where they do not say."""
    held = (content.counts.get(what, 0) for content in run.run.contents for what in _WORK)
    return sum(held)


def _no_pipelines(before: StepMeasures, after: StepMeasures) -> list[Notice]:
    """Note that one run is a pipeline and the other is not."""
    if not before.side.pipelined and not after.side.pipelined:
        return []
    label = "A" if before.side.pipelined else "B"
    text = f"only {label} is a pipeline, so bubbles, their causes and stages are not compared"
    return [Notice("one-pipeline", text)]


def _differs(before: StepMeasures, after: StepMeasures) -> list[Difference]:
    one, other = before.side, after.side
    backward = {True: "split", False: "whole"}
    told = [
        ("ranks", _listed(one.ranks), _listed(other.ranks)),
        ("pipeline devices", one.devices, other.devices),
        ("stages", one.stages, other.stages),
        ("micro-batches", one.microbatches, other.microbatches),
        ("chunks", one.chunks, other.chunks),
        ("placement", one.placement, other.placement),
    ]
    if None not in (one.splits_backward, other.splits_backward):
        told.append(
            ("backward", backward[bool(one.splits_backward)], backward[bool(other.splits_backward)])
        )
    if not one.pipelined or not other.pipelined:
        told = [row for row in told if None not in row]
        if len(one.ranks) == len(other.ranks):
            told[0] = ("ranks", units.listed("rank", one.ranks), units.listed("rank", other.ranks))
    if not before.equals & after.equals:
        told.insert(0, ("schedule", _schedule(one), _schedule(other)))
    return [
        Difference(what, units.optional(mine), units.optional(its))
        for what, mine, its in told
        if mine != its
    ]


def _other_times(before: Timeline, after: Timeline) -> list[Difference]:
    """Return that the times of one run are the host's and those of the other a device's."""
    mine, its = timed(before.ranks), timed(after.ranks)
    if None in (mine, its) or mine == its:
        return []
    return [Difference("times are those of", str(mine), str(its))]


def _host_times(before: Timeline, after: Timeline) -> list[Notice]:
    """Note which run's times are the host's."""
    return [
        Notice("host-times", f"{label} has {said}: what its devices did meanwhile is not known")
        for label, run in (("A", before), ("B", after))
        if (said := on_host(run.ranks))
    ]


def _schedule(side: Side) -> str:
    return side.schedule or ("unknown" if side.pipelined else "no pipeline")


def _listed(ranks: tuple[int, ...]) -> str:
    """Return ranks as a count, or by number where they are not just the first ones."""
    if ranks == tuple(range(len(ranks))):
        return str(len(ranks))
    return units.listed("rank", ranks)


def _shared_notes(
    before: StepMeasures, after: StepMeasures, differs: Sequence[Difference]
) -> list[Notice]:
    notes = []
    amount = [one.what for one in differs if one.what in ("ranks", "micro-batches")]
    sides = before.side, after.side
    if len({len(side.ranks) for side in sides}) == 1 and not all(one.pipelined for one in sides):
        amount = [what for what in amount if what != "ranks"]  # as many, so a mean is of as many
    if amount:
        text = (
            f"the runs differ in their {' and '.join(amount)}; times are of a step and a mean over "
            "ranks, so that alone changes them"
        )
        notes.append(Notice("other-work", text))
    single = [label for label, side in zip("AB", sides, strict=True) if len(side.steps) == 1]
    if len(single) == len(sides):
        text = "A and B have one step each: no noise known, so no difference is certain"
        notes.append(Notice("one-step", text))
    elif single:
        [label] = single
        text = f"{label} has one step: no noise known, so no difference is certain"
        notes.append(Notice("one-step", text))
    return notes


def _comparable(before: StepMeasures, after: StepMeasures) -> tuple[pl.DataFrame, list[Notice]]:
    """Return group and name of what can be compared, and notes about what cannot."""
    keys = keys_of(before.measured, after.measured)
    notes = []
    if not (before.explained and after.explained):
        keys = keys.filter(pl.col("group") != "cause")
    one, other = before.side, after.side
    if one.stages != other.stages:
        keys = keys.filter(pl.col("group") != "stage")
        why = "the runs cut the model into other stages"
        if None in (one.stages, other.stages):
            why = "the stages of one run are not known"
        text = f"{why}, so stages are not compared one by one"
        notes.append(Notice("other-stages", text))
    if None not in (one.devices, other.devices) and one.devices != other.devices:
        keys = keys.filter(pl.col("group") != "rank")
        text = "the pipelines are not equally long, so ranks are not compared one by one"
        notes.append(Notice("other-devices", text))
        return keys, notes
    if alone := sorted({*one.ranks} ^ {*other.ranks}):
        names = [str(rank) for rank in alone]
        keys = keys.filter((pl.col("group") != "rank") | ~pl.col("name").is_in(names))
        text = f"{units.listed('rank', alone)} in one run only; --ranks compares the others alone"
        notes.append(Notice("other-ranks", text, len(alone)))
    both = before.stages.join(after.stages, on="rank", suffix="_after")
    moved = both.filter(pl.col("stages").ne_missing(pl.col("stages_after")))["rank"].sort()
    if len(moved):
        text = f"{units.listed('rank', moved.to_list())} with other stages in B than in A"
        notes.append(Notice("moved-stages", text, len(moved), both.height))
    return keys, notes


def _place(change: Change) -> tuple[Any, ...]:
    if change.group == "overall":
        return (0, OVERALL.index(change.name))
    size = abs(change.difference or 0)
    return (GROUPS.index(change.group), -size, len(change.name), change.name)
