"""What changed between two runs, and whether it is more than the noise between steps.

Every measure is a ratio of two sums over the steps of a run: time over ranks, or idle time over all
time. The difference of two runs comes with a 95 % interval (`bubblescope.analysis.bootstrap`), made
wider by what clocks may be off: that is the same in every step, so no number of steps makes it
smaller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.analysis.bootstrap import Sums, intervals
from bubblescope.analysis.pictured import pictured
from bubblescope.analysis.step_measures import OVERALL, RATES, Side, StepMeasures, step_measures
from bubblescope.model import units
from bubblescope.model.provenance import Notice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from bubblescope.analysis.bootstrap import Floats
    from bubblescope.analysis.pictured import Pictured
    from bubblescope.model.timeline import Timeline
    from bubblescope.schedules.plan import Plan

SCHEMA: Final = "bubblescope.compare/1"
"""Name and version of the JSON, described in docs/compare.md. Keys are only ever added."""

GROUPS: Final = ("overall", "cause", "kind", "stage", "rank")
"""What measures are of, in the order in which they are shown."""

_MEANS: Final = ("cause", "kind")
"""Groups in which what a run does not have takes no time; elsewhere it is unknown."""

_ENDS: Final = np.array([[-1], [1]])
"""Signs of the lower and the upper end of an interval."""

Interval = tuple[float, float]


class Change(msgspec.Struct, frozen=True):
    """One measure of both runs.

    Attributes:
        group: One of `GROUPS`.
        name: "step", "bubble", "span", "busy" or "idle" of all, else which cause, kind, stage, rank.
        unit: "ns", or "rate" for bubble rates.
        before, after: Its value in each run; null where it is unknown.
        difference: after - before.
        relative: The difference as a share of `before`.
        interval, after_interval: 95 % intervals of `difference` and `after`; null if either run has
            one step only, or if the measure is not of all steps.
    """

    group: str
    name: str
    unit: Literal["ns", "rate"]
    before: float | None
    after: float | None
    difference: float | None
    relative: float | None
    interval: Interval | None
    after_interval: Interval | None

    @property
    def certain(self) -> bool | None:
        """Whether the difference is beyond the noise; None if no noise is known."""
        if self.interval is None:
            return None
        return self.interval[0] > 0 or self.interval[1] < 0


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
        changes: All measures, by group, the largest difference first.
        notes: What to know before believing them.
    """

    runs: tuple[Timeline, Timeline]
    labels: tuple[str, str]
    before: Side
    after: Side
    differs: tuple[Difference, ...]
    changes: tuple[Change, ...]
    notes: tuple[Notice, ...]

    @classmethod
    def of(
        cls,
        before: Timeline,
        after: Timeline,
        *,
        labels: tuple[str, str] = ("", ""),
        also: Sequence[Plan] = (),
    ) -> Self:
        """Compare two runs, step for step and rank for rank.

        Steps at either end of a run that were not recorded whole are left out. All others count, the
        first one as well; a note says so if it stands out.

        Args:
            before: The run to compare with.
            after: The run that may have changed.
            labels: What they are called, such as their paths.
            also: Schedules to recognise besides the known ones.
        """
        measured = step_measures("A", before, also), step_measures("B", after, also)
        differs = _differs(*measured)
        keys, notes = _comparable(*measured)
        shared = _shared_notes(*measured, differs)
        return cls(
            runs=(before, after),
            labels=labels,
            before=measured[0].side,
            after=measured[1].side,
            differs=tuple(differs),
            changes=tuple(_changes(keys, *measured)),
            notes=(*measured[0].notes, *measured[1].notes, *shared, *notes),
        )

    def pictured(self) -> list[Pictured]:
        """Return what its picture shows: the first step of each run."""
        return [pictured(run, max_steps=1) for run in self.runs]

    def find(self, group: str, name: str) -> Change | None:
        """Return a measure; None if neither run has it."""
        return next((one for one in self.changes if (one.group, one.name) == (group, name)), None)

    def group(self, name: str) -> list[Change]:
        """Return the measures of a group, the largest difference first."""
        return [change for change in self.changes if change.group == name]

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values, following the schema `SCHEMA`."""
        plain = {
            group: [
                {**msgspec.to_builtins(change), "certain": change.certain}
                for change in self.group(group)
            ]
            for group in GROUPS
        }
        return {
            "schema": SCHEMA,
            "before": msgspec.to_builtins(self.before),
            "after": msgspec.to_builtins(self.after),
            "differs": [difference._asdict() for difference in self.differs],
            "changes": plain,
            "notes": msgspec.to_builtins(self.notes),
        }


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
    if not before.equals & after.equals:
        told.insert(0, ("schedule", one.schedule or "unknown", other.schedule or "unknown"))
    return [
        Difference(what, units.optional(mine), units.optional(its))
        for what, mine, its in told
        if mine != its
    ]


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
    if amount:
        text = (
            f"the runs differ in their {' and '.join(amount)}; times are of a step and a mean over "
            "ranks, so that alone changes them"
        )
        notes.append(Notice("other-work", text))
    for label, run in (("A", before), ("B", after)):
        if len(run.side.steps) == 1:
            text = f"{label} has one step: no noise known, so no difference is certain"
            notes.append(Notice("one-step", text))
    return notes


def _comparable(before: StepMeasures, after: StepMeasures) -> tuple[pl.DataFrame, list[Notice]]:
    """Return group and name of what can be compared, and notes about what cannot."""
    key = ["group", "name"]
    keys = pl.concat([before.rows.select(key), after.rows.select(key)]).unique(maintain_order=True)
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


def _sums(keys: pl.DataFrame, run: StepMeasures) -> Sums:
    steps = run.ranks["step"]
    place = run.rows.join(keys.with_row_index("key"), on=["group", "name"]).with_columns(
        at=pl.col("step").replace_strict(steps, pl.int_range(len(steps), eager=True))
    )
    means = keys["group"].is_in(_MEANS).to_numpy()
    part = np.zeros((keys.height, len(steps)))
    whole = np.outer(means, run.ranks["ranks"].to_numpy()).astype(np.float64)
    at = place["key"].to_numpy(), place["at"].to_numpy()
    part[at], whole[at] = place["part"].to_numpy(), place["whole"].to_numpy()
    return Sums(part, whole)


def _off(keys: pl.DataFrame, run: StepMeasures, value: Floats) -> Floats:
    """Return how far each measure may be off because clocks are."""
    group, name = keys["group"].to_numpy(), keys["name"].to_numpy()
    timed = np.isin(group, ["cause", "rank"]) | np.isin(name, ["step", "idle"])
    off = run.rate_error * value + timed * run.uncertain_ns
    return np.where(name == "bubble", run.bubble_error, np.where(name == "span", 0, off))


def _changes(keys: pl.DataFrame, before: StepMeasures, after: StepMeasures) -> list[Change]:
    """Return all measures of two runs, by group, the largest difference first."""
    was, now = _sums(keys, before), _sums(keys, after)
    old, new = was.value(), now.value()
    off_old, off_new = _off(keys, before, old), _off(keys, after, new)
    known = intervals(was, now)
    unknown = np.full((2, len(old)), np.nan)
    rise = known.difference + _ENDS * (off_old + off_new) if known else unknown
    reach = known.after + _ENDS * off_new if known else unknown
    changes = [
        _change(group, name, old[at], new[at], rise[:, at], reach[:, at])
        for at, (group, name) in enumerate(keys.iter_rows())
    ]
    return sorted(changes, key=_place)


def _change(group: str, name: str, old: float, new: float, rise: Floats, reach: Floats) -> Change:
    unit: Literal["ns", "rate"] = "rate" if group == "overall" and name in RATES else "ns"
    before, after = _number(old, unit), _number(new, unit)
    difference = None if before is None or after is None else after - before
    return Change(
        group=group,
        name=name,
        unit=unit,
        before=before,
        after=after,
        difference=difference,
        relative=difference / before if difference is not None and before else None,
        interval=_pair(rise, unit),
        after_interval=_pair(reach, unit),
    )


def _place(change: Change) -> tuple[Any, ...]:
    if change.group == "overall":
        return (0, OVERALL.index(change.name))
    size = abs(change.difference or 0)
    return (GROUPS.index(change.group), -size, len(change.name), change.name)


def _number(value: float, unit: str) -> float | None:
    if np.isnan(value):
        return None
    return round(value) if unit == "ns" else float(value)


def _pair(ends: Floats, unit: str) -> Interval | None:
    low, high = (_number(end, unit) for end in ends)
    return None if low is None or high is None else (low, high)
