"""What is looked at in each part of a run, look by look: each is told what those before it found.

A look returns little: sums, tables of ranks and steps, and a few tasks that show something. The parts
themselves stay where they are looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from bubblescope.analysis.beside import Names, names_of
from bubblescope.analysis.between_rounds import Rounds, closed, rounds
from bubblescope.analysis.device_budget import Spent
from bubblescope.analysis.idle.causes import ADDED
from bubblescope.analysis.idle.counterfactuals import Counterfactuals
from bubblescope.analysis.idle.evidence import Evidence
from bubblescope.analysis.idle.ledger import Entries, Replays, laid_out
from bubblescope.analysis.idle.longest_gaps import counted, longest
from bubblescope.analysis.idle.measured_run import Linked
from bubblescope.analysis.idle.shares import Lasting, Sets
from bubblescope.analysis.idle.task_lengths import Durations, Medians
from bubblescope.analysis.losses import Lost
from bubblescope.analysis.overview import Kinds, Overview, lengths_near
from bubblescope.analysis.phase import StepFacts, apart, compared, pipeline_phase, step_facts
from bubblescope.analysis.rates import measured
from bubblescope.analysis.schedule.ideal import Done, ideal
from bubblescope.analysis.schedule.observe import Seen, seen
from bubblescope.analysis.schedule.recognise import choose, followed, how_followed
from bubblescope.analysis.step_lengths import step_edges
from bubblescope.analysis.wall_clock import step_starts, taken_apart
from bubblescope.model.kinds import COMPUTE_KINDS, Lane
from bubblescope.model.remembered import told
from bubblescope.model.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bubblescope.analysis.idle.causes import Cause
    from bubblescope.analysis.idle.known import Known, Ways
    from bubblescope.analysis.pieces.given import Pieces
    from bubblescope.analysis.schedule.recognise import Choice, Followed
    from bubblescope.schedules.plan import Plan

Told = dict["Callable[..., Any]", Any]
"""Functions that are `remembered`, and what each makes of the whole run."""


class First(NamedTuple):
    """What a part tells by itself."""

    facts: StepFacts
    seen: Seen
    names: Names
    overview: Overview
    kinds: Kinds
    starts: pl.DataFrame
    edges: pl.DataFrame
    spent: Spent


class OfPart(NamedTuple):
    """A part of a run, and what is known of the whole.

    Attributes:
        pieces: The run.
        number: Of the part.
        told: What it is told.
        more: What else the look needs.
    """

    pieces: Pieces
    number: int
    told: Told
    more: Any = None

    def timeline(self) -> Timeline:
        """Return the part, told."""
        return told(_phased(self.pieces.part(self.number), self.told), self.told)

    def surrounded(self) -> tuple[Timeline, Timeline]:
        """Return the part with what else ranks were in meanwhile; and that alone.

        Passes of other steps are not among it: their steps are looked at in other parts.
        """
        own = _phased(self.pieces.part(self.number), self.told)
        around = self.pieces.around(self.number, own.start_ns, own.end_ns)
        others = around.tasks.filter(~(_PASS & (pl.col("lane") == Lane.COMPUTE.value)))
        if not others.height:
            return told(own, self.told), around
        both = pl.concat([own.tasks, others])
        return told(Timeline(both, own.ranks, own.run, **own.tables), self.told), around


_PASS: Final = pl.col("kind").is_in([kind.value for kind in COMPUTE_KINDS])


def _phased(part: Timeline, known: Mapping[Callable[..., Any], Any]) -> Timeline:
    """Return a part without passes of no step, where other parts have steps with passes."""
    facts: StepFacts | None = known.get(step_facts)
    if not part.tasks["step"].has_nulls():
        return part
    if facts is None or not facts.spans["step"].is_not_null().any():
        return part
    phase = pipeline_phase(part.tasks)
    if not phase.height or phase["step"].is_not_null().any():
        return part
    rows = part.tasks.with_row_index("row")
    kept = rows.join(pipeline_phase(rows), on="row", how="anti").drop("row")
    return Timeline(kept, part.ranks, part.run, **part.tables)


def first(job: OfPart) -> First:
    """Look at a part that is told nothing yet."""
    part = job.pieces.part(job.number)
    return First(
        StepFacts.of(part.tasks),
        Seen.of(part.tasks),
        Names.of(part.tasks),
        Overview.of(part),
        Kinds.of(part.tasks),
        step_starts(part.tasks),
        step_edges(part.tasks),
        Spent.of(part),
    )


def split(job: OfPart) -> pl.DataFrame:
    """Tell pipelines apart by a step of a part, which is `more`."""
    facts: StepFacts = job.told[step_facts]
    return apart(job.timeline(), job.more, facts.ranks)


class Drawn(NamedTuple):
    """What is to be drawn.

    Attributes:
        ranks: Of these ranks.
        start_ns, end_ns: What of the part, and of what is around, overlaps this time.
    """

    ranks: list[int]
    start_ns: int
    end_ns: int


def drawn(job: OfPart) -> pl.DataFrame:
    """Return the tasks to draw; `more` says which."""
    more: Drawn = job.more
    part = job.pieces.part(job.number).tasks
    around = job.pieces.around(job.number, more.start_ns, more.end_ns).tasks
    return pl.concat([part, around]).filter(
        pl.col("rank").is_in(more.ranks),
        pl.col("lane") == Lane.COMPUTE.value,
        pl.col("end_ns") > more.start_ns,
        pl.col("start_ns") < more.end_ns,
    )


class Telling(NamedTuple):
    """The steps that a plan is chosen by.

    Attributes:
        pieces: The run.
        told: What is known of it.
        steps: Some of each part, by the part's number.
        also: Plans to try besides the known ones.
    """

    pieces: Pieces
    told: Told
    steps: dict[int, list[int]] | None
    also: Sequence[Plan]


def chosen(job: Telling) -> Choice | None:
    """Choose a plan by a few steps, of all parts that have such; by all steps if none are named."""
    tasks = []
    for index in range(len(job.pieces.parts)) if job.steps is None else job.steps:
        part = OfPart(job.pieces, index, job.told).timeline().tasks
        if job.steps is not None:
            part = part.filter(pl.col("step").is_in(job.steps[index]))
        tasks.append(part)
    few = Timeline(pl.concat(tasks), job.pieces.ranks, job.pieces.run)
    return choose(told(few, {seen: job.told[seen]}), job.also)


class Second(NamedTuple):
    """What a part tells once it is known which steps are compared, and which plan it may follow."""

    rates: pl.DataFrame
    rounds: Rounds
    followed: Followed | None
    near: pl.DataFrame


def second(job: OfPart) -> Second:
    """Look again; `more` is the choice of a plan and the sizes in which medians are."""
    choice, middles = job.more
    part = job.timeline()
    return Second(
        measured(part),
        rounds(part),
        None if choice is None else how_followed(part, choice),
        lengths_near(part, middles),
    )


def along(job: OfPart) -> Medians | None:
    """Look at a batch of ranks, which the number of the part stands for, over all steps."""
    ranks = told(_phased(job.pieces.along(job.number), job.told), job.told)
    columns = ("task", "rank", "step", "kind", "stage", "start_ns", "end_ns")
    tasks = compared(ranks, *columns).sort("step", "rank", "start_ns")
    return Medians.of(Durations.of(tasks)) if tasks.height else None


class Third(NamedTuple):
    """What a part tells once it is known when ranks were in the step before."""

    ways: Ways | None
    done: Done | None


def third(job: OfPart) -> Third:
    """Look again; `more` is the choice, how all followed it, and which ranks were still before."""
    choice, whole, still = job.more
    part = job.timeline()
    linked = Linked.of(closed(part), still)
    return Third(
        None if linked is None else linked.ways(part),
        None if choice is None else Done.of(part, followed(part, choice, whole)),
    )


class Replayed(NamedTuple):
    """What a part is told for its replays.

    Attributes:
        choice, followed, done: The plan, how all follow it, and what they ever did; None if there is
            none.
        known: What steps tell each other; None if ranks share no clock.
        pipelined: Whether the run may be a pipeline.
        explained: Whether it is asked what shows causes, and what they cost.
    """

    choice: Choice | None
    followed: Followed | None
    done: Done | None
    known: Known | None
    pipelined: bool
    explained: bool


class Fourth(NamedTuple):
    """What the replays of a part tell.

    Attributes:
        ideal: Its steps, and those of each rank's own replica, and how many operations were imputed.
        entries, lasting, evidence, lost, gaps: None, but for `lost`, where nothing is replayed; and
            all but `entries` where they are not asked for.
        gap_count: How many gaps there are, of which `gaps` are the longest.
    """

    ideal: tuple[pl.DataFrame, pl.DataFrame, int] | None
    entries: Entries | None
    lasting: Lasting | None
    evidence: Evidence | None
    lost: Lost | None
    gaps: pl.DataFrame | None
    gap_count: int = 0


def fourth(job: OfPart) -> Fourth:
    """Replay a part; `more` is what it is told for that."""
    more: Replayed = job.more
    part, around = job.surrounded()
    recognition = None
    if more.choice is not None:
        recognition = followed(part, more.choice, more.followed)
    best = ideal(part, recognition, more.done) if recognition is not None else None
    bare = None if best is None else (best.steps, best.own, best.imputed)
    found = Counterfactuals.of(part, recognition, more.known) if more.known is not None else None
    if found is None:
        lost = Lost.of(part, () if more.pipelined else None) if more.explained else None
        return Fourth(bare, None, None, None, lost, None)
    entries, stretches = Entries.of(found)
    if not more.explained:
        return Fourth(bare, entries, None, None, None, None)
    replays = Replays(found, stretches)
    meanwhile = around.budget
    return Fourth(
        bare,
        entries,
        Lasting.of(found),
        Evidence.of_steps(part, found, ADDED),
        Lost.of(part, laid_out(replays) if more.pipelined else None, meanwhile),
        longest(replays, part),
        counted(laid_out(replays)),
    )


class Spans(NamedTuple):
    """When pipeline phases were, and steps.

    Attributes:
        phases, between: As of `Ledger`, those that may be on in the part.
        steps: The steps of the part that are whole, as `whole_steps` returns them.
    """

    phases: pl.DataFrame
    steps: pl.DataFrame


def whole(job: OfPart) -> pl.DataFrame:
    """Return what ranks of a part were in, in whole steps, as rank, what, spent_ns and phase_ns."""
    spans: Spans = job.more
    own = job.pieces.part(job.number)
    until_ns: Any = spans.steps["end_ns"].max()
    around = job.pieces.around(job.number, own.start_ns, until_ns or own.end_ns)
    names: Names = job.told[names_of]
    tasks = pl.concat([own.tasks, around.tasks])
    table = taken_apart(tasks, spans.steps, spans.phases, names.asides)
    sums = pl.col("spent_ns", "phase_ns").sum()
    return table.group_by("rank", "what").agg(sums)


def sets(job: OfPart) -> Sets:
    """Replay some steps with every set of causes; `more` is as of `fourth`, and steps and causes."""
    more: Replayed
    steps: list[int | None]
    causes: list[Cause]
    more, steps, causes = job.more
    part, _ = job.surrounded()
    recognition = None
    if more.choice is not None:
        recognition = followed(part, more.choice, more.followed)
    found = Counterfactuals.of(part, recognition, more.known)
    if found is None:
        raise ValueError("what was replayed once can be replayed again")
    return Sets.of(found.only(steps), causes)
