"""One clock for ranks that share none, from what must come before what.

Hosts' clocks differ, by microseconds where they are well kept and by seconds where they are not, and a
bubble at a machine's boundary is just what a wrong clock fakes. What ran tells: a forward cannot start
on a stage before it has ended on the stage before, nor a backward before it has ended on the stage
after, nor can a message arrive before it was sent. Forward traffic bounds the difference of two clocks
from one side and backward traffic from the other (`causality`); a linear programme finds clocks that
satisfy all of it and how far they may be off (`solution`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.clocks.causality import constraints
from bubblescope.clocks.solution import Clocks, Conflict, Moments, connected, solve
from bubblescope.model import units
from bubblescope.model.provenance import ClockReport, Notice
from bubblescope.model.timeline import Timeline
from bubblescope.model.timeline_tables import TABLES

if TYPE_CHECKING:
    from bubblescope.model.arrays import Ints
    from bubblescope.model.timeline_tables import Table

_TIMES: Final = ("start_ns", "end_ns", "host_start_ns", "host_end_ns")
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
        `clock_error_ns` (how far a rank's times may be off against the first clock) and a
        `ClockReport`; with the times as they were if no clocks satisfy what was observed, or nothing
        connects them, and a notice that says so.
    """
    by_step = not (timeline.run.common_clock or timeline.run.host_clocks)
    clock_of = _clocks_of(timeline, by_step=by_step)
    if len(set(clock_of.values())) <= 1:
        if mode == "auto":
            return timeline
        single = Notice(
            "clocks-single", "all ranks are on the clock of one host: none was corrected"
        )
        run = timeline.run.noted(single)
        return Timeline(timeline.tasks, timeline.ranks, run, **timeline.tables)
    pairs = constraints(timeline).with_columns(
        clock_a=pl.col("a").replace_strict(clock_of, default=None, return_dtype=pl.Int64),
        clock_b=pl.col("b").replace_strict(clock_of, default=None, return_dtype=pl.Int64),
    )
    pairs = pairs.drop_nulls(["clock_a", "clock_b"]).filter(pl.col("clock_a") != pl.col("clock_b"))
    if by_step:
        pairs = pairs.drop_nulls("step")
    groups = _groups(pairs, by_step=by_step)
    if not groups:
        return timeline
    before = int((pairs["after_ns"] < pairs["before_ns"]).sum())
    changes = mode == "solve" or not timeline.run.common_clock or before > 0
    solved = [group for group in groups if isinstance(group.found, Clocks)]
    case = _Case(timeline, clock_of, groups, changes=changes, by_step=by_step)
    said = _report(case, pairs, before)
    whole = _is_whole(case)
    kept = (one for one in timeline.run.warnings if not whole or one.code not in _SETTLED)
    inferred = timeline.run.inferred
    if changes and solved:
        inferred = {**inferred, "clock": "what must come before what on different ranks"}
    run = msgspec.structs.replace(
        timeline.run,
        clock=said,
        common_clock=timeline.run.common_clock or whole,
        host_clocks=timeline.run.host_clocks and not whole,
        inferred=inferred,
        warnings=(*kept, *_notices(case, said)),
        notes=(*timeline.run.notes, *_agreement(case, said)),
    )
    tasks, tables = timeline.tasks, timeline.tables
    if changes:
        tasks = _moved(tasks, clock_of, solved)
        tables = {
            name: _moved_table(frame, TABLES[name], clock_of, solved)
            for name, frame in tables.items()
        }
    return Timeline(tasks, _ranks(case), run, **tables)


class _Case(NamedTuple):
    """What was found out.

    Attributes:
        timeline: As it was.
        clock_of: Rank -> number of its clock.
        groups: Groups of connected clocks, step by step if each has a zero of its own.
        changes: Whether times are corrected.
        by_step: Whether every rank has a clock of its own in every step.
    """

    timeline: Timeline
    clock_of: dict[int, int]
    groups: list[_Group]
    changes: bool
    by_step: bool


class _Group(NamedTuple):
    """Clocks that are connected with each other only.

    Attributes:
        step: Of a run in which each step has a zero of its own, else None.
        clocks: Their numbers.
        pairs: What was observed between them.
        moments: The same, with the clocks numbered within the group.
        found: What follows.
    """

    step: int | None
    clocks: Ints
    pairs: pl.DataFrame
    moments: Moments
    found: Clocks | Conflict


def _clocks_of(timeline: Timeline, *, by_step: bool) -> dict[int, int]:
    """Return rank -> number of its clock: of its host, or its own."""
    ranks = timeline.ranks.sort("rank")
    if by_step:
        return {rank: index for index, rank in enumerate(ranks["rank"].to_list())}
    hosts = ranks["host"].unique(maintain_order=True).to_list()
    number = {host: index for index, host in enumerate(hosts)}
    return {rank: number[host] for rank, host in ranks.select("rank", "host").iter_rows()}


def _groups(pairs: pl.DataFrame, *, by_step: bool) -> list[_Group]:
    parts = (
        [(key[0], part) for key, part in pairs.group_by("step", maintain_order=True)]
        if by_step
        else [(None, pairs)] * bool(len(pairs))
    )
    groups = []
    for step, part in parts:
        moments = Moments(
            *(part[name].to_numpy() for name in ("clock_a", "clock_b", "before_ns", "after_ns"))
        )
        count = int(max(moments.a.max(), moments.b.max())) + 1
        for clocks in connected(moments, count):
            if len(clocks) < 2:
                continue
            inside = np.isin(moments.a, clocks)
            own = Moments(
                np.searchsorted(clocks, moments.a[inside]),
                np.searchsorted(clocks, moments.b[inside]),
                moments.before_ns[inside],
                moments.after_ns[inside],
            )
            found = solve(own, len(clocks), drift=not by_step)
            groups.append(_Group(step, clocks, part.filter(pl.Series(inside)), own, found))
    return groups


def _moved(tasks: pl.DataFrame, clock_of: dict[int, int], solved: list[_Group]) -> pl.DataFrame:
    """Return the tasks with corrected times."""
    columns = {name: _corrected(tasks, name, clock_of, solved) for name in _TIMES}
    # A clock that ran fast made its tasks longer than they were, and what they hold.
    length = pl.col("end_ns") - pl.col("start_ns")
    busy = pl.when(pl.col("busy_ns") > length).then(length).otherwise("busy_ns")
    return tasks.with_columns(**columns).with_columns(busy_ns=busy)


def _moved_table(
    frame: pl.DataFrame, table: Table, clock_of: dict[int, int], solved: list[_Group]
) -> pl.DataFrame:
    """Return a table with corrected times; lengths of time stay as they were measured.

    Where every step has a zero of its own there is no saying which one a row counts from that is of no
    step: then there are none.
    """
    if not table.moments:
        return frame
    if any(group.step is not None for group in solved):
        return frame.clear()
    return frame.with_columns(
        _corrected(frame, name, clock_of, solved).alias(name) for name in table.moments
    )


def _corrected(
    frame: pl.DataFrame, name: str, clock_of: dict[int, int], solved: list[_Group]
) -> pl.Expr:
    """Return a column of times as the corrected clocks show them."""
    clock = frame["rank"].replace_strict(clock_of, return_dtype=pl.Int64).to_numpy()
    known = frame[name].is_not_null().to_numpy()
    times = frame[name].fill_null(0).to_numpy().copy()
    for group in solved:
        found: Any = group.found
        chosen = known & np.isin(clock, group.clocks)
        if group.step is not None:
            chosen &= frame["step"].fill_null(_UNSTEPPED).to_numpy() == group.step
        place = np.searchsorted(group.clocks, clock[chosen])
        times[chosen] += found.correction(place, times[chosen])
    return pl.when(pl.Series(known)).then(pl.Series(times))


def _ranks(case: _Case) -> pl.DataFrame:
    """Return the rank table with what was added to each rank's times, and how far it may be off."""
    offsets: dict[int, int] = {}
    errors: dict[int, int] = {}
    for group in case.groups:
        found: Any = group.found
        if isinstance(found, Conflict):
            continue
        for clock, begin, end, error in zip(
            group.clocks.tolist(),
            found.begin_ns.tolist(),
            found.end_ns.tolist(),
            found.error_ns.tolist(),
            strict=True,
        ):
            if error < 0:
                continue
            # What was left alone may be off by what it was not corrected by, too.
            whole = error if case.changes else error + max(abs(begin), abs(end))
            errors[clock] = max(errors.get(clock, 0), whole)
            if not case.by_step:
                offsets[clock] = begin if case.changes else 0
    rows = []
    for row in case.timeline.ranks.iter_rows(named=True):
        clock = case.clock_of[row["rank"]]
        before = row["clock_offset_ns"]
        if clock in offsets:
            row["clock_offset_ns"] = (before or 0) + offsets[clock]
        row["clock_error_ns"] = errors.get(clock, row["clock_error_ns"])
        rows.append(row)
    return pl.DataFrame(rows, schema=case.timeline.ranks.schema)


def _is_whole(case: _Case) -> bool:
    """Say whether all clocks are on one, in every step if each has a zero of its own."""
    everything = set(case.clock_of.values())
    steps: dict[int | None, set[int]] = {}
    for group in case.groups:
        if isinstance(group.found, Conflict) or not group.found.bounded.all():
            return False
        if len(group.clocks) == len(everything):
            steps[group.step] = everything
    expected = set(case.timeline.steps) if case.by_step else {None}
    return set(steps) == expected


def _report(case: _Case, pairs: pl.DataFrame, before: int) -> ClockReport:
    """Return the certificate: what was observed, what it says, and what is left."""
    groups, changes = case.groups, case.changes
    hosts = case.timeline.ranks.sort("rank")["host"].unique(maintain_order=True).to_list()
    after = 0
    tight: list[tuple[int, str]] = []
    drift: dict[str, float] = {}
    error, rate = 0, 0.0
    for group in groups:
        found = group.found
        if isinstance(found, Conflict):
            after += int((group.pairs["after_ns"] < group.pairs["before_ns"]).sum())
            continue
        moments = group.moments
        slack = found.slack(moments) if changes else moments.after_ns - moments.before_ns
        after += int((slack < 0).sum())
        tight += [
            (int(slack[index]), _pair(group.pairs, index))
            for index in np.argsort(slack, kind="stable")[:_SHOWN].tolist()
        ]
        off = np.maximum(abs(found.begin_ns), abs(found.end_ns)) * (not changes)
        error = max(error, int((found.error_ns + off).max()))
        rate = max(rate, found.rate_error)
        if found.drifts and changes:
            for clock, begin, end in zip(
                group.clocks.tolist(), found.begin_ns.tolist(), found.end_ns.tolist(), strict=True
            ):
                drift[hosts[clock]] = (end - begin) / found.length_ns * 1e6
    tight.sort()
    method = "solved" if changes else "checked"
    if all(isinstance(group.found, Conflict) for group in groups):
        method = "refused"
    elif max(group.found.bounded.sum() for group in groups if isinstance(group.found, Clocks)) < 2:
        method = "unbounded"
    return ClockReport(
        method=method,
        constraints=len(pairs),
        violations_before=before,
        violations_after=after,
        groups=max(
            sum(group.step == one for group in groups) for one in {group.step for group in groups}
        ),
        tightest=tuple(f"{text}: {units.duration(slack)}" for slack, text in tight[:_SHOWN]),
        drift_ppm=drift,
        error_ns=error,
        rate_error=rate,
    )


def _pair(pairs: pl.DataFrame, index: int) -> str:
    row = pairs.row(index, named=True)
    where = "" if row["step"] is None else f" of step {row['step']}"
    return f"{row['cause']} on rank {row['a']} before {row['effect']} on rank {row['b']}{where}"


def _notices(case: _Case, said: ClockReport) -> list[Notice]:
    """Say what was done to the clocks, and what could not be."""
    groups = case.groups
    notices = []
    what = "ranks" if case.by_step else "hosts"
    total = len(set(case.clock_of.values()))
    bounded: set[int] = set()
    loose: set[int] = set()
    for group in groups:
        if isinstance(group.found, Clocks):
            bounded |= set(group.clocks[group.found.bounded].tolist())
            loose |= set(group.clocks[~group.found.bounded].tolist())
    solved = bounded if len(bounded) > 1 else set()
    if loose:
        text = (
            f"the clocks of {len(loose)} of {total} {what} were left as they are: what ran bounds them "
            "from one side only"
        )
        notices.append(Notice("clocks-unbounded", text))
    if solved and case.changes:
        evidence = _evidence(said)
        violated = f", {said.violations_before:,} of which did not" if not case.by_step else ""
        text = (
            f"the clocks of {len(solved)} of {total} {what} were aligned by {evidence}{violated}; "
            f"times of different {what} are uncertain by up to ±{units.duration(said.error_ns)}"
        )
        notices.append(Notice("clocks-aligned", text))
        if said.drift_ppm:
            host, ppm = max(said.drift_ppm.items(), key=lambda item: abs(item[1]))
            text = f"clocks drift: that of {host} was corrected by {ppm:+.3g} parts per million"
            notices.append(Notice("clocks-drift", text))
    conflicts = [group for group in groups if isinstance(group.found, Conflict)]
    if conflicts:
        notices.append(_refusal(conflicts))
    connected_clocks = {int(clock) for group in groups for clock in group.clocks}
    alone = total - len(connected_clocks)
    if said.groups + alone > 1:
        text = (
            f"{said.groups + alone} groups of {what} exchange nothing with each other: between them "
            "times are only as good as their synchronisation"
        )
        notices.append(Notice("clocks-disconnected", text))
    return notices


def _agreement(case: _Case, said: ClockReport) -> list[Notice]:
    """Say that clocks were looked at and agree with what happened, if they do: no cause for worry."""
    if said.method != "checked":
        return []
    text = (
        f"the clocks of {len(set(case.clock_of.values()))} hosts agree with {_evidence(said)} and were "
        "left as they are; times of different hosts are uncertain by up to "
        f"±{units.duration(said.error_ns)}"
    )
    return [Notice("clocks-checked", text)]


def _evidence(said: ClockReport) -> str:
    return f"{said.constraints:,} pairs of tasks of which one must come before the other"


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
        f"no clock is right for what happened{where}, so the times are as they were: {pairs} "
        f"contradict by {units.duration(worst.found.excess_ns)}",
        len(conflicts),
    )
