"""What is said of a run's clocks once they were looked at, and how far off they may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from bubblescope.clocks.moved_times import shown_by
from bubblescope.clocks.solution import ROUNDING_NS, Clocks, Conflict, connected
from bubblescope.model import units
from bubblescope.model.clock_errors import UNKNOWN_HOST
from bubblescope.model.provenance import ClockReport, Notice

if TYPE_CHECKING:
    from bubblescope.clocks.bounded_clocks import ClocksOf, Group
    from bubblescope.clocks.tightest_pairs import Evidence
    from bubblescope.model.provenance import Run

_NAMED: Final = 3
"""Clocks, or pairs of moments, that are named."""


class Case(NamedTuple):
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
    groups: list[Group]
    loose: set[int]
    changes: bool


def ranks_of(case: Case) -> pl.DataFrame:
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


def is_whole(case: Case) -> bool:
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


def _comparable(case: Case) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each group of clocks that are on one; each rank is in one group."""
    if case.clocks.by_step and not is_whole(case):
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


def report(case: Case, before: int) -> ClockReport:
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
        shown_by(pairs[clock].to_numpy(), pairs[time].to_numpy(), pairs["step"], moved)
        for clock, time in (("clock_a", "before_ns"), ("clock_b", "after_ns"))
    ]
    slack = shown[1] - shown[0]
    rows = [group.pairs.filter(~pl.col("together"))["row"].to_numpy() for group in solved]
    inside = np.concatenate([np.zeros(0, np.int64), *rows]).astype(np.int64)
    order = inside[np.argsort(slack[inside], kind="stable")[:_NAMED]].tolist()
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


def _violated(case: Case, still: pl.DataFrame) -> int:
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


def notices_of(case: Case, said: ClockReport) -> list[Notice]:
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
        notices.append(unmatched(what))
    elif apart > 1:
        text = (
            f"{apart} groups of {what} exchange nothing with each other: between them times are only "
            "as good as their synchronisation"
        )
        notices.append(Notice("clocks-disconnected", text))
    return notices


def unmatched(what: str) -> Notice:
    """Say that collectives do not show how clocks differ, though there are some."""
    text = (
        f"{what} take part in collectives together, but which ones are the same does not show: rows "
        "are missing between them, recordings share too few, or each could as well be the one before; "
        "so how their clocks differ is not known, and times are only as good as their synchronisation"
    )
    return Notice("clocks-disconnected", text)


def _names(case: Case) -> dict[int, str]:
    """Return the host of each clock, or the rank if it is its own."""
    names: dict[int, str] = {}
    for rank, host in case.ranks.sort("rank").select("rank", "host").iter_rows():
        own = case.clocks.by_step or host == UNKNOWN_HOST
        names.setdefault(case.clocks.of[rank], f"rank {rank}" if own else str(host))
    return names


def _named(case: Case, clocks: set[int]) -> str:
    """Name some clocks."""
    names = _names(case)
    shown = [names[clock] for clock in sorted(clocks)]
    more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return ", ".join(shown[:_NAMED]) + more


def agreement(case: Case, said: ClockReport) -> list[Notice]:
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


def _solved(case: Case) -> set[int]:
    """Return the clocks that what ran bounds."""
    return {
        clock
        for group in case.groups
        if isinstance(group.found, Clocks)
        for clock in group.clocks.tolist()
    }


def _evidence(said: ClockReport) -> str:
    return f"{said.constraints:,} pairs of moments of which one must come before the other"


def _within(case: Case, said: ClockReport) -> str:
    first = case.clocks.what.removesuffix("s")
    return f"each is within ±{units.duration(said.error_ns)} of the first {first}'s"


def _refusal(conflicts: list[Group]) -> Notice:
    """Name the worst contradiction."""

    def excess(group: Group) -> int:
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
