"""Everything that is worked out about a run in parts, before it is shown.

It is what `bubblescope.analysis.study`, the report and `why` make of a run as a whole, to the
nanosecond: the same functions look at each part, told what the others found, and what they return adds
up in any order. That is put together where parts are looked at: there a part is in memory at any time,
or tables of a row for each rank and step. Who asks holds names of these, and in the end an answer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import polars as pl

from bubblescope.analysis.between_rounds import Rounds, rounds
from bubblescope.analysis.device_budget import Budget, Spent, budget_of
from bubblescope.analysis.idle import longest_gaps
from bubblescope.analysis.idle.evidence import Evidence
from bubblescope.analysis.idle.ledger import Entries, Ledger
from bubblescope.analysis.idle.shares import Lasting, Sets, Shares, shares_of
from bubblescope.analysis.idle.task_lengths import Medians, Typical
from bubblescope.analysis.idle.whole_run_facts import Known, Ways, still_before
from bubblescope.analysis.losses import Losses, Lost, losses_of
from bubblescope.analysis.outside_passes import Names, names_of
from bubblescope.analysis.overview import Kinds, Overview, evenly
from bubblescope.analysis.pieces import scans
from bubblescope.analysis.pieces.measures import Alone, Measured
from bubblescope.analysis.pieces.run_in_pieces import here
from bubblescope.analysis.pieces.scanning import Looking
from bubblescope.analysis.pipeline_phase import StepFacts, pipelines, step_facts
from bubblescope.analysis.rates import rates_of
from bubblescope.analysis.schedule.ideal import Done, Ideal, no_ideal
from bubblescope.analysis.schedule.observe import Seen, seen, stages_held
from bubblescope.analysis.schedule.recognise import Followed, followed, telling_steps
from bubblescope.analysis.step_lengths import closed, nexts
from bubblescope.analysis.study import Study, may_be_pipeline
from bubblescope.analysis.wall_clock import WallClock, pipeline_phases, whole_steps
from bubblescope.engine.remote_results import Held
from bubblescope.model.cached_results import told
from bubblescope.model.timeline import TASK_SCHEMA, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bubblescope.analysis.idle.causes import Cause
    from bubblescope.analysis.pieces.measures import Stored
    from bubblescope.analysis.pieces.run_in_pieces import Pieces, Runs
    from bubblescope.analysis.schedule.recognise import Choice, Recognition
    from bubblescope.schedules.plan import Plan

Answer = TypeVar("Answer")

_LEAST: Final = 3
"""Parts of a run that are replayed at least: its beginning, middle and end."""
_MANY_TIMES: Final = 3
"""How many times the tasks that are to be replayed a run has, for it not to be replayed as a whole."""
_TOGETHER: Final = 3
"""Batches of ranks that are looked at together over all steps: of few columns, a part is less."""

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
        keeper: What kept something of each part; None if nobody asked for that.
        kept: What it kept of each; None for each if there is none.
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
    keeper: Any = None
    kept: Sequence[Any] = ()


def _itself(found: Found) -> Any:
    return found


def study_of(
    pieces: Pieces | Held[Pieces],
    run: Runs = here,
    *,
    folder: Path | None = None,
    also: Sequence[Plan] = (),
    explained: bool = True,
    replayed: int | None = None,
    only: Sequence[int] | None = None,
    keeping: Callable[[Pieces, Overview], scans.Keeps] | None = None,
    measures: Stored | None = None,
    then: Callable[[Found], Answer] = _itself,
) -> Answer:
    """Look at a run part by part.

    Args:
        pieces: The run.
        run: What runs the looks, each at one part: `Engine.run`, or this process.
        folder: Where those who run looks hold what comes of them; None if it is sent back and forth.
        also: Schedules to try besides the known ones.
        explained: Whether causes are asked for what shows them and what they cost as well, which `why`
            says and the report does not.
        replayed: Of how many tasks whole steps are replayed, about, evenly from the first to the last,
            where the run has several times as many; all if None. What replays tell is then of these
            steps (`bubblescope.analysis.rates.BubbleRates.replayed`). Where parts are kept, that with
            the step which is drawn is one of them.
        only: The parts that are replayed, instead; nothing is kept of the others.
        keeping: Returns what is to keep what is worked out of each part, given the run and how much
            there is of it; it is asked where looks are taken. None if nothing is kept. Parts that are
            not replayed are kept as they are.
        measures: What was measured of all of its steps before, by `measure`; None if nothing was.
        then: What is wanted of it, worked out where looks are taken; all of it by default.

    Raises:
        Whatever an engine, a part or `then` raises.
    """
    study = _Study(pieces, run, folder, None if also else measures)
    return study.answered(also, keeping, then, explained=explained, replayed=replayed, only=only)


def measure(
    pieces: Pieces | Held[Pieces], run: Runs, measures: Stored, *, folder: Path | None = None
) -> None:
    """Measure all steps of a run part by part, so that `study_of` need look at those it replays only.

    Args:
        pieces: As of `study_of`; likewise the others.
        run: Likewise.
        measures: Where to; nothing is done if they are there.
        folder: Likewise.

    Raises:
        Whatever an engine, a part or the place raises.
    """
    _Study(pieces, run, folder, measures).measure()


class _Replaying(NamedTuple):
    """Which parts are replayed.

    Attributes:
        tasks: As `replayed` of `study_of`; None for all.
        only: As of `study_of`.
        drawn: Whether that with the step that is drawn is among them.
    """

    tasks: int | None = None
    only: Sequence[int] | None = None
    drawn: bool = False


class _Asked(NamedTuple):
    """What of it says where to look next.

    Attributes:
        telling: Steps to choose a plan by; None for all.
        middles: Sizes of tasks among which medians are.
        budgeted: Whether devices tell what they spent time on, by step.
        sampled: The parts that are replayed; None for all.
    """

    telling: list[int] | None
    middles: Any
    budgeted: bool
    sampled: list[int] | None


class _Rated(NamedTuple):
    """What is known once parts were told which plan they may follow; each held by itself.

    Attributes:
        rates: What is measured of each rank and step.
        kinds: As of `Found`.
        whole: How all parts follow the plan.
        recognition: As of `Study`.
    """

    rates: Any
    kinds: Any
    whole: Any
    recognition: Any


class _Replays(NamedTuple):
    """What replays told, and looks after them; each held by itself.

    Attributes:
        fourth: Of each part.
        ledger, ideal: As of `Study`.
        drawn: The tasks that are drawn, if any.
        spans: When steps were that are whole; None without any.
        whole: What ranks were in then, by part.
        sets: What replays with sets of causes told.
        unexplained: What was kept of parts that were not replayed.
    """

    fourth: Any
    ledger: Any
    ideal: Any
    drawn: Any
    spans: Any
    whole: Any
    sets: Any
    unexplained: Any


class _Study(Looking):
    """The looks that `study_of` takes."""

    def __init__(
        self,
        pieces: Pieces | Held[Pieces],
        run: Runs,
        folder: Path | None,
        measures: Stored | None,
    ) -> None:
        super().__init__(pieces, run, folder)
        self._measures = measures

    def measure(self) -> None:
        """Measure all steps; see `measure`."""
        if self.ask(_is_measured, self._measures):
            return
        self.told, alone = self.put(_alone, self.pieces, self.look(scans.first))
        asked: _Asked = self.ask(_asked, self.pieces, self.told, alone, _Replaying())
        self.tell_pipelines()
        _, rated = self._rated(alone, asked, ())
        whole = None
        if not asked.budgeted:
            [spans] = self.put(_spans, self.pieces, self.told, alone, rated.rates)
            whole = None if spans.nothing else self.look(scans.whole, spans)
        self.ask(_measured, self._measures, self.told, alone, rated, whole)

    def _rated(
        self, alone: Held[Alone], asked: _Asked, also: Sequence[Plan]
    ) -> tuple[Held[Choice | None], _Rated]:
        """Look at how parts follow a plan, and measure them."""
        choice = self._choice(asked.telling, also)
        second = self.look(scans.second, (choice, asked.middles))
        self.told, *made = self.put(_rated, self.pieces, self.told, alone, choice, second)
        return choice, _Rated(*made)

    def answered(
        self,
        also: Sequence[Plan],
        keeping: Callable[[Pieces, Overview], scans.Keeps] | None,
        then: Callable[[Found], Answer],
        *,
        explained: bool,
        replayed: int | None,
        only: Sequence[int] | None,
    ) -> Answer:
        """Look until all is known; see `study_of`."""
        kept = keeping is not None and only is None
        replaying = _Replaying(replayed, only, drawn=kept)
        known, alone, measured, wall = self.put(_measured_before, self.pieces, self._measures)
        if not measured.nothing:
            self.told = known
            asked: _Asked = self.ask(_asked, self.pieces, self.told, alone, replaying)
            self.make_ready(None if kept else asked.sampled)
            choice = self._choice(asked.telling, also)
            self.told, *made = self.put(_rated_before, self.pieces, self.told, choice, measured)
            rated = _Rated(*made)
        else:
            self.told, alone = self.put(_alone, self.pieces, self.look(scans.first))
            asked = self.ask(_asked, self.pieces, self.told, alone, replaying)
            self.tell_pipelines()
            choice, rated = self._rated(alone, asked, also)
        more = self._replayed(choice, rated, asked.sampled, explained=explained)
        if keeping is not None:
            keeps: Any
            [keeps] = self.put(partial(_keeper, keeping), self.pieces, alone)
            more = more._replace(keeps=keeps)
        before = None if wall.nothing else [wall]
        others: list[int] = []
        if kept and asked.sampled is not None:
            others = sorted({*range(len(self.parts))} - {*asked.sampled})
        found = self._looked_at(alone, asked, rated, more, before, others)
        given = (
            self.pieces,
            self.told,
            alone,
            asked.sampled,
            rated,
            found,
            more.keeps,
            more.pipelined,
            explained,
        )
        return self.ask(partial(_concluded, then), *given)  # type: ignore[no-any-return]

    def _choice(self, telling: Sequence[int] | None, also: Sequence[Plan]) -> Any:
        wanted: dict[int, list[int]] | None = None
        if telling is not None:
            wanted = {}
            for step in telling:
                wanted.setdefault(self.at(step), []).append(step)
        [choice] = self.put(scans.chosen, self.pieces, self.told, wanted, also)
        return choice

    def _replayed(
        self, choice: Any, rated: _Rated, sampled: list[int] | None, *, explained: bool
    ) -> scans.Replayed:
        """Return what parts are told for their replays."""
        of = 1.0 if sampled is None else len(sampled) / len(self.parts)
        how = scans.Along(max(1, int(_TOGETHER / of)), sampled)
        [typical] = self.put(_typical, self.look(scans.along, how, how.looks(self.batches)))
        known: Any = Held()
        done: Any = Held()
        if not choice.nothing or self.ask(_on_one_clock, self.pieces):
            [still] = self.put(_still, self.told, rated.rates)
            third = self.look(scans.third, (choice, rated.whole, still), sampled)
            known, done = self.put(_known, third, still, typical)
        pipelined = self.ask(_pipelined, self.pieces, known, rated.recognition)
        return scans.Replayed(choice, rated.whole, done, known, pipelined, explained)

    def _looked_at(
        self,
        alone: Held[Alone],
        asked: _Asked,
        rated: _Rated,
        more: scans.Replayed,
        before: list[Held[pl.DataFrame | None]] | None,
        others: Sequence[int],
    ) -> _Replays:
        """Replay parts, and look at what that shows.

        Args:
            alone: What parts tell by themselves.
            asked: What of it says where to look.
            rated: What is measured of them.
            more: What they are told for that.
            before: What ranks were in in whole steps, if it was measured before.
            others: Parts that are kept as they are.
        """
        fourth = self.look(scans.fourth, more, asked.sampled)
        ledger, ideal = self.put(_ledger, fourth, more.known)
        drawn: list[Held[pl.DataFrame]] = []
        step = self.ask(_to_draw, self.pieces, self.told, alone, rated.rates, more.pipelined)
        if step is not None:
            drawn = list(self.put(scans.drawn, self.pieces, step))
        spans: Held[Any] = Held()
        whole: list[Held[pl.DataFrame | None]] = []
        if not (ledger.nothing or asked.budgeted):
            [spans] = self.put(_spans, self.pieces, self.told, alone, rated.rates)
            if not spans.nothing:
                whole = self.look(scans.whole, spans) if before is None else before
        parts: list[int] = []
        steps, present = None, None
        if more.explained and not ledger.nothing:
            steps, present = self.ask(_telling, fourth, ledger)
            parts = sorted({self.at(step) for step in steps})
        # Long ones first: so no worker waits for another at the end.
        made = self.look_each(
            [
                *((part, scans.sets, (more, steps, present)) for part in parts),
                *((part, scans.unexplained, (more.keeps, not ledger.nothing)) for part in others),
            ]
        )
        sets, beside = made[: len(parts)], made[len(parts) :]
        return _Replays(fourth, ledger, ideal, drawn, spans, whole, sets, beside)


def _alone(pieces: Pieces, first: Sequence[scans.First]) -> tuple[scans.Told, Alone]:
    """Put together what parts tell by themselves, of which all are told something."""
    numbers = Seen.joined([one.seen for one in first])
    known: scans.Told = {
        step_facts: StepFacts.joined([one.facts for one in first]),
        seen: numbers,
        stages_held: numbers.held(pieces.ranks),
        names_of: Names.joined([one.names for one in first]),
    }
    return known, Alone(
        Overview.joined([one.overview for one in first]),
        Kinds.joined([one.kinds for one in first]),
        closed(pl.concat([one.edges for one in first])),
        pl.concat([one.starts for one in first]).sort("rank", "step"),
        Spent.joined([one.spent for one in first]),
    )


def _is_measured(measures: Stored) -> bool:
    return Measured.found(measures) is not None


def _measured(
    measures: Stored,
    known: scans.Told,
    alone: Alone,
    rated: _Rated,
    whole: Sequence[pl.DataFrame | None] | None,
) -> None:
    """Keep what was measured of all steps."""
    wall = None if whole is None else _of_ranks(whole)
    of = known[step_facts], known[seen], known[names_of], known[pipelines], known[rounds]
    found: Followed | None = rated.whole
    Measured(*of, alone, rated.rates, rated.kinds, found, wall).keep(measures)


def _measured_before(
    pieces: Pieces, measures: Stored | None
) -> tuple[scans.Told | None, Alone | None, Measured | None, pl.DataFrame | None]:
    """Return what was measured before: what parts are told, what they tell alone, all, whole steps."""
    found = None if measures is None else Measured.found(measures)
    if found is None:
        return None, None, None, None
    known: scans.Told = {
        step_facts: found.facts,
        seen: found.numbers,
        stages_held: found.numbers.held(pieces.ranks),
        names_of: found.names,
        pipelines: found.pipelines,
    }
    return known, found.alone, found, found.wall


def _rated_before(
    pieces: Pieces, known: scans.Told, choice: Choice | None, found: Measured
) -> tuple[Any, ...]:
    """Return what `_rated` does, of what was measured before."""
    recognition = None
    if choice is not None and found.followed is not None:
        recognition = followed(_bare(pieces, known), choice, found.followed)
    return (
        {**known, rounds: found.rounds},
        found.rates,
        found.kinds,
        found.followed,
        recognition,
    )


def _asked(
    pieces: Pieces,
    known: scans.Told,
    alone: Alone,
    replaying: _Replaying,
) -> _Asked:
    overview = alone.overview
    step = overview.typical(common_clock=pieces.run.common_clock, of_devices=False)
    sampled = None if replaying.only is None else [*replaying.only]
    if replaying.tasks is not None:
        sampled = _sampled(pieces, known, overview.tasks, replaying.tasks)
        if sampled is not None and replaying.drawn and step is not None:
            drawn = next(at for at, steps in enumerate(pieces.parts) if step["step"] in steps)
            sampled = sorted({*sampled, drawn})
    return _Asked(
        telling_steps(known[step_facts], known[seen].passes),
        alone.lengths.middles(),
        bool(alone.spent.by_step.height),
        sampled,
    )


def _to_draw(
    pieces: Pieces, known: scans.Told, alone: Alone, rates: pl.DataFrame, pipelined: bool
) -> scans.Drawn | None:
    """Return what a terminal draws of which step; None without any."""
    step = alone.overview.typical(
        common_clock=pieces.run.common_clock,
        of_devices=not pipelined and bool(alone.spent.by_step.height),
        among=rates_of(rates, _bare(pieces, known)).rated,
    )
    if step is None:
        return None
    ranks = evenly(alone.overview.order(pieces.ranks), DRAWN)["rank"].to_list()
    return scans.Drawn(ranks, step["start_ns"], step["end_ns"])


def _sampled(pieces: Pieces, known: scans.Told, tasks: int, replayed: int) -> list[int] | None:
    """Return parts of about so many of a run's tasks in all, evenly over the run; None for all.

    Only parts that have steps which are compared across ranks tell anything.
    """
    compared = {*known[step_facts].compared}
    parts = [index for index, steps in enumerate(pieces.parts) if compared & {*steps}]
    count = max(_LEAST, replayed * len(pieces.parts) // max(1, tasks))
    if tasks < _MANY_TIMES * replayed or count >= len(parts):
        return None
    return [parts[(2 * at + 1) * len(parts) // (2 * count)] for at in range(count)]


def _keeper(
    keeping: Callable[[Pieces, Overview], scans.Keeps], pieces: Pieces, alone: Alone
) -> tuple[scans.Keeps]:
    return (keeping(pieces, alone.overview),)


def _bare(pieces: Pieces, known: scans.Told) -> Timeline:
    """Return a run without tasks, told of the whole."""
    return told(Timeline(pl.DataFrame(schema=TASK_SCHEMA), pieces.ranks, pieces.run), known)


def _rated(
    pieces: Pieces,
    known: scans.Told,
    alone: Alone,
    choice: Choice | None,
    second: Sequence[scans.Second],
) -> tuple[Any, ...]:
    """Return what parts are told now, and what `_Rated` is of."""
    follow = [one.followed for one in second if one.followed is not None]
    whole = Followed.joined(follow) if follow else None
    recognition = None
    if choice is not None and whole is not None:
        recognition = followed(_bare(pieces, known), choice, whole)
    return (
        {**known, rounds: Rounds.joined([one.rounds for one in second])},
        pl.concat([one.rates for one in second]).sort("step", "rank"),
        alone.lengths.with_medians([one.near for one in second]),
        whole,
        recognition,
    )


def _typical(along: Sequence[Medians | None]) -> tuple[Typical | None]:
    medians = [one for one in along if one is not None]
    return (Typical.of(Medians.joined(medians)) if medians else None,)


def _on_one_clock(pieces: Pieces) -> bool:
    return pieces.run.common_clock


def _still(known: scans.Told, rates: pl.DataFrame) -> tuple[Any]:
    """Return which ranks were in the step before while others began one."""
    steps = known[step_facts].compared
    spans = rates.filter(pl.col("step").is_in(steps, nulls_equal=True)).select(
        "rank", "step", "pipeline", start_ns="closed_start_ns", end_ns="closed_end_ns"
    )
    return (still_before(spans),)


def _known(
    third: Sequence[scans.Third], still: Any, typical: Typical | None
) -> tuple[Known | None, Done | None]:
    """Return what steps tell each other, and what was ever done."""
    did = [one.done for one in third if one.done is not None]
    ways = [one.ways for one in third if one.ways is not None]
    known = Known(still, Ways.joined(ways), typical) if ways and typical is not None else None
    return known, Done.joined(did) if did else None


def _pipelined(pieces: Pieces, known: Known | None, recognition: Recognition | None) -> bool:
    """Say whether a run may be a pipeline."""
    return known is not None and may_be_pipeline(pieces.run, recognition)


def _ledger(
    fourth: Sequence[scans.Fourth], known: Known | None
) -> tuple[Ledger | None, Ideal | None]:
    """Return the ledger and the ideal of a run, given what replays of its parts told."""
    entries = [one.entries for one in fourth if one.entries is not None]
    ideals = [one.ideal for one in fourth if one.ideal is not None]
    ledger = None
    if entries and known is not None:
        ledger = Ledger.of(Entries.joined(entries), known.typical)
    if not ideals:
        return ledger, None
    steps, own, imputed = zip(*ideals, strict=True)
    return ledger, Ideal(pl.concat(steps).sort("step"), pl.concat(own), sum(imputed), None)


def _spans(
    pieces: Pieces, known: scans.Told, alone: Alone, rates: pl.DataFrame
) -> tuple[scans.Spans | None]:
    """Return when steps were that are whole, and pipeline phases; None without any such."""
    steps = whole_steps(alone.starts, pieces.run.resumed)
    steps = steps.filter(~pl.col("step").is_in(known[step_facts].cut))
    if not steps.height:
        return (None,)
    compared = rates.filter(pl.col("step").is_in(known[step_facts].compared, nulls_equal=True))
    edges = pl.col("closed_start_ns").min(), pl.col("closed_end_ns").max()
    whole = (
        compared.group_by("step", "pipeline")
        .agg(*edges)
        .rename({"closed_start_ns": "start_ns", "closed_end_ns": "end_ns"})
    )
    phases = pipeline_phases(whole, known[rounds].between, known[pipelines])
    return (scans.Spans(phases, steps),)


def _telling(
    fourth: Sequence[scans.Fourth], ledger: Ledger
) -> tuple[list[int | None], Sequence[Cause]]:
    """Return the steps that are replayed with sets of causes, and the causes."""
    return _lasting(fourth).telling(ledger.present), ledger.present


def _lasting(fourth: Sequence[scans.Fourth]) -> Lasting:
    return Lasting.joined([one.lasting for one in fourth if one.lasting is not None])


def _concluded(
    then: Callable[[Found], Answer],
    pieces: Pieces,
    known: scans.Told,
    alone: Alone,
    sampled: Sequence[int] | None,
    rated: _Rated,
    found: _Replays,
    keeper: scans.Keeps | None,
    pipelined: bool,
    explained: bool,
) -> Answer:
    """Put together what was found, and work out what is wanted of it."""
    bare = _bare(pieces, known)
    fourth, ledger, ideal = found.fourth, found.ledger, found.ideal
    played = None
    if sampled is not None:
        played = sorted({step for index in sampled for step in pieces.parts[index]})
    best = (ideal.steps, ideal.own) if ideal else (None, None)
    why = no_ideal(rated.recognition)
    bubbles = rates_of(rated.rates, bare, *best, replayed=played, no_ideal=why)
    study = Study(rated.recognition, ideal, bubbles, ledger, pipelined and ledger is not None)
    drawn = bare
    if found.drawn:
        drawn = told(Timeline(found.drawn[0], pieces.ranks, pieces.run), known)
    lost = [one.lost for one in fourth if one.lost is not None]
    every = Found(
        drawn=drawn,
        overview=alone.overview,
        to_next=nexts(alone.windows),
        kinds=rated.kinds,
        study=study,
        budget=budget_of(alone.spent, pieces.run),
        wall=_wall(found),
        losses=losses_of(Lost.joined(lost)) if lost else None,
        shares=None,
        evidence=None,
        gaps=None,
        keeper=keeper,
        kept=_in_order([one.kept for one in fourth], sampled, found.unexplained),
    )
    if explained and ledger is not None:
        shown = [one.evidence for one in fourth if one.evidence is not None]
        every = every._replace(
            shares=shares_of(_lasting(fourth), Sets.joined(found.sets)),
            evidence=Evidence.joined(shown),
            gaps=longest_gaps.joined(one.gaps for one in fourth if one.gaps is not None),
            gap_count=sum(one.gap_count for one in fourth),
        )
    return then(every)


def _in_order(
    kept: Sequence[Any], sampled: Sequence[int] | None, beside: Sequence[Any]
) -> list[Any]:
    """Return what was kept of parts in their order: of those that were replayed, and of the others."""
    if sampled is None or not beside:
        return [*kept]
    of_part = dict(zip(sampled, kept, strict=True))
    others = iter(beside)
    return [of_part[at] if at in of_part else next(others) for at in range(len(kept) + len(beside))]


def _wall(found: _Replays) -> WallClock | None:
    if found.spans is None:
        return None
    return WallClock(found.spans.steps, _of_ranks(found.whole))


def _of_ranks(whole: Sequence[pl.DataFrame | None]) -> pl.DataFrame:
    """Return what ranks were in in the whole steps of several parts."""
    table = pl.concat([one for one in whole if one is not None])
    return table.group_by("rank", "what").agg(pl.col("spent_ns", "phase_ns").sum())
