"""Everything that is worked out about a run in parts, before it is shown.

It is what `bubblescope.analysis.study`, the report and `why` make of a run as a whole, to the
nanosecond: the same functions look at each part, told what the others found, and what they return adds
up in any order. At any time a part is in memory, and what the looks return: sums, and tables of a row
for each rank and step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

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
from bubblescope.analysis.phase import StepFacts, pipelines, step_facts, together
from bubblescope.analysis.pieces import looks
from bubblescope.analysis.pieces.given import here
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
    from collections.abc import Callable, Iterable, Sequence

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
        losses: As `bubblescope.analysis.losses.losses` returns it.
        shares: As `bubblescope.analysis.idle.shares.shares` returns it; None without a ledger.
        evidence: What shows all causes; None without a ledger.
        gaps: The longest gaps, as `bubblescope.analysis.idle.longest_gaps.longest` returns them;
            likewise.
        gap_count: How many there are.
        kept: What was kept of each part; None if nobody asked for that.
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
    kept: list[Any] | None = None


def study_of(
    pieces: Pieces,
    run: Runs = here,
    *,
    also: Sequence[Plan] = (),
    explained: bool = True,
    keeping: Callable[[Overview], looks.Keeps] | None = None,
) -> Found:
    """Look at a run part by part.

    Args:
        pieces: The run.
        run: What runs the looks, each at one part: `Engine.run`, or this process.
        also: Schedules to try besides the known ones.
        explained: Whether causes are asked for what they cost as well, which `why` says and the report
            does not.
        keeping: Returns what is to keep what is worked out of each part, given how much there is of
            the run; None if nothing is kept.

    Raises:
        Whatever an engine or a part raises.
    """
    return _Looking(pieces, run, also).found(explained=explained, keeping=keeping)


class _Looking:
    """The looks at a run, one after the other; what is known of it grows.

    Args:
        pieces, run, also: As of `study_of`.
    """

    def __init__(self, pieces: Pieces, run: Runs, also: Sequence[Plan]) -> None:
        self._pieces = pieces
        self._run = run
        self._also = also
        self._told: looks.Told = {}

    def found(
        self, *, explained: bool, keeping: Callable[[Overview], looks.Keeps] | None = None
    ) -> Found:
        """Look until all is known."""
        pieces = self._pieces
        first = self._look(looks.first)
        overview = Overview.joined([one.overview for one in first])
        lengths = Kinds.joined([one.kinds for one in first])
        windows = closed(pl.concat([one.edges for one in first]))
        starts = pl.concat([one.starts for one in first]).sort("rank", "step")
        self._told[step_facts] = facts = StepFacts.joined([one.facts for one in first])
        self._told[seen] = Seen.joined([one.seen for one in first])
        self._told[names_of] = Names.joined([one.names for one in first])
        self._told[pipelines] = self._pipelines(facts)
        spent = Spent.joined([one.spent for one in first])
        timeline = told(
            Timeline(pl.DataFrame(schema=TASK_SCHEMA), pieces.ranks, pieces.run), self._told
        )

        choice = self._choice(facts)
        middles = lengths.middles()
        second = self._look(looks.second, (choice, middles))
        self._told[rounds] = Rounds.joined([one.rounds for one in second])
        kinds = lengths.with_medians([one.near for one in second])
        rates = pl.concat([one.rates for one in second]).sort("step", "rank")
        follow = [one.followed for one in second if one.followed is not None]
        whole = Followed.joined(follow) if follow else None
        recognition = None
        if choice is not None and whole is not None:
            recognition = followed(timeline, choice, whole)

        typical = self._typical()
        known, done = None, None
        if choice is not None or pieces.run.common_clock:
            compared = rates.filter(pl.col("step").is_in(facts.compared, nulls_equal=True))
            spans = compared.select(
                "rank", "step", "pipeline", start_ns="closed_start_ns", end_ns="closed_end_ns"
            )
            still = still_before(spans)
            third = self._look(looks.third, (choice, whole, still))
            did = [one.done for one in third if one.done is not None]
            done = Done.joined(did) if did else None
            ways = [one.ways for one in third if one.ways is not None]
            if ways and typical is not None:
                known = Known(still, Ways.joined(ways), typical)
        pipelined = known is not None and (
            recognition.devices > 1
            if recognition is not None
            else "kind" not in pieces.run.inferred
        )
        more = looks.Replayed(choice, whole, done, known, pipelined)
        keeps = keeping and keeping(overview)
        fourth = self._look(looks.fourth, more._replace(keeps=keeps))
        best = _ideal([one.ideal for one in fourth if one.ideal is not None])
        bubbles = rates_of(rates, timeline, *((best.steps, best.own) if best else ()))
        entries = [one.entries for one in fourth if one.entries is not None]
        ledger = None
        if entries and typical is not None:
            ledger = Ledger.of(Entries.joined(entries), typical)
        study = Study(recognition, best, bubbles, ledger, pipelined and ledger is not None)
        found = Found(
            drawn=self._drawn(overview),
            overview=overview,
            to_next=nexts(windows),
            kinds=kinds,
            study=study,
            budget=budget_of(spent, pieces.run),
            wall=None if spent.by_step.height else self._wall(ledger, facts, starts),
            losses=losses_of(Lost.joined([one.lost for one in fourth])),
            shares=None,
            evidence=None,
            gaps=None,
            kept=[one.kept for one in fourth] if keeps is not None else None,
        )
        if ledger is None:
            return found
        lasting = Lasting.joined([one.lasting for one in fourth if one.lasting is not None])
        return found._replace(
            shares=self._shares(ledger, lasting, more) if explained else None,
            evidence=Evidence.joined([one.evidence for one in fourth if one.evidence is not None]),
            gaps=longest_gaps.joined(one.gaps for one in fourth if one.gaps is not None),
            gap_count=sum(one.gap_count for one in fourth),
        )

    def _look(
        self, look: Callable[[looks.OfPart], Any], more: Any = None, at: Iterable[int] | None = None
    ) -> list[Any]:
        """Look at each part, or at some, and return what comes of it, by part."""
        parts = range(len(self._pieces.parts)) if at is None else at
        return self._done(look, [self._part(index, more) for index in parts])

    def _done(self, look: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
        found = [None] * len(jobs)
        for index, made in self._run(look, jobs):
            found[index] = made
        return found

    def _part(self, index: int, more: Any = None) -> looks.OfPart:
        return looks.OfPart(self._pieces, index, self._told, more)

    def _at(self, step: int | None) -> int:
        """Return the part that has a step."""
        parts = enumerate(self._pieces.parts)
        return next(index for index, steps in parts if step in steps or not steps)

    def _pipelines(self, facts: StepFacts) -> pl.DataFrame:
        step = facts.overlapping
        if step is None:
            return together(facts.ranks)
        [found] = self._look(looks.split, step[0], [self._at(step[0])])
        return pl.DataFrame(found)

    def _choice(self, facts: StepFacts) -> Choice | None:
        steps = telling_steps(facts, self._told[seen].passes)
        wanted: dict[int, list[int]] | None = None
        if steps is not None:
            wanted = {}
            for step in steps:
                wanted.setdefault(self._at(step), []).append(step)
        job = looks.Telling(self._pieces, self._told, wanted, self._also)
        [choice] = self._done(looks.chosen, [job])
        return choice  # type: ignore[no-any-return]

    def _drawn(self, overview: Overview) -> Timeline:
        pieces = self._pieces
        step = overview.typical(common_clock=pieces.run.common_clock)
        tasks = [pl.DataFrame(schema=TASK_SCHEMA)]
        if step is not None:
            ranks = evenly(overview.order(pieces.ranks), DRAWN)["rank"].to_list()
            more = looks.Drawn(ranks, step["start_ns"], step["end_ns"])
            tasks = self._look(looks.drawn, more, [self._at(step["step"])])
        return told(Timeline(tasks[0], pieces.ranks, pieces.run), self._told)

    def _typical(self) -> Typical | None:
        found = self._look(looks.along, at=range(self._pieces.batches))
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
        phases = pipeline_phases(ledger.phases, ledger.between, self._told[pipelines])
        jobs = []
        for index, held in enumerate(self._pieces.parts):
            own = steps.filter(pl.col("step").is_in(held))
            if own.height:
                low, high = own.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
                near = phases.filter(pl.col("end_ns") > low, pl.col("start_ns") < high)
                jobs.append(self._part(index, looks.Spans(near, own)))
        table = pl.concat(self._done(looks.whole, jobs))
        table = table.group_by("rank", "what").agg(pl.col("spent_ns", "phase_ns").sum())
        return WallClock(steps, table)

    def _shares(self, ledger: Ledger, lasting: Lasting, more: looks.Replayed) -> Shares:
        steps = lasting.telling(ledger.present)
        parts = sorted({self._at(step) for step in steps})
        found = self._look(looks.sets, (more, steps, ledger.present), parts)
        return shares_of(lasting, Sets.joined(found))


def _ideal(parts: Sequence[tuple[pl.DataFrame, pl.DataFrame, int]]) -> Ideal | None:
    """Return the ideal of a run, given those of its parts."""
    if not parts:
        return None
    steps, own, imputed = zip(*parts, strict=True)
    return Ideal(pl.concat(steps).sort("step"), pl.concat(own), sum(imputed), None)
