"""What slow operations cost a job, of a run in parts: as `bubblescope.analysis.stragglers` has it.

Each part is replayed by itself, once it is known what operations of each type take in all of them. That
holds where all parts have the same operations in the same order, so that the tables of theirs are those
of the run, step beside step; where they do not, a run is not looked at in parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from bubblescope.analysis.alike import Alike, Doing, alike_of, idle_shares, usual_work
from bubblescope.analysis.between_rounds import closed
from bubblescope.analysis.idle.slow_ranks import SlowRank, Work, slow_ranks
from bubblescope.analysis.idle.task_lengths import Durations, Medians, Typical, lengths
from bubblescope.analysis.phase import StepFacts, compared, pipelines, step_facts
from bubblescope.analysis.pieces.given import here
from bubblescope.analysis.pieces.looking import Looking
from bubblescope.analysis.stragglers.operations import Array, Operations, Pipeline, tabulate
from bubblescope.analysis.stragglers.replayed import (
    Replayed,
    Slowed,
    joined_pairs,
    kept_and_not,
    order_of,
)
from bubblescope.analysis.stragglers.replays import Replays, Usual
from bubblescope.analysis.stragglers.slowness import correlated, correlations
from bubblescope.model.errors import TimelineError
from bubblescope.model.remembered import told
from bubblescope.model.timeline import TASK_SCHEMA, Timeline

if TYPE_CHECKING:
    from bubblescope.analysis.pieces.given import Pieces, Runs
    from bubblescope.analysis.pieces.looks import OfPart


def stragglers_of(pieces: Pieces, run: Runs = here) -> Slowed | None:
    """Look at a run part by part.

    Args:
        pieces: The run.
        run: What runs the looks, each at one part: `Engine.run`, or this process.

    Returns:
        What is known of it; None if its parts do not all have the same operations, each of them whole
        steps of all ranks, or if it is a job trace.

    Raises:
        Whatever an engine or a part raises.
    """
    looking = Looking(pieces, run)
    facts = StepFacts.joined(looking.look(_facts))
    looking.told[step_facts] = facts
    looking.told[pipelines] = apart = looking.pipelines(facts)
    laid: list[_Laid | None] = looking.look(_laid)
    same = [one for one in laid if one is not None]
    if len(same) < len(laid) or any(one.order != same[0].order for one in same):
        return None
    pipeline = same[0].pipeline
    usual = Usual.joined([one.usual for one in same])
    several = apart["pipeline"].n_unique() > 1
    found = Replayed.joined(looking.look(_replayed, (usual, several)))
    worst: list[tuple[Array, Array]] = looking.look(_worst, (usual, found.worst(pipeline.rank)))
    turn = order_of([step for one in same for step in one.steps])
    timeline = Timeline(pl.DataFrame(schema=TASK_SCHEMA), pieces.ranks, pieces.run)
    slow, stand = _ranks(looking, timeline)
    known = {
        "apart": several,
        "slow_rank": slow,
        "alike": stand,
        "correlation": correlated([one.correlations for one in same]),
        "notices": (),
    }
    return Slowed(timeline, pipeline, found, joined_pairs(worst, turn), known)


def _ranks(looking: Looking, timeline: Timeline) -> tuple[SlowRank | None, Alike]:
    """Return the rank that stands out, and how all stand."""
    rows: list[_Along | None] = looking.look(_along, at=range(looking.pieces.batches))
    along = [one for one in rows if one is not None]
    typical = Typical.of(Medians.joined([one.medians for one in along]))
    done: list[_Done | None] = looking.look(_done, typical)
    parts = [one for one in done if one is not None]
    slow = slow_ranks(Work.joined([one.work for one in parts]), typical)
    stand = alike_of(
        timeline,
        Doing.joined([one.doing for one in parts]),
        pl.concat([one.usual for one in along]),
        slow,
    )
    return (slow[0] if slow and slow[0].stands_out else None), stand


def _facts(job: OfPart) -> StepFacts:
    """Look at a part that is told nothing yet."""
    return StepFacts.of(job.pieces.part(job.number).tasks)


class _Laid(NamedTuple):
    """The operations of a part, as far as others may differ.

    Attributes:
        order: What they are, and in which order ranks run them.
        pipeline: Where the ranks stand.
        usual: What they take.
        correlations: As of `slowness.correlations`.
        steps: The steps.
    """

    order: bytes
    pipeline: Pipeline
    usual: Usual
    correlations: list[Array | None]
    steps: list[int | None]


def _tabled(job: OfPart) -> Operations:
    return tabulate(closed(job.timeline()))


def _laid(job: OfPart) -> _Laid | None:
    """Lay out the operations of a part; return None if some are left out, or it is of a job trace."""
    try:
        operations = _tabled(job)
    except TimelineError:
        return None
    if operations.job_trace or operations.notices:
        return None
    usual = Usual.of(operations, operations.length_ns)
    return _Laid(
        _order(operations),
        operations.pipeline,
        usual,
        correlations(operations),
        operations.steps,
    )


def _order(operations: Operations) -> bytes:
    """Return what tells operations of parts apart."""
    pipeline = operations.pipeline
    columns = (
        operations.type,
        operations.place,
        operations.stage,
        operations.chunk,
        operations.microbatch,
        operations.pair_stage,
        operations.pair_microbatch,
        np.lexsort((operations.first_ns, operations.place)),
        pipeline.rank.ravel(),
    )
    said = (operations.types, pipeline.stages, pipeline.dp, pipeline.rank.shape)
    return b"".join([repr(said).encode(), *(np.int64(one).tobytes() for one in columns)])


def _replays(job: OfPart, usual: Usual) -> tuple[Operations, Replays]:
    operations = _tabled(job)
    return operations, Replays(operations, usual)


def _replayed(job: OfPart) -> Replayed:
    """Replay a part; `more` is what operations take, and whether pipelines run each for itself."""
    usual, apart = job.more
    return Replayed.of(*_replays(job, usual), apart=apart)


def _worst(job: OfPart) -> tuple[Array, Array]:
    """Replay a part with some workers; `more` is what operations take, and which workers."""
    usual, workers = job.more
    return kept_and_not(*_replays(job, usual), workers)


class _Along(NamedTuple):
    """What some ranks do in all steps.

    Attributes:
        medians: What their tasks take.
        usual: As `usual_work` returns it.
    """

    medians: Medians
    usual: pl.DataFrame


_TASKS = ("task", "rank", "step", "kind", "stage", "start_ns", "end_ns")


def _along(job: OfPart) -> _Along | None:
    """Look at a batch of ranks, which the number of the part stands for, over all steps."""
    ranks = told(job.pieces.along(job.number), job.told)
    tasks = compared(ranks, *_TASKS).sort("step", "rank", "start_ns")
    if not tasks.height:
        return None
    run = Durations.of(tasks)
    return _Along(Medians.of(run), usual_work(run))


class _Done(NamedTuple):
    """What ranks did in a part.

    Attributes:
        work, doing: What they worked, and how they idled.
    """

    work: Work
    doing: Doing


def _done(job: OfPart) -> _Done | None:
    """Look at what ranks did; `more` is what tasks take as a rule."""
    typical: Typical = job.more
    part = job.timeline()
    phase = compared(part, *_TASKS)
    if not phase.height:
        return None
    run = Durations.of(phase.sort("step", "rank", "start_ns"))
    parts = lengths(run, typical)
    return _Done(Work.of_steps(run, parts, part), Doing.of(idle_shares(phase), run, parts))
