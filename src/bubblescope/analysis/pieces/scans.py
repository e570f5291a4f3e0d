"""What is looked at in each part of a run, look by look: each is told what those before it found.

A look returns little: sums, tables of ranks and steps, and a few tasks that show something. Neither the
parts nor what looks return leave the place where they are looked at
(`bubblescope.engine.remote_results`): each look is given what those before it found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import polars as pl

from bubblescope.analysis.between_rounds import Rounds, closed, rounds
from bubblescope.analysis.device_budget import Spent
from bubblescope.analysis.idle.causes import ADDED
from bubblescope.analysis.idle.counterfactuals import Counterfactuals
from bubblescope.analysis.idle.evidence import Evidence
from bubblescope.analysis.idle.ledger import Entries, Replays, laid_out
from bubblescope.analysis.idle.longest_gaps import counted, longest
from bubblescope.analysis.idle.measured_run import Linked
from bubblescope.analysis.idle.rank_waits import rank_waits, rank_waits_in
from bubblescope.analysis.idle.shares import Lasting, Sets
from bubblescope.analysis.idle.task_lengths import Durations, Medians
from bubblescope.analysis.losses import Lost
from bubblescope.analysis.outside_passes import Names, names_of
from bubblescope.analysis.overview import Kinds, Overview, lengths_near
from bubblescope.analysis.pipeline_phase import (
    StepFacts,
    apart,
    compared,
    pipeline_phase,
    step_facts,
)
from bubblescope.analysis.rates import measured
from bubblescope.analysis.schedule.ideal import Done, ideal
from bubblescope.analysis.schedule.observe import Seen, seen
from bubblescope.analysis.schedule.recognise import choose, followed, how_followed
from bubblescope.analysis.step_lengths import step_edges
from bubblescope.analysis.wall_clock import step_starts, taken_apart
from bubblescope.model.cached_results import told
from bubblescope.model.kinds import COMPUTE_KINDS, Lane
from bubblescope.model.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from typing_extensions import Self

    from bubblescope.analysis.idle.causes import Cause
    from bubblescope.analysis.idle.whole_run_facts import Known, Ways
    from bubblescope.analysis.pieces.run_in_pieces import Pieces
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
        waits = pl.concat([rank_waits_in(one.budget) for one in (own, around)])
        known = {**self.told, rank_waits: waits}
        if not others.height:
            return told(own, known), around
        both = pl.concat([own.tasks, others])
        return told(Timeline(both, own.ranks, own.run, **own.tables), known), around


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
        start_ns, end_ns: What overlaps this time.
    """

    ranks: list[int]
    start_ns: int
    end_ns: int


def drawn(pieces: Pieces, more: Drawn) -> tuple[pl.DataFrame]:
    """Return the tasks to draw."""
    tasks = pieces.during(more.ranks, more.start_ns, more.end_ns)
    return (tasks.filter(pl.col("lane") == Lane.COMPUTE.value),)


def chosen(
    pieces: Pieces, known: Told, steps: Mapping[int, list[int]] | None, also: Sequence[Plan]
) -> tuple[Choice | None]:
    """Choose a plan by a few steps, of all parts that have such.

    Args:
        pieces: The run.
        known: What parts are told.
        steps: Some of each part, by the part's number; all if None.
        also: Plans to try besides the known ones.
    """
    tasks = []
    for index in range(len(pieces.parts)) if steps is None else steps:
        part = OfPart(pieces, index, known).timeline().tasks
        if steps is not None:
            part = part.filter(pl.col("step").is_in(steps[index]))
        tasks.append(part)
    few = Timeline(pl.concat(tasks), pieces.ranks, pieces.run)
    return (choose(told(few, {seen: known[seen]}), also),)


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


class Along(NamedTuple):
    """How ranks are looked at over many steps.

    Attributes:
        batches: So many batches at a time.
        parts: In which parts; None for all.
    """

    batches: int
    parts: list[int] | None

    def looks(self, batches: int) -> range:
        """Return the numbers of the looks at so many batches."""
        return range(-(-batches // self.batches))


def along(job: OfPart) -> Medians | None:
    """Look at some batches of ranks, which the number of the part stands for; `more` is `Along`."""
    pieces, how = job.pieces, job.more
    own = range(pieces.batches)[job.number * how.batches :][: how.batches]
    tasks = pl.concat([pieces.along(batch, how.parts).tasks for batch in own])
    whole = Timeline.of_checked(tasks, pieces.ranks, pieces.run)
    ranks = told(_phased(whole, job.told), job.told)
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


class Keeps(Protocol):
    """Keeps what was worked out of a part where it was worked out; it is sent there with the part."""

    def __call__(self, own: Own, explained: Explained | None) -> Any:
        """Return what is to be known of it where it is asked for.

        Args:
            own: The part.
            explained: Why ranks are idle in it; None if that was not looked at.
        """


class Own(NamedTuple):
    """What of a part is its own.

    Attributes:
        number: Of the part.
        timeline: The part as it is, told of the run.
        around: What else ranks were in meanwhile; of what overlaps its tasks on their lanes, all that
            overlaps that too, and so on, as far as it began earlier.
    """

    number: int
    timeline: Timeline
    around: Timeline

    @classmethod
    def of(cls, job: OfPart, around: Timeline | None = None) -> Self:
        """Take a part as it is, and what else ranks were in, as far as that is not known."""
        timeline = told(job.pieces.part(job.number), job.told)
        from_ns, end_ns = timeline.start_ns, timeline.end_ns
        if around is None:
            around = job.pieces.around(job.number, from_ns, end_ns)
        while (earlier_ns := _begun_ns(timeline.tasks, around.tasks, from_ns)) < from_ns:
            from_ns = earlier_ns
            around = job.pieces.around(job.number, from_ns, end_ns)
        return cls(job.number, timeline, around)


class Explained(NamedTuple):
    """Why ranks are idle in a part, and by what that is known.

    Attributes:
        gaps: Those of its ledger, as `bubblescope.analysis.idle.ledger.laid_out` yields them; none if
            it has no ledger.
        part: What was replayed.
        mine: Of each of the tasks of `part`, which of those of the part's own timeline it is; null for
            none.
    """

    gaps: Sequence[pl.DataFrame]
    part: Timeline
    mine: pl.Series

    @classmethod
    def of(cls, own: Own, part: Timeline, gaps: Sequence[pl.DataFrame]) -> Self:
        """Tell what of what was replayed is the part's own."""
        return cls(gaps, part, _rows_in(own.timeline.tasks, part.tasks))


def _begun_ns(own: pl.DataFrame, around: pl.DataFrame, from_ns: int) -> int:
    """Return when the first began of what overlaps tasks, directly or by others, on their lanes.

    Args:
        own: The tasks.
        around: What else ran.
        from_ns: Since when all of that is known.
    """
    columns = ("rank", "lane", "start_ns", "end_ns")
    if not (around["start_ns"] < from_ns).any():
        return from_ns
    both = pl.concat(
        [
            own.select(*columns, own=pl.lit(value=True)),
            around.select(*columns, own=pl.lit(value=False)),
        ]
    ).sort(columns)
    ends = pl.col("end_ns").cum_max().shift(1).over("rank", "lane")
    apart = (pl.col("start_ns") >= ends).fill_null(value=True).cum_sum()
    crowd = both.group_by("rank", "lane", apart=apart).agg(
        pl.col("own").any(), pl.col("start_ns").min()
    )
    began: Any = crowd.filter("own")["start_ns"].min()
    return from_ns if began is None else min(from_ns, int(began))


_SAME: Final = (
    *("rank", "lane", "start_ns", "end_ns", "step", "kind"),
    *("stage", "chunk", "microbatch", "peer", "name"),
)
"""What tells tasks of a part apart; of those that are alike in it the first is the first."""


def _rows_in(tasks: pl.DataFrame, of: pl.DataFrame) -> pl.Series:
    """Return which of some tasks each of others is; null for none."""
    if of.equals(tasks):  # nothing else ran meanwhile
        return pl.int_range(tasks.height, dtype=pl.Int64, eager=True)
    turn = pl.int_range(pl.len(), dtype=pl.UInt32).over(_SAME).alias("turn")
    own = tasks.select(*_SAME).with_columns(turn).with_row_index("row")
    wanted = of.select(*_SAME).with_columns(turn)
    found = wanted.join(
        own, on=[*_SAME, "turn"], how="left", nulls_equal=True, maintain_order="left"
    )
    return found["row"].cast(pl.Int64)


class Replayed(NamedTuple):
    """What a part is told for its replays.

    Attributes:
        choice, followed, done: The plan, how all follow it, and what they ever did; None if there is
            none.
        known: What steps tell each other; None if ranks share no clock.
        pipelined: Whether the run may be a pipeline.
        explained: Whether it is asked what shows causes, and what they cost.
        keeps: Keeps what comes of it; None if nobody asked for that.
    """

    choice: Choice | None
    followed: Followed | None
    done: Done | None
    known: Known | None
    pipelined: bool
    explained: bool
    keeps: Keeps | None = None


class Fourth(NamedTuple):
    """What the replays of a part tell.

    Attributes:
        ideal: Its steps, and those of each rank's own replica, and how many operations were imputed.
        entries, lasting, evidence, lost, gaps: None, but for `lost`, where nothing is replayed; and
            all but `entries` where they are not asked for.
        gap_count: How many gaps there are, of which `gaps` are the longest.
        kept: What `Replayed.keeps` returned.
    """

    ideal: tuple[pl.DataFrame, pl.DataFrame, int] | None
    entries: Entries | None
    lasting: Lasting | None
    evidence: Evidence | None
    lost: Lost | None
    gaps: pl.DataFrame | None
    gap_count: int = 0
    kept: Any = None


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
        kept = _kept(more.keeps, job, part, around, ())
        lost = Lost.of(part, () if more.pipelined else None) if more.explained else None
        return Fourth(bare, None, None, None, lost, None, kept=kept)
    entries, stretches = Entries.of(found)
    if not more.explained and more.keeps is None:
        return Fourth(bare, entries, None, None, None, None)
    gaps = list(laid_out(Replays(found, stretches)))
    kept = _kept(more.keeps, job, part, around, gaps)
    if not more.explained:
        return Fourth(bare, entries, None, None, None, None, kept=kept)
    return Fourth(
        bare,
        entries,
        Lasting.of(found),
        Evidence.of_steps(part, found, ADDED),
        Lost.of(part, gaps if more.pipelined else None, around),
        longest(gaps, part),
        counted(gaps),
        kept,
    )


def _kept(
    keeps: Keeps | None,
    job: OfPart,
    part: Timeline,
    around: Timeline,
    gaps: Sequence[pl.DataFrame],
) -> Any:
    """Have a part kept that was replayed, if anybody asked for that."""
    if keeps is None:
        return None
    own = Own.of(job, around)
    return keeps(own, Explained.of(own, part, gaps))


def unexplained(job: OfPart) -> Any:
    """Keep a part that is not replayed; `more` is what keeps it, and whether the run has a ledger."""
    keeps: Keeps
    keeps, has_ledger = job.more
    own = Own.of(job)
    # Without a ledger there is nothing that replays would tell.
    return keeps(own, None if has_ledger else Explained.of(own, own.timeline, ()))


class Spans(NamedTuple):
    """When pipeline phases were, and steps.

    Attributes:
        phases: As `bubblescope.analysis.wall_clock.pipeline_phases` returns them.
        steps: The steps that are whole, as `whole_steps` returns them.
    """

    phases: pl.DataFrame
    steps: pl.DataFrame


def whole(job: OfPart) -> pl.DataFrame | None:
    """Return what ranks of a part were in, in whole steps, as rank, what, spent_ns and phase_ns.

    None if it has no whole steps.
    """
    spans: Spans = job.more
    steps = spans.steps.filter(pl.col("step").is_in(job.pieces.parts[job.number]))
    if not steps.height:
        return None
    low, high = steps.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    phases = spans.phases.filter(pl.col("end_ns") > low, pl.col("start_ns") < high)
    own = job.pieces.part(job.number)
    around = job.pieces.around(job.number, own.start_ns, high)
    names: Names = job.told[names_of]
    tasks = pl.concat([own.tasks, around.tasks])
    table = taken_apart(tasks, steps, phases, names.asides)
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
