"""The operations of a job side by side: one dense array over operations, steps and replicas.

Every replica of a pipeline runs the same operations in every step. So an operation is known by its
place in the pipeline, its type, and the how manyth of that type it is there, and everything about
it is a small table of steps by replicas.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

from bubblescope.model.errors import TimelineError
from bubblescope.model.kinds import COMPUTE_KINDS, Kind, Lane
from bubblescope.model.ordering import stretches_of
from bubblescope.model.provenance import Notice
from bubblescope.model.timeline import KIND_DTYPE
from bubblescope.model.timeline_tables import PIPELINE
from bubblescope.model.units import count
from bubblescope.names import job_trace_operations

if TYPE_CHECKING:
    from bubblescope.model.timeline import Timeline

Array = np.ndarray[Any, np.dtype[Any]]

_COMPUTE: Final = [kind for kind in Kind if kind in COMPUTE_KINDS] + [Kind.OPTIMIZER]
_UNKNOWN: Final = -1


_NEEDED: Final = (
    *("rank", "step", "kind", "stage", "chunk", "microbatch"),
    *("pair_stage", "pair_microbatch", "start_ns", "end_ns"),
)
"""Columns of tasks that operations are laid out by."""


class Pipeline(NamedTuple):
    """Where the ranks stand.

    Attributes:
        rank: Rank of each worker, places x replicas.
        stages: The stages of each place, first to last; empty where they are not known.
        dp: Data-parallel rank of each replica; None if the trace does not say, or if replicas
            share one.
    """

    rank: Array
    stages: list[tuple[int, ...]]
    dp: list[int] | None


class _Place(NamedTuple):
    """Ranks that are copies of each other.

    Attributes:
        stages: What they hold.
        runs: Stage and micro-batch of the forwards of one of them.
        members: Which replica -> row of its rank.
    """

    stages: tuple[int, ...]
    runs: set[tuple[int, int]]
    members: dict[tuple[int, ...], int]


class Operations(msgspec.Struct, frozen=True, eq=False):
    """What every worker does in a step, and when it did.

    There are n operations of one replica, s steps and r replicas. Those of a place and type stand
    together, by their start.

    Attributes:
        job_trace: Whether types are those of `job_trace_operations.TYPES`; else they are task kinds.
        types: Names of the operation types.
        type: Of each operation, index into `types`; n long.
        place: Of each operation, its place in the pipeline; n long.
        first_ns, last_ns: Start and end in the first step of the first replica; n long.
        stage, chunk, microbatch, pair_stage, pair_microbatch: As in the timeline, -1 if null;
            n long.
        start_ns, end_ns: When it did; n x s x r.
        length_ns: How long it took, without communicating inside of it; n x s x r.
        steps: The steps, ascending; [None] if the trace knows none.
        pipeline: Where the ranks stand.
        common_clock: Whether times of different ranks may be compared.
        notices: What was left out.
    """

    job_trace: bool
    types: list[str]
    type: Array
    place: Array
    first_ns: Array
    last_ns: Array
    stage: Array
    chunk: Array
    microbatch: Array
    pair_stage: Array
    pair_microbatch: Array
    start_ns: Array
    end_ns: Array
    length_ns: Array
    steps: list[int | None]
    pipeline: Pipeline
    common_clock: bool
    notices: tuple[Notice, ...]

    def __len__(self) -> int:
        return len(self.type)

    def at(self, place: int, *names: str) -> Array:
        """Return the operations of some types at a place, by their start in the first step."""
        wanted = [self.types.index(name) for name in names if name in self.types]
        found = np.flatnonzero((self.place == place) & np.isin(self.type, wanted))
        return found[np.argsort(self.first_ns[found], kind="stable")]


def tabulate(timeline: Timeline, waits_ns: Array) -> Operations:
    """Lay out the operations of a run.

    Steps in which a worker did not run just what it runs in most, such as those that the trace
    holds in part, are left out, and so are replicas that lack workers; notices say how many.

    Args:
        timeline: The run.
        waits_ns: How long each of its tasks communicated exposed, which is no part of its length.

    Raises:
        TimelineError: Nothing can be laid out; the message says why.
    """
    job_trace, types, tasks = _typed(timeline.tasks)
    typed = tasks["type"] >= 0
    if not (typed & (tasks["kind"] == Kind.FORWARD.value)).any():
        raise TimelineError("the timeline has no forward, so there is no pipeline to replay")
    steps = tasks["step"].filter(typed).unique().sort().to_list()
    pipeline, place_of, replica_of, notices = _pipeline(timeline.ranks, tasks)
    known = timeline.ranks["rank"].to_numpy()
    row = np.searchsorted(known, tasks["rank"].to_numpy()).astype(np.int32)
    # The rows of operations, not a copy of them: a single other task would cost one of all columns.
    own = np.flatnonzero(typed.to_numpy() & (replica_of[row] >= 0)).astype(np.int32)
    row = row[own]
    shape = (len(pipeline.rank), len(types), len(steps), pipeline.rank.shape[1])
    # As `np.ravel_multi_index` has it, which copies all four columns first.
    cells = place_of[row].astype(np.min_scalar_type(-int(np.prod(shape)) - 1))
    cells *= shape[1]
    cells += tasks["type"].to_numpy()[own]
    cells *= shape[2]
    if steps[0] is not None:  # unstepped tasks are only there if no task has a step
        cells += np.searchsorted(np.array(steps), tasks["step"].gather(own).to_numpy())
    cells *= shape[3]
    cells += replica_of[row]
    index, whole = _blocks(cells, shape)
    del cells
    place = place_of[row][index[:, 0, 0]]
    index = own[index]
    alike = _alike(tasks, index)
    index, chosen = index[:, alike], np.flatnonzero(whole)[alike]
    if len(chosen) < len(steps):
        left = len(steps) - len(chosen)
        text = f"{count(left, 'step')} left out: not every worker ran there what it runs in most"
        notices.append(Notice("steps-left-out", text, left, len(steps)))
    once = {
        name: _values(tasks, name)[index[:, 0, 0]]
        for name in ("type", "stage", "chunk", "microbatch", "pair_stage", "pair_microbatch")
    }
    used, once["type"] = np.unique(once["type"], return_inverse=True)
    starts, ends = (tasks[name].to_numpy()[index] for name in ("start_ns", "end_ns"))
    names = [types[number] for number in used.tolist()]
    computes = np.array(
        [
            name not in job_trace_operations.TYPES or name in job_trace_operations.COMPUTATIONS
            for name in names
        ]
    )
    other = _reordered(starts, np.where(computes[once["type"]], place, _UNKNOWN))
    if other:
        text = (
            f"in {other} of {count(len(chosen), 'step')} a worker ran its operations in another "
            "order than the first one in the first step, whose order all replays keep"
        )
        notices.append(Notice("other-order", text, other, len(chosen)))
    return Operations(
        job_trace=job_trace,
        types=names,
        place=place,
        first_ns=starts[:, 0, 0],
        last_ns=ends[:, 0, 0],
        **once,
        start_ns=starts,
        end_ns=ends,
        length_ns=np.maximum(ends - starts - waits_ns[index], 0),
        steps=[steps[number] for number in chosen.tolist()],
        pipeline=pipeline,
        common_clock=timeline.run.common_clock,
        notices=tuple(notices),
    )


def _typed(tasks: pl.DataFrame) -> tuple[bool, list[str], pl.DataFrame]:
    """Give each task its type.

    Returns:
        Whether the types are those of job traces; their names; the tasks with the index of theirs, -1
        for those that are left out: they have none, or no step where others have.
    """
    job_trace = bool((tasks["name"] == job_trace_operations.FORWARD).any())
    types = list(job_trace_operations.TYPES) if job_trace else [kind.value for kind in _COMPUTE]
    kinds = KIND_DTYPE.categories.to_list()
    of_kind = np.full(len(kinds), _UNKNOWN, np.int8)
    for name in types:
        kind = job_trace_operations.TYPES[name] if job_trace else Kind(name)
        if kind is not None:
            of_kind[kinds.index(kind.value)] = types.index(name)
    typed: Array = of_kind[tasks["kind"].to_physical().to_numpy()]
    if job_trace:
        by_name = tasks["name"].cast(pl.Enum(types), strict=False).to_physical().cast(pl.Int8)
        typed = np.where(typed < 0, by_name.fill_null(_UNKNOWN).to_numpy(), typed)
    elif not (tasks["lane"] == Lane.COMPUTE.value).all():
        typed = np.where((tasks["lane"] == Lane.COMPUTE.value).to_numpy(), typed, _UNKNOWN)
    if 0 < tasks["step"].null_count() < len(tasks):
        typed = np.where(tasks["step"].is_not_null().to_numpy(), typed, _UNKNOWN)
    return job_trace, types, tasks.select(_NEEDED).with_columns(type=typed)


def _values(tasks: pl.DataFrame, name: str) -> Array:
    values: Array = tasks[name].fill_null(_UNKNOWN).to_numpy()
    return values


def _pipeline(
    ranks: pl.DataFrame, tasks: pl.DataFrame
) -> tuple[Pipeline, Array, Array, list[Notice]]:
    """Find out where the ranks stand.

    Ranks that hold the same stages and run the same micro-batches of them are copies of each other;
    devices of two opposite pipelines hold the same stages, but run other micro-batches.

    Returns:
        The pipeline; place and replica of each rank, in the order of the ranks; notices.
    """
    works, work_of = _works(ranks, tasks)
    told = not ranks["dp"].has_nulls()
    places: list[_Place] = []
    fitting: list[_Place] = []
    for work in works:
        fits = (one for one in places if one.stages == work.stages and one.runs & work.runs)
        place = next(fits, None)
        if place is None:
            place = _Place(work.stages, work.runs, {})
            places.append(place)
        fitting.append(place)
    for row, parallel in enumerate(ranks.select(PIPELINE).iter_rows()):
        number = work_of[row]
        if number is not None:
            members = fitting[number].members
            key = tuple(_UNKNOWN if value is None else value for value in parallel)
            members[key if told and key not in members else (len(members),)] = row
    places.sort(key=lambda place: place.stages)
    common = set.intersection(*(set(place.members) for place in places))
    if not common:
        raise TimelineError(
            "no data-parallel replica has a rank at every stage, so no pipeline is whole"
        )
    keys = sorted(common)
    rows = np.array([[place.members[key] for key in keys] for place in places])
    place_of = np.zeros(ranks.height, np.int64)
    replica_of = np.full(ranks.height, _UNKNOWN)
    place_of[rows] = np.arange(len(places))[:, None]
    replica_of[rows] = np.arange(len(keys))
    dp = [key[0] for key in keys]
    known = told and all(len(key) == 3 for key in keys) and len(set(dp)) == len(dp)
    notices = []
    seen = ranks.height - work_of.count(None)
    if rows.size < seen:
        left = seen - rows.size
        text = f"{count(left, 'rank')} left out: no replica of theirs has a rank at every stage"
        notices.append(Notice("ranks-left-out", text, left, seen))
    rank = ranks["rank"].to_numpy()[rows]
    return (
        Pipeline(rank, [place.stages for place in places], dp if known else None),
        place_of,
        replica_of,
        notices,
    )


class _Work(NamedTuple):
    """What some ranks hold and do, each just the same.

    Attributes:
        stages: The stages they hold.
        runs: Stage and micro-batch of their forwards.
    """

    stages: tuple[int, ...]
    runs: set[tuple[int, int]]


def _works(ranks: pl.DataFrame, tasks: pl.DataFrame) -> tuple[list[_Work], list[int | None]]:
    """Return what ranks do, by the first that does it, and the number of each rank's, by its row.

    Of a rank without any task it is None. Ranks without a forward are each by itself: nothing says
    that they are copies.

    Raises:
        TimelineError: A rank's stages are not known.
    """
    present = set(tasks["rank"].filter(tasks["type"] >= 0).unique().to_list())
    runs, most = _forwards(tasks)
    numbers: dict[tuple[tuple[int, ...] | None, bytes | int], int] = {}
    works: list[_Work] = []
    found: list[int | None] = []
    for rank, stages in ranks.select("rank", "stages").iter_rows():
        if rank not in present:
            found.append(None)
            continue
        codes = runs.get(rank)
        given = None if stages is None else tuple(stages)
        key = given, rank if codes is None else codes.tobytes()
        if key not in numbers:
            numbers[key] = len(works)
            ran = [] if codes is None else [divmod(code, most) for code in codes.tolist()]
            done = {(stage + _UNKNOWN, microbatch + _UNKNOWN) for stage, microbatch in ran}
            held = tuple(sorted(stages or {stage for stage, _ in done if stage >= 0}))
            if not held:
                raise TimelineError(
                    f"rank {rank} does not state which stages it runs, so nothing can be replayed"
                )
            works.append(_Work(held, done))
        found.append(numbers[key])
    return works, found


def _forwards(tasks: pl.DataFrame) -> tuple[dict[int, Array], int]:
    """Return what each rank ran forwards of: stage x most + micro-batch, and the most.

    Both count from 1, and are 0 where they are not known. The numbers of a rank ascend.
    """
    rank, stage, microbatch = (
        tasks.lazy()
        .filter(pl.col("type") >= 0, pl.col("kind") == Kind.FORWARD.value)
        .select("rank", pl.col("stage", "microbatch").fill_null(_UNKNOWN).cast(pl.Int64) + 1)
        .collect()
    )
    most, of_all = (1 + int(one.to_numpy().max(initial=0)) for one in (microbatch, stage))
    # NumPy's `unique` takes forty times as long.
    codes = ((rank.cast(pl.Int64) * of_all + stage) * most + microbatch).unique().sort()
    of_rank, code = np.divmod(codes.to_numpy(), of_all * most)
    begins = stretches_of(of_rank)
    return dict(zip(of_rank[begins].tolist(), np.split(code, begins[1:]), strict=False)), most


def _blocks(cells: Array, shape: tuple[int, int, int, int]) -> tuple[Array, Array]:
    """Put tasks into a table.

    Args:
        cells: Place, type, step and replica of each task as one number; those of a rank and type
            stand by their start.
        shape: How many of each there are.

    Returns:
        Row of the task of each operation, n x s x r, of the steps in which every worker runs what it
        runs in most; and which steps those are.
    """
    held = np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape)
    usual = np.median(held, axis=(2, 3)).astype(np.int64)
    whole = (held == usual[:, :, None, None]).all(axis=(0, 1, 3))
    if not whole.any():
        raise TimelineError(
            "in no step does every worker run what it runs in most, so steps cannot be compared"
        )
    order = np.argsort(cells, kind="stable").astype(np.int32)
    if not whole.all():
        order = order[whole[cells[order] // shape[3] % shape[2]]]
    steps = int(whole.sum())
    blocks = []
    begin = 0
    for many in usual[usual > 0].tolist():
        end = begin + many * steps * shape[3]
        blocks.append(order[begin:end].reshape(steps, shape[3], many).transpose(2, 0, 1))
        begin = end
    return np.concatenate(blocks), whole


def _reordered(starts: Array, place: Array) -> int:
    """Return in how many steps some worker started operations in another order.

    `starts` are n x s x r; the order of those whose place is -1 does not matter.
    """
    same = np.ones(starts.shape[1:], bool)
    for each in np.unique(place[place >= 0]):
        mine = np.flatnonzero(place == each)
        order = mine[np.argsort(starts[mine, 0, 0], kind="stable")]
        same &= (np.diff(starts[order], axis=0) >= 0).all(axis=0)
    return int((~same.all(axis=1)).sum())


def _alike(tasks: pl.DataFrame, index: Array) -> Array:
    """Say in which steps every worker's k-th operation is of the same stage and micro-batch."""
    works = []
    for name in ("stage", "microbatch"):
        worked = _values(tasks, name)[index]
        if not (worked == worked[:, :1, :1]).all():
            works.append(worked)
    if not works:
        return np.ones(index.shape[1], bool)
    both = np.ascontiguousarray(np.concatenate(works).transpose(1, 2, 0))
    texts = [[column.tobytes() for column in step] for step in both]
    usual = Counter(text for step in texts for text in step).most_common(1)[0][0]
    alike = np.array([all(text == usual for text in step) for step in texts])
    if not alike.any():
        raise TimelineError(
            "in no step do the replicas run their micro-batches in the same order, so none can be "
            "compared"
        )
    return alike
