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

from bubblescope.clocks.bounded_clocks import Group, clocks_of, extent_of, groups_of
from bubblescope.clocks.certificate import (
    Case,
    agreement,
    is_whole,
    notices_of,
    ranks_of,
    report,
    unmatched,
)
from bubblescope.clocks.moved_times import corrected, moved_table, moved_tasks
from bubblescope.clocks.solution import Clocks, Conflict
from bubblescope.clocks.tightest_pairs import Evidence
from bubblescope.model import units
from bubblescope.model.provenance import Notice
from bubblescope.model.timeline import Timeline
from bubblescope.model.timeline_tables import TABLES

if TYPE_CHECKING:
    import polars as pl

    from bubblescope.clocks.bounded_clocks import ClocksOf
    from bubblescope.model.provenance import Run

_SETTLED: Final = frozenset({"no-common-clock", "clocks-unchecked"})


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
    groups: list[Group]

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
            name: moved_table(frame, TABLES[name], self.clock_of, self.groups)
            for name, frame in timeline.tables.items()
        }
        tasks = moved_tasks(timeline.tasks, self.clock_of, self.groups)
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
        return frame.with_columns(corrected(frame, names, self.clock_of, self.groups))

    def moved_table(self, frame: pl.DataFrame, name: str) -> pl.DataFrame:
        """Return rows of a table of the run, as `TABLES` names it, with corrected times."""
        if not self.groups:
            return frame
        return moved_table(frame, TABLES[name], self.clock_of, self.groups)


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
    groups, loose = groups_of(pairs, None if clocks.by_step else extent_of(told.extent, clocks))
    solved = [group for group in groups if isinstance(group.found, Clocks)]
    case = Case(ranks, run, told, clocks, pairs, groups, loose, changes=changes)
    said = report(case, before)
    whole = is_whole(case)
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
        warnings=(*kept, *notices_of(case, said)),
        notes=(*run.notes, *agreement(case, said)),
    )
    return Correction(ranks_of(case), known, clocks.of, solved if changes else [])


CORRECTION: Final[tuple[type, ...]] = (Correction, Group, Clocks, Conflict)
"""What a correction is made of, besides what is known of the run."""


def _unconnected(run: Run, clocks: ClocksOf, told: Evidence) -> Run:
    """Say that nothing tells how the clocks differ, if nobody has said so yet."""
    if any(one.code in {*_SETTLED, "clocks-disconnected"} for one in run.warnings):
        return run
    number, what = clocks.number, clocks.what
    if told.meet.height:
        return run.warned(unmatched(what))
    text = (
        f"nothing in the traces shows how the clocks of {number} {what} differ: no task on one is "
        f"known to precede a task on another; between {what}, times are only as good as their "
        "synchronisation"
    )
    return run.warned(Notice("clocks-disconnected", text))


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
