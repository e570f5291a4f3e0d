"""What slow operations cost a job, of a run in parts: as `bubblescope.analysis.stragglers` has it.

Each part is replayed by itself, once it is known what operations of each type take in all of them. That
holds where all parts have the same operations in the same order, so that the tables of theirs are those
of the run, step beside step; where they do not, a run is not looked at in parts.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import polars as pl

from bubblescope.analysis.between_rounds import closed
from bubblescope.analysis.idle.inside_passes import inside_passes, knows_waits
from bubblescope.analysis.idle.slow_ranks import Work, slow_ranks
from bubblescope.analysis.idle.task_lengths import Durations, Medians, Typical, lengths
from bubblescope.analysis.pieces.run_in_pieces import here
from bubblescope.analysis.pieces.scanning import Looking
from bubblescope.analysis.pipeline_phase import StepFacts, compared, pipelines, step_facts
from bubblescope.analysis.rank_standing import Alike, Doing, alike_of, idle_shares, usual_work
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
from bubblescope.model.cached_results import told
from bubblescope.model.errors import TimelineError
from bubblescope.model.timeline import TASK_SCHEMA, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bubblescope.analysis.pieces.run_in_pieces import Pieces, Runs
    from bubblescope.analysis.pieces.scans import OfPart, Told
    from bubblescope.engine.remote_results import Held

Answer = TypeVar("Answer")


def _itself(found: Slowed) -> Any:
    return found


def stragglers_of(
    pieces: Pieces | Held[Pieces],
    run: Runs = here,
    *,
    folder: Path | None = None,
    then: Callable[[Slowed], Answer] = _itself,
) -> Answer | None:
    """Look at a run part by part.

    Args:
        pieces: The run.
        run: What runs the looks, each at one part: `Engine.run`, or this process.
        folder: As of `bubblescope.analysis.pieces.study_of_pieces.study_of`.
        then: What is wanted of what is known of it, worked out where looks are taken; all by default.

    Returns:
        What is wanted; None if its parts do not all have the same operations, each of them whole
        steps of all ranks, or if it is a job trace.

    Raises:
        Whatever an engine, a part or `then` raises.
    """
    looking = Looking(pieces, run, folder)
    looking.make_ready()
    [looking.told] = looking.put(_facts_of_all, looking.look(_facts))
    looking.tell_pipelines()
    laid = looking.look(_laid)
    usual, several = looking.put(_alike, looking.told, laid)
    if usual.nothing:
        return None
    replayed = looking.look(_replayed, (usual, several))
    found, workers = looking.put(_found, laid, replayed)
    worst = looking.look(_worst, (usual, workers))
    along = looking.look(_along, at=range(looking.batches))
    [typical] = looking.put(_typical, along)
    done = looking.look(_done, typical)
    [stand] = looking.put(_ranks, looking.pieces, along, done, typical)
    given = (looking.pieces, laid, several, found, worst, stand)
    return looking.ask(partial(_concluded, then), *given)  # type: ignore[no-any-return]


def _facts_of_all(parts: Sequence[StepFacts]) -> tuple[Told]:
    return ({step_facts: StepFacts.joined(parts)},)


def _alike(known: Told, laid: Sequence[_Laid | None]) -> tuple[Usual | None, bool]:
    """Return what operations take, None if parts differ; and whether there are several pipelines."""
    same = [one for one in laid if one is not None]
    several = known[pipelines]["pipeline"].n_unique() > 1
    if len(same) < len(laid) or any(one.order != same[0].order for one in same):
        return None, several
    return Usual.joined([one.usual for one in same]), several


def _found(laid: Sequence[_Laid], parts: Sequence[Replayed]) -> tuple[Replayed, Array]:
    """Return what replays of all parts told, and which workers are the slowest."""
    found = Replayed.joined(parts)
    return found, found.worst(laid[0].pipeline.rank)


def _typical(along: Sequence[_Along | None]) -> tuple[Typical]:
    return (Typical.of(Medians.joined([one.medians for one in along if one is not None])),)


def _ranks(
    pieces: Pieces,
    along: Sequence[_Along | None],
    done: Sequence[_Done | None],
    typical: Typical,
) -> tuple[Alike]:
    parts = [one for one in done if one is not None]
    stand = alike_of(
        _bare(pieces),
        Doing.joined([one.doing for one in parts]),
        pl.concat([one.usual for one in along if one is not None]),
        slow_ranks(Work.joined([one.work for one in parts]), typical),
    )
    return (stand,)


def _bare(pieces: Pieces) -> Timeline:
    return Timeline(pl.DataFrame(schema=TASK_SCHEMA), pieces.ranks, pieces.run)


def _concluded(
    then: Callable[[Slowed], Answer],
    pieces: Pieces,
    laid: Sequence[_Laid],
    several: bool,
    found: Replayed,
    worst: Sequence[tuple[Array, Array]],
    stand: Alike,
) -> Answer:
    """Put together what is known of a run, and work out what is wanted of it."""
    known = {
        "own_work": any(one.own_work for one in laid),
        "apart": several,
        "alike": stand,
        "correlation": correlated([one.correlations for one in laid]),
        "notices": (),
    }
    turn = order_of([step for one in laid for step in one.steps])
    worst_ns = joined_pairs(worst, turn)
    return then(Slowed(_bare(pieces), laid[0].pipeline, found, worst_ns, known))


def _facts(job: OfPart) -> StepFacts:
    """Look at a part that is told nothing yet."""
    return StepFacts.of(job.pieces.part(job.number).tasks)


class _Laid(NamedTuple):
    """The operations of a part, as far as others may differ.

    Attributes:
        order: What tells apart what they are, and in which order ranks run them.
        pipeline: Where the ranks stand.
        usual: What they take.
        correlations: As of `slowness.correlations`.
        steps: The steps.
        own_work: As of `Stragglers`.
    """

    order: bytes
    pipeline: Pipeline
    usual: Usual
    correlations: list[Array | None]
    steps: list[int | None]
    own_work: bool


def _tabled(timeline: Timeline) -> Operations:
    return tabulate(closed(timeline), inside_passes(timeline).waits_ns)


def _laid(job: OfPart) -> _Laid | None:
    """Lay out the operations of a part; return None if some are left out, or it is of a job trace."""
    timeline = job.timeline()
    try:
        operations = _tabled(timeline)
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
        knows_waits(timeline),
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
    told_apart = hashlib.sha256(repr(said).encode())
    for one in columns:
        told_apart.update(np.int64(one).tobytes())
    return told_apart.digest()


def _replays(job: OfPart, usual: Usual) -> tuple[Operations, Replays]:
    operations = _tabled(job.timeline())
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
    doing = Doing.of(idle_shares(phase), run, inside_passes(part))
    return _Done(Work.of_steps(run, lengths(run, typical), part), doing)
