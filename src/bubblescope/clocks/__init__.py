"""One clock for ranks that share none, from what must come before what.

Hosts' clocks differ, by microseconds where they are well kept and by seconds where they are not, and a
bubble at a machine's boundary is just what a wrong clock fakes. What ran tells: a forward cannot start
on a stage before it has ended on the stage before, nor a backward before it has ended on the stage
after, nor can a message arrive before it was sent, nor is a rank done with a collective before all have
begun it. Forward traffic bounds the difference of two clocks from one side and backward traffic from
the other (`causality`), collectives from both (`collectives`); a linear programme finds clocks that
satisfy all of it and how far they may be off (`solution`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.clocks.solution import (
    ROUNDING_NS,
    Clocks,
    Conflict,
    Moments,
    bounding,
    connected,
    solve,
)
from bubblescope.clocks.tightest_pairs import TIMES, Evidence
from bubblescope.model import units
from bubblescope.model.clock_errors import UNKNOWN_HOST
from bubblescope.model.provenance import ClockReport, Notice
from bubblescope.model.timeline import Timeline
from bubblescope.model.timeline_tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.model.arrays import Ints
    from bubblescope.model.provenance import Run
    from bubblescope.model.timeline_tables import Table

_SETTLED: Final = frozenset({"no-common-clock", "clocks-unchecked"})
_SHOWN: Final = 3
_UNSTEPPED: Final = -1


def align(timeline: Timeline, mode: Literal["solve", "auto"] = "solve") -> Timeline:
    """Correct the clocks of a timeline so that causes come before their effects.

    Where ranks share a clock on each host, every host has one correction: an offset and, if the
    capture is long enough to tell, a drift. Where not even those do, every step has a zero of its own
    on each rank, and is aligned by itself. The first clock stays as it is.

    Args:
        timeline: What to correct.
        mode: "solve" always corrects. "auto" leaves clocks that nothing contradicts as they are, and
            says how far they may be off; runs of one host are left alone.

    Returns:
        The timeline with corrected times, `clock_offset_ns` (added at the beginning of the capture),
        `clock_error_ns` (how far the times of a rank's tasks may be off against the first clock of
        its group, `ClockReport.comparable`; null if unknown) and a `ClockReport`; with the times as
        they were if no clocks satisfy what was observed, or nothing connects them, and a notice that
        says so.
    """
    return correction(timeline, mode).applied(timeline)


class Correction(NamedTuple):
    """What is known of the clocks of a run, and how its times are corrected.

    Attributes:
        ranks: The ranks, with what is known of the clock of each.
        run: The run, with what is known of all of them.
        clock_of: Rank -> number of its clock.
        groups: Clocks that are corrected together.
    """

    ranks: pl.DataFrame
    run: Run
    clock_of: dict[int, int]
    groups: list[_Group]

    def applied(self, timeline: Timeline) -> Timeline:
        """Return a timeline of the run, or of some steps or ranks of it, with corrected times.

        Where every step has a zero of its own, only steps are corrected that the correction is of.
        """
        ranks = self.ranks
        if timeline.ranks.height < ranks.height:
            ranks = ranks.join(timeline.ranks.select("rank"), on="rank", how="semi")
        if not self.groups:
            return timeline.described(ranks, self.run)
        tables = {
            name: _moved_table(frame, TABLES[name], self.clock_of, self.groups)
            for name, frame in timeline.tables.items()
        }
        tasks = _moved(timeline.tasks, self.clock_of, self.groups)
        return Timeline(tasks, ranks, self.run, **tables)

    def moves_ns(self) -> dict[int, tuple[int, int]]:
        """Return by how much times of each rank are moved at least and at most, of those that are."""
        least: dict[int, int] = {}
        most: dict[int, int] = {}
        for group in self.groups:
            found: Any = group.found
            ends = zip(*found.ends_ns.tolist(), strict=True)  # it is a straight line in between
            for clock, moved in zip(group.clocks.tolist(), ends, strict=True):
                least[clock] = min(*moved, least.get(clock, moved[0]))
                most[clock] = max(*moved, most.get(clock, moved[0]))
        return {
            rank: (least[clock], most[clock])
            for rank, clock in self.clock_of.items()
            if clock in least
        }

    def moved(self, frame: pl.DataFrame, *names: str) -> pl.DataFrame:
        """Return a frame with rank and step, of which these columns of times are corrected."""
        if not self.groups or not frame.height:
            return frame
        return frame.with_columns(_corrected(frame, names, self.clock_of, self.groups))

    def moved_table(self, frame: pl.DataFrame, name: str) -> pl.DataFrame:
        """Return rows of a table of the run, as `TABLES` names it, with corrected times."""
        if not self.groups:
            return frame
        return _moved_table(frame, TABLES[name], self.clock_of, self.groups)


def correction(timeline: Timeline, mode: Literal["solve", "auto"] = "solve") -> Correction:
    """Work out how the clocks of a timeline differ; see `align`."""
    clocks = clocks_of(timeline.ranks, timeline.run)
    if clocks.number < 2:  # there is nothing to look at
        return as_it_is(timeline.ranks, timeline.run, mode)
    told = Evidence.of(timeline, clocks.of, by_step=clocks.by_step)
    return settled(timeline.ranks, timeline.run, told, mode)


def as_it_is(ranks: pl.DataFrame, run: Run, mode: Literal["solve", "auto"]) -> Correction:
    """Return the correction of a run of one clock: none.

    Args:
        ranks: As of its timeline.
        run: Likewise.
        mode: As of `align`.
    """
    if mode == "solve":
        single = Notice(
            "clocks-single", "all ranks are on the clock of one host: none was corrected"
        )
        run = run.noted(single)
    return Correction(ranks, run, clocks_of(ranks, run).of, [])


def settled(
    ranks: pl.DataFrame, run: Run, told: Evidence, mode: Literal["solve", "auto"] = "solve"
) -> Correction:
    """Work out how the clocks of a run differ, given what all of its steps tell.

    Args:
        ranks: As of its timeline.
        run: Likewise.
        told: What its tasks tell, as `clocks_of` numbers the clocks.
        mode: As of `align`.
    """
    clocks = clocks_of(ranks, run)
    before = told.violated
    if clocks.of_unknown and mode == "auto" and not before:
        return Correction(ranks, _believed(run, told), clocks.of, [])
    if told.pairs.is_empty():
        return Correction(ranks, _unconnected(run, clocks, told), clocks.of, [])
    changes = mode == "solve" or not run.common_clock or before > 0
    pairs = told.pairs.with_row_index("row")
    groups, loose = _groups(pairs, None if clocks.by_step else _extent(told.extent, clocks))
    solved = [group for group in groups if isinstance(group.found, Clocks)]
    case = _Case(ranks, run, told, clocks, pairs, groups, loose, changes=changes)
    said = _report(case, before)
    whole = _is_whole(case)
    kept = (one for one in run.warnings if not whole or one.code not in _SETTLED)
    inferred = run.inferred
    if changes and solved:
        inferred = {**inferred, "clock": "dependencies between tasks on different ranks"}
    known = msgspec.structs.replace(
        run,
        clock=said,
        common_clock=run.common_clock or whole,
        host_clocks=run.host_clocks and not whole,
        inferred=inferred,
        warnings=(*kept, *_notices(case, said)),
        notes=(*run.notes, *_agreement(case, said)),
    )
    return Correction(_ranks(case), known, clocks.of, solved if changes else [])


class ClocksOf(NamedTuple):
    """Which clock each rank is by.

    Attributes:
        of: Rank -> number of its clock: of its host, or its own if that is not known.
        by_step: Whether each has a clock of its own in every step.
        of_unknown: Whether no rank's host is known. They may all be on one, until something
            contradicts.
    """

    of: dict[int, int]
    by_step: bool
    of_unknown: bool = False

    @property
    def what(self) -> str:
        """What has a clock."""
        return "ranks" if self.by_step or self.of_unknown else "hosts"

    @property
    def number(self) -> int:
        """How many clocks there are."""
        return len(set(self.of.values()))


def clocks_of(ranks: pl.DataFrame, run: Run) -> ClocksOf:
    """Return which clock each rank of a run is by."""
    ranks = ranks.sort("rank")
    if not (run.common_clock or run.host_clocks):
        return ClocksOf({rank: index for index, rank in enumerate(ranks["rank"].to_list())}, True)
    number: dict[str | int, int] = {}
    of = {
        rank: number.setdefault(rank if host == UNKNOWN_HOST else host, len(number))
        for rank, host in ranks.select("rank", "host").iter_rows()
    }
    return ClocksOf(of, by_step=False, of_unknown=all(isinstance(one, int) for one in number))


class _Case(NamedTuple):
    """What was found out.

    Attributes:
        ranks, run: As they were.
        told: What tells of them.
        clocks: Which clock each rank is by.
        pairs: As of `told`, numbered.
        groups: Groups of clocks that bound each other, step by step if each has a zero of its own.
        loose: Clocks that are bounded against the others from one side only.
        changes: Whether times are corrected.
    """

    ranks: pl.DataFrame
    run: Run
    told: Evidence
    clocks: ClocksOf
    pairs: pl.DataFrame
    groups: list[_Group]
    loose: set[int]
    changes: bool


class _Group(NamedTuple):
    """Clocks that bound each other from both sides.

    Attributes:
        step: Of a run in which each step has a zero of its own, else None.
        clocks: Their numbers.
        pairs: What was observed between them.
        found: What follows.
    """

    step: int | None
    clocks: Ints
    pairs: pl.DataFrame
    found: Clocks | Conflict


CORRECTION: Final[tuple[type, ...]] = (Correction, _Group, Clocks, Conflict)
"""What a correction is made of, besides what is known of the run."""


def _unconnected(run: Run, clocks: ClocksOf, told: Evidence) -> Run:
    """Say that nothing tells how the clocks differ, if nobody has said so yet."""
    if any(one.code in {*_SETTLED, "clocks-disconnected"} for one in run.warnings):
        return run
    number, what = clocks.number, clocks.what
    if told.meet.height:
        return run.warned(_unmatched(what))
    text = (
        f"nothing in the traces shows how the clocks of {number} {what} differ: no task on one is "
        f"known to precede a task on another; between {what}, times are only as good as their "
        "synchronisation"
    )
    return run.warned(Notice("clocks-disconnected", text))


def _unmatched(what: str) -> Notice:
    """Say that collectives do not show how clocks differ, though there are some."""
    text = (
        f"{what} take part in collectives together, but which ones are the same does not show: rows "
        "are missing between them, recordings share too few, or each could as well be the one before; "
        "so how their clocks differ is not known, and times are only as good as their synchronisation"
    )
    return Notice("clocks-disconnected", text)


def _believed(run: Run, told: Evidence) -> Run:
    """Say that ranks of unknown hosts share no clock if by theirs they ran the same steps apart."""
    spans = told.extent.drop_nulls().sort("first_ns")
    gaps = (spans["first_ns"][1:] - spans["last_ns"].cum_max()[:-1]).to_list()
    for place, gap in enumerate(gaps, start=1):
        early = told.held["rank"].is_in(spans["rank"][:place].implode())
        both = (told.held.filter(side)["step"].to_list() for side in (early, ~early))
        if gap > 0 and set.intersection(*map(set, both)):
            text = (
                f"by their clocks, ranks ran the same steps {units.duration(gap)} apart, and the "
                "traces name no hosts: they are not taken to share a clock, and are not compared"
            )
            run = msgspec.structs.replace(run, common_clock=False)
            return run.warned(Notice("clocks-apart", text))
    return run


def _extent(extent: pl.DataFrame, clocks: ClocksOf) -> tuple[Ints, Ints]:
    """Return the first and the last moment of the tasks on each clock."""
    count = max(clocks.of.values()) + 1
    latest = np.iinfo(np.int64).max
    known = extent.drop_nulls()
    first, last = np.full(count, latest), np.full(count, -latest)
    clock = np.array([clocks.of[rank] for rank in known["rank"].to_list()], np.int64)
    np.minimum.at(first, clock, known["first_ns"].to_numpy())
    np.maximum.at(last, clock, known["last_ns"].to_numpy())
    return first, last


def _groups(pairs: pl.DataFrame, extent: tuple[Ints, Ints] | None) -> tuple[list[_Group], set[int]]:
    """Solve each group of clocks that bound each other, step by step if there is no extent.

    Returns:
        The groups, and the clocks that are bounded against a larger group from one side only.
    """
    parts = (
        [(key[0], part) for key, part in pairs.group_by("step", maintain_order=True)]
        if extent is None
        else [(None, pairs)]
    )
    groups, loose = [], set()
    for step, part in parts:
        a, b, before_ns, after_ns = (
            part[name].to_numpy() for name in ("clock_a", "clock_b", "before_ns", "after_ns")
        )
        count = int(max(a.max(), b.max())) + 1
        together = part["together"].to_numpy()
        anywhere = connected(a, b, count)
        whole: set[int] = set()
        bound = bounding(a[~together], b[~together], count)
        for clocks in sorted(bound, key=len, reverse=True):
            if (one := int(anywhere[clocks[0]])) in whole:
                loose.update(clocks.tolist())
            whole.add(one)
            if len(clocks) < 2:
                continue
            inside = np.isin(a, clocks) & np.isin(b, clocks)
            own = Moments(
                np.searchsorted(clocks, a[inside]),
                np.searchsorted(clocks, b[inside]),
                before_ns[inside],
                after_ns[inside],
                together[inside],
            )
            ends = None if extent is None else (extent[0][clocks], extent[1][clocks])
            found = solve(own, len(clocks), drift=extent is not None, extent=ends)
            groups.append(_Group(step, clocks, part.filter(pl.Series(inside)), found))
    return groups, loose


def _moved(tasks: pl.DataFrame, clock_of: dict[int, int], solved: list[_Group]) -> pl.DataFrame:
    """Return the tasks with corrected times."""
    moved = tasks.with_columns(_corrected(tasks, TIMES, clock_of, solved))
    return moved.with_columns(_fitting("busy_ns"))


def _fitting(*lengths: str) -> list[pl.Expr]:
    """Return lengths of time that are no longer than what holds them: a fast clock made both longer."""
    whole = pl.col("end_ns") - pl.col("start_ns")
    return [pl.when(pl.col(one) > whole).then(whole).otherwise(one).alias(one) for one in lengths]


def _moved_table(
    frame: pl.DataFrame, table: Table, clock_of: dict[int, int], solved: list[_Group]
) -> pl.DataFrame:
    """Return a table with corrected times; lengths of time stay as they were measured, if they fit.

    Where every step has a zero of its own there is no saying which one a row counts from that is of no
    step: then there are none.
    """
    if not table.moments or not frame.height:
        return frame
    if any(group.step is not None for group in solved):
        return frame.clear()
    moved = frame.with_columns(_corrected(frame, table.moments, clock_of, solved))
    if "end_ns" not in table.moments:
        return moved
    lengths = [name for name in frame.columns if name.endswith("_ns") and name not in table.moments]
    return moved.with_columns(_fitting(*lengths))


def _corrected(
    frame: pl.DataFrame, names: Sequence[str], clock_of: dict[int, int], solved: list[_Group]
) -> list[pl.Series]:
    """Return columns of times as the corrected clocks show them."""
    number = np.zeros(1 + max(clock_of), np.int64)
    number[list(clock_of)] = list(clock_of.values())
    clock = number[frame["rank"].to_numpy()]
    step = frame["step"] if "step" in frame.columns else None
    columns = []
    for name in names:
        times = frame[name]
        shown = pl.Series(name, _shown(clock, times.fill_null(0).to_numpy(), step, solved))
        columns.append(shown.set(times.is_null(), None) if times.has_nulls() else shown)
    return columns


def _shown(clock: Ints, times: Ints, step: pl.Series | None, solved: list[_Group]) -> Ints:
    """Return times of clocks as the corrected clocks show them."""
    if all(group.step is None for group in solved):
        every: Ints = times + _all_of(solved, int(clock.max(initial=0)) + 1).correction(
            clock, times
        )
        return every
    shown = times.copy()
    steps = np.full(len(times), _UNSTEPPED) if step is None else step.fill_null(_UNSTEPPED)
    there = set(np.unique(steps))
    for group in solved:
        if group.step not in there:
            continue
        found: Any = group.found
        chosen = np.isin(clock, group.clocks) & (np.asarray(steps) == group.step)
        place = np.searchsorted(group.clocks, clock[chosen])
        shown[chosen] += found.correction(place, times[chosen])
    return shown


def _all_of(solved: list[_Group], count: int) -> Clocks:
    """Return how to correct so many clocks or more; those of no group stay as they are."""
    count = max([count, *(int(group.clocks.max()) + 1 for group in solved)])
    nothing = np.zeros(count, np.int64)
    every = Clocks(
        nothing.copy(), nothing + 1, nothing.copy(), np.zeros((2, count)), nothing, nothing, 0.0,
        drifts=any(isinstance(group.found, Clocks) and group.found.drifts for group in solved),
    )  # fmt: skip
    for group in solved:
        found: Any = group.found
        every.origin_ns[group.clocks] = found.origin_ns
        every.length_ns[group.clocks] = found.length_ns
        every.rough_ns[group.clocks] = found.rough_ns
        every.line_ns[:, group.clocks] = found.line_ns
    return every


def _ranks(case: _Case) -> pl.DataFrame:
    """Return the rank table with what was added to each rank's times, and how far it may be off."""
    offsets: dict[int, int] = {}
    errors: dict[int, int] = {}
    steps: dict[int, int] = {}
    for group in case.groups:
        found = group.found
        if isinstance(found, Conflict):
            continue
        error_ns = found.error_ns if case.changes else found.raw_error_ns
        for clock, begin, error in zip(
            group.clocks.tolist(), found.ends_ns[0].tolist(), error_ns.tolist(), strict=True
        ):
            errors[clock] = max(errors.get(clock, 0), error)
            steps[clock] = steps.get(clock, 0) + 1
            if not case.clocks.by_step:
                offsets[clock] = begin if case.changes else 0
    if case.clocks.by_step:  # of what is known in some steps only, nothing holds for all
        has = dict(case.told.held.group_by("rank").agg(pl.len()).iter_rows())
        errors = {
            clock: errors[clock]
            for rank, clock in case.clocks.of.items()
            if clock in errors and steps[clock] >= has.get(rank, 0)
        }
    rows = []
    for row in case.ranks.iter_rows(named=True):
        clock = case.clocks.of[row["rank"]]
        before = row["clock_offset_ns"]
        if clock in offsets:
            row["clock_offset_ns"] = (before or 0) + offsets[clock]
        row["clock_error_ns"] = errors.get(clock)
        rows.append(row)
    return pl.DataFrame(rows, schema=case.ranks.schema)


def _is_whole(case: _Case) -> bool:
    """Say whether all clocks are on one, in every step if each has a zero of its own."""
    if any(isinstance(group.found, Conflict) for group in case.groups):
        return False
    largest: dict[int | None, int] = {}
    for group in case.groups:
        largest[group.step] = max(largest.get(group.step, 0), len(group.clocks))
    if not case.clocks.by_step:
        return largest.get(None) == len(set(case.clocks.of.values()))
    ranks = dict(case.told.held.group_by("step").agg(pl.len()).iter_rows())
    return all(count == 1 or largest.get(step) == count for step, count in ranks.items())


def _comparable(case: _Case) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each group of clocks that are on one; each rank is in one group."""
    if case.clocks.by_step and not _is_whole(case):
        return tuple((rank,) for rank in case.clocks.of)
    of_clock = {clock: clock for clock in case.clocks.of.values()}
    for group in case.groups:
        if isinstance(group.found, Clocks):
            of_clock |= dict.fromkeys(group.clocks.tolist(), int(group.clocks[0]))
    if case.clocks.by_step:
        of_clock = dict.fromkeys(of_clock, 0)
    ranks: dict[int, list[int]] = {}
    for rank, clock in case.clocks.of.items():
        ranks.setdefault(of_clock[clock], []).append(rank)
    return tuple(map(tuple, ranks.values()))


def _report(case: _Case, before: int) -> ClockReport:
    """Return the certificate: what was observed, what it says, and what is left."""
    changes, pairs = case.changes, case.pairs
    names = _names(case)
    solved = [group for group in case.groups if isinstance(group.found, Clocks)]
    drift: dict[str, float] = {}
    errors, rate = [], 0.0
    for group in solved:
        found: Any = group.found
        errors.append(int((found.error_ns if changes else found.raw_error_ns).max()))
        rate = max(rate, found.rate_error)
        if found.drifts and changes:
            for clock, gained, length in zip(
                group.clocks.tolist(),
                (found.line_ns[1] - found.line_ns[0]).tolist(),
                found.length_ns.tolist(),
                strict=True,
            ):
                drift[names[clock]] = gained / length * 1e6
    moved = solved if changes else []
    shown = [
        _shown(pairs[clock].to_numpy(), pairs[time].to_numpy(), pairs["step"], moved)
        for clock, time in (("clock_a", "before_ns"), ("clock_b", "after_ns"))
    ]
    slack = shown[1] - shown[0]
    rows = [group.pairs.filter(~pl.col("together"))["row"].to_numpy() for group in solved]
    inside = np.concatenate([np.zeros(0, np.int64), *rows]).astype(np.int64)
    order = inside[np.argsort(slack[inside], kind="stable")[:_SHOWN]].tolist()
    method = "solved" if changes else "checked"
    if not solved:
        method = "refused" if case.groups else "unbounded"
    steps = [group.step for group in solved]
    return ClockReport(
        method=method,
        constraints=case.told.known,
        violations_before=before,
        violations_after=_violated(
            case, pairs.filter(pl.Series(slack < -ROUNDING_NS), ~pl.col("together"))
        ),
        groups=max((steps.count(one) for one in set(steps)), default=0),
        tightest=tuple(
            f"{_pair(pairs, index)}: {units.duration(int(slack[index]))}" for index in order
        ),
        drift_ppm=drift,
        error_ns=max(errors, default=None),
        rate_error=rate,
        comparable=_comparable(case),
    )


def _violated(case: _Case, still: pl.DataFrame) -> int:
    """Return in how many pairs the effect precedes its cause in the end.

    Between clocks that are as they were it is as many as before. Between others it is those among the
    pairs that imply all: none, where clocks were solved for together.

    Args:
        case: What was found out.
        still: The pairs of `case.pairs` in which it does.
    """
    moved = {
        (group.step, clock)
        for group in case.groups
        if case.changes and isinstance(group.found, Clocks)
        for clock in group.clocks.tolist()
    }
    if not moved:
        return case.told.violated
    before: int = sum(
        violated
        for step, a, b, _, violated in case.told.ways.iter_rows()
        if (step, a) not in moved and (step, b) not in moved
    )
    return before + sum(
        (step, a) in moved or (step, b) in moved
        for step, a, b in still.select(
            pl.col("step") if case.clocks.by_step else pl.lit(None), "clock_a", "clock_b"
        ).iter_rows()
    )


def _pair(pairs: pl.DataFrame, index: int) -> str:
    row = pairs.row(index, named=True)
    where = "" if row["step"] is None else f" of step {row['step']}"
    return f"{row['cause']} on rank {row['a']} before {row['effect']} on rank {row['b']}{where}"


def _notices(case: _Case, said: ClockReport) -> list[Notice]:
    """Say what was done to the clocks, and what could not be."""
    notices = []
    what = case.clocks.what
    total = len(set(case.clocks.of.values()))
    solved = _solved(case)
    if case.loose:
        text = (
            f"dependencies bound the clocks of {_named(case, case.loose)} against the other "
            f"{what} from "
            "one side only, so they were left as they are: against the others, times are only as good "
            "as their synchronisation"
        )
        notices.append(Notice("clocks-unbounded", text))
    if solved and case.changes:
        violated = (
            f", {said.violations_before:,} of which did not" if not case.clocks.by_step else ""
        )
        text = (
            f"the clocks of {len(solved)} of {total} {what} were aligned by {_evidence(said)}"
            f"{violated}; now {_within(case, said)}"
        )
        notices.append(Notice("clocks-aligned", text))
        if said.drift_ppm:
            host, ppm = max(said.drift_ppm.items(), key=lambda item: abs(item[1]))
            text = f"clocks drift: that of {host} was corrected by {ppm:+.3g} parts per million"
            notices.append(Notice("clocks-drift", text))
    conflicts = [group for group in case.groups if isinstance(group.found, Conflict)]
    if conflicts:
        notices.append(_refusal(conflicts))
    a, b = (case.pairs[name].to_numpy() for name in ("clock_a", "clock_b"))
    number = connected(a, b, total)
    apart = len(np.unique(number))
    meet = case.told.meet
    if apart > 1 and (number[meet["clock_a"]] != number[meet["clock_b"]]).any():
        notices.append(_unmatched(what))
    elif apart > 1:
        text = (
            f"{apart} groups of {what} exchange nothing with each other: between them times are only "
            "as good as their synchronisation"
        )
        notices.append(Notice("clocks-disconnected", text))
    return notices


def _names(case: _Case) -> dict[int, str]:
    """Return the host of each clock, or the rank if it is its own."""
    names: dict[int, str] = {}
    for rank, host in case.ranks.sort("rank").select("rank", "host").iter_rows():
        own = case.clocks.by_step or host == UNKNOWN_HOST
        names.setdefault(case.clocks.of[rank], f"rank {rank}" if own else str(host))
    return names


def _named(case: _Case, clocks: set[int]) -> str:
    """Name some clocks."""
    names = _names(case)
    shown = [names[clock] for clock in sorted(clocks)]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more


def _agreement(case: _Case, said: ClockReport) -> list[Notice]:
    """Say that clocks were looked at and agree with what happened, if they do: no cause for worry."""
    solved, total = _solved(case), len(set(case.clocks.of.values()))
    if not solved or case.changes:
        return []
    some = "" if len(solved) == total else f"{len(solved)} of "
    text = (
        f"the clocks of {some}{total} {case.clocks.what} agree with {_evidence(said)} and were left "
        f"as they are; {_within(case, said)}"
    )
    return [Notice("clocks-checked", text)]


def _solved(case: _Case) -> set[int]:
    """Return the clocks that what ran bounds."""
    return {
        clock
        for group in case.groups
        if isinstance(group.found, Clocks)
        for clock in group.clocks.tolist()
    }


def _evidence(said: ClockReport) -> str:
    return f"{said.constraints:,} pairs of moments of which one must come before the other"


def _within(case: _Case, said: ClockReport) -> str:
    first = case.clocks.what.removesuffix("s")
    return f"each is within ±{units.duration(said.error_ns)} of the first {first}'s"


def _refusal(conflicts: list[_Group]) -> Notice:
    """Name the worst contradiction."""

    def excess(group: _Group) -> int:
        return group.found.excess_ns if isinstance(group.found, Conflict) else 0

    worst = max(conflicts, key=excess)
    assert isinstance(worst.found, Conflict)  # noqa: S101  for the type checker
    where = "" if worst.step is None else f" in {len(conflicts)} steps"
    pairs = " and ".join(_pair(worst.pairs, index) for index in worst.found.pairs)
    return Notice(
        "clocks-contradict",
        f"no correction of the clocks satisfies all dependencies{where}, so times were left as "
        f"recorded: {pairs} "
        f"contradict by {units.duration(worst.found.excess_ns)}",
        len(conflicts),
    )
