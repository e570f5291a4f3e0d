"""Everything that is worked out about a run in parts, before it is shown.

It is what `bubblescope.analysis.study`, the report and `why` make of a run as a whole, to the
nanosecond: the same functions look at each part, told what the others found, and what they return adds
up in any order. At any time a part is in memory, and what the looks return: sums, and tables of a row
for each rank and step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from bubblescope.analysis.beside import Names, names_of
from bubblescope.analysis.between_rounds import Rounds, rounds
from bubblescope.analysis.device_budget import Budget, Spent, budget_of
from bubblescope.analysis.idle import longest_gaps
from bubblescope.analysis.idle.evidence import Evidence
from bubblescope.analysis.idle.known import Known, Ways, still_before
from bubblescope.analysis.idle.ledger import Entries, Ledger
from bubblescope.analysis.idle.shares import Lasting, Sets, Shares, shares_of
from bubblescope.analysis.idle.task_lengths import Medians, Typical
from bubblescope.analysis.losses import Losses, Lost, losses_of
from bubblescope.analysis.overview import Kinds, Overview, evenly
from bubblescope.analysis.phase import StepFacts, pipelines, step_facts
from bubblescope.analysis.pieces import looks
from bubblescope.analysis.pieces.given import here
from bubblescope.analysis.pieces.looking import Looking
from bubblescope.analysis.rates import rates_of
from bubblescope.analysis.schedule.ideal import Done, Ideal
from bubblescope.analysis.schedule.observe import Seen, seen
from bubblescope.analysis.schedule.recognise import Followed, followed, telling_steps
from bubblescope.analysis.step_lengths import closed, nexts
from bubblescope.analysis.study import Study
from bubblescope.analysis.wall_clock import WallClock, pipeline_phases, whole_steps
from bubblescope.model.remembered import told
from bubblescope.model.timeline import TASK_SCHEMA, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bubblescope.analysis.pieces.given import Pieces, Runs
    from bubblescope.analysis.schedule.recognise import Choice
    from bubblescope.schedules.plan import Plan


DRAWN: Final = 16
"""Ranks of which a step is drawn, as many as a terminal shows."""


class Found(NamedTuple):
    """What is known of a run that was looked at in parts.

    Attributes:
        drawn: What is drawn of it: what overlaps the step of median length on some ranks, evenly
            chosen. It has all the ranks, and was told of the whole run.
        overview: How much there is of it.
        to_next: As `bubblescope.analysis.step_lengths.to_next` returns it.
        kinds: As of `bubblescope.analysis.report.Report`.
        study: As `bubblescope.analysis.study.study` returns it.
        budget: As `bubblescope.analysis.device_budget.budget` returns it.
        wall: As `bubblescope.analysis.wall_clock.wall_clock` returns it; its table is without steps.
        losses: As `bubblescope.analysis.losses.losses` returns it; None, as those that follow, where
            causes are not explained.
        shares: As `bubblescope.analysis.idle.shares.shares` returns it; None without a ledger.
        evidence: What shows all causes; None without a ledger.
        gaps: The longest gaps, as `bubblescope.analysis.idle.longest_gaps.longest` returns them;
            likewise.
        gap_count: How many there are.
    """

    drawn: Timeline
    overview: Overview
    to_next: dict[int, int]
    kinds: pl.DataFrame
    study: Study
    budget: Budget | None
    wall: WallClock | None
    losses: Losses | None
    shares: Shares | None
    evidence: Evidence | None
    gaps: pl.DataFrame | None
    gap_count: int = 0


def study_of(
    pieces: Pieces, run: Runs = here, *, also: Sequence[Plan] = (), explained: bool = True
) -> Found:
    """Look at a run part by part.

    Args:
        pieces: The run.
        run: What runs the looks, each at one part: `Engine.run`, or this process.
        also: Schedules to try besides the known ones.
        explained: Whether causes are asked for what shows them and what they cost as well, which `why`
            says and the report does not.

    Raises:
        Whatever an engine or a part raises.
    """
    return _Study(pieces, run, also).found(explained=explained)


class _Alone(NamedTuple):
    """What parts tell by themselves, put together.

    Attributes:
        facts: What whole steps tell.
        overview: How much there is.
        lengths: How long tasks are.
        windows: As `bubblescope.analysis.step_lengths.step_windows` returns them.
        starts: As `bubblescope.analysis.wall_clock.step_starts` returns them.
        spent: What devices spent time on.
    """

    facts: StepFacts
    overview: Overview
    lengths: Kinds
    windows: pl.DataFrame
    starts: pl.DataFrame
    spent: Spent


class _Study(Looking):
    """The looks that `study_of` takes.

    Args:
        pieces, run, also: As of `study_of`.
    """

    def __init__(self, pieces: Pieces, run: Runs, also: Sequence[Plan]) -> None:
        super().__init__(pieces, run)
        self._also = also

    def found(self, *, explained: bool) -> Found:
        """Look until all is known.

        What parts tell is large; it is put together by methods of their own, which let go of it.
        """
        pieces = self.pieces
        alone = self._alone()
        facts = alone.facts
        timeline = told(
            Timeline(pl.DataFrame(schema=TASK_SCHEMA), pieces.ranks, pieces.run), self.told
        )
        choice = self._choice(facts)
        rates, kinds, whole = self._rated(choice, alone.lengths)
        recognition = None
        if choice is not None and whole is not None:
            recognition = followed(timeline, choice, whole)
        typical, known, done = self._typical(), None, None
        if choice is not None or pieces.run.common_clock:
            compared = rates.filter(pl.col("step").is_in(facts.compared, nulls_equal=True))
            known, done = self._known(choice, whole, compared, typical)
        pipelined = known is not None and (
            recognition.devices > 1
            if recognition is not None
            else "kind" not in pieces.run.inferred
        )
        more = looks.Replayed(choice, whole, done, known, pipelined, explained)
        entries, best, fourth = self._replayed(more)
        bubbles = rates_of(rates, timeline, *((best.steps, best.own) if best else ()))
        ledger = None
        if entries is not None and typical is not None:
            ledger = Ledger.of(entries, typical)
        lost = [one.lost for one in fourth if one.lost is not None]
        found = Found(
            drawn=self._drawn(alone.overview),
            overview=alone.overview,
            to_next=nexts(alone.windows),
            kinds=kinds,
            study=Study(recognition, best, bubbles, ledger, pipelined and ledger is not None),
            budget=budget_of(alone.spent, pieces.run),
            wall=None if alone.spent.by_step.height else self._wall(ledger, facts, alone.starts),
            losses=losses_of(Lost.joined(lost)) if lost else None,
            shares=None,
            evidence=None,
            gaps=None,
        )
        if ledger is None or not explained:
            return found
        lasting = Lasting.joined([one.lasting for one in fourth if one.lasting is not None])
        return found._replace(
            shares=self._shares(ledger, lasting, more),
            evidence=Evidence.joined([one.evidence for one in fourth if one.evidence is not None]),
            gaps=longest_gaps.joined(one.gaps for one in fourth if one.gaps is not None),
            gap_count=sum(one.gap_count for one in fourth),
        )

    def _alone(self) -> _Alone:
        """Put together what parts tell by themselves, of which all are told something."""
        first = self.look(looks.first)
        facts = StepFacts.joined([one.facts for one in first])
        self.told[step_facts] = facts
        self.told[seen] = Seen.joined([one.seen for one in first])
        self.told[names_of] = Names.joined([one.names for one in first])
        self.told[pipelines] = self.pipelines(facts)
        return _Alone(
            facts,
            Overview.joined([one.overview for one in first]),
            Kinds.joined([one.kinds for one in first]),
            closed(pl.concat([one.edges for one in first])),
            pl.concat([one.starts for one in first]).sort("rank", "step"),
            Spent.joined([one.spent for one in first]),
        )

    def _rated(
        self, choice: Choice | None, lengths: Kinds
    ) -> tuple[pl.DataFrame, pl.DataFrame, Followed | None]:
        """Return what is measured of each rank and step, of each kind, and how all follow a plan."""
        second = self.look(looks.second, (choice, lengths.middles()))
        self.told[rounds] = Rounds.joined([one.rounds for one in second])
        follow = [one.followed for one in second if one.followed is not None]
        return (
            pl.concat([one.rates for one in second]).sort("step", "rank"),
            lengths.with_medians([one.near for one in second]),
            Followed.joined(follow) if follow else None,
        )

    def _known(
        self,
        choice: Choice | None,
        whole: Followed | None,
        compared: pl.DataFrame,
        typical: Typical | None,
    ) -> tuple[Known | None, Done | None]:
        """Return what steps tell each other, and what was ever done; `compared` is of which rates."""
        spans = compared.select(
            "rank", "step", "pipeline", start_ns="closed_start_ns", end_ns="closed_end_ns"
        )
        still = still_before(spans)
        third = self.look(looks.third, (choice, whole, still))
        did = [one.done for one in third if one.done is not None]
        ways = [one.ways for one in third if one.ways is not None]
        known = None
        if ways and typical is not None:
            known = Known(still, Ways.joined(ways), typical)
        return known, Done.joined(did) if did else None

    def _replayed(
        self, more: looks.Replayed
    ) -> tuple[Entries | None, Ideal | None, list[looks.Fourth]]:
        """Return what parts enter into the ledger, the ideal, and what else their replays tell."""
        fourth: list[looks.Fourth] = self.look(looks.fourth, more)
        entries = [one.entries for one in fourth if one.entries is not None]
        best = _ideal([one.ideal for one in fourth if one.ideal is not None])
        joined = Entries.joined(entries) if entries else None
        return joined, best, [one._replace(entries=None, ideal=None) for one in fourth]

    def _choice(self, facts: StepFacts) -> Choice | None:
        steps = telling_steps(facts, self.told[seen].passes)
        wanted: dict[int, list[int]] | None = None
        if steps is not None:
            wanted = {}
            for step in steps:
                wanted.setdefault(self.at(step), []).append(step)
        job = looks.Telling(self.pieces, self.told, wanted, self._also)
        [choice] = self.done(looks.chosen, [job])
        return choice  # type: ignore[no-any-return]

    def _drawn(self, overview: Overview) -> Timeline:
        pieces = self.pieces
        step = overview.typical(common_clock=pieces.run.common_clock)
        tasks = [pl.DataFrame(schema=TASK_SCHEMA)]
        if step is not None:
            ranks = evenly(overview.order(pieces.ranks), DRAWN)["rank"].to_list()
            more = looks.Drawn(ranks, step["start_ns"], step["end_ns"])
            tasks = self.look(looks.drawn, more, [self.at(step["step"])])
        return told(Timeline(tasks[0], pieces.ranks, pieces.run), self.told)

    def _typical(self) -> Typical | None:
        found = self.look(looks.along, at=range(self.pieces.batches))
        medians = [one for one in found if one is not None]
        return Typical.of(Medians.joined(medians)) if medians else None

    def _wall(
        self, ledger: Ledger | None, facts: StepFacts, starts: pl.DataFrame
    ) -> WallClock | None:
        if ledger is None:
            return None
        steps = whole_steps(starts).filter(~pl.col("step").is_in(facts.cut))
        if not steps.height:
            return None
        phases = pipeline_phases(ledger.phases, ledger.between, self.told[pipelines])
        jobs = []
        for index, held in enumerate(self.pieces.parts):
            own = steps.filter(pl.col("step").is_in(held))
            if own.height:
                low, high = own.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
                near = phases.filter(pl.col("end_ns") > low, pl.col("start_ns") < high)
                jobs.append(self.part(index, looks.Spans(near, own)))
        table = pl.concat(self.done(looks.whole, jobs))
        table = table.group_by("rank", "what").agg(pl.col("spent_ns", "phase_ns").sum())
        return WallClock(steps, table)

    def _shares(self, ledger: Ledger, lasting: Lasting, more: looks.Replayed) -> Shares:
        steps = lasting.telling(ledger.present)
        parts = sorted({self.at(step) for step in steps})
        found = self.look(looks.sets, (more, steps, ledger.present), parts)
        return shares_of(lasting, Sets.joined(found))


def _ideal(parts: Sequence[tuple[pl.DataFrame, pl.DataFrame, int]]) -> Ideal | None:
    """Return the ideal of a run, given those of its parts."""
    if not parts:
        return None
    steps, own, imputed = zip(*parts, strict=True)
    return Ideal(pl.concat(steps).sort("step"), pl.concat(own), sum(imputed), None)
