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

from bubblescope.errors import TimelineError
from bubblescope.timeline import Notice
from bubblescope.units import count
from bubblescope.vocabulary import COMPUTE_KINDS, Kind

if TYPE_CHECKING:
    from bubblescope.timeline import Timeline

__all__ = ["COLLECTIVES", "JOB_TYPES", "Array", "Operations", "Pipeline", "tabulate"]

Array = np.ndarray[Any, np.dtype[Any]]

JOB_TYPES: Final[dict[str, Kind | None]] = {
    "forward-compute": Kind.FORWARD,
    "backward-compute": Kind.BACKWARD,
    "forward-send": Kind.SEND_FORWARD,
    "forward-recv": Kind.RECV_FORWARD,
    "backward-send": Kind.SEND_BACKWARD,
    "backward-recv": Kind.RECV_BACKWARD,
    "params-all-gather": None,
    "gc": None,
    "layernorm-grads-all-reduce": None,
    "embedding-grads-all-reduce": None,
    "grads-reduce-scatter": None,
    "separate-grads-all-reduce": None,
    "optimizer-clip-main-grad": None,
    "optimizer": None,
}
"""The operation types of job traces: known by their kind where it is one of its own, else by name."""

COLLECTIVES: Final = frozenset(
    name for name in JOB_TYPES if name.endswith(("-send", "-recv", "-gather", "-scatter"))
) | {
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "separate-grads-all-reduce",
    "optimizer-clip-main-grad",
}
"""The job-trace types that are communication."""

_COMPUTE: Final = [kind for kind in Kind if kind in COMPUTE_KINDS] + [Kind.OPTIMIZER]
_UNKNOWN: Final = -1


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
        job_trace: Whether types are those of `JOB_TYPES`; else they are task kinds.
        types: Names of the operation types.
        type: Of each operation, index into `types`; n long.
        place: Of each operation, its place in the pipeline; n long.
        first_ns, last_ns: Start and end in the first step of the first replica; n long.
        stage, chunk, microbatch, pair_stage, pair_microbatch: As in the timeline, -1 if null;
            n long.
        length_ns, end_ns: How long it took, and when it ended; n x s x r.
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
    length_ns: Array
    end_ns: Array
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


def tabulate(timeline: Timeline) -> Operations:
    """Lay out the operations of a run.

    Steps in which a worker did not run just what it runs in most, such as those that the trace
    holds in part, are left out, and so are replicas that lack workers; notices say how many.

    Raises:
        TimelineError: Nothing can be laid out; the message says why.
    """
    tasks = timeline.tasks
    job_trace = bool((tasks["name"] == "forward-compute").any())
    types = list(JOB_TYPES) if job_trace else [kind.value for kind in _COMPUTE]
    code = _codes(tasks, types, job_trace=job_trace)
    step = tasks["step"]
    stepped = step.null_count() < len(step)
    steps: list[int | None] = step.drop_nulls().unique().sort().to_list() if stepped else [None]
    number = np.zeros(len(step), np.int64)
    if stepped:
        known = step.fill_null(_UNKNOWN - 1 + int(steps[0] or 0)).to_numpy()
        code[known < int(steps[0] or 0)] = _UNKNOWN
        number = np.searchsorted(np.array(steps), known)
    kept = code >= 0
    if not (code == types.index(types[0])).any():
        raise TimelineError("no forward is in the timeline, so there is no pipeline to replay")
    columns = _columns(tasks, code, number)
    columns = {name: values[kept] for name, values in columns.items()}
    pipeline, place_of, replica_of, notices = _pipeline(timeline, columns)
    row = np.searchsorted(timeline.ranks["rank"].to_numpy(), columns["rank"])
    columns |= {"place": place_of[row], "replica": replica_of[row]}
    inside = columns["replica"] >= 0
    if not inside.all():
        columns = {name: values[inside] for name, values in columns.items()}
    shape = (len(pipeline.rank), len(types), len(steps), pipeline.rank.shape[1])
    held = _counts(columns, shape)
    usual = np.median(held, axis=(2, 3)).astype(np.int64)
    whole = (held == usual[:, :, None, None]).all(axis=(0, 1, 3))
    if not whole.any():
        raise TimelineError(
            "in no step does every worker run what it runs in most, so steps cannot be compared"
        )
    blocks = _blocks(_only(columns, whole), shape, usual)
    same = _alike(blocks)
    chosen = np.flatnonzero(whole)[same]
    if len(chosen) < len(steps):
        left = len(steps) - len(chosen)
        text = f"{count(left, 'step')} left out: not every worker ran there what it runs in most"
        notices.append(Notice("steps-left-out", text, left, len(steps)))
    blocks = {name: values[:, same] for name, values in blocks.items()}
    used = [index for index in range(len(types)) if usual[:, index].any()]
    renumbered = np.full(len(types), _UNKNOWN)
    renumbered[used] = np.arange(len(used))
    once = {
        name: blocks[name][:, 0, 0]
        for name in ("stage", "chunk", "microbatch", "pair_stage", "pair_microbatch")
    }
    return Operations(
        job_trace=job_trace,
        types=[types[index] for index in used],
        type=renumbered[blocks["code"][:, 0, 0]],
        place=blocks["place"][:, 0, 0],
        first_ns=blocks["start_ns"][:, 0, 0],
        last_ns=blocks["end_ns"][:, 0, 0],
        **once,
        length_ns=blocks["end_ns"] - blocks["start_ns"],
        end_ns=blocks["end_ns"],
        steps=[steps[index] for index in chosen],
        pipeline=pipeline,
        common_clock=timeline.run.common_clock,
        notices=tuple(notices),
    )


def _codes(tasks: pl.DataFrame, types: list[str], *, job_trace: bool) -> Array:
    """Return the type of each task, -1 for those that are left out."""
    kinds = list(tasks["kind"].dtype.categories)  # type: ignore[attr-defined]
    of_kind = np.full(len(kinds), _UNKNOWN)
    for name in types:
        kind = JOB_TYPES[name] if job_trace else Kind(name)
        if kind is not None:
            of_kind[kinds.index(kind.value)] = types.index(name)
    code = of_kind[tasks["kind"].to_physical().to_numpy()]
    if job_trace:
        named = tasks["name"].cast(pl.Enum(types), strict=False).to_physical()
        by_name = named.cast(pl.Int64).fill_null(_UNKNOWN).to_numpy()
        code = np.where(code < 0, by_name, code)
    elif not (tasks["lane"] == "compute").all():
        code = np.where((tasks["lane"] == "compute").to_numpy(), code, _UNKNOWN)
    return code


def _columns(tasks: pl.DataFrame, code: Array, step: Array) -> dict[str, Array]:
    columns = {"code": code, "step": step}
    for name in ("rank", "start_ns", "end_ns"):
        columns[name] = tasks[name].to_numpy()
    for name in ("stage", "chunk", "microbatch", "pair_stage", "pair_microbatch"):
        columns[name] = tasks[name].fill_null(_UNKNOWN).to_numpy()
    return columns


def _pipeline(
    timeline: Timeline, columns: dict[str, Array]
) -> tuple[Pipeline, Array, Array, list[Notice]]:
    """Find out where the ranks stand.

    Ranks that hold the same stages and run the same micro-batches of them are copies of each other;
    devices of two opposite pipelines hold the same stages, but run other micro-batches.

    Returns:
        The pipeline; place and replica of each rank, in the order of the ranks; notices.
    """
    ranks = timeline.ranks
    seen = _forwards(columns)
    rows = ranks.select("rank", "stages", "dp", "tp", "cp").rows()
    told = not ranks["dp"].has_nulls()
    places: list[_Place] = []
    for row, (rank, stages, *parallel) in enumerate(rows):
        if rank not in seen:
            continue
        runs = seen[rank]
        held = tuple(sorted(stages or {stage for stage, _ in runs if stage >= 0}))
        if not held:
            raise TimelineError(
                f"rank {rank} does not say which stages it runs, so nothing can be replayed"
            )
        fits = (place for place in places if place.stages == held and place.runs & runs)
        place = next(fits, None)
        if place is None:
            place = _Place(held, runs, {})
            places.append(place)
        key = tuple(_UNKNOWN if value is None else value for value in parallel)
        fresh = told and key not in place.members
        place.members[key if fresh else (len(place.members),)] = row
    places.sort(key=lambda place: place.stages)
    common = set.intersection(*(set(place.members) for place in places))
    if not common:
        raise TimelineError(
            "no data-parallel replica has a rank at every stage, so no pipeline is whole"
        )
    keys = sorted(common)
    number = np.array([[place.members[key] for key in keys] for place in places])
    place_of = np.zeros(len(rows), np.int64)
    replica_of = np.full(len(rows), _UNKNOWN)
    place_of[number] = np.arange(len(places))[:, None]
    replica_of[number] = np.arange(len(keys))
    dp = [key[0] for key in keys]
    known = told and all(len(key) == 3 for key in keys) and len(set(dp)) == len(dp)
    notices = []
    if number.size < len(seen):
        left = len(seen) - number.size
        text = f"{count(left, 'rank')} left out: no replica of theirs has a rank at every stage"
        notices.append(Notice("ranks-left-out", text, left, len(seen)))
    rank = ranks["rank"].to_numpy()[number]
    return (
        Pipeline(rank, [place.stages for place in places], dp if known else None),
        place_of,
        replica_of,
        notices,
    )


def _forwards(columns: dict[str, Array]) -> dict[int, set[tuple[int, int]]]:
    """Return the stages and micro-batches that each rank ran forwards of."""
    found = pl.DataFrame({name: columns[name] for name in ("rank", "stage", "microbatch")})
    ranks = found.select("rank").unique()["rank"].to_list()
    seen: dict[int, set[tuple[int, int]]] = {rank: set() for rank in ranks}
    for rank, stage, microbatch in found.filter(columns["code"] == 0).unique().iter_rows():
        seen[rank].add((stage, microbatch))
    return seen


def _cells(columns: dict[str, Array], shape: tuple[int, int, int, int]) -> Array:
    """Return a number for each task's place, type, step and replica, in that order."""
    parts = (columns[name] for name in ("place", "code", "step", "replica"))
    return np.ravel_multi_index(tuple(parts), shape)


def _counts(columns: dict[str, Array], shape: tuple[int, int, int, int]) -> Array:
    return np.bincount(_cells(columns, shape), minlength=int(np.prod(shape))).reshape(shape)


def _only(columns: dict[str, Array], whole: Array) -> dict[str, Array]:
    """Keep the tasks of some steps, and number those anew."""
    if whole.all():
        return columns
    inside = whole[columns["step"]]
    columns = {name: values[inside] for name, values in columns.items()}
    columns["step"] = (np.cumsum(whole) - 1)[columns["step"]]
    return columns


def _blocks(
    columns: dict[str, Array], shape: tuple[int, int, int, int], usual: Array
) -> dict[str, Array]:
    """Return each column as operations x steps x replicas.

    Args:
        columns: Tasks of steps that are whole, those of a rank by their start.
        shape: Places, types, steps and replicas.
        usual: Operations of each place and type.
    """
    steps = len(np.unique(columns["step"]))
    shape = (*shape[:2], steps, shape[3])
    order = np.argsort(_cells(columns, shape), kind="stable")
    size = steps * shape[3]
    rows = []
    begin = 0
    for many in usual.ravel().tolist():
        rows.append(order[begin : begin + many * size].reshape(steps, shape[3], many))
        begin += many * size
    index = np.concatenate([block.transpose(2, 0, 1) for block in rows if block.size])
    return {name: values[index] for name, values in columns.items()}


def _alike(blocks: dict[str, Array]) -> Array:
    """Say in which steps every worker's k-th operation is of the same stage and micro-batch."""
    worked = [blocks[name] for name in ("stage", "microbatch")]
    if all((values == values[:, :1, :1]).all() for values in worked):
        return np.ones(worked[0].shape[1], bool)
    both = np.ascontiguousarray(np.concatenate(worked).transpose(1, 2, 0))
    texts = [[column.tobytes() for column in step] for step in both]
    usual = Counter(text for step in texts for text in step).most_common(1)[0][0]
    alike = np.array([all(text == usual for text in step) for step in texts])
    if not alike.any():
        raise TimelineError(
            "in no step do the replicas run their micro-batches in the same order, so none can be "
            "compared"
        )
    return alike
